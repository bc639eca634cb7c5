/* Resampling, one axis at a time, rows first, rounded to 8 bits between the passes.  The weights of core/resampling.h
 * are rounded to 22 bits, as Pillow's are; this file is built without fused multiply-adds.
 *
 * Both passes are the same loop over 16 neighbours: sum_i w_i x[i][0..15].  For the columns the neighbours lie in one
 * row of pixels; for the rows, 16 rows are transposed first, and the result is transposed back. */
#include "data/images/resample.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* STEP: the number of sums that fill the widest vector. */
enum { BITS = 32 - 8 - 2, HALF = 1 << (BITS - 1), LANES = 16, STEP = __BIGGEST_ALIGNMENT__ / 4 };

typedef uint8_t Bytes __attribute__((vector_size(LANES)));
typedef int32_t Sums __attribute__((vector_size(4 * STEP)));

/* == Weights ====================================================================================================== */

static void *grow(void *memory, size_t *room, size_t size) {
    if (size <= *room) return memory;
    free(memory);
    memory = malloc(size);
    *room = memory ? size : 0;
    return memory;
}

/* weights [count,taps], zero after an output's last input; first [count] */
typedef struct {
    int32_t *weights;
    int *first;
    int taps;
} Table;

/* The weights of output j in units of 2^-BITS. */
static void weigh(Table *table, int at, const ResampleAxis *axis, ResampleFilter filter, int j, double *exact) {
    int count = resample_weights(exact, &table->first[at], axis, filter, j);
    int32_t *weights = table->weights + (size_t)at * (size_t)table->taps;
    for (int i = 0; i < count; i++) {
        double w = exact[i] * (1 << BITS);
        weights[i] = (int32_t)(w < 0 ? -0.5 + w : 0.5 + w);
    }
    for (int i = count; i < table->taps; i++) weights[i] = 0;
}

/* The exact weights are stored temporarily after the rounded ones. */
static bool table_make(Table *table, Resampler *r, int axis_number, const ResampleAxis *axis, ResampleFilter filter) {
    size_t count = (size_t)axis->count, taps = (size_t)resample_taps(axis, filter);
    size_t numbers = (count * taps * sizeof(int32_t) + 7) / 8 * 8;
    int32_t **weights = &r->weights[axis_number];
    *weights = grow(*weights, &r->weights_room[axis_number], numbers + taps * sizeof(double));
    r->first[axis_number] = grow(r->first[axis_number], &r->first_room[axis_number], count * sizeof(int));
    *table = (Table){.weights = *weights, .first = r->first[axis_number], .taps = (int)taps};
    if (!table->weights || !table->first) return false;
    double *exact = (double *)((char *)table->weights + numbers);
    for (int j = 0; j < axis->count; j++)
        weigh(table, axis->mirror ? axis->count - 1 - j : j, axis, filter, axis->first + j, exact);
    return true;
}

/* == Sixteen at a time ============================================================================================ */

/* gcc 12 compiles this loop to one instruction, and __builtin_convertvector to sixteen. */
static inline Sums widen(const uint8_t *x) {
    Sums wide = {0}; /* gcc 14 does not recognise that all of it is set */
    for (int i = 0; i < STEP; i++) wide[i] = x[i];
    return wide;
}

/* Drops the fractional bits and clamps to [0,255]. */
static inline void narrow(uint8_t *out, Sums sums) {
    sums >>= BITS;
    sums &= ~(sums < 0);
    Sums over = sums > 255;
    sums = (sums & ~over) | (over & 255);
    for (int i = 0; i < STEP; i++) out[i] = (uint8_t)sums[i];
}

/* m[i][j] = m[j][i]: four rounds, each of which interleaves the first half of the rows with the second. */
static inline void transpose(Bytes m[LANES]) {
    for (int round = 0; round < 4; round++) {
        Bytes t[LANES];
        for (int i = 0; i < LANES / 2; i++) {
            t[2 * i] = __builtin_shufflevector(m[i], m[i + 8], 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            t[2 * i + 1] =
                __builtin_shufflevector(m[i], m[i + 8], 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
        }
        memcpy(m, t, sizeof t);
    }
}

/* == Two passes =================================================================================================== */

/* columns [n,16] from 16 rows of n bytes each. */
static void gather_columns(uint8_t *columns, const uint8_t *const row[LANES], size_t n) {
    for (size_t x = 0; x < n; x += LANES) {
        Bytes m[LANES];
        size_t left = n - x < LANES ? n - x : LANES;
        for (int i = 0; i < LANES; i++) {
            if (left == LANES) {
                memcpy(&m[i], row[i] + x, LANES);
            } else {
                m[i] = (Bytes){0};
                memcpy(&m[i], row[i] + x, left);
            }
        }
        transpose(m);
        memcpy(columns + x * LANES, m, sizeof m);
    }
}

/* Writes 16 rows of outputs, `stride` bytes apart, from columns [n,16]. */
static void scatter_columns(uint8_t *rows, size_t stride, const uint8_t *columns, size_t n) {
    for (size_t x = 0; x < n; x += LANES) {
        Bytes m[LANES];
        memcpy(m, columns + x * LANES, sizeof m);
        transpose(m);
        for (int i = 0; i < LANES; i++) memcpy(rows + (size_t)i * stride + x, &m[i], LANES);
    }
}

/* out [count,3,16] from in [n,3,16]; first counts from `origin`. */
static void resample_columns(uint8_t *out, const uint8_t *in, const Table *table, int count, int origin, int end) {
    enum { SUMS = 3 * LANES / STEP };
    for (int j = 0; j < count; j++, out += 3 * LANES) {
        const int32_t *w = table->weights + (size_t)j * (size_t)table->taps;
        int first = table->first[j], taps = end - first < table->taps ? end - first : table->taps;
        const uint8_t *x = in + (size_t)(first - origin) * 3 * LANES;
        Sums sum[SUMS];
        for (int v = 0; v < SUMS; v++) sum[v] = (Sums){0} + HALF;
        for (int i = 0; i < taps; i++, x += 3 * LANES)
            for (int v = 0; v < SUMS; v++) sum[v] += w[i] * widen(x + v * STEP);
        for (int v = 0; v < SUMS; v++) narrow(out + v * STEP, sum[v]);
    }
}

/* Computes one row of `n` bytes from `taps` rows that are `stride` bytes apart and padded to whole vectors. */
static void resample_row(uint8_t *out, const uint8_t *in, size_t stride, const int32_t *w, int taps, size_t n) {
    enum { SUMS = 4 };
    for (size_t x = 0; x < n; x += SUMS * STEP) {
        const uint8_t *from = in + x;
        uint8_t bytes[SUMS * STEP];
        Sums sum[SUMS];
        for (int v = 0; v < SUMS; v++) sum[v] = (Sums){0} + HALF;
        for (int i = 0; i < taps; i++, from += stride)
            for (int v = 0; v < SUMS; v++) sum[v] += w[i] * widen(from + v * STEP);
        for (int v = 0; v < SUMS; v++) narrow(bytes + v * STEP, sum[v]);
        memcpy(out + x, bytes, n - x < sizeof bytes ? n - x : sizeof bytes);
    }
}

bool resample_strided(Resampler *r, uint8_t *out, size_t out_stride, const ImagePart *in, const ResampleAxis *rows,
                      const ResampleAxis *columns, ResampleFilter filter) {
    Table across, down;
    int y[2], x[2];
    resample_range(rows, filter, y);
    resample_range(columns, filter, x);
    assert(in->top <= y[0] && y[1] <= in->top + in->height && in->left <= x[0] && x[1] <= in->left + in->width);

    /* 1. Weight tables, and room for the intermediate rows and for 16 transposed rows. */
    size_t height = (size_t)(y[1] - y[0]), width = (size_t)(x[1] - x[0]) * 3, n = (size_t)columns->count * 3;
    size_t stride = (n + 63) / 64 * 64, whole = (height + LANES - 1) / LANES * LANES;
    size_t columns_in = (width + LANES - 1) / LANES * LANES * LANES, columns_out = stride * LANES;
    r->rows = grow(r->rows, &r->rows_room, stride * whole);
    r->columns = grow(r->columns, &r->columns_room, columns_in + columns_out);
    if (!r->rows || !r->columns) return false;
    if (!table_make(&across, r, 0, columns, filter) || !table_make(&down, r, 1, rows, filter)) return false;
    memset(r->columns + columns_in, 0, columns_out);

    /* 2. Horizontally, 16 rows at a time; if fewer are left, the last one is repeated. */
    const uint8_t *corner = in->pixels + (size_t)(y[0] - in->top) * in->stride + (size_t)(x[0] - in->left) * 3;
    for (size_t first = 0; first < height; first += LANES) {
        const uint8_t *row[LANES];
        for (size_t i = 0; i < LANES; i++) row[i] = corner + (first + i < height ? first + i : height - 1) * in->stride;
        gather_columns(r->columns, row, width);
        resample_columns(r->columns + columns_in, r->columns, &across, columns->count, x[0], x[1]);
        scatter_columns(r->rows + first * stride, stride, r->columns + columns_in, stride);
    }

    /* 3. Vertically. */
    for (int j = 0; j < rows->count; j++) {
        const int32_t *w = down.weights + (size_t)j * (size_t)down.taps;
        int first = down.first[j], taps = y[1] - first < down.taps ? y[1] - first : down.taps;
        resample_row(out + (size_t)j * out_stride, r->rows + (size_t)(first - y[0]) * stride, stride, w, taps, n);
    }
    return true;
}

bool resample(Resampler *r, uint8_t *out, const ImagePart *in, const ResampleAxis *rows, const ResampleAxis *columns,
              ResampleFilter filter) {
    return resample_strided(r, out, (size_t)columns->count * 3, in, rows, columns, filter);
}

void resampler_free(Resampler *r) {
    free(r->rows);
    free(r->columns);
    for (int i = 0; i < 2; i++) {
        free(r->weights[i]);
        free(r->first[i]);
    }
    *r = (Resampler){0};
}
