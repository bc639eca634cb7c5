/* Resizing by the nearest pixel and bilinearly, channels last.  Backward is a gather: each pixel of x sums over the
 * pixels of y that read it, so that no two threads write to the same number. */
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/convolution/convolution.h"
#include "kernels/regions/resize.h"

enum { CHANNELS = 4 * TILE }; /* summed in registers */

static real *pixel(const real *x, int image, int rows, int row, int columns, int column, int C) {
    size_t at = ((size_t)image * (size_t)rows + (size_t)row) * (size_t)columns + (size_t)column;
    return (real *)x + at * (size_t)C;
}

/* == The nearest pixel ============================================================================================ */

/* y = a + b, a NULL for zero; y may be a. */
static void add_pixel(real *y, const real *a, const real *b, int C) {
    if (!a) memcpy(y, b, (size_t)C * sizeof *y);
    else
        for (int c = 0; c < C; c += TILE) {
            size_t left = (size_t)(C - c);
            real_store_part(y + c, real_load_part(a + c, left) + real_load_part(b + c, left), left);
        }
}

void nearest_add_forward(real *y, const real *add, const real *x, const Resize *s) {
#pragma omp parallel for schedule(static)
    for (int line = 0; line < s->B * s->to_rows; line++) {
        int image = line / s->to_rows, row = nearest_source(line % s->to_rows, s->rows, s->to_rows);
        size_t at = (size_t)line * (size_t)s->to_columns * (size_t)s->C;
        for (int j = 0; j < s->to_columns; j++, at += (size_t)s->C) {
            int column = nearest_source(j, s->columns, s->to_columns);
            add_pixel(y + at, add ? add + at : NULL, pixel(x, image, s->rows, row, s->columns, column, s->C), s->C);
        }
    }
}

/* The places of one side that read a source. */
typedef struct {
    Places places;
    int source, from, to;
    bool bilinear; /* otherwise each has the weight 1 */
} Readers;

static Readers readers_of(int source, int from, int to, bool bilinear) {
    Places places = bilinear ? bilinear_places(source, from, to) : nearest_places(source, from, to);
    return (Readers){places, source, from, to, bilinear};
}

TILE_INLINE float weight_at(const Readers *r, int place) {
    return r->bilinear ? bilinear_weight(r->source, place, r->from, r->to) : 1;
}

/* n vectors of one pixel's gradient; the last one may be incomplete. */
TILE_INLINE void gather(int n, real *dx, const real *add, const real *dy, const Readers *down, const Readers *across,
                        int C, size_t left) {
    vec sum[4];
#pragma GCC unroll 4
    for (int k = 0; k < n; k++)
        sum[k] = !add ? vec_set(0) : n == 1 ? real_load_part(add, left) : real_load(add + k * TILE);
    for (int i = down->places.first; i < down->places.last; i++) {
        float v = weight_at(down, i);
        for (int j = across->places.first; j < across->places.last; j++) {
            const real *from = dy + ((size_t)i * (size_t)across->to + (size_t)j) * (size_t)C;
            vec w = vec_set(v * weight_at(across, j));
#pragma GCC unroll 4
            for (int k = 0; k < n; k++)
                sum[k] += w * (n == 1 ? real_load_part(from, left) : real_load(from + k * TILE));
        }
    }
#pragma GCC unroll 4
    for (int k = 0; k < n; k++)
        if (n == 1) real_store_part(dx, sum[k], left);
        else real_store(dx + k * TILE, sum[k]);
}

static void gather_pixel(real *dx, const real *add, const real *dy, const Readers *down, const Readers *across, int C) {
    int c = 0;
    for (; c + CHANNELS <= C; c += CHANNELS) gather(4, dx + c, add ? add + c : NULL, dy + c, down, across, C, 0);
    for (; c < C; c += TILE) gather(1, dx + c, add ? add + c : NULL, dy + c, down, across, C, (size_t)(C - c));
}

static void backward(real *dx, const real *add, const real *dy, const Resize *s, bool bilinear) {
#pragma omp parallel for schedule(static)
    for (int line = 0; line < s->B * s->rows; line++) {
        Readers down = readers_of(line % s->rows, s->rows, s->to_rows, bilinear);
        const real *from = pixel(dy, line / s->rows, s->to_rows, 0, s->to_columns, 0, s->C);
        size_t at = (size_t)line * (size_t)s->columns * (size_t)s->C;
        for (int j = 0; j < s->columns; j++, at += (size_t)s->C) {
            Readers across = readers_of(j, s->columns, s->to_columns, bilinear);
            gather_pixel(dx + at, add ? add + at : NULL, from, &down, &across, s->C);
        }
    }
}

void nearest_add_backward(real *dx, const real *add, const real *dy, const Resize *s) {
    backward(dx, add, dy, s, false);
}

/* == Bilinear ===================================================================================================== */

void bilinear_forward(real *y, const real *add, const real *x, const Resize *s) {
    int C = s->C;
#pragma omp parallel for schedule(static)
    for (int line = 0; line < s->B * s->to_rows; line++) {
        int image = line / s->to_rows;
        Between down = bilinear_source(line % s->to_rows, s->rows, s->to_rows);
        const real *low = pixel(x, image, s->rows, down.low, s->columns, 0, C);
        const real *high = pixel(x, image, s->rows, down.high, s->columns, 0, C);
        size_t at = (size_t)line * (size_t)s->to_columns * (size_t)C;
        for (int j = 0; j < s->to_columns; j++, at += (size_t)C) {
            Between across = bilinear_source(j, s->columns, s->to_columns);
            size_t left = (size_t)across.low * (size_t)C, right = (size_t)across.high * (size_t)C;
            float v = down.fraction, u = across.fraction;
            vec w[4] = {vec_set((1 - v) * (1 - u)), vec_set((1 - v) * u), vec_set(v * (1 - u)), vec_set(v * u)};
            for (int c = 0; c < C; c += TILE) {
                size_t n = (size_t)(C - c);
                vec sum = w[0] * real_load_part(low + left + c, n) + w[1] * real_load_part(low + right + c, n) +
                          w[2] * real_load_part(high + left + c, n) + w[3] * real_load_part(high + right + c, n);
                if (add) sum += real_load_part(add + at + c, n);
                real_store_part(y + at + c, sum, n);
            }
        }
    }
}

void bilinear_backward(real *dx, const real *add, const real *dy, const Resize *s) { backward(dx, add, dy, s, true); }

/* == Even rows and columns ======================================================================================== */

void subsample_forward(real *y, const real *x, const ImageShape *images, int C) {
    int rows = convolution_side(images->Hi, 2), columns = convolution_side(images->Wi, 2);
#pragma omp parallel for schedule(static)
    for (int line = 0; line < images->B * rows; line++)
        for (int j = 0; j < columns; j++)
            memcpy(pixel(y, 0, 0, line, columns, j, C),
                   pixel(x, line / rows, images->Hi, 2 * (line % rows), images->Wi, 2 * j, C), (size_t)C * sizeof *y);
}

void subsample_backward(real *dx, const real *dy, const ImageShape *images, int C) {
    int rows = convolution_side(images->Hi, 2), columns = convolution_side(images->Wi, 2);
#pragma omp parallel for schedule(static)
    for (int line = 0; line < images->B * rows; line++)
        for (int j = 0; j < columns; j++) {
            real *to = pixel(dx, line / rows, images->Hi, 2 * (line % rows), images->Wi, 2 * j, C);
            add_pixel(to, to, pixel(dy, 0, 0, line, columns, j, C), C);
        }
}
