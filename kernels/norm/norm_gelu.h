/* Layer norm, then GELU, with floats in between: y = gelu(h), h = w (x - mean) rstd + b.  For functions of y as steep
 * as a pseudo-inverse, where rounding h would change the result. */
#ifndef VIT_KERNELS_NORM_NORM_GELU_H
#define VIT_KERNELS_NORM_NORM_GELU_H

#include "kernels/norm/norms.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y, x [n,M] real; saves mean and rstd, as layernorm_forward does.  y may be x. */
void layernorm_gelu_forward(real *y, const real *x, const LayerNorm *norm);
/* dh [n,M] (=), the input of add_layernorm_backward, may be dy;  dy, x [n,M]. */
void layernorm_gelu_backward(real *dh, const real *dy, const real *x, const LayerNorm *norm);

#ifdef __cplusplus
}
#endif

#endif
