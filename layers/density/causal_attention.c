/* Causal attention, dense or sparse (Child et al. 2019).  x [B,N,M] -> y [B,N,M]
 * forward   1. q, k, v = x Wqkv^T + b   2. mix_i = sum_j in S(i) softmax_j(q_i.k_j / sqrt Dk) v_j   3. y = mix Wp^T + b
 * backward  3. dmix   2. dq, dk, dv from the saved log-sum-exp, tile by tile   1. dx
 * saves     q, k, v, mix, lse. */
#include "layers/density/causal_attention.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "layers/papers.h"

/* == Settings ===================================================================================================== */

typedef struct {
    SetScheme scheme;
    const char *sets;
} SetsSettings;

typedef struct {
    int window;
} StridedSettings;

typedef struct {
    int summary, sub_blocks;
} FixedSettings;

static const char *const set_names[CAUSAL_SETS] = {"dense", "window", "column", "strided", "block", "summary", "fixed"};

static const ConfigChoice attentions[] = {
    [ATTEND_SOFTMAX] = {"softmax", "dense causal attention to all earlier tokens", PAPER_ATTENTION},
    [ATTEND_STRIDED] = {"sparse-strided", "softmax over the tokens just before and the token's column", PAPER_SPARSE},
    [ATTEND_FIXED] = {"sparse-fixed", "softmax over the token's block and all blocks' ends", PAPER_SPARSE},
};

static const ConfigEntry entries[] = {
    {CONFIG_FIELD(CHOICE, CausalSettings, attn), "softmax", .section = "model",
     .about = attentions, .choice_count = 3, .noun = "attention", .list = "Attention",
     .help = "Earlier tokens that a token attends to: all (softmax), its neighbours and its column (sparse-strided), "
             "or its block and the ends of all blocks (sparse-fixed)"},
};

static const ConfigEntry sparse_entries[] = {
    {CONFIG_FIELD(CHOICE, SetsSettings, scheme), "interleaved", CONFIG_CHOICES("interleaved", "merged", "split"),
     .section = "attention",
     .help = "How the two sets of a sparse attention are used: interleaved, one in each block by the list of sets; "
             "merged, their union in every head; split, one in each half of the heads"},
    {CONFIG_FIELD(STRING, SetsSettings, sets), "",
     .help = "The sets of interleaved blocks, a list that repeats: window, column and dense for sparse-strided "
             "(default: window,column), block, summary and dense for sparse-fixed (block,summary)"},
};

static const ConfigEntry strided_entries[] = {
    {CONFIG_FIELD(INT, StridedSettings, window), "0", .section = "attention", .min = 0, .max = 1e8,
     .help = "Number of tokens in sparse-strided's window, including the token itself (0: stride; the paper's text has "
             "stride + 1); merged always has stride"},
};

static const ConfigEntry fixed_entries[] = {
    {CONFIG_FIELD(INT, FixedSettings, summary), "32", .section = "attention", .min = 1, .max = 1e6,
     .help = "Tokens at the end of each block of sparse-fixed that all later tokens attend to (c)"},
    {CONFIG_FIELD(INT, FixedSettings, sub_blocks), "1", .min = 1, .max = 1024,
     .help = "Head h of sparse-fixed attends to other c tokens of each block: those before the last (h mod sub_blocks) "
             "c tokens"},
};

static const ConfigGroup causal_settings = {CONFIG_GROUP(CausalSettings, entries), .change = CHANGE_NEVER};
static const ConfigGroup sparse_settings = {CONFIG_GROUP(SetsSettings, sparse_entries), .change = CHANGE_NEVER};
static const ConfigGroup strided_settings = {CONFIG_GROUP(StridedSettings, strided_entries), .change = CHANGE_NEVER};
static const ConfigGroup fixed_settings = {CONFIG_GROUP(FixedSettings, fixed_entries), .change = CHANGE_NEVER};

void causal_add_settings(Config *config) {
    config_add(config, &causal_settings);
    config_add_for(config, &sparse_settings, "attn", "sparse-strided, sparse-fixed");
    config_add_for(config, &strided_settings, "attn", "sparse-strided");
    config_add_for(config, &fixed_settings, "attn", "sparse-fixed");
}

static Attend attn_of(const Config *config) {
    return ((const CausalSettings *)config_settings(config, &causal_settings))->attn;
}

const char *causal_attn_name(const Config *config) { return attentions[attn_of(config)].name; }

void causal_use_settings(Config *config) {
    if (attn_of(config) != ATTEND_SOFTMAX) config_use(config, &sparse_settings);
    if (attn_of(config) == ATTEND_STRIDED) config_use(config, &strided_settings);
    if (attn_of(config) == ATTEND_FIXED) config_use(config, &fixed_settings);
}

/* The sets that an attention has, in the order of the paper. */
static const CausalSet sets_of[][2] = {
    [ATTEND_STRIDED] = {CAUSAL_WINDOW, CAUSAL_COLUMN}, [ATTEND_FIXED] = {CAUSAL_BLOCK, CAUSAL_SUMMARY}};

enum { MOST_SETS = 64 };

/* Reads the list of sets into `sets`; returns their number, or 0 and the name that is not a set of attn. */
static int read_sets(CausalSet sets[MOST_SETS], const char *list, Attend attn, char unknown[32]) {
    int count = 0;
    while (*list) {
        size_t length = strcspn(list, ","), begin = strspn(list, " "), end = length;
        while (end > begin && list[end - 1] == ' ') end--;
        snprintf(unknown, 32, "%.*s", (int)(end - begin), list + begin);
        const CausalSet known[] = {sets_of[attn][0], sets_of[attn][1], CAUSAL_DENSE};
        int which = 0;
        while (which < 3 && strcmp(unknown, set_names[known[which]])) which++;
        if (which == 3 || count == MOST_SETS) return 0;
        sets[count++] = known[which];
        list += length + (list[length] == ',');
    }
    return count;
}

static void check_sets(const Config *config, const SetsSettings *s, Attend attn) {
    CausalSet sets[MOST_SETS];
    char unknown[32];
    if (!*s->sets) return;
    if (s->scheme != SCHEME_INTERLEAVED)
        config_reject(config, "sets", "{sets} is a list of sets, but {scheme} takes none");
    if (!read_sets(sets, s->sets, attn, unknown))
        config_reject(config, "sets", "{sets} has '%s', but the sets of {attn} are %s, %s and dense, %d at most", unknown,
                      set_names[sets_of[attn][0]], set_names[sets_of[attn][1]], MOST_SETS);
}

void causal_check_settings(const Config *config, int n, int stride, int heads) {
    const SetsSettings *s = config_settings(config, &sparse_settings);
    const FixedSettings *fixed = config_settings(config, &fixed_settings);
    Attend attn = attn_of(config);
    if (stride > n)
        config_reject(config, "stride", "{stride=%d} is more than the %d tokens of a sequence: use %d at most", stride, n, n);
    if (attn == ATTEND_SOFTMAX) return;
    check_sets(config, s, attn);
    if (s->scheme == SCHEME_SPLIT && heads < 2)
        config_reject(config, "scheme", "{scheme} divides the heads between two sets, which {heads} does not allow: use two "
                                        "heads, or merged");
    if (attn != ATTEND_FIXED) return;
    if (fixed->summary > stride)
        config_reject(config, "summary", "{summary} is more than the %d tokens of a block, which {stride} makes: use %d at most",
                      stride, stride);
    if (fixed->sub_blocks > stride / fixed->summary)
        config_reject(config, "sub_blocks", "{sub_blocks} times {summary} is more than the %d tokens of a block, which {stride} "
                                            "makes: use %d at most", stride, stride / fixed->summary);
}

/* Returns the sets of keys of a block's heads, from settings that have passed the check. */
static CausalPattern pattern_of(const Config *config, int block, int stride, int heads) {
    const SetsSettings *s = config_settings(config, &sparse_settings);
    const FixedSettings *fixed = config_settings(config, &fixed_settings);
    int window = ((const StridedSettings *)config_settings(config, &strided_settings))->window;
    Attend attn = attn_of(config);
    CausalSet sets[MOST_SETS] = {sets_of[attn][0], sets_of[attn][1]};
    CausalPattern p = {.first = CAUSAL_DENSE, .second = CAUSAL_DENSE, .split = heads, .stride = stride,
                       .window = window ? window : stride, .summary = 1, .subblocks = 1};
    if (attn == ATTEND_SOFTMAX) return p;
    if (attn == ATTEND_FIXED) {
        p.summary = fixed->summary;
        p.subblocks = fixed->sub_blocks;
    }
    if (s->scheme == SCHEME_MERGED) {
        p.first = p.second = attn == ATTEND_FIXED ? CAUSAL_FIXED : CAUSAL_STRIDED;
    } else if (s->scheme == SCHEME_SPLIT) {
        p.first = sets[0];
        p.second = sets[1];
        p.split = (heads + 1) / 2;
    } else {
        char unknown[32];
        int count = *s->sets ? read_sets(sets, s->sets, attn, unknown) : 2;
        assert(count > 0); /* causal_check_settings has read the sets */
        p.first = p.second = sets[block % count];
    }
    return p;
}

const char *causal_pattern_name(const CausalPattern *p, int heads, char text[32]) {
    if (p->split >= heads) snprintf(text, 32, "%s", set_names[p->first]);
    else snprintf(text, 32, "%s and %s", set_names[p->first], set_names[p->second]);
    return text;
}

/* == Parameters and activations =================================================================================== */

static int key_width(const Attention *a) { return a->causal->Dk; }

static void declare(Attention *a, Params *params) {
    CausalLayer *c = a->state;
    int row = a->frame.qkv.out;
    (void)params;
    c->pattern = pattern_of(a->settings, a->place.block, a->causal->stride, a->H);
    c->shape = (CausalShape){.H = a->H, .Dk = a->causal->Dk, .Dv = a->D, .q_row = row, .k_row = row, .v_row = row};
}

static CausalShape shape_of(const CausalLayer *c, int B, int N) {
    CausalShape shape = c->shape;
    shape.B = B;
    shape.N = N;
    return shape;
}

static void plan(Attention *a, Plan *plan, int B) {
    CausalLayer *c = a->state;
    CausalShape shape = shape_of(c, B, a->N);
    plan_keep(plan, a->prefix, "lse", &c->lse, attention_head_floats(a, B));
    plan_workspace(plan, causal_attention_workspace(&c->pattern, &shape));
}

/* == The cache ==================================================================================================== */

/* Rows of keys, or of values, that the cache of B sequences has. */
static size_t cache_rows(const Attention *a, int B) {
    const CausalLayer *c = a->state;
    return (size_t)B * causal_cache_first(&c->pattern, a->H, a->causal->n);
}

static size_t rounded_to_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

static size_t key_bytes(const Attention *a, int B) {
    return rounded_to_lines(cache_rows(a, B) * (size_t)a->causal->Dk * sizeof(real));
}

size_t causal_cache_bytes(const Attention *a, int B) {
    return key_bytes(a, B) + rounded_to_lines(cache_rows(a, B) * (size_t)a->D * sizeof(real));
}

void causal_set_cache(const Attention *a, char *memory, int B) {
    CausalLayer *c = a->state;
    c->cache = (CausalCache){(real *)memory, (real *)(memory + key_bytes(a, B))};
}

/* The part of the cache that belongs to the sequences of this call. */
static CausalCache cache_of(const Attention *a) {
    const CausalLayer *c = a->state;
    size_t begin = cache_rows(a, a->causal->first);
    return (CausalCache){c->cache.k + begin * (size_t)a->causal->Dk, c->cache.v + begin * (size_t)a->D};
}

/* == Forward and backward ========================================================================================= */

/* q, k and v of the fused rows. */
static CausalInputs inputs_of(const Attention *a) {
    const real *q = a->frame.qkv_act, *k = q + a->H * a->causal->Dk;
    return (CausalInputs){q, k, k + a->H * a->causal->Dk};
}

static void forward(const Attention *a, int B) {
    const CausalLayer *c = a->state;
    const CausalFrame *frame = a->causal;
    CausalShape shape = shape_of(c, B, a->N), whole = shape_of(c, B, frame->n);
    CausalInputs in = inputs_of(a);
    if (frame->cached) {
        CausalCache cache = cache_of(a);
        if (a->N == 1) causal_attention_step(a->frame.mix, &cache, &in, &c->pattern, &whole, frame->row);
        else causal_cache_fill(&cache, &in, &c->pattern, &whole, a->N);
    }
    if (!frame->cached || a->N > 1) causal_attention_forward(a->frame.mix, c->lse, &in, &c->pattern, &shape);
}

static void backward(const Attention *a, int B) {
    const CausalLayer *c = a->state;
    CausalShape shape = shape_of(c, B, a->N);
    CausalInputs in = inputs_of(a);
    int keys = a->H * a->causal->Dk;
    real *dq = a->frame.dqkv;
    causal_attention_backward(&(CausalGradients){dq, dq + keys, dq + 2 * keys}, a->frame.dmix, a->frame.mix, c->lse,
                              &in, &c->pattern, &shape);
}

/* == Counting ===================================================================================================== */

/* The pairs of all heads. */
static double pairs_of(const Attention *a) {
    const CausalLayer *c = a->state;
    double pairs = 0;
    for (int h = 0; h < a->H; h++) pairs += causal_pairs(&c->pattern, h, a->causal->n);
    return pairs;
}

static size_t macs(const Attention *a) { return (size_t)(pairs_of(a) * (a->causal->Dk + a->D)); }

double causal_score_macs(const Attention *a) { return pairs_of(a) * a->causal->Dk; }

double causal_share(const Attention *a) {
    return pairs_of(a) / (a->H * (0.5 * a->causal->n * (a->causal->n + 1.0)));
}

const AttentionOp causal_op = {
    .name = "causal",
    .summary = "softmax over the token and those before it, all of them or a sparse set",
    .paper = PAPER_SPARSE,
    .state_size = sizeof(CausalLayer),
    .key_width = key_width,
    .declare = declare,
    .plan = plan,
    .mix_forward = forward,
    .mix_backward = backward,
    .macs = macs,
};
