/* Post-norm encoder.  x [B,N,M] -> x [B,N,M]
 * forward   1. x = norm1(x + drop(attention(x + pos, x + pos, x)))   2. x = norm2(x + drop(W2 drop(relu(W1 x))))
 * backward  2. dsum, df; dx = dsum + feed-forward's   1. the same with attention's
 * There is no norm after the last layer.  The dropouts of layer l have the sites 4 l + 0 (attention weights), 1 (output
 * of attention), 2 (hidden units) and 3 (output of the feed-forward network). */
#include "layers/detr/detr_encoder.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/die.h"

enum { SITE_WEIGHTS, SITE_ATTENTION, SITE_INNER, SITE_FEED_FORWARD, SITES };

static Dropout site(const Dropout *dropout, int layer, int which) {
    Dropout d = *dropout;
    d.site = (uint32_t)(SITES * layer + which);
    return d;
}

/* == Parameters and activations =================================================================================== */

static void layer_declare(DetrEncoderLayer *layer, const Config *settings, const AttentionOp *attn, int l, int M,
                          int heads, int hidden, bool per_head, Params *params) {
    snprintf(layer->prefix, sizeof layer->prefix, "transformer.encoder.layers.%d.", l);
    layer->begin = params->total;
    layer->frame.per_head = per_head;
    attention_create_detector(&layer->attention, attn, settings, &layer->frame, l, M, heads);
    int first = params->count;
    attention_declare(&layer->attention, params);
    params_decay_from(params, first);
    feed_forward_declare(&layer->ffn, params, layer->prefix, M, hidden);
    post_norm_declare(&layer->norm1, params, layer->prefix, "norm1", M);
    post_norm_declare(&layer->norm2, params, layer->prefix, "norm2", M);
}

void detr_encoder_create(DetrEncoder *e, const Config *settings, const AttentionOp *attn, int depth, int M, int heads,
                         int hidden, bool per_head, Params *params) {
    *e = (DetrEncoder){.depth = depth, .M = M};
    e->layers = xcalloc((size_t)depth, sizeof *e->layers, "encoder");
    for (int l = 0; l < depth; l++)
        layer_declare(&e->layers[l], settings, attn, l, M, heads, hidden, per_head, params);
}

int detr_encoder_sites(const DetrEncoder *e) { return SITES * e->depth; }

void detr_encoder_plan(DetrEncoder *e, Plan *plan, int B, Grid grid, real **x) {
    size_t n = (size_t)B * (size_t)grid_tokens(grid), bytes = n * (size_t)e->M * sizeof(real);
    if (!plan->training) plan_keep(plan, "transformer.encoder.", "other", &e->other, bytes);
    plan_borrow(plan, "transformer.encoder.", "f", &e->f, bytes);
    if (plan->training) {
        plan_borrow(plan, "transformer.encoder.", "df", &e->df, bytes);
        plan_borrow(plan, "transformer.encoder.", "dsum", &e->dsum, bytes);
    }
    for (int l = 0; l < e->depth; l++) {
        DetrEncoderLayer *layer = &e->layers[l];
        Attention *a = &layer->attention;
        attention_set_grid(a, grid);
        attention_plan(a, plan, B);
        post_norm_plan(&layer->norm1, plan, layer->prefix, "norm1", n, x, &e->other);
        feed_forward_plan(&layer->ffn, plan, layer->prefix, n);
        post_norm_plan(&layer->norm2, plan, layer->prefix, "norm2", n, &e->other, x);
    }
}

/* == Forward and backward ========================================================================================= */

static void layer_set_batch(DetrEncoderLayer *layer, const TokenBatch *batch, const Dropout *dropout, int l) {
    attention_set_grid(&layer->attention, batch->grid);
    layer->frame.pos = batch->pos;
    layer->frame.cells = batch->cells;
    layer->frame.dropout = site(dropout, l, SITE_WEIGHTS);
}

const real *detr_encoder_forward(DetrEncoder *e, const real *x, const TokenBatch *batch, const Dropout *dropout) {
    Rows rows = {batch->B, grid_tokens(batch->grid)};
    for (int l = 0; l < e->depth; l++) {
        DetrEncoderLayer *layer = &e->layers[l];
        Attention *a = &layer->attention;
        Dropout branch = site(dropout, l, SITE_ATTENTION), inner = site(dropout, l, SITE_INNER),
                last = site(dropout, l, SITE_FEED_FORWARD);
        layer_set_batch(layer, batch, dropout, l);
        attention_forward(a, e->f, x, batch->B);
        post_norm_forward(&layer->norm1, x, e->f, rows, &branch);
        feed_forward_forward(&layer->ffn, e->f, layer->norm1.x, rows, &inner);
        post_norm_forward(&layer->norm2, layer->norm1.x, e->f, rows, &last);
        x = layer->norm2.x;
    }
    return x;
}

void detr_encoder_backward(DetrEncoder *e, real *dx, const real *x, const TokenBatch *batch, const Dropout *dropout,
                           FinalGradients *final) {
    Rows rows = {batch->B, grid_tokens(batch->grid)};
    size_t n = rows_total(rows) * (size_t)e->M;
    for (int l = e->depth - 1; l >= 0; l--) {
        DetrEncoderLayer *layer = &e->layers[l];
        Attention *a = &layer->attention;
        const real *in = l > 0 ? layer[-1].norm2.x : x;
        Dropout branch = site(dropout, l, SITE_ATTENTION), inner = site(dropout, l, SITE_INNER),
                last = site(dropout, l, SITE_FEED_FORWARD);
        post_norm_backward(&layer->norm2, e->dsum, e->df, dx, rows, &last);
        feed_forward_backward(&layer->ffn, e->df, e->df, layer->norm1.x, rows, &inner);
        add_forward(dx, e->dsum, e->df, n);
        post_norm_backward(&layer->norm1, e->dsum, e->df, dx, rows, &branch);
        layer_set_batch(layer, batch, dropout, l);
        attention_backward(a, e->df, e->df, in, batch->B);
        add_forward(dx, e->dsum, e->df, n);
        gradients_final(final, layer->begin);
    }
}

size_t detr_encoder_macs(DetrEncoder *e, Grid grid) {
    size_t macs = 0;
    for (int l = 0; l < e->depth; l++) {
        attention_set_grid(&e->layers[l].attention, grid);
        macs += attention_macs(&e->layers[l].attention) +
                feed_forward_macs(&e->layers[l].ffn, (size_t)grid_tokens(grid));
    }
    return macs;
}

void detr_encoder_destroy(DetrEncoder *e) {
    for (int l = 0; l < e->depth; l++) attention_destroy(&e->layers[l].attention);
    free(e->layers);
    *e = (DetrEncoder){0};
}
