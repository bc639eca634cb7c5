/* The operator table: one line an operator. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "layers/attention/feature_map.h"

extern const AttentionOp softmax_op, linear_op, ripple_op, ripple_fixed_op, ripple_softmax_weights_op,
    ripple_truncated_op, ripple_log_op, ripple_dense_op, ripple_explicit_softmax_op, convit_op, focused_op,
    sparse_strided_op, sparse_fixed_op, efficient_op, hydra_op, relu_linear_op, castling_op, nystrom_op, soft_op,
    lisa_op, sa9_op, sa9_heads_op, sa10_op, sa11_op, gf_op, dwconv7_op, convattn_op, lambda_op, inception_op,
    rsa_op;

const AttentionOp *const attention_operators[] = {
    &softmax_op,
    &linear_op,
    &ripple_op,
    &ripple_fixed_op,
    &ripple_softmax_weights_op,
    &ripple_truncated_op,
    &ripple_log_op,
    &ripple_dense_op,
    &ripple_explicit_softmax_op,
    &convit_op,
    &focused_op,
    &sparse_strided_op,
    &sparse_fixed_op,
    &efficient_op,
    &hydra_op,
    &relu_linear_op,
    &castling_op,
    &nystrom_op,
    &soft_op,
    &lisa_op,
    &sa9_op,
    &sa9_heads_op,
    &sa10_op,
    &sa11_op,
    &gf_op,
    &dwconv7_op,
    &convattn_op,
    &lambda_op,
    &inception_op,
    &rsa_op,
    NULL,
};

enum { OPERATORS = sizeof attention_operators / sizeof *attention_operators - 1 };

const AttentionOp *attention_find(const char *name) {
    for (int i = 0; i < OPERATORS; i++)
        if (!strcmp(attention_operators[i]->name, name)) return attention_operators[i];
    return NULL;
}

const char *const *attention_names(int *count) {
    static const char *names[OPERATORS];
    for (int i = 0; i < OPERATORS; i++) names[i] = attention_operators[i]->name;
    *count = OPERATORS;
    return names;
}

void attention_create(Attention *a, const AttentionConfig *config, int block, int Hg, int Wg, bool class_token, int M) {
    memset(a, 0, sizeof *a);
    const AttentionOp *chosen = attention_find(config->attn);
    if (!chosen) die_usage("attn: unknown operator '%s'", config->attn);
    a->op = chosen->in_block ? attention_find(chosen->in_block(config, block)) : chosen;
    if (a->op->needs_grid && class_token)
        die_usage("attn %s works on the token grid and has no place for a class token: use pool = gap", config->attn);
    const FeatureMapKind *map = feature_map_find(config->feature_map);
    if (a->op->needs_positive && map && map->negative)
        die_usage("attn %s cannot weigh features that may be negative, as those of feature_map %s", a->op->name,
                  map->name);
    if (!a->op->takes_relative && strcmp(config->relative, "none"))
        die_usage("attn %s has no place for relative %s: it goes with attn linear", a->op->name, config->relative);
    if (a->op->in_block) a->op = attention_find(a->op->in_block(config, block));
    if (M % config->heads) die_usage("dim %d is not a multiple of heads %d", M, config->heads);
    a->config = *config;
    a->block = block;
    snprintf(a->prefix, sizeof a->prefix, "blocks.%d.attn.", block);
    a->Hg = Hg;
    a->Wg = Wg;
    a->N = Hg * Wg + class_token;
    a->M = M;
    a->H = config->heads;
    a->D = M / config->heads;
    a->qkv_bias = !chosen->no_qkv_bias;
    a->state = xcalloc(1, a->op->state_size, "attention");
}

void attention_destroy(Attention *a) {
    free(a->state);
    memset(a, 0, sizeof *a);
}

/* == Queries, keys, values ======================================================================================== */

void qkv_declare(QkvFrame *f, const Attention *a, Params *params) {
    (a->qkv_bias ? projection_declare : projection_declare_weight)(&f->qkv, params, a->prefix, "qkv", a->M, 3 * a->M);
    projection_declare(&f->proj, params, a->prefix, "proj", a->M, a->M);
}

void qkv_plan(QkvFrame *f, const Attention *a, Plan *plan, int B) {
    size_t bytes = (size_t)B * (size_t)a->N * (size_t)a->M * sizeof(real);
    plan_keep(plan, a->prefix, "qkv", &f->qkv_act, 3 * bytes);
    plan_keep(plan, a->prefix, "mix", &f->mix, bytes);
    if (plan->training) {
        plan_borrow(plan, a->prefix, "dqkv", &f->dqkv, 3 * bytes);
        plan_borrow(plan, a->prefix, "dmix", &f->dmix, bytes);
    }
}

void qkv_forward_in(const QkvFrame *f, const Attention *a, const real *x, int B) {
    projection_forward(&f->qkv, f->qkv_act, x, (size_t)B * (size_t)a->N);
}

void qkv_forward_out(const QkvFrame *f, const Attention *a, real *y, int B) {
    projection_forward(&f->proj, y, f->mix, (size_t)B * (size_t)a->N);
}

void qkv_backward_out(const QkvFrame *f, const Attention *a, const real *dy, int B) {
    projection_backward(&f->proj, f->dmix, dy, f->mix, (size_t)B * (size_t)a->N);
}

void qkv_backward_in(const QkvFrame *f, const Attention *a, real *dx, const real *x, int B) {
    projection_backward(&f->qkv, dx, f->dqkv, x, (size_t)B * (size_t)a->N);
}

size_t qkv_macs(const QkvFrame *f, const Attention *a) {
    return projection_macs(&f->qkv, (size_t)a->N) + projection_macs(&f->proj, (size_t)a->N);
}

void qkv_softmax_row(const QkvFrame *f, const Attention *a, float *weights, int b, int head, int query) {
    size_t row = 3 * (size_t)a->M;
    float *qkv = xcalloc((size_t)a->N, row * sizeof *qkv, "attention picture");
    float scale = 1 / sqrtf((float)a->D), sum = 0, largest = -INFINITY;
    real_download(qkv, f->qkv_act + (size_t)b * (size_t)a->N * row, (size_t)a->N * row);
    const float *q = qkv + (size_t)query * row + (size_t)(head * a->D);
    for (int m = 0; m < a->N; m++) {
        const float *k = qkv + (size_t)m * row + (size_t)(a->M + head * a->D);
        weights[m] = 0;
        for (int d = 0; d < a->D; d++) weights[m] += scale * q[d] * k[d];
        if (weights[m] > largest) largest = weights[m];
    }
    for (int m = 0; m < a->N; m++) sum += weights[m] = expf(weights[m] - largest);
    for (int m = 0; m < a->N; m++) weights[m] /= sum;
    free(qkv);
}
