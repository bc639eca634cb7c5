/* SMCA-DETR.  images [B,H,W,3] -> logits [L,B,Q,C], boxes [L,B,Q,4]
 * forward   1. features = backbone(images) [B,N,2048]   2. x = input_proj(features) [B,N,M]
 *           3. pos = sine positions of the cells that are no padding   4. memory = encoder(x, pos)
 *           5. out = decoder(memory, pos)   6. logits, boxes = heads(out)
 * backward  6. dout   5. dmemory   4. dx   2. dfeatures   1. the backbone's
 * Padding reaches nothing that counts: encoder and decoder see valid keys alone, so its features have no gradient. */
#include "layers/detr.h"

#include <stdlib.h>
#include <string.h>

#include "core/die.h"

static bool has_backbone(const Detr *detr) { return detr->config.backbone.width > 0; }

/* == Parameters =================================================================================================== */

static void neck_declare(Detr *detr) {
    int in = detr->config.channels, M = detr->config.dim;
    detr->neck.in = in;
    detr->neck.out = M;
    params_declare_fan(&detr->params, &detr->neck.w, &detr->neck.dw, "input_proj.", "weight", in, true, 4,
                       (int[]){M, in, 1, 1});
    params_declare_fan(&detr->params, &detr->neck.b, &detr->neck.db, "input_proj.", "bias", in, true, 1, (int[]){M});
}

static void check(const DetrConfig *c) {
    if (c->dim % 4) die_usage("dim %d: sine positions need a multiple of 4", c->dim);
    if (c->dim % c->attention.heads) die_usage("dim %d is not a multiple of heads %d", c->dim, c->attention.heads);
    if (c->scale_type < 1 || c->scale_type > 4) die_usage("scale_type %d: 1, 2, 3 or 4", c->scale_type);
    if (!(c->dropout >= 0 && c->dropout < 1)) die_usage("dropout %g: at least 0, below 1", (double)c->dropout);
    if (c->encoder_layers < 1 || c->decoder_layers < 1 || c->encoder_layers + c->decoder_layers > 99)
        die_usage("%d encoder and %d decoder layers: at least one of each, at most 99 together", c->encoder_layers,
                  c->decoder_layers);
}

void detr_create(Detr *detr, const DetrConfig *config) {
    memset(detr, 0, sizeof *detr);
    detr->config = *config;
    check(config);
    if (has_backbone(detr)) {
        resnet_create(&detr->backbone, &config->backbone, &detr->params);
        detr->config.channels = resnet_channels(&detr->backbone);
    }
    detr->backbone_floats = detr->params.total;
    neck_declare(detr);
    detr_encoder_create(&detr->encoder, &config->attention, config->encoder_layers, config->dim, config->ffn,
                        &detr->params);
    detr_decoder_create(&detr->decoder, config->decoder_layers, config->dim, config->attention.heads, config->ffn,
                        config->queries, config->scale_type, detr_encoder_sites(&detr->encoder), &detr->params);
    detr_heads_create(&detr->heads, config->dim, config->columns, &detr->params);
}

void detr_fold(Detr *detr) {
    if (has_backbone(detr)) resnet_fold(&detr->backbone);
}

/* == Activations ================================================================================================== */

static void activations_plan(Detr *detr, Plan *plan, bool training) {
    const DetrConfig *c = &detr->config;
    size_t B = (size_t)detr->most, image = 3 * (size_t)detr->most_h * (size_t)detr->most_w;
    Grid grid = {1, resnet_grid(detr->most_h), resnet_grid(detr->most_w)};
    size_t n = B * (size_t)grid_tokens(grid), bytes = n * (size_t)c->dim * sizeof(real);
    size_t features = n * (size_t)c->channels * sizeof(real);
    plan_start(plan, training);
    if (has_backbone(detr)) {
        plan_keep(plan, "", "pixels", &detr->pixels, B * image);
        plan_keep(plan, "", "images", &detr->images, B * image * sizeof(real));
    }
    plan_keep(plan, "", "sizes", &detr->sizes, B * 2 * sizeof *detr->sizes);
    plan_keep(plan, "", "cells", &detr->cells, B * 2 * sizeof *detr->cells);
    if (has_backbone(detr)) {
        resnet_plan(&detr->backbone, plan, detr->most, detr->most_h, detr->most_w);
        plan_alias(plan, &detr->features, &detr->backbone.features);
    } else {
        plan_keep(plan, "", "features", &detr->features, features);
    }
    plan_keep(plan, "", "x", &detr->x, bytes);
    plan_keep(plan, "", "pos", &detr->pos, bytes);
    if (training) {
        plan_borrow(plan, "", "dx", &detr->dx, bytes);
        plan_keep(plan, "", "dfeatures", &detr->dfeatures, features); /* read while the backbone uses its scratch */
    }
    detr_encoder_plan(&detr->encoder, plan, detr->most, grid, &detr->x);
    detr_decoder_plan(&detr->decoder, plan, detr->most, grid);
    detr_heads_plan(&detr->heads, plan, training ? c->decoder_layers : 1, B * (size_t)c->queries);
}

void detr_plan(Detr *detr, int B, int H, int W, bool training) {
    detr->most = B;
    detr->most_h = H;
    detr->most_w = W;
    activations_plan(detr, &detr->inference, false);
    if (training) activations_plan(detr, &detr->training, true);
}

static size_t planned_bytes(const Detr *detr) {
    size_t training = plan_bytes(&detr->training), inference = plan_bytes(&detr->inference);
    return training > inference ? training : inference;
}

void detr_allocate(Detr *detr) {
    detr->memory = device_malloc(planned_bytes(detr), "activations");
    detr->cells_host = xcalloc(2 * (size_t)detr->most, sizeof *detr->cells_host, "sizes of images");
    detr_set_training(detr, detr->training.count > 0);
}

void detr_set_training(Detr *detr, bool training) {
    detr->plan = training ? &detr->training : &detr->inference;
    plan_bind(detr->plan, detr->memory);
}

size_t detr_activation_bytes(const Detr *detr) {
    size_t training = detr->training.workspace, inference = detr->inference.workspace;
    return planned_bytes(detr) + (training > inference ? training : inference);
}

/* == A batch ====================================================================================================== */

/* Of `cells` cells along `side` padded pixels, those that are not padding along `own` pixels: cell i takes pixel
 * floor(i side / cells). */
static int own_cells(int own, int side, int cells) {
    int count = 1;
    while (count < cells && (int)((int64_t)count * side / cells) < own) count++;
    return count;
}

static bool fits(const Detr *detr, int B, int H, int W) {
    bool upright = H <= detr->most_h && W <= detr->most_w, sideways = H <= detr->most_w && W <= detr->most_h;
    return B <= detr->most && (upright || sideways);
}

void detr_load_sizes(Detr *detr, const int *sizes, int B, int H, int W) {
    if (!fits(detr, B, H, W))
        die("a batch of %d images of %d x %d: there is room for %d of %d x %d", B, H, W, detr->most, detr->most_h,
            detr->most_w);
    detr->B = B;
    detr->H = H;
    detr->W = W;
    detr->grid = (Grid){1, resnet_grid(H), resnet_grid(W)};
    for (int b = 0; b < B; b++) {
        detr->cells_host[2 * b] = own_cells(sizes[2 * b], H, detr->grid.rows);
        detr->cells_host[2 * b + 1] = own_cells(sizes[2 * b + 1], W, detr->grid.columns);
    }
    device_upload(detr->sizes, sizes, 2 * (size_t)B * sizeof *sizes);
    device_upload(detr->cells, detr->cells_host, 2 * (size_t)B * sizeof *detr->cells_host);
}

void detr_load(Detr *detr, const uint8_t *pixels, const int *sizes, const float *mean, const float *std, int B, int H,
               int W) {
    detr_load_sizes(detr, sizes, B, H, W);
    device_upload(detr->pixels, pixels, (size_t)B * 3 * (size_t)H * (size_t)W);
    images_normalize_padded(detr->images, detr->pixels, detr->sizes, mean, std, &(ImageShape){B, H, W});
}

void detr_draw(Detr *detr, uint64_t seed, uint32_t step, size_t first) {
    detr->dropout = (Dropout){.seed = seed, .step = step, .first = (uint32_t)first};
    for (int l = 0; l < detr->config.encoder_layers; l++) {
        const Attention *a = &detr->encoder.layers[l].attention;
        if (a->op->draw) a->op->draw(a, seed, step);
    }
}

/* == Forward and backward ========================================================================================= */

int detr_predicted_layers(const Detr *detr) { return detr->plan->training ? detr->config.decoder_layers : 1; }

static TokenBatch batch_of(const Detr *detr) {
    return (TokenBatch){detr->B, detr->grid, detr->cells, detr->pos};
}

static Dropout dropout_of(const Detr *detr) {
    Dropout d = detr->dropout;
    d.rate = detr->plan->training ? detr->config.dropout : 0;
    return d;
}

static size_t tokens_of(const Detr *detr) { return (size_t)detr->B * (size_t)grid_tokens(detr->grid); }
static size_t queries_of(const Detr *detr) { return (size_t)detr->B * (size_t)detr->config.queries; }

void detr_forward_features(Detr *detr) {
    TokenBatch batch = batch_of(detr);
    Dropout dropout = dropout_of(detr);
    int layers = detr_predicted_layers(detr);
    projection_forward(&detr->neck, detr->x, detr->features, tokens_of(detr));
    sine_positions(detr->pos, detr->cells, detr->B, detr->grid, detr->config.dim);
    detr->encoded = detr_encoder_forward(&detr->encoder, detr->x, &batch, &dropout);
    detr_decoder_forward(&detr->decoder, detr->encoded, &batch, detr->sizes, &dropout, layers > 1);
    detr_heads_forward(&detr->heads, detr->decoder.out, detr->decoder.raw, layers, queries_of(detr));
}

void detr_forward(Detr *detr) {
    resnet_forward(&detr->backbone, detr->images, detr->B, detr->H, detr->W);
    detr_forward_features(detr);
}

void detr_predictions(const Detr *detr, float *logits, float *boxes) {
    size_t rows = (size_t)detr_predicted_layers(detr) * queries_of(detr);
    real_download(logits, detr->heads.logits, rows * (size_t)detr->config.columns);
    device_download(boxes, detr->heads.boxes, rows * 4 * sizeof *boxes);
}

void detr_load_gradients(Detr *detr, const float *dlogits, const float *dboxes) {
    size_t rows = (size_t)detr->config.decoder_layers * queries_of(detr);
    real_upload(detr->heads.dlogits, dlogits, rows * (size_t)detr->config.columns);
    device_upload(detr->heads.dboxes, dboxes, rows * 4 * sizeof *dboxes);
}

/* Large enough for a network to be busy with, small enough that the last one is soon over: 4 MiB. */
enum { GRADIENTS_AT_ONCE = 1 << 20 };

typedef struct {
    const Detr *detr;
    size_t end;
    void (*final)(float *gradients, size_t n);
} Finals;

static void gradients_final(size_t from, void *context) {
    Finals *f = context;
    if (!f->final || (f->end - from < GRADIENTS_AT_ONCE && from > f->detr->backbone_floats)) return;
    if (f->end > from) f->final(f->detr->params.grads + from, f->end - from);
    f->end = from;
}

void detr_backward_features(Detr *detr, void (*final)(float *gradients, size_t n)) {
    TokenBatch batch = batch_of(detr);
    Dropout dropout = dropout_of(detr);
    Finals finals = {detr, detr->params.total, final};
    bool below = !has_backbone(detr) || !detr->config.backbone.freeze;
    detr_heads_backward(&detr->heads, detr->decoder.out, detr->config.decoder_layers, queries_of(detr));
    gradients_final(detr->heads.begin, &finals);
    detr_decoder_backward(&detr->decoder, detr->dx, detr->heads.dout, detr->heads.draw, detr->encoded, &batch,
                          detr->sizes, &dropout, gradients_final, &finals);
    detr_encoder_backward(&detr->encoder, detr->dx, detr->x, &batch, &dropout, gradients_final, &finals);
    projection_backward(&detr->neck, below ? detr->dfeatures : NULL, detr->dx, detr->features, tokens_of(detr));
    gradients_final(detr->backbone_floats, &finals);
}

void detr_backward(Detr *detr, void (*final)(float *gradients, size_t n)) {
    detr_backward_features(detr, final);
    resnet_backward(&detr->backbone, detr->dfeatures, detr->B, detr->H, detr->W, final);
}

/* == Description ================================================================================================== */

static size_t params_below(const Detr *detr, const char *prefix) {
    size_t total = 0;
    for (int i = 0; i < detr->params.count; i++)
        if (!detr->params.items[i].frozen && !strncmp(detr->params.items[i].name, prefix, strlen(prefix)))
            total += detr->params.items[i].size;
    return total;
}

/* Those of convolutions; the batch norms' constants are not counted, as in the papers. */
static size_t frozen_weights(const Detr *detr) {
    size_t total = 0;
    for (int i = 0; i < detr->params.count; i++)
        if (detr->params.items[i].frozen && detr->params.items[i].ndim == 4) total += detr->params.items[i].size;
    return total;
}

size_t detr_macs(Detr *detr, int H, int W) {
    Grid grid = {1, resnet_grid(H), resnet_grid(W)};
    size_t N = (size_t)grid_tokens(grid);
    return (has_backbone(detr) ? resnet_macs(&detr->backbone, H, W) : 0) + projection_macs(&detr->neck, N) +
           detr_encoder_macs(&detr->encoder, grid) + detr_decoder_macs(&detr->decoder, N) +
           detr_heads_macs(&detr->heads, detr->config.decoder_layers, detr->config.queries);
}

size_t detr_training_macs(Detr *detr, int H, int W) {
    size_t macs = detr_macs(detr, H, W);
    if (!has_backbone(detr)) return 3 * macs;
    return 3 * macs - 2 * resnet_macs(&detr->backbone, H, W) + resnet_backward_macs(&detr->backbone, H, W);
}

static void describe_row(const Detr *detr, FILE *out, const char *prefix, const char *what, size_t macs) {
    fprintf(out, "  %-22s %-36s %12zu %12.3f\n", prefix, what, params_below(detr, prefix), (double)macs / 1e9);
}

void detr_describe(Detr *detr, FILE *out, int H, int W) {
    const DetrConfig *c = &detr->config;
    Grid grid = {1, resnet_grid(H), resnet_grid(W)};
    size_t N = (size_t)grid_tokens(grid);
    char what[96];
    fprintf(out, "an image of %d x %d: %d x %d grid of %d, %d queries, %d classes\n", H, W, grid.rows, grid.columns,
            c->dim, c->queries, c->columns);
    fprintf(out, "  %-22s %-36s %12s %12s\n", "layer", "", "trainable", "10^9 macs");
    if (has_backbone(detr))
        describe_row(detr, out, c->backbone.prefix, "ResNet, frozen batch norms", resnet_macs(&detr->backbone, H, W));
    describe_row(detr, out, "input_proj.", "1 x 1 convolution", projection_macs(&detr->neck, N));
    snprintf(what, sizeof what, "%d layers, attention %s", c->encoder_layers, c->attention.attn);
    describe_row(detr, out, "transformer.encoder.", what, detr_encoder_macs(&detr->encoder, grid));
    snprintf(what, sizeof what, "%d layers, modulation type %d", c->decoder_layers, c->scale_type);
    describe_row(detr, out, "transformer.decoder.", what, detr_decoder_macs(&detr->decoder, N));
    describe_row(detr, out, "query_embed.", "queries", 0);
    describe_row(detr, out, "class_embed.", "class logits of every layer",
                 projection_macs(&detr->heads.class_embed, (size_t)(c->decoder_layers * c->queries)));
    describe_row(detr, out, "bbox_embed.", "boxes of every layer",
                 perceptron_macs(&detr->heads.box, (size_t)(c->decoder_layers * c->queries)));
    fprintf(out, "activation_bytes: %zu\nparams: %zu\ntrainable_params: %zu\nmacs: %zu\n", detr_activation_bytes(detr),
            detr->params.parameters + frozen_weights(detr), detr->params.parameters, detr_macs(detr, H, W));
}

void detr_destroy(Detr *detr) {
    if (has_backbone(detr)) resnet_destroy(&detr->backbone);
    detr_encoder_destroy(&detr->encoder);
    detr_decoder_destroy(&detr->decoder);
    plan_free(&detr->training);
    plan_free(&detr->inference);
    device_free(detr->memory);
    params_free(&detr->params);
    free(detr->cells_host);
    memset(detr, 0, sizeof *detr);
}
