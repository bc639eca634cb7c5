/* Vision transformer.  images [B,3,Hi,Wi], or clips [B,frames,3,Hi,Wi] -> logits [B,C]
 * forward   1. for every stage: tokens = patch embedding of the image, of a stem's features of it (hybrid_stem.h), or
 *              of the previous stage's output;
 *              h = norm(blocks(tokens)), or without a norm; in the first stage a position embedding is added to tokens,
 *              or in every stage, and in the last one a class token
 *           2. logits = head(pool(h))
 * backward  the same steps in reverse.  Blocks are in layers/stage.c, patch embeddings in layers/vit/embedding.c. */
#include "layers/vit/vit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/rng.h"
#include "core/text.h"
#include "core/text_stream.h"

/* == Settings ===================================================================================================== */

static const AttentionOp *const conv_blocks[] = {&conv_op, &sepconv_op, NULL};

#define F(KIND, field) CONFIG_FIELD(KIND, VitSettings, field)
static const ConfigEntry entries[] = {
    {F(ITEMS, attn), "softmax", .section = "model", .table = (const void *const *)attention_operators,
     .noun = "operator", .list = "Attention operators",
     .help = "Attention operator of the blocks; with several stages one or a list, such as lisa,lisa,softmax,softmax"},
    {F(SIZE, img_size), "32", .min = 1, .max = 4096, .help = "Height and width of the images that the model takes"},
    {F(INT, frames), "1", .min = 1, .max = 1024,
     .help = "Number of frames of the clips that the model takes; 1: images"},
    {F(INT, patch_size), "4", .min = 1, .max = 256,
     .help = "Side of the square patches that become tokens; with a stem, patches of its features"},
    {F(CHOICE, stem), "none", CONFIG_CHOICES("none", "hybrid"),
     .help = "What the patches are taken of: none, the image; hybrid, the features of a ResNet in front of it, a "
             "quarter of the image's side or less (timm's vit_*_r*)"},
    {F(INT, tubelet), "1", .min = 1, .max = 15,
     .help = "Number of frames, odd, that the first patch embedding of a clip joins, with every second frame in the "
             "middle of a tubelet (1: every frame by itself)"},
    {F(INT, time_kernel), "3", .min = 1, .max = 15,
     .help = "Size in time, odd, of the depthwise convolutions over the tokens of clips, and of lisa's windows"},
    {F(INT, conv_time_kernel), "5", .min = 1, .max = 15, .help = "The same for the convolution blocks of conv_stages"},
    {F(CHOICE, inflate), "none", CONFIG_CHOICES(INFLATE_KINDS),
     .help = "How a model of clips starts from the weights of an image model that --init gives: none (the weights are "
             "of clips), mean (every frame counts alike) or centre (a frame does not see the others)"},
    {F(INT, num_classes), "0", .min = 0, .max = 1e6, .change = CHANGE_TO_DEFAULT,
     .help = "Number of classes (0: that of the data set)"},
    {F(BOOL, patch_overlap), "false",
     .help = "Overlapping patches, 2 patch_size - 1 pixels wide and followed by a layer norm, as in PVTv2"},
    {F(INT, patch_pad), "0", .min = 0, .max = 511,
     .help = "Zero pixels around the image for the first overlapping patches; 0: half their width, as in PVTv2 "
             "(CSwin: 2)"},
    {F(BOOL, patch_norm), "false",
     .help = "Layer norm after patches that do not overlap, as in Swin and PVT (overlapping patches have one)"},
    {F(BOOL, patch_merging), "false",
     .help = "Later stages begin with Swin's patch merging: the tokens of a 2x2 cell side by side, a layer norm and a "
             "linear layer without bias"},
    {F(BOOL, stage_norm), "true",
     .help = "Layer norm at the end of every stage, as in PVTv2; false: of the last one only, as in Swin and PVT"},
    {F(FLOAT, norm_eps), "1e-6", .min = 1e-12, .max = 1,
     .help = "What the layer norms of the blocks and at the end of stages add to the variance (Swin: 1e-5)"},
    {F(INTS, dim), "192", .min = 1, .max = 16384,
     .help = "Width of the tokens; a list, such as 64,128, makes a hierarchy of stages, each with half the rows and "
             "columns of tokens of the one before"},
    {F(INTS, depth), "12", .min = 1, .max = 256, .help = "Number of blocks; with several stages a list"},
    {F(INTS, heads), "6", .min = 1, .max = 1024,
     .help = "Number of attention heads, a divisor of dim; with several stages one number or a list"},
    {F(FLOATS, mlp_ratio), "4", .min = 0.01, .max = 64,
     .help = "Hidden width of the MLP as a multiple of dim; with several stages one number or a list"},
    {F(BOOL, mlp_conv), "false",
     .help = "Depthwise 3x3 convolution over the token grid between the two layers of the MLP, as in PVTv2"},
    {F(BOOL, mlp_relu), "false", .help = "ReLU before that convolution, as in the linear form of PVTv2"},
    {F(INT, conv_stages), "0", .min = 0, .max = VIT_MAX_STAGES,
     .help = "Number of stages, from the first, that have convolution blocks in place of attn"},
    {F(ITEM, conv_block), "conv", .table = (const void *const *)conv_blocks, .noun = "convolution block",
     .help = "Convolution of those stages: conv (UniFormer's, 5x5) or sepconv (MetaFormer's, 7x7, twice as wide)"},
    {F(CHOICE, pool), "gap", CONFIG_CHOICES("cls", "gap", "gap-raw"),
     .help = "Input of the classifier: the class token, which joins the last of several stages, or the mean of all "
             "tokens (global average pooling) after the last norm or, gap-raw, before it: that norm is then there but "
             "unused, as in FLatten's PVT"},
    {F(CHOICE, head), "linear", CONFIG_CHOICES(HEAD_KINDS),
     .help = "Classifier: one linear layer; mlp, a hidden layer of 4 dim with GELU and a norm, as in MetaFormer; tanh, "
             "a hidden layer of dim with tanh, as in ViT's pre-training"},
    {F(CHOICE, pos_embed), "learned", CONFIG_CHOICES("learned", "none", "conv", "stages"),
     .help = "Position embedding: a learned one, none, a depthwise 3x3 convolution at the start of every block (conv), "
             "or a learned one at the start of every stage (stages, as in PVT)"},
    {F(FLOAT, drop_path), "0", .min = 0, .max = 0.99, .change = CHANGE_FREELY,
     .help = "Rate of stochastic depth (drop path) in the last block; it grows linearly from 0 in the first block"},
    {F(FLOAT, dropout), "0", .min = 0, .max = 0.9, .change = CHANGE_FREELY,
     .help = "Rate of dropout after position embeddings, after attention's projection and after both layers of the "
             "MLP, as in ViT and PVT (attention weights have none)"},
    {F(BOOL, recompute), "false", .change = CHANGE_FREELY,
     .help = "Activation checkpointing: store only the input of each block and compute the block again in the backward "
             "pass, which saves memory, takes more time and gives the same results"},
    {F(CHOICE, init_scale), "none", CONFIG_CHOICES("none", "depth"),
     .help = "Scale of the initial weights of attention's proj and of the MLP's second layer: none (1), or depth, "
             "1/sqrt(2 blocks), as in Sparse Transformers"},
    {F(FLOAT, head_init_scale), "1", .min = 0, .max = 1000,
     .help = "Factor on the initial weights of the classifier's last layer, also where --init draws it afresh "
             "(ConvNeXt's fine-tuning: 0.001)"},
};
#undef F

static int list_int(const ConfigInts *list, int i) { return list->at[list->count > 1 ? i : 0]; }

const AttentionOp *vit_attn(const VitSettings *s, int stage) { return s->attn.at[s->attn.count > 1 ? stage : 0]; }

const char *vit_attn_names(const VitSettings *s, char text[VIT_ATTN_SIZE]) {
    int used = 0;
    for (int i = 0; i < s->attn.count && used < VIT_ATTN_SIZE; i++)
        used += snprintf(text + used, VIT_ATTN_SIZE - (size_t)used, i ? ",%s" : "%s", vit_attn(s, i)->name);
    return text;
}

static int stage_count(const VitSettings *s) { return s->dim.count; }

static StageConfig stage_config(const VitSettings *s, int i) {
    return (StageConfig){.dim = s->dim.at[i],
                         .depth = list_int(&s->depth, i),
                         .heads = list_int(&s->heads, i),
                         .mlp_ratio = s->mlp_ratio.at[s->mlp_ratio.count > 1 ? i : 0],
                         .attn = i < s->conv_stages ? s->conv_block : vit_attn(s, i)};
}

static int depth_of(const VitSettings *s) {
    int depth = 0;
    for (int i = 0; i < stage_count(s); i++) depth += list_int(&s->depth, i);
    return depth;
}

static void check_stage(const Config *config, const VitSettings *s, int i) {
    StageConfig c = stage_config(s, i);
    if (c.dim % c.heads) config_reject(config, "heads", "{heads=%d} does not divide {dim=%d}", c.heads, c.dim);
    if ((int)((float)c.dim * c.mlp_ratio) < 1)
        config_reject(config, "mlp_ratio", "{mlp_ratio=%g} of {dim=%d} leaves no hidden unit", (double)c.mlp_ratio, c.dim);
}

/* Each list has as many values as dim has, or one for all stages. */
static void check_lists(const Config *config, const VitSettings *s) {
    const struct {
        const char *name;
        int count;
    } lists[] = {{"attn", s->attn.count}, {"depth", s->depth.count}, {"heads", s->heads.count},
                 {"mlp_ratio", s->mlp_ratio.count}};
    int stages = stage_count(s);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (lists[i].count != 1 && lists[i].count != stages)
            config_reject(config, lists[i].name,
                          "{%s} has %d values, but {dim} has %d: give one for each stage, or one for all", lists[i].name,
                          lists[i].count, stages);
    if (s->conv_stages > stages)
        config_reject(config, "conv_stages", "{conv_stages} is more than the %d stage%s of {dim}", stages,
                      stages > 1 ? "s" : "");
}

/* Patches of their own padding, of what has these sides. */
static void check_patch_pad(const Config *config, const VitSettings *s, const int sides[2]) {
    int width = 2 * s->patch_size - 1;
    if (s->patch_pad == 0) return;
    if (!s->patch_overlap)
        config_reject(config, "patch_pad", "{patch_pad} pads patches that overlap, but {patch_overlap} has none: use "
                                           "patch_overlap true");
    if (s->patch_pad >= width)
        config_reject(config, "patch_pad", "{patch_pad} holds a whole patch, which is %d pixels wide with {patch_size}",
                      width);
    for (int i = 0; i < 2; i++)
        if (sides[i] + 2 * s->patch_pad < width)
            config_reject(config, "patch_pad", "{patch_pad} leaves no patch, which is %d pixels wide with {patch_size}, on "
                          "{img_size}", width);
}

/* Whole patches of what the first embedding reads, pixels or a stem's features, and again from stage to stage. */
static void check_patches(const Config *config, const VitSettings *s) {
    int stages = stage_count(s), side = s->patch_size << (stages - 1), sides[2] = {s->img_size[0], s->img_size[1]};
    const char *is_not = s->stem == STEM_HYBRID ? "are not multiples" : "is not a multiple";
    char of[96] = "";
    if (s->stem == STEM_HYBRID) {
        const StemSettings *stem = config_settings(config, &hybrid_stem_settings);
        hybrid_stem_check(config);
        for (int i = 0; i < 2; i++) sides[i] = hybrid_stem_side(stem, sides[i]);
        snprintf(of, sizeof of, "the stem's %dx%d features of ", sides[0], sides[1]);
    }
    if (s->patch_merging && s->patch_overlap)
        config_reject(config, "patch_merging", "{patch_merging} and {patch_overlap} exclude each other: merged patches do "
                                               "not overlap");
    if (s->patch_merging && stages == 1)
        config_reject(config, "patch_merging", "{patch_merging} begins the stages after the first, but {dim} makes only one");
    if (s->patch_norm && s->patch_overlap)
        config_reject(config, "patch_norm", "{patch_norm} and {patch_overlap} exclude each other: overlapping patches have "
                                            "a norm anyway");
    check_patch_pad(config, s, sides);
    for (int i = 0; i < 2 && !s->patch_overlap; i++) {
        if (sides[i] % s->patch_size)
            config_reject(config, "img_size", "%s{img_size} %s of {patch_size}", of, is_not);
        if (sides[i] % side)
            config_reject(config, "img_size",
                          "%s{img_size} %s of %d, which is {patch_size} doubled by every stage after the first of %d: "
                          "use another img_size%s", of, is_not, side, stages,
                          s->patch_merging ? "" : " or patch_overlap true");
    }
}

static void check_frames(const Config *config, const VitSettings *s) {
    const struct {
        const char *name;
        int size;
    } sizes[] = {{"tubelet", s->tubelet}, {"time_kernel", s->time_kernel}, {"conv_time_kernel", s->conv_time_kernel}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].size % 2 == 0)
            config_reject(config, sizes[i].name, "%d: a size in time is odd, so that a frame is in its middle",
                          sizes[i].size);
    if (s->tubelet > s->frames)
        config_reject(config, "tubelet", "{tubelet} is more than {frames}");
    if (s->frames > 1 && s->patch_merging)
        config_reject(config, "patch_merging", "{patch_merging} joins rows and columns of tokens, but {frames} makes clips: "
                                               "use frames 1");
    if (s->frames > 1 && s->stem != STEM_NONE)
        config_reject(config, "stem", "{stem} reads single images, but {frames} makes clips: use stem none");
}

static void check_mlp(const Config *config, const VitSettings *s) {
    if (s->mlp_relu && !s->mlp_conv)
        config_reject(config, "mlp_relu", "{mlp_relu} puts a ReLU before the MLP's convolution, but {mlp_conv} has none: use "
                                          "mlp_conv true too");
}

/* The setting for which every token of the last stage must be on the grid, or NULL. */
static const char *grid_setting(const VitSettings *s) {
    if (s->mlp_conv) return "mlp_conv";
    if (s->pos_embed == POSITIONS_CONV) return "pos_embed";
    return s->conv_stages > 0 && s->conv_stages == stage_count(s) ? "conv_stages" : NULL;
}

static void check_class_token(const Config *config, const VitSettings *s) {
    const char *grid = grid_setting(s);
    const AttentionOp *attn = vit_attn(s, stage_count(s) - 1);
    int joins = attention_class_block(attn, config), depth = depth_of(s);
    if (s->pool != POOL_CLS) return;
    if (grid)
        config_reject(config, "pool", "{%s} has no place for the class token of {pool}: use pool gap", grid);
    if (!attn->off_grid && !attn->class_block)
        config_reject(config, "pool", "{attn=%s} has no place for the class token of {pool}: use pool gap", attn->name);
    if (stage_count(s) > 1 && joins > 0)
        config_reject(config, "pool", "{attn=%s} adds the class token of {pool} before block %d, which only a single stage "
                      "can do, but {dim} makes more: use pool gap", attn->name, joins);
    if (joins >= depth)
        config_reject(config, "pool",
                      "{attn=%s} adds the class token of {pool} before block %d, but with {depth=%d} block %d is the "
                      "last: use pool gap", attn->name, joins, depth, depth - 1);
}

void vit_check_settings(const Config *config) {
    const VitSettings *s = config_settings(config, &vit_settings);
    check_lists(config, s);
    for (int i = 0; i < stage_count(s); i++) check_stage(config, s, i);
    check_patches(config, s);
    check_frames(config, s);
    check_mlp(config, s);
    check_class_token(config, s);
    if (s->dropout > 0 && later_tokens_site(depth_of(s), stage_count(s) - 1) >= DROPOUT_SITES)
        config_reject(config, "dropout", "{dropout} has more places in the %d blocks of {depth} than the %d that "
                                         "random numbers can tell apart", depth_of(s), DROPOUT_SITES);
}

void vit_check_heads(const char *path, const Config *config, const VitSettings *origin) {
    const VitSettings *s = config_settings(config, &vit_settings);
    for (int i = 0; i < stage_count(s) && i < stage_count(origin); i++) {
        int here = list_int(&s->heads, i), there = list_int(&origin->heads, i);
        if (here != there) config_reject(config, "heads", "{heads=%d}, but %s was trained with %d", here, path, there);
    }
}

/* The settings in use with which weights load whatever they were trained with: " stripe 1,2,7,7, shift none".  Unless
 * `other` is NULL, only those that have another value there. */
static char *shapeless_settings(const Config *config, const Config *other) {
    TextStream text;
    FILE *out = text_open(&text);
    for (int i = 0; i < config->count; i++) {
        if (!config_entry(config, i)->shapeless || !config_counts(config, i) ||
            (other && !config_counts(other, i)))
            continue;
        char *value = config_value(config, i), *others = other ? config_value(other, i) : NULL;
        if (!other || strcmp(value, others))
            fprintf(out, "%s %s %s", ftell(out) ? "," : "", config_name(config, i), value);
        free(value);
        free(others);
    }
    return text_close(&text, "the settings of attention");
}

/* Weights load with any number of heads.  Published models with one width have heads of 64 numbers. */
static void print_heads(const char *path, const Config *config, const VitSettings *s) {
    int dim = s->dim.at[0], published = dim / 64, used = 0;
    char heads[64] = "", usual[96] = "";
    const char *origin = config_origin(config, "heads");
    for (int i = 0; i < s->heads.count && used < 48; i++)
        used += snprintf(heads + used, sizeof heads - (size_t)used, i ? ",%d" : "%d", s->heads.at[i]);
    if (s->dim.count == 1 && dim % 64 == 0 && s->heads.at[0] != published)
        snprintf(usual, sizeof usual, "; timm's models of dim %d have %d (--heads %d)", dim, published, published);
    print_line("%s: WARNING: nothing in this file tells the number of heads, and the shapes of its weights fit any: "
               "heads %s (%s) is assumed, and a wrong number gives wrong results without an error%s\n",
               path, heads, origin ? origin : "the default", usual);
}

void vit_print_assumptions(const char *path, const Config *config, const float *mean, const float *std) {
    const VitSettings *s = config_settings(config, &vit_settings);
    char attn[VIT_ATTN_SIZE], *more = shapeless_settings(config, NULL);
    print_line("%s: no settings of train_vit in it, taken for attn %s,%s%s heads %d, pool %s, img_size %dx%d, mean "
               "%.4g,%.4g,%.4g, std %.4g,%.4g,%.4g\n",
               path, vit_attn_names(s, attn), more, *more ? "," : "", s->heads.at[0],
               config_word(config, "pool", s->pool), s->img_size[0], s->img_size[1], (double)mean[0], (double)mean[1],
               (double)mean[2], (double)std[0], (double)std[1], (double)std[2]);
    free(more);
    print_heads(path, config, s);
}

void vit_print_other_attention(const char *path, const Config *config, const Config *origin) {
    char *here = shapeless_settings(config, origin), *there = shapeless_settings(origin, config);
    if (*here) print_line("%s: weights of%s are used with%s, as the settings have it\n", path, there, here);
    free(there);
    free(here);
}

const ConfigGroup vit_settings = {CONFIG_GROUP(VitSettings, entries), .change = CHANGE_NEVER};

VitSettings *vit_add_settings(Config *config) {
    VitSettings *settings = config_add(config, &vit_settings);
    config_add_for(config, &hybrid_stem_settings, "stem", "hybrid");
    attention_add_settings(config, false);
    return settings;
}

void vit_use_settings(Config *config) {
    const VitSettings *s = config_settings(config, &vit_settings);
    if (s->stem == STEM_HYBRID) config_use(config, &hybrid_stem_settings);
    for (int i = 0; i < s->attn.count; i++) attention_use_settings(config, s->attn.at[i]);
}

/* == Parameters =================================================================================================== */

static bool has_class_token(const Vit *vit) { return vit->settings.pool == POOL_CLS; }

/* The class token is in the last stage. */
static bool stage_has_class(const Vit *vit, int i) {
    return has_class_token(vit) && i == stage_count(&vit->settings) - 1;
}

/* Tokens in front of the grid at a stage's first station: 1 for a class token, otherwise 0. */
static int class_in_front(const Vit *vit, int i) {
    return stage_has_class(vit, i) && attention_class_block(vit_attn(&vit->settings, i), vit->stages[i].settings) == 0;
}

static void embedding_prefix(const Vit *vit, int i, char prefix[PARAM_NAME_SIZE]) {
    if (i == 0) snprintf(prefix, PARAM_NAME_SIZE, "patch_embed.");
    else snprintf(prefix, PARAM_NAME_SIZE, "%.30sdownsample.", vit->stages[i].prefix);
}

/* The position embedding at a stage's entry, as in timm or, stage by stage, in PVT; false: there is none. */
static bool position_name(const Vit *vit, int i, char name[PARAM_NAME_SIZE]) {
    PositionEmbedding kind = vit->settings.pos_embed;
    if (kind == POSITIONS_STAGES) snprintf(name, PARAM_NAME_SIZE, "pos_embed%d", i + 1);
    else snprintf(name, PARAM_NAME_SIZE, "pos_embed");
    return kind == POSITIONS_STAGES || (kind == POSITIONS_LEARNED && i == 0);
}

/* The class token and the position embedding are declared before the patch embedding, in timm's order. */
static void entry_declare(Vit *vit, int i) {
    Stage *stage = &vit->stages[i];
    Params *params = &vit->model.params;
    int M = stage->config.dim, prefix = class_in_front(vit, i);
    Resampled rule = vit->settings.pos_embed == POSITIONS_STAGES ? RESAMPLED_BILINEAR : RESAMPLED_ANTIALIASED;
    char name[PARAM_NAME_SIZE];
    if (stage_has_class(vit, i))
        params_declare(params, (Param){.value = &stage->cls, .grad = &stage->dcls, .named = {"cls_token"},
                                       .init = INIT_TRUNC_NORMAL, .shape = {1, 1, M}});
    if (!position_name(vit, i, name)) return;
    params_declare(params, (Param){.value = &stage->pos, .grad = &stage->dpos, .named = {name},
                                   .init = INIT_TRUNC_NORMAL, .shape = {1, prefix + grid_tokens(stage->grid), M},
                                   .grid = {1, 1, prefix, stage->grid}, .resampled = rule,
                                   .time = {TIME_COPIES, 1, stage->grid.frames, prefix, false}});
}

static const char stem_prefix[] = "patch_embed.backbone.";

static bool patches_are_normed(const VitSettings *s) { return s->patch_overlap || s->patch_norm; }

static bool has_stem(const Vit *vit) { return vit->settings.stem == STEM_HYBRID; }

/* The class token and the position embedding are declared before the patch embedding, and this before the projection,
 * in timm's order: so the first embedding's sizes come from here, and the stem's tensors later. */
static void first_embedding_create(Vit *vit, const Config *config) {
    const VitSettings *c = &vit->settings;
    const StemSettings *s = config_settings(config, &hybrid_stem_settings);
    Embedding *e = &vit->embeddings[0];
    int sides[2] = {c->img_size[0], c->img_size[1]};
    for (int i = 0; i < 2 && has_stem(vit); i++) sides[i] = hybrid_stem_side(s, sides[i]);
    embedding_create(e, has_stem(vit) ? hybrid_stem_channels(s) : 3, sides[0], sides[1], !has_stem(vit), c->patch_size,
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

static void stage_create(Vit *vit, const Config *config, int i) {
    const VitSettings *c = &vit->settings;
    Stage *stage = &vit->stages[i], *before = stage - 1;
    Embedding *e = &vit->embeddings[i];
    char prefix[PARAM_NAME_SIZE];
    if (i == 0) first_embedding_create(vit, config);
    else if (c->patch_merging) embedding_create_merging(e, before->config.dim, before->grid);
    else
        embedding_create(e, before->config.dim, before->grid.rows, before->grid.columns, false, 2, c->patch_overlap,
                         patches_are_normed(c));
    embedding_take_frames(e, i == 0 ? c->frames : before->grid.frames, i == 0 ? c->tubelet : 1);
    check_grid(config, e->grid, c->dim.at[i], list_int(&c->depth, i));
    *stage = (Stage){.config = stage_config(c, i),
                     .settings = config,
                     .grid = e->grid,
                     .time_kernel = e->grid.frames > 1 ? c->time_kernel : 1,
                     .conv_time_kernel = e->grid.frames > 1 ? c->conv_time_kernel : 1,
                     .index = i,
                     .stages = stage_count(c),
                     .first = i > 0 ? before->first + before->config.depth : 0,
                     .class_token = stage_has_class(vit, i),
                     .position_conv = c->pos_embed == POSITIONS_CONV,
                     .mlp_conv = c->mlp_conv,
                     .mlp_relu = c->mlp_relu,
                     .drops = c->drop_path > 0,
                     .drops_hidden = true,
                     .recompute = c->recompute,
                     .last = i == stage_count(c) - 1,
                     .bare_end = !c->stage_norm && i < stage_count(c) - 1,
                     .norm_eps = c->norm_eps,
                     .end_eps = c->norm_eps,
                     .residual_gain = c->init_scale == INIT_SCALE_DEPTH ? 1 / sqrtf(2 * (float)vit->depth) : 1,
                     .stream = &vit->stream};
    if (stage_count(c) > 1)
        snprintf(stage->prefix, sizeof stage->prefix, c->patch_merging ? "layers.%d." : "stages.%d.", i);
    if (c->stage_norm) memcpy(stage->norm_prefix, stage->prefix, sizeof stage->prefix);
    stage->norm_unused = stage->last && c->pool == POOL_GAP_RAW;
    if (i == 0) {
        vit->grid = e->grid;
        vit->N = grid_tokens(e->grid) + stage->class_token;
    }
    entry_declare(vit, i);
    if (i == 0 && has_stem(vit))
        hybrid_stem_declare(&vit->stem, config, &vit->model.params, stem_prefix, c->img_size[0], c->img_size[1]);
    embedding_prefix(vit, i, prefix);
    embedding_declare(e, &vit->model.params, prefix, stage->config.dim);
    stage_declare(stage, &vit->model.params);
}

void vit_create(Vit *vit, const Config *config) {
    *vit = (Vit){.settings = *(const VitSettings *)config_settings(config, &vit_settings)};
    const VitSettings *s = &vit->settings;
    vit_check_settings(config);
    vit->depth = depth_of(s);
    for (int i = 0; i < stage_count(s); i++) stage_create(vit, config, i);
    const char *linear = s->patch_merging ? "head.fc" : "head";
    classifier_declare(&vit->head, &vit->model.params, s->head, linear, s->dim.at[stage_count(s) - 1], s->num_classes);
    params_start_scaled(&vit->model.params, s->head == HEAD_LINEAR ? linear : "head.fc2", ".weight",
                        s->head_init_scale);
}

static Stage *last_stage(const Vit *vit) { return (Stage *)&vit->stages[stage_count(&vit->settings) - 1]; }

Block *vit_block(const Vit *vit, int i) {
    const Stage *stage = vit->stages;
    while (i >= stage->first + stage->config.depth) stage++;
    return &stage->blocks[i - stage->first];
}

/* == Activations ================================================================================================== */

/* Scratch has the size of the largest stage. */
static void scratch_plan(Vit *vit, Plan *plan, int B) {
    const VitSettings *c = &vit->settings;
    bool class_later = has_class_token(vit) && !class_in_front(vit, stage_count(c) - 1);
    size_t bytes = 0;
    for (int i = 0; i < stage_count(c); i++) {
        size_t stage = (size_t)B * (size_t)vit->stages[i].N * (size_t)vit->stages[i].config.dim * sizeof(real);
        if (stage > bytes) bytes = stage;
    }
    stream_plan(&vit->stream, plan, bytes, class_later, c->drop_path > 0 || c->dropout > 0);
}

static void activations_plan(Plan *plan, void *owner) {
    Vit *vit = owner;
    const VitSettings *c = &vit->settings;
    int batch = vit->model.batch;
    size_t B = (size_t)batch, M = (size_t)last_stage(vit)->config.dim;
    size_t F = (size_t)c->frames, image = F * 3 * (size_t)c->img_size[0] * (size_t)c->img_size[1];
    size_t C = (size_t)c->num_classes;
    plan_keep(plan, "", "pixels", &vit->pixels, (B + (plan->training ? 2 : 0)) * image);
    plan_keep(plan, "", "images", &vit->images, B * image * sizeof(real));
    plan_keep(plan, "", "keep", &vit->stream.keep, 2 * (size_t)vit->depth * B * sizeof(float));
    plan_keep(plan, "", "targets", &vit->targets, B * C * sizeof(float));
    plan_keep(plan, "", "loss", &vit->loss, B * sizeof(float));
    plan_pair(plan, "", "logits", &vit->logits, &vit->dlogits, B * C * sizeof(real));
    plan_pair(plan, "", "pooled", &vit->pooled, &vit->dpooled, B * M * sizeof(real));
    scratch_plan(vit, plan, batch);
    classifier_plan(&vit->head, plan, B);
    if (plan->training) {
        plan_keep(plan, "", "pairs", &vit->pairs, 2 * B * F * sizeof *vit->pairs);
        plan_keep(plan, "", "boxes", &vit->boxes, 4 * (B + 2) * F * sizeof *vit->boxes);
        plan_keep(plan, "", "draws", &vit->draws, (B + 2) * F * sizeof *vit->draws);
    }
    if (has_stem(vit)) hybrid_stem_plan(&vit->stem, plan, stem_prefix, batch);
    for (int i = 0; i < stage_count(c); i++) {
        char prefix[PARAM_NAME_SIZE];
        embedding_prefix(vit, i, prefix);
        embedding_plan(&vit->embeddings[i], plan, prefix, batch);
        stage_plan(&vit->stages[i], plan, batch);
    }
}

void vit_plan(Vit *vit, int batch, bool training) {
    config_limit(vit->stages[0].settings, "micro_batch", (double)batch * vit->N, "tokens at a time");
    model_plan(&vit->model, batch, training, activations_plan, vit);
}

void vit_allocate(Vit *vit) {
    model_allocate(&vit->model);
    if (has_stem(vit)) hybrid_stem_allocate(&vit->stem);
    vit->keep_host = xcalloc(2 * (size_t)vit->depth * (size_t)vit->model.batch, sizeof(float), "drop path");
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

/* The arguments of images_mix that make every frame of B clips an image. */
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

void vit_draw_drops(Vit *vit, uint64_t seed, uint32_t step, size_t first, int B) {
    int depth = vit->depth;
    vit->stream.dropout = (Dropout){vit->settings.dropout, seed, step, SITE_TOKENS, (uint32_t)first};
    if (vit->settings.drop_path <= 0) return;
    for (int half = 0; half < 2 * depth; half++) {
        float rate = depth > 1 ? vit->settings.drop_path * (float)(half / 2) / (float)(depth - 1) : 0;
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

/* The tokens whose mean is the classifier's input: the class token, or all. */
static int pooled_tokens(const Vit *vit) { return has_class_token(vit) ? 1 : last_stage(vit)->N; }

/* True if a class token or a position embedding is added to a stage's patches. */
static bool is_joined(const Vit *vit, int i) { return vit->stages[i].pos || class_in_front(vit, i); }

/* Dropout of a stage's input or of its gradient: of the first stage, and of each that has a position embedding. */
static void drop_tokens(const Vit *vit, int i, real *x, int B) {
    const Stage *stage = &vit->stages[i];
    Dropout d = vit->stream.dropout;
    if (d.rate <= 0 || (i > 0 && !stage->pos)) return;
    if (i > 0) d.site = (uint32_t)later_tokens_site(vit->depth, i);
    dropout_forward(x, x, &d, B, (size_t)stage->stations[0].N * (size_t)stage->config.dim);
}

/* The input of the first embedding. */
static const real *first_input(const Vit *vit) { return has_stem(vit) ? vit->stem.features : vit->images; }

static void embed(Vit *vit, int i, const real *x, int B) {
    const Stage *stage = &vit->stages[i];
    bool joined = is_joined(vit, i);
    int prefix = class_in_front(vit, i);
    embedding_forward(&vit->embeddings[i], joined ? vit->stream.f : stage_input(stage), x, B);
    if (joined)
        embed_forward(stage_input(stage), vit->stream.f, stage->cls, stage->pos,
                      &(TokenShape){B, prefix + grid_tokens(stage->grid), stage->config.dim}, prefix);
}

static void stem_forward(Vit *vit, int B) {
    if (!vit->model.keeps_weights || vit->stem_turn != vit->model.turn) hybrid_stem_standardize(&vit->stem);
    vit->stem_turn = vit->model.turn;
    hybrid_stem_forward(&vit->stem, vit->images, B);
}

void vit_forward(Vit *vit, int B, bool drop) {
    const Stage *last = last_stage(vit);
    const real *x = first_input(vit);
    if (has_stem(vit)) stem_forward(vit, B);
    for (int i = 0; i < stage_count(&vit->settings); i++) {
        embed(vit, i, x, B);
        if (drop) drop_tokens(vit, i, stage_input(&vit->stages[i]), B);
        stage_forward(&vit->stages[i], B, drop);
        x = stage_output(&vit->stages[i]);
    }
    pool_forward(vit->pooled, x, &(TokenShape){B, last->N, last->config.dim}, 0, pooled_tokens(vit));
    classifier_forward(&vit->head, vit->logits, vit->pooled, (size_t)B);
}

void vit_load_targets(Vit *vit, const float *targets, int B) {
    device_upload(vit->targets, targets, (size_t)B * (size_t)vit->settings.num_classes * sizeof *targets);
}

void vit_loss(Vit *vit, int B, float scale) {
    cross_entropy(vit->loss, vit->dlogits, vit->logits, vit->targets, scale, B, vit->settings.num_classes);
}

void vit_losses(const Vit *vit, float *losses, int B) {
    device_download(losses, vit->loss, (size_t)B * sizeof *losses);
}

/* From dx, the gradient of the stage's input, to the embedding's parameters and to dh, the gradient of the previous
 * stage's output. */
static void embed_gradient(Vit *vit, int i, int B) {
    Stream *s = &vit->stream;
    const Stage *stage = &vit->stages[i];
    int prefix = class_in_front(vit, i);
    if (is_joined(vit, i)) {
        real *joined = s->dx;
        embed_backward(s->dh, prefix ? stage->dcls : NULL, stage->dpos, joined,
                       &(TokenShape){B, prefix + grid_tokens(stage->grid), stage->config.dim}, prefix);
        s->dx = s->dh;
        s->dh = joined;
    }
    if (i > 0) {
        embedding_backward(&vit->embeddings[i], s->dh, s->dx, stage_output(stage - 1), B);
        return;
    }
    embedding_backward(&vit->embeddings[0], has_stem(vit) ? vit->stem.dfeatures : NULL, s->dx, first_input(vit), B);
    if (has_stem(vit)) hybrid_stem_backward(&vit->stem, B);
}

void vit_backward(Vit *vit, int B, bool drop, GradientsListener final) {
    FinalGradients done = model_final_gradients(&vit->model, final);
    const Stage *last = last_stage(vit);
    classifier_backward(&vit->head, vit->dpooled, vit->dlogits, vit->pooled, (size_t)B);
    pool_backward(vit->stream.dh, vit->dpooled, &(TokenShape){B, last->N, last->config.dim}, 0, pooled_tokens(vit));
    for (int i = stage_count(&vit->settings) - 1; i >= 0; i--) {
        stage_backward(&vit->stages[i], B, drop, &done);
        if (drop) drop_tokens(vit, i, vit->stream.dx, B);
        embed_gradient(vit, i, B);
    }
    gradients_final(&done, 0);
}

/* == Description ================================================================================================== */

size_t vit_macs(const Vit *vit) {
    size_t macs = classifier_macs(&vit->head, 1) + (has_stem(vit) ? hybrid_stem_macs(&vit->stem) : 0);
    for (int i = 0; i < stage_count(&vit->settings); i++)
        macs += embedding_macs(&vit->embeddings[i]) + stage_macs(&vit->stages[i]);
    return macs;
}

size_t vit_transform_macs(const Vit *vit) {
    size_t macs = 0;
    for (int i = 0; i < vit->depth; i++) {
        const Attention *a = &vit_block(vit, i)->attention;
        if (a->op->transform_macs) macs += a->op->transform_macs(a);
    }
    return macs;
}

double vit_moved_bytes(const Vit *vit, int B) {
    double bytes = 0;
    for (int i = 0; i < vit->model.training.count; i++) {
        const PlanTensor *t = &vit->model.training.items[i];
        bytes += (double)t->bytes * (t->scratch ? 2 : t->reused ? 5 : 3);
    }
    return bytes * B / vit->model.batch + 10 * sizeof(float) * (double)vit->model.params.total;
}

static void describe_block(const Vit *vit, FILE *out, const Stage *stage, int i) {
    const Block *block = &stage->blocks[i];
    const Attention *a = &block->attention;
    char prefix[PARAM_NAME_SIZE], what[64];
    if (stage->position_conv) {
        snprintf(prefix, sizeof prefix, "%.40spos_embed", block->prefix);
        model_describe_row(&vit->model, out, prefix, "position convolution", station_macs(&stage->stations[2 * i]));
    }
    snprintf(what, sizeof what, a->op->path ? "%s (%s)" : "%s", a->op->name, a->op->path ? a->op->path(a) : "");
    model_describe_row(&vit->model, out, a->prefix, what, attention_macs(a));
    snprintf(prefix, sizeof prefix, "%.40smlp.", block->prefix);
    model_describe_row(&vit->model, out, prefix, block->mlp.convolves ? "convolutional MLP" : "MLP",
                       mlp_macs(&block->mlp, (size_t)a->N));
    snprintf(prefix, sizeof prefix, "%.40snorm", block->prefix);
    model_describe_row(&vit->model, out, prefix, "residual stream, two norms", 0);
}

const char *vit_grid_text(char text[VIT_GRID_SIZE], Grid grid, const char *by) {
    int used = grid.frames > 1 ? snprintf(text, VIT_GRID_SIZE, "%d%s", grid.frames, by) : 0;
    snprintf(text + used, VIT_GRID_SIZE - (size_t)used, "%d%s%d", grid.rows, by, grid.columns);
    return text;
}

static void describe_stage(const Vit *vit, FILE *out, int i) {
    const Stage *stage = &vit->stages[i];
    char prefix[PARAM_NAME_SIZE], grid[VIT_GRID_SIZE];
    if (stage_count(&vit->settings) > 1)
        fprintf(out, "  stage %d: %s grid, %d tokens of %d\n", i, vit_grid_text(grid, stage->grid, " x "), stage->N,
                stage->config.dim);
    embedding_prefix(vit, i, prefix);
    if (i == 0 && has_stem(vit)) {
        model_describe_row(&vit->model, out, stem_prefix, "hybrid stem", hybrid_stem_macs(&vit->stem));
        snprintf(prefix, sizeof prefix, "patch_embed.proj.");
    }
    const Embedding *embedding = &vit->embeddings[i];
    model_describe_row(&vit->model, out, prefix, embedding_kind(embedding), embedding_macs(embedding));
    if (stage_has_class(vit, i)) model_describe_row(&vit->model, out, "cls_token", "class token", 0);
    if (position_name(vit, i, prefix)) model_describe_row(&vit->model, out, prefix, "position embedding", 0);
    for (int j = 0; j < stage->config.depth; j++) describe_block(vit, out, stage, j);
    if (stage->bare_end) {
        snprintf(prefix, sizeof prefix, "%send.", stage->prefix);
        model_describe_row(&vit->model, out, prefix, "residual stream", 0);
        return;
    }
    snprintf(prefix, sizeof prefix, "%snorm.", stage->norm_prefix);
    bool last = i + 1 == stage_count(&vit->settings);
    const char *what = !last ? "norm" : stage->norm_unused ? "final norm, unused" : "final norm";
    model_describe_row(&vit->model, out, prefix, what, 0);
}

void vit_describe(const Vit *vit, FILE *out) {
    const VitSettings *c = &vit->settings;
    char grid[VIT_GRID_SIZE];
    if (c->frames > 1)
        fprintf(out, "clip of %d frames of %d x %d, tubelets of %d x %d: ", c->frames, c->img_size[0], c->img_size[1],
                c->tubelet, c->patch_size);
    else
        fprintf(out, "%d x %d image, %spatches of %d: ", c->img_size[0], c->img_size[1],
                has_stem(vit) ? "a stem's features, " : "", c->patch_size);
    fprintf(out, "%s grid, %d tokens of %d\n", vit_grid_text(grid, vit->grid, " x "), vit->N, c->dim.at[0]);
    model_describe_head(out, "image");
    for (int i = 0; i < stage_count(c); i++) describe_stage(vit, out, i);
    model_describe_row(&vit->model, out, "head.", "classifier", classifier_macs(&vit->head, 1));
    model_describe_memory(&vit->model, out, "image", c->recompute);
    fprintf(out, "params: %zu\nmacs: %zu\nactivation_bytes: %zu\n", vit->model.params.parameters, vit_macs(vit),
            model_activation_bytes(&vit->model));
    if (vit_transform_macs(vit))
        fprintf(out, "macs_without_transforms: %zu\n", vit_macs(vit) - vit_transform_macs(vit));
}

void vit_destroy(Vit *vit) {
    for (int i = 0; i < stage_count(&vit->settings); i++) stage_destroy(&vit->stages[i]);
    hybrid_stem_destroy(&vit->stem);
    model_destroy(&vit->model);
    free(vit->keep_host);
    free(vit->frame_rows);
    memset(vit, 0, sizeof *vit);
}
