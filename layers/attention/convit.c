/* Gated positional self-attention (d'Ascoli et al. 2021, ConViT), per head.  x [B,N,M] -> y [B,N,M]
 * forward   1. q,k = x Wqk^T, v = x Wv^T   2. content_n = sum_m softmax_m(q_n.k_m / sqrt D) v_m
 *           3. mix_n = (1-g) content_n + g sum_m P_nm v_m, g = sigmoid(gating),
 *              P_nm = softmax_m(w.(dx, dy, dx^2 + dy^2) + b), (dx, dy) from n to m on the grid;
 *              for clips w.(dx, dy, dx^2 + dy^2, dt, dt^2), an extension of this project
 *           4. y = mix Wproj^T + bproj
 * backward  4. dmix   3.-2. dq, dk, dv = (1-g) times content's, dv += g P^T dmix;
 *              dgating = g (1-g) sum (P v - content).dmix, dP = g dmix v^T and on to w   1. dx
 * saves     qkv, mix, content, lse [B,H,N], and P as its factors (kernels/softmax/position_attention.h).
 * Parameter names are those of facebookresearch/convit.
 *
 * The published code divides the mixed weights by their row sum.  That is omitted here without any effect: both
 * softmaxes sum to one over m, so the row sum is always (1-g) + g = 1.  The bias b is the same for all m, so the output
 * does not depend on it and its gradient is zero; it exists so that published checkpoints can be loaded.
 *
 * Blocks from convit_local_layers on use softmax attention, and the class token is added before the first of them.  No
 * block has biases of q, k and v. */
#include <math.h>
#include <stdlib.h>

#include "core/die.h"
#include "layers/papers.h"
#include "layers/attention.h"

typedef struct {
    int convit_local_layers;
} ConvitSettings;

static const ConfigEntry entries[] = {
    {CONFIG_FIELD(INT, ConvitSettings, convit_local_layers), "10", .section = "attention", .min = 1, .max = 256,
     .help = "Number of blocks of convit, from the first, with gated positional self-attention; the class token is "
             "added after them, and the later blocks use softmax attention"},
};

static const ConfigGroup convit_settings = {CONFIG_GROUP(ConvitSettings, entries), .change = CHANGE_NEVER};

typedef struct {
    float *v_w, *dv_w;           /* [M,M], directly after qk's [2M,M]: frame.qkv reads both as one matrix */
    float *pos_w, *dpos_w;       /* [H,3], of clips [H,5] */
    float *pos_b, *dpos_b;       /* [H] */
    float *gating, *dgating;     /* [H] */
    real *content;               /* [B,N,H,D] */
    float *lse;                  /* [B,H,N] */
    float *axes;                 /* [H,A] */
    float *daxes;                /* scratch [B,H,A+1] */
} Convit;

/* == Parameters =================================================================================================== */

/* The first K x K heads are initialised as a K x K convolution (section 3 of the paper): the exponent of head h1 + K h2
 * is -|(dx, dy) - (h2 - c, h1 - c)|^2 plus a constant, of clips with -dt^2, too.  The other heads are initialised at
 * random. */
static void convolution(float *x, const Param *p, uint64_t seed, uint32_t tensor) {
    (void)seed, (void)tensor;
    int K = (int)sqrt((double)p->shape[0]), features = p->shape[1];
    float c = (float)(K - 1) / 2;
    for (int head = 0; head < K * K; head++, x += features) {
        x[0] = 2 * ((float)(head / K) - c);
        x[1] = 2 * ((float)(head % K) - c);
        x[2] = -1;
        if (features > 3) x[3] = 0;
        if (features > 3) x[4] = -1;
    }
}

/* Rejects widths that would leave a gap between qk and v in the arena. */
static void convit_check(const Attention *a) {
    if (a->M % 4) config_reject(a->settings, "dim", "{dim=%d} is not a multiple of 4, which {attn=%s} needs", a->M, a->op->name);
}

static void convit_declare(Attention *a, Params *params) {
    Convit *s = a->state;
    int M = a->M, H = a->H;
    projection_declare_weight(&a->frame.qkv, params, a->prefix, "qk", M, 2 * M);
    a->frame.qkv.out = 3 * M;
    params_declare(params, (Param){.value = &s->v_w, .grad = &s->dv_w, .named = {a->prefix, "v.weight"},
                                   .init = INIT_TRUNC_NORMAL, .decay = true, .shape = {M, M}, .draw = identity_matrix});
    projection_declare(&a->frame.proj, params, a->prefix, "proj", M, M);
    params_declare(params, (Param){.value = &s->pos_w, .grad = &s->dpos_w, .named = {a->prefix, "pos_proj.weight"},
                                   .init = INIT_TRUNC_NORMAL, .decay = true, .shape = {H, position_features(a->grid)},
                                   .draw = convolution, .time = {TIME_ADDED, 1, a->grid.frames > 1 ? 2 : 0, 3, false}});
    params_declare(params, (Param){.value = &s->pos_b, .grad = &s->dpos_b, .named = {a->prefix, "pos_proj.bias"},
                                   .init = INIT_ZEROS, .shape = {H}});
    params_declare(params, (Param){.value = &s->gating, .grad = &s->dgating, .named = {a->prefix, "gating_param"},
                                   .init = INIT_ONES, .shape = {H}});
}

/* == Activations ================================================================================================== */

static void convit_plan(Attention *a, Plan *plan, int B) {
    Convit *s = a->state;
    size_t tokens = attention_tokens(a, B), H = (size_t)a->H;
    size_t axes = position_axes(a->grid);
    plan_keep(plan, a->prefix, "content", &s->content, tokens * (size_t)a->M * sizeof(real));
    plan_keep(plan, a->prefix, "lse", &s->lse, tokens * H * sizeof(float));
    plan_keep(plan, a->prefix, "axes", &s->axes, H * axes * sizeof(float));
    if (plan->training)
        plan_borrow(plan, a->prefix, "daxes", &s->daxes, (size_t)B * H * (axes + 1) * sizeof(float));
    plan_workspace(plan, softmax_attention_workspace(a->N, a->D));
    plan_workspace(plan, position_attention_workspace(&(PositionAttention){a->grid, a->H, a->D}));
}

/* == Forward and backward ========================================================================================= */

static void convit_forward(const Attention *a, int B) {
    const Convit *s = a->state;
    AttentionShape shape = attention_shape(a, B);
    const QkvFrame *f = &a->frame;
    PositionAttention positions = {a->grid, a->H, a->D};
    softmax_attention_forward(s->content, s->lse, f->qkv_act, &shape);
    position_axes_forward(s->axes, s->pos_w, &positions);
    position_attention_forward(f->mix, s->content, f->qkv_act, s->axes, s->gating, &positions, B);
}

static void convit_backward(const Attention *a, int B) {
    const Convit *s = a->state;
    AttentionShape shape = attention_shape(a, B);
    const QkvFrame *f = &a->frame;
    PositionAttention positions = {a->grid, a->H, a->D};
    softmax_attention_backward(f->dqkv, f->dmix, s->content, s->lse, f->qkv_act, &shape);
    position_attention_backward(f->dqkv, s->daxes, f->dmix, s->content, f->qkv_act, s->axes, s->gating, &positions, B);
    position_axes_backward(s->dpos_w, s->dgating, s->daxes, s->axes, s->gating, &positions, B);
}

/* == Description ================================================================================================== */

static size_t convit_macs(const Attention *a) {
    int frames = a->grid.frames > 1 ? a->grid.frames : 0;
    size_t pairs = (size_t)a->N * (size_t)(2 * a->N + a->grid.rows + a->grid.columns + frames);
    return pairs * (size_t)a->M;
}

/* AttentionOp.spatial: a row of P. */
static void convit_spatial(const Attention *a, float *weights, int b, int head, int query) {
    const Convit *s = a->state;
    int T = a->grid.frames, Hg = a->grid.rows, Wg = a->grid.columns;
    size_t size = position_axes(a->grid), rows = (size_t)Hg * (size_t)Hg, squares = rows + (size_t)Wg * (size_t)Wg;
    float *axes = xcalloc(size, sizeof *axes, "attention picture");
    GridPlace from = grid_place(a->grid, query);
    (void)b;
    device_download(axes, s->axes + (size_t)head * size, size * sizeof *axes);
    const float *row = axes + from.y * Hg, *column = axes + rows + from.x * Wg, *frame = axes + squares + from.t * T;
    for (int m = 0; m < a->N; m++) {
        GridPlace to = grid_place(a->grid, m);
        weights[m] = row[to.y] * column[to.x] * (T > 1 ? frame[to.t] : 1);
    }
    free(axes);
}

static void convit_weights(const Attention *a, float *weights, int b, int head, int query) {
    const Convit *s = a->state;
    float *position = xcalloc((size_t)a->N, sizeof *position, "attention picture"), gating;
    device_download(&gating, s->gating + head, sizeof gating);
    convit_spatial(a, position, b, head, query);
    attention_qkv_row(a->frame.qkv_act, a, weights, b, head, query);
    for (int m = 0; m < a->N; m++) weights[m] = weights[m] / (1 + expf(gating)) + position[m] / (1 + expf(-gating));
    free(position);
}

extern const AttentionOp convit_op, softmax_op;

static int convit_class_block(const Config *settings) {
    return ((const ConvitSettings *)config_settings(settings, &convit_settings))->convit_local_layers;
}

static const AttentionOp *convit_in_block(const Config *settings, int block) {
    return block < convit_class_block(settings) ? &convit_op : &softmax_op;
}

const AttentionOp convit_op = {
    .name = "convit",
    .summary = "softmax attention and attention by position, mixed by a gate (ConViT)",
    .paper = PAPER_CONVIT,
    .settings = ATTENTION_SETTINGS(&convit_settings),
    .no_qkv_bias = true,
    .state_size = sizeof(Convit),
    .in_block = convit_in_block,
    .class_block = convit_class_block,
    .check = convit_check,
    .declare_qkv = convit_declare,
    .plan = convit_plan,
    .mix_forward = convit_forward,
    .mix_backward = convit_backward,
    .macs = convit_macs,
    .weights = convit_weights,
    .spatial = convit_spatial,
};
