/* The half that operators share which are linear attention on features of their own (linear_attention_forward has the
 * mathematics): phi in, mix out. */
#ifndef VIT_LAYERS_LINEAR_CORE_H
#define VIT_LAYERS_LINEAR_CORE_H

#include "layers/attention/attention.h"

typedef struct {
    int H, F;    /* heads, features of each */
    real *phi;   /* [B,N,2,H,F] kept: q's features, then k's; the operator fills it */
    real *dphi;  /* [B,N,2,H,F] scratch */
    float *den;  /* [B,N,H] kept */
    float *kv;   /* [B,H,F,D+1] kept */
} LinearCore;

/* dphi lives until the caller's plan_release. */
void linear_core_plan(LinearCore *c, const Attention *a, Plan *plan, int B, int H, int F);
/* mix [B,N,H,D] from phi and the last third of qkv [B,N,3,H,D]. */
void linear_core_forward(const LinearCore *c, const Attention *a, real *mix, const real *qkv, int B);
/* dphi (=), and the last third of dqkv (=). */
void linear_core_backward(const LinearCore *c, const Attention *a, real *dqkv, const real *dmix, const real *mix,
                          const real *qkv, int B);
/* AttentionOp.weights. */
void linear_core_weights(const LinearCore *c, const Attention *a, float *weights, int b, int head, int query);
size_t linear_core_macs(const LinearCore *c, const Attention *a);

#endif
