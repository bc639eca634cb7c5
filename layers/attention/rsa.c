/* Relational self-attention (Kim et al. 2021) over the whole grid.  x [B,N,M] -> y [B,N,M], t the offset on the grid
 * forward   1. q,k,v = x Wqkv^T   2. q^, k^, v^ at unit length, head by head
 *           3. kernel[n,e] = sum_c q^[n,c] (P1[c,e] + sum_m H1[t(n,m),c,e] k^[m,c])
 *           4. context[n,c] = sum_e kernel[n,e] sum_m H2[t(n,m),e] v^[m,c]
 *           5. mix[n,e] = sum_c context[n,c] (I[c,e] + sum_m G[t(n,m),e] v^[m,c])   6. y = mix Wproj^T + b
 * backward  6. dmix   5. 4. 3. dq^, dk^, dv^ and the tables   2. 1. dx
 * saves     qkv, unit (step 2), 1/|q|, 1/|k|, 1/|v|, kernel, context, mix.
 *
 * This is the option "VplusR" of the published code for both kernel and feature: basic plus relational kernel, and
 * appearance plus relation.  The published code first computes the sums of v^ over m for each e.  Here the products of
 * the tables with kernel and context come first, in rows of an N x N matrix that is not stored, which makes steps 4 and
 * 5 D times cheaper.  Each head has its own k and v, while H1, H2 and G [T,...] and P1 and I [D,D] are shared: the
 * model then has the LiSA paper's 8.23 M parameters (8.236 M).  As in the published code, Wqkv has no bias, P1 and I
 * are learned, and I is initialised as the identity; P1 begins with deviation 0.02, there with 1/sqrt(T D).  That code
 * divides by sqrt(|z|^2 + 1e-6) for unit length, this one by max(|z|, 1e-6). */
#include "layers/attention.h"
#include "layers/papers.h"

typedef struct {
    Patterns channels, shared; /* H1's offsets, and those of H2 and G: D patterns each */
    float *h1, *dh1;       /* [T,D,D] */
    float *h2, *dh2;       /* [T,D] */
    float *g, *dg;         /* [T,D] */
    float *p1, *dp1;       /* [D,D] */
    float *one, *done;     /* [D,D] */
    real *unit;            /* [B,N,3,H,D] kept */
    float *inverse;        /* [B,N,3,H] kept */
    real *kernel, *context; /* [B,N,H,D] kept */
    real *dkernel, *dcontext;  /* scratch */
} Rsa;

static void rsa_declare(Attention *a, Params *params) {
    Rsa *s = a->state;
    Offsets offsets = {OFFSETS_TOEPLITZ, a->grid, 0, 0};
    ParamGrid grid = {0, 1, 0, grid_offsets(a->grid)};
    ParamTime time = {TIME_TOEPLITZ, 0, grid.positions.frames, 0, false};
    int T = offsets_count(&offsets), D = a->D;
    s->channels = (Patterns){offsets, D, a->H, D, true};
    s->shared = (Patterns){offsets, D, a->H, D, false};
    params_declare(params, (Param){.value = &s->h1, .grad = &s->dh1, .named = {a->prefix, "H1.weight"},
                                   .init = INIT_TRUNC_NORMAL, .decay = true, .shape = {T, D, D}, .grid = grid,
                                   .time = time});
    params_declare(params, (Param){.value = &s->h2, .grad = &s->dh2, .named = {a->prefix, "H2.weight"},
                                   .init = INIT_TRUNC_NORMAL, .decay = true, .shape = {T, D}, .grid = grid,
                                   .time = time});
    params_declare(params, (Param){.value = &s->g, .grad = &s->dg, .named = {a->prefix, "G.weight"},
                                   .init = INIT_TRUNC_NORMAL, .decay = true, .shape = {T, D}, .grid = grid,
                                   .time = time});
    params_declare(params, (Param){.value = &s->p1, .grad = &s->dp1, .named = {a->prefix, "P1"},
                                   .init = INIT_TRUNC_NORMAL, .decay = true, .shape = {D, D}});
    params_declare(params, (Param){.value = &s->one, .grad = &s->done, .named = {a->prefix, "I"}, .init = INIT_ZEROS,
                                   .shape = {D, D}, .draw = identity_matrix});
}

static void rsa_plan(Attention *a, Plan *plan, int B) {
    Rsa *s = a->state;
    size_t n = attention_tokens(a, B), bytes = attention_bytes(a, B);
    plan_keep(plan, a->prefix, "unit", &s->unit, 3 * bytes);
    plan_keep(plan, a->prefix, "inverse", &s->inverse, n * 3 * (size_t)a->H * sizeof(float));
    plan_pair(plan, a->prefix, "kernel", &s->kernel, &s->dkernel, bytes);
    plan_pair(plan, a->prefix, "context", &s->context, &s->dcontext, bytes);
    plan_workspace(plan, patterns_workspace(&s->channels, B));
    plan_workspace(plan, patterns_workspace(&s->shared, B));
}

/* The sums of steps 3, 4 and 5. */
typedef struct {
    PatternSums kernel, context, mix;
} Steps;

static Steps steps_of(const Rsa *s, const Attention *a) {
    int M = a->M;
    return (Steps){.kernel = {s->channels, 3 * M, M, 3 * M, s->h1, s->p1, false},
                   .context = {s->shared, M, M, 3 * M, s->h2, NULL, false},
                   .mix = {s->shared, M, M, 3 * M, s->g, s->one, false}};
}

static void rsa_forward(const Attention *a, int B) {
    const Rsa *s = a->state;
    const real *q = s->unit, *k = q + a->M, *v = k + a->M;
    Steps steps = steps_of(s, a);
    UnitLengths lengths = {attention_tokens(a, B), 3, a->H, a->D};
    l2_normalize_forward(s->unit, s->inverse, a->frame.qkv_act, &lengths);
    patterns_collect_forward(s->kernel, q, k, &steps.kernel, B);
    patterns_spread_forward(s->context, s->kernel, v, &steps.context, B);
    patterns_collect_forward(a->frame.mix, s->context, v, &steps.mix, B);
}

static void rsa_backward(const Attention *a, int B) {
    const Rsa *s = a->state;
    const QkvFrame *f = &a->frame;
    const real *q = s->unit, *k = q + a->M, *v = k + a->M;
    real *dq = f->dqkv, *dk = dq + a->M, *dv = dk + a->M;
    Steps steps = steps_of(s, a);
    UnitLengths lengths = {attention_tokens(a, B), 3, a->H, a->D};
    patterns_collect_backward(s->dcontext, dv, NULL, &(PatternSumsGradients){s->dg, s->done}, f->dmix, s->context, v,
                              &steps.mix, B);
    patterns_spread_backward(s->dkernel, dv, dv, &(PatternSumsGradients){s->dh2, NULL}, s->dcontext, s->kernel, v,
                             &steps.context, B);
    patterns_collect_backward(dq, dk, NULL, &(PatternSumsGradients){s->dh1, s->dp1}, s->dkernel, q, k, &steps.kernel,
                              B);
    l2_normalize_backward(f->dqkv, f->dqkv, s->unit, s->inverse, &lengths);
}

/* The count is that of the LiSA paper (Table 3): the three sums over m for every channel and e, then their products
 * with q^, kernel and context. */
static size_t rsa_macs(const Attention *a) {
    size_t N = (size_t)a->N, M = (size_t)a->M, D = (size_t)a->D;
    return 3 * N * N * M * D + 3 * N * M * D;
}

const AttentionOp rsa_op = {
    .name = "rsa",
    .summary = "relational self-attention: kernels, contexts by relative position (RSA)",
    .paper = PAPER_RSA,
    .no_qkv_bias = true,
    .state_size = sizeof(Rsa),
    .declare = rsa_declare,
    .plan = rsa_plan,
    .mix_forward = rsa_forward,
    .mix_backward = rsa_backward,
    .macs = rsa_macs,
};
