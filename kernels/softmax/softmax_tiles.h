/* Shared by the softmax attentions of this backend: copies of q, k, v in the layout of tile_gemm, blocks of scores, and
 * the running softmax. */
#ifndef VIT_KERNELS_SOFTMAX_SOFTMAX_TILES_H
#define VIT_KERNELS_SOFTMAX_SOFTMAX_TILES_H

#include <math.h>
#include <stdbool.h>

#include "core/integers.h"
#include "kernels/cpu/activations.h"
#include "kernels/device/workspace.h"

/* A block of scores, QUERIES x STEP floats, stays in the first-level cache.  The last block of keys may have up to a
 * panel more; otherwise a class token and 256 other tokens would need a block for a single key. */
enum { QUERIES = 32, STEP = 256, PANEL = TILE_VECS * TILE, KEYS = STEP + PANEL };

static inline int keys_next(int j, int end) { return end - j <= KEYS ? end - j : STEP; }
static inline size_t panels_floats(int keys, int D) { return (size_t)(keys + PANEL - 1) / PANEL * PANEL * D; }

static inline size_t position(const int *order, int i) { return order ? (size_t)order[i] : (size_t)i; }

/* to [rows,Dp] = scale times rows first.. of from [N,D], rows `stride` apart, in order. */
static inline void gather(float *to, const real *from, size_t stride, const int *order, int first, float scale,
                          int rows, int D, int Dp) {
    for (int i = 0; i < rows; i++) {
        const real *row = from + position(order, first + i) * stride;
        for (int j = 0; j < D; j += TILE)
            vec_store(to + (size_t)i * Dp + j, scale * real_load_part(row + j, D - j));
    }
}

/* The reverse, which replaces the contents of the rows or adds to them. */
static inline void scatter(real *to, size_t stride, const int *order, int first, const float *from, float scale,
                           bool add, int rows, int D, int Dp) {
    for (int i = 0; i < rows; i++) {
        real *row = to + position(order, first + i) * stride;
        for (int j = 0; j < D; j += TILE) {
            vec x = scale * vec_load(from + (size_t)i * Dp + j);
            if (add) x += real_load_part(row + j, D - j);
            real_store_part(row + j, x, D - j);
        }
    }
}

/* Panels of the transpose of rows first.. of from; the last panel is padded with zeros. */
static inline void gather_panels(float *to, const real *from, size_t stride, const int *order, int first, int keys,
                                 int D) {
    float rows[TILE * TILE];
    for (int j = 0; j < keys; j += TILE) {
        float *panel = to + (size_t)(j / PANEL) * PANEL * D + j % PANEL;
        for (int d = 0; d < D; d += TILE) {
            for (int i = 0; i < TILE; i++) {
                vec x = {0};
                if (j + i < keys) x = real_load_part(from + position(order, first + j + i) * stride + d, D - d);
                vec_store(rows + i * TILE, x);
            }
            if (D - d >= TILE) {
                tile_transpose(panel + (size_t)d * PANEL, PANEL, rows, TILE);
                continue;
            }
            for (int i = 0; i < TILE; i++)
                for (int c = 0; c < D - d; c++) panel[(size_t)(d + c) * PANEL + i] = rows[i * TILE + c];
        }
    }
}

/* s [rows,KEYS] = a [rows,Dp] times panels for `keys` keys, rounded up to whole vectors. */
static inline void scores(float *s, const float *a, const float *panels, int rows, int keys, int D, int Dp) {
    for (int j = 0; j < keys; j += PANEL)
        tile_gemm(s + j, KEYS, a, Dp, 1, panels + (size_t)j * D, PANEL, rows, smaller(PANEL, tile_round_up(keys - j)), D,
                  0);
}

/* Raises m to the new scores' maximum and scales l and y [rows,Dp] to it. */
static inline void raise_maximum(const float *s, float *m, float *l, float *y, int rows, int padded, int Dp) {
    for (int i = 0; i < rows; i++) {
        vec largest = vec_load(s + i * KEYS);
        for (int j = TILE; j < padded; j += TILE) largest = vec_max(vec_load(s + i * KEYS + j), largest);
        float seen = vec_largest(largest);
        if (!(seen > m[i])) continue;
        float shrink = l[i] > 0 ? expf(m[i] - seen) : 1;
        m[i] = seen;
        if (shrink == 1) continue;
        l[i] *= shrink;
        for (int j = 0; j < Dp; j += TILE) vec_store(y + (size_t)i * Dp + j, shrink * vec_load(y + (size_t)i * Dp + j));
    }
}

/* One step of the running softmax: s becomes p, and m, l and y are updated for the new keys.  The maximum is computed
 * in a separate pass over all rows; within the main pass, each row would wait for its latency. */
static inline void softmax_step(float *s, float *m, float *l, float *y, int rows, int keys, int Dp) {
    int padded = tile_round_up(keys);
    for (int i = 0; i < rows; i++)
        for (int j = keys; j < padded; j++) s[i * KEYS + j] = -INFINITY;
    raise_maximum(s, m, l, y, rows, padded, Dp);
    for (int i = 0; i < rows; i++) {
        vec sum = {0}, shift = vec_set(m[i] > -INFINITY ? m[i] : 0); /* minus infinity: no key seen yet */
        for (int j = 0; j < padded; j += TILE) {
            vec p = vec_exp_floored(vec_load(s + i * KEYS + j) - shift);
            vec_store(s + i * KEYS + j, p);
            sum += p;
        }
        l[i] += vec_sum(sum);
    }
}

/* s becomes p = exp(s - lse), t = dy v^T becomes ds / (1/sqrt D) = p (t - delta). */
static inline void scores_backward(float *s, float *t, const float *lse, const float *delta, int rows, int keys) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < keys; j += TILE) {
            vec p = vec_exp_floored(vec_load(s + i * KEYS + j) - lse[i]);
            vec_store(s + i * KEYS + j, p);
            vec_store(t + i * KEYS + j, p * (vec_load(t + i * KEYS + j) - delta[i]));
        }
}

#endif
