/* Winograd's 3 x 3 convolution on a CPU: a quarter of the multiplications, for somewhat larger errors. */
#ifndef VIT_KERNELS_CONVOLUTION_WINOGRAD_CPU_H
#define VIT_KERNELS_CONVOLUTION_WINOGRAD_CPU_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/convolution/convolution.h"

/* Whether these functions support the convolution: c permits CONVOLUTION_QUICK, is 3 x 3 with stride 1, and its
 * channels fill vectors; and if activations are bfloat16, the processor has no AMX. */
bool winograd_serves(const Convolution *c);
/* The number of floats of one direction's transformed weights.  They are made from scale_o w_o, w [out,in,3,3]: for
 * winograd_convolve from in to out channels, or, reversed, for the gradient of the input, from out to in channels. */
size_t winograd_weights(const Convolution *c);
void winograd_fold(float *folded, const float *w, const float *scale, const Convolution *c, bool reversed);
/* y = conv(x) + shift + add, then ReLU if relu is true, then 0 where `below` is not above 0.
 * y, add, below [B,Hi,Wi,out]: add, below NULL for none, add may be y;  x [B,Hi,Wi,in];  shift [out] or NULL. */
void winograd_convolve(real *y, const real *x, const real *add, const float *folded, const float *shift, bool relu,
                       const real *below, int in, int out, const ImageShape *images);
/* dw [out,in,3,3] (+=) scale_o times the gradient of the weights. */
void winograd_backward_weight(float *dw, const real *dy, const real *x, const float *scale, const Convolution *c,
                              const ImageShape *images);
/* Bytes of workspace, for winograd_backward_weight too if `weights` is true. */
size_t winograd_workspace(const Convolution *c, bool weights);

#endif
