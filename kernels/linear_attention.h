/* Linear attention and its denominators. */
#ifndef VIT_KERNELS_LINEAR_ATTENTION_H
#define VIT_KERNELS_LINEAR_ATTENTION_H

#include <stddef.h>

#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the sum over keys becomes before it divides. */
typedef enum {
    DENOMINATOR_EPSILON, /* 1e-6 is added: features that are nowhere negative */
    DENOMINATOR_CLAMP,   /* kept 1e-2 away from zero, a constant where that happens: features of either sign */
    DENOMINATOR_GIVEN    /* den is an input, made from other features (denominator_forward) */
} Denominator;

/* phi [B,N,2,H,F] real: q's features, then k's.  denominator_forward does not read D. */
typedef struct {
    int B, N, H, D, F;
    Denominator rule;
} LinearAttention;

/* y_n = phi(q_n)^T S / den_n, den_n = rule(phi(q_n).z), S = sum_m phi(k_m) v_m^T, z = sum_m phi(k_m).
 * y [B,N,H,D] real;  den [B,N,H] float, kv [B,H,F,D+1] float: S with z as last column (both saved).
 * DENOMINATOR_GIVEN reads den, and kv's last column is zero. */
void linear_attention_forward(real *y, float *den, float *kv, const real *phi, const real *qkv,
                              const LinearAttention *shape);
/* dqkv [B,N,3,H,D] (=) in its v third, q and k untouched;  dphi [B,N,2,H,F] (=), of DENOMINATOR_GIVEN the numerator's
 * part alone: denominator_backward has the rest. */
void linear_attention_backward(real *dqkv, real *dphi, const real *dy, const real *y, const float *den, const float *kv,
                               const real *phi, const real *qkv, const LinearAttention *shape);
size_t linear_attention_workspace(int D, int F);

/* den_n = rule(phi(q_n).z), z = sum_m phi(k_m).  den [B,N,H] float, z [B,H,F] float (both saved);  phi [B,N,2,H,F]. */
void denominator_forward(float *den, float *z, const real *phi, const LinearAttention *shape);
/* dphi [B,N,2,H,F] (+=): numerator and denominator read the same features;  dy, y [B,N,H,D]. */
void denominator_backward(real *dphi, const real *dy, const real *y, const float *den, const float *z, const real *phi,
                          const LinearAttention *shape);
size_t denominator_workspace(int F);

#ifdef __cplusplus
}
#endif

#endif
