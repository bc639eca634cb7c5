/* Linear attention from features phi to the output mix, for operators that compute phi themselves.  The mathematics is
 * that of linear_attention_forward (kernels/linear_attention/linear_attention.h). */
#ifndef VIT_LAYERS_LINEAR_CORE_H
#define VIT_LAYERS_LINEAR_CORE_H

#include "layers/attention.h"

typedef struct {
    int keys;    /* 0, or the number of keys if they are of other tokens than the queries: set before
                  * linear_core_plan */
    int H, F;    /* heads, features of each */
    Denominator rule;
    real *phi;   /* [B,N,2,H,F] kept: features of q, then of k, which the operator writes; or [B,N,H,F] of q alone */
    real *phi_k; /* [B,keys,H,F] kept where there are such keys */
    real *dphi, *dphi_k; /* scratch, as these */
    float *den;  /* [B,N,H] kept */
    float *kv;   /* [B,H,F,D+1] kept */
} LinearCore;

/* dphi is valid until the caller's plan_release.  DENOMINATOR_CLAMP is exact where sums of weights are far from zero:
 * softmaxes sum to one, and 1e-6 added to that is ten times the rounding error. */
void linear_core_plan(LinearCore *c, const Attention *a, Plan *plan, int B, int H, int F, Denominator rule);
/* mix [B,N,H,D] from phi and the last third of qkv [B,N,3,H,D], or the last half of kv [B,keys,2,H,D]. */
void linear_core_forward(const LinearCore *c, const Attention *a, real *mix, const real *qkv, int B);
/* dphi (=), and that part of dqkv (=). */
void linear_core_backward(const LinearCore *c, const Attention *a, real *dqkv, const real *dmix, const real *mix,
                          const real *qkv, int B);
/* AttentionOp.weights, of keys. */
void linear_core_weights(const LinearCore *c, const Attention *a, float *weights, int b, int head, int query);
size_t linear_core_macs(const LinearCore *c, const Attention *a);

#endif
