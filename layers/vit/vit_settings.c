#include "layers/vit/vit_settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "core/text_stream.h"

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
    {F(CHOICE, stem), "none", CONFIG_CHOICES("none", "hybrid", "conv"),
     .help = "Layers in front of the patches: none, patches are cut from the image; hybrid, a ResNet, whose features "
             "have a quarter of the image's side or less (timm's vit_*_r*); conv, convolutions and max pools, whose "
             "features are the tokens (Compact Transformers; patch_size 1)"},
    {F(INT, tubelet), "1", .min = 1, .max = 15,
     .help = "Length in frames, odd, of the tubelets that the first patch embedding of a clip makes tokens of; their "
             "middles are every second frame (1: every frame has its own tokens)"},
    {F(INT, time_kernel), "3", .min = 1, .max = 15,
     .help = "Length in frames, odd, of the depthwise convolutions over the tokens of clips, and of lisa's windows"},
    {F(INT, conv_time_kernel), "5", .min = 1, .max = 15, .help = "Length in frames, odd, of the convolutions of "
                                                                 "attn conv and sepconv and of conv_stages in clips"},
    {F(CHOICE, inflate), "none", CONFIG_CHOICES(INFLATE_KINDS),
     .help = "How a model of clips starts from the weights of an image model that --init gives: none (the weights are "
             "of a model of clips), mean (all frames have the same weight) or centre (each frame sees only itself)"},
    {F(INT, num_classes), "0", .min = 0, .max = 1e6, .change = CHANGE_TO_DEFAULT,
     .help = "Number of classes (0: that of the data set)"},
    {F(BOOL, patch_overlap), "false",
     .help = "Overlapping patches, 2 patch_size - 1 pixels wide and followed by a layer norm, as in PVTv2"},
    {F(INT, patch_pad), "0", .min = 0, .max = 511,
     .help = "Width in pixels of the zero padding around the image for the first overlapping patches; 0: half their "
             "width, as in PVTv2 (CSwin: 2)"},
    {F(BOOL, patch_norm), "false",
     .help = "Layer norm after patches that do not overlap, as in Swin and PVT (overlapping patches have one)"},
    {F(BOOL, patch_merging), "false",
     .help = "Later stages begin with Swin's patch merging: the tokens of a 2x2 cell side by side, a layer norm and a "
             "linear layer without bias"},
    {F(BOOL, stage_norm), "true",
     .help = "Layer norm at the end of every stage, as in PVTv2; false: of the last one only, as in Swin and PVT"},
    {F(FLOAT, norm_eps), "1e-6", .min = 1e-12, .max = 1,
     .help = "Epsilon of the layer norms in the blocks and at the end of stages, which is added to the variance (Swin: "
             "1e-5)"},
    {F(INTS, dim), "192", .min = 1, .max = 16384,
     .help = "Width of the tokens; a list, such as 64,128, makes a hierarchy of stages, each with half the rows and "
             "columns of tokens of the previous stage"},
    {F(INTS, depth), "12", .min = 1, .max = 256, .help = "Number of blocks; with several stages a list"},
    {F(INTS, heads), "6", .min = 1, .max = 1024,
     .help = "Number of attention heads, a divisor of dim; with several stages one number or a list"},
    {F(FLOATS, mlp_ratio), "4", .min = 0.01, .max = 64,
     .help = "Hidden width of the MLP as a multiple of dim; with several stages one number or a list"},
    {F(BOOL, qkv_bias), "true", .help = "Biases of the queries, keys and values"},
    {F(CHOICE, mlp_stream), "residual", CONFIG_CHOICES("residual", "normed"),
     .help = "Stream to which the output of an MLP is added: residual, the residual stream before the norm; normed, "
             "its own input, so that the norm replaces the stream (Compact Transformers)"},
    {F(BOOL, mlp_conv), "false",
     .help = "Depthwise 3x3 convolution over the token grid between the two layers of the MLP, as in PVTv2"},
    {F(BOOL, mlp_relu), "false", .help = "ReLU before the convolution of mlp_conv, as in the linear form of PVTv2"},
    {F(INT, conv_stages), "0", .min = 0, .max = VIT_MAX_STAGES,
     .help = "Number of stages, from the first, that have convolution blocks in place of attn"},
    {F(ITEM, conv_block), "conv", .table = (const void *const *)conv_blocks, .noun = "convolution block",
     .help = "Block of conv_stages: conv (UniFormer's, 5x5) or sepconv (MetaFormer's, 7x7, twice as wide)"},
    {F(CHOICE, pool), "gap", CONFIG_CHOICES("cls", "gap", "gap-raw", "seq"),
     .help = "Input of the classifier: cls, the class token, which with several stages is added in the last one; gap, "
             "the mean of all tokens (global average pooling) after the last norm; gap-raw, their mean before that "
             "norm, which then exists but is unused, as in FLatten's PVT; seq, their mean weighted by a softmax of "
             "learned scores (sequence pooling, Compact Transformers)"},
    {F(BOOL, distilled), "false",
     .help = "A distillation token in addition to the class token, with a classifier of its own that learns from --teacher; "
             "predictions take the mean of both classifiers' logits (timm's deit_*_distilled)"},
    {F(CHOICE, head), "linear", CONFIG_CHOICES(HEAD_KINDS),
     .help = "Classifier: one linear layer; mlp, a hidden layer of 4 dim with GELU and a norm, as in MetaFormer; tanh, "
             "a hidden layer of dim with tanh, as in ViT's pre-training"},
    {F(CHOICE, pos_embed), "learned", CONFIG_CHOICES("learned", "none", "conv", "stages", "sine"),
     .help = "Position embedding: learned; none; conv, a depthwise 3x3 convolution at the start of every block; "
             "stages, a learned one at the start of every stage, as in PVT; sine, sines and cosines that are not "
             "trained"},
    {F(FLOAT, pos_init_std), "0.02", .min = 1e-6, .max = 10,
     .help = "Standard deviation of the initial values of learned position embeddings (Compact Transformers: 0.2)"},
    {F(FLOAT, drop_path), "0", .min = 0, .max = 0.99, .change = CHANGE_FREELY,
     .help = "Rate of stochastic depth (drop path) in the last block; it grows linearly from 0 in the first block"},
    {F(FLOAT, dropout), "0", .min = 0, .max = 0.9, .change = CHANGE_FREELY,
     .help = "Rate of dropout after position embeddings, after attention's projection and after both layers of the "
             "MLP, as in ViT and PVT"},
    {F(FLOAT, attn_dropout), "0", .min = 0, .max = 0.9, .change = CHANGE_FREELY,
     .help = "Rate of dropout of the attention weights after the softmax, for operators that have such weights"},
    {F(BOOL, recompute), "false", .change = CHANGE_FREELY,
     .help = "Activation checkpointing: store only the input of each block and compute the block again in the backward "
             "pass, which saves memory, takes more time and gives the same results"},
    {F(CHOICE, init_scale), "none", CONFIG_CHOICES("none", "depth"),
     .help = "Scale of the initial weights in attention's proj and in the MLP's second layer: none (1), or depth, "
             "1/sqrt(2 blocks), as in Sparse Transformers"},
    {F(FLOAT, head_init_scale), "1", .min = 0, .max = 1000,
     .help = "Factor of the initial weights of the classifier's last layer, also of a new classifier after --init "
             "(ConvNeXt's fine-tuning: 0.001)"},
    {F(CHOICE, conv_init), "uniform", CONFIG_CHOICES("uniform", "fan-out"),
     .help = "Initial values of convolutions of patches, keys and values, and of depthwise ones: uniform within "
             "1/sqrt(fan in), as PyTorch's; or fan-out, normal with variance 2/fan out and zero biases, as PVTv2's"},
};
#undef F

const AttentionOp *vit_attn(const VitSettings *s, int stage) { return s->attn.at[s->attn.count > 1 ? stage : 0]; }

const char *vit_attn_names(const VitSettings *s, char text[VIT_ATTN_SIZE]) {
    int used = 0;
    for (int i = 0; i < s->attn.count && used < VIT_ATTN_SIZE; i++)
        used += snprintf(text + used, VIT_ATTN_SIZE - (size_t)used, i ? ",%s" : "%s", vit_attn(s, i)->name);
    return text;
}

StageConfig vit_stage_config(const VitSettings *s, int i) {
    return (StageConfig){.dim = s->dim.at[i],
                         .depth = vit_stage_int(&s->depth, i),
                         .heads = vit_stage_int(&s->heads, i),
                         .mlp_ratio = s->mlp_ratio.at[s->mlp_ratio.count > 1 ? i : 0],
                         .attn = i < s->conv_stages ? s->conv_block : vit_attn(s, i)};
}

int vit_depth(const VitSettings *s) {
    int depth = 0;
    for (int i = 0; i < vit_stages(s); i++) depth += vit_stage_int(&s->depth, i);
    return depth;
}

/* == Checks ======================================================================================================= */

static void check_stage(const Config *config, const VitSettings *s, int i) {
    StageConfig c = vit_stage_config(s, i);
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
    int stages = vit_stages(s);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (lists[i].count != 1 && lists[i].count != stages)
            config_reject(config, lists[i].name,
                          "{%s} has %d values, but {dim} has %d: give one for each stage, or one for all", lists[i].name,
                          lists[i].count, stages);
    if (s->conv_stages > stages)
        config_reject(config, "conv_stages", "{conv_stages} is more than the %d stage%s of {dim}", stages,
                      stages > 1 ? "s" : "");
}

/* Checks the padding of patches on an input with these sides. */
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

/* Checks that patches divide the input of the first embedding, pixels or a stem's features, and then each stage's
 * tokens. */
static void check_patches(const Config *config, const VitSettings *s) {
    int stages = vit_stages(s), side = s->patch_size << (stages - 1), sides[2] = {s->img_size[0], s->img_size[1]};
    const char *is_not = s->stem != STEM_NONE ? "are not multiples" : "is not a multiple";
    char of[96] = "";
    if (s->stem == STEM_HYBRID) {
        const StemSettings *stem = config_settings(config, &hybrid_stem_settings);
        hybrid_stem_check(config);
        for (int i = 0; i < 2; i++) sides[i] = hybrid_stem_side(stem, sides[i]);
    }
    if (s->stem == STEM_CONV) {
        const TokenizerSettings *tokenizer = config_settings(config, &tokenizer_settings);
        tokenizer_check(config);
        for (int i = 0; i < 2; i++) sides[i] = tokenizer_side(tokenizer, sides[i]);
        if (s->patch_size != 1)
            config_reject(config, "patch_size", "{stem} makes the tokens by itself, without patches of {patch_size}: use "
                                                "patch_size 1");
    }
    if (s->stem != STEM_NONE) {
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

static void check_qkv(const Config *config, const VitSettings *s) {
    for (int i = s->conv_stages; i < vit_stages(s) && !s->qkv_bias; i++)
        if (!vit_attn(s, i)->mix_forward)
            config_reject(config, "qkv_bias", "{attn=%s} has no projections of queries, keys and values that {qkv_bias} could "
                          "take the biases from", vit_attn(s, i)->name);
}

static void check_attn_dropout(const Config *config, const VitSettings *s) {
    int stages = vit_stages(s), depth = vit_depth(s);
    for (int i = s->conv_stages; i < stages && s->attn_dropout > 0; i++)
        if (!vit_attn(s, i)->drops_weights)
            config_reject(config, "attn_dropout", "{attn=%s} has no weights that {attn_dropout} could drop: use attn_dropout 0, "
                          "or softmax or reduced", vit_attn(s, i)->name);
    if (s->attn_dropout > 0 && weights_site(depth, stages, depth - 1) >= DROPOUT_SITES)
        config_reject(config, "attn_dropout", "{attn_dropout} applies at more places in the %d blocks of {depth} than "
                                              "the %d with random numbers of their own", depth, DROPOUT_SITES);
}

static void check_mlp(const Config *config, const VitSettings *s) {
    if (s->mlp_relu && !s->mlp_conv)
        config_reject(config, "mlp_relu", "{mlp_relu} puts a ReLU before the MLP's convolution, but {mlp_conv} has none: use "
                                          "mlp_conv true too");
}

/* The setting that requires every token of the last stage to be on the grid, or NULL. */
static const char *grid_setting(const VitSettings *s) {
    if (s->mlp_conv) return "mlp_conv";
    if (s->pos_embed == POSITIONS_CONV) return "pos_embed";
    return s->conv_stages > 0 && s->conv_stages == vit_stages(s) ? "conv_stages" : NULL;
}

static void check_class_token(const Config *config, const VitSettings *s) {
    const char *grid = grid_setting(s);
    const AttentionOp *attn = vit_attn(s, vit_stages(s) - 1);
    int joins = attention_class_block(attn, config), depth = vit_depth(s);
    if (s->distilled && s->pool != POOL_CLS)
        config_reject(config, "distilled", "{distilled} adds a token to the class token, which {pool} does not have: "
                                           "use pool cls");
    if (s->distilled && s->head != HEAD_LINEAR)
        config_reject(config, "distilled", "{distilled} has two linear classifiers, but {head} is another: use head "
                                           "linear");
    if (s->pool != POOL_CLS) return;
    if (s->distilled && joins > 0)
        config_reject(config, "distilled", "{attn=%s} adds the class token of {pool} before block %d, where the second "
                      "token of {distilled} has no place: use another attn, or distilled false", attn->name, joins);
    if (grid)
        config_reject(config, "pool", "{%s} has no place for the class token of {pool}: use pool gap", grid);
    if (!attn->off_grid && !attn->class_block)
        config_reject(config, "pool", "{attn=%s} has no place for the class token of {pool}: use pool gap", attn->name);
    if (vit_stages(s) > 1 && joins > 0)
        config_reject(config, "pool", "{attn=%s} adds the class token of {pool} before block %d, which only a single stage "
                      "can do, but {dim} makes more: use pool gap", attn->name, joins);
    if (joins >= depth)
        config_reject(config, "pool",
                      "{attn=%s} adds the class token of {pool} before block %d, but with {depth=%d} block %d is the "
                      "last: use pool gap", attn->name, joins, depth, depth - 1);
}

void vit_check_settings(const Config *config, const VitSettings *s) {
    check_lists(config, s);
    for (int i = 0; i < vit_stages(s); i++) check_stage(config, s, i);
    check_patches(config, s);
    check_frames(config, s);
    check_mlp(config, s);
    check_qkv(config, s);
    check_attn_dropout(config, s);
    check_class_token(config, s);
    if (s->dropout > 0 && later_tokens_site(vit_depth(s), vit_stages(s) - 1) >= DROPOUT_SITES)
        config_reject(config, "dropout", "{dropout} applies at more places in the %d blocks of {depth} than the %d "
                                         "with random numbers of their own", vit_depth(s), DROPOUT_SITES);
}

/* == Weights trained with other settings ========================================================================== */

void vit_check_heads(const char *path, const Config *config, const VitSettings *s, const VitSettings *origin) {
    for (int i = 0; i < vit_stages(s) && i < vit_stages(origin); i++) {
        int here = vit_stage_int(&s->heads, i), there = vit_stage_int(&origin->heads, i);
        if (here != there) config_reject(config, "heads", "{heads=%d}, but %s was trained with %d", here, path, there);
    }
}

/* The settings in use that no tensor's shape shows: " stripe 1,2,7,7, shift none".  Unless `other` is NULL, only those
 * that have another value there. */
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

/* Weights load with any number of heads.  In published models with one width, heads have 64 channels. */
static void print_heads(const char *path, const Config *config, const VitSettings *s) {
    int dim = s->dim.at[0], published = dim / 64, used = 0;
    char heads[64] = "", usual[96] = "";
    const char *origin = config_origin(config, "heads");
    for (int i = 0; i < s->heads.count && used < 48; i++)
        used += snprintf(heads + used, sizeof heads - (size_t)used, i ? ",%d" : "%d", s->heads.at[i]);
    if (s->dim.count == 1 && dim % 64 == 0 && s->heads.at[0] != published)
        snprintf(usual, sizeof usual, "; timm's models of dim %d have %d (--heads %d)", dim, published, published);
    print_line("%s: WARNING: the file does not contain the number of heads, and its weights fit any number: heads %s "
               "(%s) is assumed, and a wrong number gives wrong results without an error%s\n",
               path, heads, origin ? origin : "the default", usual);
}

void vit_print_assumptions(const char *path, const Config *config, const float *mean, const float *std) {
    const VitSettings *s = config_settings(config, &vit_settings);
    char attn[VIT_ATTN_SIZE], *more = shapeless_settings(config, NULL);
    print_line("%s: it has no settings of train_vit; assumed: attn %s,%s%s heads %d, pool %s, img_size %dx%d, mean "
               "%.4g,%.4g,%.4g, std %.4g,%.4g,%.4g\n",
               path, vit_attn_names(s, attn), more, *more ? "," : "", s->heads.at[0],
               config_word(config, "pool", s->pool), s->img_size[0], s->img_size[1], (double)mean[0], (double)mean[1],
               (double)mean[2], (double)std[0], (double)std[1], (double)std[2]);
    free(more);
    print_heads(path, config, s);
}

void vit_print_other_attention(const char *path, const Config *config, const Config *origin) {
    char *here = shapeless_settings(config, origin), *there = shapeless_settings(origin, config);
    if (*here) print_line("%s: weights trained with%s are used with%s, as the settings say\n", path, there, here);
    free(there);
    free(here);
}

const ConfigGroup vit_settings = {CONFIG_GROUP(VitSettings, entries), .change = CHANGE_NEVER};

VitSettings *vit_add_settings(Config *config) {
    VitSettings *settings = config_add(config, &vit_settings);
    config_add_for(config, &hybrid_stem_settings, "stem", "hybrid");
    config_add_for(config, &tokenizer_settings, "stem", "conv");
    attention_add_settings(config, ATTENTION_ONE_GRID);
    return settings;
}

void vit_use_settings(Config *config) {
    const VitSettings *s = config_settings(config, &vit_settings);
    if (s->stem == STEM_HYBRID) config_use(config, &hybrid_stem_settings);
    if (s->stem == STEM_CONV) config_use(config, &tokenizer_settings);
    for (int i = 0; i < s->attn.count; i++) attention_use_settings(config, s->attn.at[i]);
}
