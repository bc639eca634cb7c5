/* Dropout, alone and after ReLU. */
#ifndef VIT_KERNELS_LINEAR_DROPOUT_H
#define VIT_KERNELS_LINEAR_DROPOUT_H

#include <stddef.h>
#include <stdint.h>

#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each element x of a tensor becomes 0 with probability `rate`, and x / (1 - rate) otherwise.  No mask is stored:
 * backward draws the same random numbers again.
 *
 * Which elements survive.  One Philox block is the four 32-bit words rng_bits(seed, RNG_DROPOUT, step, site << 20 |
 * (first + image), 4 block + 0 .. 3), read as eight 16-bit halves, the low half of a word before its high one.  Element
 * i of an image uses half (i / 16) % 8 of block 16 (i / 128) + i % 16 and survives if that half is at least round(65536
 * rate).  A block therefore decides about eight elements, 16 apart, and 16 neighbouring elements use 16 blocks, which
 * suits vectors of 16 lanes. */
enum { DROPOUT_SITES = 4096 };
typedef struct {
    float rate; /* below 1; 0: nothing is dropped */
    uint64_t seed;
    uint32_t step, site; /* the training step; the number of this dropout within the model, below DROPOUT_SITES */
    uint32_t first;      /* index of the tensor's first image in the global batch; first + B is at most 2^20 */
} Dropout;

/* y = drop(x).  Backward is the same call: dx = drop(dy).  y, x [B,n] real;  y may be x. */
void dropout_forward(real *y, const real *x, const Dropout *dropout, int B, size_t n);
/* y = drop(relu(x)).  y, x [B,n] real;  y may be x. */
void relu_dropout_forward(real *y, const real *x, const Dropout *dropout, int B, size_t n);
/* dx = dy / (1 - rate) where y > 0, else 0.  dx [n] (=), may be dy;  y [n] forward's output. */
void relu_dropout_backward(real *dx, const real *dy, const real *y, float rate, size_t n);

/* Dropout of whole channels (PyTorch's Dropout2d): channel c of an image is dropped, at all its N positions, if
 * dropout_forward would drop element c of an image of C elements.  Backward is the same call.
 * y, x [B,N,C] real;  y may be x. */
void channel_dropout_forward(real *y, const real *x, const Dropout *dropout, int B, size_t N, int C);
size_t channel_dropout_workspace(int B, int C);

#ifdef __cplusplus
}
#endif

#endif
