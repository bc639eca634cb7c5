/* Linear attention and its denominators. */
#ifndef VIT_KERNELS_LINEAR_ATTENTION_LINEAR_ATTENTION_H
#define VIT_KERNELS_LINEAR_ATTENTION_LINEAR_ATTENTION_H

#include <stddef.h>

#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The denominator as a function of d = phi(q_n).z, the sum of a query's weights. */
typedef enum {
    DENOMINATOR_EPSILON, /* d + 1e-6, for features that are never negative */
    DENOMINATOR_CLAMP,   /* d, or if |d| < 1e-2 the constant 1e-2 with d's sign, for features of either sign */
    DENOMINATOR_GIVEN    /* den is an input, made from other features by denominator_forward */
} Denominator;

/* Keys of other tokens than the queries: their number, their features [B,count,H,F] and the gradient of these (=). */
typedef struct {
    int count;
    const real *phi;
    real *dphi;
} LinearKeys;

/* The sizes of phi [B,N,2,H,F] real, the features of q, then those of k, and of v.  denominator_forward ignores D.
 * Where keys.count is not 0, phi is [B,N,H,F], the queries' alone, and kv [B,count,2,H,D] replaces qkv. */
typedef struct {
    int B, N, H, D, F;
    Denominator rule;
    LinearKeys keys;
} LinearAttention;

/* y_n = phi(q_n)^T S / den_n, den_n = rule(phi(q_n).z), S = sum_m phi(k_m) v_m^T, z = sum_m phi(k_m).
 * y [B,N,H,D] real;  den [B,N,H] float and kv [B,H,F,D+1] float, S with z as its last column (both saved);
 * qkv [B,N,3,H,D], only v read.  With DENOMINATOR_GIVEN den is read and kv's last column is zero. */
void linear_attention_forward(real *y, float *den, float *kv, const real *phi, const real *qkv,
                              const LinearAttention *shape);
/* dqkv [B,N,3,H,D] (=) in its v part, the others left as they are;  dphi [B,N,2,H,F] (=).  With DENOMINATOR_GIVEN dphi
 * is the gradient through the numerator only, and denominator_backward gives the other part. */
void linear_attention_backward(real *dqkv, real *dphi, const real *dy, const real *y, const float *den, const float *kv,
                               const real *phi, const real *qkv, const LinearAttention *shape);
size_t linear_attention_workspace(int D, int F);

/* den_n = rule(phi(q_n).z), z = sum_m phi(k_m), for keys of the same tokens.
 * den [B,N,H] float, z [B,H,F] float (both saved);  phi [B,N,2,H,F]. */
void denominator_forward(float *den, float *z, const real *phi, const LinearAttention *shape);
/* dphi [B,N,2,H,F] (+=), so that it can run after linear_attention_backward if both use the same features;
 * dy, y [B,N,H,D]: the gradient and the output of the whole attention. */
void denominator_backward(real *dphi, const real *dy, const real *y, const float *den, const float *z, const real *phi,
                          const LinearAttention *shape);
size_t denominator_workspace(int F);

#ifdef __cplusplus
}
#endif

#endif
