/* A convolution in attention's place: a pointwise layer, a depthwise convolution, a pointwise layer.
 *   conv     with biases, 5x5: the mixer of UniFormer's convolution blocks (Li et al. 2022)
 *   sepconv  without, twice as wide between the two, GELU before the 7x7: MetaFormer's (Yu et al. 2022, SepConv), where
 *            StarReLU, a scaled and shifted square of ReLU, has GELU's place
 * x [B,N,M] -> y [B,N,M], tokens on a grid, K = M or 2 M
 * forward   1. a = x W1^T + b1 [B,N,K]   2. g = a or gelu(a)   3. c = depthwise of g   4. y = c W2^T + b2
 * backward  4. dc   3. dg   2. da   1. dx
 * saves     a, c; g is computed again.
 *
 * Initial weights differ: depthwise ones are uniform within 1/7 or 1/5 (MetaFormer's: normal, deviation 0.02), pointwise
 * ones normal with deviation 0.02 (UniFormer's: uniform within 1/sqrt(fan in)). */
#include "layers/attention.h"
#include "layers/papers.h"
#include "layers/depthwise.h"
#include "layers/projection.h"

typedef struct {
    bool gelu;
    Projection conv1, conv2;
    DepthwiseLayer conv;
    real *a, *c;       /* [B,N,K] kept */
    real *g, *da, *dc; /* scratch */
} Conv;

static void conv_declare(Attention *a, Params *params) {
    Conv *s = a->state;
    int M = a->M;
    projection_declare(&s->conv1, params, a->prefix, "conv1", M, M);
    depthwise_declare(&s->conv, params, a->prefix, "conv",
                      (Depthwise){a->grid, M, 5, M, M, M, a->place.conv_time_kernel}, true);
    projection_declare(&s->conv2, params, a->prefix, "conv2", M, M);
}

static void sepconv_declare(Attention *a, Params *params) {
    Conv *s = a->state;
    int M = a->M, K = 2 * M;
    s->gelu = true;
    projection_declare_weight(&s->conv1, params, a->prefix, "pwconv1", M, K);
    depthwise_declare(&s->conv, params, a->prefix, "dwconv",
                      (Depthwise){a->grid, K, 7, K, K, K, a->place.conv_time_kernel}, false);
    projection_declare_weight(&s->conv2, params, a->prefix, "pwconv2", K, M);
}

static void conv_plan(Attention *a, Plan *plan, int B) {
    Conv *s = a->state;
    size_t bytes = attention_tokens(a, B) * (size_t)s->conv1.out * sizeof(real);
    plan_pair(plan, a->prefix, "a", &s->a, &s->da, bytes);
    plan_pair(plan, a->prefix, "c", &s->c, &s->dc, bytes);
    if (s->gelu) plan_borrow(plan, a->prefix, "g", &s->g, bytes);
    plan_workspace(plan, depthwise_workspace(&s->conv.shape));
}

static void conv_follow_grid(Attention *a) { ((Conv *)a->state)->conv.shape.grid = a->grid; }

/* Returns the input of the depthwise convolution, which is computed from a. */
static const real *convolved(const Conv *s, size_t n) {
    if (!s->gelu) return s->a;
    gelu_forward(s->g, s->a, n * (size_t)s->conv1.out);
    return s->g;
}

static void conv_forward(const Attention *a, real *y, const real *x, int B) {
    const Conv *s = a->state;
    size_t n = attention_tokens(a, B);
    projection_forward(&s->conv1, s->a, x, n);
    depthwise_forward(s->c, NULL, convolved(s, n), s->conv.w, s->conv.b, &s->conv.shape, B);
    projection_forward(&s->conv2, y, s->c, n);
}

static void conv_backward(const Attention *a, real *dx, const real *dy, const real *x, int B) {
    const Conv *s = a->state;
    size_t n = attention_tokens(a, B);
    projection_backward(&s->conv2, s->dc, dy, s->c, n);
    depthwise_backward(s->da, NULL, s->conv.dw, s->conv.db, s->dc, convolved(s, n), s->conv.w, &s->conv.shape, B);
    if (s->gelu) gelu_backward(s->da, s->g, s->da, s->a, n * (size_t)s->conv1.out);
    projection_backward(&s->conv1, dx, s->da, x, n);
}

static size_t conv_macs(const Attention *a) {
    const Conv *s = a->state;
    return 2 * projection_macs(&s->conv1, (size_t)a->N) + depthwise_macs(&s->conv.shape);
}

#define CONV_OP                       \
    .any_grid = true,                 \
    .state_size = sizeof(Conv),       \
    .plan = conv_plan,                \
    .follow_grid = conv_follow_grid,  \
    .forward = conv_forward,          \
    .backward = conv_backward,        \
    .macs = conv_macs

const AttentionOp conv_op = {
    .name = "conv",
    .summary = "depthwise 5x5 convolution between two linear layers (UniFormer)",
    .paper = PAPER_UNIFORMER,
    .declare = conv_declare,
    CONV_OP,
};

const AttentionOp sepconv_op = {
    .name = "sepconv",
    .summary = "depthwise 7x7 convolution between two linear layers, GELU (MetaFormer)",
    .paper = PAPER_METAFORMER,
    .declare = sepconv_declare,
    CONV_OP,
};
