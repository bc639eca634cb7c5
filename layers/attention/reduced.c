/* Attention to fewer keys (Wang et al. 2021, PVT, and 2022, PVTv2).  x [B,N,M] -> y [B,N,M], tokens on a grid
 * forward   1. z = what the grid is reduced to, L tokens (reduced_keys.h): by the setting reduction, or by
 *                reduction_cells in every stage
 *           2. q = x Wq^T + b,  k, v = z Wkv^T + b   3. mix_n = sum_l softmax_l(q_n.k_l / sqrt D) v_l
 *           4. y = mix Wproj^T + b
 * backward  4. dmix   3. dq, dk, dv from the saved log-sum-exp   2. dz, dx   1. dx += the gradient through z
 * saves     q, kv, mix, lse [B,H,N], and what reduced_keys.h saves.  Parameter names are timm's (pvt_v2).
 * Of clips every frame is reduced by itself, and a query attends to the keys of all frames. */
#include <stdlib.h>

#include "core/die.h"
#include "layers/papers.h"
#include "layers/attention/reduced_keys.h"

typedef struct {
    int reduction_cells;
} CellSettings;

static const ConfigEntry entries[] = {
    {CONFIG_FIELD(INT, CellSettings, reduction_cells), "0", .section = "attention", .min = 0, .max = 64,
     .shapeless = true,
     .help = "Reduced attention averages the keys of a stage to a grid with this many cells a side, in place of "
             "reduction (7 in PVTv2's linear form)"},
};
static const ConfigGroup cell_settings = {CONFIG_GROUP(CellSettings, entries), .change = CHANGE_NEVER};

typedef struct {
    ReducedFrame frame;
    float *lse; /* [B,H,N] kept */
} Reduced;

static int cells_of(const Attention *a) {
    return ((const CellSettings *)config_settings(a->settings, &cell_settings))->reduction_cells;
}

/* The class token is not in any square, so it can only be among keys that are the tokens themselves: in a last stage
 * with reduction 1. */
static void reduced_check(const Attention *a) {
    int cells = cells_of(a), r = cells ? 1 : reduction_of(a);
    if (a->N > grid_tokens(a->grid) && (cells || r > 1))
        config_reject(a->settings, "pool", "{pool} has a class token, which is in none of the squares or cells that "
                      "are stage %d's keys with {attn=%s}: use pool gap, or reduction 1 there", a->place.stage,
                      a->op->name);
}

static void reduced_declare(Attention *a, Params *params) {
    Reduced *s = a->state;
    int cells = cells_of(a);
    reduced_frame_declare(&s->frame, a, params, cells ? 1 : reduction_of(a), cells);
}

static MaskedAttention masked_shape(const Reduced *s, const Attention *a, int B) {
    return (MaskedAttention){.B = B, .H = a->H, .D = a->D, .Q = a->N, .grid = s->frame.keys.grid, .q_row = a->M,
                             .kv_row = 2 * a->M, .dropout = a->dropout};
}

static void reduced_plan(Attention *a, Plan *plan, int B) {
    Reduced *s = a->state;
    reduced_frame_plan(&s->frame, a, plan, B);
    plan_keep(plan, a->prefix, "lse", &s->lse, attention_head_floats(a, B));
    plan_workspace(plan, masked_attention_workspace((MaskedAttention[]){masked_shape(s, a, B)}));
}

static void reduced_follow_grid(Attention *a) { reduced_frame_follow_grid(&((Reduced *)a->state)->frame, a); }

static MaskedInputs inputs_of(const Reduced *s, const Attention *a) {
    return (MaskedInputs){s->frame.q_act, s->frame.kv_act, s->frame.kv_act + a->M};
}

static void reduced_forward(const Attention *a, real *y, const real *x, int B) {
    const Reduced *s = a->state;
    reduced_frame_forward_in(&s->frame, a, x, B);
    masked_attention_forward(s->frame.mix, s->lse, (MaskedInputs[]){inputs_of(s, a)}, NULL,
                             (MaskedAttention[]){masked_shape(s, a, B)});
    projection_forward(&s->frame.proj, y, s->frame.mix, attention_tokens(a, B));
}

static void reduced_backward(const Attention *a, real *dx, const real *dy, const real *x, int B) {
    const Reduced *s = a->state;
    const ReducedFrame *f = &s->frame;
    projection_backward(&f->proj, f->dmix, dy, f->mix, attention_tokens(a, B));
    masked_attention_backward(&(MaskedGradients){f->dq, f->dkv, f->dkv + a->M}, NULL, f->dmix, f->mix, s->lse,
                              (MaskedInputs[]){inputs_of(s, a)}, NULL, (MaskedAttention[]){masked_shape(s, a, B)});
    reduced_frame_backward_in(f, a, dx, x, B);
}

static size_t reduced_macs(const Attention *a) {
    const Reduced *s = a->state;
    size_t L = reduced_keys_count(&s->frame.keys, 1);
    return reduced_frame_macs(&s->frame, a) + 2 * (size_t)a->N * L * (size_t)a->M;
}

/* == Pictures ===================================================================================================== */

static void reduced_weights(const Attention *a, float *weights, int b, int head, int query) {
    const Reduced *s = a->state;
    int L = grid_tokens(s->frame.keys.grid);
    size_t M = (size_t)a->M, first = (size_t)(head * a->D);
    float *scores = xcalloc((size_t)L, sizeof *scores, "attention picture");
    attention_softmax(scores, s->frame.q_act + ((size_t)b * (size_t)a->N + (size_t)query) * M + first,
                      s->frame.kv_act + (size_t)b * (size_t)L * 2 * M + first, L, 2 * M, a->D);
    reduced_keys_spread(&s->frame.keys, a, weights, scores);
    free(scores);
}

const AttentionOp reduced_op = {
    .name = "reduced",
    .summary = "softmax over fewer keys: strided convolution or averages (PVT, PVTv2)",
    .paper = PAPER_PVT,
    .settings = ATTENTION_SETTINGS(&reduction_settings, &cell_settings),
    .off_grid = true,
    .any_grid = true,
    .drops_weights = true,
    .state_size = sizeof(Reduced),
    .check = reduced_check,
    .declare = reduced_declare,
    .plan = reduced_plan,
    .follow_grid = reduced_follow_grid,
    .forward = reduced_forward,
    .backward = reduced_backward,
    .macs = reduced_macs,
    .weights = reduced_weights,
};
