/* Sequence pooling (Hassani et al. 2021): the mean of an image's tokens, weighted by a softmax of their scores. */
#ifndef VIT_KERNELS_TOKENS_SEQUENCE_POOL_H
#define VIT_KERNELS_TOKENS_SEQUENCE_POOL_H

#include "kernels/tokens/tokens.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y_b = sum_n a_bn x_bn,  a_b = softmax_n(x_bn.w).  A bias of the scores would change nothing, and its gradient is zero.
 * y [B,M] real;  a [B,N] float (saved);  x [B,N,M] real;  w [M] float. */
void sequence_pool_forward(real *y, float *a, const real *x, const float *w, const TokenShape *shape);
/* ds_n = a_n (dy.x_n - dy.y), the gradients of the scores;  dx_n = a_n dy + ds_n w;  dw = sum_bn ds_bn x_bn.
 * dx [B,N,M] (=);  dw [M] (+=);  ds [B,N] float (=), an intermediate result;  dy [B,M]. */
void sequence_pool_backward(real *dx, float *dw, float *ds, const real *dy, const real *x, const float *w,
                            const float *a, const TokenShape *shape);

#ifdef __cplusplus
}
#endif

#endif
