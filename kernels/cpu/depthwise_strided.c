/* Depthwise convolution of which only every stride-th row and column is computed, channels last.
 *   forward   y_o = sum_t w_t x_(stride o + t)
 *   backward  dx_i = the sum of w_t dy_o over the o and t with stride o + t = i,  dw_t += sum_o dy_o x_(stride o + t)
 * TILE channels at a time; every sum is one thread's, so it does not depend on their number. */
#include "kernels/cpu/activations.h"
#include "kernels/kernels.h"

enum { LARGEST = 7 };

typedef struct {
    const Depthwise *s;
    int stride, Ho, Wo, c, channels; /* of one group: first channel, how many */
    vec taps[LARGEST * LARGEST];
} Group;

static Group group_of(const StridedDepthwise *shape, const float *w, int c) {
    const Depthwise *s = &shape->window;
    Group g = {.s = s, .stride = shape->stride, .c = c, .channels = s->C - c < TILE ? s->C - c : TILE,
               .Ho = convolution_side(s->grid.rows, shape->stride),
               .Wo = convolution_side(s->grid.columns, shape->stride)};
    for (int tap = 0; tap < s->k * s->k; tap++)
        for (int l = 0; l < g.channels; l++) g.taps[tap][l] = w[(size_t)(c + l) * s->k * s->k + tap];
    return g;
}

/* The taps first .. last - 1 of a window along one side reach onto the grid. */
static int first_tap(const Group *g, int o) {
    int before = g->s->k / 2 - o * g->stride;
    return before > 0 ? before : 0;
}
static int last_tap(const Group *g, int o, int side) {
    int left = side - o * g->stride + g->s->k / 2;
    return left < g->s->k ? left : g->s->k;
}

/* y, x: those of the image and of the group's first channel. */
static void forward_image(const Group *g, real *y, const real *x) {
    const Depthwise *s = g->s;
    for (int i = 0; i < g->Ho; i++)
        for (int j = 0; j < g->Wo; j++) {
            vec sum = {0};
            for (int r = first_tap(g, i); r < last_tap(g, i, s->grid.rows); r++)
                for (int q = first_tap(g, j); q < last_tap(g, j, s->grid.columns); q++) {
                    int yi = i * g->stride + r - s->k / 2, xi = j * g->stride + q - s->k / 2;
                    sum += g->taps[r * s->k + q] *
                           real_load_part(x + ((size_t)yi * s->grid.columns + xi) * s->x_row, g->channels);
                }
            real_store_part(y + ((size_t)i * g->Wo + j) * s->y_row, sum, g->channels);
        }
}

void strided_depthwise_forward(real *y, const real *x, const float *w, const StridedDepthwise *shape, int B) {
    const Depthwise *s = &shape->window;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int c = 0; c < s->C; c += TILE) {
            Group g = group_of(shape, w, c);
            forward_image(&g, y + (size_t)b * g.Ho * g.Wo * s->y_row + c,
                          x + (size_t)b * grid_tokens(s->grid) * s->x_row + c);
        }
}

/* The tokens' gradients, gathered: token (i,j) is in the windows whose tap there is i + k/2 - r = stride o. */
static void input_gradient(const Group *g, real *dx, const real *dy) {
    const Depthwise *s = g->s;
    for (int i = 0; i < s->grid.rows; i++)
        for (int j = 0; j < s->grid.columns; j++) {
            vec sum = {0};
            int yi = i + s->k / 2, xi = j + s->k / 2;
            for (int r = yi % g->stride; r < s->k && r <= yi; r += g->stride)
                for (int q = xi % g->stride; q < s->k && q <= xi; q += g->stride) {
                    int o = (yi - r) / g->stride, p = (xi - q) / g->stride;
                    if (o >= g->Ho || p >= g->Wo) continue;
                    sum += g->taps[r * s->k + q] * real_load_part(dy + ((size_t)o * g->Wo + p) * s->y_row, g->channels);
                }
            real_store_part(dx + ((size_t)i * s->grid.columns + j) * s->x_row, sum, g->channels);
        }
}

/* sum [k*k] += what one image gives. */
static void weight_gradient(const Group *g, vec *sum, const real *dy, const real *x) {
    const Depthwise *s = g->s;
    for (int i = 0; i < g->Ho; i++)
        for (int j = 0; j < g->Wo; j++) {
            vec d = real_load_part(dy + ((size_t)i * g->Wo + j) * s->y_row, g->channels);
            for (int r = first_tap(g, i); r < last_tap(g, i, s->grid.rows); r++)
                for (int q = first_tap(g, j); q < last_tap(g, j, s->grid.columns); q++) {
                    int yi = i * g->stride + r - s->k / 2, xi = j * g->stride + q - s->k / 2;
                    sum[r * s->k + q] +=
                        d * real_load_part(x + ((size_t)yi * s->grid.columns + xi) * s->x_row, g->channels);
                }
        }
}

void strided_depthwise_backward(real *dx, float *dw, const real *dy, const real *x, const float *w,
                                const StridedDepthwise *shape, int B) {
    const Depthwise *s = &shape->window;
    size_t N = grid_tokens(s->grid);
#pragma omp parallel for schedule(static)
    for (int c = 0; c < s->C; c += TILE) {
        Group g = group_of(shape, w, c);
        vec total[LARGEST * LARGEST] = {{0}};
        int taps = s->k * s->k;
        for (int b = 0; b < B; b++) {
            const real *dyb = dy + (size_t)b * g.Ho * g.Wo * s->y_row + c;
            vec sum[LARGEST * LARGEST] = {{0}};
            weight_gradient(&g, sum, dyb, x + b * N * s->x_row + c);
            input_gradient(&g, dx + b * N * s->x_row + c, dyb);
            for (int tap = 0; tap < taps; tap++) total[tap] += sum[tap];
        }
        for (int tap = 0; tap < taps; tap++)
            for (int l = 0; l < g.channels; l++) dw[(size_t)(c + l) * taps + tap] += total[tap][l];
    }
}
