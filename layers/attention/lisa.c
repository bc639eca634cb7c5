/* Lightweight structure-aware attention (the LiSA paper, equations 9 to 14).  x [B,N,M] -> y [B,N,M], tokens on a grid
 * forward   1. q,k,v = x Wqkv^T + b   2. q^ = q/|q|, k^ = k/|k|, head by head
 *           3. lisa, sa10, sa11: S[i,e] = sum_j sum_c q^[i,c] k^[j,c] wa[t(i,j),c,e],
 *                                mix[i,c] = sum_e S[i,e] (b[c,e] + sum_j wb[t(i,j),e] v[j,c])
 *              sa9:              mix_i = sum_j (q^_i.k^_j) r[t(i,j),h] v_j
 *           4. lisa: layer norm of mix   5. y = mix Wproj^T + b
 * backward  5. dmix   4. norm   3. dq^, dk^, dv and the tables   2. dq, dk   1. dx
 * saves     qkv, q^ and k^, 1/|q|, 1/|k|, S, mix; the norm's input and statistics.
 *
 * The operators differ in t(i,j) (kernels/offsets/offsets.h): lisa has a circle over the token sequence (lisa_fft 1d),
 * a torus over the grid (lisa_fft 2d, for clips 3d), or a window around the query (lisa_kernel); sa9, sa10 and sa11
 * have Toeplitz tables. sa10's wa is the same for all channels.  The heads share wa, wb and b, as the paper's parameter
 * counts imply.  Where the grid changes, the tables of a circle or a torus are resampled to it as if they were on the
 * model's own grid (grid_table.h), as in fine-tuning, without a factor for the number of keys. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "layers/papers.h"
#include "layers/attention.h"
#include "layers/attention/grid_table.h"
#include "layers/layer_norm.h"

/* == Settings ===================================================================================================== */

typedef enum { FFT_1D, FFT_2D, FFT_3D } LisaFft;
typedef enum { ALGORITHM_AUTO, ALGORITHM_FIRST } LisaChoice; /* ALGORITHM_FIRST + i: algorithms[i] */

typedef struct {
    int lisa_patterns;
} PatternsSettings;

typedef struct {
    int lisa_kernel;
    LisaFft lisa_fft;
    LisaChoice lisa_algo;
} LisaSettings;

static const ConfigEntry patterns_entries[] = {
    {CONFIG_FIELD(INT, PatternsSettings, lisa_patterns), "16", .section = "attention", .min = 1, .max = 256,
     .help = "Number of structural patterns of lisa, sa10 and sa11 (D in the paper)"},
};

static const ConfigEntry entries[] = {
    {CONFIG_FIELD(INT, LisaSettings, lisa_kernel), "0", .section = "attention", .min = 0, .max = 7,
     .help = "Side of the window of tokens that each token of lisa attends to: 3, 5 or 7 (0: the whole image); of a "
             "clip, the window is time_kernel frames long"},
    {CONFIG_FIELD(CHOICE, LisaSettings, lisa_fft), "1d", CONFIG_CHOICES("1d", "2d", "3d"),
     .help = "Circular convolutions of lisa: over all tokens as one sequence (1d, as in the paper), over the rows and "
             "columns of the token grid (2d), or also over the frames of a clip (3d)"},
    {CONFIG_FIELD(CHOICE, LisaSettings, lisa_algo), "auto", .change = CHANGE_FREELY,
     CONFIG_CHOICES("auto", "dense", "fft"),
     .noun = "algorithm",
     .help = "Algorithm of lisa; both compute the same function, and auto chooses the one estimated to be faster"},
};

static void settings_check(const Config *config, const void *settings) {
    const LisaSettings *s = settings;
    if (s->lisa_kernel && (s->lisa_kernel < 3 || s->lisa_kernel % 2 == 0))
        config_reject(config, "lisa_kernel", "%d: a window around a token has side 3, 5 or 7; 0 is the whole image",
                      s->lisa_kernel);
    if (s->lisa_kernel && s->lisa_algo != ALGORITHM_AUTO && s->lisa_algo != ALGORITHM_FIRST)
        config_reject(config, "lisa_algo", "{lisa_algo} has no windows, but {lisa_kernel} asks for them: use auto or dense");
}

static const ConfigGroup patterns_settings = {CONFIG_GROUP(PatternsSettings, patterns_entries), .change = CHANGE_NEVER};
static const ConfigGroup lisa_settings = {CONFIG_GROUP(LisaSettings, entries),
                                          .change = CHANGE_NEVER, .check = settings_check};

static const LisaSettings *settings_of(const Attention *a) { return config_settings(a->settings, &lisa_settings); }

/* == lisa, sa10, sa11 ============================================================================================= */

/* These are in the order of the setting lisa_algo. */
static const LisaAlgorithm algorithms[] = {LISA_ALGORITHM(dense), LISA_ALGORITHM(fft)};
enum { ALGORITHMS = sizeof algorithms / sizeof *algorithms };

typedef struct {
    Patterns patterns;
    const LisaAlgorithm *algorithm;
    bool normed;
    GridTable wa;            /* [T,D,E]; sa10: [T,E] */
    GridTable wb;            /* [T,E] */
    float *b, *db;           /* [D,E] */
    NormLayer norm;
    real *qk;                /* [B,N,2,H,D] kept */
    float *inverse;          /* [B,N,2,H] kept */
    real *s;                 /* kept, [B,N,H,E] or [B,H,E,N] by the algorithm */
    real *sum;               /* [B,N,M] kept: input of the norm */
    real *dqk, *dsum;        /* scratch, [B,N,2,H,D] and [B,N,H,D] */
    float *ds;               /* scratch of dense, [B,N,H,E] */
} Lisa;

static void lisa_check(const Attention *a) {
    const LisaSettings *c = settings_of(a);
    if (a->grid.frames > 1 && !c->lisa_kernel && c->lisa_fft == FFT_2D)
        config_reject(a->settings, "lisa_fft", "{lisa_fft} does not support frames, but {frames} makes clips: use 1d "
                                               "or 3d");
}

static Offsets lisa_offsets(const Attention *a) {
    const LisaSettings *c = settings_of(a);
    OffsetKind circular = c->lisa_fft == FFT_1D ? OFFSETS_CIRCLE : OFFSETS_TORUS;
    return (Offsets){c->lisa_kernel ? OFFSETS_LOCAL : circular, a->grid, c->lisa_kernel, a->place.time_kernel};
}

static Offsets toeplitz(const Attention *a) { return (Offsets){OFFSETS_TOEPLITZ, a->grid, 0, 0}; }

static bool same_patterns(const Patterns *p, const Patterns *q) {
    const Offsets *a = &p->offsets, *b = &q->offsets;
    bool same = a->kind == b->kind && a->side == b->side && a->frames == b->frames && p->E == q->E && p->D == q->D;
    return same && p->per_channel == q->per_channel && !memcmp(&a->grid, &b->grid, sizeof a->grid);
}

/* The algorithm with the least estimated time.  The answers for the latest grids are kept for all blocks: if the grid
 * changes from batch to batch, counting the pairs of each would take longer than computing a block on a small grid. */
static const LisaAlgorithm *algorithm_fastest(const Patterns *patterns) {
    enum { KEPT = 64 };
    static struct {
        Patterns patterns;
        const LisaAlgorithm *algorithm;
    } known[KEPT];
    static int next;
    for (int i = 0; i < KEPT; i++)
        if (known[i].algorithm && same_patterns(&known[i].patterns, patterns)) return known[i].algorithm;
    const LisaAlgorithm *best = &algorithms[0];
    for (int i = 1; i < ALGORITHMS; i++)
        if (algorithms[i].cost(patterns) < best->cost(patterns)) best = &algorithms[i];
    known[next].patterns = *patterns;
    known[next].algorithm = best;
    next = (next + 1) % KEPT;
    return best;
}

/* Toeplitz tables have only the dense algorithm. */
static const LisaAlgorithm *algorithm_choose(const Attention *a, const Patterns *patterns) {
    const LisaAlgorithm *best = &algorithms[0];
    if (patterns->offsets.kind == OFFSETS_TOEPLITZ) return best;
    LisaChoice asked = settings_of(a)->lisa_algo;
    if (asked != ALGORITHM_AUTO) {
        best = &algorithms[asked - ALGORITHM_FIRST];
        if (isinf(best->cost(patterns)))
            config_reject(a->settings, "lisa_algo", "{lisa_algo} does not support the %d x %d tokens that {img_size} "
                          "and {patch_size} make: use auto or dense", a->grid.rows, a->grid.columns);
        return best;
    }
    return algorithm_fastest(patterns);
}

/* Declares a tensor whose first dimension are the offsets, with its grid and its axis of time.  A window has the same
 * offsets on every grid. */
static void declare_offsets(Params *params, const Offsets *o, Param tensor) {
    static const TimeRule rules[] = {[OFFSETS_LOCAL] = TIME_TAPS, [OFFSETS_TOEPLITZ] = TIME_TOEPLITZ,
                                     [OFFSETS_TORUS] = TIME_TORUS, [OFFSETS_CIRCLE] = TIME_CIRCLE};
    Grid positions = o->kind == OFFSETS_TOEPLITZ ? grid_offsets(o->grid) : o->grid;
    if (o->kind != OFFSETS_LOCAL) tensor.grid = (ParamGrid){0, 1, 0, positions};
    tensor.time = (ParamTime){rules[o->kind], 0, o->kind == OFFSETS_LOCAL ? o->frames : positions.frames, 0, false};
    params_declare(params, tensor);
}

static void declare(Attention *a, Params *params, Offsets offsets, bool per_channel, bool normed) {
    Lisa *s = a->state;
    const PatternsSettings *settings = config_settings(a->settings, &patterns_settings);
    int T = offsets_count(&offsets), D = a->D, E = settings->lisa_patterns;
    s->patterns = (Patterns){offsets, E, a->H, D, per_channel};
    s->normed = normed;
    s->algorithm = algorithm_choose(a, &s->patterns);
    Grid own = a->grid;
    s->wa.shape = (TableResampling){.from = own, .to = own, .inner = per_channel ? D * E : E};
    s->wb.shape = (TableResampling){.from = own, .to = own, .inner = E};
    declare_offsets(params, &offsets, (Param){.value = &s->wa.w, .grad = &s->wa.dw, .named = {a->prefix, "lisa.wa"},
                                              .init = INIT_TRUNC_NORMAL, .decay = true,
                                              .shape = {T, per_channel ? D : 0, E}});
    declare_offsets(params, &offsets, (Param){.value = &s->wb.w, .grad = &s->wb.dw, .named = {a->prefix, "lisa.wb"},
                                              .init = INIT_TRUNC_NORMAL, .decay = true, .shape = {T, E}});
    params_declare(params, (Param){.value = &s->b, .grad = &s->db, .named = {a->prefix, "lisa.b"},
                                   .init = INIT_TRUNC_NORMAL, .decay = true, .shape = {D, E}});
    if (normed) norm_layer_declare(&s->norm, params, a->prefix, "norm", a->M, TIMM_NORM_EPS, false);
}

/* Does the choice of the algorithm depend on the current grid? */
static bool chooses_again(const Attention *a) {
    OffsetKind kind = ((const Lisa *)a->state)->patterns.offsets.kind;
    return a->changes && (kind == OFFSETS_CIRCLE || kind == OFFSETS_TORUS) && settings_of(a)->lisa_algo == ALGORITHM_AUTO;
}

/* Do the tables follow the grid?  Windows have the same offsets on every grid. */
static bool resampled(const Attention *a) {
    return a->changes && ((const Lisa *)a->state)->patterns.offsets.kind != OFFSETS_LOCAL;
}

static void lisa_plan(Attention *a, Plan *plan, int B) {
    Lisa *s = a->state;
    size_t n = attention_tokens(a, B), bytes = attention_bytes(a, B);
    plan_pair(plan, a->prefix, "qk", &s->qk, &s->dqk, 2 * bytes);
    plan_keep(plan, a->prefix, "inverse", &s->inverse, n * 2 * (size_t)a->H * sizeof(float));
    plan_keep(plan, a->prefix, "s", &s->s, n * (size_t)a->H * (size_t)s->patterns.E * sizeof(real));
    if (s->normed) {
        plan_pair(plan, a->prefix, "sum", &s->sum, &s->dsum, bytes);
        norm_layer_plan(&s->norm, plan, a->prefix, n);
    } else {
        plan_alias(plan, &s->sum, &a->frame.mix);
    }
    bool any = chooses_again(a), by_token = s->algorithm->s_by_token;
    for (int i = 0; any && i < ALGORITHMS; i++) {
        by_token |= algorithms[i].s_by_token;
        plan_workspace(plan, algorithms[i].workspace(&s->patterns, B, true));
    }
    if (plan->training && by_token)
        plan_borrow(plan, a->prefix, "ds", &s->ds, n * (size_t)a->H * (size_t)s->patterns.E * sizeof(float));
    plan_workspace(plan, s->algorithm->workspace(&s->patterns, B, a->changes));
    grid_table_plan(&s->wa, plan, a->prefix, "wa", resampled(a));
    grid_table_plan(&s->wb, plan, a->prefix, "wb", resampled(a));
}

static void lisa_follow_grid(Attention *a) {
    Lisa *s = a->state;
    s->patterns.offsets.grid = a->grid;
    s->algorithm = algorithm_choose(a, &s->patterns);
    if (resampled(a)) s->wa.shape.to = s->wb.shape.to = a->grid;
}

static UnitLengths lengths_of(const Attention *a, int B) {
    return (UnitLengths){attention_tokens(a, B), 2, a->H, a->D};
}

static LisaTables tables_of(const Lisa *s) {
    return (LisaTables){s->patterns, grid_table_values(&s->wa), grid_table_values(&s->wb), s->b};
}

static void lisa_forward(const Attention *a, int B) {
    const Lisa *s = a->state;
    LisaTables tables = tables_of(s);
    UnitLengths lengths = lengths_of(a, B);
    const real *qkv = a->frame.qkv_act;
    if (a->changes) kernels_reserve(s->algorithm->workspace(&s->patterns, B, false));
    l2_normalize_forward(s->qk, s->inverse, qkv, &lengths);
    s->algorithm->forward(s->sum, s->s, s->qk, qkv, &tables, B);
    if (s->normed) norm_layer_forward(&s->norm, a->frame.mix, s->sum, lengths.n);
}

static void lisa_backward(const Attention *a, int B) {
    const Lisa *s = a->state;
    LisaTables tables = tables_of(s);
    UnitLengths lengths = lengths_of(a, B);
    LisaGradients gradients = {grid_table_gradient(&s->wa), grid_table_gradient(&s->wb), s->db};
    const QkvFrame *f = &a->frame;
    real *dsum = s->normed ? s->dsum : f->dmix;
    if (s->normed) norm_layer_backward(&s->norm, dsum, f->dmix, s->sum, lengths.n);
    s->algorithm->backward(f->dqkv, s->dqk, s->ds, &gradients, dsum, s->s, s->qk, f->qkv_act, &tables, B);
    l2_normalize_backward(f->dqkv, s->dqk, s->qk, s->inverse, &lengths);
    grid_table_backward(&s->wa);
    grid_table_backward(&s->wb);
}

/* Counted as in the paper (Table 3), whichever algorithm runs.  Without circular tables, every pattern of every channel
 * is a sum over the keys.  With circular tables it is a real transform of N log2 N multiply-adds and a product of half
 * spectra with four multiply-adds for each complex number, and each head's k and v are transformed once. */
static size_t lisa_macs(const Attention *a) {
    const Lisa *s = a->state;
    const Offsets *o = &s->patterns.offsets;
    size_t N = (size_t)a->N, M = (size_t)a->M, E = (size_t)s->patterns.E, used = 2 * N * M * E;
    if (o->kind == OFFSETS_TOEPLITZ) return used + 2 * N * N * M * E;
    if (o->kind == OFFSETS_LOCAL) return used + 2 * N * (size_t)offsets_count(o) * M * E;
    return used + 2 * (E + 1) * M * (size_t)((double)N * log2((double)N)) + 2 * E * M * (N / 2 + 1) * 4;
}

/* The paper's Tables 4, 5 and 12 count the linear layers only. */
static size_t lisa_transform_macs(const Attention *a) {
    OffsetKind kind = ((const Lisa *)a->state)->patterns.offsets.kind;
    return kind == OFFSETS_CIRCLE || kind == OFFSETS_TORUS ? lisa_macs(a) : 0;
}

static const char *lisa_path(const Attention *a) { return ((const Lisa *)a->state)->algorithm->name; }

/* AttentionOp.weights: P[query,j] = sum_e S[query,e] wb[t(query,j),e].  The bias b multiplies no value. */
static void lisa_weights(const Attention *a, float *weights, int b, int head, int query) {
    const Lisa *s = a->state;
    size_t E = (size_t)s->patterns.E, N = (size_t)a->N, H = (size_t)a->H, T = (size_t)offsets_count(&s->patterns.offsets);
    bool by_token = s->algorithm->s_by_token;
    size_t own = by_token ? ((size_t)query * H + (size_t)head) * E : (size_t)head * E * N + (size_t)query;
    float *all = xcalloc(H * E * N, sizeof *all, "attention picture"),
          *wb = xcalloc(T * E, sizeof *wb, "attention picture");
    real_download(all, s->s + (size_t)b * H * E * N, H * E * N);
    device_download(wb, grid_table_values(&s->wb), T * E * sizeof *wb);
    for (int j = 0; j < a->N; j++) {
        int t = offset_of(&s->patterns.offsets, query, j);
        weights[j] = 0;
        for (size_t e = 0; t >= 0 && e < E; e++) weights[j] += all[own + e * (by_token ? 1 : N)] * wb[(size_t)t * E + e];
    }
    free(wb);
    free(all);
}

/* == sa9: one position weight for every pair ====================================================================== */

typedef struct {
    WeightedAttention shape;
    float *r, *dr;  /* [T,tables] */
    real *qk;       /* [B,N,2,H,D] kept */
    float *inverse; /* [B,N,2,H] kept */
    real *dqk;      /* [B,N,2,H,D] scratch */
} Weighted;

static void weighted_declare(Attention *a, Params *params, int tables) {
    Weighted *s = a->state;
    s->shape = (WeightedAttention){toeplitz(a), tables, a->H, a->D};
    const Offsets *offsets = &s->shape.offsets;
    declare_offsets(params, offsets, (Param){.value = &s->r, .grad = &s->dr, .named = {a->prefix, "sa.rpe"},
                                             .init = INIT_TRUNC_NORMAL, .shape = {offsets_count(offsets), tables}});
}

static void weighted_plan(Attention *a, Plan *plan, int B) {
    Weighted *s = a->state;
    size_t n = attention_tokens(a, B), bytes = attention_bytes(a, B);
    plan_pair(plan, a->prefix, "qk", &s->qk, &s->dqk, 2 * bytes);
    plan_keep(plan, a->prefix, "inverse", &s->inverse, n * 2 * (size_t)a->H * sizeof(float));
    plan_workspace(plan, weighted_attention_workspace(&s->shape, B));
}

static void weighted_forward(const Attention *a, int B) {
    const Weighted *s = a->state;
    const real *qkv = a->frame.qkv_act;
    UnitLengths lengths = lengths_of(a, B);
    l2_normalize_forward(s->qk, s->inverse, qkv, &lengths);
    weighted_attention_forward(a->frame.mix, s->qk, qkv, s->r, &s->shape, B);
}

static void weighted_backward(const Attention *a, int B) {
    const Weighted *s = a->state;
    const QkvFrame *f = &a->frame;
    UnitLengths lengths = lengths_of(a, B);
    weighted_attention_backward(f->dqkv, s->dqk, s->dr, f->dmix, s->qk, f->qkv_act, s->r, &s->shape, B);
    l2_normalize_backward(f->dqkv, s->dqk, s->qk, s->inverse, &lengths);
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

#define LISA_OP                            \
    .state_size = sizeof(Lisa),            \
    .plan = lisa_plan,                     \
    .mix_forward = lisa_forward,           \
    .mix_backward = lisa_backward,         \
    .macs = lisa_macs,                     \
    .transform_macs = lisa_transform_macs, \
    .path = lisa_path,                     \
    .weights = lisa_weights

const AttentionOp lisa_op = {
    .name = "lisa",
    .summary = "lightweight structure-aware attention by circular convolutions (LiSA)",
    .paper = PAPER_LISA,
    .settings = ATTENTION_SETTINGS(&patterns_settings, &lisa_settings),
    .check = lisa_check,
    .any_grid = true,
    .declare = lisa_declare,
    .follow_grid = lisa_follow_grid,
    LISA_OP,
};

const AttentionOp sa10_op = {
    .name = "sa10",
    .summary = "patterns for each query: weighted sums of q.k over keys (LiSA, Eq. 10)",
    .paper = PAPER_LISA,
    .settings = ATTENTION_SETTINGS(&patterns_settings),
    .declare = sa10_declare,
    LISA_OP,
};

const AttentionOp sa11_op = {
    .name = "sa11",
    .summary = "sa10 with weights for each channel of q and k (LiSA, Eq. 11)",
    .paper = PAPER_LISA,
    .settings = ATTENTION_SETTINGS(&patterns_settings),
    .declare = sa11_declare,
    LISA_OP,
};

#define WEIGHTED_OP                    \
    .state_size = sizeof(Weighted),    \
    .plan = weighted_plan,             \
    .mix_forward = weighted_forward,   \
    .mix_backward = weighted_backward, \
    .macs = attention_pair_macs,       \
    .weights = weighted_weights

const AttentionOp sa9_op = {
    .name = "sa9",
    .summary = "q.k times a weight for each relative position, no softmax (LiSA, Eq. 9)",
    .paper = PAPER_LISA,
    .declare = sa9_declare,
    WEIGHTED_OP,
};

const AttentionOp sa9_heads_op = {
    .name = "sa9-heads",
    .summary = "sa9 with its own weights in each head",
    .paper = PAPER_LISA,
    .declare = sa9_heads_declare,
    WEIGHTED_OP,
};
