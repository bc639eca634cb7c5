/* Scaled dot-product attention (Vaswani et al. 2017), per head.  x [B,N,M] -> y [B,N,M]
 * forward   1. q,k,v = x Wqkv^T + b   2. mix_n = sum_m softmax_m(q_n.k_m / sqrt D) v_m   3. y = mix Wproj^T + b
 * backward  3. dmix   2. dq, dk, dv from the saved log-sum-exp, tile by tile   1. dx
 * saves     qkv, mix, lse [B,H,N].  Parameter names are timm's. */
#include "layers/attention/attention.h"

typedef struct {
    QkvFrame frame;
    float *lse; /* [B,H,N] */
} Softmax;

static void softmax_declare(Attention *a, Params *params) {
    Softmax *s = a->state;
    qkv_declare(&s->frame, a, params);
}

static void softmax_plan(Attention *a, Plan *plan, int B) {
    Softmax *s = a->state;
    PlanMark mark = plan_mark(plan);
    qkv_plan(&s->frame, a, plan, B);
    plan_keep(plan, a->prefix, "lse", &s->lse, (size_t)B * (size_t)a->H * (size_t)a->N * sizeof(float));
    plan_workspace(plan, softmax_attention_workspace(a->N, a->D));
    plan_release(plan, mark);
}

static void softmax_forward(const Attention *a, real *y, const real *x, int B) {
    const Softmax *s = a->state;
    qkv_forward_in(&s->frame, a, x, B);
    softmax_attention_forward(s->frame.mix, s->lse, s->frame.qkv_act, B, a->N, a->H, a->D);
    qkv_forward_out(&s->frame, a, y, B);
}

static void softmax_backward(const Attention *a, real *dx, const real *dy, const real *x, int B) {
    const Softmax *s = a->state;
    qkv_backward_out(&s->frame, a, dy, B);
    softmax_attention_backward(s->frame.dqkv, s->frame.dmix, s->frame.mix, s->lse, s->frame.qkv_act, B, a->N, a->H,
                               a->D);
    qkv_backward_in(&s->frame, a, dx, x, B);
}

static size_t softmax_macs(const Attention *a) {
    const Softmax *s = a->state;
    return qkv_macs(&s->frame, a) + 2 * (size_t)a->N * (size_t)a->N * (size_t)a->M;
}

static void softmax_weights(const Attention *a, float *weights, int b, int head, int query) {
    const Softmax *s = a->state;
    qkv_softmax_row(&s->frame, a, weights, b, head, query);
}

const AttentionOp softmax_op = {
    .name = "softmax",
    .summary = "scaled dot-product attention (DeiT)",
    .state_size = sizeof(Softmax),
    .declare = softmax_declare,
    .plan = softmax_plan,
    .forward = softmax_forward,
    .backward = softmax_backward,
    .macs = softmax_macs,
    .weights = softmax_weights,
};
