/* Attention to fewer keys (Wang et al. 2021, PVT, and 2022, PVTv2).  x [B,N,M] -> y [B,N,M], tokens on a grid
 * forward   1. z = what the grid is reduced to, L tokens:
 *                reduction r > 1   norm(convolution r x r with stride r of x); rows and columns beyond the last whole
 *                                  square are left out
 *                reduction 1       x
 *                reduction_cells c gelu(norm(W a + b)), where a are the means of c x c cells, in every stage
 *           2. q = x Wq^T + b,  k, v = z Wkv^T + b   3. mix_n = sum_l softmax_l(q_n.k_l / sqrt D) v_l
 *           4. y = mix Wproj^T + b
 * backward  4. dmix   3. dq, dk, dv from the saved log-sum-exp   2. dz, dx   1. dx += the gradient through z
 * saves     q, kv, mix, lse [B,H,N], z and what is before its norm.  Parameter names are timm's (pvt_v2).
 * Of clips every frame is reduced by itself, and a query sees the keys of all frames. */
#include <math.h>
#include <stdlib.h>

#include "core/die.h"
#include "layers/attention/attention.h"
#include "layers/layer_norm.h"
#include "layers/projection.h"

typedef struct {
    ConfigInts reduction;
    int reduction_cells;
} ReducedSettings;

#define F(KIND, field) CONFIG_FIELD(KIND, ReducedSettings, field)
static const ConfigEntry entries[] = {
    {F(INTS, reduction), "1", .section = "attention", .min = 1, .max = 64,
     .help = "Side of the squares of tokens that become one key in reduced attention; with several stages one number or "
             "a list (PVT: 8,4,2,1)"},
    {F(INT, reduction_cells), "0", .min = 0, .max = 64,
     .help = "Reduced attention to the means of so many cells to a side instead, in every stage (PVTv2's linear form: "
             "7)"},
};
#undef F
static const ConfigGroup reduced_settings = {CONFIG_GROUP(ReducedSettings, entries)};

typedef struct {
    Projection q, kv, proj, sr; /* sr: of squares as rows, or of means */
    NormPair norm;
    int cells;                  /* to a side, or 0 */
    Unfold squares;             /* of a frame */
    Grid frame;                 /* tokens of a frame */
    Grid keys;                  /* of a frame, or all tokens in a row */
    int frames;
    real *q_act, *kv_act, *mix; /* kept: [B,N,M], [B,L,2,M], [B,N,M] */
    float *lse;                 /* [B,H,N] kept */
    real *raw, *z;              /* [B,L,M] kept: before the norm; what k and v are made of */
    float *mean, *rstd;         /* [B,L] kept */
    real *cols;                 /* scratch: [B*L,M*r*r], or the means [B,L,M] */
    real *dq, *dkv, *dmix;      /* scratch, as above */
    real *dz, *draw, *dx;       /* scratch: [B,L,M] twice; [B,N,M], the gradient through z */
} Reduced;

static const ReducedSettings *settings_of(const Attention *a) {
    return config_settings(a->settings, &reduced_settings);
}

static int reduction_of(const Attention *a) {
    return attention_stage_number(a, "reduction", &settings_of(a)->reduction);
}

/* Are k and v made of other tokens than q? */
static bool reduces(const Reduced *s) { return s->cells > 0 || s->squares.stride > 1; }

/* The class token is no part of any square, so it has a place only among keys that are the tokens themselves: in a last
 * stage with reduction 1. */
static int class_at_entry(const Config *settings) {
    (void)settings;
    return 0;
}

static void reduced_check(const Attention *a) {
    int r = reduction_of(a);
    if (settings_of(a)->reduction_cells == 0 && (r > a->grid.rows || r > a->grid.columns))
        config_reject(a->settings, "reduction", "%d is more than a side of stage %d's %dx%d tokens", r, a->stage,
                      a->grid.rows, a->grid.columns);
    if (a->N > grid_tokens(a->grid) && (settings_of(a)->reduction_cells || r > 1))
        config_reject(a->settings, "pool", "a class token is in no square or cell of stage %d's keys: use pool gap, or "
                      "reduction 1 there", a->stage);
}

static void reduced_declare(Attention *a, Params *params) {
    Reduced *s = a->state;
    int M = a->M;
    s->cells = settings_of(a)->reduction_cells;
    int r = s->cells ? 1 : reduction_of(a);
    s->frames = a->grid.frames;
    s->frame = (Grid){1, a->grid.rows, a->grid.columns};
    s->squares = (Unfold){a->grid.rows, a->grid.columns, M, r, r, 0, false, 0, 0, 0};
    s->keys = s->cells ? (Grid){1, s->cells, s->cells} : r > 1 ? unfold_grid(&s->squares) : (Grid){1, 1, a->N};
    projection_declare(&s->q, params, a->prefix, "q", M, M);
    projection_declare(&s->kv, params, a->prefix, "kv", M, 2 * M);
    projection_declare(&s->proj, params, a->prefix, "proj", M, M);
    if (!reduces(s)) return;
    int fan = M * r * r;
    s->sr = (Projection){.in = fan, .out = M};
    params_declare_fan(params, &s->sr.w, &s->sr.dw, a->prefix, "sr.weight", fan, true, 4, (int[]){M, M, r, r});
    if (!s->cells) params_shaped_by(params, "reduction", r, a->stage);
    params_declare_fan(params, &s->sr.b, &s->sr.db, a->prefix, "sr.bias", fan, false, 1, (int[]){M});
    layer_norm_declare(&s->norm, params, a->prefix, "norm", M, false);
}

/* == Activations ================================================================================================== */

/* All keys of an image or clip. */
static Grid all_keys(const Reduced *s) {
    return reduces(s) ? (Grid){1, s->frames * s->keys.rows, s->keys.columns} : s->keys;
}

static size_t keys_of(const Reduced *s, int B) { return (size_t)B * (size_t)grid_tokens(all_keys(s)); }

static MaskedAttention shape_of(const Reduced *s, const Attention *a, int B) {
    return (MaskedAttention){.B = B, .H = a->H, .D = a->D, .Q = a->N, .grid = all_keys(s), .q_row = a->M,
                             .kv_row = 2 * a->M};
}

static LayerNorm norm_of(const Reduced *s, const Attention *a, int B) {
    return (LayerNorm){s->norm.w, s->norm.b, s->mean, s->rstd, keys_of(s, B), a->M, PYTORCH_NORM_EPS};
}

static void keys_plan(Reduced *s, const Attention *a, Plan *plan, int B) {
    size_t L = keys_of(s, B), bytes = L * (size_t)a->M * sizeof(real);
    plan_keep(plan, a->prefix, "raw", &s->raw, bytes);
    plan_keep(plan, a->prefix, "mean", &s->mean, L * sizeof(float));
    plan_keep(plan, a->prefix, "rstd", &s->rstd, L * sizeof(float));
    plan_keep(plan, a->prefix, "z", &s->z, bytes);
    plan_borrow(plan, a->prefix, "cols", &s->cols, L * (size_t)s->sr.in * sizeof(real));
    if (plan->training) {
        plan_borrow(plan, a->prefix, "dz", &s->dz, bytes);
        plan_borrow(plan, a->prefix, "draw", &s->draw, bytes);
    }
    plan_workspace(plan, layernorm_workspace(a->M));
}

static void reduced_plan(Attention *a, Plan *plan, int B) {
    Reduced *s = a->state;
    size_t bytes = (size_t)B * (size_t)a->N * (size_t)a->M * sizeof(real);
    size_t kv = 2 * keys_of(s, B) * (size_t)a->M * sizeof(real);
    PlanMark mark = plan_mark(plan);
    plan_keep(plan, a->prefix, "q", &s->q_act, bytes);
    plan_keep(plan, a->prefix, "kv", &s->kv_act, kv);
    plan_keep(plan, a->prefix, "mix", &s->mix, bytes);
    plan_keep(plan, a->prefix, "lse", &s->lse, (size_t)B * (size_t)a->H * (size_t)a->N * sizeof(float));
    if (reduces(s)) keys_plan(s, a, plan, B);
    if (plan->training) {
        plan_borrow(plan, a->prefix, "dq", &s->dq, bytes);
        plan_borrow(plan, a->prefix, "dkv", &s->dkv, kv);
        plan_borrow(plan, a->prefix, "dmix", &s->dmix, bytes);
        plan_borrow(plan, a->prefix, "dx", &s->dx, bytes);
    }
    plan_workspace(plan, masked_attention_workspace((MaskedAttention[]){shape_of(s, a, B)}));
    plan_release(plan, mark);
}

/* == Forward and backward ========================================================================================= */

/* The rows that sr projects. */
static void gather_squares(const Reduced *s, const Attention *a, const real *x, int B) {
    if (s->cells) overlapping_means_forward(s->cols, x, &(Cells){s->frame, s->keys}, B * s->frames, a->M);
    else unfold_forward(s->cols, x, &s->squares, B * s->frames);
}

/* Returns z. */
static const real *keys_forward(const Reduced *s, const Attention *a, const real *x, int B) {
    if (!reduces(s)) return x;
    LayerNorm norm = norm_of(s, a, B);
    gather_squares(s, a, x, B);
    projection_forward(&s->sr, s->raw, s->cols, norm.n);
    (s->cells ? layernorm_gelu_forward : layernorm_forward)(s->z, s->raw, &norm);
    return s->z;
}

static void reduced_forward(const Attention *a, real *y, const real *x, int B) {
    const Reduced *s = a->state;
    size_t n = (size_t)B * (size_t)a->N;
    const real *z = keys_forward(s, a, x, B);
    projection_forward(&s->q, s->q_act, x, n);
    projection_forward(&s->kv, s->kv_act, z, keys_of(s, B));
    masked_attention_forward(s->mix, s->lse, &(MaskedInputs){s->q_act, s->kv_act, s->kv_act + a->M}, NULL,
                             (MaskedAttention[]){shape_of(s, a, B)});
    projection_forward(&s->proj, y, s->mix, n);
}

/* From dz to s->dx, the gradient of x through z. */
static void keys_backward(const Reduced *s, const Attention *a, const real *x, int B) {
    LayerNorm norm = norm_of(s, a, B);
    if (s->cells) layernorm_gelu_backward(s->dz, s->dz, s->raw, &norm);
    add_layernorm_backward(s->draw, NULL, s->norm.dw, s->norm.db, NULL, s->dz, s->raw, NULL, &norm);
    gather_squares(s, a, x, B);
    projection_backward(&s->sr, NULL, s->draw, s->cols, norm.n);
    linear_backward_input(s->cols, s->draw, s->sr.w, &(LinearShape){norm.n, s->sr.in, s->sr.out, 0});
    if (s->cells) overlapping_means_backward(s->dx, s->cols, &(Cells){s->frame, s->keys}, B * s->frames, a->M);
    else unfold_backward(s->dx, s->cols, &s->squares, B * s->frames);
}

static void reduced_backward(const Attention *a, real *dx, const real *dy, const real *x, int B) {
    const Reduced *s = a->state;
    size_t n = (size_t)B * (size_t)a->N, M = (size_t)a->M;
    projection_backward(&s->proj, s->dmix, dy, s->mix, n);
    masked_attention_backward(&(MaskedGradients){s->dq, s->dkv, s->dkv + M}, NULL, s->dmix, s->mix, s->lse,
                              &(MaskedInputs){s->q_act, s->kv_act, s->kv_act + M}, NULL,
                              (MaskedAttention[]){shape_of(s, a, B)});
    projection_backward(&s->kv, reduces(s) ? s->dz : s->dx, s->dkv, reduces(s) ? s->z : x, keys_of(s, B));
    if (reduces(s)) keys_backward(s, a, x, B);
    projection_backward(&s->q, dx, s->dq, x, n);
    add_forward(dx, dx, s->dx, n * M);
}

static size_t reduced_macs(const Attention *a) {
    const Reduced *s = a->state;
    size_t N = (size_t)a->N, L = keys_of(s, 1);
    size_t keys = reduces(s) ? projection_macs(&s->sr, L) : 0;
    return keys + projection_macs(&s->q, N) + projection_macs(&s->kv, L) + 2 * N * L * (size_t)a->M +
           projection_macs(&s->proj, N);
}

/* == Pictures ===================================================================================================== */

/* Divides a key's weight among the tokens that it was made of. */
static void spread(const Reduced *s, const Attention *a, float *weights, int l, float weight) {
    if (!reduces(s)) {
        weights[l] += weight;
        return;
    }
    GridPlace key = grid_place((Grid){s->frames, s->keys.rows, s->keys.columns}, l);
    int i = key.y, j = key.x, r = s->squares.stride, first = key.t * grid_tokens(s->frame);
    TokenSpan rows = {i * r, (i + 1) * r}, columns = {j * r, (j + 1) * r};
    if (s->cells) {
        rows = cell_span(i, s->keys.rows, a->grid.rows);
        columns = cell_span(j, s->keys.columns, a->grid.columns);
    }
    float share = weight / (float)((rows.end - rows.begin) * (columns.end - columns.begin));
    for (int y = rows.begin; y < rows.end; y++)
        for (int x = columns.begin; x < columns.end; x++) weights[first + y * a->grid.columns + x] += share;
}

static void reduced_weights(const Attention *a, float *weights, int b, int head, int query) {
    const Reduced *s = a->state;
    int L = (int)keys_of(s, 1), M = a->M, D = a->D;
    float *q = xcalloc((size_t)M, sizeof *q, "attention picture");
    float *kv = xcalloc((size_t)L * 2 * (size_t)M, sizeof *kv, "attention picture");
    float *scores = xcalloc((size_t)L, sizeof *scores, "attention picture"), sum = 0, largest = -INFINITY;
    real_download(q, s->q_act + ((size_t)b * (size_t)a->N + (size_t)query) * (size_t)M, (size_t)M);
    real_download(kv, s->kv_act + (size_t)b * (size_t)L * 2 * (size_t)M, (size_t)L * 2 * (size_t)M);
    for (int l = 0; l < L; l++) {
        for (int d = head * D; d < (head + 1) * D; d++) scores[l] += q[d] * kv[(size_t)l * 2 * (size_t)M + (size_t)d];
        scores[l] /= sqrtf((float)D);
        largest = fmaxf(largest, scores[l]);
    }
    for (int l = 0; l < L; l++) sum += scores[l] = expf(scores[l] - largest);
    for (int m = 0; m < a->N; m++) weights[m] = 0;
    for (int l = 0; l < L; l++) spread(s, a, weights, l, scores[l] / sum);
    free(q);
    free(kv);
    free(scores);
}

const AttentionOp reduced_op = {
    .name = "reduced",
    .summary = "softmax to fewer keys: convolved squares or means of cells (PVT, PVTv2)",
    .settings = ATTENTION_SETTINGS(&reduced_settings),
    .needs_grid = true,
    .takes_frames = true,
    .class_block = class_at_entry,
    .state_size = sizeof(Reduced),
    .check = reduced_check,
    .declare = reduced_declare,
    .plan = reduced_plan,
    .forward = reduced_forward,
    .backward = reduced_backward,
    .macs = reduced_macs,
    .weights = reduced_weights,
};
