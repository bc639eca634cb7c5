/* Vision transformer.  images [B,3,Hi,Wi] -> logits [B,C]
 * forward   1. for every stage: tokens = patch embedding of the image, or of the stage before; its blocks and norm    h
 *              (the first stage puts a class token in front of its tokens, and adds a position embedding)
 *           2. logits = head(pool(h))
 * backward  the same steps in reverse.  The blocks are layers/stage.c, the patches layers/embedding.c. */
#include "layers/vit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/rng.h"

/* == Parameters =================================================================================================== */

/* Positions in front of the grid at the first station. */
static int class_in_front(const VitConfig *c) { return c->class_token && class_block(&c->attention) == 0; }

static void embedding_prefix(const Vit *vit, int i, char prefix[PARAM_NAME_SIZE]) {
    if (i == 0) snprintf(prefix, PARAM_NAME_SIZE, "patch_embed.");
    else snprintf(prefix, PARAM_NAME_SIZE, "%.30sdownsample.", vit->stages[i].prefix);
}

/* The class token and the position embedding stand before the patch embedding, as timm declares them. */
static void first_declare(Vit *vit) {
    const VitConfig *c = &vit->config;
    Stage *first = &vit->stages[0];
    int M = c->stage[0].dim, prefix = class_in_front(c);
    if (c->class_token)
        params_declare(&vit->params, &first->cls, &first->dcls, "", "cls_token", INIT_TRUNC_NORMAL, false, 3,
                       (int[]){1, 1, M});
    if (c->pos_embed != POSITIONS_LEARNED) return;
    params_declare(&vit->params, &vit->pos, &vit->dpos, "", "pos_embed", INIT_TRUNC_NORMAL, false, 3,
                   (int[]){1, prefix + grid_tokens(vit->grid), M});
    params_on_grid(&vit->params, (ParamGrid){1, 1, prefix, vit->grid});
}

static void stage_create(Vit *vit, int i) {
    const VitConfig *c = &vit->config;
    Stage *stage = &vit->stages[i], *before = stage - 1;
    Embedding *e = &vit->embeddings[i];
    char prefix[PARAM_NAME_SIZE];
    if (i == 0) embedding_create(e, 3, c->img_h, c->img_w, true, c->patch_size, c->overlap);
    else embedding_create(e, before->config.dim, before->grid.rows, before->grid.columns, false, 2, c->overlap);
    *stage = (Stage){.config = c->stage[i],
                     .attention = c->attention,
                     .grid = e->grid,
                     .first = i > 0 ? before->first + before->config.depth : 0,
                     .class_token = c->class_token,
                     .position_conv = c->pos_embed == POSITIONS_CONV,
                     .mlp_conv = c->mlp_conv,
                     .drops = c->drop_path > 0,
                     .recompute = c->recompute,
                     .last = i == c->stage_count - 1,
                     .residual_gain = c->scale_depth ? 1 / sqrtf(2 * (float)vit->depth) : 1,
                     .stream = &vit->stream};
    if (c->stage_count > 1) snprintf(stage->prefix, sizeof stage->prefix, "stages.%d.", i);
    if (i == 0) {
        vit->grid = e->grid;
        vit->N = grid_tokens(e->grid) + c->class_token;
        first_declare(vit);
    }
    embedding_prefix(vit, i, prefix);
    embedding_declare(e, &vit->params, prefix, stage->config.dim);
    stage_declare(stage, &vit->params);
}

static void check_config(const Vit *vit) {
    const VitConfig *c = &vit->config;
    int side = c->patch_size << (c->stage_count - 1);
    if (!c->overlap && (c->img_h % side || c->img_w % side))
        die_usage("img_size %dx%d is not a multiple of patch_size %d%s", c->img_h, c->img_w, c->patch_size,
                  c->stage_count > 1 ? ", twice as much from stage to stage" : "");
    if (c->class_token && class_block(&c->attention) >= vit->depth)
        die_usage("pool cls: with attn %s the class token joins before block %d, and the last of depth %d is block %d",
                  c->attention.attn, class_block(&c->attention), vit->depth, vit->depth - 1);
    if (c->class_token && (c->stage_count > 1 || c->mlp_conv || c->pos_embed == POSITIONS_CONV))
        die_usage("pool cls: a class token has no place on the grid that %s need: use pool gap",
                  c->stage_count > 1 ? "several stages" : "convolutions");
}

void vit_create(Vit *vit, const VitConfig *config) {
    memset(vit, 0, sizeof *vit);
    vit->config = *config;
    if (!vit->config.stage_count) vit->config.stage_count = 1;
    for (int i = 0; i < vit->config.stage_count; i++) vit->depth += config->stage[i].depth;
    check_config(vit);
    for (int i = 0; i < vit->config.stage_count; i++) stage_create(vit, i);
    projection_declare(&vit->head, &vit->params, "", "head", config->stage[vit->config.stage_count - 1].dim,
                       config->num_classes);
}

static Stage *last_stage(const Vit *vit) { return (Stage *)&vit->stages[vit->config.stage_count - 1]; }

Block *vit_block(const Vit *vit, int i) {
    const Stage *stage = vit->stages;
    while (i >= stage->first + stage->config.depth) stage++;
    return &stage->blocks[i - stage->first];
}

/* == Activations ================================================================================================== */

/* Scratch is as large as the largest stage. */
static void stream_plan(Vit *vit, Plan *plan, int B) {
    const VitConfig *c = &vit->config;
    Stream *s = &vit->stream;
    size_t bytes = 0;
    for (int i = 0; i < c->stage_count; i++) {
        size_t stage = (size_t)B * (size_t)vit->stages[i].N * (size_t)c->stage[i].dim * sizeof(real);
        if (stage > bytes) bytes = stage;
    }
    plan_borrow(plan, "", "f", &s->f, bytes);
    plan_borrow(plan, "", "sum", &s->sum, c->class_token && !class_in_front(c) ? bytes : 0);
    if (!plan->training) return;
    plan_borrow(plan, "", "dx", &s->dx, bytes);
    plan_borrow(plan, "", "dh", &s->dh, bytes);
    plan_borrow(plan, "", "df", &s->df, c->drop_path > 0 ? bytes : 0);
}

static void activations_plan(Vit *vit, Plan *plan, int batch, bool training) {
    const VitConfig *c = &vit->config;
    size_t B = (size_t)batch, M = (size_t)last_stage(vit)->config.dim;
    size_t image = 3 * (size_t)c->img_h * (size_t)c->img_w, C = (size_t)c->num_classes;
    plan_start(plan, training);
    plan_keep(plan, "", "pixels", &vit->pixels, (B + (training ? 2 : 0)) * image);
    plan_keep(plan, "", "images", &vit->images, B * image * sizeof(real));
    plan_keep(plan, "", "keep", &vit->stream.keep, 2 * (size_t)vit->depth * B * sizeof(float));
    plan_keep(plan, "", "targets", &vit->targets, B * C * sizeof(float));
    plan_keep(plan, "", "loss", &vit->loss, B * sizeof(float));
    plan_keep(plan, "", "logits", &vit->logits, B * C * sizeof(real));
    plan_keep(plan, "", "pooled", &vit->pooled, B * M * sizeof(real));
    stream_plan(vit, plan, batch);
    if (training) {
        plan_keep(plan, "", "pairs", &vit->pairs, 2 * B * sizeof *vit->pairs);
        plan_keep(plan, "", "boxes", &vit->boxes, 4 * (B + 2) * sizeof *vit->boxes);
        plan_keep(plan, "", "draws", &vit->draws, (B + 2) * sizeof *vit->draws);
        plan_borrow(plan, "", "dlogits", &vit->dlogits, B * C * sizeof(real));
        plan_borrow(plan, "", "dpooled", &vit->dpooled, B * M * sizeof(real));
    }
    for (int i = 0; i < c->stage_count; i++) {
        char prefix[PARAM_NAME_SIZE];
        embedding_prefix(vit, i, prefix);
        embedding_plan(&vit->embeddings[i], plan, prefix, batch);
        stage_plan(&vit->stages[i], plan, batch);
    }
}

void vit_plan(Vit *vit, int batch, bool training) {
    vit->batch = batch;
    activations_plan(vit, &vit->inference, batch, false);
    if (training) activations_plan(vit, &vit->training, batch, true);
}

static size_t planned_bytes(const Vit *vit) {
    size_t training = plan_bytes(&vit->training), inference = plan_bytes(&vit->inference);
    return training > inference ? training : inference;
}

void vit_allocate(Vit *vit) {
    vit->memory = device_malloc(planned_bytes(vit), "activations");
    vit->keep_host = xcalloc(2 * (size_t)vit->depth * (size_t)vit->batch, sizeof(float), "drop path");
    vit_set_training(vit, vit->training.count > 0);
}

void vit_set_training(Vit *vit, bool training) {
    plan_bind(training ? &vit->training : &vit->inference, vit->memory);
}

size_t vit_activation_bytes(const Vit *vit) {
    size_t training = vit->training.workspace, inference = vit->inference.workspace;
    return planned_bytes(vit) + (training > inference ? training : inference);
}

/* == A batch ====================================================================================================== */

void vit_load_pixels(Vit *vit, const uint8_t *pixels, const float *mean, const float *std, int B) {
    const VitConfig *c = &vit->config;
    device_upload(vit->pixels, pixels, (size_t)B * 3 * (size_t)c->img_h * (size_t)c->img_w);
    images_normalize(vit->images, vit->pixels, mean, std, &(ImageShape){B, c->img_h, c->img_w});
}

void vit_load_mixed(Vit *vit, const uint8_t *pixels, const MixedImages *mixed, const float *mean, const float *std,
                    int B) {
    const VitConfig *c = &vit->config;
    size_t count = (size_t)mixed->count;
    device_upload(vit->pixels, pixels, count * 3 * (size_t)c->img_h * (size_t)c->img_w);
    device_upload(vit->pairs, mixed->pairs, 2 * (size_t)B * sizeof *vit->pairs);
    device_upload(vit->boxes, mixed->boxes, 4 * count * sizeof *vit->boxes);
    device_upload(vit->draws, mixed->draws, count * sizeof *vit->draws);
    images_mix(vit->images, vit->pixels, vit->pairs, vit->boxes, vit->draws, mean, std, &mixed->mix,
               &(ImageShape){B, c->img_h, c->img_w});
}

void vit_draw_drop_path(Vit *vit, uint64_t seed, uint32_t step, size_t first, int B) {
    int depth = vit->depth;
    if (vit->config.drop_path <= 0) return;
    for (int half = 0; half < 2 * depth; half++) {
        float rate = depth > 1 ? vit->config.drop_path * (float)(half / 2) / (float)(depth - 1) : 0;
        for (int b = 0; b < B; b++) {
            float u = rng_uniform(seed, RNG_DROP_PATH, step, (uint32_t)half, first + (size_t)b);
            vit->keep_host[half * B + b] = u < rate ? 0 : 1 / (1 - rate);
        }
    }
    device_upload(vit->stream.keep, vit->keep_host, 2 * (size_t)depth * (size_t)B * sizeof(float));
}

void vit_draw_buffers(const Vit *vit, uint64_t seed, uint32_t step) {
    for (int i = 0; i < vit->depth; i++) {
        const Attention *a = &vit_block(vit, i)->attention;
        if (a->op->draw) a->op->draw(a, seed, step);
    }
}

/* == Forward and backward ========================================================================================= */

/* The head sees the class token alone, or all tokens. */
static int pooled_tokens(const Vit *vit) { return vit->config.class_token ? 1 : last_stage(vit)->N; }

/* Does something join the first stage's patches before its blocks? */
static bool first_is_joined(const Vit *vit) { return vit->pos || class_in_front(&vit->config); }

static void embed(Vit *vit, int i, const real *x, int B) {
    const Stage *stage = &vit->stages[i];
    bool joined = i == 0 && first_is_joined(vit);
    int prefix = class_in_front(&vit->config);
    embedding_forward(&vit->embeddings[i], joined ? vit->stream.f : stage_input(stage), x, B);
    if (joined)
        embed_forward(stage_input(stage), vit->stream.f, stage->cls, vit->pos,
                      &(TokenShape){B, prefix + grid_tokens(vit->grid), stage->config.dim}, prefix);
}

void vit_forward(Vit *vit, int B, bool drop) {
    const Stage *last = last_stage(vit);
    const real *x = vit->images;
    for (int i = 0; i < vit->config.stage_count; i++) {
        embed(vit, i, x, B);
        stage_forward(&vit->stages[i], B, drop);
        x = stage_output(&vit->stages[i]);
    }
    pool_forward(vit->pooled, x, &(TokenShape){B, last->N, last->config.dim}, 0, pooled_tokens(vit));
    projection_forward(&vit->head, vit->logits, vit->pooled, (size_t)B);
}

void vit_load_targets(Vit *vit, const float *targets, int B) {
    device_upload(vit->targets, targets, (size_t)B * (size_t)vit->config.num_classes * sizeof *targets);
}

void vit_loss(Vit *vit, int B, float scale) {
    cross_entropy(vit->loss, vit->dlogits, vit->logits, vit->targets, scale, B, vit->config.num_classes);
}

void vit_losses(const Vit *vit, float *losses, int B) {
    device_download(losses, vit->loss, (size_t)B * sizeof *losses);
}

/* The gradient of the stage's input, in dx, goes to the embedding's parameters and, in dh, to the stage before. */
static void embed_gradient(Vit *vit, int i, int B) {
    Stream *s = &vit->stream;
    const Stage *stage = &vit->stages[i];
    int prefix = class_in_front(&vit->config);
    if (i > 0) {
        embedding_backward(&vit->embeddings[i], s->dh, s->dx, stage_output(stage - 1), B);
        return;
    }
    if (first_is_joined(vit))
        embed_backward(s->dh, prefix ? stage->dcls : NULL, vit->dpos, s->dx,
                       &(TokenShape){B, prefix + grid_tokens(vit->grid), stage->config.dim}, prefix);
    embedding_backward(&vit->embeddings[0], NULL, first_is_joined(vit) ? s->dh : s->dx, vit->images, B);
}

void vit_backward(Vit *vit, int B, bool drop, void (*final)(float *gradients, size_t n)) {
    GradientsFinal done = {vit->params.grads, vit->params.total, final};
    const Stage *last = last_stage(vit);
    projection_backward(&vit->head, vit->dpooled, vit->dlogits, vit->pooled, (size_t)B);
    pool_backward(vit->stream.dh, vit->dpooled, &(TokenShape){B, last->N, last->config.dim}, 0, pooled_tokens(vit));
    for (int i = vit->config.stage_count - 1; i >= 0; i--) {
        stage_backward(&vit->stages[i], B, drop, &done);
        embed_gradient(vit, i, B);
    }
    gradients_final(&done, 0);
}

double vit_divergence(const Vit *vit, int B) {
    double sum = 0;
    int count = 0;
    for (int i = 0; i < vit->depth; i++) {
        const Attention *a = &vit_block(vit, i)->attention;
        if (!a->op->divergence) continue;
        sum += a->op->divergence(a, B);
        count++;
    }
    return sum / count;
}

/* == Description ================================================================================================== */

size_t vit_macs(const Vit *vit) {
    size_t macs = projection_macs(&vit->head, 1);
    for (int i = 0; i < vit->config.stage_count; i++) {
        const Stage *stage = &vit->stages[i];
        macs += embedding_macs(&vit->embeddings[i]);
        for (int j = 0; j < stage->config.depth; j++) {
            const Block *block = &stage->blocks[j];
            macs += station_macs(&stage->stations[2 * j]) + block->attention.op->macs(&block->attention) +
                    mlp_macs(&block->mlp, (size_t)block->attention.N);
        }
    }
    return macs;
}

double vit_moved_bytes(const Vit *vit, int B) {
    double bytes = 0;
    for (int i = 0; i < vit->training.count; i++)
        bytes += (double)vit->training.items[i].bytes * (vit->training.items[i].scratch  ? 2
                                                         : vit->training.items[i].reused ? 5
                                                                                         : 3);
    return bytes * B / vit->batch + 10 * sizeof(float) * (double)vit->params.total;
}

static size_t params_below(const Vit *vit, const char *prefix) {
    size_t total = 0;
    for (int i = 0; i < vit->params.count; i++)
        if (!vit->params.items[i].frozen && !strncmp(vit->params.items[i].name, prefix, strlen(prefix)))
            total += vit->params.items[i].size;
    return total;
}

/* Kept bytes of one image below a prefix; the training plan's where there is one. */
static double kept_below(const Vit *vit, const char *prefix) {
    const Plan *plan = vit->training.count ? &vit->training : &vit->inference;
    size_t total = 0;
    for (int i = 0; i < plan->count; i++)
        if (!plan->items[i].scratch && !plan->items[i].reused && !strncmp(plan->items[i].name, prefix, strlen(prefix)))
            total += plan->items[i].bytes;
    return (double)total / vit->batch;
}

static void describe_row(const Vit *vit, FILE *out, const char *prefix, const char *what, size_t macs) {
    fprintf(out, "  %-18s %-28s %10zu %12.3f %12.1f\n", prefix, what, params_below(vit, prefix), (double)macs / 1e6,
            kept_below(vit, prefix) / 1024);
}

static void describe_block(const Vit *vit, FILE *out, const Stage *stage, int i) {
    const Block *block = &stage->blocks[i];
    const Attention *a = &block->attention;
    char prefix[PARAM_NAME_SIZE], what[64];
    if (stage->position_conv) {
        snprintf(prefix, sizeof prefix, "%.40spos_embed", block->prefix);
        describe_row(vit, out, prefix, "position convolution", station_macs(&stage->stations[2 * i]));
    }
    snprintf(what, sizeof what, a->op->path ? "%s (%s)" : "%s", a->op->name, a->op->path ? a->op->path(a) : "");
    describe_row(vit, out, a->prefix, what, a->op->macs(a));
    snprintf(prefix, sizeof prefix, "%.40smlp.", block->prefix);
    describe_row(vit, out, prefix, block->mlp.convolves ? "convolutional MLP" : "MLP",
                 mlp_macs(&block->mlp, (size_t)a->N));
    snprintf(prefix, sizeof prefix, "%.40snorm", block->prefix);
    describe_row(vit, out, prefix, "residual stream, two norms", 0);
}

static void describe_stage(const Vit *vit, FILE *out, int i) {
    const Stage *stage = &vit->stages[i];
    char prefix[PARAM_NAME_SIZE];
    if (vit->config.stage_count > 1)
        fprintf(out, "  stage %d: %d x %d grid, %d tokens of %d\n", i, stage->grid.rows, stage->grid.columns, stage->N,
                stage->config.dim);
    embedding_prefix(vit, i, prefix);
    describe_row(vit, out, prefix, vit->config.overlap ? "overlapping patches" : "patch projection",
                 embedding_macs(&vit->embeddings[i]));
    if (i == 0 && vit->config.class_token) describe_row(vit, out, "cls_token", "class token", 0);
    if (i == 0 && vit->config.pos_embed == POSITIONS_LEARNED)
        describe_row(vit, out, "pos_embed", "position embedding", 0);
    for (int j = 0; j < stage->config.depth; j++) describe_block(vit, out, stage, j);
    snprintf(prefix, sizeof prefix, "%snorm.", stage->prefix);
    describe_row(vit, out, prefix, i + 1 < vit->config.stage_count ? "norm" : "final norm", 0);
}

void vit_describe(const Vit *vit, FILE *out) {
    const VitConfig *c = &vit->config;
    fprintf(out, "%d x %d image, patches of %d: %d x %d grid, %d tokens of %d\n", c->img_h, c->img_w, c->patch_size,
            vit->grid.rows, vit->grid.columns, vit->N, c->stage[0].dim);
    fprintf(out, "  %-18s %-28s %10s %12s %12s\n", "layer", "", "parameters", "10^6 macs", "KiB/image");
    for (int i = 0; i < c->stage_count; i++) describe_stage(vit, out, i);
    describe_row(vit, out, "head.", "classifier", projection_macs(&vit->head, 1));
    const Plan *plan = vit->training.count ? &vit->training : &vit->inference;
    if (c->recompute) fprintf(out, "recompute: beside the input of each block, one block at a time is kept\n");
    fprintf(out, "memory for %d images at a time: kept %.1f MiB, scratch %.1f MiB, kernel workspace %.1f MiB\n",
            vit->batch, (double)plan->keep_peak / (1 << 20), (double)plan->scratch_peak / (1 << 20),
            (double)plan->workspace / (1 << 20));
    fprintf(out, "params: %zu\nmacs: %zu\nactivation_bytes: %zu\n", vit->params.parameters, vit_macs(vit),
            vit_activation_bytes(vit));
}

void vit_destroy(Vit *vit) {
    for (int i = 0; i < vit->config.stage_count; i++) stage_destroy(&vit->stages[i]);
    plan_free(&vit->training);
    plan_free(&vit->inference);
    device_free(vit->memory);
    params_free(&vit->params);
    free(vit->keep_host);
    memset(vit, 0, sizeof *vit);
}
