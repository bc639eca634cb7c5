/* Dropout, alone and after ReLU. */
#ifndef VIT_KERNELS_DROPOUT_H
#define VIT_KERNELS_DROPOUT_H

#include <stddef.h>
#include <stdint.h>

#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each number of a tensor becomes 0 with probability `rate`, and x / (1 - rate) otherwise.  Element i of an image is
 * kept where half (i / 16) % 8 of block 16 (i / 128) + i % 16 is at least round(65536 rate): of the four words of
 * rng_bits(seed, RNG_DROPOUT, step, site << 20 | first + image, 4 block ...) the low halves are even, the high ones
 * odd.  Nothing is stored: backward draws the same again.  Sixteen elements side by side take sixteen blocks, and one
 * block serves eight elements. */
typedef struct {
    float rate; /* 0: nothing is dropped */
    uint64_t seed;
    uint32_t step, site; /* site: which dropout of the model, below 4096 */
    uint32_t first;      /* the first image's number in the global batch, below 2^20 less images */
} Dropout;

/* y = drop(x), and so also dx = drop(dy).  y, x [B,n] real;  y may be x. */
void dropout_forward(real *y, const real *x, const Dropout *dropout, int B, size_t n);
/* y = drop(relu(x)).  y may be x. */
void relu_dropout_forward(real *y, const real *x, const Dropout *dropout, int B, size_t n);
/* dx = dy / (1 - rate) where y > 0, else 0.  dx (=), may be dy;  y [n] what forward gave. */
void relu_dropout_backward(real *dx, const real *dy, const real *y, float rate, size_t n);

#ifdef __cplusplus
}
#endif

#endif
