/* Focused linear attention (Han et al. 2023, FLatten Transformer) between the projections.
 *   q [B,N,H,D], k and v [B,L,H,D] -> mix [B,N,H,D], with the tokens' grid, width and heads of `a`.  Either they are
 *   thirds of qkv [B,N,3,H,D], or keys are of other tokens: q by itself, and k and v halves of kv [B,L,2,H,D]
 * forward   1. r = relu(q) + 1e-6, relu(k + positional_encoding) + 1e-6;  u = r / softplus(scale);
 *              phi = |u| u^p / |u^p|, norms over the whole token: this keeps the norm and turns the vector towards its
 *              largest components
 *           2. per head, z_n = 1 / (phi(q_n).mean_m phi(k_m) + 1e-6),  mix_n = z_n phi(q_n)^T sum_m phi(k_m) v_m^T / L
 *           3. mix += depthwise 5x5 of v over the grid, weights shared by the heads; fewer than N are first brought to
 *              N by linear interpolation along the row-major index, across the ends of the grid's rows
 * backward  2. dphi, dv   3. dv += reversed depthwise of dmix   1. dq, dk
 * saves     phi, den, kv, and mix before step 3.  1/L is part of phi(k). */
#ifndef VIT_LAYERS_FOCUSED_CORE_H
#define VIT_LAYERS_FOCUSED_CORE_H

#include "layers/attention/grid_table.h"
#include "layers/attention/linear_core.h"
#include "layers/depthwise.h"

extern const ConfigGroup focused_settings;

typedef struct {
    LinearCore core;
    DepthwiseLayer dwc;
    Grid keys;             /* the L tokens of k and v */
    bool apart;            /* q and kv are two tensors */
    GridTable pos;         /* [L,M], on the keys' grid */
    float *scale, *dscale; /* [M] */
    real *linear;          /* [B,N,M] kept: step 2's mix */
    real *all, *dall;      /* [B,N,M] scratch where L is less than N: v of all tokens */
} FocusedCore;

/* `keys`: the grid of the keys if they are of other tokens, NULL for qkv. */
void focused_core_declare(FocusedCore *s, const Attention *a, Params *params, const Grid *keys);
/* Adapts to a new grid, and a new grid of the keys if they are of other tokens: the encoding is resampled. */
void focused_core_follow_grid(FocusedCore *s, const Attention *a, const Grid *keys);
/* Scratch is valid until the caller's plan_release. */
void focused_core_plan(FocusedCore *s, const Attention *a, Plan *plan, int B);
/* q and kv: qkv and its second third, or two tensors. */
void focused_core_forward(const FocusedCore *s, const Attention *a, real *mix, const real *q, const real *kv, int B);
/* dq, dkv (=), laid out like q and kv;  parameters (+=). */
void focused_core_backward(const FocusedCore *s, const Attention *a, real *dq, real *dkv, const real *dmix,
                           const real *q, const real *kv, int B);
size_t focused_core_macs(const FocusedCore *s, const Attention *a);
/* AttentionOp.spatial of all tokens' v: the depthwise kernel, averaged over the head's channels. */
void focused_core_spatial(const FocusedCore *s, const Attention *a, float *weights, int query);

#endif
