/* Scaled dot-product attention (Vaswani et al. 2017), per head.  x [B,N,M] -> y [B,N,M]
 * forward   1. q,k,v = x Wqkv^T + b   2. mix_n = sum_m softmax_m(q_n.k_m / sqrt D) v_m   3. y = mix Wproj^T + b
 * backward  3. dmix   2. dq, dk, dv from the saved log-sum-exp, tile by tile   1. dx
 * saves     qkv, mix, lse [B,H,N].  Parameter names are timm's.
 * rpe shared or heads: a learned bias for every offset on the grid is added to the scores, from one table for all heads
 * or one for each; pairs with the class token have no bias.  In a detector, padding has weight 0.  The weights may have
 * dropout, but not together with biases. */
#include <math.h>
#include <stdlib.h>

#include "core/die.h"
#include "core/integers.h"
#include "layers/papers.h"
#include "layers/attention.h"

typedef enum { RPE_NONE, RPE_SHARED, RPE_HEADS } Rpe;

typedef struct {
    Rpe rpe;
} RpeSettings;

static const ConfigEntry entries[] = {
    {CONFIG_FIELD(CHOICE, RpeSettings, rpe), "none", CONFIG_CHOICES("none", "shared", "heads"), .section = "attention",
     .help = "Relative position bias of softmax attention: none, one table shared by all heads, or one for each head"},
};

static const ConfigGroup rpe_settings = {CONFIG_GROUP(RpeSettings, entries), .change = CHANGE_NEVER};

typedef struct {
    float *lse;           /* [B,H,N] */
    RelativeBias bias;
    bool has_table;
    float *table, *dtable; /* [tables,2Hg-1,2Wg-1], of clips [tables,2T-1,2Hg-1,2Wg-1], or NULL without a bias */
} Softmax;

static void softmax_declare(Attention *a, Params *params) {
    Softmax *s = a->state;
    const RpeSettings *settings = config_settings(a->settings, &rpe_settings);
    Rpe rpe = settings && !a->detector ? settings->rpe : RPE_NONE;
    s->bias = (RelativeBias){a->grid, a->N - grid_tokens(a->grid), rpe == RPE_SHARED ? 1 : a->H};
    s->has_table = rpe != RPE_NONE;
    if (s->has_table && a->drops)
        config_reject(a->settings, "attn_dropout", "weights with the position biases of {rpe} have no dropout: use "
                                                   "attn_dropout 0");
    if (!s->has_table) return;
    Grid offsets = grid_offsets(a->grid);
    int clip = a->grid.frames > 1;
    params_declare(params, (Param){.value = &s->table, .grad = &s->dtable, .named = {a->prefix, "rpe.weight"},
                                   .init = INIT_TRUNC_NORMAL, .grid = {1 + clip, 2, 0, offsets},
                                   .shape = {s->bias.tables, clip ? offsets.frames : 0, offsets.rows, offsets.columns},
                                   .time = {TIME_COPIES, 1, offsets.frames, 0, true}});
}

/* Padding, or dropout of the weights. */
static bool is_masked(const Attention *a) { return a->detector || a->dropout.rate > 0; }

/* The shape of masked attention in a detector, or with all tokens as one sequence. */
static MaskedAttention masked_shape(const Attention *a, int B) {
    MaskedAttention s = {.B = B, .H = a->H, .D = a->D, .Q = a->N, .grid = {1, 1, a->N}, .q_row = 3 * a->M,
                         .kv_row = 3 * a->M, .dropout = a->dropout};
    if (!a->detector) return s;
    s.grid = a->grid;
    s.cells = a->detector->cells;
    s.dropout = a->detector->dropout;
    return s;
}

static MaskedInputs masked_inputs(const Attention *a) {
    const real *q = a->frame.qkv_act;
    return (MaskedInputs){q, q + a->M, q + 2 * a->M};
}

static size_t softmax_workspace(const Attention *a, int B) {
    const Softmax *s = a->state;
    size_t masked = a->detector || a->drops ? masked_attention_workspace((MaskedAttention[]){masked_shape(a, B)}) : 0;
    if (a->detector) return masked;
    size_t whole = s->has_table ? biased_attention_workspace(&s->bias, a->D) : softmax_attention_workspace(a->N, a->D);
    return larger_size(whole, masked);
}

static void softmax_plan(Attention *a, Plan *plan, int B) {
    Softmax *s = a->state;
    plan_keep(plan, a->prefix, "lse", &s->lse, attention_head_floats(a, B));
    plan_workspace(plan, softmax_workspace(a, B));
}

static void softmax_forward(const Attention *a, int B) {
    const Softmax *s = a->state;
    AttentionShape shape = attention_shape(a, B);
    if (is_masked(a))
        masked_attention_forward(a->frame.mix, s->lse, (MaskedInputs[]){masked_inputs(a)}, NULL,
                                 (MaskedAttention[]){masked_shape(a, B)});
    else if (s->has_table)
        biased_attention_forward(a->frame.mix, s->lse, a->frame.qkv_act, s->table, &s->bias, &shape);
    else
        softmax_attention_forward(a->frame.mix, s->lse, a->frame.qkv_act, &shape);
}

static void softmax_backward(const Attention *a, int B) {
    const Softmax *s = a->state;
    AttentionShape shape = attention_shape(a, B);
    real *dq = a->frame.dqkv;
    if (is_masked(a))
        masked_attention_backward(&(MaskedGradients){dq, dq + a->M, dq + 2 * a->M}, NULL, a->frame.dmix, a->frame.mix,
                                  s->lse, (MaskedInputs[]){masked_inputs(a)}, NULL,
                                  (MaskedAttention[]){masked_shape(a, B)});
    else if (s->has_table)
        biased_attention_backward(a->frame.dqkv, s->dtable, a->frame.dmix, a->frame.mix, s->lse, a->frame.qkv_act,
                                  s->table, &s->bias, &shape);
    else
        softmax_attention_backward(a->frame.dqkv, a->frame.dmix, a->frame.mix, s->lse, a->frame.qkv_act, &shape);
}

static const char *softmax_bound(const Attention *a) { return ((const Softmax *)a->state)->has_table ? "rpe" : NULL; }

static void softmax_weights(const Attention *a, float *weights, int b, int head, int query) {
    const Softmax *s = a->state;
    int prefix = s->bias.prefix, n = query - prefix, tokens = grid_tokens(a->grid);
    Grid g = a->grid, offsets = grid_offsets(g);
    size_t size = (size_t)grid_tokens(offsets);
    float sum = 0;
    attention_qkv_row(a->frame.qkv_act, a, weights, b, head, query);
    if (!s->has_table || n < 0) return;
    float *table = xcalloc(size, sizeof *table, "attention picture");
    device_download(table, s->table + (s->bias.tables > 1 ? (size_t)head * size : 0), size * sizeof *table);
    GridPlace from = grid_place(g, n);
    for (int m = 0; m < tokens; m++) {
        GridPlace to = grid_place(g, m);
        int row = (to.t - from.t + g.frames - 1) * offsets.rows + to.y - from.y + g.rows - 1;
        weights[prefix + m] *= expf(table[row * offsets.columns + to.x - from.x + g.columns - 1]);
    }
    for (int m = 0; m < a->N; m++) sum += weights[m];
    for (int m = 0; m < a->N; m++) weights[m] /= sum;
    free(table);
}

const AttentionOp softmax_op = {
    .name = "softmax",
    .summary = "scaled dot-product attention (DeiT)",
    .paper = PAPER_ATTENTION,
    .grid_settings = ATTENTION_SETTINGS(&rpe_settings),
    .off_grid = true,
    .takes_mask = true,
    .drops_weights = true,
    .any_grid = true,
    .state_size = sizeof(Softmax),
    .declare = softmax_declare,
    .plan = softmax_plan,
    .bound_to_grid = softmax_bound,
    .mix_forward = softmax_forward,
    .mix_backward = softmax_backward,
    .macs = attention_pair_macs,
    .weights = softmax_weights,
};
