/* Lightweight structure-aware attention (the LiSA paper, equations 9 to 14).  x [B,N,M] -> y [B,N,M], tokens on a grid
 * forward   1. q,k,v = x Wqkv^T + b   2. q^ = q/|q|, k^ = k/|k|, head by head
 *           3. lisa, sa10, sa11: S[i,e] = sum_j sum_c q^[i,c] k^[j,c] wa[t(i,j),c,e],
 *                                mix[i,c] = sum_e S[i,e] (b[c,e] + sum_j wb[t(i,j),e] v[j,c])
 *              sa9:              mix_i = sum_j (q^_i.k^_j) r[t(i,j),h] v_j
 *           4. lisa: layer norm of mix   5. y = mix Wproj^T + b
 * backward  5. dmix   4. norm   3. dq^, dk^, dv and the tables   2. dq, dk   1. dx
 * saves     qkv, q^ and k^, 1/|q|, 1/|k|, S [B,H,E,N], mix; the norm's input and statistics.
 *
 * What t(i,j) is tells the operators apart (kernels/offsets.h): lisa's tables are circles over the tokens in a row
 * (lisa_fft 1d) or over the grid (2d), or windows around the query (lisa_kernel); sa9, sa10 and sa11 have Toeplitz
 * tables.  sa10's wa is the same for all channels.
 * The heads share wa, wb and b: the paper's parameter counts say so. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "layers/attention/attention.h"

static const float EPSILON = 1e-6f; /* of the layer norm */

static const LisaAlgorithm algorithms[] = {LISA_ALGORITHM(dense), LISA_ALGORITHM(fft)};
enum { ALGORITHMS = sizeof algorithms / sizeof *algorithms };

typedef struct {
    QkvFrame frame;
    Patterns patterns;
    const LisaAlgorithm *algorithm;
    bool normed;
    float *wa, *dwa;         /* [T,D,E]; sa10: [T,E] */
    float *wb, *dwb;         /* [T,E] */
    float *b, *db;           /* [D,E] */
    float *norm_w, *dnorm_w; /* [M] */
    float *norm_b, *dnorm_b; /* [M] */
    real *qk;                /* [B,N,2,H,D] kept */
    float *inverse;          /* [B,N,2,H] kept */
    real *s;                 /* [B,H,E,N] kept */
    real *sum;               /* [B,N,M] kept: what the norm reads */
    float *mean, *rstd;      /* [B,N] kept */
    real *dqk, *dsum;        /* scratch, [B,N,2,H,D] and [B,N,H,D] */
} Lisa;

static Offsets lisa_offsets(const Attention *a) {
    const AttentionConfig *c = &a->config;
    OffsetKind circular = !strcmp(c->lisa_fft, "2d") ? OFFSETS_TORUS : OFFSETS_CIRCLE;
    return (Offsets){c->lisa_kernel ? OFFSETS_LOCAL : circular, a->grid, c->lisa_kernel};
}

static Offsets toeplitz(const Attention *a) { return (Offsets){OFFSETS_TOEPLITZ, a->grid, 0}; }

static const LisaAlgorithm *algorithm_choose(const Attention *a, const Patterns *patterns) {
    const LisaAlgorithm *best = &algorithms[0];
    for (int i = 0; i < ALGORITHMS; i++) {
        double cost = algorithms[i].cost(patterns);
        if (!strcmp(algorithms[i].name, a->config.lisa_algo)) {
            if (isinf(cost))
                die_usage("lisa_algo %s: not for attn %s%s on this grid: use auto or dense", algorithms[i].name,
                          a->op->name, a->config.lisa_kernel ? " with a lisa_kernel" : "");
            return &algorithms[i];
        }
        if (cost < best->cost(patterns)) best = &algorithms[i];
    }
    return best;
}

/* Of the tensor declared last, whose first dimension is the offsets.  A window has the same offsets on every grid. */
static void offsets_on_grid(Params *params, const Offsets *o) {
    Grid positions = o->kind == OFFSETS_TOEPLITZ ? grid_offsets(o->grid) : o->grid;
    if (o->kind != OFFSETS_LOCAL) params_on_grid(params, (ParamGrid){0, 1, 0, positions});
}

static void declare(Attention *a, Params *params, Offsets offsets, bool per_channel, bool normed) {
    Lisa *s = a->state;
    int T = offsets_count(&offsets), D = a->D, E = a->config.lisa_patterns;
    qkv_declare(&s->frame, a, params);
    s->patterns = (Patterns){offsets, E, a->H, D, per_channel};
    s->normed = normed;
    s->algorithm = algorithm_choose(a, &s->patterns);
    if (per_channel)
        params_declare(params, &s->wa, &s->dwa, a->prefix, "lisa.wa", INIT_TRUNC_NORMAL, true, 3, (int[]){T, D, E});
    else
        params_declare(params, &s->wa, &s->dwa, a->prefix, "lisa.wa", INIT_TRUNC_NORMAL, true, 2, (int[]){T, E});
    offsets_on_grid(params, &offsets);
    params_declare(params, &s->wb, &s->dwb, a->prefix, "lisa.wb", INIT_TRUNC_NORMAL, true, 2, (int[]){T, E});
    offsets_on_grid(params, &offsets);
    params_declare(params, &s->b, &s->db, a->prefix, "lisa.b", INIT_TRUNC_NORMAL, true, 2, (int[]){D, E});
    if (!normed) return;
    params_declare(params, &s->norm_w, &s->dnorm_w, a->prefix, "norm.weight", INIT_ONES, false, 1, (int[]){a->M});
    params_declare(params, &s->norm_b, &s->dnorm_b, a->prefix, "norm.bias", INIT_ZEROS, false, 1, (int[]){a->M});
}

static void lisa_plan(Attention *a, Plan *plan, int B) {
    Lisa *s = a->state;
    size_t n = (size_t)B * (size_t)a->N, bytes = n * (size_t)a->M * sizeof(real);
    PlanMark mark = plan_mark(plan);
    qkv_plan(&s->frame, a, plan, B);
    plan_keep(plan, a->prefix, "qk", &s->qk, 2 * bytes);
    plan_keep(plan, a->prefix, "inverse", &s->inverse, n * 2 * (size_t)a->H * sizeof(float));
    plan_keep(plan, a->prefix, "s", &s->s, n * (size_t)a->H * (size_t)s->patterns.E * sizeof(real));
    if (s->normed) {
        plan_keep(plan, a->prefix, "sum", &s->sum, bytes);
        plan_keep(plan, a->prefix, "mean", &s->mean, n * sizeof(float));
        plan_keep(plan, a->prefix, "rstd", &s->rstd, n * sizeof(float));
        plan_workspace(plan, layernorm_workspace(a->M));
    } else {
        plan_alias(plan, &s->sum, &s->frame.mix);
    }
    if (plan->training) {
        plan_borrow(plan, a->prefix, "dqk", &s->dqk, 2 * bytes);
        if (s->normed) plan_borrow(plan, a->prefix, "dsum", &s->dsum, bytes);
    }
    plan_workspace(plan, s->algorithm->workspace(&s->patterns, B));
    plan_release(plan, mark);
}

static UnitLengths lengths_of(const Attention *a, int B) {
    return (UnitLengths){(size_t)B * (size_t)a->N, 2, a->H, a->D};
}

static LisaTables tables_of(const Lisa *s) { return (LisaTables){s->patterns, s->wa, s->wb, s->b}; }

static LayerNorm norm_of(const Lisa *s, const Attention *a, int B) {
    return (LayerNorm){s->norm_w, s->norm_b, s->mean, s->rstd, (size_t)B * (size_t)a->N, a->M, EPSILON};
}

static void lisa_forward(const Attention *a, real *y, const real *x, int B) {
    const Lisa *s = a->state;
    LayerNorm norm = norm_of(s, a, B);
    LisaTables tables = tables_of(s);
    UnitLengths lengths = lengths_of(a, B);
    const real *qkv = s->frame.qkv_act;
    qkv_forward_in(&s->frame, a, x, B);
    l2_normalize_forward(s->qk, s->inverse, qkv, &lengths);
    s->algorithm->forward(s->sum, s->s, s->qk, qkv, &tables, B);
    if (s->normed) layernorm_forward(s->frame.mix, s->sum, &norm);
    qkv_forward_out(&s->frame, a, y, B);
}

static void lisa_backward(const Attention *a, real *dx, const real *dy, const real *x, int B) {
    const Lisa *s = a->state;
    LayerNorm norm = norm_of(s, a, B);
    LisaTables tables = tables_of(s);
    UnitLengths lengths = lengths_of(a, B);
    LisaGradients gradients = {s->dwa, s->dwb, s->db};
    const QkvFrame *f = &s->frame;
    real *dsum = s->normed ? s->dsum : f->dmix;
    qkv_backward_out(f, a, dy, B);
    if (s->normed) add_layernorm_backward(dsum, NULL, s->dnorm_w, s->dnorm_b, NULL, f->dmix, s->sum, NULL, &norm);
    s->algorithm->backward(f->dqkv, s->dqk, &gradients, dsum, s->s, s->qk, f->qkv_act, &tables, B);
    l2_normalize_backward(f->dqkv, s->dqk, s->qk, s->inverse, &lengths);
    qkv_backward_in(f, a, dx, x, B);
}

/* Counted as the paper does (its Table 3): with tables that are no circles every pattern of every channel is a sum over
 * the keys in sight; with circles it is a real transform of N log2 N multiply-adds and a product of half spectra, four
 * a number, and each head's k and v are transformed once.  Whichever algorithm runs. */
static size_t lisa_macs(const Attention *a) {
    const Lisa *s = a->state;
    const Offsets *o = &s->patterns.offsets;
    size_t N = (size_t)a->N, M = (size_t)a->M, E = (size_t)s->patterns.E, used = qkv_macs(&s->frame, a) + 2 * N * M * E;
    if (o->kind == OFFSETS_TOEPLITZ) return used + 2 * N * N * M * E;
    if (o->kind == OFFSETS_LOCAL) return used + 2 * N * (size_t)offsets_count(o) * M * E;
    return used + 2 * (E + 1) * M * (size_t)((double)N * log2((double)N)) + 2 * E * M * (N / 2 + 1) * 4;
}

static const char *lisa_path(const Attention *a) { return ((const Lisa *)a->state)->algorithm->name; }

/* P[query,j] = sum_e S[query,e] wb[t(query,j),e]; the bias b reads no value. */
static void lisa_weights(const Attention *a, float *weights, int b, int head, int query) {
    const Lisa *s = a->state;
    size_t E = (size_t)s->patterns.E, N = (size_t)a->N, T = (size_t)offsets_count(&s->patterns.offsets);
    float *all = xcalloc(E * N, sizeof *all, "attention picture"),
          *wb = xcalloc(T * E, sizeof *wb, "attention picture");
    real_download(all, s->s + ((size_t)b * (size_t)a->H + (size_t)head) * E * N, E * N);
    device_download(wb, s->wb, T * E * sizeof *wb);
    for (int j = 0; j < a->N; j++) {
        int t = offset_of(&s->patterns.offsets, query, j);
        weights[j] = 0;
        for (size_t e = 0; t >= 0 && e < E; e++) weights[j] += all[e * N + (size_t)query] * wb[(size_t)t * E + e];
    }
    free(wb);
    free(all);
}

/* == sa9: one position weight for every pair ====================================================================== */

typedef struct {
    QkvFrame frame;
    WeightedAttention shape;
    float *r, *dr;  /* [T,tables] */
    real *qk;       /* [B,N,2,H,D] kept */
    float *inverse; /* [B,N,2,H] kept */
    real *dqk;      /* [B,N,2,H,D] scratch */
} Weighted;

static void weighted_declare(Attention *a, Params *params, int tables) {
    Weighted *s = a->state;
    qkv_declare(&s->frame, a, params);
    s->shape = (WeightedAttention){toeplitz(a), tables, a->H, a->D};
    params_declare(params, &s->r, &s->dr, a->prefix, "sa.rpe", INIT_TRUNC_NORMAL, false, 2,
                   (int[]){offsets_count(&s->shape.offsets), tables});
    offsets_on_grid(params, &s->shape.offsets);
}

static void weighted_plan(Attention *a, Plan *plan, int B) {
    Weighted *s = a->state;
    size_t n = (size_t)B * (size_t)a->N, bytes = n * (size_t)a->M * sizeof(real);
    PlanMark mark = plan_mark(plan);
    qkv_plan(&s->frame, a, plan, B);
    plan_keep(plan, a->prefix, "qk", &s->qk, 2 * bytes);
    plan_keep(plan, a->prefix, "inverse", &s->inverse, n * 2 * (size_t)a->H * sizeof(float));
    if (plan->training) plan_borrow(plan, a->prefix, "dqk", &s->dqk, 2 * bytes);
    plan_workspace(plan, weighted_attention_workspace(&s->shape, B));
    plan_release(plan, mark);
}

static void weighted_forward(const Attention *a, real *y, const real *x, int B) {
    const Weighted *s = a->state;
    const real *qkv = s->frame.qkv_act;
    UnitLengths lengths = lengths_of(a, B);
    qkv_forward_in(&s->frame, a, x, B);
    l2_normalize_forward(s->qk, s->inverse, qkv, &lengths);
    weighted_attention_forward(s->frame.mix, s->qk, qkv, s->r, &s->shape, B);
    qkv_forward_out(&s->frame, a, y, B);
}

static void weighted_backward(const Attention *a, real *dx, const real *dy, const real *x, int B) {
    const Weighted *s = a->state;
    const QkvFrame *f = &s->frame;
    UnitLengths lengths = lengths_of(a, B);
    qkv_backward_out(f, a, dy, B);
    weighted_attention_backward(f->dqkv, s->dqk, s->dr, f->dmix, s->qk, f->qkv_act, s->r, &s->shape, B);
    l2_normalize_backward(f->dqkv, s->dqk, s->qk, s->inverse, &lengths);
    qkv_backward_in(f, a, dx, x, B);
}

static size_t weighted_macs(const Attention *a) {
    const Weighted *s = a->state;
    return qkv_macs(&s->frame, a) + 2 * (size_t)a->N * (size_t)a->N * (size_t)a->M;
}

static void weighted_weights(const Attention *a, float *weights, int b, int head, int query) {
    const Weighted *s = a->state;
    size_t D = (size_t)a->D, row = 2 * (size_t)a->M;
    size_t T = (size_t)offsets_count(&s->shape.offsets), tables = (size_t)s->shape.tables;
    float *qk = xcalloc((size_t)a->N * row, sizeof *qk, "attention picture"),
          *r = xcalloc(T * tables, sizeof *r, "attention picture");
    real_download(qk, s->qk + (size_t)b * (size_t)a->N * row, (size_t)a->N * row);
    device_download(r, s->r, T * tables * sizeof *r);
    const float *q = qk + (size_t)query * row + (size_t)head * D;
    for (int j = 0; j < a->N; j++) {
        const float *k = qk + (size_t)j * row + (size_t)a->M + (size_t)head * D;
        weights[j] = 0;
        for (size_t c = 0; c < D; c++) weights[j] += q[c] * k[c];
        weights[j] *= r[(size_t)offset_of(&s->shape.offsets, query, j) * tables + (tables > 1 ? (size_t)head : 0)];
    }
    free(r);
    free(qk);
}

/* == Operators ==================================================================================================== */

static void lisa_declare(Attention *a, Params *p) { declare(a, p, lisa_offsets(a), true, true); }
static void sa10_declare(Attention *a, Params *p) { declare(a, p, toeplitz(a), false, false); }
static void sa11_declare(Attention *a, Params *p) { declare(a, p, toeplitz(a), true, false); }
static void sa9_declare(Attention *a, Params *p) { weighted_declare(a, p, 1); }
static void sa9_heads_declare(Attention *a, Params *p) { weighted_declare(a, p, a->H); }

#define LISA_OP(id, label, text, declare_function) \
    const AttentionOp id = {                       \
        .name = label,                             \
        .summary = text,                           \
        .needs_grid = true,                        \
        .state_size = sizeof(Lisa),                \
        .declare = declare_function,               \
        .plan = lisa_plan,                         \
        .forward = lisa_forward,                   \
        .backward = lisa_backward,                 \
        .macs = lisa_macs,                         \
        .path = lisa_path,                         \
        .weights = lisa_weights,                   \
    }
#define WEIGHTED_OP(id, label, text, declare_function) \
    const AttentionOp id = {                           \
        .name = label,                                 \
        .summary = text,                               \
        .needs_grid = true,                            \
        .state_size = sizeof(Weighted),                \
        .declare = declare_function,                   \
        .plan = weighted_plan,                         \
        .forward = weighted_forward,                   \
        .backward = weighted_backward,                 \
        .macs = weighted_macs,                         \
        .weights = weighted_weights,                   \
    }

LISA_OP(lisa_op, "lisa", "lightweight structure-aware attention by circular convolutions (LiSA)",
        lisa_declare);
LISA_OP(sa10_op, "sa10", "structure-aware attention on q.k, Toeplitz weights (LiSA paper, Eq. 10)", sa10_declare);
LISA_OP(sa11_op, "sa11", "structure-aware attention on the Hadamard products of q and k (Eq. 11)", sa11_declare);
WEIGHTED_OP(sa9_op, "sa9", "q.k times a position weight, no softmax (Eq. 9)", sa9_declare);
WEIGHTED_OP(sa9_heads_op, "sa9-heads", "sa9 with position weights for each head", sa9_heads_declare);
