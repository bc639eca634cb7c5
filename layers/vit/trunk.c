/* The trunk of a vision transformer.  images [B,3,Hi,Wi], or clips [B,frames,3,Hi,Wi] -> every stage's output
 * forward   for every stage: tokens = patch embedding of the image, of a stem's features of it (hybrid_stem.h), or of
 *           the previous stage's output;
 *           h = norm(blocks(tokens)), or without a norm; in the first stage a position embedding is added to tokens, or
 *           in every stage, and in the last one a class token,
 *           followed, with `distilled`, by a distillation token (Touvron et al. 2021)
 * backward  the same steps in reverse; where every output has a gradient, it is added to that from the next stage, or
 *           goes through the norm of the stage's output.
 * Blocks are in layers/stage.c, patch embeddings in layers/vit/embedding.c. */
#include "layers/vit/trunk.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/rng.h"

/* == Parameters =================================================================================================== */

int trunk_front(const Trunk *t) { return t->settings.pool == POOL_CLS ? 1 + t->settings.distilled : 0; }
bool trunk_has_tokenizer(const Trunk *t) { return t->settings.stem == STEM_CONV; }

/* Tokens in front of the grid at a stage's first station; none if the class token is added later. */
static FrontTokens front_at_entry(const Trunk *t, int i) {
    bool joins_later = attention_class_block(vit_attn(&t->settings, i), t->stages[i].settings) > 0;
    return joins_later ? (FrontTokens){0} : t->stages[i].front;
}

static void embedding_prefix(const Trunk *t, int i, char prefix[PARAM_NAME_SIZE]) {
    if (i == 0 && trunk_has_tokenizer(t)) snprintf(prefix, PARAM_NAME_SIZE, "%stokenizer.conv_layers.", t->use.prefix);
    else if (i == 0) snprintf(prefix, PARAM_NAME_SIZE, "%spatch_embed.", t->use.prefix);
    else snprintf(prefix, PARAM_NAME_SIZE, "%.30sdownsample.", t->stages[i].prefix);
}

/* The position embedding at a stage's entry, as in timm or, stage by stage, in PVT; false: there is none. */
static bool position_name(const Trunk *t, int i, char name[PARAM_NAME_SIZE]) {
    PositionEmbedding kind = t->settings.pos_embed;
    if (kind == POSITIONS_STAGES) snprintf(name, PARAM_NAME_SIZE, "pos_embed%d", i + 1);
    else snprintf(name, PARAM_NAME_SIZE, "pos_embed");
    return kind == POSITIONS_STAGES || ((kind == POSITIONS_LEARNED || kind == POSITIONS_SINE) && i == 0);
}

/* Param.draw: the sine at even and the cosine at odd indices i of the angle p / 10000^(2 (i div 2) / M) at position p,
 * where a class token has position 0 (Vaswani et al. 2017). */
static void draw_sines(float *x, const Param *p, uint64_t seed, uint32_t tensor) {
    int N = p->shape[p->ndim - 2], M = p->shape[p->ndim - 1];
    (void)seed, (void)tensor;
    for (int n = 0; n < N; n++)
        for (int i = 0; i < M; i++) {
            double angle = n / pow(10000, (double)(i / 2 * 2) / M);
            x[(size_t)n * (size_t)M + (size_t)i] = (float)(i % 2 ? cos(angle) : sin(angle));
        }
}

/* The class token and the position embedding are declared before the patch embedding, in timm's order. */
static void entry_declare(Trunk *t, int i, Params *params) {
    Stage *stage = &t->stages[i];
    int M = stage->config.dim, prefix = front_at_entry(t, i).count;
    bool bilinear = t->settings.pos_embed == POSITIONS_STAGES; /* as in PVT's detection/pvt.py */
    bool sine = t->settings.pos_embed == POSITIONS_SINE;
    GridTable *positions = &t->positions[i];
    char name[PARAM_NAME_SIZE];
    for (int k = 0; k < stage->front.count; k++)
        params_declare(params, (Param){.value = &stage->front.w[k], .grad = &stage->front.dw[k],
                                       .named = {k ? "dist_token" : "cls_token"}, .init = INIT_TRUNC_NORMAL,
                                       .shape = {1, 1, M}});
    if (!position_name(t, i, name)) return;
    positions->shape = (TableResampling){stage->grid, stage->grid, M, bilinear};
    params_declare(params, (Param){.value = &positions->w, .grad = sine ? NULL : &positions->dw, .named = {t->use.prefix, name},
                                   .init = INIT_TRUNC_NORMAL, .gain = t->settings.pos_init_std / TRUNC_NORMAL_STD,
                                   .draw = sine ? draw_sines : NULL, .frozen = sine,
                                   .shape = {1, prefix + grid_tokens(stage->grid), M},
                                   .grid = {1, 1, prefix, stage->grid},
                                   .resampled = bilinear ? RESAMPLED_BILINEAR : RESAMPLED_ANTIALIASED,
                                   .time = {TIME_COPIES, 1, stage->grid.frames, prefix, false}});
}

static const char stem_prefix[] = "patch_embed.backbone.";

static bool patches_are_normed(const VitSettings *s) { return s->patch_overlap || s->patch_norm; }

bool trunk_has_stem(const Trunk *t) { return t->settings.stem == STEM_HYBRID; }

/* The class token and the position embedding are declared before the patch embedding, and this before the projection,
 * in timm's order: the sizes of the first embedding are therefore set here, and the stem's tensors are declared
 * later. */
static void first_embedding_create(Trunk *t, const Config *config) {
    const VitSettings *c = &t->settings;
    const StemSettings *s = config_settings(config, &hybrid_stem_settings);
    Embedding *e = &t->embeddings[0];
    int sides[2] = {c->img_size[0], c->img_size[1]};
    if (trunk_has_tokenizer(t)) {
        embedding_create_tokenizer(e, config_settings(config, &tokenizer_settings),
                                   conv_layers_way(config_settings(config, &mode_settings)), sides[0], sides[1],
                                   !t->use.dense);
        return;
    }
    for (int i = 0; i < 2 && trunk_has_stem(t); i++) sides[i] = hybrid_stem_side(s, sides[i]);
    bool planes = !trunk_has_stem(t) && !t->use.dense;
    embedding_create(e, trunk_has_stem(t) ? hybrid_stem_channels(s) : 3, sides[0], sides[1], planes, c->patch_size,
                     c->patch_overlap, patches_are_normed(c));
    if (c->patch_pad) embedding_pad(e, c->patch_pad);
}

/* Tables have an entry for every offset between two tokens, and the multiply-adds of all pairs of tokens in all blocks
 * must be countable, too. */
static void check_grid(const Config *config, Grid grid, int dim, int depth) {
    Grid offsets = grid_offsets(grid);
    double tokens = (double)grid.frames * grid.rows * grid.columns, pairs = tokens * tokens * dim * depth;
    const char *setting = grid.frames > 1 && !config_origin(config, "img_size") ? "frames" : "img_size";
    config_limit(config, setting, (double)offsets.frames * offsets.rows * offsets.columns, "offsets between tokens");
    config_limit(config, setting, tokens * dim, "numbers of one image's tokens");
    if (pairs > 0x1p53)
        config_reject(config, setting, "{%s} makes %.0f tokens, for which {depth=%d} and {dim=%d} need more than 2^53 "
                                       "multiply-adds of all pairs", setting, tokens, depth, dim);
}

/* The names of the norms of outputs, as in mmdetection. */
static const char *const beside_names[] = {"norm0", "norm1", "norm2", "norm3", "norm4", "norm5", "norm6", "norm7"};

static void stage_create(Trunk *t, const Config *config, Params *params, int i) {
    const VitSettings *c = &t->settings;
    Stage *stage = &t->stages[i], *before = stage - 1;
    Embedding *e = &t->embeddings[i];
    char prefix[PARAM_NAME_SIZE];
    bool last = i == vit_stages(c) - 1, beside = !c->stage_norm && t->use.ends == ENDS_BESIDE;
    bool bare = t->use.ends == ENDS_BARE || (t->use.ends == ENDS_OF_CLASSIFIER && !last);
    if (i == 0) first_embedding_create(t, config);
    else if (c->patch_merging) embedding_create_merging(e, before->config.dim, before->grid);
    else
        embedding_create(e, before->config.dim, before->grid.rows, before->grid.columns, false, 2, c->patch_overlap,
                         patches_are_normed(c));
    embedding_take_frames(e, i == 0 ? c->frames : before->grid.frames, i == 0 ? c->tubelet : 1);
    check_grid(config, e->grid, c->dim.at[i], vit_stage_int(&c->depth, i));
    *stage = (Stage){.config = vit_stage_config(c, i),
                     .settings = config,
                     .grid = e->grid,
                     .time_kernel = e->grid.frames > 1 ? c->time_kernel : 1,
                     .conv_time_kernel = e->grid.frames > 1 ? c->conv_time_kernel : 1,
                     .index = i,
                     .stages = vit_stages(c),
                     .first = i > 0 ? before->first + before->config.depth : 0,
                     .front.count = last ? trunk_front(t) : 0, /* they are in the last stage */
                     .position_conv = c->pos_embed == POSITIONS_CONV,
                     .mlp_conv = c->mlp_conv,
                     .mlp_relu = c->mlp_relu,
                     .normed_mlp = c->mlp_stream == MLP_STREAM_NORMED,
                     .drops_weights = c->attn_dropout > 0,
                     .without_qkv_bias = !c->qkv_bias,
                     .drops = c->drop_path > 0,
                     .drops_hidden = true,
                     .recompute = c->recompute,
                     .last = last,
                     .bare_end = !c->stage_norm && bare,
                     .norm_beside = beside && !last,
                     .norm_name = beside ? beside_names[i] : "norm",
                     .norm_eps = c->norm_eps,
                     .end_eps = c->norm_eps,
                     .residual_gain = c->init_scale == INIT_SCALE_DEPTH ? 1 / sqrtf(2 * (float)t->depth) : 1,
                     .stream = &t->stream};
    snprintf(stage->prefix, sizeof stage->prefix, "%.24s", t->use.prefix);
    if (vit_stages(c) > 1)
        snprintf(stage->prefix, sizeof stage->prefix, c->patch_merging ? "%.24slayers.%d." : "%.24sstages.%d.",
                 t->use.prefix, i);
    snprintf(stage->norm_prefix, sizeof stage->norm_prefix, "%s", c->stage_norm ? stage->prefix : t->use.prefix);
    stage->norm_unused = stage->last && c->pool == POOL_GAP_RAW;
    if (i == 0) {
        t->grid = e->grid;
        t->N = grid_tokens(e->grid) + stage->front.count;
    }
    entry_declare(t, i, params);
    if (i == 0 && trunk_has_stem(t))
        hybrid_stem_declare(&t->stem, config, params, stem_prefix, c->img_size[0], c->img_size[1]);
    embedding_prefix(t, i, prefix);
    embedding_declare(e, params, prefix, stage->config.dim);
    stage_declare(stage, params);
}

void trunk_create(Trunk *t, const VitSettings *s, const TrunkUse *use, const Config *config, Params *params) {
    int first = params->count;
    *t = (Trunk){.settings = *s, .use = *use, .depth = vit_depth(s)};
    for (int i = 0; i < vit_stages(s); i++) stage_create(t, config, params, i);
    if (s->conv_init == START_FAN_OUT) params_start_fan_out(params, first);
}

Stage *trunk_last(const Trunk *t) { return (Stage *)&t->stages[vit_stages(&t->settings) - 1]; }

Block *trunk_block(const Trunk *t, int i) {
    const Stage *stage = t->stages;
    while (i >= stage->first + stage->config.depth) stage++;
    return &stage->blocks[i - stage->first];
}

void trunk_set_size(Trunk *t, int H, int W) {
    for (int i = 0; i < vit_stages(&t->settings); i++) {
        Grid before = i ? t->stages[i - 1].grid : (Grid){1, H, W};
        embedding_set_input(&t->embeddings[i], before.rows, before.columns);
        stage_set_grid(&t->stages[i], t->embeddings[i].grid);
        t->positions[i].shape.to = t->embeddings[i].grid;
    }
    t->grid = t->stages[0].grid;
    t->N = t->stages[0].N;
}

/* == Activations ================================================================================================== */

/* Scratch has the size of the largest stage. */
void trunk_plan_scratch(Trunk *t, Plan *plan, int B) {
    const VitSettings *c = &t->settings;
    bool class_later = trunk_front(t) > front_at_entry(t, vit_stages(c) - 1).count;
    size_t bytes = 0;
    for (int i = 0; i < vit_stages(c); i++) {
        size_t stage = (size_t)B * (size_t)t->stages[i].N * (size_t)t->stages[i].config.dim * sizeof(real);
        if (stage > bytes) bytes = stage;
    }
    stream_plan(&t->stream, plan, bytes, class_later, c->drop_path > 0 || c->dropout > 0);
}

static void stages_plan(Trunk *t, Plan *plan, int B) {
    char prefix[PARAM_NAME_SIZE];
    for (int i = 0; i < vit_stages(&t->settings); i++) {
        embedding_prefix(t, i, prefix);
        embedding_plan(&t->embeddings[i], plan, prefix, B);
        if (position_name(t, i, prefix)) grid_table_plan(&t->positions[i], plan, t->use.prefix, prefix, t->use.dense);
        stage_plan(&t->stages[i], plan, B);
    }
}

/* The workspace of images with height and width exchanged. */
static size_t turned_workspace(Trunk *t, bool training, int B) {
    const Unfold *images = &t->embeddings[0].windows;
    int H = images->Hi, W = images->Wi;
    Plan aside = {0};
    plan_start(&aside, training);
    trunk_set_size(t, W, H);
    stages_plan(t, &aside, B);
    trunk_set_size(t, H, W);
    size_t bytes = aside.workspace;
    plan_free(&aside);
    return bytes;
}

void trunk_plan(Trunk *t, Plan *plan, int B) {
    if (trunk_has_stem(t)) hybrid_stem_plan(&t->stem, plan, stem_prefix, B);
    if (t->use.dense) plan_workspace(plan, turned_workspace(t, plan->training, B));
    stages_plan(t, plan, B);
    plan_end_reuse(plan);
}

void trunk_allocate(Trunk *t, int B) {
    if (trunk_has_stem(t)) hybrid_stem_allocate(&t->stem);
    t->keep_host = xcalloc(2 * (size_t)t->depth * (size_t)B, sizeof(float), "drop path");
}

/* == Forward and backward ========================================================================================= */

void trunk_draw_drops(Trunk *t, uint64_t seed, uint32_t step, size_t first, int B) {
    int depth = t->depth;
    int weights = weights_site(depth, vit_stages(&t->settings), 0);
    t->stream.dropout = (Dropout){t->settings.dropout, seed, step, SITE_TOKENS, (uint32_t)first};
    t->stream.weights = (Dropout){t->settings.attn_dropout, seed, step, (uint32_t)weights, (uint32_t)first};
    if (t->settings.drop_path <= 0) return;
    for (int half = 0; half < 2 * depth; half++) {
        float rate = depth > 1 ? t->settings.drop_path * (float)(half / 2) / (float)(depth - 1) : 0;
        for (int b = 0; b < B; b++) {
            float u = rng_uniform(seed, RNG_DROP_PATH, step, (uint32_t)half, first + (size_t)b);
            t->keep_host[half * B + b] = u < rate ? 0 : 1 / (1 - rate);
        }
    }
    device_upload(t->stream.keep, t->keep_host, 2 * (size_t)depth * (size_t)B * sizeof(float));
}

void trunk_draw_buffers(const Trunk *t, uint64_t seed, uint32_t step) {
    for (int i = 0; i < t->depth; i++) {
        const Attention *a = &trunk_block(t, i)->attention;
        if (a->op->draw) a->op->draw(a, seed, step);
    }
}

/* True if tokens in front of them or a position embedding are added to a stage's patches. */
static bool is_joined(const Trunk *t, int i) { return t->positions[i].w || front_at_entry(t, i).count; }

/* Dropout of a stage's input or of its gradient: of the first stage, and of each that has a position embedding. */
static void drop_tokens(const Trunk *t, int i, real *x, int B) {
    const Stage *stage = &t->stages[i];
    Dropout d = t->stream.dropout;
    if (d.rate <= 0 || (i > 0 && !t->positions[i].w)) return;
    if (i > 0) d.site = (uint32_t)later_tokens_site(t->depth, i);
    dropout_forward(x, x, &d, B, (size_t)stage->stations[0].N * (size_t)stage->config.dim);
}

/* The input of the first embedding. */
static const real *first_input(const Trunk *t, const real *images) {
    return trunk_has_stem(t) ? t->stem.features : images;
}

/* The position embedding of a stage's tokens on the current grid, or NULL. */
static const float *positions_here(const Trunk *t, int i) {
    return t->positions[i].w ? grid_table_values(&t->positions[i]) : NULL;
}

static void embed(Trunk *t, int i, const real *x, int B) {
    const Stage *stage = &t->stages[i];
    bool joined = is_joined(t, i);
    FrontTokens front = front_at_entry(t, i);
    embedding_forward(&t->embeddings[i], joined ? t->stream.f : stage_input(stage), x, B);
    if (joined)
        embed_forward(stage_input(stage), t->stream.f, &front, positions_here(t, i),
                      &(TokenShape){B, front.count + grid_tokens(stage->grid), stage->config.dim});
}

void trunk_forward(Trunk *t, const real *images, int B, bool drop) {
    const real *x = first_input(t, images);
    if (trunk_has_stem(t)) hybrid_stem_forward(&t->stem, images, B);
    for (int i = 0; i < vit_stages(&t->settings); i++) {
        embed(t, i, x, B);
        if (drop) drop_tokens(t, i, stage_input(&t->stages[i]), B);
        stage_forward(&t->stages[i], B, drop);
        x = stage_stream(&t->stages[i]);
    }
}

/* From dx, the gradient of the stage's input, to the embedding's parameters and to dh, the gradient of the previous
 * stage's output. */
static void embed_gradient(Trunk *t, const real *images, int i, int B) {
    Stream *s = &t->stream;
    const Stage *stage = &t->stages[i];
    FrontTokens front = front_at_entry(t, i);
    if (is_joined(t, i)) {
        real *joined = s->dx;
        const GridTable *positions = &t->positions[i];
        embed_backward(s->dh, &front, positions->dw ? grid_table_gradient(positions) : NULL, joined,
                       &(TokenShape){B, front.count + grid_tokens(stage->grid), stage->config.dim});
        if (positions->dw) grid_table_backward(positions);
        s->dx = s->dh;
        s->dh = joined;
    }
    if (i > 0) {
        embedding_backward(&t->embeddings[i], s->dh, s->dx, stage_stream(stage - 1), B);
        return;
    }
    real *dfeatures = trunk_has_stem(t) ? t->stem.dfeatures : NULL; /* an image needs no gradient */
    embedding_backward(&t->embeddings[0], dfeatures, s->dx, first_input(t, images), B);
    if (trunk_has_stem(t)) hybrid_stem_backward(&t->stem, B);
}

/* Adds the external gradient of stage i's output to that of the stream, which the next stage has left in dh.  The norm
 * of an output has its own output and gradient. */
static void join_output(Trunk *t, int i, const real *dout, int B) {
    Stream *s = &t->stream;
    const Stage *stage = &t->stages[i];
    size_t n = (size_t)B * (size_t)stage->N * (size_t)stage->config.dim;
    bool alone = stage->last || stage->norm_beside;
    if (stage->norm_beside) {
        real *stream = s->dh;
        s->dh = s->dx;
        s->dx = stream;
    }
    if (alone) device_copy(s->dh, dout, n * sizeof *dout);
    else add_forward(s->dh, s->dh, dout, n);
}

void trunk_backward(Trunk *t, const real *images, real *const *dout, int B, bool drop, FinalGradients *final) {
    for (int i = vit_stages(&t->settings) - 1; i >= 0; i--) {
        if (dout) join_output(t, i, dout[i], B);
        stage_backward(&t->stages[i], B, drop, final);
        if (drop) drop_tokens(t, i, t->stream.dx, B);
        embed_gradient(t, images, i, B);
    }
}

/* == Description ================================================================================================== */

size_t trunk_macs(const Trunk *t) {
    size_t macs = trunk_has_stem(t) ? hybrid_stem_macs(&t->stem) : 0;
    for (int i = 0; i < vit_stages(&t->settings); i++)
        macs += embedding_macs(&t->embeddings[i]) + stage_macs(&t->stages[i]);
    return macs;
}

size_t trunk_transform_macs(const Trunk *t) {
    size_t macs = 0;
    for (int i = 0; i < t->depth; i++) {
        const Attention *a = &trunk_block(t, i)->attention;
        if (a->op->transform_macs) macs += a->op->transform_macs(a);
    }
    return macs;
}

static void describe_block(const Model *model, FILE *out, const Stage *stage, int i) {
    const Block *block = &stage->blocks[i];
    const Attention *a = &block->attention;
    char prefix[PARAM_NAME_SIZE], what[64];
    if (stage->position_conv) {
        snprintf(prefix, sizeof prefix, "%.40spos_embed", block->prefix);
        model_describe_row(model, out, prefix, "position convolution", station_macs(&stage->stations[2 * i]));
    }
    snprintf(what, sizeof what, a->op->path ? "%s (%s)" : "%s", a->op->name, a->op->path ? a->op->path(a) : "");
    model_describe_row(model, out, a->prefix, what, attention_macs(a));
    snprintf(prefix, sizeof prefix, "%.40smlp.", block->prefix);
    model_describe_row(model, out, prefix, block->mlp.convolves ? "convolutional MLP" : "MLP",
                       mlp_macs(&block->mlp, (size_t)a->N));
    snprintf(prefix, sizeof prefix, "%.40snorm", block->prefix);
    model_describe_row(model, out, prefix, "residual stream, two norms", 0);
}

const char *vit_grid_text(char text[VIT_GRID_SIZE], Grid grid, const char *by) {
    int used = grid.frames > 1 ? snprintf(text, VIT_GRID_SIZE, "%d%s", grid.frames, by) : 0;
    snprintf(text + used, VIT_GRID_SIZE - (size_t)used, "%d%s%d", grid.rows, by, grid.columns);
    return text;
}

static void describe_stage(const Trunk *t, const Model *model, FILE *out, int i) {
    const Stage *stage = &t->stages[i];
    char prefix[PARAM_NAME_SIZE], grid[VIT_GRID_SIZE];
    if (vit_stages(&t->settings) > 1)
        fprintf(out, "  stage %d: %s grid, %d tokens of %d\n", i, vit_grid_text(grid, stage->grid, " x "), stage->N,
                stage->config.dim);
    embedding_prefix(t, i, prefix);
    if (i == 0 && trunk_has_stem(t)) {
        model_describe_row(model, out, stem_prefix, "hybrid stem", hybrid_stem_macs(&t->stem));
        snprintf(prefix, sizeof prefix, "patch_embed.proj.");
    }
    const Embedding *embedding = &t->embeddings[i];
    model_describe_row(model, out, prefix, embedding_kind(embedding), embedding_macs(embedding));
    if (stage->front.count > 0) model_describe_row(model, out, "cls_token", "class token", 0);
    if (stage->front.count > 1) model_describe_row(model, out, "dist_token", "distillation token", 0);
    if (position_name(t, i, prefix)) model_describe_row(model, out, prefix, "position embedding", 0);
    for (int j = 0; j < stage->config.depth; j++) describe_block(model, out, stage, j);
    if (stage->bare_end) {
        snprintf(prefix, sizeof prefix, "%send.", stage->prefix);
        model_describe_row(model, out, prefix, "residual stream", 0);
        return;
    }
    snprintf(prefix, sizeof prefix, "%snorm.", stage->norm_prefix);
    bool last = i + 1 == vit_stages(&t->settings);
    const char *what = !last ? "norm" : stage->norm_unused ? "final norm, unused" : "final norm";
    model_describe_row(model, out, prefix, what, 0);
}

void trunk_describe(const Trunk *t, const Model *model, FILE *out) {
    for (int i = 0; i < vit_stages(&t->settings); i++) describe_stage(t, model, out, i);
}

void trunk_destroy(Trunk *t) {
    for (int i = 0; i < vit_stages(&t->settings); i++) stage_destroy(&t->stages[i]);
    embedding_destroy(&t->embeddings[0]);
    hybrid_stem_destroy(&t->stem);
    free(t->keep_host);
    *t = (Trunk){0};
}
