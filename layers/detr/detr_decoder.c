/* Decoder with spatially modulated co-attention.  memory [B,N,M] -> out [L,B,Q,M], out_l = norm_dec(t) after layer l
 * The state t [B,Q,M] starts at 0; E are the queries, the same for all images.
 * forward   1. o = norm4(t + E), from t as it enters the layer
 *           2. layer 0: raw = point1(o), reference = sigmoid(raw) (width, height) / 32;  all layers use this reference
 *           3. centre_h = reference + point2(o)_h, z = point3(o)
 *           4. t = norm1(t + drop(self-attention(t + E, t + E, t)))
 *           5. t = norm2(t + drop(cross-attention(t + E, memory + pos, memory))), modulated by (centre, z)
 *           6. t = norm3(t + drop(W2 drop(relu(W1 t))))   7. out = norm_dec(t)
 * backward  the same steps in reverse.  dE is the sum of the gradients of t + E in steps 1, 4 and 5, dreference the sum
 *           over the centres of all layers, dmemory the sum over the keys and values of all layers.
 * The dropouts of layer l have the sites first_site + 6 l + 0 (self-attention weights), 1 (output of self-attention),
 * 2 (cross-attention weights), 3 (output of cross-attention), 4 (hidden units) and 5 (feed-forward output). */
#include "layers/detr/detr_decoder.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/die.h"

/* == Parameters =================================================================================================== */

enum { SITE_SELF_WEIGHTS, SITE_SELF, SITE_CROSS_WEIGHTS, SITE_CROSS, SITE_INNER, SITE_FEED_FORWARD, SITES };

static Dropout site(const DetrDecoder *d, const Dropout *dropout, int layer, int which) {
    Dropout at = *dropout;
    at.site = (uint32_t)(d->first_site + SITES * layer + which);
    return at;
}

static void multi_head_declare(MultiHead *m, Params *params, const char *layer, const char *name, int M) {
    char prefix[PARAM_NAME_SIZE];
    snprintf(prefix, sizeof prefix, "%s%s.", layer, name);
    projection_declare_as(&m->in, params, prefix, "in_proj_", M, 3 * M, INIT_XAVIER_UNIFORM, INIT_ZEROS);
    projection_declare_as(&m->out, params, prefix, "out_proj.", M, M, INIT_XAVIER_UNIFORM, INIT_ZEROS);
}

static void layer_declare(DetrDecoder *d, int l, int hidden, Params *params) {
    DetrDecoderLayer *layer = &d->layers[l];
    int M = d->M, H = d->H, scales = modulation_scales(d->scale_type);
    snprintf(layer->prefix, sizeof layer->prefix, "transformer.decoder.layers.%d.", l);
    const char *prefix = layer->prefix;
    layer->begin = params->total;
    multi_head_declare(&layer->self, params, prefix, "self_attn", M);
    multi_head_declare(&layer->cross, params, prefix, "multihead_attn", M);
    feed_forward_declare(&layer->ffn, params, prefix, M, hidden);
    post_norm_declare(&layer->norm1, params, prefix, "norm1", M);
    post_norm_declare(&layer->norm2, params, prefix, "norm2", M);
    post_norm_declare(&layer->norm3, params, prefix, "norm3", M);
    post_norm_declare(&layer->norm4, params, prefix, "norm4", M);
    if (l == 0) {
        char name[PARAM_NAME_SIZE];
        snprintf(name, sizeof name, "%spoint1.", prefix);
        perceptron_declare(&d->point1, params, name, M, 2, INIT_XAVIER_UNIFORM);
    }
    projection_declare_as(&layer->point2, params, prefix, "point2.", M, 2 * H, INIT_XAVIER_UNIFORM,
                          INIT_FAN_IN_UNIFORM);
    if (scales) /* z is 1 at the start: a Gaussian with a standard deviation of two cells */
        projection_declare_as(&layer->point3, params, prefix, "point3.", M, H * scales, INIT_ZEROS, INIT_ONES);
}

void detr_decoder_create(DetrDecoder *d, int depth, int M, int H, int hidden, int queries, int scale_type,
                         int first_site, Params *params) {
    *d = (DetrDecoder){
        .depth = depth, .M = M, .H = H, .Q = queries, .scale_type = scale_type, .first_site = first_site};
    d->layers = xcalloc((size_t)depth, sizeof *d->layers, "decoder");
    d->begin = params->total;
    params_declare(params, (Param){.value = &d->queries, .grad = &d->dqueries, .named = {"query_embed.weight"},
                                   .init = INIT_NORMAL, .decay = true, .shape = {queries, M}});
    layer_norm_declare(&d->norm, params, "transformer.decoder.", "norm", M, true);
    for (int l = 0; l < depth; l++) layer_declare(d, l, hidden, params);
}

/* == Activations ================================================================================================== */

static MaskedAttention self_shape(const DetrDecoder *d, int B) {
    return (MaskedAttention){.B = B, .H = d->H, .D = d->M / d->H, .Q = d->Q, .grid = {1, 1, d->Q},
                             .q_row = 3 * d->M, .kv_row = 3 * d->M};
}

static MaskedAttention cross_shape(const DetrDecoder *d, const TokenBatch *batch) {
    return (MaskedAttention){.B = batch->B, .H = d->H, .D = d->M / d->H, .Q = d->Q, .grid = batch->grid,
                             .q_row = d->M, .kv_row = 2 * d->M, .cells = batch->cells, .scale_type = d->scale_type};
}

static void layer_plan(DetrDecoder *d, DetrDecoderLayer *layer, Plan *plan, size_t B, size_t N) {
    size_t n = B * (size_t)d->Q, M = (size_t)d->M, H = (size_t)d->H, row = M * sizeof(real);
    size_t scales = (size_t)modulation_scales(d->scale_type);
    int streams = 3 * (int)(layer - d->layers);
    real **place[2] = {streams % 2 ? &d->other : &d->t, streams % 2 ? &d->t : &d->other};
    PlanMark mark = plan_mark(plan);
    plan_keep(plan, layer->prefix, "centre", &layer->centre, n * H * 2 * sizeof(float));
    plan_keep(plan, layer->prefix, "z", &layer->z, n * H * scales * sizeof(real));
    plan_keep(plan, layer->prefix, "self_attn.qkv", &layer->qkv, 3 * n * row);
    plan_keep(plan, layer->prefix, "self_attn.mix", &layer->self_mix, n * row);
    plan_keep(plan, layer->prefix, "self_attn.lse", &layer->self_lse, n * H * sizeof(float));
    plan_keep(plan, layer->prefix, "multihead_attn.q", &layer->q, n * row);
    plan_keep(plan, layer->prefix, "multihead_attn.kv", &layer->kv, 2 * B * N * row);
    plan_keep(plan, layer->prefix, "multihead_attn.mix", &layer->cross_mix, n * row);
    plan_keep(plan, layer->prefix, "multihead_attn.lse", &layer->cross_lse, n * H * sizeof(float));
    plan_keep(plan, layer->prefix, "out_mean", &layer->out_mean, n * sizeof(float));
    plan_keep(plan, layer->prefix, "out_rstd", &layer->out_rstd, n * sizeof(float));
    post_norm_plan(&layer->norm4, plan, layer->prefix, "norm4", n, &d->te, &d->o);
    post_norm_plan(&layer->norm1, plan, layer->prefix, "norm1", n, place[0], place[1]);
    post_norm_plan(&layer->norm2, plan, layer->prefix, "norm2", n, place[1], place[0]);
    feed_forward_plan(&layer->ffn, plan, layer->prefix, n);
    post_norm_plan(&layer->norm3, plan, layer->prefix, "norm3", n, place[0], place[1]);
    plan_release(plan, mark);
}

static void gradients_plan(DetrDecoder *d, Plan *plan, size_t B, size_t N) {
    size_t n = B * (size_t)d->Q, row = (size_t)d->M * sizeof(real), H = (size_t)d->H;
    size_t scales = (size_t)modulation_scales(d->scale_type);
    real **rows[] = {&d->dt, &d->dsum, &d->df, &d->dmix, &d->dte, &d->dq, &d->dpoint};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) plan_borrow(plan, "decoder.", "gradient", rows[i], n * row);
    plan_borrow(plan, "decoder.", "dqkv", &d->dqkv, 3 * n * row);
    plan_borrow(plan, "decoder.", "dkv", &d->dkv, 2 * B * N * row);
    plan_borrow(plan, "decoder.", "dmemory_part", &d->dmemory_part, B * N * row);
    plan_borrow(plan, "decoder.", "doffset", &d->doffset, n * H * 2 * sizeof(real));
    plan_borrow(plan, "decoder.", "dz", &d->dz, n * H * scales * sizeof(real));
    plan_borrow(plan, "decoder.", "draw", &d->draw, n * 2 * sizeof(real));
    plan_borrow(plan, "decoder.", "dcentre", &d->dcentre, n * H * 2 * sizeof(float));
    plan_borrow(plan, "decoder.", "dreference", &d->dreference, n * 2 * sizeof(float));
}

void detr_decoder_plan(DetrDecoder *d, Plan *plan, int B, Grid grid) {
    size_t n = (size_t)B * (size_t)d->Q, N = (size_t)grid_tokens(grid), row = (size_t)d->M * sizeof(real);
    size_t outs = plan->training ? (size_t)d->depth : 1;
    MaskedAttention self = self_shape(d, B), cross = cross_shape(d, &(TokenBatch){.B = B, .grid = grid});
    plan_keep(plan, "decoder.", "t", &d->t, n * row);
    plan_keep(plan, "decoder.", "out", &d->out, outs * n * row);
    plan_keep(plan, "decoder.", "raw", &d->raw, n * 2 * sizeof(real));
    plan_keep(plan, "decoder.", "reference", &d->reference, n * 2 * sizeof(float));
    plan_keep(plan, "decoder.", "memory_pos", &d->memory_pos, (size_t)B * N * row);
    plan_borrow(plan, "decoder.", "te", &d->te, n * row);
    plan_borrow(plan, "decoder.", "f", &d->f, n * row);
    plan_borrow(plan, "decoder.", "offset", &d->offset, n * (size_t)d->H * 2 * sizeof(real));
    if (plan->training) {
        gradients_plan(d, plan, (size_t)B, N);
    } else {
        plan_keep(plan, "decoder.", "other", &d->other, n * row);
        plan_borrow(plan, "decoder.", "o", &d->o, n * row);
    }
    perceptron_plan(&d->point1, plan, "decoder.point1.", n);
    for (int l = 0; l < d->depth; l++) layer_plan(d, &d->layers[l], plan, (size_t)B, N);
    plan_workspace(plan, masked_attention_workspace(&self));
    plan_workspace(plan, masked_attention_workspace(&cross));
    plan_workspace(plan, layernorm_workspace(d->M));
}

/* == Forward ====================================================================================================== */

static Modulation modulation_of(const DetrDecoder *d, const DetrDecoderLayer *layer) {
    return (Modulation){layer->centre, modulation_scales(d->scale_type) ? layer->z : NULL};
}

/* decoder.norm of this layer's output. */
static LayerNorm out_norm(const DetrDecoder *d, const DetrDecoderLayer *layer, size_t n) {
    return (LayerNorm){d->norm.w, d->norm.b, layer->out_mean, layer->out_rstd, n, d->M, PYTORCH_NORM_EPS};
}

/* Steps 1 to 3. */
static void places_forward(const DetrDecoder *d, const DetrDecoderLayer *layer, const real *t, const int *sizes,
                           int B) {
    const PostNorm *norm = &layer->norm4;
    size_t n = (size_t)B * (size_t)d->Q;
    embed_forward(norm->sum, t, NULL, d->queries, &(TokenShape){B, d->Q, d->M});
    norm_layer_forward(&norm->norm, norm->x, norm->sum, n);
    if (layer == d->layers) {
        perceptron_forward(&d->point1, d->raw, norm->x, n);
        reference_points_forward(d->reference, d->raw, sizes, B, d->Q);
    }
    projection_forward(&layer->point2, d->offset, norm->x, n);
    centres_forward(layer->centre, d->reference, d->offset, n, d->H);
    if (modulation_scales(d->scale_type)) projection_forward(&layer->point3, layer->z, norm->x, n);
}

/* Step 4, without the norm. */
static void self_forward(const DetrDecoder *d, const DetrDecoderLayer *layer, real *f, const real *te, const real *t,
                         const Dropout *weights, int B) {
    const Projection *in = &layer->self.in;
    size_t n = (size_t)B * (size_t)d->Q, M = (size_t)d->M;
    MaskedAttention shape = self_shape(d, B);
    shape.dropout = *weights;
    LinearShape q_and_k = {n, d->M, 2 * d->M, shape.q_row}, v = {n, d->M, d->M, shape.q_row};
    MaskedInputs inputs = {layer->qkv, layer->qkv + M, layer->qkv + 2 * M};
    linear_forward(layer->qkv, te, in->w, in->b, &q_and_k);
    linear_forward(layer->qkv + 2 * M, t, in->w + 2 * M * M, in->b + 2 * M, &v);
    masked_attention_forward(layer->self_mix, layer->self_lse, &inputs, NULL, &shape);
    projection_forward(&layer->self.out, f, layer->self_mix, n);
}

/* Step 5, without the norm. */
static void cross_forward(const DetrDecoder *d, const DetrDecoderLayer *layer, real *f, const real *te,
                          const real *memory, const TokenBatch *batch, const Dropout *weights) {
    const Projection *in = &layer->cross.in;
    size_t B = (size_t)batch->B, M = (size_t)d->M, n = B * (size_t)d->Q, keys = B * (size_t)grid_tokens(batch->grid);
    MaskedAttention shape = cross_shape(d, batch);
    Modulation modulation = modulation_of(d, layer);
    shape.dropout = *weights;
    LinearShape k_or_v = {keys, d->M, d->M, shape.kv_row};
    MaskedInputs inputs = {layer->q, layer->kv, layer->kv + M};
    linear_forward(layer->q, te, in->w, in->b, &(LinearShape){n, d->M, d->M, 0});
    linear_forward(layer->kv, d->memory_pos, in->w + M * M, in->b + M, &k_or_v);
    linear_forward(layer->kv + M, memory, in->w + 2 * M * M, in->b + 2 * M, &k_or_v);
    masked_attention_forward(layer->cross_mix, layer->cross_lse, &inputs, &modulation, &shape);
    projection_forward(&layer->cross.out, f, layer->cross_mix, n);
}

void detr_decoder_forward(DetrDecoder *d, const real *memory, const TokenBatch *batch, const int *sizes,
                          const Dropout *dropout, bool all) {
    Rows rows = {batch->B, d->Q};
    size_t n = rows_total(rows), M = (size_t)d->M;
    const real *t = d->t;
    real *out = d->out;
    device_zero(d->t, n * M * sizeof *d->t);
    add_forward(d->memory_pos, memory, batch->pos, (size_t)batch->B * (size_t)grid_tokens(batch->grid) * M);
    for (int l = 0; l < d->depth; l++) {
        DetrDecoderLayer *layer = &d->layers[l];
        Dropout self_weights = site(d, dropout, l, SITE_SELF_WEIGHTS), self = site(d, dropout, l, SITE_SELF),
                cross_weights = site(d, dropout, l, SITE_CROSS_WEIGHTS), cross = site(d, dropout, l, SITE_CROSS),
                inner = site(d, dropout, l, SITE_INNER), last = site(d, dropout, l, SITE_FEED_FORWARD);
        places_forward(d, layer, t, sizes, batch->B);
        self_forward(d, layer, d->f, layer->norm4.sum, t, &self_weights, batch->B);
        post_norm_forward(&layer->norm1, t, d->f, rows, &self);
        embed_forward(d->te, layer->norm1.x, NULL, d->queries, &(TokenShape){batch->B, d->Q, d->M});
        cross_forward(d, layer, d->f, d->te, memory, batch, &cross_weights);
        post_norm_forward(&layer->norm2, layer->norm1.x, d->f, rows, &cross);
        feed_forward_forward(&layer->ffn, d->f, layer->norm2.x, rows, &inner);
        post_norm_forward(&layer->norm3, layer->norm2.x, d->f, rows, &last);
        t = layer->norm3.x;
        if (!all && l + 1 < d->depth) continue;
        LayerNorm norm = out_norm(d, layer, n);
        layernorm_forward(out, t, &norm);
        out += n * M;
    }
}

/* == Backward ===================================================================================================== */

/* dE += the sum of the gradient of t + E over images.  Uses df as scratch. */
static void queries_backward(DetrDecoder *d, int B) {
    embed_backward(d->df, NULL, d->dqueries, d->dte, &(TokenShape){B, d->Q, d->M});
}

/* Step 5: df -> dte, dcentre, dz, and adds to dmemory. */
static void cross_backward(DetrDecoder *d, const DetrDecoderLayer *layer, real *dmemory, const real *memory,
                           const TokenBatch *batch, const Dropout *weights) {
    const Projection *in = &layer->cross.in;
    size_t B = (size_t)batch->B, M = (size_t)d->M, n = B * (size_t)d->Q, keys = B * (size_t)grid_tokens(batch->grid);
    MaskedAttention shape = cross_shape(d, batch);
    Modulation modulation = modulation_of(d, layer);
    ModulationGradients gradients = {d->dcentre, d->dz};
    shape.dropout = *weights;
    projection_backward(&layer->cross.out, d->dmix, d->df, layer->cross_mix, n);
    masked_attention_backward(&(MaskedGradients){d->dq, d->dkv, d->dkv + M}, &gradients, d->dmix, layer->cross_mix,
                              layer->cross_lse, &(MaskedInputs){layer->q, layer->kv, layer->kv + M}, &modulation,
                              &shape);
    embed_forward(d->te, layer->norm1.x, NULL, d->queries, &(TokenShape){batch->B, d->Q, d->M});
    LinearShape q = {n, d->M, d->M, 0}, k_or_v = {keys, d->M, d->M, shape.kv_row};
    linear_backward_input(d->dte, d->dq, in->w, &q);
    linear_backward_weight(in->dw, in->db, d->dq, d->te, &q);
    linear_backward_input(dmemory, d->dkv, in->w + M * M, &(LinearShape){keys, d->M, 2 * d->M, 0});
    linear_backward_weight(in->dw + M * M, in->db + M, d->dkv, d->memory_pos, &k_or_v);
    linear_backward_weight(in->dw + 2 * M * M, in->db + 2 * M, d->dkv + M, memory, &k_or_v);
}

/* Step 4: df -> dte, and the gradient of t through the values. */
static void self_backward(DetrDecoder *d, const DetrDecoderLayer *layer, const real *te, const real *t,
                          const Dropout *weights, int B) {
    const Projection *in = &layer->self.in;
    size_t n = (size_t)B * (size_t)d->Q, M = (size_t)d->M;
    MaskedAttention shape = self_shape(d, B);
    shape.dropout = *weights;
    projection_backward(&layer->self.out, d->dmix, d->df, layer->self_mix, n);
    masked_attention_backward(&(MaskedGradients){d->dqkv, d->dqkv + M, d->dqkv + 2 * M}, NULL, d->dmix, layer->self_mix,
                              layer->self_lse, &(MaskedInputs){layer->qkv, layer->qkv + M, layer->qkv + 2 * M}, NULL,
                              &shape);
    LinearShape q_and_k = {n, d->M, 2 * d->M, shape.q_row}, v = {n, d->M, d->M, shape.q_row};
    linear_backward_input(d->dte, d->dqkv, in->w, &q_and_k);
    linear_backward_weight(in->dw, in->db, d->dqkv, te, &q_and_k);
    linear_backward_input(d->dt, d->dqkv + 2 * M, in->w + 2 * M * M, &v);
    linear_backward_weight(in->dw + 2 * M * M, in->db + 2 * M, d->dqkv + 2 * M, t, &v);
}

/* Steps 3 to 1: adds the gradient through dcentre and dz to dte, which contains that of self-attention. */
static void places_backward(DetrDecoder *d, const DetrDecoderLayer *layer, const float *draw_boxes, const int *sizes,
                            int B) {
    const PostNorm *norm = &layer->norm4;
    size_t n = (size_t)B * (size_t)d->Q, all = n * (size_t)d->M;
    centres_backward(d->doffset, d->dreference, d->dcentre, n, d->H);
    projection_backward(&layer->point2, d->dpoint, d->doffset, norm->x, n);
    if (modulation_scales(d->scale_type)) {
        projection_backward(&layer->point3, d->dmix, d->dz, norm->x, n);
        add_forward(d->dpoint, d->dpoint, d->dmix, all);
    }
    if (layer == d->layers) {
        reference_points_backward(d->draw, draw_boxes, d->dreference, d->raw, sizes, B, d->Q);
        perceptron_backward(&d->point1, d->dmix, d->draw, norm->x, n);
        add_forward(d->dpoint, d->dpoint, d->dmix, all);
    }
    const NormPair *pair = &norm->norm.pair;
    LayerNorm shape = norm_layer_of(&norm->norm, n);
    add_layernorm_backward(d->dte, NULL, pair->dw, pair->db, d->dte, d->dpoint, norm->sum, NULL, &shape);
}

void detr_decoder_backward(DetrDecoder *d, real *dmemory, const real *dout, const float *draw_boxes, const real *memory,
                           const TokenBatch *batch, const int *sizes, const Dropout *dropout, FinalGradients *final) {
    Rows rows = {batch->B, d->Q};
    size_t n = rows_total(rows), all = n * (size_t)d->M;
    size_t keys = (size_t)batch->B * (size_t)grid_tokens(batch->grid) * (size_t)d->M;
    device_zero(d->dreference, n * 2 * sizeof *d->dreference);
    for (int l = d->depth - 1; l >= 0; l--) {
        DetrDecoderLayer *layer = &d->layers[l];
        bool first = l == d->depth - 1; /* the first layer of the backward pass */
        const real *t = l > 0 ? layer[-1].norm3.x : d->t;
        Dropout self_weights = site(d, dropout, l, SITE_SELF_WEIGHTS), self = site(d, dropout, l, SITE_SELF),
                cross_weights = site(d, dropout, l, SITE_CROSS_WEIGHTS), cross = site(d, dropout, l, SITE_CROSS),
                inner = site(d, dropout, l, SITE_INNER), last = site(d, dropout, l, SITE_FEED_FORWARD);
        LayerNorm norm = out_norm(d, layer, n);
        add_layernorm_backward(d->dt, NULL, d->norm.dw, d->norm.db, first ? NULL : d->dt, dout + (size_t)l * all,
                               layer->norm3.x, NULL, &norm);
        post_norm_backward(&layer->norm3, d->dsum, d->df, d->dt, rows, &last);
        feed_forward_backward(&layer->ffn, d->df, d->df, layer->norm2.x, rows, &inner);
        add_forward(d->dt, d->dsum, d->df, all);
        post_norm_backward(&layer->norm2, d->dsum, d->df, d->dt, rows, &cross);
        cross_backward(d, layer, first ? dmemory : d->dmemory_part, memory, batch, &cross_weights);
        if (!first) add_forward(dmemory, dmemory, d->dmemory_part, keys);
        queries_backward(d, batch->B);
        add_forward(d->dt, d->dsum, d->dte, all);
        post_norm_backward(&layer->norm1, d->dsum, d->df, d->dt, rows, &self);
        self_backward(d, layer, layer->norm4.sum, t, &self_weights, batch->B);
        add_forward(d->dt, d->dt, d->dsum, all);
        places_backward(d, layer, draw_boxes, sizes, batch->B);
        queries_backward(d, batch->B);
        add_forward(d->dt, d->dt, d->dte, all);
        gradients_final(final, layer->begin);
    }
    gradients_final(final, d->begin);
}

size_t detr_decoder_macs(const DetrDecoder *d, size_t N) {
    size_t Q = (size_t)d->Q, M = (size_t)d->M, macs = perceptron_macs(&d->point1, Q);
    for (int l = 0; l < d->depth; l++) {
        const DetrDecoderLayer *layer = &d->layers[l];
        macs += projection_macs(&layer->self.in, Q) + projection_macs(&layer->self.out, Q) + 2 * Q * Q * M;
        macs += Q * M * M + 2 * N * M * M + projection_macs(&layer->cross.out, Q) + 2 * Q * N * M;
        macs += feed_forward_macs(&layer->ffn, Q) + projection_macs(&layer->point2, Q) +
                projection_macs(&layer->point3, Q);
    }
    return macs;
}

void detr_decoder_destroy(DetrDecoder *d) {
    free(d->layers);
    *d = (DetrDecoder){0};
}
