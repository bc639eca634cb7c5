#include "data/images/mixup.h"

#include <math.h>

#include "core/integers.h"
#include "core/rng.h"

#define F(KIND, field) CONFIG_FIELD(KIND, MixupSettings, field)
static const ConfigEntry entries[] = {
    {F(FLOAT, mixup), "0", .section = "augmentation", .min = 0, .max = 1000,
     .help = "Alpha of mixup, which blends images and their targets in pairs (0: off)"},
    {F(FLOAT, cutmix), "0", .min = 0, .max = 1000,
     .help = "Alpha of cutmix, which replaces a box of an image by that of another and mixes the targets (0: off)"},
    {F(FLOAT, mixup_prob), "1", .min = 0, .max = 1,
     .help = "Probability that a batch is mixed, if mixup or cutmix is on"},
    {F(FLOAT, mixup_switch_prob), "0.5", .min = 0, .max = 1,
     .help = "Probability that a mixed batch uses cutmix rather than mixup, if both are on"},
};
#undef F
const ConfigGroup mixup_settings = {CONFIG_GROUP(MixupSettings, entries), .change = CHANGE_FREELY};

bool mixup_is_on(const MixupSettings *s) { return s->mixup > 0 || s->cutmix > 0; }

/* == The draw ===================================================================================================== */

/* The elements of a step's random stream that each draw uses. */
enum { DRAW_MIX, DRAW_SWITCH, DRAW_Y, DRAW_X, DRAW_BETA = 16 };

static double uniform(uint64_t seed, uint64_t step, uint64_t element) {
    return ((double)rng_bits(seed, RNG_MIXUP, (uint32_t)step, (uint32_t)(step >> 32), element) + 0.5) / 4294967296.0;
}

/* ln of a Gamma(a) number (Marsaglia and Tsang 2000, section 6 for a < 1): in logarithms, since for small a the number
 * itself underflows a double.  Uses stream elements from `first` on. */
static double log_gamma_number(double a, uint64_t seed, uint64_t step, uint64_t first) {
    double boost = a < 1 ? log(uniform(seed, step, first)) / a : 0;
    double d = (a < 1 ? a + 1 : a) - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (uint64_t i = first + 1;; i += 3) { /* each attempt is accepted with probability 0.95 */
        double radius = sqrt(-2 * log(uniform(seed, step, i))), turn = 2 * M_PI * uniform(seed, step, i + 1);
        double x = radius * cos(turn), v = 1 + c * x;
        if (v <= 0) continue;
        double log_v = 3 * log(v);
        if (log(uniform(seed, step, i + 2)) < x * x / 2 + d * (1 - v * v * v + log_v)) return log(d) + log_v + boost;
    }
}

double mixup_beta(double a, uint64_t seed, uint64_t step) {
    double g = log_gamma_number(a, seed, step, DRAW_BETA);
    double h = log_gamma_number(a, seed, step, DRAW_BETA + (1 << 20));
    return 1 / (1 + exp(h - g));
}

static int below(int n, uint64_t seed, uint64_t step, uint64_t element) {
    return (int)rng_below(seed, RNG_MIXUP, (uint32_t)step, (uint32_t)(step >> 32), element, (uint32_t)n);
}

MixupDraw mixup_draw(const MixupSettings *s, uint64_t seed, uint64_t step, int height, int width) {
    MixupDraw drawn = {.lam = 1};
    bool mix = s->mixup > 0, cut = s->cutmix > 0;
    if ((!mix && !cut) || uniform(seed, step, DRAW_MIX) >= (double)s->mixup_prob) return drawn;
    if (mix && cut) cut = uniform(seed, step, DRAW_SWITCH) < (double)s->mixup_switch_prob;
    double lam = mixup_beta((double)(cut ? s->cutmix : s->mixup), seed, step);
    if (cut) {
        int cut_h = (int)(height * sqrt(1 - lam)), cut_w = (int)(width * sqrt(1 - lam));
        int y = below(height, seed, step, DRAW_Y), x = below(width, seed, step, DRAW_X), *box = drawn.box;
        box[0] = clamp(y - cut_h / 2, 0, height);
        box[1] = clamp(x - cut_w / 2, 0, width);
        box[2] = clamp(y + (cut_h + 1) / 2, 0, height);
        box[3] = clamp(x + (cut_w + 1) / 2, 0, width);
        lam = 1 - (double)(box[2] - box[0]) * (box[3] - box[1]) / ((double)height * width);
    }
    drawn.lam = (float)lam;
    return drawn;
}

/* == Parts of a batch ============================================================================================= */

size_t mixup_sample(size_t position, size_t n) { return position % 2 ? n - 1 - position / 2 : position / 2; }

int mixup_part(size_t *begin, int *pairs, size_t first, int n_part, size_t n) {
    size_t end = first + (size_t)n_part;
    *begin = first - first % 2;
    end += end % 2 && end < n;
    for (size_t p = first; p < first + (size_t)n_part; p++) {
        size_t partner = (p ^ 1) < n ? p ^ 1 : p;
        *pairs++ = (int)(p - *begin);
        *pairs++ = (int)(partner - *begin);
    }
    return (int)(end - *begin);
}

void mixup_targets(float *targets, const int *labels, const int *pairs, int n_part, int classes, float smoothing,
                   float lam) {
    float off = smoothing / (float)classes, on = 1 - smoothing + off, rest = 1 - lam;
    for (int i = 0; i < n_part; i++, targets += classes, pairs += 2) {
        int own = labels[pairs[0]], other = labels[pairs[1]];
        for (int c = 0; c < classes; c++) targets[c] = (c == own ? on : off) * lam + (c == other ? on : off) * rest;
    }
}
