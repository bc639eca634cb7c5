/* Winograd's 3 x 3 convolution of floats on a CPU: a quarter of the multiplications, for somewhat larger errors. */
#ifndef VIT_KERNELS_CONVOLUTION_WINOGRAD_CPU_H
#define VIT_KERNELS_CONVOLUTION_WINOGRAD_CPU_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/convolution/convolution.h"

/* Whether these functions compute it: c may be quick, is 3 x 3 with stride 1, and its channels fill vectors. */
bool winograd_serves(const Convolution *c);
/* Floats of the weights of one direction; they are made from w [out,in,3,3]. */
size_t winograd_weights(const Convolution *c);
void winograd_fold(float *folded, const float *w, int in, int out);
/* y = conv(x) + shift + add, then ReLU if relu is true, then 0 where `below` is not above 0.
 * y, add, below [B,Hi,Wi,out]: add, below NULL for none, add may be y;  x [B,Hi,Wi,in];  shift [out] or NULL. */
void winograd_convolve(float *y, const float *x, const float *add, const float *folded, const float *shift, bool relu,
                       const float *below, int in, int out, const ImageShape *images);
/* dw [out,in,3,3] (+=) scale_o times the gradient of the weights. */
void winograd_backward_weight(float *dw, const float *dy, const float *x, const float *scale, const Convolution *c,
                              const ImageShape *images);
size_t winograd_workspace(const Convolution *c, const ImageShape *images);

#endif
