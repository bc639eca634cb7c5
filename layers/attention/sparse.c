/* Sparse attention (Child et al. 2019, Sparse Transformers) without a causal mask: softmax attention over a set of
 * keys.  x [B,N,M] -> y [B,N,M]
 * forward   1. q,k,v = x Wqkv^T + b   2. mix_n = sum_m in S(n) softmax_m(q_n.k_m / sqrt D) v_m
 *           3. y = mix Wproj^T + b
 * backward  3. dmix   2. dq, dk, dv from the saved log-sum-exp, tile by tile   1. dx
 * saves     qkv, mix, lse [B,H,N].
 *
 * S(n), with the tokens as one sequence, those of a clip frame after frame, and l = sparse_stride, or the grid's width
 * if that is 0:
 *   sparse-strided  A: |n - m| <= l              B: n = m modulo l; if l is the grid's width, the column of n
 *                                                 in all frames
 *   sparse-fixed    A: n's own block of l tokens B: the last sparse_c tokens of every block
 * This follows the paper's text; in its code the window of l tokens includes the query, |n - m| < l.
 * sparse_heads: blocks use A and B alternately (alternate), every head uses their union (union), or the first half of
 * the heads uses A and the others B (split). */
#include <stdlib.h>

#include "core/integers.h"
#include "layers/attention.h"
#include "layers/papers.h"

typedef enum { SETS_ALTERNATE, SETS_UNION, SETS_SPLIT } Sets;

typedef struct {
    Sets sparse_heads;
    int sparse_stride;
} SparseHeadsSettings;

typedef struct {
    int sparse_c;
} SparseFixedSettings;

static const ConfigEntry entries[] = {
    {CONFIG_FIELD(CHOICE, SparseHeadsSettings, sparse_heads), "alternate", CONFIG_CHOICES("alternate", "union", "split"),
     .section = "attention",
     .help = "How sparse attention uses its two sets of keys: alternating from block to block, the union of both in "
             "every head, or one set in each half of the heads"},
    {CONFIG_FIELD(INT, SparseHeadsSettings, sparse_stride), "0", .min = 0, .max = 1e6,
     .help = "Stride of sparse attention: the number of tokens in a row or block (0: the width of the token grid)"},
};

static const ConfigEntry fixed_entries[] = {
    {CONFIG_FIELD(INT, SparseFixedSettings, sparse_c), "2", .section = "attention", .min = 1, .max = 1e6,
     .help = "Number of tokens at the end of each block of sparse-fixed that all tokens attend to"},
};

static const ConfigGroup sparse_settings = {CONFIG_GROUP(SparseHeadsSettings, entries), .change = CHANGE_NEVER};
static const ConfigGroup sparse_fixed_settings = {CONFIG_GROUP(SparseFixedSettings, fixed_entries),
                                                  .change = CHANGE_NEVER};

typedef struct {
    SparsePattern pattern;
    float *lse; /* [B,H,N] */
} Sparse;

static const SparseHeadsSettings *settings_of(const Attention *a) {
    return config_settings(a->settings, &sparse_settings);
}

static int stride_of(const Attention *a) {
    int stride = settings_of(a)->sparse_stride;
    return stride ? stride : a->grid.columns;
}

static int summary_of(const Attention *a) {
    return ((const SparseFixedSettings *)config_settings(a->settings, &sparse_fixed_settings))->sparse_c;
}

static void sparse_check(const Attention *a) {
    int l = stride_of(a);
    if (l > a->N)
        config_reject(a->settings, "sparse_stride", "{sparse_stride} is more than the %d tokens that {img_size} and "
                      "{patch_size} make: use %d at most, or 0", a->N, a->N);
    if (settings_of(a)->sparse_heads == SETS_SPLIT && a->H < 2)
        config_reject(a->settings, "sparse_heads", "{sparse_heads} divides the heads between two sets of keys, which "
                      "{heads=%d} does not allow: use two heads, or union", a->H);
}

static void fixed_check(const Attention *a) {
    int l = stride_of(a), c = summary_of(a);
    sparse_check(a);
    if (c > l)
        config_reject(a->settings, "sparse_c", "{sparse_c} is more than the %d tokens of a block, which "
                      "{sparse_stride} makes: use %d at most", l, l);
}

extern const AttentionOp sparse_fixed_op;

static void sparse_declare(Attention *a, Params *params) {
    Sparse *s = a->state;
    int H = a->H;
    bool fixed = a->op == &sparse_fixed_op;
    (void)params;
    s->pattern = (SparsePattern){.fixed = fixed, .stride = stride_of(a), .summary = fixed ? summary_of(a) : 1};
    switch (settings_of(a)->sparse_heads) {
    case SETS_UNION:
        s->pattern.first = s->pattern.second = H;
        break;
    case SETS_SPLIT:
        s->pattern.first = (H + 1) / 2;
        s->pattern.second = H / 2;
        break;
    case SETS_ALTERNATE:
        s->pattern.first = a->place.block % 2 == 0 ? H : 0;
        s->pattern.second = H - s->pattern.first;
    }
}

static void sparse_plan(Attention *a, Plan *plan, int B) {
    Sparse *s = a->state;
    plan_keep(plan, a->prefix, "lse", &s->lse, attention_head_floats(a, B));
    plan_workspace(plan, sparse_attention_workspace(&s->pattern, a->N, a->D));
}

static void sparse_forward(const Attention *a, int B) {
    const Sparse *s = a->state;
    AttentionShape shape = attention_shape(a, B);
    sparse_attention_forward(a->frame.mix, s->lse, a->frame.qkv_act, &s->pattern, &shape);
}

static void sparse_backward(const Attention *a, int B) {
    const Sparse *s = a->state;
    AttentionShape shape = attention_shape(a, B);
    sparse_attention_backward(a->frame.dqkv, a->frame.dmix, a->frame.mix, s->lse, a->frame.qkv_act, &s->pattern,
                              &shape);
}

static bool sees(const Sparse *s, const Attention *a, int head, int n, int m) {
    const SparsePattern *p = &s->pattern;
    int l = p->stride;
    bool first = p->fixed ? n / l == m / l : abs(n - m) <= l,
         second = p->fixed ? m % l >= l - p->summary : n % l == m % l;
    return (head < p->first && first) || (head >= a->H - p->second && second);
}

/* pairs (=): the numbers of pairs of tokens that the first set of keys has, the second, and both. */
static void count_pairs(size_t pairs[3], const SparsePattern *p, int tokens) {
    size_t N = (size_t)tokens, l = (size_t)p->stride, c = (size_t)p->summary, whole = N / l, rest = N % l;
    size_t ends = rest > l - c ? rest - (l - c) : 0; /* of the last block, which is incomplete */
    if (p->fixed) {
        pairs[0] = whole * l * l + rest * rest;
        pairs[1] = N * (whole * c + ends);
        pairs[2] = whole * l * c + rest * ends;
    } else {
        pairs[0] = near_pairs(N, l);
        pairs[1] = rest * (whole + 1) * (whole + 1) + (l - rest) * whole * whole;
        pairs[2] = N + 2 * (N - l);
    }
}

static size_t sparse_macs(const Attention *a) {
    const Sparse *s = a->state;
    size_t of[3], pairs;
    int first = s->pattern.first, second = s->pattern.second, both = larger(first + second - a->H, 0);
    count_pairs(of, &s->pattern, a->N);
    pairs = (size_t)first * of[0] + (size_t)second * of[1] - (size_t)both * of[2];
    return 2 * pairs * (size_t)a->D;
}

static void sparse_weights(const Attention *a, float *weights, int b, int head, int query) {
    const Sparse *s = a->state;
    float sum = 0;
    attention_qkv_row(a->frame.qkv_act, a, weights, b, head, query);
    for (int m = 0; m < a->N; m++) sum += weights[m] *= sees(s, a, head, query, m);
    for (int m = 0; m < a->N; m++) weights[m] /= sum;
}

#define SPARSE_OP                    \
    .state_size = sizeof(Sparse),    \
    .declare = sparse_declare,       \
    .plan = sparse_plan,             \
    .mix_forward = sparse_forward,   \
    .mix_backward = sparse_backward, \
    .macs = sparse_macs,             \
    .weights = sparse_weights

const AttentionOp sparse_strided_op = {
    .name = "sparse-strided",
    .summary = "softmax over neighbours and every stride-th token (Sparse Transformers)",
    .paper = PAPER_SPARSE,
    .settings = ATTENTION_SETTINGS(&sparse_settings),
    .check = sparse_check,
    SPARSE_OP,
};

const AttentionOp sparse_fixed_op = {
    .name = "sparse-fixed",
    .summary = "softmax over a block and last tokens of all blocks (Sparse Transformers)",
    .paper = PAPER_SPARSE,
    .settings = ATTENTION_SETTINGS(&sparse_settings, &sparse_fixed_settings),
    .check = fixed_check,
    SPARSE_OP,
};
