/* Depthwise convolution at every stride-th row and column of every frame, channels last.
 *   forward   y_o = sum_t w_t x_(stride o + t)
 *   backward  dx_i = the sum of w_t dy_o over the o and t with stride o + t = i,  dw_t += sum_o dy_o x_(stride o + t)
 * TILE channels are computed at a time; every sum is computed by one thread, so it does not depend on their number. */
#include "kernels/cpu/activations.h"
#include "kernels/convolution/convolution.h"
#include "kernels/tokens/grid.h"

enum { LARGEST = 7, LONGEST = 15, MOST_TAPS = LONGEST * LARGEST * LARGEST };

typedef struct {
    const Depthwise *s;
    int stride, kt, T, Ho, Wo, c, channels; /* of one group: first channel, number of channels */
    vec taps[MOST_TAPS];
} Group;

static void group_open(Group *g, const StridedDepthwise *shape, const float *w, int c) {
    const Depthwise *s = &shape->window;
    int taps = depthwise_taps(s);
    g->s = s;
    g->stride = shape->stride;
    g->kt = depthwise_frames(s);
    g->T = s->grid.frames;
    g->c = c;
    g->channels = s->C - c < TILE ? s->C - c : TILE;
    g->Ho = convolution_side(s->grid.rows, shape->stride);
    g->Wo = convolution_side(s->grid.columns, shape->stride);
    for (int tap = 0; tap < taps; tap++) {
        g->taps[tap] = (vec){0};
        for (int l = 0; l < g->channels; l++) g->taps[tap][l] = w[(size_t)(c + l) * taps + tap];
    }
}

/* The row of y that holds result o = (f, i, j). */
static size_t result_at(const Group *g, int f, int i, int j) { return ((size_t)f * g->Ho + i) * g->Wo + j; }

/* The taps first .. last - 1 of a window along one side, which are on the grid. */
static int first_tap(const Group *g, int o) {
    int before = g->s->k / 2 - o * g->stride;
    return before > 0 ? before : 0;
}
static int last_tap(const Group *g, int o, int side) {
    int left = side - o * g->stride + g->s->k / 2;
    return left < g->s->k ? left : g->s->k;
}

/* The taps first .. last - 1 in time of a window around frame f. */
static int first_frame(const Group *g, int f) { return f < g->kt / 2 ? g->kt / 2 - f : 0; }
static int last_frame(const Group *g, int f) {
    int left = g->T - f + g->kt / 2;
    return left < g->kt ? left : g->kt;
}

/* The token that a tap of result (f, i, j) reads. */
static size_t token_at(const Group *g, int f, int i, int j, int u, int r, int q) {
    const Depthwise *s = g->s;
    int t = f + u - g->kt / 2, yi = i * g->stride + r - s->k / 2, xi = j * g->stride + q - s->k / 2;
    return ((size_t)t * s->grid.rows + yi) * s->grid.columns + xi;
}

/* y, x: of the image, at the group's first channel. */
static void forward_image(const Group *g, real *y, const real *x) {
    const Depthwise *s = g->s;
    for (int f = 0; f < g->T; f++)
        for (int i = 0; i < g->Ho; i++)
            for (int j = 0; j < g->Wo; j++) {
                vec sum = {0};
                for (int u = first_frame(g, f); u < last_frame(g, f); u++)
                    for (int r = first_tap(g, i); r < last_tap(g, i, s->grid.rows); r++)
                        for (int q = first_tap(g, j); q < last_tap(g, j, s->grid.columns); q++)
                            sum += g->taps[(u * s->k + r) * s->k + q] *
                                   real_load_part(x + token_at(g, f, i, j, u, r, q) * s->x_row, g->channels);
                real_store_part(y + result_at(g, f, i, j) * s->y_row, sum, g->channels);
            }
}

void strided_depthwise_forward(real *y, const real *x, const float *w, const StridedDepthwise *shape, int B) {
    const Depthwise *s = &shape->window;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int c = 0; c < s->C; c += TILE) {
            Group g;
            group_open(&g, shape, w, c);
            forward_image(&g, y + (size_t)b * result_at(&g, g.T, 0, 0) * s->y_row + c,
                          x + (size_t)b * grid_tokens(s->grid) * s->x_row + c);
        }
}

/* The gradient of token (t,i,j), which is in the windows whose tap there is i + k/2 - r = stride o, t + kt/2 - u =
 * f. */
static vec token_gradient(const Group *g, const real *dy, int t, int i, int j) {
    const Depthwise *s = g->s;
    int ti = t + g->kt / 2, yi = i + s->k / 2, xi = j + s->k / 2;
    vec sum = {0};
    for (int u = ti >= g->T ? ti - g->T + 1 : 0; u < g->kt && u <= ti; u++)
        for (int r = yi % g->stride; r < s->k && r <= yi; r += g->stride)
            for (int q = xi % g->stride; q < s->k && q <= xi; q += g->stride) {
                int o = (yi - r) / g->stride, p = (xi - q) / g->stride;
                if (o >= g->Ho || p >= g->Wo) continue;
                sum += g->taps[(u * s->k + r) * s->k + q] *
                       real_load_part(dy + result_at(g, ti - u, o, p) * s->y_row, g->channels);
            }
    return sum;
}

static void input_gradient(const Group *g, real *dx, const real *dy) {
    Grid grid = g->s->grid;
    for (int t = 0; t < grid.frames; t++)
        for (int i = 0; i < grid.rows; i++)
            for (int j = 0; j < grid.columns; j++, dx += g->s->x_row)
                real_store_part(dx, token_gradient(g, dy, t, i, j), g->channels);
}

/* sum [kt*k*k] += the gradients of one image. */
static void weight_gradient(const Group *g, vec *sum, const real *dy, const real *x) {
    const Depthwise *s = g->s;
    for (int f = 0; f < g->T; f++)
        for (int i = 0; i < g->Ho; i++)
            for (int j = 0; j < g->Wo; j++) {
                vec d = real_load_part(dy + result_at(g, f, i, j) * s->y_row, g->channels);
                for (int u = first_frame(g, f); u < last_frame(g, f); u++)
                    for (int r = first_tap(g, i); r < last_tap(g, i, s->grid.rows); r++)
                        for (int q = first_tap(g, j); q < last_tap(g, j, s->grid.columns); q++)
                            sum[(u * s->k + r) * s->k + q] +=
                                d * real_load_part(x + token_at(g, f, i, j, u, r, q) * s->x_row, g->channels);
            }
}

void strided_depthwise_backward(real *dx, float *dw, const real *dy, const real *x, const float *w,
                                const StridedDepthwise *shape, int B) {
    const Depthwise *s = &shape->window;
    size_t N = grid_tokens(s->grid);
#pragma omp parallel for schedule(static)
    for (int c = 0; c < s->C; c += TILE) {
        Group g;
        group_open(&g, shape, w, c);
        vec total[MOST_TAPS], sum[MOST_TAPS];
        int taps = depthwise_taps(s);
        for (int tap = 0; tap < taps; tap++) total[tap] = (vec){0};
        for (int b = 0; b < B; b++) {
            const real *dyb = dy + (size_t)b * result_at(&g, g.T, 0, 0) * s->y_row + c;
            for (int tap = 0; tap < taps; tap++) sum[tap] = (vec){0};
            weight_gradient(&g, sum, dyb, x + b * N * s->x_row + c);
            input_gradient(&g, dx + b * N * s->x_row + c, dyb);
            for (int tap = 0; tap < taps; tap++) total[tap] += sum[tap];
        }
        for (int tap = 0; tap < taps; tap++)
            for (int l = 0; l < g.channels; l++) dw[(size_t)(c + l) * taps + tap] += total[tap][l];
    }
}
