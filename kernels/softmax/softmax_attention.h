/* Softmax attention, and its variants with relative position biases, sparse patterns and a threshold on the weights. */
#ifndef VIT_KERNELS_SOFTMAX_SOFTMAX_ATTENTION_H
#define VIT_KERNELS_SOFTMAX_SOFTMAX_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/softmax/attention_shape.h"
#include "kernels/tokens/grid.h"
#include "kernels/tokens/windows.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y_n = sum_m softmax_m(q_n.k_m / sqrt D) v_m, without storing an N x N matrix.
 * y [B,N,H,D] real;  lse [B,H,N] float: log-sum-exp of each query's scaled scores (saved);  qkv [B,N,3,H,D]. */
void softmax_attention_forward(real *y, float *lse, const real *qkv, const AttentionShape *shape);
/* dqkv [B,N,3,H,D] (=);  dy, y [B,N,H,D]. */
void softmax_attention_backward(real *dqkv, const real *dy, const real *y, const float *lse, const real *qkv,
                                const AttentionShape *shape);
size_t softmax_attention_workspace(int N, int D); /* enough for any smaller number of tokens */

/* A relative position bias is added to the score q.k / sqrt D.  A query in row i and column j and a key in row i' and
 * column j' of the grid have the bias table[h, i' - i + rows - 1, j' - j + columns - 1]. table [tables, 2*rows-1,
 * 2*columns-1] float, of clips [tables, 2*frames-1, 2*rows-1, 2*columns-1].  The first `prefix` tokens (a class token)
 * are not on the grid: pairs with one of them have no bias.  N = prefix + frames*rows*columns. */
typedef struct {
    Grid grid;
    int prefix;
    int tables; /* H: a table for each head; 1: all heads share one */
} RelativeBias;
/* As softmax_attention_forward. */
void biased_attention_forward(real *y, float *lse, const real *qkv, const float *table, const RelativeBias *bias,
                              const AttentionShape *shape);
/* dqkv (=);  dtable (+=). */
void biased_attention_backward(real *dqkv, float *dtable, const real *dy, const real *y, const float *lse,
                               const real *qkv, const float *table, const RelativeBias *bias,
                               const AttentionShape *shape);
size_t biased_attention_workspace(const RelativeBias *bias, int D);

/* Sparse attention (Child et al. 2019), without its causal mask.  Token n attends only to the tokens m of a set.  There
 * are two sets:
 *   strided   first: |n - m| <= stride                              second: n mod stride = m mod stride
 *   fixed     first: floor(n / stride) = floor(m / stride)          second: m mod stride >= stride - summary
 * Requires 1 <= summary <= stride <= N.  Only tiles that contain a pair of a set take time. */
typedef struct {
    bool fixed;
    int stride, summary;
    int first, second; /* the first `first` heads use the first set, the last `second` heads the second set; a head that
                          belongs to both uses the union of the sets */
} SparsePattern;
/* As softmax_attention_forward.  Requires first + second >= H, so that every head has a set. */
void sparse_attention_forward(real *y, float *lse, const real *qkv, const SparsePattern *pattern,
                              const AttentionShape *shape);
/* dqkv (=). */
void sparse_attention_backward(real *dqkv, const real *dy, const real *y, const float *lse, const real *qkv,
                               const SparsePattern *pattern, const AttentionShape *shape);
size_t sparse_attention_workspace(const SparsePattern *pattern, int N, int D);

/* Attention within windows (Liu et al. 2021, Swin).  A token attends to the places of its window.  Rolling brings
 * opposite sides of the grid together, which are different regions; WINDOW_APART is subtracted from the score of a pair
 * of places from different regions. */
#define WINDOW_APART 100.0f

/* The parameters: table [(2*wt-1)*(2*wh-1)*(2*ww-1),H] is added to the scores, by window_offset of query i and key j:
 * for images (yi - yj + wh-1) * (2*ww-1) + xi - xj + ww-1; pad [3M] are q, k, v of places without a token, which are
 * keys like the others (NULL: zeros). */
typedef struct {
    const float *pad, *table;
} WindowParameters;

/* (+=) both; dpad NULL where pad is. */
typedef struct {
    float *dpad, *dtable;
} WindowGradients;

/* As softmax_attention_forward, within windows and with the table. */
void window_attention_forward(real *y, float *lse, const real *qkv, const WindowParameters *learned,
                              const WindowShape *windows, const AttentionShape *shape);
/* dqkv (=). */
void window_attention_backward(real *dqkv, const WindowGradients *gradients, const real *dy, const real *y,
                               const float *lse, const real *qkv, const WindowParameters *learned,
                               const WindowShape *windows, const AttentionShape *shape);
size_t window_attention_workspace(const WindowShape *windows, const AttentionShape *shape);

/* The auxiliary branch of Castling-ViT (You et al. 2023): adds to y_n the sum of P_nm v_m over the keys with
 * P_nm > threshold, P = softmax(q k^T / sqrt D), without renormalising the remaining weights.
 * y [B,N,H,D] (updated);  lse [B,H,N] float: log-sum-exp of each query's scaled scores (saved). */
void thresholded_attention_forward(real *y, float *lse, const real *qkv, float threshold,
                                   const AttentionShape *shape);
/* dqkv (+=): adds to the gradients that the main branch's backward pass wrote, so it must run after that. delta [B,H,N]
 * float (=), an intermediate result: the sum of P_nm dy_n.v_m over the keys with P_nm > threshold.  The set of these
 * keys is treated as constant. */
void thresholded_attention_backward(real *dqkv, float *delta, const real *dy, const float *lse, const real *qkv,
                                    float threshold, const AttentionShape *shape);
size_t thresholded_attention_workspace(int N, int D);

#ifdef __cplusplus
}
#endif

#endif
