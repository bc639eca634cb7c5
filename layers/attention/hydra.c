/* Hydra attention (Bolya et al. 2022): linear attention with as many heads as channels.  x [B,N,M] -> y [B,N,M]
 * forward   1. q,k,v = x Wqkv^T + b   2. q^ = q / |q|, k^ = k / |k| over the whole token
 *           3. kv = sum_m k^_m * v_m, mix_n = q^_n * kv, channel by channel   4. y = mix Wproj^T + b
 * backward  4. dmix   3.-2. dq, dk, dv   1. dx
 * saves     qkv, mix, inverse = 1 / |q|, 1 / |k|, kv.   The setting `heads` has no influence. */
#include "layers/attention/qkv.h"

#include "layers/papers.h"

typedef struct {
    QkvFrame frame;
    float *inverse;  /* [B,N,2] */
    float *kv, *dkv; /* [B,M]; dkv scratch */
} Hydra;

static void hydra_declare(Attention *a, Params *params) {
    Hydra *s = a->state;
    qkv_declare(&s->frame, a, params);
}

static void hydra_plan(Attention *a, Plan *plan, int B) {
    Hydra *s = a->state;
    size_t bytes = (size_t)B * (size_t)a->M * sizeof(float);
    PlanMark mark = plan_mark(plan);
    qkv_plan(&s->frame, a, plan, B);
    plan_keep(plan, a->prefix, "inverse", &s->inverse, 2 * attention_tokens(a, B) * sizeof(float));
    plan_keep(plan, a->prefix, "kv", &s->kv, bytes);
    if (plan->training) plan_borrow(plan, a->prefix, "dkv", &s->dkv, bytes);
    plan_release(plan, mark);
}

static void hydra_forward(const Attention *a, real *y, const real *x, int B) {
    const Hydra *s = a->state;
    AttentionShape shape = attention_shape(a, B);
    qkv_forward_in(&s->frame, a, x, B);
    hydra_attention_forward(s->frame.mix, s->inverse, s->kv, s->frame.qkv_act, &shape);
    qkv_forward_out(&s->frame, a, y, B);
}

static void hydra_backward(const Attention *a, real *dx, const real *dy, const real *x, int B) {
    const Hydra *s = a->state;
    AttentionShape shape = attention_shape(a, B);
    qkv_backward_out(&s->frame, a, dy, B);
    hydra_attention_backward(s->frame.dqkv, s->dkv, s->frame.dmix, s->inverse, s->kv, s->frame.qkv_act, &shape);
    qkv_backward_in(&s->frame, a, dx, x, B);
}

static size_t hydra_macs(const Attention *a) {
    const Hydra *s = a->state;
    return qkv_macs(&s->frame, a) + 2 * (size_t)a->N * (size_t)a->M;
}

const AttentionOp hydra_op = {
    .name = "hydra",
    .summary = "hydra attention: cosine features, as many heads as channels",
    .paper = PAPER_HYDRA,
    .takes_frames = true,
    .state_size = sizeof(Hydra),
    .declare = hydra_declare,
    .plan = hydra_plan,
    .forward = hydra_forward,
    .backward = hydra_backward,
    .macs = hydra_macs,
};
