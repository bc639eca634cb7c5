/* Softmax-free attention (Lu et al. 2021, SOFT), per head.  x [B,N,M] -> y [B,N,M], tokens on a grid
 * forward   1. q,v = x Wqv^T + b; q is also the key
 *           2. a = gelu(norm(convolution of q, r x r with stride r)), D to D channels, the heads share it
 *           3. mix = A(q, a) Z A(a, q) v, A(x, z) = exp(-|x - z|^2 / 2), q times D^-1/4,
 *              Z the iterative pseudo-inverse of A(a, a) (low_rank_forward)
 *           4. mix += depthwise 3x3 of v over the grid   5. y = mix Wproj^T + b
 * backward  5. dmix   3. dq, dv, da   4. dv += reversed depthwise of dmix   2. dq += the gradient through a   1. dx
 * saves     qv, the squares of q, the convolution, a.
 * The published code instead does 20 steps of Newton's iteration from A(a, a) + 0.01 and differentiates its limit, and
 * it convolves v with one filter for each head. */
#include <math.h>

#include "core/integers.h"
#include "layers/attention/low_rank.h"
#include "layers/papers.h"
#include "layers/depthwise.h"
#include "layers/layer_norm.h"
#include "layers/projection.h"


typedef struct {
    Projection qv, proj;
    DepthwiseLayer conv;
    LowRank shape;
    int r;
    float *w, *dw;                                      /* [D,D,r,r] */
    NormLayer norm;                                     /* of D */
    real *qv_act, *mix;                                 /* kept, [B,N,2,H,D], [B,N,H,D] */
    real *cols, *square, *landmarks;                    /* kept, [B,L,H,D*r*r], then [B,L,H,D] twice */
    real *dqv, *dmix, *dcols, *dlandmarks, *dsquare;    /* scratch */
} Soft;

/* The side r of the squares: the smallest with at most `landmarks` whole squares along each side of the grid, or the
 * grid's shorter side if that is smaller. */
static int stride_for(int landmarks, Grid grid) {
    int Hg = grid.rows, Wg = grid.columns, longer = Hg > Wg ? Hg : Wg, r = (longer + landmarks - 1) / landmarks;
    return smaller(r, smaller(Hg, Wg));
}

/* PyTorch's eps of 1e-5, adapted: the norm's input in the published code is q times D^-1/4, and here q. */
static float norm_epsilon(int D) { return 1e-5f * sqrtf((float)D); }

static void soft_declare(Attention *a, Params *params) {
    Soft *s = a->state;
    int M = a->M, D = a->D, r = s->r = stride_for(landmarks_of(a), a->grid);
    s->shape = (LowRank){a->N, a->grid.frames * (a->grid.rows / r) * (a->grid.columns / r), a->H, D, true};
    projection_declare(&s->qv, params, a->prefix, "qv", M, 2 * M);
    params_declare(params, (Param){.value = &s->w, .grad = &s->dw, .named = {a->prefix, "landmark.weight"},
                                   .init = INIT_FAN_IN_UNIFORM, .fan = D * r * r, .decay = true,
                                   .shape = {D, D, r, r}});
    norm_layer_declare(&s->norm, params, a->prefix, "landmark.norm", D, norm_epsilon(D), false);
    depthwise_declare(&s->conv, params, a->prefix, "conv",
                      (Depthwise){a->grid, M, 3, M, 2 * M, M, a->place.time_kernel}, false);
    projection_declare(&s->proj, params, a->prefix, "proj", M, M);
}

static void soft_plan(Attention *a, Plan *plan, int B) {
    Soft *s = a->state;
    size_t rows = (size_t)B * (size_t)s->shape.L * (size_t)a->H, few = rows * (size_t)a->D * sizeof(real);
    size_t bytes = attention_bytes(a, B), squares = few * (size_t)(s->r * s->r);
    plan_pair(plan, a->prefix, "qv", &s->qv_act, &s->dqv, 2 * bytes);
    plan_pair(plan, a->prefix, "mix", &s->mix, &s->dmix, bytes);
    plan_pair(plan, a->prefix, "squares", &s->cols, &s->dcols, squares);
    plan_pair(plan, a->prefix, "landmarks.conv", &s->square, &s->dsquare, few);
    plan_pair(plan, a->prefix, "landmarks", &s->landmarks, &s->dlandmarks, few);
    norm_layer_plan(&s->norm, plan, a->prefix, rows);
    plan_workspace(plan, low_rank_workspace(&s->shape, B));
    plan_workspace(plan, depthwise_workspace(&s->conv.shape));
}

static size_t landmark_rows(const Soft *s, int B) { return (size_t)B * (size_t)s->shape.L * (size_t)s->shape.H; }

/* The squares of q in every frame, their convolution, and its norm. */
static HeadPatches patches_of(const Soft *s, const Attention *a) {
    return (HeadPatches){{1, a->grid.rows, a->grid.columns}, s->r, a->H, a->D, 2 * a->M};
}
static LinearShape convolution_of(const Soft *s, int B) {
    int D = s->shape.D;
    return (LinearShape){landmark_rows(s, B), D * s->r * s->r, D, 0};
}

static void landmarks_forward(const Soft *s, const Attention *a, int B) {
    HeadPatches patches = patches_of(s, a);
    LinearShape linear = convolution_of(s, B);
    LayerNorm norm = norm_layer_of(&s->norm, linear.n);
    head_patches_forward(s->cols, s->qv_act, &patches, B * a->grid.frames);
    linear_forward(s->square, s->cols, s->w, NULL, &linear);
    layernorm_gelu_forward(s->landmarks, s->square, &norm);
}

/* Adds the gradient to that of q. */
static void landmarks_backward(const Soft *s, const Attention *a, int B) {
    HeadPatches patches = patches_of(s, a);
    LinearShape linear = convolution_of(s, B);
    LayerNorm norm = norm_layer_of(&s->norm, linear.n);
    real *d = s->dlandmarks, *dsquare = s->dsquare;
    layernorm_gelu_backward(d, d, s->square, &norm);
    norm_layer_backward(&s->norm, dsquare, d, s->square, linear.n);
    linear_backward_input(s->dcols, dsquare, s->w, &linear);
    linear_backward_weight(s->dw, NULL, dsquare, s->cols, &linear);
    head_patches_backward(s->dqv, s->dcols, &patches, B * a->grid.frames);
}

static void soft_forward(const Attention *a, real *y, const real *x, int B) {
    const Soft *s = a->state;
    size_t n = attention_tokens(a, B);
    projection_forward(&s->qv, s->qv_act, x, n);
    landmarks_forward(s, a, B);
    low_rank_forward(s->mix, s->qv_act, s->landmarks, &s->shape, B);
    depthwise_forward(s->mix, s->mix, s->qv_act + a->M, s->conv.w, NULL, &s->conv.shape, B);
    projection_forward(&s->proj, y, s->mix, n);
}

static void soft_backward(const Attention *a, real *dx, const real *dy, const real *x, int B) {
    const Soft *s = a->state;
    size_t n = attention_tokens(a, B);
    real *dv = s->dqv + a->M;
    projection_backward(&s->proj, s->dmix, dy, s->mix, n);
    low_rank_backward(s->dqv, s->dlandmarks, s->dmix, s->qv_act, s->landmarks, &s->shape, B);
    depthwise_backward(dv, dv, s->conv.dw, NULL, s->dmix, s->qv_act + a->M, s->conv.w, &s->conv.shape, B);
    landmarks_backward(s, a, B);
    projection_backward(&s->qv, dx, s->dqv, x, n);
}

static size_t soft_macs(const Attention *a) {
    const Soft *s = a->state;
    size_t N = (size_t)a->N, D = (size_t)a->D, convolution = landmark_rows(s, 1) * D * D * (size_t)(s->r * s->r);
    return projection_macs(&s->qv, N) + convolution + low_rank_macs(&s->shape) + depthwise_macs(&s->conv.shape) +
           projection_macs(&s->proj, N);
}

const AttentionOp soft_op = {
    .name = "soft",
    .summary = "attention with a Gaussian kernel, approximated with landmarks (SOFT)",
    .paper = PAPER_SOFT,
    .settings = ATTENTION_SETTINGS(&landmarks_settings),
    .state_size = sizeof(Soft),
    .declare = soft_declare,
    .plan = soft_plan,
    .forward = soft_forward,
    .backward = soft_backward,
    .macs = soft_macs,
};
