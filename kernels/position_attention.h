/* Gated positional attention (ConViT). */
#ifndef VIT_KERNELS_POSITION_ATTENTION_H
#define VIT_KERNELS_POSITION_ATTENTION_H

#include <stddef.h>

#include "kernels/grid.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    Grid grid; /* N = Hg*Wg tokens */
    int H, D;
} PositionAttention;

/* Token n looks at token m, (dx, dy) away on the grid, with weight P_nm = softmax_m(w.(dx, dy, dx^2 + dy^2)),
 * w = pos_proj[h], in every image.  The exponent is a sum over the two axes, so P_nm = rows[yn,ym] columns[xn,xm], each
 * a softmax of its own, and there is no N x N.  axes [H, Hg*Hg + Wg*Wg] float: rows, then columns (saved);
 * pos_proj [H,3]. */
void position_axes_forward(float *axes, const float *pos_proj, const PositionAttention *shape);
/* y_n = (1-g) content_n + g sum_m P_nm v_m, g = sigmoid(gating[h]).
 * y, content [B,N,H,D] real;  qkv [B,N,3,H,D], only v read;  gating [H].  y may be content. */
void position_attention_forward(real *y, const real *content, const real *qkv, const float *axes, const float *gating,
                                const PositionAttention *shape, int B);
/* dqkv [B,N,3,H,D]: what content's backward made of dy on entry; (1-g) times that, plus g P^T dy in its v third, on
 * return.  daxes [B, H, Hg*Hg + Wg*Wg + 1] float (=): the gradient of sum_n dy_n.(P v)_n in the order of axes, then
 * sum_n dy_n.content_n, which is what position_axes_backward makes the parameters' gradients from. */
void position_attention_backward(real *dqkv, float *daxes, const real *dy, const real *content, const real *qkv,
                                 const float *axes, const float *gating, const PositionAttention *shape, int B);
/* dpos_proj [H,3], dgating [H] (+=). */
void position_axes_backward(float *dpos_proj, float *dgating, const float *daxes, const float *axes,
                            const float *gating, const PositionAttention *shape, int B);
size_t position_attention_workspace(const PositionAttention *shape);

#ifdef __cplusplus
}
#endif

#endif
