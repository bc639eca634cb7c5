/* Focused linear attention (Han et al. 2023, FLatten Transformer).  x [B,N,M] -> y [B,N,M]
 * forward   1. q,k,v = x Wqkv^T + b   2. mix: focused_core.h   3. y = mix Wproj^T + b
 * backward  the same steps in reverse
 * saves     qkv, mix, and what the core saves. */
#include "layers/attention/focused_core.h"
#include "layers/papers.h"
#include "layers/attention/qkv.h"

typedef struct {
    QkvFrame frame;
    FocusedCore core;
} Focused;

static void focused_declare(Attention *a, Params *params) {
    Focused *s = a->state;
    qkv_declare(&s->frame, a, params);
    focused_core_declare(&s->core, a, params, NULL);
}

static void focused_plan(Attention *a, Plan *plan, int B) {
    Focused *s = a->state;
    PlanMark mark = plan_mark(plan);
    qkv_plan(&s->frame, a, plan, B);
    focused_core_plan(&s->core, a, plan, B);
    plan_release(plan, mark);
}

static void focused_forward(const Attention *a, real *y, const real *x, int B) {
    const Focused *s = a->state;
    qkv_forward_in(&s->frame, a, x, B);
    focused_core_forward(&s->core, a, s->frame.mix, s->frame.qkv_act, s->frame.qkv_act + a->M, B);
    qkv_forward_out(&s->frame, a, y, B);
}

static void focused_backward(const Attention *a, real *dx, const real *dy, const real *x, int B) {
    const Focused *s = a->state;
    qkv_backward_out(&s->frame, a, dy, B);
    const real *qkv = s->frame.qkv_act;
    focused_core_backward(&s->core, a, s->frame.dqkv, s->frame.dqkv + a->M, s->frame.dmix, qkv, qkv + a->M, B);
    qkv_backward_in(&s->frame, a, dx, x, B);
}

static size_t focused_macs(const Attention *a) {
    const Focused *s = a->state;
    return qkv_macs(&s->frame, a) + focused_core_macs(&s->core, a);
}

/* The weights of linear attention only; those of the convolution are given by focused_spatial. */
static void focused_weights(const Attention *a, float *weights, int b, int head, int query) {
    const Focused *s = a->state;
    linear_core_weights(&s->core.core, a, weights, b, head, query);
}

static void focused_spatial(const Attention *a, float *weights, int b, int head, int query) {
    const Focused *s = a->state;
    (void)b, (void)head;
    focused_core_spatial(&s->core, a, weights, query);
}

const AttentionOp focused_op = {
    .name = "focused",
    .summary = "focused linear attention: features to the power p, 5x5 on v (FLatten)",
    .paper = PAPER_FLATTEN,
    .settings = ATTENTION_SETTINGS(&focused_settings),
    .needs_grid = true,
    .takes_frames = true,
    .state_size = sizeof(Focused),
    .declare = focused_declare,
    .plan = focused_plan,
    .forward = focused_forward,
    .backward = focused_backward,
    .macs = focused_macs,
    .weights = focused_weights,
    .spatial = focused_spatial,
};
