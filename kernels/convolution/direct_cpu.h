/* Convolution by the definition on a CPU: for the cases of convolution.c that Winograd's algorithm does not cover.
 * direct_onednn.c computes it with oneDNN, direct_own.c in plain C (make ONEDNN=0). */
#ifndef VIT_KERNELS_CONVOLUTION_DIRECT_CPU_H
#define VIT_KERNELS_CONVOLUTION_DIRECT_CPU_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/convolution/convolution.h"

/* The contracts are those of convolution_folded_bytes, convolution_fold, convolution_forward and
 * convolution_backward_input. */
size_t direct_folded_bytes(const Convolution *c, bool backward);
void direct_fold(void *folded, const float *w, const float *scale, const Convolution *c, bool backward);
void direct_forward(real *y, const real *x, const real *add, const void *folded, const float *shift, const Convolution *c,
                    bool relu, const ImageShape *images);
void direct_backward_input(real *dx, const real *add, const real *dy, const void *folded, const real *below,
                           const Convolution *c, const ImageShape *images);

static inline size_t convolution_weights(const Convolution *c) {
    return (size_t)c->out * (size_t)c->in * (size_t)(c->k * c->k);
}

/* True if a convolution is a linear layer on pixels. */
static inline bool convolution_is_product(const Convolution *c) { return c->k == 1 && c->stride == 1; }

/* The number of pixels of all images, and of all results. */
static inline size_t image_pixels(const ImageShape *images) {
    return (size_t)images->B * (size_t)images->Hi * (size_t)images->Wi;
}

static inline size_t convolution_results(const Convolution *c, const ImageShape *images) {
    return image_pixels(&(ImageShape){images->B, convolution_side(images->Hi, c->stride),
                                      convolution_side(images->Wi, c->stride)});
}

#endif
