/* The maximum of 3 x 3 windows, 2 apart, for every channel.
 *   forward   y_o = max_t x_(2o + t - before), t_o the first such tap; pixels beyond the border do not count;
 *             with ReLU, which may follow the maximum instead of preceding it, max(y_o, 0), and t_o = 9 where y_o <= 0
 *   backward  dx_i = sum of dy_o over the windows o with 2o + t_o - before = i
 *   saves     t_o. */
#include <stdbool.h>

#include "kernels/cpu/activations.h"
#include "kernels/convolution/convolution.h"
#include "kernels/tokens/images.h"

enum { SIDE = 3, STRIDE = 2, CHANNELS = 64 }; /* channels summed together */

typedef struct {
    int H, W, C, Ho, Wo, top, left;
} MaxPoolWindows;

static MaxPoolWindows windows_of(const ImageShape *images, int C, bool same) {
    const Convolution window = {C, C, SIDE, STRIDE, same};
    int H = images->Hi, W = images->Wi;
    return (MaxPoolWindows){H,
                            W,
                            C,
                            convolution_side(H, STRIDE),
                            convolution_side(W, STRIDE),
                            convolution_before(&window, H),
                            convolution_before(&window, W)};
}

typedef uint8_t bytevec __attribute__((vector_size(TILE), aligned(1), may_alias));

/* y and at [C] of the window whose first pixel is (top, left); at may be NULL.  With ReLU, a maximum that becomes 0 has
 * no pixel with a gradient. */
static inline void window_max(real *y, uint8_t *at, const real *image, int top, int left, const MaxPoolWindows *s,
                              bool relu) {
    int taps[SIDE * SIDE], count = 0;
    size_t from[SIDE * SIDE];
    for (int tap = 0; tap < SIDE * SIDE; tap++) {
        int yi = top + tap / SIDE, xi = left + tap % SIDE;
        if (yi < 0 || yi >= s->H || xi < 0 || xi >= s->W) continue;
        taps[count] = tap;
        from[count++] = ((size_t)yi * (size_t)s->W + (size_t)xi) * (size_t)s->C;
    }
    for (int c = 0; c < s->C; c += TILE) {
        size_t n = (size_t)(s->C - c);
        vec most = real_load_part(image + from[0] + c, n);
        ivec which = (ivec){0} + taps[0];
        for (int i = 1; i < count; i++) {
            vec x = real_load_part(image + from[i] + c, n);
            ivec larger = x > most;
            most = vec_select(larger, x, most);
            which = (larger & taps[i]) | (~larger & which);
        }
        if (relu) {
            ivec off = most <= 0;
            most = vec_select(off, (vec){0}, most);
            which = (off & SIDE * SIDE) | (~off & which);
        }
        real_store_part(y + c, most, n);
        bytevec bytes = __builtin_convertvector(which, bytevec);
        if (at) memcpy(at + c, &bytes, n < TILE ? n : TILE);
    }
}

static void pool(real *y, uint8_t *at, const real *x, const ImageShape *images, int C, bool same, bool relu) {
    MaxPoolWindows s = windows_of(images, C, same);
#pragma omp parallel for schedule(static)
    for (size_t line = 0; line < (size_t)images->B * (size_t)s.Ho; line++) {
        const real *image = x + line / (size_t)s.Ho * (size_t)s.H * (size_t)s.W * (size_t)C;
        int top = STRIDE * (int)(line % (size_t)s.Ho) - s.top;
        for (int j = 0; j < s.Wo; j++) {
            size_t to = (line * (size_t)s.Wo + (size_t)j) * (size_t)C;
            window_max(y + to, at ? at + to : NULL, image, top, STRIDE * j - s.left, &s, relu);
        }
    }
}

void max_pool_forward(real *y, uint8_t *at, const real *x, const ImageShape *images, int C, bool same) {
    pool(y, at, x, images, C, same, false);
}

void relu_max_pool_forward(real *y, uint8_t *at, const real *x, const ImageShape *images, int C) {
    pool(y, at, x, images, C, false, true);
}

void max_pool_backward(real *dx, const real *dy, const uint8_t *at, const ImageShape *images, int C, bool same) {
    MaxPoolWindows s = windows_of(images, C, same);
#pragma omp parallel for schedule(static)
    for (size_t line = 0; line < (size_t)images->B * (size_t)s.H; line++)
        for (int j = 0; j < s.W; j++)
            for (int first = 0; first < C; first += CHANNELS) {
                float sum[CHANNELS] = {0};
                int count = C - first < CHANNELS ? C - first : CHANNELS;
                int below = (int)(line % (size_t)s.H) + s.top, right = j + s.left;
                for (int tap = 0; tap < SIDE * SIDE; tap++) {
                    int yo = below - tap / SIDE, xo = right - tap % SIDE;
                    if (yo < 0 || yo % STRIDE || yo / STRIDE >= s.Ho || xo < 0 || xo % STRIDE || xo / STRIDE >= s.Wo)
                        continue;
                    size_t window = (line / (size_t)s.H * (size_t)s.Ho + (size_t)(yo / STRIDE)) * (size_t)s.Wo +
                                    (size_t)(xo / STRIDE);
                    const real *d = dy + window * (size_t)C + first;
                    const uint8_t *which = at + window * (size_t)C + first;
                    for (int c = 0; c < count; c++) sum[c] += which[c] == tap ? real_get(d[c]) : 0;
                }
                reals_round(dx + (line * (size_t)s.W + (size_t)j) * (size_t)C + first, sum, (size_t)count);
            }
}
