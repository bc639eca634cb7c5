/* AutoAugment; autoaugment.h says where its variants differ. */
#include "data/images/autoaugment.h"

#include <math.h>
#include <string.h>

#include "core/rng.h"

/* == The policies ================================================================================================= */

typedef struct {
    AugmentOperation operation;
    float probability;
    int bin; /* index of the strength, 0 .. 9; 0 for an operation without one */
} Choice;

typedef Choice Pair[2];

static const Pair cifar10[AUTOAUGMENT_PAIRS] = {
    {{AUGMENT_INVERT, 0.1, 0}, {AUGMENT_CONTRAST, 0.2, 6}},
    {{AUGMENT_ROTATE, 0.7, 2}, {AUGMENT_TRANSLATE_X, 0.3, 9}},
    {{AUGMENT_SHARPNESS, 0.8, 1}, {AUGMENT_SHARPNESS, 0.9, 3}},
    {{AUGMENT_SHEAR_Y, 0.5, 8}, {AUGMENT_TRANSLATE_Y, 0.7, 9}},
    {{AUGMENT_AUTO_CONTRAST, 0.5, 0}, {AUGMENT_EQUALIZE, 0.9, 0}},
    {{AUGMENT_SHEAR_Y, 0.2, 7}, {AUGMENT_POSTERIZE, 0.3, 7}},
    {{AUGMENT_COLOR, 0.4, 3}, {AUGMENT_BRIGHTNESS, 0.6, 7}},
    {{AUGMENT_SHARPNESS, 0.3, 9}, {AUGMENT_BRIGHTNESS, 0.7, 9}},
    {{AUGMENT_EQUALIZE, 0.6, 0}, {AUGMENT_EQUALIZE, 0.5, 0}},
    {{AUGMENT_CONTRAST, 0.6, 7}, {AUGMENT_SHARPNESS, 0.6, 5}},
    {{AUGMENT_COLOR, 0.7, 7}, {AUGMENT_TRANSLATE_X, 0.5, 8}},
    {{AUGMENT_EQUALIZE, 0.3, 0}, {AUGMENT_AUTO_CONTRAST, 0.4, 0}},
    {{AUGMENT_TRANSLATE_Y, 0.4, 3}, {AUGMENT_SHARPNESS, 0.2, 6}},
    {{AUGMENT_BRIGHTNESS, 0.9, 6}, {AUGMENT_COLOR, 0.2, 8}},
    {{AUGMENT_SOLARIZE, 0.5, 2}, {AUGMENT_INVERT, 0, 0}},
    {{AUGMENT_EQUALIZE, 0.2, 0}, {AUGMENT_AUTO_CONTRAST, 0.6, 0}},
    {{AUGMENT_EQUALIZE, 0.2, 0}, {AUGMENT_EQUALIZE, 0.6, 0}},
    {{AUGMENT_COLOR, 0.9, 9}, {AUGMENT_EQUALIZE, 0.6, 0}},
    {{AUGMENT_AUTO_CONTRAST, 0.8, 0}, {AUGMENT_SOLARIZE, 0.2, 8}},
    {{AUGMENT_BRIGHTNESS, 0.1, 3}, {AUGMENT_COLOR, 0.7, 0}},
    {{AUGMENT_SOLARIZE, 0.4, 5}, {AUGMENT_AUTO_CONTRAST, 0.9, 0}},
    {{AUGMENT_TRANSLATE_Y, 0.9, 9}, {AUGMENT_TRANSLATE_Y, 0.7, 9}},
    {{AUGMENT_AUTO_CONTRAST, 0.9, 0}, {AUGMENT_SOLARIZE, 0.8, 3}},
    {{AUGMENT_EQUALIZE, 0.8, 0}, {AUGMENT_INVERT, 0.1, 0}},
    {{AUGMENT_TRANSLATE_Y, 0.7, 9}, {AUGMENT_AUTO_CONTRAST, 0.9, 0}},
};

static const Pair imagenet[AUTOAUGMENT_PAIRS] = {
    {{AUGMENT_POSTERIZE, 0.4, 8}, {AUGMENT_ROTATE, 0.6, 9}},
    {{AUGMENT_SOLARIZE, 0.6, 5}, {AUGMENT_AUTO_CONTRAST, 0.6, 0}},
    {{AUGMENT_EQUALIZE, 0.8, 0}, {AUGMENT_EQUALIZE, 0.6, 0}},
    {{AUGMENT_POSTERIZE, 0.6, 7}, {AUGMENT_POSTERIZE, 0.6, 6}},
    {{AUGMENT_EQUALIZE, 0.4, 0}, {AUGMENT_SOLARIZE, 0.2, 4}},
    {{AUGMENT_EQUALIZE, 0.4, 0}, {AUGMENT_ROTATE, 0.8, 8}},
    {{AUGMENT_SOLARIZE, 0.6, 3}, {AUGMENT_EQUALIZE, 0.6, 0}},
    {{AUGMENT_POSTERIZE, 0.8, 5}, {AUGMENT_EQUALIZE, 1, 0}},
    {{AUGMENT_ROTATE, 0.2, 3}, {AUGMENT_SOLARIZE, 0.6, 8}},
    {{AUGMENT_EQUALIZE, 0.6, 0}, {AUGMENT_POSTERIZE, 0.4, 6}},
    {{AUGMENT_ROTATE, 0.8, 8}, {AUGMENT_COLOR, 0.4, 0}},
    {{AUGMENT_ROTATE, 0.4, 9}, {AUGMENT_EQUALIZE, 0.6, 0}},
    {{AUGMENT_EQUALIZE, 0, 0}, {AUGMENT_EQUALIZE, 0.8, 0}},
    {{AUGMENT_INVERT, 0.6, 0}, {AUGMENT_EQUALIZE, 1, 0}},
    {{AUGMENT_COLOR, 0.6, 4}, {AUGMENT_CONTRAST, 1, 8}},
    {{AUGMENT_ROTATE, 0.8, 8}, {AUGMENT_COLOR, 1, 2}},
    {{AUGMENT_COLOR, 0.8, 8}, {AUGMENT_SOLARIZE, 0.8, 7}},
    {{AUGMENT_SHARPNESS, 0.4, 7}, {AUGMENT_INVERT, 0.6, 0}},
    {{AUGMENT_SHEAR_X, 0.6, 5}, {AUGMENT_EQUALIZE, 1, 0}},
    {{AUGMENT_COLOR, 0.4, 0}, {AUGMENT_EQUALIZE, 0.6, 0}},
    {{AUGMENT_EQUALIZE, 0.4, 0}, {AUGMENT_SOLARIZE, 0.2, 4}},
    {{AUGMENT_SOLARIZE, 0.6, 5}, {AUGMENT_AUTO_CONTRAST, 0.6, 0}},
    {{AUGMENT_INVERT, 0.6, 0}, {AUGMENT_EQUALIZE, 1, 0}},
    {{AUGMENT_COLOR, 0.6, 4}, {AUGMENT_CONTRAST, 1, 8}},
    {{AUGMENT_EQUALIZE, 0.8, 0}, {AUGMENT_EQUALIZE, 0.6, 0}},
};

static const struct {
    const char *name;
    AutoAugmentPolicy policy;
} policies[] = {{"autoaugment-cifar10", AUTOAUGMENT_CIFAR10},
                {"autoaugment-imagenet", AUTOAUGMENT_IMAGENET},
                {"autoaugment-compact", AUTOAUGMENT_COMPACT}};

bool autoaugment_named(const char *text) { return !strncmp(text, "autoaugment", strlen("autoaugment")); }

bool autoaugment_parse(AutoAugmentPolicy *policy, const char *text, Error *error) {
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++)
        if (!strcmp(text, policies[i].name)) return *policy = policies[i].policy, true;
    return refuse(error, "'%.40s': expected autoaugment-cifar10, autoaugment-imagenet or autoaugment-compact", text);
}

/* == Strengths ==================================================================================================== */

enum { BINS = 10 };

/* Number `bin` of ten from `from` to `to`, rounded like torch.linspace's floats or numpy.linspace's doubles. */
static double spaced(double from, double to, int bin, bool floats) {
    if (!floats) return bin == BINS - 1 ? to : from + bin * ((to - from) / (BINS - 1));
    float first = (float)from, last = (float)to, step = (float)(((double)last - (double)first) / (BINS - 1));
    if (bin < BINS / 2) return (double)(float)((double)first + (double)(float)((double)step * bin));
    return (double)(float)((double)last - (double)(float)((double)step * (BINS - 1 - bin)));
}

static const Choice *choice_of(const AutoAugmentDraw *draw, int half) {
    return &(draw->policy == AUTOAUGMENT_IMAGENET ? imagenet : cifar10)[draw->pair][half];
}

/* An operation with its argument, for augment_operation. */
typedef struct {
    AugmentOperation operation;
    double argument;
    PillowFilter filter;
} Step;

/* In torchvision shears and rotations also use the nearest pixel, and translations are by whole pixels. */
static Step step_of(const AutoAugmentDraw *draw, int half, int height, int width) {
    const Choice *c = choice_of(draw, half);
    bool compact = draw->policy == AUTOAUGMENT_COMPACT;
    double sign = draw->negative[half] ? -1 : 1;
    Step step = {.operation = c->operation, .filter = PILLOW_NEAREST};
    switch (c->operation) {
    case AUGMENT_POSTERIZE: step.argument = 8 - nearbyint(c->bin / 2.25); break;
    case AUGMENT_SOLARIZE: step.argument = ceil(spaced(compact ? 256 : 255, 0, c->bin, !compact)); break;
    case AUGMENT_COLOR:
    case AUGMENT_CONTRAST:
    case AUGMENT_BRIGHTNESS:
    case AUGMENT_SHARPNESS: step.argument = 1 + sign * spaced(0, 0.9, c->bin, !compact); break;
    case AUGMENT_ROTATE: step.argument = (compact ? 1 : sign) * spaced(0, 30, c->bin, !compact); break;
    case AUGMENT_SHEAR_X:
    case AUGMENT_SHEAR_Y:
        step.argument = sign * spaced(0, 0.3, c->bin, !compact);
        if (compact) step.filter = PILLOW_BICUBIC;
        break;
    case AUGMENT_TRANSLATE_X:
    case AUGMENT_TRANSLATE_Y: {
        int side = c->operation == AUGMENT_TRANSLATE_X ? width : height;
        double pixels = trunc(spaced(0, 150.0 / 331 * side, c->bin, true));
        step.argument = compact ? sign * spaced(0, 150.0 / 331, c->bin, false) : -sign * pixels / side;
        break;
    }
    default: break;
    }
    return step;
}

/* == Draws ======================================================================================================== */

/* Offsets of random numbers within the sample's stream; two for each of the pair's operations from DRAW_FIRST on. */
enum { DRAW_PAIR, DRAW_FIRST };

AutoAugmentDraw autoaugment_draw(AutoAugmentPolicy policy, uint64_t seed, uint32_t epoch, uint32_t draw) {
    AutoAugmentDraw drawn = {.policy = policy};
    if (policy == AUTOAUGMENT_NONE) return drawn;
    drawn.pair = (int)rng_below(seed, RNG_RANDAUGMENT, epoch, draw, DRAW_PAIR, AUTOAUGMENT_PAIRS);
    for (int half = 0; half < 2; half++) {
        uint64_t first = DRAW_FIRST + 2 * (uint64_t)half;
        float probability = choice_of(&drawn, half)->probability;
        drawn.applies[half] = rng_uniform(seed, RNG_RANDAUGMENT, epoch, draw, first) < probability;
        drawn.negative[half] = rng_uniform(seed, RNG_RANDAUGMENT, epoch, draw, first + 1) < 0.5f;
    }
    return drawn;
}

void autoaugment_apply(uint8_t *pixels, uint8_t *scratch, int height, int width, const AutoAugmentDraw *draw) {
    static const uint8_t black[3] = {0, 0, 0}, grey[3] = {128, 128, 128};
    for (int half = 0; half < 2; half++) {
        if (!draw->applies[half]) continue;
        Step s = step_of(draw, half, height, width);
        augment_operation(pixels, scratch, height, width, s.operation, s.argument, s.filter,
                          draw->policy == AUTOAUGMENT_COMPACT ? grey : black);
    }
}
