/* OpenCV's conversions of 8 bits (modules/imgproc/src/color_hsv.simd.hpp), H in 0 .. 179:
 *   V = max,  d = V - min,  S = (d sdiv[V] + 2^11) >> 12,  sdiv[i] = round(255 2^12 / i)
 *   H = (h hdiv[d] + 2^11) >> 12, plus 180 if negative,    hdiv[i] = round(180 2^12 / (6 i))
 *   h = G - B where R is the largest, else B - R + 2 d where G is, else R - G + 4 d
 * and back in float, with i + f = 6 H / 180: the channels are v, v (1 - s), v (1 - s f) and v (1 - s (1 - f)) of V /
 * 255 and S / 255, with fused multiply-adds in the brackets, times 255 and truncated.  This is OpenCV's vector code;
 * its code for the remaining pixels at the end of a row rounds instead, and these may be brighter by 1. */
#include "data/images/photometric.h"

#include <math.h>

#include "core/integers.h"
#include "core/rng.h"

enum { CIRCLE = 180, SHIFT = 12, HALF = 1 << (SHIFT - 1) };

/* == Draws ======================================================================================================== */

/* Each draw uses its own element of the sample's random stream. */
enum { BRIGHTEN, BRIGHTNESS, CONTRAST_FIRST, CONTRAST_AT_ALL, CONTRAST, SATURATE, SATURATION, TURN, HUE };

Photometric photometric_draw(uint64_t seed, uint32_t epoch, uint32_t draw) {
    enum { MOST_HUE = 18 };
    const float most = 32, least = 0.5f;
    uint32_t coin[HUE + 1];
    float u[HUE + 1];
    for (uint32_t i = 0; i <= HUE; i++) {
        coin[i] = rng_bits(seed, RNG_JITTER, epoch, draw, i) >> 31;
        u[i] = rng_uniform(seed, RNG_JITTER, epoch, draw, i);
    }
    return (Photometric){.brighten = coin[BRIGHTEN],
                         .contrast_first = coin[CONTRAST_AT_ALL] && coin[CONTRAST_FIRST],
                         .saturate = coin[SATURATE],
                         .turn = coin[TURN],
                         .contrast_last = coin[CONTRAST_AT_ALL] && !coin[CONTRAST_FIRST],
                         .brightness = -most + 2 * most * u[BRIGHTNESS],
                         .contrast = least + u[CONTRAST],
                         .saturation = least + u[SATURATION],
                         .hue = -MOST_HUE + (int)rng_below(seed, RNG_JITTER, epoch, draw, HUE, 2 * MOST_HUE)};
}

/* == One channel value ============================================================================================ */

/* x times a factor, plus a sum, clamped to 0 .. 255 and truncated; mmsegmentation never needs both. */
static uint8_t convert(uint8_t x, float factor, float sum) {
    float y = (float)x * factor + sum;
    return (uint8_t)fminf(fmaxf(y, 0), 255);
}

static void convert_table(uint8_t table[256], float factor, float sum) {
    for (int x = 0; x < 256; x++) table[x] = convert((uint8_t)x, factor, sum);
}

/* == HSV ========================================================================================================== */

typedef struct {
    int saturation[256], hue[256]; /* sdiv and hdiv */
} Dividers;

static Dividers dividers(void) {
    Dividers d = {.hue = {0}};
    for (int i = 1; i < 256; i++) {
        d.saturation[i] = (int)lrint((255 << SHIFT) / (double)i);
        d.hue[i] = (int)lrint((CIRCLE << SHIFT) / (6.0 * i));
    }
    return d;
}

static void to_hsv(uint8_t hsv[3], const uint8_t *rgb, const Dividers *dividers) {
    int r = rgb[0], g = rgb[1], b = rgb[2], v = larger(larger(r, g), b), d = v - smaller(smaller(r, g), b);
    int h = v == r ? g - b : v == g ? b - r + 2 * d : r - g + 4 * d;
    h = (h * dividers->hue[d] + HALF) >> SHIFT;
    hsv[0] = (uint8_t)(h + (h < 0 ? CIRCLE : 0));
    hsv[1] = (uint8_t)((d * dividers->saturation[v] + HALF) >> SHIFT);
    hsv[2] = (uint8_t)v;
}

/* weight [180,3]: how much each channel decreases with S at that hue. */
typedef struct {
    float weight[CIRCLE][3];
} Wheel;

static Wheel wheel(void) {
    /* 0: not at all, 1: by S, 2: with the hue, 3: against it; for each sixth of the circle */
    static const uint8_t kinds[6][3] = {{0, 3, 1}, {2, 0, 1}, {1, 0, 3}, {1, 2, 0}, {3, 1, 0}, {0, 1, 2}};
    Wheel wheel;
    for (int h = 0; h < CIRCLE; h++) {
        float turned = (float)h * (6.0f / CIRCLE), part = turned - (float)(int)turned;
        const float weight[4] = {0, 1, part, 1 - part};
        for (int k = 0; k < 3; k++) wheel.weight[h][k] = weight[kinds[(int)turned][k]];
    }
    return wheel;
}

/* In double the product is exact, as it is in a fused multiply-add. */
static void from_hsv(uint8_t *rgb, const uint8_t hsv[3], const Wheel *wheel) {
    const float *weight = wheel->weight[hsv[0]], v = (float)hsv[2] * (1.0f / 255);
    double s = (double)((float)hsv[1] * (1.0f / 255));
    for (int k = 0; k < 3; k++) rgb[k] = (uint8_t)(v * (float)(1 - s * (double)weight[k]) * 255);
}

/* == Rows ========================================================================================================= */

typedef struct {
    const Photometric *draw;
    uint8_t brighter[256], contrast[256], saturated[256];
    Dividers dividers;
    Wheel wheel;
} Tables;

static void look_up(uint8_t *values, size_t n, const uint8_t table[256]) {
    for (size_t i = 0; i < n; i++) values[i] = table[values[i]];
}

/* Both steps on HSV convert to HSV and back, which rounds, even if they change nothing. */
static void saturate(uint8_t *pixels, size_t n, const Tables *t) {
    uint8_t hsv[3];
    for (uint8_t *p = pixels; p < pixels + 3 * n; p += 3) {
        to_hsv(hsv, p, &t->dividers);
        hsv[1] = t->saturated[hsv[1]];
        from_hsv(p, hsv, &t->wheel);
    }
}

static void turn(uint8_t *pixels, size_t n, const Tables *t) {
    uint8_t hsv[3];
    for (uint8_t *p = pixels; p < pixels + 3 * n; p += 3) {
        to_hsv(hsv, p, &t->dividers);
        hsv[0] = (uint8_t)((hsv[0] + t->draw->hue + CIRCLE) % CIRCLE);
        from_hsv(p, hsv, &t->wheel);
    }
}

static void change_row(uint8_t *pixels, size_t n, const Tables *t) {
    if (t->draw->brighten) look_up(pixels, 3 * n, t->brighter);
    if (t->draw->contrast_first) look_up(pixels, 3 * n, t->contrast);
    if (t->draw->saturate) saturate(pixels, n, t);
    if (t->draw->turn) turn(pixels, n, t);
    if (t->draw->contrast_last) look_up(pixels, 3 * n, t->contrast);
}

void photometric_apply(uint8_t *pixels, size_t stride, int height, int width, const Photometric *draw) {
    Tables t = {.draw = draw, .dividers = dividers(), .wheel = wheel()};
    convert_table(t.brighter, 1, draw->brightness);
    convert_table(t.contrast, draw->contrast, 0);
    convert_table(t.saturated, draw->saturation, 0);
    for (int y = 0; y < height; y++) change_row(pixels + (size_t)y * stride, (size_t)width, &t);
}
