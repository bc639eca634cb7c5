/* Lambda convolution (Bello 2021, LambdaNetworks): position lambdas over the whole grid.  x [B,N,M] -> y [B,N,M]
 * forward   1. q,v = x Wqv^T   2. layer norm of each, head by head
 *           3. mix_n = L_n^T q_n, L_n = sum_m embedding[t(n,m)] v_m^T, t the offset on the grid
 *           4. y = mix Wproj^T + b
 * backward  4. dmix   3. dq, dv, dembedding   2. 1. dx
 * saves     qv, normed (step 2), mix.
 *
 * L_n is never stored: mix_n = sum_m (q_n.embedding[t(n,m)]) v_m, computed for one row of N products at a time.
 *
 * This is the variant that the LiSA paper compares with.  The numbers in its Table 3, 5.41 M parameters and 2.41 G
 * multiply-adds, are exactly those of q and v of the model's width without biases, one embedding [729,16] for all
 * heads, an output projection, and no keys.  The whole layer of LambdaNetworks, where the heads share u keys and values
 * and a content lambda is added, would have 5.04 M parameters with u = 1 and 5.68 M with u = 4.  LambdaNetworks
 * normalises q and v by batch norms; here layer norms, with weights that the heads share, normalise each token.  Its
 * embedding begins with deviation 1, this one with 0.02. */
#include <stdlib.h>

#include "core/die.h"
#include "layers/attention.h"
#include "layers/layer_norm.h"
#include "layers/papers.h"
#include "layers/projection.h"

static const float EPSILON = 1e-6f;

enum { Q, V, PARTS };

typedef struct {
    Projection qv, proj;
    NormPair norm[PARTS];  /* of D */
    float *embedding, *dembedding; /* [T,D] */
    Patterns patterns;
    real *qv_act, *normed; /* [B,N,2,M] kept */
    real *mix;             /* [B,N,M] kept */
    real *dnormed, *dmix;  /* scratch */
} Lambda;

static void lambda_declare(Attention *a, Params *params) {
    Lambda *s = a->state;
    int M = a->M, D = a->D;
    s->patterns = (Patterns){{OFFSETS_TOEPLITZ, a->grid, 0, 0}, D, a->H, D, false};
    projection_declare_weight(&s->qv, params, a->prefix, "qv", M, 2 * M);
    layer_norm_declare(&s->norm[Q], params, a->prefix, "norm_q", D, false);
    layer_norm_declare(&s->norm[V], params, a->prefix, "norm_v", D, false);
    params_declare(params, (Param){.value = &s->embedding, .grad = &s->dembedding,
                                   .named = {a->prefix, "embedding.weight"}, .init = INIT_TRUNC_NORMAL, .decay = true,
                                   .shape = {offsets_count(&s->patterns.offsets), D},
                                   .grid = {0, 1, 0, grid_offsets(a->grid)},
                                   .time = {TIME_TOEPLITZ, 0, grid_offsets(a->grid).frames, 0, false}});
    projection_declare(&s->proj, params, a->prefix, "proj", M, M);
}

static void lambda_plan(Attention *a, Plan *plan, int B) {
    Lambda *s = a->state;
    size_t bytes = attention_bytes(a, B);
    plan_keep(plan, a->prefix, "qv", &s->qv_act, 2 * bytes);
    plan_pair(plan, a->prefix, "normed", &s->normed, &s->dnormed, 2 * bytes);
    plan_pair(plan, a->prefix, "mix", &s->mix, &s->dmix, bytes);
    plan_workspace(plan, heads_norm_workspace(a->D));
    plan_workspace(plan, patterns_workspace(&s->patterns, B));
}

static HeadsNorm norm_of(const Attention *a, int B) {
    return (HeadsNorm){attention_tokens(a, B), 2 * a->M, a->H, a->D, EPSILON};
}

static PatternSums lambdas_of(const Lambda *s, const Attention *a) {
    return (PatternSums){s->patterns, a->M, 2 * a->M, 2 * a->M, s->embedding, NULL, false};
}

static void lambda_forward(const Attention *a, real *y, const real *x, int B) {
    const Lambda *s = a->state;
    HeadsNorm norm = norm_of(a, B);
    PatternSums lambdas = lambdas_of(s, a);
    size_t n = norm.n;
    int M = a->M;
    projection_forward(&s->qv, s->qv_act, x, n);
    for (int i = 0; i < PARTS; i++)
        heads_norm_forward(s->normed + i * M, s->qv_act + i * M, s->norm[i].w, s->norm[i].b, &norm);
    patterns_spread_forward(s->mix, s->normed, s->normed + M, &lambdas, B);
    projection_forward(&s->proj, y, s->mix, n);
}

static void lambda_backward(const Attention *a, real *dx, const real *dy, const real *x, int B) {
    const Lambda *s = a->state;
    HeadsNorm norm = norm_of(a, B);
    PatternSums lambdas = lambdas_of(s, a);
    size_t n = norm.n;
    int M = a->M;
    projection_backward(&s->proj, s->dmix, dy, s->mix, n);
    patterns_spread_backward(s->dnormed, s->dnormed + M, NULL, &(PatternSumsGradients){s->dembedding, NULL}, s->dmix,
                             s->normed, s->normed + M, &lambdas, B);
    for (int i = 0; i < PARTS; i++)
        heads_norm_backward(s->dnormed + i * M, s->norm[i].dw, s->norm[i].db, s->dnormed + i * M, s->qv_act + i * M,
                            s->norm[i].w, &norm);
    projection_backward(&s->qv, dx, s->dnormed, x, n);
}

/* The count is that of the paper, for a convolution that computes all L_n: each channel of v with each channel of the
 * embedding. */
static size_t lambda_macs(const Attention *a) {
    const Lambda *s = a->state;
    size_t N = (size_t)a->N, M = (size_t)a->M, D = (size_t)a->D;
    return projection_macs(&s->qv, N) + projection_macs(&s->proj, N) + N * N * M * D + N * M * D;
}

/* AttentionOp.weights: q_query.embedding[t(query,j)]. */
static void lambda_weights(const Attention *a, float *weights, int b, int head, int query) {
    const Lambda *s = a->state;
    size_t D = (size_t)a->D, T = (size_t)offsets_count(&s->patterns.offsets);
    float *q = xcalloc(D, sizeof *q, "attention picture"), *embedding = xcalloc(T * D, sizeof *q, "attention picture");
    real_download(q, s->normed + ((size_t)b * (size_t)a->N + (size_t)query) * 2 * (size_t)a->M + (size_t)head * D, D);
    device_download(embedding, s->embedding, T * D * sizeof *embedding);
    for (int j = 0; j < a->N; j++) {
        const float *entry = embedding + (size_t)offset_of(&s->patterns.offsets, query, j) * D;
        weights[j] = 0;
        for (size_t c = 0; c < D; c++) weights[j] += q[c] * entry[c];
    }
    free(embedding);
    free(q);
}

const AttentionOp lambda_op = {
    .name = "lambda",
    .summary = "weights from the query and learned vectors of offsets (LambdaNetworks)",
    .paper = PAPER_LAMBDA,
    .state_size = sizeof(Lambda),
    .declare = lambda_declare,
    .plan = lambda_plan,
    .forward = lambda_forward,
    .backward = lambda_backward,
    .macs = lambda_macs,
    .weights = lambda_weights,
};
