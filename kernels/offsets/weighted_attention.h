/* Attention whose scores are multiplied by position weights. */
#ifndef VIT_KERNELS_OFFSETS_WEIGHTED_ATTENTION_H
#define VIT_KERNELS_OFFSETS_WEIGHTED_ATTENTION_H

#include <stddef.h>

#include "kernels/offsets/offsets.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    Offsets offsets;
    int tables; /* H: a table for each head; 1: all heads share one */
    int H, D;
} WeightedAttention;
/* y_i = sum_j (q^_i.k^_j) r[t(i,j),h] v_j: multiplicative position weights in place of the softmax.
 * y [B,N,H,D] real;  qk [B,N,2,H,D]: q^ and k^;  qkv [B,N,3,H,D], only v read;  r [T,tables]. */
void weighted_attention_forward(real *y, const real *qk, const real *qkv, const float *r,
                                const WeightedAttention *shape, int B);
/* dqkv (=) in its v third, q and k left as they are;  dqk [B,N,2,H,D] (=);  dr [T,tables] (+=). */
void weighted_attention_backward(real *dqkv, real *dqk, float *dr, const real *dy, const real *qk, const real *qkv,
                                 const float *r, const WeightedAttention *shape, int B);
size_t weighted_attention_workspace(const WeightedAttention *shape, int B);

#ifdef __cplusplus
}
#endif

#endif
