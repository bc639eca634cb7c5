/* Sparse attention (Child et al. 2019, Sparse Transformers), in both directions: softmax attention over a set of keys.
 * forward   1. q,k,v = x Wqkv^T + b   2. mix_n = sum_m in S(n) softmax_m(q_n.k_m / sqrt D) v_m   3. y = mix Wproj^T + b
 * backward  3. dmix   2. dq, dk, dv from the saved log-sum-exp, tile by tile   1. dx
 * saves     qkv, mix, lse [B,H,N].
 * S(n), with l = sparse_stride tokens, or the grid's width:
 *   sparse-strided  A: |n - m| <= l              B: n = m modulo l, on the grid n's column
 *   sparse-fixed    A: n's own block of l tokens B: the last sparse_c tokens of every block
 * That is the paper's text; in its code a window of l tokens counts the query, |n - m| < l.
 * sparse_heads: blocks take A and B by turns (alternate), every head sees both (union), or the first half of the heads
 * sees A and the others B (split). */
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "layers/attention/attention.h"

typedef struct {
    QkvFrame frame;
    SparsePattern pattern;
    float *lse; /* [B,H,N] */
} Sparse;

static void sparse_declare(Attention *a, Params *params, bool fixed) {
    Sparse *s = a->state;
    const AttentionConfig *c = &a->config;
    int l = c->sparse_stride ? c->sparse_stride : a->grid.columns, H = a->H;
    if (l > a->N) die_usage("sparse_stride %d is more than the %d tokens: use %d at most, or 0", l, a->N, a->N);
    if (fixed && c->sparse_c > l)
        die_usage("sparse_c %d is more than the %d tokens of a block: use %d at most", c->sparse_c, l, l);
    s->pattern = (SparsePattern){.fixed = fixed, .stride = l, .summary = fixed ? c->sparse_c : 1};
    if (!strcmp(c->sparse_heads, "union")) {
        s->pattern.first = s->pattern.second = H;
    } else if (!strcmp(c->sparse_heads, "split")) {
        if (H < 2) die_usage("sparse_heads split shares out the heads, and there is one: use two heads, or union");
        s->pattern.first = (H + 1) / 2;
        s->pattern.second = H / 2;
    } else {
        s->pattern.first = a->block % 2 == 0 ? H : 0;
        s->pattern.second = H - s->pattern.first;
    }
    qkv_declare(&s->frame, a, params);
}

static void strided_declare(Attention *a, Params *params) { sparse_declare(a, params, false); }
static void fixed_declare(Attention *a, Params *params) { sparse_declare(a, params, true); }

static void sparse_plan(Attention *a, Plan *plan, int B) {
    Sparse *s = a->state;
    PlanMark mark = plan_mark(plan);
    qkv_plan(&s->frame, a, plan, B);
    plan_keep(plan, a->prefix, "lse", &s->lse, (size_t)B * (size_t)a->H * (size_t)a->N * sizeof(float));
    plan_workspace(plan, sparse_attention_workspace(&s->pattern, a->N, a->D));
    plan_release(plan, mark);
}

static void sparse_forward(const Attention *a, real *y, const real *x, int B) {
    const Sparse *s = a->state;
    qkv_forward_in(&s->frame, a, x, B);
    sparse_attention_forward(s->frame.mix, s->lse, s->frame.qkv_act, &s->pattern, B, a->N, a->H, a->D);
    qkv_forward_out(&s->frame, a, y, B);
}

static void sparse_backward(const Attention *a, real *dx, const real *dy, const real *x, int B) {
    const Sparse *s = a->state;
    qkv_backward_out(&s->frame, a, dy, B);
    sparse_attention_backward(s->frame.dqkv, s->frame.dmix, s->frame.mix, s->lse, s->frame.qkv_act, &s->pattern, B,
                              a->N, a->H, a->D);
    qkv_backward_in(&s->frame, a, dx, x, B);
}

static bool sees(const Sparse *s, const Attention *a, int head, int n, int m) {
    const SparsePattern *p = &s->pattern;
    int l = p->stride;
    bool first = p->fixed ? n / l == m / l : abs(n - m) <= l,
         second = p->fixed ? m % l >= l - p->summary : n % l == m % l;
    return (head < p->first && first) || (head >= a->H - p->second && second);
}

static size_t sparse_macs(const Attention *a) {
    const Sparse *s = a->state;
    size_t pairs = 0;
    for (int head = 0; head < a->H; head++)
        for (int n = 0; n < a->N; n++)
            for (int m = 0; m < a->N; m++) pairs += sees(s, a, head, n, m);
    return qkv_macs(&s->frame, a) + 2 * pairs * (size_t)a->D;
}

static void sparse_weights(const Attention *a, float *weights, int b, int head, int query) {
    const Sparse *s = a->state;
    float sum = 0;
    qkv_softmax_row(&s->frame, a, weights, b, head, query);
    for (int m = 0; m < a->N; m++) sum += weights[m] *= sees(s, a, head, query, m);
    for (int m = 0; m < a->N; m++) weights[m] /= sum;
}

#define SPARSE_OP(id, label, text, declare_function)  \
    const AttentionOp id = {                          \
        .name = label,                                \
        .summary = text,                              \
        .needs_grid = true,                           \
        .state_size = sizeof(Sparse),                 \
        .declare = declare_function,                  \
        .plan = sparse_plan,                          \
        .forward = sparse_forward,                    \
        .backward = sparse_backward,                  \
        .macs = sparse_macs,                          \
        .weights = sparse_weights,                    \
    }

SPARSE_OP(sparse_strided_op, "sparse-strided",
          "softmax over neighbouring tokens and the own column (Sparse Transformers)", strided_declare);
SPARSE_OP(sparse_fixed_op, "sparse-fixed",
          "softmax over the own block and all blocks' ends (Sparse Transformers)", fixed_declare);
