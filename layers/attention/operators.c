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
    rsa_op, conv_op;

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
    &conv_op,
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

static void set_width(Attention *a, const AttentionConfig *config, int block, int M) {
    if (M % config->heads) die_usage("dim %d is not a multiple of heads %d", M, config->heads);
    a->config = *config;
    a->block = block;
    a->M = M;
    a->H = config->heads;
    a->D = M / config->heads;
    a->state = xcalloc(1, a->op->state_size, "attention");
}

void attention_create(Attention *a, const AttentionConfig *config, const char *prefix, int block, Grid grid,
                      bool class_token, int M) {
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
    set_width(a, config, block, M);
    snprintf(a->prefix, sizeof a->prefix, "%.40sattn.", prefix);
    a->grid = grid;
    a->N = grid_tokens(grid) + class_token;
    a->qkv_bias = !chosen->no_qkv_bias;
}

/* The names of the operators that a detector can have: "softmax, linear, ripple". */
static const char *names_with_mask(void) {
    static char names[256];
    names[0] = 0;
    for (int i = 0; i < OPERATORS; i++)
        if (attention_operators[i]->takes_mask)
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", *names ? ", " : "",
                     attention_operators[i]->name);
    return names;
}

void attention_create_detector(Attention *a, const AttentionConfig *config, int layer, int M) {
    memset(a, 0, sizeof *a);
    a->op = attention_find(config->attn);
    if (!a->op) die_usage("attn: unknown operator '%s'", config->attn);
    if (!a->op->takes_mask)
        die_usage("attn %s knows no padding and no grid that changes from batch to batch: a detector takes %s",
                  a->op->name, names_with_mask());
    if (config->relative && strcmp(config->relative, "none"))
        die_usage("relative %s: the grid of a detector changes from batch to batch; use none", config->relative);
    if (config->rpe && strcmp(config->rpe, "none"))
        die_usage("rpe %s: the grid of a detector changes from batch to batch; use none", config->rpe);
    set_width(a, config, layer, M);
    a->config.relative = "none";
    a->config.ripple_layers = layer + 1;
    snprintf(a->prefix, sizeof a->prefix, "transformer.encoder.layers.%d.self_attn.", layer);
    a->qkv_bias = a->detector = true;
    attention_set_grid(a, (Grid){1, 1, 1});
}

void attention_set_grid(Attention *a, Grid grid) {
    a->grid = grid;
    a->N = grid_tokens(grid);
}

void attention_destroy(Attention *a) {
    free(a->state);
    memset(a, 0, sizeof *a);
}

/* == Queries, keys, values ======================================================================================== */

void qkv_declare(QkvFrame *f, const Attention *a, Params *params) {
    if (a->detector) {
        projection_declare_as(&f->qkv, params, a->prefix, "in_proj_", a->M, 3 * a->M, INIT_XAVIER_UNIFORM, INIT_ZEROS);
        projection_declare_as(&f->proj, params, a->prefix, "out_proj.", a->M, a->M, INIT_XAVIER_UNIFORM, INIT_ZEROS);
        return;
    }
    (a->qkv_bias ? projection_declare : projection_declare_weight)(&f->qkv, params, a->prefix, "qkv", a->M, 3 * a->M);
    projection_declare(&f->proj, params, a->prefix, "proj", a->M, a->M);
}

void qkv_plan(QkvFrame *f, const Attention *a, Plan *plan, int B) {
    size_t bytes = (size_t)B * (size_t)a->N * (size_t)a->M * sizeof(real);
    plan_keep(plan, a->prefix, "qkv", &f->qkv_act, 3 * bytes);
    plan_keep(plan, a->prefix, "mix", &f->mix, bytes);
    if (a->detector) plan_borrow(plan, a->prefix, "with_pos", &f->with_pos, bytes);
    if (plan->training) {
        plan_borrow(plan, a->prefix, "dqkv", &f->dqkv, 3 * bytes);
        plan_borrow(plan, a->prefix, "dmix", &f->dmix, bytes);
    }
}

static size_t tokens_of(const Attention *a, int B) { return (size_t)B * (size_t)a->N; }

void qkv_forward_in(const QkvFrame *f, const Attention *a, const real *x, int B) {
    size_t n = tokens_of(a, B), two = 2 * (size_t)a->M, M = (size_t)a->M;
    if (!a->detector) {
        projection_forward(&f->qkv, f->qkv_act, x, n);
        return;
    }
    add_forward(f->with_pos, x, a->pos, n * M);
    LinearShape q_and_k = {n, a->M, 2 * a->M, 3 * a->M}, v = {n, a->M, a->M, 3 * a->M};
    linear_forward(f->qkv_act, f->with_pos, f->qkv.w, f->qkv.b, &q_and_k);
    linear_forward(f->qkv_act + two, x, f->qkv.w + two * M, f->qkv.b + two, &v);
}

void qkv_forward_out(const QkvFrame *f, const Attention *a, real *y, int B) {
    projection_forward(&f->proj, y, f->mix, tokens_of(a, B));
}

void qkv_backward_out(const QkvFrame *f, const Attention *a, const real *dy, int B) {
    projection_backward(&f->proj, f->dmix, dy, f->mix, tokens_of(a, B));
}

void qkv_backward_in(const QkvFrame *f, const Attention *a, real *dx, const real *x, int B) {
    size_t n = tokens_of(a, B), two = 2 * (size_t)a->M, M = (size_t)a->M;
    if (!a->detector) {
        projection_backward(&f->qkv, dx, f->dqkv, x, n);
        return;
    }
    add_forward(f->with_pos, x, a->pos, n * M);
    LinearShape q_and_k = {n, a->M, 2 * a->M, 3 * a->M}, v = {n, a->M, a->M, 3 * a->M};
    linear_backward_input(dx, f->dqkv, f->qkv.w, &(LinearShape){n, a->M, 3 * a->M, 0});
    linear_backward_weight(f->qkv.dw, f->qkv.db, f->dqkv, f->with_pos, &q_and_k);
    linear_backward_weight(f->qkv.dw + two * M, f->qkv.db + two, f->dqkv + two, x, &v);
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
