#include "layers/backbone/backbone.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/safetensors.h"
#include "core/text.h"
#include "layers/vit/layer_decay.h"
#include "training/checkpoint.h"
#include "training/run_folder.h"

/* == Settings ===================================================================================================== */

#define F(KIND, field) CONFIG_FIELD(KIND, BackboneKindSettings, field)
static const ConfigEntry kind_entries[] = {
    {F(CHOICE, backbone), "resnet", .section = "model", CONFIG_CHOICES("resnet", "hierarchy"),
     .help = "Backbone, which computes the four feature maps: resnet (bottlenecks with frozen batch norms) or "
             "hierarchy (the stages of a vision transformer, as train_vit's settings make them)"},
};
#undef F
const ConfigGroup backbone_kind_settings = {CONFIG_GROUP(BackboneKindSettings, kind_entries), .change = CHANGE_NEVER};

#define F(KIND, field) CONFIG_FIELD(KIND, ResNetSettings, field)
static const ConfigEntry resnet_entries[] = {
    {F(INTS, backbone_blocks), "3,4,6,3", .section = "model", .min = 1, .max = 99,
     .help = "Number of blocks in each of the ResNet backbone's four stages (ResNet-50: 3,4,6,3)"},
    {F(INT, backbone_width), "64", .min = 1, .max = 1024,
     .help = "Output channels of the backbone's first convolution"},
    {F(INT, trainable_layers), "3", .min = 0, .max = RESNET_STAGES - 1,
     .help = "Number of the ResNet's last stages that are trained; batch norms are always frozen"},
};
#undef F

static void resnet_check(const Config *config, const void *settings) {
    const ResNetSettings *s = settings;
    if (s->backbone_blocks.count != RESNET_STAGES)
        config_reject(config, "backbone_blocks", "expected four numbers from 1 to 99, as 3,4,6,3, got %d",
                      s->backbone_blocks.count);
}

const ConfigGroup resnet_settings = {CONFIG_GROUP(ResNetSettings, resnet_entries), .change = CHANGE_NEVER,
                                     .check = resnet_check};

void backbone_add_settings(Config *config) {
    config_add(config, &backbone_kind_settings);
    config_add_for(config, &resnet_settings, "backbone", "resnet");
    hierarchy_add_settings(config, "backbone", "hierarchy");
}

static BackboneKind kind_of(const Config *config) {
    return ((const BackboneKindSettings *)config_settings(config, &backbone_kind_settings))->backbone;
}

void backbone_use_settings(Config *config) {
    if (kind_of(config) == BACKBONE_HIERARCHY) hierarchy_use_settings(config);
    else config_use(config, &resnet_settings);
}

static bool is_hierarchy(const Backbone *b) { return b->kind == BACKBONE_HIERARCHY; }

/* == Parameters and activations =================================================================================== */

static void create_resnet(Backbone *b, const Config *config, Params *params, int way) {
    const ResNetSettings *s = config_settings(config, &resnet_settings);
    ResNetConfig resnet = {.width = s->backbone_width, .trained = s->trainable_layers, .pyramid = true,
                           .way = way, .prefix = b->prefix};
    for (int i = 0; i < RESNET_STAGES; i++) resnet.blocks[i] = s->backbone_blocks.at[i];
    resnet_create(&b->resnet, &resnet, params);
}

static void create_hierarchy(Backbone *b, const Config *config, Params *params) {
    VitSettings s = hierarchy_settings(config);
    TrunkUse use = {.prefix = b->prefix, .dense = true, .ends = hierarchy_ends(config)};
    trunk_create(&b->trunk, &s, &use, config, params);
    for (int i = 0; i < b->trunk.depth; i++) attention_check_any_grid(&trunk_block(&b->trunk, i)->attention);
}

void backbone_create(Backbone *b, const Config *config, Params *params, const char *prefix, int way) {
    *b = (Backbone){.kind = kind_of(config), .config = config, .begin = params->total};
    snprintf(b->prefix, sizeof b->prefix, "%s", prefix);
    if (is_hierarchy(b)) create_hierarchy(b, config, params);
    else create_resnet(b, config, params, way);
}

/* A training plan has drop path's factors, from which a forward pass determines whether there is drop path. */
static void plan_hierarchy(Backbone *b, Plan *plan, int B, int H, int W) {
    Trunk *t = &b->trunk;
    trunk_set_size(t, H, W);
    if (plan->training) trunk_allocate(t, B);
    size_t keep = 2 * (size_t)t->depth * (size_t)B * sizeof(float);
    if (plan->training) plan_keep(plan, b->prefix, "keep", &t->stream.keep, keep);
    else plan_without(plan, &t->stream.keep);
    trunk_plan_scratch(t, plan, B);
    trunk_plan(t, plan, B);
    for (int i = 0; i < BACKBONE_LEVELS; i++) stage_output_alias(&t->stages[i], plan, &b->features[i]);
}

void backbone_set_room(Backbone *b, int B, int H, int W) {
    b->most_B = B;
    b->most_H = H;
    b->most_W = W;
    resnet_set_room(&b->resnet, B, H, W);
}

void backbone_plan(Backbone *b, Plan *plan, int B, int H, int W) {
    size_t image = 3 * (size_t)H * (size_t)W;
    backbone_set_room(b, B, H, W);
    plan_keep(plan, "", "pixels", &b->pixels, (size_t)B * image);
    plan_keep(plan, "", "sizes", &b->sizes, (size_t)B * 2 * sizeof *b->sizes);
    plan_keep(plan, "", "images", &b->images, (size_t)B * image * sizeof(real));
    if (is_hierarchy(b)) {
        plan_hierarchy(b, plan, B, H, W);
        return;
    }
    resnet_plan(&b->resnet, plan, B, H, W);
    for (int i = 0; i < BACKBONE_LEVELS; i++) plan_alias(plan, &b->features[i], &b->resnet.features[i]);
}

bool backbone_fits(const Backbone *b, int B, int H, int W) {
    bool upright = H <= b->most_H && W <= b->most_W, sideways = H <= b->most_W && W <= b->most_H;
    return B <= b->most_B && (upright || sideways);
}

void backbone_fold(Backbone *b) {
    if (!is_hierarchy(b)) resnet_fold(&b->resnet);
}

/* == Forward and backward ========================================================================================= */

void backbone_load(Backbone *b, const uint8_t *pixels, const int *sizes, const float *mean, const float *std, int B,
                   int H, int W) {
    if (!backbone_fits(b, B, H, W))
        die("a batch of %d images of %d x %d: the memory is planned for %d of %d x %d", B, H, W, b->most_B, b->most_H,
            b->most_W);
    device_upload(b->sizes, sizes, 2 * (size_t)B * sizeof *sizes);
    device_upload_async(b->pixels, pixels, (size_t)B * 3 * (size_t)H * (size_t)W);
    images_normalize_padded(b->images, b->pixels, b->sizes, mean, std, &(ImageShape){B, H, W});
    device_uploads_used();
}

void backbone_draw(Backbone *b, uint64_t seed, uint32_t step, size_t first, int B) {
    if (!is_hierarchy(b)) return;
    if (b->trunk.stream.keep) trunk_draw_drops(&b->trunk, seed, step, first, B); /* a training plan is in use */
    trunk_draw_buffers(&b->trunk, seed, step);
}

static void set_size(Backbone *b, int H, int W) {
    const Unfold *images = &b->trunk.embeddings[0].windows;
    assert(H % BACKBONE_STRIDE == 0 && W % BACKBONE_STRIDE == 0);
    if (images->Hi != H || images->Wi != W) trunk_set_size(&b->trunk, H, W);
}

void backbone_forward(Backbone *b, const real *images, int B, int H, int W) {
    assert(backbone_fits(b, B, H, W));
    b->B = B;
    b->H = H;
    b->W = W;
    b->input = images;
    if (!is_hierarchy(b)) {
        resnet_forward(&b->resnet, images, B, H, W);
        return;
    }
    set_size(b, H, W);
    trunk_forward(&b->trunk, images, B, b->trunk.stream.keep != NULL);
}

void backbone_backward(Backbone *b, real *const dfeatures[BACKBONE_LEVELS], FinalGradients *final) {
    if (!is_hierarchy(b)) {
        resnet_backward(&b->resnet, dfeatures, b->B, b->H, b->W, final);
        return;
    }
    set_size(b, b->H, b->W);
    trunk_backward(&b->trunk, b->input, dfeatures, b->B, true, final);
    gradients_final(final, b->begin);
}

/* == Size and description ========================================================================================= */

int backbone_channels(const Backbone *b, int level) {
    return is_hierarchy(b) ? b->trunk.stages[level].config.dim : resnet_channels(&b->resnet, level);
}

bool backbone_is_trained(const Backbone *b, int level) {
    return is_hierarchy(b) || resnet_is_trained(&b->resnet, level);
}

void backbone_set_rates(const Backbone *b, Params *params, float rate, float layer_decay) {
    size_t length = strlen(b->prefix);
    for (int i = 0; i < params_count(params); i++) {
        const char *name = params_at(params, i)->name;
        float factor = rate;
        if (strncmp(name, b->prefix, length)) continue;
        if (is_hierarchy(b)) factor *= layer_decay_rate(&b->trunk.settings, name + length, layer_decay);
        params_set_rate(params, i, factor);
    }
}

size_t backbone_macs(Backbone *b, int H, int W) {
    if (!is_hierarchy(b)) return resnet_macs(&b->resnet, H, W);
    set_size(b, H, W);
    return trunk_macs(&b->trunk);
}

size_t backbone_backward_macs(Backbone *b, int H, int W) {
    return is_hierarchy(b) ? 2 * backbone_macs(b, H, W) : resnet_backward_macs(&b->resnet, H, W);
}

size_t backbone_weights(const Backbone *b, const Params *params) {
    size_t count = 0;
    for (int i = 0; i < params_count(params); i++) {
        const Param *p = params_at(params, i);
        bool statistic = text_ends_with(p->name, ".running_mean") || text_ends_with(p->name, ".running_var");
        if (!strncmp(p->name, b->prefix, strlen(b->prefix)) && !statistic) count += p->size;
    }
    return count;
}

static void part_of_stage(Backbone *b, int i, ModelPart part, void *context) {
    const Stage *stage = &b->trunk.stages[i];
    const Embedding *embedding = &b->trunk.embeddings[i];
    char prefix[PARAM_NAME_SIZE], what[96];
    size_t patches = embedding_macs(embedding);
    snprintf(prefix, sizeof prefix, "%spatch_embed.", b->prefix);
    if (i == 0) part(context, prefix, embedding_kind(embedding), patches);
    snprintf(what, sizeof what, "%s, %d block%s of %d, %d x %d grid", stage->config.attn->name, stage->config.depth,
             stage->config.depth > 1 ? "s" : "", stage->config.dim, stage->grid.rows, stage->grid.columns);
    part(context, stage->prefix, what, stage_macs(stage) + (i ? patches : 0));
}

void backbone_parts(Backbone *b, int H, int W, ModelPart part, void *context) {
    char prefix[PARAM_NAME_SIZE];
    if (!is_hierarchy(b)) {
        part(context, b->prefix, "ResNet, frozen batch norms", backbone_macs(b, H, W));
        return;
    }
    set_size(b, H, W);
    for (int i = 0; i < BACKBONE_LEVELS; i++) part_of_stage(b, i, part, context);
    snprintf(prefix, sizeof prefix, "%snorm", b->prefix);
    if (!b->trunk.settings.stage_norm && b->trunk.use.ends == ENDS_BESIDE)
        part(context, prefix, "norms of the four maps", 0);
}

void backbone_tell(const Backbone *b, char *text, size_t size) {
    const int *blocks = b->resnet.config.blocks;
    const Stage *s = b->trunk.stages;
    if (is_hierarchy(b))
        snprintf(text, size, "a hierarchy of %d, %d, %d and %d blocks of %s attention, %d to %d wide",
                 s[0].config.depth, s[1].config.depth, s[2].config.depth, s[3].config.depth, s[3].config.attn->name,
                 s[0].config.dim, s[3].config.dim);
    else
        snprintf(text, size, "a ResNet of %d, %d, %d and %d blocks, %d wide", blocks[0], blocks[1], blocks[2],
                 blocks[3], b->resnet.config.width);
}

/* == Weights ====================================================================================================== */

bool backbone_is_alone(const Backbone *b, const char *path) {
    SafeTensors st;
    bool alone = true;
    safetensors_open(&st, path, &error_fatal);
    for (int i = 0; i < st.count; i++)
        if (!strncmp(st.tensors[i].name, b->prefix, strlen(b->prefix))) alone = false;
    safetensors_close(&st);
    return alone;
}

/* Tensors of a classifier that a backbone does not have: its head, the norm before it, its class token, and
 * torchvision's counters. */
static bool is_left_out(const Backbone *b, const char *name) {
    static const char *const parts[] = {"head.", "fc.", "norm.", "cls_token"};
    bool left = text_ends_with(name, ".num_batches_tracked");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        left |= !strncmp(name, parts[i], strlen(parts[i])) && (i < 2 || is_hierarchy(b));
    return left;
}

/* Blocks that this backbone does not have would otherwise be ignored. */
static void refuse_more(const Backbone *b, const Params *params, const char *path) {
    SafeTensors st;
    safetensors_open(&st, path, &error_fatal);
    for (int i = 0; i < st.count; i++) {
        char whole[CHECKPOINT_NAME];
        const char *name = st.tensors[i].name;
        snprintf(whole, sizeof whole, "%s%s", b->prefix, name);
        if (!is_left_out(b, name) && !params_find(params, whole))
            die("%s: tensor '%s' has no place in this backbone: the weights of another one (%s)?", path, name,
                is_hierarchy(b) ? "attn, depth, conv_stages, pos_embed or stage_norm" : "backbone_blocks");
    }
    safetensors_close(&st);
}

/* The settings of the run that made the file, if they have the same names; false if the file has none. */
static bool settings_of_file(const Backbone *b, Config *origin, const char *path) {
    char *text = run_folder_config(path);
    config_init_like(origin, b->config);
    for (int i = 0; text && i < origin->count; i++) {
        char begin[80], value[256];
        Error error;
        int length = snprintf(begin, sizeof begin, "\n%s = ", config_name(origin, i));
        const char *line = strstr(text, begin);
        if (line && !config_entry(origin, i)->command_line_only && sscanf(line + length, "%255[^\n]", value) == 1)
            config_try_set(origin, config_name(origin, i), value, path, &error);
    }
    free(text);
    return text;
}

/* Checks properties that no tensor's shape shows: operators with the same tensors, and numbers of heads. */
static void refuse_other_settings(const Backbone *b, const char *path) {
    Config origin;
    if (settings_of_file(b, &origin, path)) {
        VitSettings there = hierarchy_settings(&origin);
        const VitSettings *here = &b->trunk.settings;
        if (there.dim.count == BACKBONE_LEVELS) vit_check_heads(path, b->config, here, &there);
        for (int i = 0; i < BACKBONE_LEVELS && there.dim.count == BACKBONE_LEVELS; i++) {
            const AttentionOp *op = vit_stage_config(here, i).attn, *trained = vit_stage_config(&there, i).attn;
            if (op != trained)
                config_reject(b->config, "attn", "{attn=%s} in stage %d, but %s was trained with %s", op->name, i, path,
                              trained->name);
        }
    }
    config_free(&origin);
}

/* A position embedding without the class token's, which is the first (PVT's detection/pvt.py). */
static bool fit_positions(float *to, const Param *p, const char *name, const SafeTensor *tensor) {
    bool token_more = tensor->ndim == 3 && p->ndim == 3 && tensor->shape[0] == 1 &&
                      tensor->shape[1] == (size_t)p->shape[1] + 1 && tensor->shape[2] == (size_t)p->shape[2];
    if (strncmp(name, "pos_embed", 9) || !token_more) return false;
    float *all = xcalloc(tensor->size, sizeof *all, "position embedding");
    safetensors_to_float(tensor, all, &error_fatal);
    memcpy(to, all + p->shape[2], p->size * sizeof *to);
    free(all);
    return true;
}

/* Norms of outputs are new: they keep their initial values. */
static bool fit_weights(float *to, const Param *p, const SafeTensor *tensor, void *context) {
    const Backbone *b = context;
    const char *name = p->name + strlen(b->prefix);
    if (tensor) return is_hierarchy(b) && fit_positions(to, p, name, tensor);
    return is_hierarchy(b) && !strncmp(name, "norm", 4) && name[4] >= '0' && name[4] <= '9';
}

void backbone_load_weights(const Backbone *b, Params *params, const char *path) {
    if (is_hierarchy(b)) refuse_other_settings(b, path);
    checkpoint_load_part(params, b->prefix, path, &(CheckpointFit){.fit = fit_weights, .context = (void *)b});
    refuse_more(b, params, path);
}

void backbone_destroy(Backbone *b) {
    if (is_hierarchy(b)) trunk_destroy(&b->trunk);
    else resnet_destroy(&b->resnet);
    *b = (Backbone){0};
}
