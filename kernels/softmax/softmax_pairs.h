/* Softmax attention over all keys on products of pairs of bfloat16, one (image, head) at a time.  The strides are in
 * numbers: M from a token's y to the next one's, 3 M in qkv. */
#ifndef VIT_KERNELS_SOFTMAX_SOFTMAX_PAIRS_H
#define VIT_KERNELS_SOFTMAX_SOFTMAX_PAIRS_H

#include "kernels/softmax/pairs.h"

#ifdef VIT_PAIRS

/* Floats of a thread's slice that a pass of a head needs. */
size_t softmax_pairs_forward_floats(int N, int D);
size_t softmax_pairs_backward_floats(int N, int D);

/* Queries first .. last-1, first a multiple of PAIR_BLOCK; the others' y and lse are left alone. */
void softmax_pairs_forward(Pairs kind, real *y, float *lse, const real *qkv, size_t M, int N, int D, int first, int last,
                           float *slice);
void softmax_pairs_backward(Pairs kind, real *dqkv, const real *dy, const real *y, const float *lse, const real *qkv,
                            size_t M, int N, int D, float *slice);

#endif
#endif
