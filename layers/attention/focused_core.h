/* Focused linear attention (Han et al. 2023, FLatten Transformer) between the projections.
 *   qkv [B,N,3,H,D] -> mix [B,N,H,D], with the tokens' grid, width and heads of `a`
 * forward   1. r = relu(q) + 1e-6, relu(k + positional_encoding) + 1e-6;  u = r / softplus(scale);
 *              phi = |u| u^p / |u^p|, norms over the whole token: this keeps the norm and turns the vector towards its
 *              largest components
 *           2. per head, z_n = 1 / (phi(q_n).mean_m phi(k_m) + 1e-6),  mix_n = z_n phi(q_n)^T sum_m phi(k_m) v_m^T / N
 *           3. mix += depthwise 5x5 of v over the grid, weights shared by the heads
 * backward  2. dphi, dv   3. dv += reversed depthwise of dmix   1. dq, dk
 * saves     phi, den, kv, and mix before step 3.  1/N is part of phi(k). */
#ifndef VIT_LAYERS_FOCUSED_CORE_H
#define VIT_LAYERS_FOCUSED_CORE_H

#include "layers/attention/linear_core.h"
#include "layers/depthwise.h"

extern const ConfigGroup focused_settings;

typedef struct {
    LinearCore core;
    DepthwiseLayer dwc;
    float *pos, *dpos;     /* [N,M] */
    float *scale, *dscale; /* [M] */
    real *linear;          /* [B,N,M] kept: step 2's mix */
} FocusedCore;

void focused_core_declare(FocusedCore *s, const Attention *a, Params *params);
/* Scratch is valid until the caller's plan_release. */
void focused_core_plan(FocusedCore *s, const Attention *a, Plan *plan, int B);
void focused_core_forward(const FocusedCore *s, const Attention *a, real *mix, const real *qkv, int B);
/* dqkv (=);  parameters (+=). */
void focused_core_backward(const FocusedCore *s, const Attention *a, real *dqkv, const real *dmix, const real *qkv,
                           int B);
size_t focused_core_macs(const FocusedCore *s, const Attention *a);

#endif
