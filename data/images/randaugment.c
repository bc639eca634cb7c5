#include "data/images/randaugment.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"

/* == The operations =============================================================================================== */

/* Both sets of operations.  The weights are those of timm's _RAND_WEIGHTED_0, for the increasing operations, and of the
 * older _RAND_CHOICE_WEIGHTS_0, for either set. */
static const struct {
    AugmentOperation plain, increasing;
    double weight, older_weight;
} operations[RANDAUGMENT_CHOICES] = {
    {AUGMENT_AUTO_CONTRAST, AUGMENT_AUTO_CONTRAST, .25, .025},
    {AUGMENT_EQUALIZE, AUGMENT_EQUALIZE, .05, .005},
    {AUGMENT_INVERT, AUGMENT_INVERT, .05, 0},
    {AUGMENT_ROTATE, AUGMENT_ROTATE, 3, .3},
    {AUGMENT_POSTERIZE, AUGMENT_POSTERIZE_INCREASING, .05, 0},
    {AUGMENT_SOLARIZE, AUGMENT_SOLARIZE_INCREASING, .05, .005},
    {AUGMENT_SOLARIZE_ADD, AUGMENT_SOLARIZE_ADD, .05, .005},
    {AUGMENT_COLOR, AUGMENT_COLOR_INCREASING, .25, .025},
    {AUGMENT_CONTRAST, AUGMENT_CONTRAST_INCREASING, .05, .005},
    {AUGMENT_BRIGHTNESS, AUGMENT_BRIGHTNESS_INCREASING, .05, .005},
    {AUGMENT_SHARPNESS, AUGMENT_SHARPNESS_INCREASING, .25, .025},
    {AUGMENT_SHEAR_X, AUGMENT_SHEAR_X, 2, .2},
    {AUGMENT_SHEAR_Y, AUGMENT_SHEAR_Y, 2, .2},
    {AUGMENT_TRANSLATE_X, AUGMENT_TRANSLATE_X, 1, .1},
    {AUGMENT_TRANSLATE_Y, AUGMENT_TRANSLATE_Y, 1, .1},
};

double randaugment_argument(const RandAugmentStep *step) {
    double t = step->strength / 10, sign = step->negative ? -1 : 1, factor = 1 + sign * (t * .9);
    switch (step->operation) {
    case AUGMENT_ROTATE: return sign * (t * 30);
    case AUGMENT_POSTERIZE: return trunc(t * 4);
    case AUGMENT_POSTERIZE_INCREASING: return 4 - trunc(t * 4);
    case AUGMENT_SOLARIZE: return fmin(256, trunc(t * 256));
    case AUGMENT_SOLARIZE_INCREASING: return 256 - fmin(256, trunc(t * 256));
    case AUGMENT_SOLARIZE_ADD: return fmin(128, trunc(t * 110));
    case AUGMENT_COLOR:
    case AUGMENT_CONTRAST:
    case AUGMENT_BRIGHTNESS:
    case AUGMENT_SHARPNESS: return t * 1.8 + 0.1;
    case AUGMENT_COLOR_INCREASING:
    case AUGMENT_CONTRAST_INCREASING:
    case AUGMENT_BRIGHTNESS_INCREASING:
    case AUGMENT_SHARPNESS_INCREASING: return fmax(0.1, factor);
    case AUGMENT_SHEAR_X:
    case AUGMENT_SHEAR_Y: return sign * (t * 0.3);
    case AUGMENT_TRANSLATE_X:
    case AUGMENT_TRANSLATE_Y: return sign * (t * 0.45);
    default: return 0;
    }
}

void augment_operation(uint8_t *pixels, uint8_t *scratch, int height, int width, AugmentOperation operation, double v,
                       PillowFilter filter, const uint8_t fill[3]) {
    size_t n = (size_t)height * (size_t)width;
    double m[6] = {1, 0, 0, 0, 1, 0};
    switch (operation) {
    case AUGMENT_AUTO_CONTRAST: pillow_autocontrast(pixels, n); return;
    case AUGMENT_EQUALIZE: pillow_equalize(pixels, n); return;
    case AUGMENT_INVERT: pillow_invert(pixels, n); return;
    case AUGMENT_POSTERIZE:
    case AUGMENT_POSTERIZE_INCREASING: pillow_posterize(pixels, n, (int)v); return;
    case AUGMENT_SOLARIZE:
    case AUGMENT_SOLARIZE_INCREASING: pillow_solarize(pixels, n, (int)v); return;
    case AUGMENT_SOLARIZE_ADD: pillow_solarize_add(pixels, n, (int)v); return;
    case AUGMENT_COLOR:
    case AUGMENT_COLOR_INCREASING: pillow_color(pixels, n, (float)v); return;
    case AUGMENT_CONTRAST:
    case AUGMENT_CONTRAST_INCREASING: pillow_contrast(pixels, n, (float)v); return;
    case AUGMENT_BRIGHTNESS:
    case AUGMENT_BRIGHTNESS_INCREASING: pillow_brightness(pixels, n, (float)v); return;
    case AUGMENT_SHARPNESS:
    case AUGMENT_SHARPNESS_INCREASING: pillow_sharpness(pixels, scratch, height, width, (float)v); return;
    case AUGMENT_ROTATE: pillow_rotate(pixels, scratch, height, width, v, filter, fill); return;
    case AUGMENT_SHEAR_X: m[1] = v; break;
    case AUGMENT_SHEAR_Y: m[3] = v; break;
    case AUGMENT_TRANSLATE_X: m[2] = v * width; break;
    case AUGMENT_TRANSLATE_Y: m[5] = v * height; break;
    case AUGMENT_OPERATIONS: return;
    }
    pillow_affine(pixels, scratch, height, width, m, filter, fill);
}

void randaugment_apply(uint8_t *pixels, uint8_t *scratch, int height, int width, const RandAugmentDraw *draw) {
    static const uint8_t fill[3] = {124, 116, 104};
    for (int i = 0; i < draw->count; i++) {
        const RandAugmentStep *s = &draw->steps[i];
        augment_operation(pixels, scratch, height, width, s->operation, randaugment_argument(s), s->filter, fill);
    }
}

/* == The string =================================================================================================== */

/* Parses the number after a part's key, with nothing after it and within [least, most]; an integer if `whole`. */
static bool number(double *value, const char *part, const char *text, double least, double most, bool whole,
                   Error *error) {
    char *end;
    double v = strtod(text, &end);
    if (!*text || text[strspn(text, "0123456789.")] || *end || !(v >= least && v <= most) || (whole && v != floor(v)))
        return refuse(error, "'%.40s': expected %s from %g to %g after '%.*s'", part,
                      whole ? "a whole number" : "a number", least, most, (int)(text - part), part);
    *value = v;
    return true;
}

typedef struct {
    double m, n, p, mstd, mmax, inc, w;
    bool tweights;
} SpecParts;

static bool part_parse(SpecParts *parts, const char *part, Error *error) {
    const struct {
        const char *key;
        double *value, least, most;
        bool whole;
    } keys[] = {{"m", &parts->m, 0, 1000, false},   {"n", &parts->n, 1, RANDAUGMENT_LAYERS, true},
                {"p", &parts->p, 0, 1, false},      {"mstd", &parts->mstd, 0, 1e9, false},
                {"mmax", &parts->mmax, 1, 1000, true}, {"inc", &parts->inc, 0, 1, true},
                {"w", &parts->w, 0, 0, true}};
    size_t length = strcspn(part, "0123456789.+-");
    if (!strcmp(part, "mstdinf")) return parts->mstd = INFINITY, true;
    if (!strcmp(part, "tweights")) return parts->tweights = true;
    if (part[0] == 't') return refuse(error, "'%.40s': the only other set of operations is 'tweights'", part);
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        if (length == strlen(keys[k].key) && !strncmp(part, keys[k].key, length))
            return number(keys[k].value, part, part + length, keys[k].least, keys[k].most, keys[k].whole, error);
    return refuse(error, "'%.40s': expected m9, n2, p0.5, mstd0.5, mmax10, inc1, tweights or w0", part);
}

bool randaugment_parse(RandAugment *ra, const char *text, Error *error) {
    SpecParts parts = {.m = 10, .n = 2, .p = 0.5, .mmax = 10, .w = NAN};
    char copy[256], *rest = copy;
    *ra = (RandAugment){.layers = 0};
    if (!*text) return true;
    if (strlen(text) >= sizeof copy)
        return refuse(error, "'%.40s...' is longer than %zu letters", text, sizeof copy - 1);
    strcpy(copy, text);
    const char *part = strsep(&rest, "-");
    if (strcmp(part, "rand"))
        return refuse(error, "'%.40s': expected RandAugment, as in rand-m9-mstd0.5-inc1, or autoaugment-cifar10", part);
    while ((part = strsep(&rest, "-")) != NULL)
        if (!part_parse(&parts, part, error)) return false;
    bool older = parts.w == 0;
    if (older && parts.tweights) return refuse(error, "tweights and w0 are two sets of weights: choose one");
    *ra = (RandAugment){.layers = (int)parts.n, .magnitude = parts.m, .most = parts.mmax,
                        .deviation = parts.mstd > 100 ? INFINITY : parts.mstd, .probability = parts.p,
                        .weighted = parts.tweights || older};
    bool increasing = parts.inc > 0 || parts.tweights;
    int possible = 0;
    for (int i = 0; i < RANDAUGMENT_CHOICES; i++) {
        ra->choices[i] = increasing ? operations[i].increasing : operations[i].plain;
        ra->weights[i] = parts.tweights ? operations[i].weight : older ? operations[i].older_weight : 1;
        possible += ra->weights[i] > 0;
    }
    if (ra->weighted && ra->layers > possible) {
        refuse(error, "n%d: with weights, operations are drawn without replacement, and there are only "
                      "%d", ra->layers, possible);
        ra->layers = 0;
        return false;
    }
    return true;
}

/* == The draw ===================================================================================================== */

/* Offsets of one operation's random numbers within the sample's stream. */
enum {
    DRAW_CHOICE,
    DRAW_APPLY,
    DRAW_STRENGTH, /* uses the next one too: a normal number takes two */
    DRAW_SIGN = 4,
    DRAW_FILTER,
    DRAWS = 8
};

/* Draws by weight from the remaining choices, as numpy.random.choice(replace=False). */
static int choice_by_weight(double left[RANDAUGMENT_CHOICES], double u) {
    double total = 0, sum = 0;
    int chosen = 0;
    for (int i = 0; i < RANDAUGMENT_CHOICES; i++) total += left[i];
    for (int i = 0; i < RANDAUGMENT_CHOICES && sum <= u * total; i++) {
        if (left[i] > 0) chosen = i;
        sum += left[i];
    }
    left[chosen] = 0;
    return chosen;
}

RandAugmentDraw randaugment_draw(const RandAugment *ra, uint64_t seed, uint32_t epoch, uint32_t draw) {
    RandAugmentDraw drawn = {.count = 0};
    double left[RANDAUGMENT_CHOICES];
    memcpy(left, ra->weights, sizeof left);
    for (int layer = 0; layer < ra->layers; layer++) {
        uint64_t first = (uint64_t)layer * DRAWS;
        float u[DRAWS];
        for (int i = 0; i < DRAWS; i++) u[i] = rng_uniform(seed, RNG_RANDAUGMENT, epoch, draw, first + (uint64_t)i);
        int choice = ra->weighted ? choice_by_weight(left, (double)u[DRAW_CHOICE])
                                  : (int)((double)u[DRAW_CHOICE] * RANDAUGMENT_CHOICES);
        if ((double)u[DRAW_APPLY] >= ra->probability) continue;
        double strength = ra->magnitude;
        if (isinf(ra->deviation))
            strength *= (double)u[DRAW_STRENGTH];
        else if (ra->deviation > 0)
            strength += ra->deviation *
                        (double)rng_normal(seed, RNG_RANDAUGMENT, epoch, draw, (first + DRAW_STRENGTH) / 2);
        PillowFilter random = u[DRAW_FILTER] < 0.5f ? PILLOW_BILINEAR : PILLOW_BICUBIC;
        drawn.steps[drawn.count++] = (RandAugmentStep){
            .operation = ra->choices[choice],
            .strength = fmin(fmax(strength, 0), ra->most),
            .negative = u[DRAW_SIGN] < 0.5f,
            .filter = ra->resample == RANDAUGMENT_RANDOM     ? random
                      : ra->resample == RANDAUGMENT_BILINEAR ? PILLOW_BILINEAR
                                                          : PILLOW_BICUBIC,
        };
    }
    return drawn;
}
