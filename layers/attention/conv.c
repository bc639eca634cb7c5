/* A convolution in place of attention: two pointwise layers around a depthwise 5x5, as in the convolution blocks of
 * HyLiSANet and UniFormer (Li et al. 2022).  x [B,N,M] -> y [B,N,M], tokens on a grid
 * forward   1. a = x W1^T + b1   2. c = depthwise 5x5 of a over the grid, with bias   3. y = c W2^T + b2
 * backward  3. dc   2. da   1. dx
 * saves     a, c. */
#include "layers/attention/attention.h"
#include "layers/depthwise.h"
#include "layers/projection.h"

typedef struct {
    Projection conv1, conv2;
    DepthwiseLayer conv;
    real *a, *c;   /* [B,N,M] kept */
    real *da, *dc; /* scratch */
} Conv;

static void conv_declare(Attention *a, Params *params) {
    Conv *s = a->state;
    int M = a->M;
    projection_declare(&s->conv1, params, a->prefix, "conv1", M, M);
    depthwise_declare(&s->conv, params, a->prefix, "conv", (Depthwise){a->grid, M, 5, M, M, M}, true);
    projection_declare(&s->conv2, params, a->prefix, "conv2", M, M);
}

static void conv_plan(Attention *a, Plan *plan, int B) {
    Conv *s = a->state;
    size_t bytes = (size_t)B * (size_t)a->N * (size_t)a->M * sizeof(real);
    PlanMark mark = plan_mark(plan);
    plan_keep(plan, a->prefix, "a", &s->a, bytes);
    plan_keep(plan, a->prefix, "c", &s->c, bytes);
    if (plan->training) {
        plan_borrow(plan, a->prefix, "da", &s->da, bytes);
        plan_borrow(plan, a->prefix, "dc", &s->dc, bytes);
    }
    plan_workspace(plan, depthwise_workspace(&s->conv.shape));
    plan_release(plan, mark);
}

static void conv_forward(const Attention *a, real *y, const real *x, int B) {
    const Conv *s = a->state;
    size_t n = (size_t)B * (size_t)a->N;
    projection_forward(&s->conv1, s->a, x, n);
    depthwise_forward(s->c, NULL, s->a, s->conv.w, s->conv.b, &s->conv.shape, B);
    projection_forward(&s->conv2, y, s->c, n);
}

static void conv_backward(const Attention *a, real *dx, const real *dy, const real *x, int B) {
    const Conv *s = a->state;
    size_t n = (size_t)B * (size_t)a->N;
    projection_backward(&s->conv2, s->dc, dy, s->c, n);
    depthwise_backward(s->da, NULL, s->conv.dw, s->conv.db, s->dc, s->a, s->conv.w, &s->conv.shape, B);
    projection_backward(&s->conv1, dx, s->da, x, n);
}

static size_t conv_macs(const Attention *a) {
    const Conv *s = a->state;
    return 2 * projection_macs(&s->conv1, (size_t)a->N) + depthwise_macs(&s->conv.shape);
}

const AttentionOp conv_op = {
    .name = "conv",
    .summary = "pointwise, depthwise 5x5, pointwise: the mixer of convolution blocks",
    .needs_grid = true,
    .state_size = sizeof(Conv),
    .declare = conv_declare,
    .plan = conv_plan,
    .forward = conv_forward,
    .backward = conv_backward,
    .macs = conv_macs,
};
