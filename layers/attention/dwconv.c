/* A depthwise 7x7 convolution in place of attention, as in ConvNeXt (Liu et al. 2022).
 * x [B,N,M] -> y [B,N,M], tokens on a grid
 * forward   1. mix = depthwise 7x7 of x + b   2. y = mix Wproj^T + b
 * backward  2. dmix   1. dx
 * saves     mix.
 *
 * Initial weights are uniform within 1/7; ConvNeXt's are normal with deviation 0.02. */
#include "layers/attention.h"
#include "layers/papers.h"
#include "layers/depthwise.h"
#include "layers/projection.h"

typedef struct {
    DepthwiseLayer conv;
    Projection proj;
    real *mix, *dmix; /* [B,N,M] kept; scratch */
} Dwconv;

static void dwconv_declare(Attention *a, Params *params) {
    Dwconv *s = a->state;
    depthwise_declare(&s->conv, params, a->prefix, "dwconv",
                      (Depthwise){a->grid, a->M, 7, a->M, a->M, a->M, a->place.time_kernel}, true);
    projection_declare(&s->proj, params, a->prefix, "proj", a->M, a->M);
}

static void dwconv_plan(Attention *a, Plan *plan, int B) {
    Dwconv *s = a->state;
    size_t bytes = attention_bytes(a, B);
    plan_pair(plan, a->prefix, "mix", &s->mix, &s->dmix, bytes);
    plan_workspace(plan, depthwise_workspace(&s->conv.shape));
}

static void dwconv_follow_grid(Attention *a) { ((Dwconv *)a->state)->conv.shape.grid = a->grid; }

static void dwconv_forward(const Attention *a, real *y, const real *x, int B) {
    const Dwconv *s = a->state;
    depthwise_forward(s->mix, NULL, x, s->conv.w, s->conv.b, &s->conv.shape, B);
    projection_forward(&s->proj, y, s->mix, attention_tokens(a, B));
}

static void dwconv_backward(const Attention *a, real *dx, const real *dy, const real *x, int B) {
    const Dwconv *s = a->state;
    projection_backward(&s->proj, s->dmix, dy, s->mix, attention_tokens(a, B));
    depthwise_backward(dx, NULL, s->conv.dw, s->conv.db, s->dmix, x, s->conv.w, &s->conv.shape, B);
}

static size_t dwconv_macs(const Attention *a) {
    const Dwconv *s = a->state;
    return depthwise_macs(&s->conv.shape) + projection_macs(&s->proj, (size_t)a->N);
}

const AttentionOp dwconv7_op = {
    .name = "dwconv7",
    .summary = "depthwise 7x7 convolution, no queries, keys and values (ConvNeXt)",
    .paper = PAPER_CONVNEXT,
    .any_grid = true,
    .state_size = sizeof(Dwconv),
    .declare = dwconv_declare,
    .plan = dwconv_plan,
    .follow_grid = dwconv_follow_grid,
    .forward = dwconv_forward,
    .backward = dwconv_backward,
    .macs = dwconv_macs,
};
