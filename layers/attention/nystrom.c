/* Nystrom attention (Xiong et al. 2021, Nystromformer), per head.  x [B,N,M] -> y [B,N,M], tokens on a grid
 * forward   1. q,k,v = x Wqkv^T + b   2. a, b = means of q and of k over L cells of the grid;
 *              of a clip, over the cells of every frame
 *           3. mix = A(q, b) Z A(a, k) v, A(x, z) = softmax(x z^T / sqrt D), Z the iterative pseudo-inverse of A(a, b)
 *              (low_rank_forward)
 *           4. mix += depthwise 3x3 of v over the grid, in clips time_kernel frames long   5. y = mix Wproj^T + b
 * backward  5. dmix   3. dq, dk, dv, da, db   4. dv += reversed depthwise of dmix   2. dq, dk += means' da, db   1. dx
 * saves     qkv, a and b.
 * The iteration for Z starts from A(a, b)^T divided by its own largest column sum, which the published code calls
 * `exact`; its default `original` divides by the largest one of the batch.  In that code the means are over segments of
 * the token sequence, and the convolution is one along the sequence with a filter for each head. */
#include "core/integers.h"
#include "layers/attention/low_rank.h"
#include "layers/papers.h"
#include "layers/attention.h"
#include "layers/depthwise.h"

typedef struct {
    DepthwiseLayer conv;
    Cells cells; /* of a frame */
    LowRank shape;
    real *means, *dmeans; /* [B,L,2,H,D] kept; scratch */
} Nystrom;

static void nystrom_declare(Attention *a, Params *params) {
    Nystrom *s = a->state;
    int side = landmarks_of(a), M = a->M;
    Grid frame = {1, a->grid.rows, a->grid.columns};
    s->cells = (Cells){frame, {1, smaller(side, frame.rows), smaller(side, frame.columns)}};
    s->shape = (LowRank){a->N, a->grid.frames * grid_tokens(s->cells.cells), a->H, a->D, false};
    depthwise_declare(&s->conv, params, a->prefix, "conv",
                      (Depthwise){a->grid, M, 3, M, 3 * M, M, a->place.time_kernel}, false);
}

static void nystrom_plan(Attention *a, Plan *plan, int B) {
    Nystrom *s = a->state;
    size_t bytes = (size_t)B * (size_t)s->shape.L * 2 * (size_t)a->M * sizeof(real);
    plan_pair(plan, a->prefix, "means", &s->means, &s->dmeans, bytes);
    plan_workspace(plan, low_rank_workspace(&s->shape, B));
    plan_workspace(plan, depthwise_workspace(&s->conv.shape));
}

static void nystrom_forward(const Attention *a, int B) {
    const Nystrom *s = a->state;
    const real *qkv = a->frame.qkv_act;
    real *mix = a->frame.mix;
    cell_means_forward(s->means, qkv, &s->cells, B * a->grid.frames, 2 * a->M, 3 * a->M);
    low_rank_forward(mix, qkv, s->means, &s->shape, B);
    depthwise_forward(mix, mix, qkv + 2 * a->M, s->conv.w, NULL, &s->conv.shape, B);
}

static void nystrom_backward(const Attention *a, int B) {
    const Nystrom *s = a->state;
    const real *qkv = a->frame.qkv_act, *dmix = a->frame.dmix;
    real *dqkv = a->frame.dqkv, *dv = dqkv + 2 * a->M;
    low_rank_backward(dqkv, s->dmeans, dmix, qkv, s->means, &s->shape, B);
    depthwise_backward(dv, dv, s->conv.dw, NULL, dmix, qkv + 2 * a->M, s->conv.w, &s->conv.shape, B);
    cell_means_backward(dqkv, s->dmeans, &s->cells, B * a->grid.frames, 2 * a->M, 3 * a->M);
}

static size_t nystrom_macs(const Attention *a) {
    const Nystrom *s = a->state;
    return low_rank_macs(&s->shape) + depthwise_macs(&s->conv.shape);
}

const AttentionOp nystrom_op = {
    .name = "nystrom",
    .summary = "softmax attention approximated with landmarks (Nystromformer)",
    .paper = PAPER_NYSTROM,
    .settings = ATTENTION_SETTINGS(&landmarks_settings),
    .state_size = sizeof(Nystrom),
    .declare = nystrom_declare,
    .plan = nystrom_plan,
    .mix_forward = nystrom_forward,
    .mix_backward = nystrom_backward,
    .macs = nystrom_macs,
};
