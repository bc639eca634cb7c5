/* Linear angular attention (You et al. 2023, Castling-ViT), per head.  x [B,N,M] -> y [B,N,M]
 * forward   1. q,k,v = x Wqkv^T + b   2. phi(z) = [z / (|z| sqrt pi); 1 / sqrt 2]
 *           3. mix_n = sum_m s_nm v_m / sum_m s_nm, s_nm = phi(q_n).phi(k_m) = 1/2 + cos(q_n, k_m) / pi
 *           4. mix += depthwise 3x3 of v over the grid
 *           5. in training, with castling_mask > 0: mix += softmax attention with only the weights above castling_mask
 *           6. y = mix Wproj^T + b
 * backward  6. dmix   3. dphi, dv   4. dv += reversed depthwise of dmix   2. dq, dk   5. adds to dq, dk, dv   1. dx
 * saves     qkv, phi, den, kv, linear attention's mix before step 4, and step 5's lse.
 * s is the first two terms of a series for the angular kernel 1 - angle / pi.  Step 5 approximates the other terms in
 * training only; the inference plan has no lse.
 * The authors' published code differs from the paper: the term 1/2 multiplies only v_n instead of every v_m, each
 * head's sum is scaled to unit norm instead of divided by the sum of s, and step 4 is a convolution along the token
 * sequence with nine taps and one filter for each head. */
#include "layers/attention/linear_core.h"
#include "layers/papers.h"
#include "layers/attention.h"
#include "layers/depthwise.h"

typedef struct {
    float castling_mask;
} CastlingSettings;

static const ConfigEntry entries[] = {
    {CONFIG_FIELD(FLOAT, CastlingSettings, castling_mask), "0", .section = "attention", .min = 0, .max = 1,
     .help = "Threshold of castling's auxiliary branch in training: softmax attention with only the weights above this "
             "(0: no such branch; the paper: 0.02)"},
};

static const ConfigGroup castling_settings = {CONFIG_GROUP(CastlingSettings, entries), .change = CHANGE_NEVER};

typedef struct {
    LinearCore core;
    DepthwiseLayer conv;
    real *linear; /* [B,N,M] kept: step 3's mix */
    float *lse;   /* [B,H,N] kept, NULL without step 5 */
    float *delta; /* [B,H,N] scratch */
} Castling;

static float mask_of(const Attention *a) {
    return ((const CastlingSettings *)config_settings(a->settings, &castling_settings))->castling_mask;
}

static void castling_declare(Attention *a, Params *params) {
    Castling *s = a->state;
    depthwise_declare(&s->conv, params, a->prefix, "dconv",
                      (Depthwise){a->grid, a->M, 3, a->M, 3 * a->M, a->M, a->place.time_kernel}, false);
}

static void plan_branch(Attention *a, Plan *plan, int B) {
    Castling *s = a->state;
    size_t bytes = attention_head_floats(a, B);
    if (!plan->training || mask_of(a) <= 0) {
        plan_without(plan, &s->lse);
        return;
    }
    plan_keep(plan, a->prefix, "lse", &s->lse, bytes);
    plan_borrow(plan, a->prefix, "delta", &s->delta, bytes);
    plan_workspace(plan, thresholded_attention_workspace(a->N, a->D));
}

static void castling_plan(Attention *a, Plan *plan, int B) {
    Castling *s = a->state;
    linear_core_plan(&s->core, a, plan, B, a->H, a->D + 1, DENOMINATOR_CLAMP);
    plan_keep(plan, a->prefix, "linear", &s->linear, attention_bytes(a, B));
    plan_workspace(plan, depthwise_workspace(&s->conv.shape));
    plan_branch(a, plan, B);
}

static void castling_forward(const Attention *a, int B) {
    const Castling *s = a->state;
    AttentionShape shape = attention_shape(a, B);
    const real *qkv = a->frame.qkv_act;
    angular_features_forward(s->core.phi, qkv, &shape);
    linear_core_forward(&s->core, a, s->linear, qkv, B);
    depthwise_forward(a->frame.mix, s->linear, qkv + 2 * a->M, s->conv.w, NULL, &s->conv.shape, B);
    if (s->lse) thresholded_attention_forward(a->frame.mix, s->lse, qkv, mask_of(a), &shape);
}

static void castling_backward(const Attention *a, int B) {
    const Castling *s = a->state;
    AttentionShape shape = attention_shape(a, B);
    const real *qkv = a->frame.qkv_act;
    real *dqkv = a->frame.dqkv, *dv = dqkv + 2 * a->M;
    linear_core_backward(&s->core, a, dqkv, a->frame.dmix, s->linear, qkv, B);
    depthwise_backward(dv, dv, s->conv.dw, NULL, a->frame.dmix, qkv + 2 * a->M, s->conv.w, &s->conv.shape, B);
    angular_features_backward(dqkv, s->core.dphi, qkv, &shape);
    if (s->lse) thresholded_attention_backward(dqkv, s->delta, a->frame.dmix, s->lse, qkv, mask_of(a), &shape);
}

/* Step 5 is not counted, because inference has none. */
static size_t castling_macs(const Attention *a) {
    const Castling *s = a->state;
    return linear_core_macs(&s->core, a) + depthwise_macs(&s->conv.shape);
}

/* The weights of step 3 only: those of the convolution differ from channel to channel. */
static void castling_weights(const Attention *a, float *weights, int b, int head, int query) {
    const Castling *s = a->state;
    linear_core_weights(&s->core, a, weights, b, head, query);
}

const AttentionOp castling_op = {
    .name = "castling",
    .summary = "linear attention by angles, 3x3 convolution of v (Castling-ViT)",
    .paper = PAPER_CASTLING,
    .settings = ATTENTION_SETTINGS(&castling_settings),
    .state_size = sizeof(Castling),
    .declare = castling_declare,
    .plan = castling_plan,
    .mix_forward = castling_forward,
    .mix_backward = castling_backward,
    .macs = castling_macs,
    .weights = castling_weights,
};
