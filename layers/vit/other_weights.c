#include "layers/vit/other_weights.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "training/checkpoint.h"
#include "core/die.h"
#include "core/distributed.h"
#include "training/params.h"
#include "core/text.h"

static bool is_square(size_t n) {
    size_t side = (size_t)lround(sqrt((double)n));
    return side * side == n;
}

/* Refuses a hybrid's weights in a model without its stem, and the reverse. */
static void refuse_other_stem(const Model *model, const SafeTensors *st, const char *path) {
    const char *alone = "patch_embed.backbone.conv.weight", *with_stages = "patch_embed.backbone.stem.conv.weight";
    bool has_alone = safetensors_find(st, alone), has_stages = safetensors_find(st, with_stages);
    bool wants_alone = params_find(&model->params, alone), wants_stages = params_find(&model->params, with_stages);
    if ((has_alone || has_stages) && !wants_alone && !wants_stages)
        die("%s: a hybrid, with a ResNet stem in front of the patches (patch_embed.backbone): stem hybrid is "
            "needed", path);
    if ((wants_alone || wants_stages) && !has_alone && !has_stages)
        die("%s: no stem in it (patch_embed.backbone), but this model has one: stem none is needed", path);
    if (has_alone && wants_stages)
        die("%s: its stem has no stages (patch_embed.backbone.conv): stem_blocks 0 is needed", path);
    if (has_stages && wants_alone)
        die("%s: its stem has stages (patch_embed.backbone.stem), this model's has none: stem_blocks is needed", path);
}

/* Refuses a tokenizer's weights in a model with patches, and the reverse. */
static void refuse_other_tokenizer(const Model *model, const SafeTensors *st, const char *path) {
    const char *tokenizer = "tokenizer.conv_layers.0.0.weight", *patches = "patch_embed.proj.weight";
    if (safetensors_find(st, tokenizer) && !params_find(&model->params, tokenizer))
        die("%s: its tokens come from convolutions (tokenizer.conv_layers): stem conv is needed", path);
    if (safetensors_find(st, patches) && params_find(&model->params, tokenizer))
        die("%s: its tokens are patches (patch_embed.proj), but stem conv makes them by convolutions: stem none is "
            "needed", path);
}

/* One more than the index of the tensor's block, or 0.  stage: "stages.2.", or "" where there is one. */
static int block_of(const char *name, const char *stage) {
    size_t length = strlen(stage);
    int block = -1;
    if (strncmp(name, stage, length) || sscanf(name + length, "blocks.%6d.", &block) != 1) return 0;
    return block + 1;
}

static int depth_in_model(const Model *model, const char *stage) {
    int depth = 0;
    for (int i = 0; i < params_count(&model->params); i++) {
        int block = block_of(params_at(&model->params, i)->name, stage);
        if (block > depth) depth = block;
    }
    return depth;
}

static int depth_in_file(const SafeTensors *st, const char *stage) {
    int depth = 0;
    for (int i = 0; i < st->count; i++) {
        int block = block_of(st->tensors[i].name, stage);
        if (block > depth) depth = block;
    }
    return depth;
}

/* A tensor of another shape, which that setting determines.  ratio: the ratio of its rows to its columns, not its
 * length. */
static void refuse_other_shape(const Model *model, const SafeTensors *st, int stage, const char *prefix,
                               const char *name, const char *setting, bool ratio) {
    char whole[PARAM_NAME_SIZE];
    snprintf(whole, sizeof whole, "%.20sblocks.0.%s", prefix, name);
    const Param *found = params_find(&model->params, whole);
    const SafeTensor *tensor = safetensors_find(st, whole);
    if (!found || !tensor) return;
    Param p = *found;
    p.from = (ParamSetting){setting, ratio ? (double)p.shape[0] / p.shape[1] : p.shape[0], stage};
    checkpoint_shape_fits(&p, tensor, &error_fatal);
}

/* Refuses the same architecture with other sizes: names the setting for them, at the first stage that differs. */
static void refuse_other_sizes(const Model *model, const SafeTensors *st, const char *path) {
    static const char *const names[] = {"stages", "layers"};
    const char *name = NULL;
    char prefix[24] = "";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(prefix, sizeof prefix, "%s.0.", names[i]);
        if (depth_in_model(model, prefix)) name = names[i];
    }
    for (int i = 0; i == 0 || name; i++) {
        char place[24] = "";
        prefix[0] = 0;
        if (name) snprintf(prefix, sizeof prefix, "%s.%d.", name, i);
        if (name) snprintf(place, sizeof place, " in stage %d", i);
        int here = depth_in_model(model, prefix), there = depth_in_file(st, prefix);
        if (i == 0 && !there) return; /* another architecture */
        if (!here && !there) return;
        if (!here || !there)
            die("%s: %s blocks in stage %d, but this model has %s: dim with values for another number of stages?", path,
                there ? "there are" : "no", i, here ? "some" : "none");
        refuse_other_shape(model, st, name ? i : -1, prefix, "norm1.weight", "dim", false);
        refuse_other_shape(model, st, name ? i : -1, prefix, "mlp.fc1.weight", "mlp_ratio", true);
        if (here != there)
            die("%s: %d blocks%s, but this model has %d: another depth (here %d%s)?", path, there, place, here, here,
                place);
    }
}

/* Hosts with the names of their authors' programs. */
static void refuse_other_names(const SafeTensors *st, const char *path) {
    static const struct {
        const char *program, *tensor;
    } others[] = {{"PVT", "patch_embed1.proj.weight"},
                  {"CSwin", "stage1_conv_embed.0.weight"},
                  {"Compact Transformers", "classifier.blocks.0.pre_norm.weight"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (safetensors_find(st, others[i].tensor))
            die("%s: the tensors have the names of %s's own program (%.*s): scripts/convert_weights.py converts "
                "them", path,
                others[i].program, (int)strcspn(others[i].tensor, "."), others[i].tensor);
}

/* Families of timm that no setting makes. */
static void refuse_other_families(const SafeTensors *st, const char *path) {
    static const struct {
        const char *family, *tensor;
    } others[] = {{"a Swin V2", "layers.0.blocks.0.attn.logit_scale"},
                  {"a ConvNeXt", "stages.0.blocks.0.conv_dw.weight"},
                  {"an MLP-Mixer", "blocks.0.mlp_tokens.fc1.weight"},
                  {"an XCiT", "blocks.0.local_mp.conv1.weight"},
                  {"a CaiT", "blocks_token_only.0.attn.q.weight"},
                  {"a BEiT", "blocks.0.attn.q_bias"},
                  {"a ResNet", "layer1.0.conv1.weight"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (safetensors_find(st, others[i].tensor))
            die("%s: %s (%s), which this program does not support", path, others[i].family, others[i].tensor);
}

static size_t rows_of(const SafeTensors *st, const char *name) {
    const SafeTensor *tensor = safetensors_find(st, name);
    return tensor && tensor->ndim ? tensor->shape[0] : 0;
}

static bool has_names(const SafeTensors *st, const char *beginning) {
    for (int i = 0; i < st->count; i++)
        if (!strncmp(st->tensors[i].name, beginning, strlen(beginning))) return true;
    return false;
}

/* The dim and depth of a hierarchy, a number for each stage, if this model has no such stages. */
static void refuse_stages(const Model *model, const SafeTensors *st, const char *path) {
    static const struct {
        const char *stages, *like, *configs;
    } hosts[] = {{"stages", "PVTv2", "pvt-v2"}, {"layers", "Swin", "swin"}};
    for (size_t h = 0; h < sizeof hosts / sizeof *hosts; h++) {
        char dims[96] = "", depths[96] = "", prefix[32], norm[64];
        snprintf(prefix, sizeof prefix, "%s.0.", hosts[h].stages);
        if (!depth_in_file(st, prefix) || depth_in_model(model, prefix)) continue;
        for (int i = 0, depth = 1; i < 8; i++) {
            snprintf(prefix, sizeof prefix, "%s.%d.", hosts[h].stages, i);
            snprintf(norm, sizeof norm, "%sblocks.0.norm1.weight", prefix);
            if (!(depth = depth_in_file(st, prefix))) break;
            size_t at = strlen(dims), end = strlen(depths);
            snprintf(dims + at, sizeof dims - at, "%s%zu", i ? "," : "", rows_of(st, norm));
            snprintf(depths + end, sizeof depths - end, "%s%d", i ? "," : "", depth);
        }
        snprintf(prefix, sizeof prefix, "%s.0.blocks.0.attn.", hosts[h].stages);
        snprintf(norm, sizeof norm, "%s.0.blocks.0.norm1.weight", hosts[h].stages);
        if (!has_names(st, prefix) || !rows_of(st, norm))
            die("%s: a hierarchy of depth %s (%s.0.blocks), but this model has no such stages, and the file's are not %s's",
                path, depths, hosts[h].stages, hosts[h].like);
        die("%s: a hierarchy of dim %s and depth %s (%s.0.blocks), but this model has no such stages: %s's configs, "
            "configs/imagenet/%s-*.ini, make them", path, dims, depths, hosts[h].stages, hosts[h].like, hosts[h].configs);
    }
}

/* Prints on stdout the settings that follow from the shapes of another program's vision transformer, if this model has
 * others. */
static void print_settings_of(const Model *model, const SafeTensors *st, const char *path) {
    const SafeTensor *patches = safetensors_find(st, "patch_embed.proj.weight");
    const SafeTensor *positions = safetensors_find(st, "pos_embed");
    const Param *own_patches = params_find(&model->params, "patch_embed.proj.weight");
    const Param *own_norm = params_find(&model->params, "blocks.0.norm1.weight");
    const Param *own_fc1 = params_find(&model->params, "blocks.0.mlp.fc1.weight");
    size_t dim = rows_of(st, "blocks.0.norm1.weight"), hidden = rows_of(st, "blocks.0.mlp.fc1.weight");
    size_t classes = rows_of(st, "head.weight");
    int depth = depth_in_file(st, "");
    bool token = safetensors_find(st, "cls_token") != NULL, own_token = params_find(&model->params, "cls_token") != NULL;
    if (!dim || !hidden || !safetensors_find(st, "blocks.0.attn.qkv.weight") || !own_patches || !own_norm || !own_fc1)
        return;
    if (!patches || patches->ndim != 4 || patches->shape[2] != patches->shape[3]) return;
    size_t side = patches->shape[2];
    if (own_patches->ndim == 4 && (size_t)own_patches->shape[2] == side && (size_t)own_norm->shape[0] == dim &&
        (size_t)own_fc1->shape[0] == hidden && depth_in_model(model, "") == depth && token == own_token)
        return;
    if (distributed_rank() > 0 || safetensors_metadata(st, "vit.c.config")) return; /* the file has its settings */
    char image[48] = "", head[48] = "", heads[80] = "";
    if (positions && positions->ndim == 3) {
        size_t n = positions->shape[1] - (token && !is_square(positions->shape[1]));
        if (is_square(n)) snprintf(image, sizeof image, " --img-size %zu", (size_t)lround(sqrt((double)n)) * side);
    }
    if (classes) snprintf(head, sizeof head, " --num-classes %zu", classes);
    if (dim % 64 == 0) snprintf(heads, sizeof heads, ": with 64 channels per head, as in most models, --heads "
                                                     "%zu", dim / 64);
    print_line("%s: its tensors are those of --dim %zu --depth %d --patch-size %zu --mlp-ratio %g --pool %s%s%s; the "
               "shapes do not show the number of heads%s\n",
               path, dim, depth, side, (double)hidden / (double)dim, token ? "cls" : "gap", image, head, heads);
}

void other_weights_refuse(const Model *model, const char *path) {
    SafeTensors st;
    safetensors_open(&st, path, &error_fatal);
    const SafeTensor *positions = safetensors_find(&st, "pos_embed");
    bool token = safetensors_find(&st, "cls_token") != NULL, wanted = params_find(&model->params, "cls_token") != NULL;
    bool distilled = safetensors_find(&st, "dist_token") != NULL, own = params_find(&model->params, "dist_token") != NULL;
    if (distilled && !own)
        die("%s: a distilled DeiT: its second token (dist_token, head_dist) has no place in this model: distilled true "
            "is needed, and pool cls", path);
    if (own && token && !distilled)
        die("%s: no distillation token (dist_token) in it, but this model has one: distilled false is needed", path);
    for (int i = 0; i < st.count; i++)
        if (text_ends_with(st.tensors[i].name, ".gamma_1") || text_ends_with(st.tensors[i].name, ".ls1.gamma"))
            die("%s: %s: LayerScale, which DeiT-III and later models have, has no place in this model, and no setting "
                "makes one", path, st.tensors[i].name);
    refuse_other_families(&st, path);
    refuse_other_stem(model, &st, path);
    refuse_other_tokenizer(model, &st, path);
    refuse_other_names(&st, path);
    refuse_stages(model, &st, path);
    print_settings_of(model, &st, path);
    if (token && !wanted && (params_find(&model->params, "pos_embed") || params_find(&model->params, "pos_embed1")))
        die("%s: its classifier sees a class token (cls_token), this model's the average of all tokens: pool cls is "
            "needed", path);
    if (!token && wanted && (positions || safetensors_find(&st, "pos_embed1")))
        die("%s: no class token (cls_token) in it, but this model's classifier sees one: pool gap is needed", path);
    const Param *own_positions = params_find(&model->params, "pos_embed");
    const char *settings = safetensors_metadata(&st, "vit.c.config"); /* whose grid may have any shape */
    bool of_tokens = positions && positions->ndim == 3 && is_square(positions->shape[1]) &&
                     !(settings && strstr(settings, "\npool = cls\n"));
    if (token && own_positions && own_positions->grid.prefix && of_tokens)
        die("%s: pos_embed has %zu positions and none for the class token, as in DeiT-III: this model has one for it, "
            "and no setting removes it", path, positions->shape[1]);
    refuse_other_sizes(model, &st, path);
    safetensors_close(&st);
}
