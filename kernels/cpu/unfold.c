/* The windows of a convolution as rows, and the sum of what each input got in all of its windows.
 * A window (i, j) reads row i stride + r - pad and column j stride + c - pad of the input, r and c below k; so the
 * input (y, x) is read by the windows with i stride <= y + pad < i stride + k, and the same for j. */
#include "kernels/cpu/activations.h"
#include "kernels/kernels.h"

/* Numbers from one position of the input to the next, and from one channel to the next. */
static size_t position_step(const Unfold *s) { return s->planes ? 1 : (size_t)s->C; }
static size_t channel_step(const Unfold *s) { return s->planes ? (size_t)s->Hi * (size_t)s->Wi : 1; }
static size_t image_size(const Unfold *s) { return (size_t)s->Hi * (size_t)s->Wi * (size_t)s->C; }

enum { CHANNELS = 64 }; /* summed together */

static bool inside(const Unfold *s, int y, int x) { return y >= 0 && y < s->Hi && x >= 0 && x < s->Wi; }

void unfold_forward(real *cols, const real *x, const Unfold *s, int B) {
    Grid windows = unfold_grid(s);
    int down = windows.rows, across = windows.columns, k = s->k;
    size_t step = position_step(s), channel = channel_step(s), row = (size_t)s->C * (size_t)(k * k);
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int i = 0; i < down; i++)
            for (int j = 0; j < across; j++) {
                const real *image = x + (size_t)b * image_size(s);
                real *out = cols + (((size_t)b * (size_t)down + (size_t)i) * (size_t)across + (size_t)j) * row;
                for (int r = 0; r < k; r++)
                    for (int c = 0; c < k; c++, out++) {
                        int yi = i * s->stride + r - s->pad, xi = j * s->stride + c - s->pad;
                        const real *from = image + ((size_t)yi * (size_t)s->Wi + (size_t)xi) * step;
                        bool there = inside(s, yi, xi);
                        for (int m = 0; m < s->C; m++) out[m * k * k] = there ? from[(size_t)m * channel] : real_of(0);
                    }
            }
}

/* The first window that reads position y of an axis, and the end of those that do. */
static int window_first(const Unfold *s, int y) {
    int behind = y + s->pad - s->k + 1;
    return behind <= 0 ? 0 : (behind + s->stride - 1) / s->stride;
}
static int window_end(const Unfold *s, int y, int windows) {
    int end = (y + s->pad) / s->stride + 1;
    return end < windows ? end : windows;
}

void unfold_backward(real *dx, const real *dcols, const Unfold *s, int B) {
    Grid windows = unfold_grid(s);
    int down = windows.rows, across = windows.columns, k = s->k;
    size_t step = position_step(s), channel = channel_step(s), row = (size_t)s->C * (size_t)(k * k);
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int y = 0; y < s->Hi; y++)
            for (int x = 0; x < s->Wi; x++) {
                real *to = dx + (size_t)b * image_size(s) + ((size_t)y * (size_t)s->Wi + (size_t)x) * step;
                for (int first = 0; first < s->C; first += CHANNELS) {
                    float sum[CHANNELS] = {0};
                    int count = s->C - first < CHANNELS ? s->C - first : CHANNELS;
                    for (int i = window_first(s, y); i < window_end(s, y, down); i++)
                        for (int j = window_first(s, x); j < window_end(s, x, across); j++) {
                            size_t window = ((size_t)b * (size_t)down + (size_t)i) * (size_t)across + (size_t)j;
                            int tap = (y + s->pad - i * s->stride) * k + x + s->pad - j * s->stride;
                            const real *from = dcols + window * row + (size_t)first * (size_t)(k * k) + tap;
                            for (int m = 0; m < count; m++) sum[m] += real_get(from[m * k * k]);
                        }
                    for (int m = 0; m < count; m++) to[(size_t)(first + m) * channel] = real_of(sum[m]);
                }
            }
}
