/* Efficient attention (Shen et al. 2021), per head.  x [B,N,M] -> y [B,N,M]
 * forward   1. q,k,v = x Wqkv^T + b   2. rho = softmax of q over its channels, kappa = softmax of k over the tokens
 *           3. mix_n = rho_n^T sum_m kappa_m v_m^T   4. y = mix Wproj^T + b
 * backward  4. dmix   3. drho, dkappa, dv   2. dq, dk   1. dx
 * saves     qkv, phi = [rho, kappa], mix, den, kv.
 * Step 3 is linear attention with a denominator of one, since rho sums to one over channels and kappa over tokens. */
#include "layers/attention/linear_core.h"
#include "layers/papers.h"
#include "layers/attention.h"

typedef struct {
    LinearCore core;
} Efficient;

static void efficient_plan(Attention *a, Plan *plan, int B) {
    Efficient *s = a->state;
    linear_core_plan(&s->core, a, plan, B, a->H, a->D, DENOMINATOR_CLAMP);
}

static void efficient_forward(const Attention *a, int B) {
    const Efficient *s = a->state;
    AttentionShape shape = attention_shape(a, B);
    efficient_features_forward(s->core.phi, a->frame.qkv_act, &shape);
    linear_core_forward(&s->core, a, a->frame.mix, a->frame.qkv_act, B);
}

static void efficient_backward(const Attention *a, int B) {
    const Efficient *s = a->state;
    AttentionShape shape = attention_shape(a, B);
    linear_core_backward(&s->core, a, a->frame.dqkv, a->frame.dmix, a->frame.mix, a->frame.qkv_act, B);
    efficient_features_backward(a->frame.dqkv, s->core.dphi, s->core.phi, &shape);
}

static size_t efficient_macs(const Attention *a) {
    const Efficient *s = a->state;
    return linear_core_macs(&s->core, a);
}

static void efficient_weights(const Attention *a, float *weights, int b, int head, int query) {
    const Efficient *s = a->state;
    linear_core_weights(&s->core, a, weights, b, head, query);
}

const AttentionOp efficient_op = {
    .name = "efficient",
    .summary = "softmax of q over channels and of k over tokens (Efficient Attention)",
    .paper = PAPER_EFFICIENT,
    .off_grid = true,
    .any_grid = true,
    .state_size = sizeof(Efficient),
    .plan = efficient_plan,
    .mix_forward = efficient_forward,
    .mix_backward = efficient_backward,
    .macs = efficient_macs,
    .weights = efficient_weights,
};
