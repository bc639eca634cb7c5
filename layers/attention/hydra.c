/* Hydra attention (Bolya et al. 2022): linear attention with as many heads as channels.  x [B,N,M] -> y [B,N,M]
 * forward   1. q,k,v = x Wqkv^T + b   2. q^ = q / |q|, k^ = k / |k| over the whole token
 *           3. kv = sum_m k^_m * v_m, mix_n = q^_n * kv, channel by channel   4. y = mix Wproj^T + b
 * backward  4. dmix   3.-2. dq, dk, dv   1. dx
 * saves     qkv, mix, inverse = 1 / |q|, 1 / |k|, kv.   The setting `heads` has no influence. */
#include "layers/attention.h"
#include "layers/papers.h"

typedef struct {
    float *inverse;  /* [B,N,2] */
    float *kv, *dkv; /* [B,M]; dkv scratch */
} Hydra;

static void hydra_plan(Attention *a, Plan *plan, int B) {
    Hydra *s = a->state;
    size_t bytes = (size_t)B * (size_t)a->M * sizeof(float);
    plan_keep(plan, a->prefix, "inverse", &s->inverse, 2 * attention_tokens(a, B) * sizeof(float));
    plan_pair(plan, a->prefix, "kv", &s->kv, &s->dkv, bytes);
}

static void hydra_forward(const Attention *a, int B) {
    const Hydra *s = a->state;
    AttentionShape shape = attention_shape(a, B);
    hydra_attention_forward(a->frame.mix, s->inverse, s->kv, a->frame.qkv_act, &shape);
}

static void hydra_backward(const Attention *a, int B) {
    const Hydra *s = a->state;
    AttentionShape shape = attention_shape(a, B);
    hydra_attention_backward(a->frame.dqkv, s->dkv, a->frame.dmix, s->inverse, s->kv, a->frame.qkv_act, &shape);
}

static size_t hydra_macs(const Attention *a) { return 2 * (size_t)a->N * (size_t)a->M; }

const AttentionOp hydra_op = {
    .name = "hydra",
    .summary = "linear attention by cosine similarity, a head for each channel (Hydra)",
    .paper = PAPER_HYDRA,
    .off_grid = true,
    .any_grid = true,
    .state_size = sizeof(Hydra),
    .plan = hydra_plan,
    .mix_forward = hydra_forward,
    .mix_backward = hydra_backward,
    .macs = hydra_macs,
};
