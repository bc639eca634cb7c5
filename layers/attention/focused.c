/* Focused linear attention (Han et al. 2023, FLatten Transformer).  x [B,N,M] -> y [B,N,M]
 * forward   1. q,k,v = x Wqkv^T + b   2. mix: focused_core.h   3. y = mix Wproj^T + b
 * backward  the same steps in reverse
 * saves     qkv, mix, and what the core saves. */
#include "layers/attention/focused_core.h"
#include "layers/papers.h"
#include "layers/attention.h"

typedef struct {
    FocusedCore core;
} Focused;

static void focused_declare(Attention *a, Params *params) {
    Focused *s = a->state;
    focused_core_declare(&s->core, a, params, NULL);
}

static void focused_plan(Attention *a, Plan *plan, int B) {
    Focused *s = a->state;
    focused_core_plan(&s->core, a, plan, B);
}

static void focused_follow_grid(Attention *a) { focused_core_follow_grid(&((Focused *)a->state)->core, a, NULL); }

static void focused_forward(const Attention *a, int B) {
    const Focused *s = a->state;
    focused_core_forward(&s->core, a, a->frame.mix, a->frame.qkv_act, a->frame.qkv_act + a->M, B);
}

static void focused_backward(const Attention *a, int B) {
    const Focused *s = a->state;
    const real *qkv = a->frame.qkv_act;
    focused_core_backward(&s->core, a, a->frame.dqkv, a->frame.dqkv + a->M, a->frame.dmix, qkv, qkv + a->M, B);
}

static size_t focused_macs(const Attention *a) {
    const Focused *s = a->state;
    return focused_core_macs(&s->core, a);
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
    .summary = "linear attention with sharpened features, 5x5 convolution of v (FLatten)",
    .paper = PAPER_FLATTEN,
    .settings = ATTENTION_SETTINGS(&focused_settings),
    .any_grid = true,
    .state_size = sizeof(Focused),
    .declare = focused_declare,
    .plan = focused_plan,
    .follow_grid = focused_follow_grid,
    .mix_forward = focused_forward,
    .mix_backward = focused_backward,
    .macs = focused_macs,
    .weights = focused_weights,
    .spatial = focused_spatial,
};
