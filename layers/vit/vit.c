/* Vision transformer.  images [B,3,Hi,Wi], or clips [B,frames,3,Hi,Wi] -> logits [B,C]
 * forward   1. for every stage: tokens = patch embedding of the image, of a stem's features of it (hybrid_stem.h), or
 *              of the previous stage's output;
 *              h = norm(blocks(tokens)), or without a norm; in the first stage a position embedding is added to tokens,
 *              or in every stage, and in the last one a class token
 *           2. logits = head(pool(h)), or with a distillation token the mean of head(h_0) and head_dist(h_1)
 * backward  the same steps in reverse.  Blocks are in layers/stage.c, patch embeddings in layers/vit/embedding.c. */
#include "layers/vit/vit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/rng.h"

/* == Parameters =================================================================================================== */

void vit_create(Vit *vit, const Config *config) {
    *vit = (Vit){.settings = *(const VitSettings *)config_settings(config, &vit_settings)};
    const VitSettings *s = &vit->settings;
    vit_check_settings(config, s);
    vit->config = config;
    trunk_create(&vit->trunk, s, &(TrunkUse){.prefix = ""}, config, &vit->model.params);
    pooling_declare(&vit->pooling, &vit->model.params, s->pool, s->dim.at[vit_stages(s) - 1]);
    const char *linear = s->patch_merging ? "head.fc" : "head";
    classifier_declare(&vit->head, &vit->model.params, s->head, linear, s->dim.at[vit_stages(s) - 1], s->num_classes);
    params_start_scaled(&vit->model.params, s->head == HEAD_LINEAR ? linear : "head.fc2", ".weight",
                        s->head_init_scale);
    if (!s->distilled) return;
    classifier_declare(&vit->head_dist, &vit->model.params, HEAD_LINEAR, "head_dist", s->dim.at[vit_stages(s) - 1],
                       s->num_classes);
    params_start_scaled(&vit->model.params, "head_dist", ".weight", s->head_init_scale);
}

/* == Activations ================================================================================================== */

static TokenShape last_tokens(const Vit *vit, int B) {
    const Stage *last = trunk_last(&vit->trunk);
    return (TokenShape){B, last->N, last->config.dim};
}

static void activations_plan(Plan *plan, void *owner) {
    Vit *vit = owner;
    const VitSettings *c = &vit->settings;
    int batch = vit->model.batch;
    size_t B = (size_t)batch, M = (size_t)trunk_last(&vit->trunk)->config.dim;
    size_t F = (size_t)c->frames, image = F * 3 * (size_t)c->img_size[0] * (size_t)c->img_size[1];
    size_t C = (size_t)c->num_classes;
    plan_keep(plan, "", "pixels", &vit->pixels, (B + (plan->training ? 2 : 0)) * image);
    plan_keep(plan, "", "images", &vit->images, B * image * sizeof(real));
    plan_keep(plan, "", "keep", &vit->trunk.stream.keep, 2 * (size_t)vit->trunk.depth * B * sizeof(float));
    plan_keep(plan, "", "targets", &vit->targets, B * C * sizeof(float));
    plan_keep(plan, "", "loss", &vit->loss, B * sizeof(float));
    plan_keep(plan, "", "weights", &vit->weights, B * sizeof(float));
    plan_pair(plan, "", "logits", &vit->logits, &vit->dlogits, B * C * sizeof(real));
    plan_pair(plan, "", "pooled", &vit->pooled, &vit->dpooled, B * M * sizeof(real));
    if (c->distilled) {
        plan_keep(plan, "", "cls_logits", &vit->cls_logits, B * C * sizeof(real));
        plan_pair(plan, "", "dist_logits", &vit->dist_logits, &vit->ddist_logits, B * C * sizeof(real));
        plan_pair(plan, "", "dist_pooled", &vit->dist_pooled, &vit->ddist_pooled, B * M * sizeof(real));
    }
    if (plan->training && vit->distillation.kind != DISTILLATION_NONE) {
        plan_keep(plan, "", "teacher_logits", &vit->teacher_logits, (B + 2) * C * sizeof(real));
        plan_keep(plan, "", "teacher_targets", &vit->teacher_targets, B * C * sizeof(float));
    }
    trunk_plan_scratch(&vit->trunk, plan, batch);
    TokenShape tokens = last_tokens(vit, batch);
    pooling_plan(&vit->pooling, plan, &tokens);
    classifier_plan(&vit->head, plan, B);
    if (plan->training) {
        plan_keep(plan, "", "pairs", &vit->pairs, 2 * B * F * sizeof *vit->pairs);
        plan_keep(plan, "", "boxes", &vit->boxes, 4 * (B + 2) * F * sizeof *vit->boxes);
        plan_keep(plan, "", "draws", &vit->draws, (B + 2) * F * sizeof *vit->draws);
    }
    trunk_plan(&vit->trunk, plan, batch);
}

void vit_plan(Vit *vit, int batch, bool training) {
    config_limit(vit->config, "micro_batch", (double)batch * vit->trunk.N, "tokens at a time");
    model_plan(&vit->model, batch, training, activations_plan, vit);
}

void vit_allocate(Vit *vit) {
    model_allocate(&vit->model);
    trunk_allocate(&vit->trunk, vit->model.batch);
    if (trunk_has_tokenizer(&vit->trunk)) conv_layers_allocate(&vit->trunk.embeddings[0].tokenizer.convs, &vit->model);
    if (vit->settings.frames > 1)
        vit->frame_rows = xcalloc((size_t)vit->settings.frames * (7 * (size_t)vit->model.batch + 10), sizeof(int),
                                  "clips");
}

/* == A batch ====================================================================================================== */

void vit_load_pixels(Vit *vit, const uint8_t *pixels, const float *mean, const float *std, int B) {
    const VitSettings *c = &vit->settings;
    int images = B * c->frames;
    device_upload_async(vit->pixels, pixels, (size_t)images * 3 * (size_t)c->img_size[0] * (size_t)c->img_size[1]);
    images_normalize(vit->images, vit->pixels, mean, std, &(ImageShape){images, c->img_size[0], c->img_size[1]});
    device_uploads_used();
}

/* The arguments of images_mix that treat every frame of B clips as an image. */
static MixedImages mixed_frames(const Vit *vit, const MixedImages *clips, int B) {
    int F = vit->settings.frames, *pairs = vit->frame_rows, *boxes = pairs + 2 * B * F;
    uint32_t *draws = (uint32_t *)(boxes + 4 * clips->count * F);
    for (int i = 0; i < 2 * B * F; i++) pairs[i] = clips->pairs[i / (2 * F) * 2 + i % 2] * F + i / 2 % F;
    for (int i = 0; i < clips->count * F; i++) {
        memcpy(boxes + 4 * i, clips->boxes + 4 * (i / F), 4 * sizeof *boxes);
        draws[i] = clips->draws[i / F] * (uint32_t)F + (uint32_t)(i % F);
    }
    return (MixedImages){clips->count * F, pairs, boxes, draws, clips->mix};
}

void vit_load_mixed(Vit *vit, const uint8_t *pixels, const MixedImages *mixed, const float *mean, const float *std,
                    int B) {
    const VitSettings *c = &vit->settings;
    MixedImages frames = c->frames > 1 ? mixed_frames(vit, mixed, B) : *mixed;
    size_t count = (size_t)frames.count, images = (size_t)B * (size_t)c->frames;
    device_upload_async(vit->pixels, pixels, count * 3 * (size_t)c->img_size[0] * (size_t)c->img_size[1]);
    device_upload(vit->pairs, frames.pairs, 2 * images * sizeof *vit->pairs);
    device_upload(vit->boxes, frames.boxes, 4 * count * sizeof *vit->boxes);
    device_upload(vit->draws, frames.draws, count * sizeof *vit->draws);
    images_mix(vit->images, vit->pixels, vit->pairs, vit->boxes, vit->draws, mean, std, &frames.mix,
               &(ImageShape){(int)images, c->img_size[0], c->img_size[1]});
    device_uploads_used();
}

/* == Forward and backward ========================================================================================= */

/* The weights of a stem may have changed since the last time. */
static void stem_standardize(Vit *vit) {
    if (!vit->model.keeps_weights || vit->stem_turn != vit->model.turn) hybrid_stem_standardize(&vit->trunk.stem);
    vit->stem_turn = vit->model.turn;
}

void vit_forward(Vit *vit, int B, bool drop) {
    TokenShape tokens = last_tokens(vit, B);
    if (trunk_has_stem(&vit->trunk)) stem_standardize(vit);
    if (trunk_has_tokenizer(&vit->trunk)) conv_layers_fold(&vit->trunk.embeddings[0].tokenizer.convs, &vit->model);
    trunk_forward(&vit->trunk, vit->images, B, drop);
    pooling_forward(&vit->pooling, vit->pooled, stage_output(trunk_last(&vit->trunk)), &tokens);
    if (!vit->settings.distilled) {
        classifier_forward(&vit->head, vit->logits, vit->pooled, (size_t)B);
        return;
    }
    pool_forward(vit->dist_pooled, stage_output(trunk_last(&vit->trunk)), &tokens, 1, 1);
    classifier_forward(&vit->head, vit->cls_logits, vit->pooled, (size_t)B);
    classifier_forward(&vit->head_dist, vit->dist_logits, vit->dist_pooled, (size_t)B);
    logits_mean(vit->logits, vit->cls_logits, vit->dist_logits, (size_t)B * (size_t)vit->settings.num_classes);
}

void vit_load_targets(Vit *vit, const float *targets, int B) {
    device_upload(vit->targets, targets, (size_t)B * (size_t)vit->settings.num_classes * sizeof *targets);
}

void vit_load_teacher(Vit *vit, bool mixed, float lam, int B) {
    const Distillation *d = &vit->distillation;
    teacher_targets(vit->teacher_targets, vit->teacher_logits, mixed ? vit->pairs : NULL, lam,
                    d->kind == DISTILLATION_HARD ? 0 : d->tau, B, vit->settings.num_classes);
}

static bool has_teacher(const Vit *vit) { return vit->distillation.kind != DISTILLATION_NONE; }

/* Without a teacher, each of two classifiers gets half of the gradient of their mean. */
void vit_loss(Vit *vit, int B, float scale) {
    const Distillation *d = &vit->distillation;
    int C = vit->settings.num_classes;
    bool two = vit->settings.distilled;
    if (!has_teacher(vit)) {
        cross_entropy(vit->loss, vit->dlogits, vit->logits, vit->targets, two ? scale / 2 : scale, B, C);
        return;
    }
    cross_entropy(vit->loss, vit->dlogits, two ? vit->cls_logits : vit->logits, vit->targets, (1 - d->alpha) * scale, B,
                  C);
    distillation_loss(vit->loss, two ? vit->ddist_logits : vit->dlogits, two ? vit->dist_logits : vit->logits,
                      vit->teacher_targets, d->alpha, d->kind == DISTILLATION_HARD ? 1 : d->tau, !two, scale, B, C);
}

void vit_load_weights(Vit *vit, const float *weights, int B) {
    device_upload(vit->weights, weights, (size_t)B * sizeof *weights);
}

void vit_weigh_losses(Vit *vit, int B) {
    weigh_losses(vit->loss, vit->dlogits, vit->weights, B, vit->settings.num_classes);
}

void vit_losses(const Vit *vit, float *losses, int B) {
    device_download(losses, vit->loss, (size_t)B * sizeof *losses);
}

void vit_backward(Vit *vit, int B, bool drop, GradientsListener final) {
    FinalGradients done = model_final_gradients(&vit->model, final);
    TokenShape tokens = last_tokens(vit, B);
    classifier_backward(&vit->head, vit->dpooled, vit->dlogits, vit->pooled, (size_t)B);
    pooling_backward(&vit->pooling, vit->trunk.stream.dh, vit->dpooled, stage_output(trunk_last(&vit->trunk)), &tokens);
    if (vit->settings.distilled) { /* the distillation token's row, the second one */
        const real *dlogits = has_teacher(vit) ? vit->ddist_logits : vit->dlogits;
        classifier_backward(&vit->head_dist, vit->ddist_pooled, dlogits, vit->dist_pooled, (size_t)B);
        rows_add(vit->trunk.stream.dh + tokens.M, vit->ddist_pooled, NULL, (size_t)B, tokens.M, tokens.N * tokens.M,
                 tokens.M, 0);
    }
    trunk_backward(&vit->trunk, vit->images, NULL, B, drop, &done);
    gradients_final(&done, 0);
}

/* == Description ================================================================================================== */

static size_t heads_macs(const Vit *vit) { return classifier_macs(&vit->head, 1) + classifier_macs(&vit->head_dist, 1); }

size_t vit_macs(const Vit *vit) { return heads_macs(vit) + trunk_macs(&vit->trunk); }

double vit_moved_bytes(const Vit *vit, int B) {
    double bytes = 0;
    for (int i = 0; i < vit->model.training.count; i++) {
        const PlanTensor *t = &vit->model.training.items[i];
        bytes += (double)t->bytes * (t->scratch ? 2 : t->reused ? 5 : 3);
    }
    return bytes * B / vit->model.batch + 10 * sizeof(float) * (double)vit->model.params.total;
}

void vit_describe(const Vit *vit, FILE *out) {
    const VitSettings *c = &vit->settings;
    char grid[VIT_GRID_SIZE];
    const char *sample = c->frames > 1 ? "clip" : "image";
    if (c->frames > 1)
        fprintf(out, "clip of %d frames of %d x %d, tubelets of %d x %d: ", c->frames, c->img_size[0], c->img_size[1],
                c->tubelet, c->patch_size);
    else if (c->stem == STEM_CONV)
        fprintf(out, "%d x %d image, a convolutional tokenizer: ", c->img_size[0], c->img_size[1]);
    else
        fprintf(out, "%d x %d image, %spatches of %d: ", c->img_size[0], c->img_size[1],
                trunk_has_stem(&vit->trunk) ? "a stem's features, " : "", c->patch_size);
    fprintf(out, "%s grid, %d tokens of %d\n", vit_grid_text(grid, vit->trunk.grid, " x "), vit->trunk.N, c->dim.at[0]);
    model_describe_head(out, sample);
    trunk_describe(&vit->trunk, &vit->model, out);
    if (c->pool == POOL_SEQ) model_describe_row(&vit->model, out, "attention_pool.", "sequence pooling", 0);
    model_describe_row(&vit->model, out, "head.", "classifier", classifier_macs(&vit->head, 1));
    if (c->distilled)
        model_describe_row(&vit->model, out, "head_dist.", "the same, distilled", classifier_macs(&vit->head_dist, 1));
    model_describe_memory(&vit->model, out, sample, c->recompute);
    fprintf(out, "params: %zu\nmacs: %zu\nactivation_bytes: %zu\n", vit->model.params.parameters, vit_macs(vit),
            model_activation_bytes(&vit->model));
    size_t transforms = trunk_transform_macs(&vit->trunk);
    if (transforms) fprintf(out, "macs_without_transforms: %zu\n", vit_macs(vit) - transforms);
}

void vit_destroy(Vit *vit) {
    trunk_destroy(&vit->trunk);
    model_destroy(&vit->model);
    free(vit->frame_rows);
    memset(vit, 0, sizeof *vit);
}

