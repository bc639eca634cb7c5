/* Softmax attention, and what is close to it: with relative biases, sparse, thresholded. */
#ifndef VIT_KERNELS_SOFTMAX_ATTENTION_H
#define VIT_KERNELS_SOFTMAX_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/attention_shape.h"
#include "kernels/grid.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y_n = sum_m softmax_m(q_n.k_m / sqrt D) v_m.  No N x N in memory.  lse [B,H,N] float:
 * log-sum-exp of the scaled scores (saved). */
void softmax_attention_forward(real *y, float *lse, const real *qkv, const AttentionShape *shape);
/* dqkv [B,N,3,H,D] (=). */
void softmax_attention_backward(real *dqkv, const real *dy, const real *y, const float *lse, const real *qkv,
                                const AttentionShape *shape);
size_t softmax_attention_workspace(int N, int D);

/* A number for each offset of a key from its query on the grid is added to the score q.k / sqrt D: table
 * [tables,2*rows-1,2*columns-1], by (row of the key - row of the query + rows-1, the same of the columns + columns-1).
 * The first `prefix` tokens (a class token) have no place on the grid and no bias.  N = prefix + rows*columns. */
typedef struct {
    Grid grid;
    int prefix;
    int tables; /* H, or 1 that the heads share */
} RelativeBias;
/* As softmax_attention_forward. */
void biased_attention_forward(real *y, float *lse, const real *qkv, const float *table, const RelativeBias *bias,
                              const AttentionShape *shape);
/* dqkv (=);  dtable (+=). */
void biased_attention_backward(real *dqkv, float *dtable, const real *dy, const real *y, const float *lse,
                               const real *qkv, const float *table, const RelativeBias *bias,
                               const AttentionShape *shape);
size_t biased_attention_workspace(const RelativeBias *bias, int D);

/* Sparse attention (Child et al. 2019), in both directions: token n sees only the tokens m of a set,
 *   strided   first |n - m| <= stride,              second n = m modulo stride
 *   fixed     first n / stride = m / stride,        second m modulo stride >= stride - summary
 * 1 <= summary <= stride <= N.  Pairs outside the sets cost nothing but what it takes to fill up tiles. */
typedef struct {
    bool fixed;
    int stride, summary;
    int first, second; /* the first so many heads see the first set, the last so many the second, or the union */
} SparsePattern;
/* As softmax_attention_forward.  Every head sees one set at least. */
void sparse_attention_forward(real *y, float *lse, const real *qkv, const SparsePattern *pattern,
                              const AttentionShape *shape);
/* dqkv (=). */
void sparse_attention_backward(real *dqkv, const real *dy, const real *y, const float *lse, const real *qkv,
                               const SparsePattern *pattern, const AttentionShape *shape);
size_t sparse_attention_workspace(const SparsePattern *pattern, int N, int D);

/* Attention within windows (Liu et al. 2021, Swin).  The grid, filled up right and below to whole windows of wh x ww
 * places, is rolled: place (y, x) holds token (y + shift_y, x + shift_x) modulo its sides.  A token sees the places of
 * its window that are in the same region: where rolling brought opposite sides of the grid together, they do not see
 * each other. */
typedef struct {
    Grid grid;
    int wh, ww;           /* at most the grid's sides */
    int shift_y, shift_x; /* less than wh and ww; 0: not rolled */
} WindowShape;

typedef struct {
    int token; /* -1: none, the place fills up the grid */
    int region;
} WindowPlace;

/* How many windows there are, above and beside each other. */
GRID_INLINE Grid window_counts(const WindowShape *s) {
    Grid counts = {1, (s->grid.rows + s->wh - 1) / s->wh, (s->grid.columns + s->ww - 1) / s->ww};
    return counts;
}

/* Place i of wh*ww, both they and the windows row-major. */
GRID_INLINE WindowPlace window_place(const WindowShape *s, int window, int i) {
    Grid counts = window_counts(s);
    int rows = counts.rows * s->wh, columns = counts.columns * s->ww;
    int y = window / counts.columns * s->wh + i / s->ww, x = window % counts.columns * s->ww + i % s->ww;
    int region_y = (y >= rows - s->wh) + (y >= rows - s->shift_y);
    int region_x = (x >= columns - s->ww) + (x >= columns - s->shift_x);
    int token_y = (y + s->shift_y) % rows, token_x = (x + s->shift_x) % columns;
    bool inside = token_y < s->grid.rows && token_x < s->grid.columns;
    WindowPlace place = {inside ? token_y * s->grid.columns + token_x : -1, 3 * region_y + region_x};
    return place;
}

/* As softmax_attention_forward, with a number added to each score: table [(2*wh-1)*(2*ww-1),H], by
 * (yi - yj + wh-1) * (2*ww-1) + xi - xj + ww-1 of query i and key j.  pad [3M] float: q, k, v of places without a
 * token, which are keys as others are (NULL: zeros). */
void window_attention_forward(real *y, float *lse, const real *qkv, const float *pad, const float *table,
                              const WindowShape *windows, const AttentionShape *shape);
/* dqkv (=);  dpad (+=), NULL where pad is;  dtable (+=). */
void window_attention_backward(real *dqkv, float *dpad, float *dtable, const real *dy, const real *y, const float *lse,
                               const real *qkv, const float *pad, const float *table, const WindowShape *windows,
                               const AttentionShape *shape);
size_t window_attention_workspace(const WindowShape *windows, const AttentionShape *shape);

/* y += sum of P_nm v_m over the keys with P_nm > threshold, P = softmax(q k^T / sqrt D): the weights that are left are
 * not scaled up (Castling-ViT's auxiliary branch).  y [B,N,H,D] (updated);  lse [B,H,N] float: log-sum-exp of the
 * scaled scores (saved). */
void thresholded_attention_forward(real *y, float *lse, const real *qkv, float threshold,
                                   const AttentionShape *shape);
/* dqkv (+=): other gradients of q, k and v are there.  delta [B,H,N] float (=): sum_m of what is left of P_nm times
 * dy_n.v_m.  Which weights are left counts as a constant. */
void thresholded_attention_backward(real *dqkv, float *delta, const real *dy, const float *lse, const real *qkv,
                                    float threshold, const AttentionShape *shape);
size_t thresholded_attention_workspace(int N, int D);

#ifdef __cplusplus
}
#endif

#endif
