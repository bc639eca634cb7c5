/* Multi-scale linear attention with ReLU features (Cai et al. 2023, EfficientViT).  x [B,N,M] -> y [B,N,M]
 * forward   1. qkv = x Wqkv^T + b
 *           2. wide = depthwise 5x5 of qkv over the grid, in clips time_kernel frames long, then a D x D matrix for each
 *              head of q, k and v
 *           3. all = qkv and wide, 2*H heads   4. phi = relu of all's q and k
 *           5. linear attention of all heads (epsilon 1e-6)   6. y = mix Wproj^T + b, Wproj [M,2M]
 * backward  6. dmix   5. dphi, dv   4. dall   3.-2. dqkv   1. dx
 * saves     qkv, conv (between the two halves of step 2), all, phi, mix, den, kv.
 *
 * Differences from EfficientViT: its epsilon is 1e-15, its qkv has no bias, its convolutions begin with deviation 0.02
 * (here uniform within 1/sqrt(fan in)), and it has a batch norm after Wproj where this model has the block's layer norms.
 * Its MLP with a depthwise 3x3 convolution is the setting mlp_conv. */
#include "layers/attention/linear_core.h"
#include "layers/papers.h"
#include "layers/depthwise.h"
#include "layers/projection.h"

typedef struct {
    Projection qkv, proj;
    DepthwiseLayer conv;
    LinearCore core;
    float *w, *dw;                  /* [3M,D,1,1] */
    real *qkv_act, *conv_act, *all; /* kept, [B,N,3,H,D] twice, [B,N,3,2H,D] */
    real *mix;                      /* [B,N,2H,D] kept */
    real *dqkv, *dwide, *dall, *dmix;
} ReluLinear;

static void relu_linear_declare(Attention *a, Params *params) {
    ReluLinear *s = a->state;
    int M = a->M, D = a->D;
    projection_declare(&s->qkv, params, a->prefix, "qkv", M, 3 * M);
    depthwise_declare(&s->conv, params, a->prefix, "aggreg.0.0",
                      (Depthwise){a->grid, 3 * M, 5, 3 * M, 3 * M, 3 * M, a->place.time_kernel}, false);
    params_declare(params, (Param){.value = &s->w, .grad = &s->dw, .named = {a->prefix, "aggreg.0.1.weight"},
                                   .init = INIT_FAN_IN_UNIFORM, .fan = D, .groups = 3 * M / D, .decay = true,
                                   .shape = {3 * M, D, 1, 1}});
    projection_declare(&s->proj, params, a->prefix, "proj", 2 * M, M);
}

static void relu_linear_plan(Attention *a, Plan *plan, int B) {
    ReluLinear *s = a->state;
    size_t bytes = attention_bytes(a, B);
    plan_pair(plan, a->prefix, "qkv", &s->qkv_act, &s->dqkv, 3 * bytes);
    plan_pair(plan, a->prefix, "conv", &s->conv_act, &s->dwide, 3 * bytes);
    plan_pair(plan, a->prefix, "all", &s->all, &s->dall, 6 * bytes);
    plan_pair(plan, a->prefix, "mix", &s->mix, &s->dmix, 2 * bytes);
    linear_core_plan(&s->core, a, plan, B, 2 * a->H, a->D, DENOMINATOR_EPSILON);
    plan_workspace(plan, depthwise_workspace(&s->conv.shape));
    plan_workspace(plan, multiscale_workspace(a->H, a->D));
}

static void relu_linear_follow_grid(Attention *a) { ((ReluLinear *)a->state)->conv.shape.grid = a->grid; }

static void relu_linear_forward(const Attention *a, real *y, const real *x, int B) {
    const ReluLinear *s = a->state;
    AttentionShape shape = attention_shape(a, B);
    size_t n = attention_tokens(a, B);
    projection_forward(&s->qkv, s->qkv_act, x, n);
    depthwise_forward(s->conv_act, NULL, s->qkv_act, s->conv.w, NULL, &s->conv.shape, B);
    multiscale_forward(s->all, s->qkv_act, s->conv_act, s->w, &shape);
    relu_features_forward(s->core.phi, s->all, &(AttentionShape){B, a->N, 2 * a->H, a->D});
    linear_core_forward(&s->core, a, s->mix, s->all, B);
    projection_forward(&s->proj, y, s->mix, n);
}

static void relu_linear_backward(const Attention *a, real *dx, const real *dy, const real *x, int B) {
    const ReluLinear *s = a->state;
    AttentionShape shape = attention_shape(a, B);
    size_t n = attention_tokens(a, B);
    projection_backward(&s->proj, s->dmix, dy, s->mix, n);
    linear_core_backward(&s->core, a, s->dall, s->dmix, s->mix, s->all, B);
    relu_features_backward(s->dall, s->core.dphi, s->core.phi, &(AttentionShape){B, a->N, 2 * a->H, a->D});
    multiscale_backward(s->dqkv, s->dwide, s->dw, s->dall, s->conv_act, s->w, &shape);
    depthwise_backward(s->dqkv, s->dqkv, s->conv.dw, NULL, s->dwide, s->qkv_act, s->conv.w, &s->conv.shape, B);
    projection_backward(&s->qkv, dx, s->dqkv, x, n);
}

static size_t relu_linear_macs(const Attention *a) {
    const ReluLinear *s = a->state;
    size_t N = (size_t)a->N, matrices = N * 3 * (size_t)a->M * (size_t)a->D;
    return projection_macs(&s->qkv, N) + depthwise_macs(&s->conv.shape) + matrices + linear_core_macs(&s->core, a) +
           projection_macs(&s->proj, N);
}

/* The weights of the first scale; the tokens of the second one are sums over neighbourhoods. */
static void relu_linear_weights(const Attention *a, float *weights, int b, int head, int query) {
    const ReluLinear *s = a->state;
    linear_core_weights(&s->core, a, weights, b, head, query);
}

const AttentionOp relu_linear_op = {
    .name = "relu-linear",
    .summary = "multi-scale linear attention with ReLU features (EfficientViT)",
    .paper = PAPER_EFFICIENTVIT,
    .any_grid = true,
    .state_size = sizeof(ReluLinear),
    .declare = relu_linear_declare,
    .plan = relu_linear_plan,
    .follow_grid = relu_linear_follow_grid,
    .forward = relu_linear_forward,
    .backward = relu_linear_backward,
    .macs = relu_linear_macs,
    .weights = relu_linear_weights,
};
