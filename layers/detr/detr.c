/* SMCA-DETR.  images [B,H,W,3] -> logits [L,B,Q,C], boxes [L,B,Q,4]
 * forward   1. features = backbone(images) [B,N,2048]   2. x = input_proj(features) [B,N,M]
 *           3. pos = sine positions of the cells without padding   4. memory = encoder(x, pos)
 *           5. out = decoder(memory, pos)   6. logits, boxes = heads(out)
 * backward  6. dout   5. dmemory   4. dx   2. dfeatures   1. the backbone's
 * Padding has no influence on the predictions, since encoder and decoder attend only to keys without padding; so the
 * features of padding have no gradient. */
#include "layers/detr/detr.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "layers/model_facts.h"

const char detr_backbone_prefix[] = "backbone.0.body.";

/* == Settings ===================================================================================================== */

static bool takes_mask(const void *op) { return ((const AttentionOp *)op)->takes_mask; }

#define F(KIND, field) CONFIG_FIELD(KIND, DetrSettings, field)
static const ConfigEntry entries[] = {
    {F(ITEM, attn), "softmax", .section = "model", .table = (const void *const *)attention_operators,
     .offers = takes_mask, .noun = "operator", .list = "Attention operators of the encoder",
     .help = "Attention operator of the encoder"},
    {F(INTS, backbone_blocks), "3,4,6,3", .min = 1, .max = 99,
     .help = "Number of blocks in each of the ResNet backbone's four stages (ResNet-50: 3,4,6,3)"},
    {F(INT, backbone_width), "64", .min = 1, .max = 1024,
     .help = "Output channels of the backbone's first convolution"},
    {F(BOOL, freeze_backbone), "false",
     .help = "Train no part of the backbone (otherwise its stages 2 to 4 are trained)"},
    {F(INT, dim), "256", .min = 4, .max = 16384, .help = "Width of the tokens of encoder and decoder"},
    {F(INT, ffn), "2048", .min = 1, .max = 65536, .help = "Hidden width of the feed-forward networks"},
    {F(INT, encoder_layers), "6", .min = 1, .max = 64, .help = "Number of encoder layers"},
    {F(INT, decoder_layers), "6", .min = 1, .max = 64, .help = "Number of decoder layers"},
    {F(INT, heads), "8", .min = 1, .max = 1024, .help = "Number of attention heads, a divisor of dim"},
    {F(INT, queries), "300", .min = 1, .max = 65536, .help = "Number of object queries"},
    {F(CHOICE, dynamic_scale), "type3", CONFIG_CHOICES("type1", "type2", "type3", "type4"),
     .help = "Learned scales of the decoder's spatial modulation (SMCA): type1 has none, type2, type3 and type4 have "
             "one, two and three for each head"},
    {F(INT, num_classes), "0", .min = 0, .max = 65536, .change = CHANGE_TO_DEFAULT,
     .help = "Largest category id plus one, 91 for COCO (0: that of the data set)"},
    {F(FLOAT, dropout), "0.1", .min = 0, .max = 0.9, .change = CHANGE_FREELY,
     .help = "Dropout rate in encoder and decoder"},
    {F(BOOL, share_heads), "false",
     .help = "Share the feature map, and the projection for ripple's sticks, among the heads of the encoder's "
             "attention"},
};
#undef F

static void settings_check(const Config *config, const void *settings) {
    const DetrSettings *s = settings;
    if (s->backbone_blocks.count != RESNET_STAGES)
        config_reject(config, "backbone_blocks", "expected four numbers from 1 to 99, as 3,4,6,3, got %d",
                      s->backbone_blocks.count);
    if (s->dim % s->heads) config_reject(config, "heads", "{heads} does not divide {dim}");
    if (s->dim % 4) config_reject(config, "dim", "{dim} is not a multiple of 4, which sine positions need");
    if (s->encoder_layers + s->decoder_layers > 99)
        config_reject(config, "decoder_layers", "{decoder_layers} and {encoder_layers} are more than 99 together");
}

const ConfigGroup detr_settings = {CONFIG_GROUP(DetrSettings, entries),
                                   .change = CHANGE_NEVER, .check = settings_check};

DetrSettings *detr_add_settings(Config *config) {
    DetrSettings *settings = config_add(config, &detr_settings);
    attention_add_settings(config, ATTENTION_DETECTOR);
    return settings;
}

void detr_use_settings(Config *config) {
    attention_use_settings(config, ((const DetrSettings *)config_settings(config, &detr_settings))->attn);
}

static bool has_backbone(const Detr *detr) { return detr->backbone.config.width > 0; }

/* == Parameters =================================================================================================== */

static void neck_declare(Detr *detr) {
    Params *params = &detr->model.params;
    int in = detr->channels, M = detr->settings.dim;
    detr->neck.in = in;
    detr->neck.out = M;
    params_declare(params, (Param){.value = &detr->neck.w, .grad = &detr->neck.dw, .named = {"input_proj.", "weight"},
                                   .init = INIT_FAN_IN_UNIFORM, .fan = in, .decay = true, .shape = {M, in, 1, 1}});
    params_declare(params, (Param){.value = &detr->neck.b, .grad = &detr->neck.db, .named = {"input_proj.", "bias"},
                                   .init = INIT_FAN_IN_UNIFORM, .fan = in, .decay = true, .shape = {M}});
}

static void backbone_create(Detr *detr) {
    const DetrSettings *s = &detr->settings;
    ResNetConfig config = {.width = s->backbone_width, .trained = s->freeze_backbone ? 0 : RESNET_STAGES - 1,
                           .prefix = detr_backbone_prefix};
    for (int i = 0; i < RESNET_STAGES; i++) config.blocks[i] = s->backbone_blocks.at[i];
    resnet_create(&detr->backbone, &config, &detr->model.params);
    detr->channels = resnet_channels(&detr->backbone, RESNET_STAGES - 1);
}

void detr_create(Detr *detr, const Config *config, int channels) {
    *detr = (Detr){.settings = *(const DetrSettings *)config_settings(config, &detr_settings), .channels = channels};
    const DetrSettings *s = &detr->settings;
    detr->columns = s->num_classes + 1;
    if (!channels) backbone_create(detr);
    detr->backbone_floats = detr->model.params.total;
    neck_declare(detr);
    detr_encoder_create(&detr->encoder, config, s->attn, s->encoder_layers, s->dim, s->heads, s->ffn, !s->share_heads,
                        &detr->model.params);
    detr_decoder_create(&detr->decoder, s->decoder_layers, s->dim, s->heads, s->ffn, s->queries, s->dynamic_scale + 1,
                        detr_encoder_sites(&detr->encoder), &detr->model.params);
    detr_heads_create(&detr->heads, s->dim, detr->columns, &detr->model.params);
}

void detr_fold(Detr *detr) {
    if (has_backbone(detr)) resnet_fold(&detr->backbone);
}

/* == Activations ================================================================================================== */

static void activations_plan(Plan *plan, void *owner) {
    Detr *detr = owner;
    const DetrSettings *c = &detr->settings;
    int most = detr->model.batch;
    size_t B = (size_t)most, image = 3 * (size_t)detr->most_h * (size_t)detr->most_w;
    Grid grid = {1, resnet_grid(detr->most_h), resnet_grid(detr->most_w)};
    size_t n = B * (size_t)grid_tokens(grid), bytes = n * (size_t)c->dim * sizeof(real);
    size_t features = n * (size_t)detr->channels * sizeof(real);
    if (has_backbone(detr)) {
        plan_keep(plan, "", "pixels", &detr->pixels, B * image);
        plan_keep(plan, "", "images", &detr->images, B * image * sizeof(real));
    }
    plan_keep(plan, "", "sizes", &detr->sizes, B * 2 * sizeof *detr->sizes);
    plan_keep(plan, "", "cells", &detr->cells, B * 2 * sizeof *detr->cells);
    if (has_backbone(detr)) {
        resnet_plan(&detr->backbone, plan, most, detr->most_h, detr->most_w);
        plan_alias(plan, &detr->features, &detr->backbone.features[RESNET_STAGES - 1]);
    } else {
        plan_keep(plan, "", "features", &detr->features, features);
    }
    plan_keep(plan, "", "x", &detr->x, bytes);
    plan_keep(plan, "", "pos", &detr->pos, bytes);
    if (plan->training) {
        plan_borrow(plan, "", "dx", &detr->dx, bytes);
        plan_keep(plan, "", "dfeatures", &detr->dfeatures, features); /* read while the backbone uses its scratch */
    }
    detr_encoder_plan(&detr->encoder, plan, most, grid, &detr->x);
    detr_decoder_plan(&detr->decoder, plan, most, grid);
    detr_heads_plan(&detr->heads, plan, plan->training ? c->decoder_layers : 1, B * (size_t)c->queries);
}

void detr_plan(Detr *detr, int B, int H, int W, bool training) {
    detr->most_h = H;
    detr->most_w = W;
    model_plan(&detr->model, B, training, activations_plan, detr);
}

void detr_allocate(Detr *detr) {
    model_allocate(&detr->model);
    detr->cells_host = xcalloc(2 * (size_t)detr->model.batch, sizeof *detr->cells_host, "sizes of images");
}

/* == A batch ====================================================================================================== */

/* The number of cells, among `cells` along a padded side of `side` pixels, that belong to an image of `own` pixels:
 * cell i belongs to it if pixel floor(i side / cells) does. */
static int own_cells(int own, int side, int cells) {
    int count = 1;
    while (count < cells && (int)((int64_t)count * side / cells) < own) count++;
    return count;
}

static bool fits(const Detr *detr, int B, int H, int W) {
    bool upright = H <= detr->most_h && W <= detr->most_w, sideways = H <= detr->most_w && W <= detr->most_h;
    return B <= detr->model.batch && (upright || sideways);
}

void detr_load_sizes(Detr *detr, const int *sizes, int B, int H, int W) {
    if (!fits(detr, B, H, W))
        die("a batch of %d images of %d x %d: the memory is planned for %d of %d x %d", B, H, W, detr->model.batch,
            detr->most_h, detr->most_w);
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
    device_upload_async(detr->pixels, pixels, (size_t)B * 3 * (size_t)H * (size_t)W);
    images_normalize_padded(detr->images, detr->pixels, detr->sizes, mean, std, &(ImageShape){B, H, W});
    device_uploads_used();
}

void detr_draw(Detr *detr, uint64_t seed, uint32_t step, size_t first) {
    detr->dropout = (Dropout){.seed = seed, .step = step, .first = (uint32_t)first};
    for (int l = 0; l < detr->settings.encoder_layers; l++) {
        const Attention *a = &detr->encoder.layers[l].attention;
        if (a->op->draw) a->op->draw(a, seed, step);
    }
}

/* == Forward and backward ========================================================================================= */

int detr_predicted_layers(const Detr *detr) { return detr->model.plan->training ? detr->settings.decoder_layers : 1; }

static TokenBatch batch_of(const Detr *detr) {
    return (TokenBatch){detr->B, detr->grid, detr->cells, detr->pos};
}

static Dropout dropout_of(const Detr *detr) {
    Dropout d = detr->dropout;
    d.rate = detr->model.plan->training ? detr->settings.dropout : 0;
    return d;
}

static size_t tokens_of(const Detr *detr) { return (size_t)detr->B * (size_t)grid_tokens(detr->grid); }
static size_t queries_of(const Detr *detr) { return (size_t)detr->B * (size_t)detr->settings.queries; }

void detr_forward_features(Detr *detr) {
    TokenBatch batch = batch_of(detr);
    Dropout dropout = dropout_of(detr);
    int layers = detr_predicted_layers(detr);
    projection_forward(&detr->neck, detr->x, detr->features, tokens_of(detr));
    sine_positions(detr->pos, detr->cells, detr->B, detr->grid, detr->settings.dim);
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
    device_download_async(boxes, detr->heads.boxes, rows * 4 * sizeof *boxes); /* computed together with the logits */
    real_download(logits, detr->heads.logits, rows * (size_t)detr->columns);
}

void detr_load_gradients(Detr *detr, const float *dlogits, const float *dboxes) {
    size_t rows = (size_t)detr->settings.decoder_layers * queries_of(detr);
    real_upload(detr->heads.dlogits, dlogits, rows * (size_t)detr->columns);
    device_upload(detr->heads.dboxes, dboxes, rows * 4 * sizeof *dboxes);
}

static void backward_features(Detr *detr, FinalGradients *final) {
    TokenBatch batch = batch_of(detr);
    Dropout dropout = dropout_of(detr);
    bool below = !has_backbone(detr) || !detr->settings.freeze_backbone;
    detr_heads_backward(&detr->heads, detr->decoder.out, detr->settings.decoder_layers, queries_of(detr));
    gradients_final(final, detr->heads.begin);
    detr_decoder_backward(&detr->decoder, detr->dx, detr->heads.dout, detr->heads.draw, detr->encoded, &batch,
                          detr->sizes, &dropout, final);
    detr_encoder_backward(&detr->encoder, detr->dx, detr->x, &batch, &dropout, final);
    projection_backward(&detr->neck, below ? detr->dfeatures : NULL, detr->dx, detr->features, tokens_of(detr));
    gradients_final(final, detr->backbone_floats);
}

/* The backbone's part of the backward pass takes long, so gradients that are complete before and within it are reported
 * even in small ranges. */
static FinalGradients final_gradients(const Detr *detr, GradientsListener listener) {
    FinalGradients final = model_final_gradients(&detr->model, listener);
    final.small_before = detr->backbone_floats;
    return final;
}

void detr_backward_features(Detr *detr, GradientsListener final) {
    FinalGradients done = final_gradients(detr, final);
    backward_features(detr, &done);
}

void detr_backward(Detr *detr, GradientsListener final) {
    FinalGradients done = final_gradients(detr, final);
    backward_features(detr, &done);
    real *dfeatures[RESNET_STAGES] = {NULL, NULL, NULL, detr->dfeatures};
    resnet_backward(&detr->backbone, dfeatures, detr->B, detr->H, detr->W, &done);
}

/* == Description ================================================================================================== */

/* Parameters of the convolutions.  As in the papers, the constants of the frozen batch norms are not counted. */
static size_t frozen_weights(const Detr *detr) {
    size_t total = 0;
    for (int i = 0; i < params_count(&detr->model.params); i++) {
        const Param *p = params_at(&detr->model.params, i);
        if (p->frozen && p->ndim == 4) total += p->size;
    }
    return total;
}

size_t detr_macs(Detr *detr, int H, int W) {
    Grid grid = {1, resnet_grid(H), resnet_grid(W)};
    size_t N = (size_t)grid_tokens(grid);
    return (has_backbone(detr) ? resnet_macs(&detr->backbone, H, W) : 0) + projection_macs(&detr->neck, N) +
           detr_encoder_macs(&detr->encoder, grid) + detr_decoder_macs(&detr->decoder, N) +
           detr_heads_macs(&detr->heads, detr->settings.decoder_layers, detr->settings.queries);
}

size_t detr_training_macs(Detr *detr, int H, int W) {
    size_t macs = detr_macs(detr, H, W);
    if (!has_backbone(detr)) return 3 * macs;
    return 3 * macs - 2 * resnet_macs(&detr->backbone, H, W) + resnet_backward_macs(&detr->backbone, H, W);
}

void detr_parts(Detr *detr, int H, int W, ModelPart part, void *context) {
    const DetrSettings *c = &detr->settings;
    Grid grid = {1, resnet_grid(H), resnet_grid(W)};
    size_t N = (size_t)grid_tokens(grid), predictions = (size_t)c->decoder_layers * (size_t)c->queries;
    char what[96];
    if (has_backbone(detr))
        part(context, detr_backbone_prefix, "ResNet, frozen batch norms", resnet_macs(&detr->backbone, H, W));
    part(context, "input_proj.", "1 x 1 convolution", projection_macs(&detr->neck, N));
    snprintf(what, sizeof what, "%d layers, attention %s", c->encoder_layers, c->attn->name);
    part(context, "transformer.encoder.", what, detr_encoder_macs(&detr->encoder, grid));
    snprintf(what, sizeof what, "%d layers, modulation type %d", c->decoder_layers, c->dynamic_scale + 1);
    part(context, "transformer.decoder.", what, detr_decoder_macs(&detr->decoder, N));
    part(context, "query_embed.", "queries", 0);
    part(context, "class_embed.", "class logits of every layer",
         projection_macs(&detr->heads.class_embed, predictions));
    part(context, "bbox_embed.", "boxes of every layer", perceptron_macs(&detr->heads.box, predictions));
}

void detr_describe(Detr *detr, FILE *out, int H, int W) {
    fprintf(out, "an image of %d x %d: %d x %d grid of %d, %d queries, %d classes\n", H, W, resnet_grid(H),
            resnet_grid(W), detr->settings.dim, detr->settings.queries, detr->columns);
    Description d = {&detr->model, out, 22};
    description_head(&d);
    detr_parts(detr, H, W, description_part, &d);
    description_end(&d, detr->model.params.parameters + frozen_weights(detr), detr_macs(detr, H, W));
}

void detr_destroy(Detr *detr) {
    if (has_backbone(detr)) resnet_destroy(&detr->backbone);
    detr_encoder_destroy(&detr->encoder);
    detr_decoder_destroy(&detr->decoder);
    model_destroy(&detr->model);
    free(detr->cells_host);
    memset(detr, 0, sizeof *detr);
}
