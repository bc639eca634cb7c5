/* Vision transformer.  images [B,3,Hi,Wi] -> logits [B,C]
 * forward   1. patches as rows, projected; class token in front; position embedding      x_0 [B,N,M]
 *              (an operator may have the class token join later, before one of the blocks, without a position)
 *           2. for every block: x += keep attention(norm1(x));  x += keep mlp(norm2(x))
 *           3. logits = head(pool(norm(x)))
 * Each residual addition is fused with the norm that follows it, so the stream has 2*depth + 1 stations and a half-block
 * maps h of one station to f, which the next station adds.
 * backward  the same steps in reverse: dx is the stream's gradient, dh a half-block's input gradient, df its output's. */
#include "layers/vit.h"

#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/rng.h"

static const float LAYERNORM_EPS = 1e-6f; /* timm's */

/* == Parameters =================================================================================================== */

static void station_declare(Station *s, Params *params, const char *prefix, const char *name, int M) {
    char tensor[PARAM_NAME_SIZE];
    snprintf(tensor, sizeof tensor, "%s.weight", name);
    params_declare(params, &s->w, &s->dw, prefix, tensor, INIT_ONES, false, 1, (int[]){M});
    snprintf(tensor, sizeof tensor, "%s.bias", name);
    params_declare(params, &s->b, &s->db, prefix, tensor, INIT_ZEROS, false, 1, (int[]){M});
}

static void patch_declare(Vit *vit) {
    int M = vit->config.dim, P = vit->config.patch_size, fan = 3 * P * P;
    vit->patch.in = fan;
    vit->patch.out = M;
    params_declare_fan(&vit->params, &vit->patch.w, &vit->patch.dw, "patch_embed.", "proj.weight", fan, true, 4,
                       (int[]){M, 3, P, P});
    params_declare_fan(&vit->params, &vit->patch.b, &vit->patch.db, "patch_embed.", "proj.bias", fan, false, 1,
                       (int[]){M});
}

/* The class token stands in front of the tokens from this block on. */
static int class_block(const VitConfig *c) {
    const AttentionOp *op = attention_find(c->attention.attn);
    return op && op->class_block ? op->class_block(&c->attention) : 0;
}

static void block_declare(Vit *vit, int i) {
    char prefix[PARAM_NAME_SIZE];
    Block *block = &vit->blocks[i];
    const VitConfig *c = &vit->config;
    bool class_token = c->class_token && i >= class_block(c);
    snprintf(block->prefix, sizeof block->prefix, "blocks.%d.", i);
    attention_create(&block->attention, &c->attention, i, vit->Hg, vit->Wg, class_token, c->dim);
    vit->stations[2 * i].N = vit->stations[2 * i + 1].N = block->attention.N;
    station_declare(&vit->stations[2 * i], &vit->params, block->prefix, "norm1", c->dim);
    block->attention.op->declare(&block->attention, &vit->params);
    station_declare(&vit->stations[2 * i + 1], &vit->params, block->prefix, "norm2", c->dim);
    snprintf(prefix, sizeof prefix, "blocks.%d.mlp.", i);
    mlp_declare(&block->mlp, &vit->params, prefix, c->dim, (int)((float)c->dim * c->mlp_ratio));
}

void vit_create(Vit *vit, const VitConfig *config) {
    memset(vit, 0, sizeof *vit);
    vit->config = *config;
    if (config->img_h % config->patch_size || config->img_w % config->patch_size)
        die_usage("img_size %dx%d is not a multiple of patch_size %d", config->img_h, config->img_w, config->patch_size);
    vit->Hg = config->img_h / config->patch_size;
    vit->Wg = config->img_w / config->patch_size;
    vit->N = vit->Hg * vit->Wg + config->class_token;
    if (config->class_token && class_block(config) >= config->depth)
        die_usage("pool cls: with attn %s the class token joins before block %d, and the last of depth %d is block %d",
                  config->attention.attn, class_block(config), config->depth, config->depth - 1);
    vit->blocks = xcalloc((size_t)config->depth, sizeof *vit->blocks, "blocks");
    vit->stations = xcalloc(2 * (size_t)config->depth + 1, sizeof *vit->stations, "blocks");

    int M = config->dim;
    if (config->class_token)
        params_declare(&vit->params, &vit->cls, &vit->dcls, "", "cls_token", INIT_TRUNC_NORMAL, false, 3,
                       (int[]){1, 1, M});
    if (config->pos_embed) {
        int prefix = config->class_token && class_block(config) == 0;
        params_declare(&vit->params, &vit->pos, &vit->dpos, "", "pos_embed", INIT_TRUNC_NORMAL, false, 3,
                       (int[]){1, prefix + vit->Hg * vit->Wg, M});
        params_on_grid(&vit->params, (ParamGrid){1, 1, prefix, vit->Hg, vit->Wg});
    }
    patch_declare(vit);
    for (int i = 0; i < config->depth; i++) block_declare(vit, i);
    vit->stations[2 * config->depth].N = vit->N;
    station_declare(&vit->stations[2 * config->depth], &vit->params, "", "norm", M);
    projection_declare(&vit->head, &vit->params, "", "head", M, config->num_classes);
}

/* == Activations ================================================================================================== */

static void stations_plan(Vit *vit, Plan *plan, size_t B) {
    int last = 2 * vit->config.depth;
    for (int i = 0; i <= last; i++) {
        Station *s = &vit->stations[i], *first = &vit->stations[0];
        size_t rows = B * (size_t)(plan->training ? s->N : vit->N), bytes = rows * (size_t)vit->config.dim * sizeof(real);
        char prefix[PARAM_NAME_SIZE];
        snprintf(prefix, sizeof prefix, i == last ? "norm." : "blocks.%d.norm%d.", i / 2, i % 2 + 1);
        if (plan->training || i == 0) {
            plan_keep(plan, prefix, "x", &s->x, bytes);
            plan_keep(plan, prefix, "h", &s->h, bytes);
            plan_keep(plan, prefix, "mean", &s->mean, rows * sizeof(float));
            plan_keep(plan, prefix, "rstd", &s->rstd, rows * sizeof(float));
        } else { /* inference: the stream is updated in place */
            plan_alias(plan, &s->x, &first->x);
            plan_alias(plan, &s->h, &first->h);
            plan_alias(plan, &s->mean, &first->mean);
            plan_alias(plan, &s->rstd, &first->rstd);
        }
    }
}

static void activations_plan(Vit *vit, Plan *plan, int batch, bool training) {
    const VitConfig *c = &vit->config;
    size_t B = (size_t)batch, bytes = B * (size_t)vit->N * (size_t)c->dim * sizeof(real);
    size_t image = 3 * (size_t)c->img_h * (size_t)c->img_w, C = (size_t)c->num_classes;
    plan_start(plan, training);
    plan_keep(plan, "", "pixels", &vit->pixels, (B + (training ? 2 : 0)) * image);
    plan_keep(plan, "", "images", &vit->images, B * image * sizeof(real));
    plan_keep(plan, "", "cols", &vit->cols, B * image * sizeof(real));
    plan_keep(plan, "", "keep", &vit->keep, 2 * (size_t)c->depth * B * sizeof(float));
    plan_keep(plan, "", "targets", &vit->targets, B * C * sizeof(float));
    plan_keep(plan, "", "loss", &vit->loss, B * sizeof(float));
    plan_keep(plan, "", "logits", &vit->logits, B * C * sizeof(real));
    plan_keep(plan, "", "pooled", &vit->pooled, B * (size_t)c->dim * sizeof(real));
    plan_borrow(plan, "", "f", &vit->f, bytes);
    plan_borrow(plan, "", "sum", &vit->sum, vit->stations[0].N < vit->N ? bytes : 0);
    stations_plan(vit, plan, B);
    plan_workspace(plan, layernorm_workspace(c->dim));
    if (training) {
        plan_keep(plan, "", "pairs", &vit->pairs, 2 * B * sizeof *vit->pairs);
        plan_keep(plan, "", "boxes", &vit->boxes, 4 * (B + 2) * sizeof *vit->boxes);
        plan_keep(plan, "", "draws", &vit->draws, (B + 2) * sizeof *vit->draws);
        plan_borrow(plan, "", "dlogits", &vit->dlogits, B * C * sizeof(real));
        plan_borrow(plan, "", "dpooled", &vit->dpooled, B * (size_t)c->dim * sizeof(real));
        plan_borrow(plan, "", "dx", &vit->dx, bytes);
        plan_borrow(plan, "", "dh", &vit->dh, bytes);
        plan_borrow(plan, "", "df", &vit->df, c->drop_path > 0 ? bytes : 0);
    }
    for (int i = 0; i < c->depth; i++) {
        char prefix[PARAM_NAME_SIZE];
        Block *block = &vit->blocks[i];
        block->attention.op->plan(&block->attention, plan, batch);
        snprintf(prefix, sizeof prefix, "blocks.%d.mlp.", i);
        mlp_plan(&block->mlp, plan, prefix, B * (size_t)block->attention.N);
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
    vit->keep_host = xcalloc(2 * (size_t)vit->config.depth * (size_t)vit->batch, sizeof(float), "drop path");
    vit_set_training(vit, vit->training.count > 0);
}

void vit_set_training(Vit *vit, bool training) {
    plan_bind(training ? &vit->training : &vit->inference, vit->memory);
}

size_t vit_activation_bytes(const Vit *vit) {
    size_t training = vit->training.workspace, inference = vit->inference.workspace;
    return planned_bytes(vit) + (training > inference ? training : inference);
}

/* == Forward and backward ========================================================================================= */

void vit_load_pixels(Vit *vit, const uint8_t *pixels, const float *mean, const float *std, int B) {
    const VitConfig *c = &vit->config;
    device_upload(vit->pixels, pixels, (size_t)B * 3 * (size_t)c->img_h * (size_t)c->img_w);
    images_normalize(vit->images, vit->pixels, mean, std, B, c->img_h, c->img_w);
}

void vit_load_mixed(Vit *vit, const uint8_t *pixels, const MixedImages *mixed, const float *mean, const float *std,
                    int B) {
    const VitConfig *c = &vit->config;
    size_t count = (size_t)mixed->count;
    device_upload(vit->pixels, pixels, count * 3 * (size_t)c->img_h * (size_t)c->img_w);
    device_upload(vit->pairs, mixed->pairs, 2 * (size_t)B * sizeof *vit->pairs);
    device_upload(vit->boxes, mixed->boxes, 4 * count * sizeof *vit->boxes);
    device_upload(vit->draws, mixed->draws, count * sizeof *vit->draws);
    images_mix(vit->images, vit->pixels, vit->pairs, vit->boxes, vit->draws, mean, std, &mixed->mix, B, c->img_h,
               c->img_w);
}

void vit_draw_drop_path(Vit *vit, uint64_t seed, uint32_t step, size_t first, int B) {
    int depth = vit->config.depth;
    if (vit->config.drop_path <= 0) return;
    for (int half = 0; half < 2 * depth; half++) {
        float rate = depth > 1 ? vit->config.drop_path * (float)(half / 2) / (float)(depth - 1) : 0;
        for (int b = 0; b < B; b++) {
            float u = rng_uniform(seed, RNG_DROP_PATH, step, (uint32_t)half, first + (size_t)b);
            vit->keep_host[half * B + b] = u < rate ? 0 : 1 / (1 - rate);
        }
    }
    device_upload(vit->keep, vit->keep_host, 2 * (size_t)depth * (size_t)B * sizeof(float));
}

void vit_draw_buffers(const Vit *vit, uint64_t seed, uint32_t step) {
    for (int i = 0; i < vit->config.depth; i++) {
        const Attention *a = &vit->blocks[i].attention;
        if (a->op->draw) a->op->draw(a, seed, step);
    }
}

static const float *drop_path_scale(const Vit *vit, int half, int B, bool drop) {
    return drop && vit->config.drop_path > 0 ? vit->keep + (size_t)half * (size_t)B : NULL;
}

/* The head sees the class token alone, or all tokens. */
static int pooled_tokens(const Vit *vit) { return vit->config.class_token ? 1 : vit->N; }

static void embed(Vit *vit, int B) {
    const VitConfig *c = &vit->config;
    size_t patches = (size_t)B * (size_t)(vit->Hg * vit->Wg);
    patchify(vit->cols, vit->images, B, c->img_h, c->img_w, c->patch_size);
    projection_forward(&vit->patch, vit->f, vit->cols, patches);
    int N = vit->stations[0].N;
    embed_forward(vit->stations[0].x, vit->f, vit->cls, vit->pos, B, N, c->dim, N - vit->Hg * vit->Wg);
}

/* From station s to the next, where the class token joins.  It moves every row, so the sum and the norm are not one
 * pass here; the norm of the sum goes unread. */
static void class_joins(Vit *vit, const Station *s, const float *scale, int B) {
    int M = vit->config.dim;
    size_t rows = (size_t)B * (size_t)s->N, joined = (size_t)B * (size_t)s[1].N;
    add_layernorm_forward(vit->sum, vit->f, s[1].mean, s[1].rstd, s->x, vit->f, scale, s->N, s[1].w, s[1].b, rows, M,
                          LAYERNORM_EPS);
    embed_forward(s[1].x, vit->sum, vit->cls, NULL, B, s[1].N, M, 1);
    layernorm_forward(s[1].h, s[1].mean, s[1].rstd, s[1].x, s[1].w, s[1].b, joined, M, LAYERNORM_EPS);
}

static void exchange(real **a, real **b) {
    real *kept = *a;
    *a = *b;
    *b = kept;
}

/* Takes the class token's rows out of dx, and out of df where there is one.  dh, already used, makes room. */
static void class_leaves(Vit *vit, const Station *s, bool df, int B) {
    int M = vit->config.dim;
    embed_backward(vit->dh, vit->dcls, NULL, vit->dx, B, s->N, M, 1);
    exchange(&vit->dh, &vit->dx);
    if (!df) return;
    embed_backward(vit->dh, NULL, NULL, vit->df, B, s->N, M, 1);
    exchange(&vit->dh, &vit->df);
}

void vit_forward(Vit *vit, int B, bool drop) {
    int M = vit->config.dim, depth = vit->config.depth;
    Station *s = vit->stations;

    embed(vit, B);
    layernorm_forward(s->h, s->mean, s->rstd, s->x, s->w, s->b, (size_t)B * (size_t)s->N, M, LAYERNORM_EPS);
    for (int half = 0; half < 2 * depth; half++, s++) {
        Block *block = &vit->blocks[half / 2];
        const float *scale = drop_path_scale(vit, half, B, drop);
        size_t rows = (size_t)B * (size_t)s->N;
        if (half % 2 == 0)
            block->attention.op->forward(&block->attention, vit->f, s->h, B);
        else
            mlp_forward(&block->mlp, vit->f, s->h, rows);
        if (s[1].N > s->N)
            class_joins(vit, s, scale, B);
        else
            add_layernorm_forward(s[1].x, s[1].h, s[1].mean, s[1].rstd, s->x, vit->f, scale, s->N, s[1].w, s[1].b, rows,
                                  M, LAYERNORM_EPS);
    }
    pool_forward(vit->pooled, s->h, B, s->N, M, 0, pooled_tokens(vit));
    projection_forward(&vit->head, vit->logits, vit->pooled, (size_t)B);
}

void vit_load_targets(Vit *vit, const float *targets, int B) {
    device_upload(vit->targets, targets, (size_t)B * (size_t)vit->config.num_classes * sizeof *targets);
}

void vit_loss(Vit *vit, int B, float scale) {
    cross_entropy(vit->loss, vit->dlogits, vit->logits, vit->targets, scale, B, vit->config.num_classes);
}

void vit_losses(const Vit *vit, float *losses, int B) { device_download(losses, vit->loss, (size_t)B * sizeof *losses); }

/* Large enough for a network to be busy with, small enough that the last one is soon over: 4 MiB. */
enum { GRADIENTS_AT_ONCE = 1 << 20 };

/* The arena holds the layers in order and a layer begins with its norm: behind station s everything is done. */
static void gradients_final(const Vit *vit, size_t *end, const Station *s, void (*final)(float *, size_t)) {
    size_t from = s ? (size_t)(s->dw - vit->params.grads) : 0;
    if (!final || (s && *end - from < GRADIENTS_AT_ONCE)) return;
    final(vit->params.grads + from, *end - from);
    *end = from;
}

void vit_backward(Vit *vit, int B, bool drop, void (*final)(float *gradients, size_t n)) {
    int M = vit->config.dim, depth = vit->config.depth;
    size_t end = vit->params.total;
    Station *s = &vit->stations[2 * depth];
    const real *dres = NULL;

    projection_backward(&vit->head, vit->dpooled, vit->dlogits, vit->pooled, (size_t)B);
    pool_backward(vit->dh, vit->dpooled, B, s->N, M, 0, pooled_tokens(vit));
    for (int half = 2 * depth - 1; half >= 0; half--, s--) {
        Block *block = &vit->blocks[half / 2];
        const float *scale = drop_path_scale(vit, half, B, drop);
        add_layernorm_backward(vit->dx, vit->df, s->dw, s->db, dres, vit->dh, s->x, scale, s->N, s->w, s->mean, s->rstd,
                               (size_t)B * (size_t)s->N, M);
        if (s->N > s[-1].N) class_leaves(vit, s, scale != NULL, B);
        const real *df = scale ? vit->df : vit->dx;
        if (half % 2) gradients_final(vit, &end, s, final);
        if (half % 2 == 0)
            block->attention.op->backward(&block->attention, vit->dh, df, s[-1].h, B);
        else
            mlp_backward(&block->mlp, vit->dh, df, s[-1].h, (size_t)B * (size_t)s[-1].N);
        dres = vit->dx;
    }
    add_layernorm_backward(vit->dx, NULL, s->dw, s->db, dres, vit->dh, s->x, NULL, s->N, s->w, s->mean, s->rstd,
                           (size_t)B * (size_t)s->N, M);
    embed_backward(vit->dh, vit->dcls, vit->dpos, vit->dx, B, s->N, M, s->N - vit->Hg * vit->Wg);
    projection_backward(&vit->patch, NULL, vit->dh, vit->cols, (size_t)B * (size_t)(vit->Hg * vit->Wg));
    gradients_final(vit, &end, NULL, final);
}

double vit_divergence(const Vit *vit, int B) {
    double sum = 0;
    int count = 0;
    for (int i = 0; i < vit->config.depth; i++) {
        const Attention *a = &vit->blocks[i].attention;
        if (!a->op->divergence) continue;
        sum += a->op->divergence(a, B);
        count++;
    }
    return sum / count;
}

/* == Description ================================================================================================== */

size_t vit_macs(const Vit *vit) {
    size_t macs = projection_macs(&vit->patch, (size_t)(vit->Hg * vit->Wg)) + projection_macs(&vit->head, 1);
    for (int i = 0; i < vit->config.depth; i++) {
        const Block *block = &vit->blocks[i];
        macs += block->attention.op->macs(&block->attention) + mlp_macs(&block->mlp, (size_t)block->attention.N);
    }
    return macs;
}

double vit_moved_bytes(const Vit *vit, int B) {
    double bytes = 0;
    for (int i = 0; i < vit->training.count; i++)
        bytes += (double)vit->training.items[i].bytes * (vit->training.items[i].scratch ? 2 : 3);
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
        if (!plan->items[i].scratch && !strncmp(plan->items[i].name, prefix, strlen(prefix)))
            total += plan->items[i].bytes;
    return (double)total / vit->batch;
}

static void describe_row(const Vit *vit, FILE *out, const char *prefix, const char *what, size_t macs) {
    fprintf(out, "  %-18s %-28s %10zu %12.3f %12.1f\n", prefix, what, params_below(vit, prefix), (double)macs / 1e6,
            kept_below(vit, prefix) / 1024);
}

void vit_describe(const Vit *vit, FILE *out) {
    const VitConfig *c = &vit->config;
    char prefix[PARAM_NAME_SIZE], what[64];
    fprintf(out, "%d x %d image, patches of %d: %d x %d grid, %d tokens of %d\n", c->img_h, c->img_w, c->patch_size,
            vit->Hg, vit->Wg, vit->N, c->dim);
    fprintf(out, "  %-18s %-28s %10s %12s %12s\n", "layer", "", "parameters", "10^6 macs", "KiB/image");
    describe_row(vit, out, "patch_embed.", "patch projection", projection_macs(&vit->patch, (size_t)(vit->Hg * vit->Wg)));
    if (c->class_token) describe_row(vit, out, "cls_token", "class token", 0);
    if (c->pos_embed) describe_row(vit, out, "pos_embed", "position embedding", 0);
    for (int i = 0; i < c->depth; i++) {
        const Attention *a = &vit->blocks[i].attention;
        snprintf(what, sizeof what, a->op->path ? "%s (%s)" : "%s", a->op->name, a->op->path ? a->op->path(a) : "");
        describe_row(vit, out, a->prefix, what, a->op->macs(a));
        snprintf(prefix, sizeof prefix, "blocks.%d.mlp.", i);
        describe_row(vit, out, prefix, "MLP", mlp_macs(&vit->blocks[i].mlp, (size_t)a->N));
        snprintf(prefix, sizeof prefix, "blocks.%d.norm", i);
        describe_row(vit, out, prefix, "residual stream, two norms", 0);
    }
    describe_row(vit, out, "norm.", "final norm", 0);
    describe_row(vit, out, "head.", "classifier", projection_macs(&vit->head, 1));
    const Plan *plan = vit->training.count ? &vit->training : &vit->inference;
    fprintf(out, "memory for %d images at a time: kept %.1f MiB, scratch %.1f MiB, kernel workspace %.1f MiB\n",
            vit->batch, (double)plan->keep_peak / (1 << 20), (double)plan->scratch_peak / (1 << 20),
            (double)plan->workspace / (1 << 20));
    fprintf(out, "params: %zu\nmacs: %zu\nactivation_bytes: %zu\n", vit->params.parameters, vit_macs(vit),
            vit_activation_bytes(vit));
}

void vit_destroy(Vit *vit) {
    for (int i = 0; i < vit->config.depth; i++) attention_destroy(&vit->blocks[i].attention);
    plan_free(&vit->training);
    plan_free(&vit->inference);
    device_free(vit->memory);
    params_free(&vit->params);
    free(vit->keep_host);
    free(vit->blocks);
    free(vit->stations);
    memset(vit, 0, sizeof *vit);
}
