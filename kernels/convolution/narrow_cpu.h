/* The gradient of the weights of a convolution whose windows are small, such as that of an image's three channels, on a
 * CPU. */
#ifndef VIT_KERNELS_CONVOLUTION_NARROW_CPU_H
#define VIT_KERNELS_CONVOLUTION_NARROW_CPU_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/convolution/convolution.h"

/* Whether this file supports the convolution: windows are small and output channels fill vectors. */
bool narrow_serves(const Convolution *c);
/* dw [out,in,k,k] (+=) scale_o times the gradient of the weights. */
void narrow_backward_weight(float *dw, const real *dy, const real *x, const float *scale, const Convolution *c,
                            const ImageShape *images);
size_t narrow_workspace(const Convolution *c, const ImageShape *images);

#endif
