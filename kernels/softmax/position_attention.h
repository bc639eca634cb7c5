/* Gated positional self-attention (ConViT, d'Ascoli et al. 2021). */
#ifndef VIT_KERNELS_SOFTMAX_POSITION_ATTENTION_H
#define VIT_KERNELS_SOFTMAX_POSITION_ATTENTION_H

#include <stddef.h>

#include "kernels/tokens/grid.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    Grid grid; /* N = T*Hg*Wg tokens */
    int H, D;
} PositionAttention;

/* The positional attention of token n to token m, at the offset (dt, dy, dx) from it on the grid, is the same for all
 * images: P_nm = softmax_m(w.(dx, dy, dx^2 + dy^2)) with w = pos_proj[h], of clips with the features dt and dt^2, too.
 * The exponent is a sum over the axes, so P_nm = rows[yn,ym] columns[xn,xm] frames[tn,tm], each a softmax along its
 * axis, and no N x N matrix is stored. axes [H,A] float: Hg*Hg rows, Wg*Wg columns and, of clips, T*T frames (saved);
 * pos_proj [H,F]. */
GRID_INLINE size_t position_axes(Grid grid) { /* A */
    size_t T = (size_t)grid.frames, Hg = (size_t)grid.rows, Wg = (size_t)grid.columns;
    return Hg * Hg + Wg * Wg + (T > 1 ? T * T : 0);
}
GRID_INLINE int position_features(Grid grid) { return grid.frames > 1 ? 5 : 3; } /* F */
void position_axes_forward(float *axes, const float *pos_proj, const PositionAttention *shape);
/* y_n = (1-g) content_n + g sum_m P_nm v_m, g = sigmoid(gating[h]), where content is the output of softmax attention.
 * y, content [B,N,H,D] real;  qkv [B,N,3,H,D], only v read;  gating [H].  y may be content. */
void position_attention_forward(real *y, const real *content, const real *qkv, const float *axes, const float *gating,
                                const PositionAttention *shape, int B);
/* dqkv [B,N,3,H,D] (updated): on entry the result of softmax_attention_backward for dy; it is multiplied by 1-g, and
 * g P^T dy is added to its v third.
 * daxes [B,H,A+1] float (=), the input of position_axes_backward: the gradient of sum_n dy_n.(P v)_n by each of axes,
 * in their order, and then sum_n dy_n.content_n.  content [B,N,H,D] must still hold forward's input. */
void position_attention_backward(real *dqkv, float *daxes, const real *dy, const real *content, const real *qkv,
                                 const float *axes, const float *gating, const PositionAttention *shape, int B);
/* dpos_proj [H,F], dgating [H] (+=);  daxes from position_attention_backward. */
void position_axes_backward(float *dpos_proj, float *dgating, const float *daxes, const float *axes,
                            const float *gating, const PositionAttention *shape, int B);
size_t position_attention_workspace(const PositionAttention *shape);

#ifdef __cplusplus
}
#endif

#endif
