/* Ripple attention (Zheng et al., ICML 2022), per head.  x [B,N,M] -> y [B,N,M], tokens on a grid Hg x Wg
 * forward   1. q,k,v = x Wqkv^T + b   2. phi(q), phi(k)
 *           3. o_r = <stick_r, Wp v + bp>, s_r = 1/(1 + (R-r) exp(-o_r)), alpha = stick breaking of s
 *           4. mix_n = sum_m alpha_g(n,m)(n) (phi(q_n).phi(k_m)) v_m / den_n, g = min(Chebyshev distance, R)
 *           5. y = mix Wproj^T + b
 * backward  5. dmix   4. dphi, dv, dalpha   3. dsticks, dWp, dbp, second part of dv   2. dq, dk   1. dx
 * saves     qkv, phi, alpha [B,N,H,G], o [B,N,H,R], mix, den [B,N,H].
 * Blocks from `ripple_layers` on use linear attention with the same feature map.  The variants of the paper's Tables 4
 * and 8 and of Figure 4 differ only in the weights or in the groups. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/integers.h"
#include "layers/features/feature_map.h"
#include "layers/papers.h"
#include "layers/attention.h"

/* == Settings ===================================================================================================== */

typedef enum { ALGORITHM_AUTO, ALGORITHM_FIRST } RippleChoice; /* ALGORITHM_FIRST + i: algorithms[i] */

typedef struct {
    int r_max;
    float tau;
    RippleChoice ripple_algo;
} RippleSettings;

typedef struct {
    int ripple_layers, ring_time;
} RippleBlocksSettings;

static const ConfigEntry entries[] = {
    {CONFIG_FIELD(INT, RippleSettings, r_max), "4", .section = "attention", .min = 1, .max = RIPPLE_MAX_GROUPS - 1,
     .help = "Largest distance in ripple attention with a spatial weight of its own, R in the paper; tokens at this "
             "distance and beyond share one weight"},
    {CONFIG_FIELD(FLOAT, RippleSettings, tau), "0.001", .min = 0, .max = 1,
     .help = "Threshold of ripple attention's stick breaking: once less than this remains of the stick, the remaining "
             "weights are equal (0: never)"},
    {CONFIG_FIELD(CHOICE, RippleSettings, ripple_algo), "auto", .change = CHANGE_FREELY,
     CONFIG_CHOICES("auto", "dense", "window", "sat"), .noun = "algorithm", .former = "naive",
     .help = "Algorithm of ripple attention; all compute the same function, and auto chooses the one estimated to be "
             "fastest"},
};

static const ConfigEntry blocks_entries[] = {
    {CONFIG_FIELD(INT, RippleBlocksSettings, ripple_layers), "9", .section = "attention", .min = 0, .max = 256,
     .help = "Number of blocks, from the first, with ripple attention; the later ones use linear attention, or softmax "
             "attention with ripple-explicit-softmax"},
    {CONFIG_FIELD(INT, RippleBlocksSettings, ring_time), "1", .section = "attention", .min = 0, .max = 256,
     .help = "Distance between neighbouring frames of a clip in ripple attention, in rows of tokens (0: a place is in "
             "the same ring in all frames)"},
};

static const ConfigGroup ripple_settings = {CONFIG_GROUP(RippleSettings, entries), .change = CHANGE_NEVER};
/* True if this block uses ripple attention; in a detector's encoder all layers do. */
static const ConfigGroup ripple_blocks_settings = {CONFIG_GROUP(RippleBlocksSettings, blocks_entries),
                                                   .change = CHANGE_NEVER};

static const RippleSettings *settings_of(const Attention *a) { return config_settings(a->settings, &ripple_settings); }

static bool ripples(const Config *settings, int block) {
    const RippleBlocksSettings *blocks = config_settings(settings, &ripple_blocks_settings);
    return !blocks || block < blocks->ripple_layers;
}

/* == The weights of the groups ==================================================================================== */

typedef enum { WEIGHTS_STICKS, WEIGHTS_SOFTMAX, WEIGHTS_FIXED } Weights;
typedef enum { RINGS_CAPPED, RINGS_LOG, RINGS_ALL } Rings;

/* These are in the order of the setting ripple_algo. */
static const RippleAlgorithm algorithms[] = {RIPPLE_ALGORITHM(dense), RIPPLE_ALGORITHM(window), RIPPLE_ALGORITHM(sat)};
enum { ALGORITHMS = sizeof algorithms / sizeof *algorithms };

typedef struct {
    FeatureMap map;
    Weights weights;
    bool truncate, per_head;
    RippleRings rings;
    const RippleAlgorithm *algorithm;
    int sticks_per_head;
    float *wp, *dwp;         /* [D,D], per_head [H,D,D] */
    float *bp, *dbp;         /* [D], [H,D] */
    float *sticks, *dsticks; /* [H,R,D] */
    float *alpha;            /* [B,N,H,G] kept */
    float *o;                /* [B,N,H,R] kept */
    float *den;              /* [B,N,H] kept */
    float *dalpha;           /* [B,N,H,G] scratch */
    float *lse;              /* [B,N,H,G] kept, of ripple-explicit-softmax alone */
} Ripple;

/* Group r begins at distance r, or at 2^(r-1) in the logarithmic variant; the last one has no upper bound. */
static void rings_set(RippleRings *rings, const Attention *a, Rings kind) {
    const RippleBlocksSettings *blocks = config_settings(a->settings, &ripple_blocks_settings);
    Grid g = a->grid;
    rings->ring_time = blocks && g.frames > 1 ? blocks->ring_time : 0;
    int longest = ripple_distance(rings, (GridPlace){0, 0, 0}, (GridPlace){g.frames - 1, g.rows - 1, g.columns - 1});
    int R = kind == RINGS_ALL ? longest : settings_of(a)->r_max;
    if (kind == RINGS_LOG)
        for (R = 0; 1 << R <= longest; R++) continue;
    if (R >= RIPPLE_MAX_GROUPS)
        config_reject(a->settings, "attn", "{attn=%s} would need %d rings on the %d x %d tokens that {img_size} and "
                      "{patch_size} make, but at most %d are supported", a->op->name, R + 1, a->grid.rows,
                      a->grid.columns, RIPPLE_MAX_GROUPS);
    rings->grid = a->grid;
    rings->G = R + 1;
    for (int r = 0; r <= R; r++) rings->bound[r] = kind == RINGS_LOG && r > 0 ? 1 << (r - 1) : r;
}

/* The grid, or where counting all pairs would take seconds, a smaller one with sides in
 * about the same proportions, on which the same algorithm is the fastest. */
static Grid priced_grid(Grid grid) {
    enum { MOST_TOKENS = 1 << 15 };
    if (grid_tokens(grid) <= MOST_TOKENS) return grid;
    while (grid_tokens(grid) > MOST_TOKENS / 2) {
        int *longest = grid.rows > grid.columns ? &grid.rows : &grid.columns;
        if (grid.frames > *longest) longest = &grid.frames;
        *longest = (*longest + 1) / 2;
    }
    return grid;
}

/* The algorithm with the least estimated time.  If the grid changes from batch to batch, the answers for the latest
 * grids are kept for all blocks. */
static const RippleAlgorithm *algorithm_fastest(const RippleRings *rings, int D, int F) {
    enum { KEPT = 64 };
    static struct {
        RippleRings rings;
        int D, F;
        const RippleAlgorithm *algorithm;
    } known[KEPT];
    static int next;
    for (int i = 0; i < KEPT; i++)
        if (known[i].algorithm && known[i].D == D && known[i].F == F && !memcmp(&known[i].rings, rings, sizeof *rings))
            return known[i].algorithm;
    const RippleAlgorithm *best = NULL;
    RippleRings priced = *rings;
    priced.grid = priced_grid(rings->grid);
    for (int i = 0; i < ALGORITHMS; i++) {
        const RippleAlgorithm *other = &algorithms[i];
        if (rings->grid.frames > 1 && !other->clips) continue;
        if (!best || other->cost(&priced, D, F) < best->cost(&priced, D, F)) best = other;
    }
    known[next].rings = *rings;
    known[next].D = D;
    known[next].F = F;
    known[next].algorithm = best;
    next = (next + 1) % KEPT;
    return best;
}

static const RippleAlgorithm *algorithm_choose(const Attention *a, const RippleRings *rings, int F) {
    const RippleAlgorithm *best = NULL;
    RippleChoice asked = settings_of(a)->ripple_algo;
    bool clip = a->grid.frames > 1;
    if (asked != ALGORITHM_AUTO) {
        best = &algorithms[asked - ALGORITHM_FIRST];
        if (clip && !best->clips)
            config_reject(a->settings, "ripple_algo", "{ripple_algo} does not support frames, but {frames} makes "
                          "clips: use auto or sat");
        return best;
    }
    return algorithm_fastest(rings, a->D, F);
}

/* True if the weights are learned: not with fixed weights, nor with a single group. */
static bool learned(const Ripple *s) { return s->weights != WEIGHTS_FIXED && s->sticks_per_head > 0; }

static void weights_declare(Attention *a, Params *params, Weights weights, Rings kind, bool truncate) {
    Ripple *s = a->state;
    int D = a->D;
    rings_set(&s->rings, a, kind);
    s->weights = weights;
    s->truncate = truncate;
    s->per_head = a->detector && a->detector->per_head;
    s->sticks_per_head = weights == WEIGHTS_STICKS ? s->rings.G - 1 : s->rings.G;
    if (!learned(s)) return;
    int heads = s->per_head ? a->H : 0;
    params_declare(params, (Param){.value = &s->wp, .grad = &s->dwp, .named = {a->prefix, "ripple.proj.weight"},
                                   .init = a->detector ? INIT_XAVIER_UNIFORM : INIT_TRUNC_NORMAL, .decay = true,
                                   .shape = {heads, D, D}});
    params_declare(params, (Param){.value = &s->bp, .grad = &s->dbp, .named = {a->prefix, "ripple.proj.bias"},
                                   .init = INIT_ZEROS, .shape = {heads, D}});
    params_declare(params, (Param){.value = &s->sticks, .grad = &s->dsticks, .named = {a->prefix, "ripple.sticks"},
                                   .init = INIT_TRUNC_NORMAL, .shape = {a->H, s->sticks_per_head, D}});
}

static void declare(Attention *a, Params *params, Weights weights, Rings kind, bool truncate) {
    Ripple *s = a->state;
    feature_map_declare(&s->map, a, params);
    weights_declare(a, params, weights, kind, truncate);
    s->algorithm = algorithm_choose(a, &s->rings, s->map.F);
}

static void weights_plan(Ripple *s, const Attention *a, Plan *plan, int B) {
    size_t rows = attention_head_floats(a, B);
    plan_pair(plan, a->prefix, "alpha", &s->alpha, &s->dalpha, rows * (size_t)s->rings.G);
    if (s->weights == WEIGHTS_STICKS) plan_keep(plan, a->prefix, "o", &s->o, rows * (size_t)s->sticks_per_head);
    plan_workspace(plan, ripple_weights_workspace(a->H, a->D, s->rings.G));
}

/* The groups on the current grid; their number is fixed.  A detector has the algorithm of the largest grid on all. */
static void ripple_follow_grid(Attention *a) {
    Ripple *s = a->state;
    s->rings.grid = a->grid;
    if (!a->detector) s->algorithm = algorithm_choose(a, &s->rings, s->map.F);
}

static void ripple_plan(Attention *a, Plan *plan, int B) {
    Ripple *s = a->state;
    s->algorithm = algorithm_choose(a, &s->rings, s->map.F);
    feature_map_plan(&s->map, a, plan, B);
    weights_plan(s, a, plan, B);
    plan_keep(plan, a->prefix, "den", &s->den, attention_head_floats(a, B));
    plan_workspace(plan, s->algorithm->workspace(&s->rings, a->D, s->map.F));
    bool any = a->changes && !a->detector && settings_of(a)->ripple_algo == ALGORITHM_AUTO;
    for (int i = 0; any && i < ALGORITHMS; i++)
        plan_workspace(plan, algorithms[i].workspace(&s->rings, a->D, s->map.F));
}

/* alpha_r = 2^-(r+1), and 2^-R for the last group, so that they sum to one. */
static void halving_weights(float *weights, int G) {
    for (int r = 0; r < G - 1; r++) weights[r] = ldexpf(1, -(r + 1));
    weights[G - 1] = ldexpf(1, -(G - 1));
}

static RippleSticks sticks_of(const Ripple *s) {
    return (RippleSticks){s->sticks_per_head, s->per_head, s->wp, s->bp, s->sticks};
}

static void weights_forward(const Ripple *s, const Attention *a, int B) {
    RippleSticks sticks = sticks_of(s);
    AttentionShape shape = attention_shape(a, B);
    const real *qkv = a->frame.qkv_act;
    float halving[RIPPLE_MAX_GROUPS];
    halving_weights(halving, s->rings.G);
    if (!learned(s))
        fixed_weights(s->alpha, halving, attention_tokens(a, B) * (size_t)a->H, s->rings.G);
    else if (s->weights == WEIGHTS_SOFTMAX)
        softmax_weights_forward(s->alpha, qkv, &sticks, &shape);
    else
        stick_breaking_forward(s->alpha, s->o, qkv, &sticks, &(StickBreaking){settings_of(a)->tau, s->truncate},
                               &shape);
}

static void weights_backward(const Ripple *s, const Attention *a, int B) {
    RippleSticks sticks = sticks_of(s);
    RippleSticksGradients d = {s->dwp, s->dbp, s->dsticks};
    AttentionShape shape = attention_shape(a, B);
    const real *qkv = a->frame.qkv_act;
    if (!learned(s)) return;
    if (s->weights == WEIGHTS_SOFTMAX)
        softmax_weights_backward(a->frame.dqkv, &d, s->dalpha, s->alpha, qkv, &sticks, &shape);
    else
        stick_breaking_backward(a->frame.dqkv, &d, s->dalpha, s->alpha, s->o, qkv, &sticks,
                                &(StickBreaking){settings_of(a)->tau, s->truncate}, &shape);
}

static void ripple_draw(const Attention *a, uint64_t seed, uint32_t step) {
    feature_map_draw(&((const Ripple *)a->state)->map, a, seed, step);
}

static void ripple_forward(const Attention *a, int B) {
    const Ripple *s = a->state;
    feature_map_forward(&s->map, a, a->frame.qkv_act, B);
    weights_forward(s, a, B);
    RippleInputs in = {s->alpha, s->map.phi, a->frame.qkv_act};
    s->algorithm->forward(a->frame.mix, s->den, &in, &s->rings, &(FeatureShape){B, a->N, a->H, a->D, s->map.F});
}

static void ripple_backward(const Attention *a, int B) {
    const Ripple *s = a->state;
    RippleInputs in = {s->alpha, s->map.phi, a->frame.qkv_act};
    RippleGradients din = {s->dalpha, s->map.dphi, a->frame.dqkv};
    s->algorithm->backward(&din, a->frame.dmix, a->frame.mix, s->den, &in, &s->rings,
                           &(FeatureShape){B, a->N, a->H, a->D, s->map.F});
    weights_backward(s, a, B);
    feature_map_backward(&s->map, a, a->frame.dqkv, a->frame.qkv_act, B);
}

/* The number of pairs of tokens closer to each other than the bound of the last group. */
static size_t window_pairs(const RippleRings *rings) {
    size_t pairs = 1;
    int sides[3] = {rings->grid.rows, rings->grid.columns, rings->grid.frames}, reach = rings->bound[rings->G - 1];
    int apart[3] = {1, 1, rings->ring_time};
    for (int axis = 0; axis < 3; axis++) {
        int farthest = apart[axis] && reach > 0 ? (reach - 1) / apart[axis] : sides[axis];
        pairs *= reach > 0 ? near_pairs((size_t)sides[axis], (size_t)farthest) : 0;
    }
    return pairs;
}

static size_t weights_macs(const Attention *a) {
    const Ripple *s = a->state;
    size_t D = (size_t)a->D;
    return learned(s) ? (size_t)a->N * (size_t)a->H * (D * D + (size_t)s->sticks_per_head * D) : 0;
}

/* The count is that of the window algorithm, which needs the fewest multiply-adds, whichever algorithm runs: linear
 * attention, the pairs of the window, and the logits of the weights. */
static size_t ripple_macs(const Attention *a) {
    const Ripple *s = a->state;
    size_t rows = (size_t)a->N * (size_t)a->H, F = (size_t)s->map.F, D = (size_t)a->D;
    return feature_map_macs(&s->map, a) + 2 * rows * F * (D + 1) + weights_macs(a) +
           (size_t)a->H * window_pairs(&s->rings) * (F + D);
}

static const char *ripple_path(const Attention *a) { return ((const Ripple *)a->state)->algorithm->name; }

static int ring_of(const RippleRings *rings, int n, int m) {
    int distance = ripple_distance(rings, grid_place(rings->grid, n), grid_place(rings->grid, m)), r = rings->G - 1;
    while (rings->bound[r] > distance) r--;
    return r;
}

static void ripple_spatial(const Attention *a, float *weights, int b, int head, int query) {
    const Ripple *s = a->state;
    float alpha[RIPPLE_MAX_GROUPS];
    size_t row = ((size_t)b * (size_t)a->N + (size_t)query) * (size_t)a->H + (size_t)head, G = (size_t)s->rings.G;
    device_download(alpha, s->alpha + row * G, G * sizeof *alpha);
    for (int m = 0; m < a->N; m++) weights[m] = alpha[ring_of(&s->rings, query, m)];
}

static void ripple_weights(const Attention *a, float *weights, int b, int head, int query) {
    const Ripple *s = a->state;
    float *scores = xcalloc((size_t)a->N, sizeof *scores, "attention picture"), sum = 1e-6f;
    feature_map_scores(s->map.phi, s->map.F, a, scores, b, head, query);
    ripple_spatial(a, weights, b, head, query);
    for (int m = 0; m < a->N; m++) sum += weights[m] *= scores[m];
    for (int m = 0; m < a->N; m++) weights[m] /= sum;
    free(scores);
}

static void ripple_measure(const Attention *a, int B) {
    const Ripple *s = a->state;
    ripple_weights_measure(a->sums, ATTENTION_PARTS, s->alpha, s->weights == WEIGHTS_STICKS ? s->o : NULL,
                           settings_of(a)->tau, (size_t)B * (size_t)a->N * (size_t)a->H, s->rings.G);
}

/* jsd is Figure 3 of the paper.  The others count where tau can end stick breaking. */
static const AttentionColumns *ripple_columns(const Attention *a) {
    static const AttentionColumns divergence = {{"jsd"}, RIPPLE_UNIT, ripple_measure},
                                  all = {{"jsd", "tau_ended", "tau_equal"}, RIPPLE_UNIT, ripple_measure};
    const Ripple *s = a->state;
    return s->weights == WEIGHTS_STICKS && settings_of(a)->tau > 0 ? &all : &divergence;
}

static void ripple_declare(Attention *a, Params *p) { declare(a, p, WEIGHTS_STICKS, RINGS_CAPPED, false); }
static void fixed_declare(Attention *a, Params *p) { declare(a, p, WEIGHTS_FIXED, RINGS_CAPPED, false); }
static void softmax_weights_declare(Attention *a, Params *p) { declare(a, p, WEIGHTS_SOFTMAX, RINGS_CAPPED, false); }
static void truncated_declare(Attention *a, Params *p) { declare(a, p, WEIGHTS_STICKS, RINGS_CAPPED, true); }
static void log_declare(Attention *a, Params *p) { declare(a, p, WEIGHTS_STICKS, RINGS_LOG, false); }
static void dense_declare(Attention *a, Params *p) { declare(a, p, WEIGHTS_STICKS, RINGS_ALL, false); }

extern const AttentionOp linear_op, softmax_op;

#define RIPPLE_OP(id, label, text, declare_function, mask, any)                  \
    extern const AttentionOp id;                                                 \
    static const AttentionOp *id##_in_block(const Config *settings, int block) { \
        return ripples(settings, block) ? &id : &linear_op;                      \
    }                                                                            \
    const AttentionOp id = {                                                     \
        .name = label,                                                           \
        .summary = text,                                                         \
        .paper = PAPER_RIPPLE,                                                   \
        .settings = ATTENTION_SETTINGS(&feature_map_settings, &ripple_settings), \
        .grid_settings = ATTENTION_SETTINGS(&ripple_blocks_settings),            \
        .needs_positive = true,                                                  \
        .takes_mask = mask,                                                      \
        .any_grid = any,                                                         \
        .state_size = sizeof(Ripple),                                            \
        .in_block = id##_in_block,                                               \
        .declare = declare_function,                                             \
        .plan = ripple_plan,                                                     \
        .follow_grid = ripple_follow_grid,                                       \
        .draw = ripple_draw,                                                     \
        .mix_forward = ripple_forward,                                           \
        .mix_backward = ripple_backward,                                         \
        .macs = ripple_macs,                                                     \
        .path = ripple_path,                                                     \
        .weights = ripple_weights,                                               \
        .spatial = ripple_spatial,                                               \
        .columns = ripple_columns,                                               \
    }

/* The number of rings of the last two depends on the grid, and with it the shape of the sticks. */
RIPPLE_OP(ripple_op, "ripple", "ripple attention: distance weights by stick breaking, r_max rings", ripple_declare, true,
          true);
RIPPLE_OP(ripple_fixed_op, "ripple-fixed", "ripple with fixed weights that halve from ring to ring",
          fixed_declare, false, true);
RIPPLE_OP(ripple_softmax_weights_op, "ripple-softmax-weights", "ripple with softmax instead of stick breaking",
          softmax_weights_declare, false, true);
RIPPLE_OP(ripple_truncated_op, "ripple-truncated", "ripple with weight zero at distance r_max and beyond",
          truncated_declare, false, true);
RIPPLE_OP(ripple_log_op, "ripple-log", "ripple with rings that double in width", log_declare, false, false);
RIPPLE_OP(ripple_dense_op, "ripple-dense", "ripple with a ring for every distance", dense_declare,
          false, false);

/* == Explicit softmax ============================================================================================= */

/* The paper's Appendix A, a reference for small grids: step 4 above becomes, without feature maps,
 *   mix_n = sum_r alpha_r(n) sum_{m: g(n,m)=r} softmax_m(q_n.k_m / sqrt D within the group) v_m
 * and blocks from `ripple_layers` on use softmax attention. */

static void explicit_declare(Attention *a, Params *params) {
    weights_declare(a, params, WEIGHTS_STICKS, RINGS_CAPPED, false);
}

static void explicit_plan(Attention *a, Plan *plan, int B) {
    Ripple *s = a->state;
    weights_plan(s, a, plan, B);
    plan_keep(plan, a->prefix, "lse", &s->lse, attention_head_floats(a, B) * (size_t)s->rings.G);
    plan_workspace(plan, ripple_explicit_workspace(&s->rings, a->D));
}

static void explicit_forward(const Attention *a, int B) {
    const Ripple *s = a->state;
    AttentionShape shape = attention_shape(a, B);
    weights_forward(s, a, B);
    ripple_explicit_forward(a->frame.mix, s->lse, s->alpha, a->frame.qkv_act, &s->rings, &shape);
}

static void explicit_backward(const Attention *a, int B) {
    const Ripple *s = a->state;
    AttentionShape shape = attention_shape(a, B);
    ripple_explicit_backward(a->frame.dqkv, s->dalpha, a->frame.dmix, s->lse, s->alpha, a->frame.qkv_act, &s->rings,
                             &shape);
    weights_backward(s, a, B);
}

static size_t explicit_macs(const Attention *a) { return weights_macs(a) + attention_pair_macs(a); }

extern const AttentionOp ripple_explicit_softmax_op;
static const AttentionOp *explicit_in_block(const Config *settings, int block) {
    return ripples(settings, block) ? &ripple_explicit_softmax_op : &softmax_op;
}

const AttentionOp ripple_explicit_softmax_op = {
    .name = "ripple-explicit-softmax",
    .summary = "ripple with a softmax inside each ring; for small grids",
    .paper = PAPER_RIPPLE,
    .settings = ATTENTION_SETTINGS(&ripple_settings),
    .grid_settings = ATTENTION_SETTINGS(&ripple_blocks_settings),
    .state_size = sizeof(Ripple),
    .in_block = explicit_in_block,
    .declare = explicit_declare,
    .plan = explicit_plan,
    .mix_forward = explicit_forward,
    .mix_backward = explicit_backward,
    .macs = explicit_macs,
};
