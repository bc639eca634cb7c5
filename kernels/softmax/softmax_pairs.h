/* Softmax attention over all keys with products of pairs of bfloat16, one (image, head) at a time.  Tokens are M
 * numbers apart in y and 3 M in qkv. */
#ifndef VIT_KERNELS_SOFTMAX_SOFTMAX_PAIRS_H
#define VIT_KERNELS_SOFTMAX_SOFTMAX_PAIRS_H

#include "kernels/softmax/pairs.h"

#ifdef VIT_PAIRS

/* Floats of a thread's slice that a pass of a head needs. */
size_t softmax_pairs_forward_floats(int N, int D);
size_t softmax_pairs_backward_floats(int N, int D);

/* Queries first .. last-1, first a multiple of PAIR_BLOCK; the y and lse of other queries are not changed. */
void softmax_pairs_forward(Pairs kind, real *y, float *lse, const real *qkv, size_t M, int N, int D, int first, int last,
                           float *slice);
void softmax_pairs_backward(Pairs kind, real *dqkv, const real *dy, const real *y, const float *lse, const real *qkv,
                            size_t M, int N, int D, float *slice);

#endif
#endif
