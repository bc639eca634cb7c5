/* Multi-scale attention (Li et al. 2022, MViTv2).  x [B,N,M] -> y [B,N,M], tokens on a grid
 * forward   1. q,k,v = x Wqkv^T + b
 *           2. depthwise 3x3 of each over the grid, k's and v's with the stride kv_stride, which leaves L of them; in
 *              clips time_kernel frames long, and every frame has its rows and columns of keys
 *           3. layer norm of each, head by head   4. o_n = sum_m softmax_m(q_n.k_m / sqrt D) v_m
 *           5. mix = o + q   6. y = mix Wproj^T + b
 * backward  6. dmix   4. dq, dk, dv   5. dq += dmix   3. 2. 1. dx
 * saves     qkv, pooled (step 2), normed (step 3), o, lse, mix.
 *
 * The LiSA paper says that its convattn block "downsamples the query and key to 14 x 14"; the multiply-adds in its
 * Table 4 are those of downsampled keys and values, as in MViTv2, with a query for every token.
 *
 * MViTv2's models also add relative positions to the scores, which LiSA's parameter count leaves no room for.
 * Each channel has its own 3x3 weights, which the LiSA paper's parameter count implies; in MViTv2 the heads share them.
 * The heads share the weights of the norms.  k's norm has no bias, because a bias would add the same number to all
 * scores of a query, which does not change the softmax. */
#include <stdlib.h>

#include "core/die.h"
#include "layers/papers.h"
#include "layers/attention.h"
#include "layers/layer_norm.h"
#include "layers/depthwise.h"

typedef struct {
    int kv_stride;
} ConvattnSettings;

#define F(KIND, field) CONFIG_FIELD(KIND, ConvattnSettings, field)
static const ConfigEntry entries[] = {
    {F(INT, kv_stride), "1", .section = "attention", .min = 1, .max = 4096,
     .help = "Stride of convattn's convolutions of k and v: 2 leaves a quarter of the keys (LiSA's Table 4 has 14 x 14 "
             "of them: 2 for 28 x 28 tokens, 4 for 56 x 56)"},
};
#undef F
static const ConfigGroup convattn_settings = {CONFIG_GROUP(ConvattnSettings, entries), .change = CHANGE_NEVER};

static const float EPSILON = 1e-6f;

typedef struct {
    DepthwiseLayer pool;       /* [3M,1,3,3]: q's, k's and v's channels */
    int stride;
    Grid keys;                 /* L of them */
    int batch;                 /* planned number of images */
    NormPair norm[3];          /* of D; k's has no bias */
    real *pooled, *normed;     /* kept: [B,N,3,M], or with a stride [B,N,M] and then [B,L,2,M] */
    real *o;                   /* [B,N,M] kept */
    float *lse;                /* [B,H,N] kept */
    real *dnormed;             /* scratch, laid out like normed */
} Convattn;

static void convattn_declare(Attention *a, Params *params) {
    Convattn *s = a->state;
    int M = a->M;
    s->stride = ((const ConvattnSettings *)config_settings(a->settings, &convattn_settings))->kv_stride;
    s->keys = (Grid){a->grid.frames, convolution_side(a->grid.rows, s->stride),
                     convolution_side(a->grid.columns, s->stride)};
    depthwise_declare(&s->pool, params, a->prefix, "pool",
                      (Depthwise){a->grid, 3 * M, 3, 3 * M, 3 * M, 3 * M, a->place.time_kernel}, false);
    layer_norm_declare(&s->norm[0], params, a->prefix, "norm_q", a->D, false);
    params_declare(params, (Param){.value = &s->norm[1].w, .grad = &s->norm[1].dw, .init = INIT_ONES,
                                   .named = {a->prefix, "norm_k.weight"}, .shape = {a->D}});
    layer_norm_declare(&s->norm[2], params, a->prefix, "norm_v", a->D, false);
}

/* The shape of attention of N queries to L keys. */
static MaskedAttention strided(const Convattn *s, const Attention *a, int B) {
    Grid keys = {1, s->keys.frames * s->keys.rows, s->keys.columns};
    return (MaskedAttention){.B = B, .H = a->H, .D = a->D, .Q = a->N, .grid = keys, .q_row = a->M, .kv_row = 2 * a->M};
}

/* The offset of part i (0: q, 1: k, 2: v) in pooled and in normed. */
static size_t part_at(const Convattn *s, const Attention *a, int i) {
    size_t M = (size_t)a->M, q = (size_t)s->batch * (size_t)a->N * M;
    return s->stride == 1 ? (size_t)i * M : i == 0 ? 0 : q + (size_t)(i - 1) * M;
}

static HeadsNorm norm_of(const Convattn *s, const Attention *a, int i, int B) {
    int rows = i ? grid_tokens(s->keys) : a->N, row = s->stride == 1 ? 3 * a->M : i ? 2 * a->M : a->M;
    return (HeadsNorm){(size_t)B * (size_t)rows, row, a->H, a->D, EPSILON};
}

static void convattn_plan(Attention *a, Plan *plan, int B) {
    Convattn *s = a->state;
    s->batch = B;
    size_t row = (size_t)B * (size_t)a->M * sizeof(real), bytes = (size_t)a->N * row;
    size_t parts = bytes + 2 * (size_t)grid_tokens(s->keys) * row;
    plan_keep(plan, a->prefix, "pooled", &s->pooled, parts);
    plan_pair(plan, a->prefix, "normed", &s->normed, &s->dnormed, parts);
    plan_keep(plan, a->prefix, "o", &s->o, bytes);
    plan_keep(plan, a->prefix, "lse", &s->lse, attention_head_floats(a, B));
    plan_workspace(plan, depthwise_workspace(&s->pool.shape));
    plan_workspace(plan, heads_norm_workspace(a->D));
    plan_workspace(plan, s->stride > 1 ? masked_attention_workspace((MaskedAttention[]){strided(s, a, B)})
                                       : softmax_attention_workspace(a->N, a->D));
}

/* The convolutions of q's M channels, and of k's and v's with their stride. */
static Depthwise q_window(const Convattn *s, const Attention *a) {
    Depthwise window = s->pool.shape;
    window.C = window.period = window.y_row = a->M;
    return window;
}
static StridedDepthwise kv_window(const Convattn *s, const Attention *a) {
    Depthwise window = s->pool.shape;
    window.C = window.period = window.y_row = 2 * a->M;
    return (StridedDepthwise){window, s->stride};
}

/* The number of weights of q's channels, which come before those of k and v. */
static size_t own_weights(const Convattn *s, const Attention *a) {
    return (size_t)depthwise_taps(&s->pool.shape) * (size_t)a->M;
}

static void pool_forward_all(const Convattn *s, const Attention *a, int B) {
    const real *qkv = a->frame.qkv_act;
    if (s->stride == 1) {
        depthwise_forward(s->pooled, NULL, qkv, s->pool.w, NULL, &s->pool.shape, B);
        return;
    }
    Depthwise q = q_window(s, a);
    StridedDepthwise kv = kv_window(s, a);
    depthwise_forward(s->pooled, NULL, qkv, s->pool.w, NULL, &q, B);
    strided_depthwise_forward(s->pooled + part_at(s, a, 1), qkv + a->M, s->pool.w + own_weights(s, a), &kv, B);
}

static void pool_backward_all(const Convattn *s, const Attention *a, int B) {
    const QkvFrame *f = &a->frame;
    if (s->stride == 1) {
        depthwise_backward(f->dqkv, NULL, s->pool.dw, NULL, s->dnormed, f->qkv_act, s->pool.w, &s->pool.shape, B);
        return;
    }
    Depthwise q = q_window(s, a);
    StridedDepthwise kv = kv_window(s, a);
    depthwise_backward(f->dqkv, NULL, s->pool.dw, NULL, s->dnormed, f->qkv_act, s->pool.w, &q, B);
    strided_depthwise_backward(f->dqkv + a->M, s->pool.dw + own_weights(s, a), s->dnormed + part_at(s, a, 1),
                               f->qkv_act + a->M, s->pool.w + own_weights(s, a), &kv, B);
}

static MaskedInputs inputs_of(const Convattn *s, const Attention *a) {
    return (MaskedInputs){s->normed, s->normed + part_at(s, a, 1), s->normed + part_at(s, a, 2)};
}

static void convattn_forward(const Attention *a, int B) {
    const Convattn *s = a->state;
    AttentionShape shape = attention_shape(a, B);
    int M = a->M;
    pool_forward_all(s, a, B);
    for (int i = 0; i < 3; i++) {
        HeadsNorm norm = norm_of(s, a, i, B);
        size_t at = part_at(s, a, i);
        heads_norm_forward(s->normed + at, s->pooled + at, s->norm[i].w, s->norm[i].b, &norm);
    }
    if (s->stride == 1)
        softmax_attention_forward(s->o, s->lse, s->normed, &shape);
    else
        masked_attention_forward(s->o, s->lse, (MaskedInputs[]){inputs_of(s, a)}, NULL,
                                 (MaskedAttention[]){strided(s, a, B)});
    rows_add(a->frame.mix, s->o, s->normed, attention_tokens(a, B), M, M, M, s->stride == 1 ? 3 * M : M);
}

static void convattn_backward(const Attention *a, int B) {
    const Convattn *s = a->state;
    AttentionShape shape = attention_shape(a, B);
    const QkvFrame *f = &a->frame;
    int M = a->M, q_row = s->stride == 1 ? 3 * M : M;
    if (s->stride == 1)
        softmax_attention_backward(s->dnormed, f->dmix, s->o, s->lse, s->normed, &shape);
    else
        masked_attention_backward(&(MaskedGradients){s->dnormed, s->dnormed + part_at(s, a, 1),
                                                     s->dnormed + part_at(s, a, 2)},
                                  NULL, f->dmix, s->o, s->lse, (MaskedInputs[]){inputs_of(s, a)}, NULL,
                                  (MaskedAttention[]){strided(s, a, B)});
    rows_add(s->dnormed, s->dnormed, f->dmix, attention_tokens(a, B), M, q_row, q_row, M);
    for (int i = 0; i < 3; i++) {
        HeadsNorm norm = norm_of(s, a, i, B);
        size_t at = part_at(s, a, i);
        heads_norm_backward(s->dnormed + at, s->norm[i].dw, s->norm[i].db, s->dnormed + at, s->pooled + at,
                            s->norm[i].w, &norm);
    }
    pool_backward_all(s, a, B);
}

static size_t convattn_macs(const Attention *a) {
    const Convattn *s = a->state;
    size_t N = (size_t)a->N, L = (size_t)grid_tokens(s->keys), M = (size_t)a->M;
    return (size_t)depthwise_taps(&s->pool.shape) * (N + 2 * L) * M + 2 * N * L * M;
}

/* The weights of step 4, without the addition of q.  With a stride a key's weight is at the token in the middle of
 * its window, and other tokens have none. */
static void convattn_weights(const Attention *a, float *weights, int b, int head, int query) {
    const Convattn *s = a->state;
    int L = grid_tokens(s->keys), q_row = norm_of(s, a, 0, 1).row, k_row = norm_of(s, a, 1, 1).row;
    size_t first = (size_t)head * (size_t)a->D;
    float *scores = xcalloc((size_t)L, sizeof *scores, "attention picture");
    attention_softmax(scores, s->normed + ((size_t)b * (size_t)a->N + (size_t)query) * (size_t)q_row + first,
                      s->normed + part_at(s, a, 1) + (size_t)b * (size_t)L * (size_t)k_row + first, L, (size_t)k_row,
                      a->D);
    for (int m = 0; m < a->N; m++) weights[m] = 0;
    for (int l = 0; l < L; l++) {
        GridPlace key = grid_place(s->keys, l);
        weights[((key.t * a->grid.rows) + key.y * s->stride) * a->grid.columns + key.x * s->stride] = scores[l];
    }
    free(scores);
}

const AttentionOp convattn_op = {
    .name = "convattn",
    .summary = "softmax on convolved q, k and v, to which q is added (MViTv2)",
    .paper = PAPER_MVITV2,
    .settings = ATTENTION_SETTINGS(&convattn_settings),
    .state_size = sizeof(Convattn),
    .declare = convattn_declare,
    .plan = convattn_plan,
    .mix_forward = convattn_forward,
    .mix_backward = convattn_backward,
    .macs = convattn_macs,
    .weights = convattn_weights,
};
