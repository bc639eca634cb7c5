#include "layers/fit_weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/checkpoint.h"
#include "core/die.h"
#include "core/text.h"
#include "layers/resample_grid.h"

typedef struct {
    const Model *model, *origin;
    const char *head;
    uint64_t seed;
    Inflate inflate;
    FittedWeights *done;
} Fit;

/* Is this a table of windows on the same tokens, which another resolution has not changed? */
static bool keeps_tokens(const Param *p, const Param *origin) {
    return p->tokens.rows > 0 && origin && origin->tokens.rows == p->tokens.rows &&
           origin->tokens.columns == p->tokens.columns;
}

static bool fit_grid(const Fit *fit, float *to, const Param *p, const SafeTensor *tensor) {
    const Param *origin = fit->origin ? params_find(&fit->origin->params, p->name) : NULL;
    ParamGrid grid;
    Error error;
    if (keeps_tokens(p, origin)) return false;
    if (!grid_of_tensor(&grid, p, origin ? &origin->grid : NULL, tensor->ndim, tensor->shape)) return false;
    Grid from_grid = grid.positions, to_grid = p->grid.positions;
    if (!memcmp(&from_grid, &to_grid, sizeof to_grid)) return false;
    float *from = xcalloc(tensor->size, sizeof *from, "resampling");
    if (!safetensors_to_float(tensor, from, &error)) die("%s", error.text);
    grid_resample(to, p, from, &grid);
    free(from);
    if (!fit->done->resampled++) {
        fit->done->first = p;
        fit->done->from = grid;
    }
    return true;
}

/* From a tensor of an image model. */
static bool fit_frames(const Fit *fit, float *to, const Param *p, const SafeTensor *tensor) {
    Error error;
    if (p->time.rule == TIME_NONE) return false;
    Param flat = inflate_flat(p);
    bool fits = tensor->ndim == flat.ndim;
    for (int d = 0; fits && d < flat.ndim; d++) fits = tensor->shape[d] == (size_t)flat.shape[d];
    if (fit->inflate == INFLATE_NONE && fits)
        die("%s: %s is of an image model, but this one takes clips: inflate mean or centre is needed", fit->done->path,
            p->name);
    if (fit->inflate == INFLATE_NONE) return false;
    float *from = xcalloc(flat.size, sizeof *from, "inflation");
    bool resampled = fit_grid(fit, from, &flat, tensor);
    if (!resampled && fits && !safetensors_to_float(tensor, from, &error)) die("%s", error.text);
    if (resampled && fit->done->first == &flat) fit->done->first = p;
    if (resampled || fits) inflate_tensor(to, p, from, fit->inflate);
    free(from);
    if ((resampled || fits) && !fit->done->inflated++) fit->done->clip = p;
    return resampled || fits;
}

static bool fit_head(const Fit *fit, float *to, const Param *p, const SafeTensor *tensor) {
    bool rest = tensor->ndim == p->ndim && (p->ndim < 2 || tensor->shape[1] == (size_t)p->shape[1]);
    if (!fit->head || strncmp(p->name, fit->head, strlen(fit->head)) || !rest) return false;
    if (tensor->shape[0] == (size_t)p->shape[0]) return false;
    params_draw(&fit->model->params, p, fit->seed, to);
    fit->done->head = p;
    fit->done->classes = tensor->shape[0];
    return true;
}

static bool fit_tensor(float *to, const Param *p, const SafeTensor *tensor, void *context) {
    return fit_frames(context, to, p, tensor) || fit_grid(context, to, p, tensor) || fit_head(context, to, p, tensor);
}

static bool ends_with(const char *name, const char *ending) {
    size_t length = strlen(name), end = strlen(ending);
    return length >= end && !strcmp(name + length - end, ending);
}

static bool is_square(size_t n) {
    size_t side = (size_t)lround(sqrt((double)n));
    return side * side == n;
}

/* A hybrid's weights in a model without its stem, or the other way round. */
static void refuse_other_stem(const Model *model, const SafeTensors *st, const char *path) {
    const char *alone = "patch_embed.backbone.conv.weight", *with_stages = "patch_embed.backbone.stem.conv.weight";
    bool has_alone = safetensors_find(st, alone), has_stages = safetensors_find(st, with_stages);
    bool wants_alone = params_find(&model->params, alone), wants_stages = params_find(&model->params, with_stages);
    if ((has_alone || has_stages) && !wants_alone && !wants_stages)
        die("%s: a hybrid, whose patches are of a stem's features (patch_embed.backbone): stem hybrid is needed", path);
    if ((wants_alone || wants_stages) && !has_alone && !has_stages)
        die("%s: no stem in it (patch_embed.backbone), but this model has one: stem none is needed", path);
    if (has_alone && wants_stages)
        die("%s: its stem has no stages (patch_embed.backbone.conv): stem_blocks 0 is needed", path);
    if (has_stages && wants_alone)
        die("%s: its stem has stages (patch_embed.backbone.stem), this model's has none: stem_blocks is needed", path);
}

/* One more than the number of the block that the tensor is of, or 0.  stage: "stages.2.", or "" where there is one. */
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

/* A tensor of another shape, which follows from that setting.  ratio: of its rows to its columns, not its length. */
static void refuse_other_shape(const Model *model, const SafeTensors *st, int stage, const char *prefix,
                               const char *name, const char *setting, bool ratio) {
    char whole[PARAM_NAME_SIZE];
    Error error;
    snprintf(whole, sizeof whole, "%.20sblocks.0.%s", prefix, name);
    const Param *found = params_find(&model->params, whole);
    const SafeTensor *tensor = safetensors_find(st, whole);
    if (!found || !tensor) return;
    Param p = *found;
    p.setting = setting;
    p.setting_value = ratio ? (double)p.shape[0] / p.shape[1] : p.shape[0];
    p.stage = stage;
    if (!checkpoint_shape_fits(&p, tensor, &error)) die("%s", error.text);
}

/* The same architecture with other sizes: says which setting decides them, at the first stage that differs. */
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

/* Hosts under the names of their authors' programs. */
static void refuse_other_names(const SafeTensors *st, const char *path) {
    static const struct {
        const char *program, *tensor;
    } others[] = {{"PVT", "patch_embed1.proj.weight"}, {"CSwin", "stage1_conv_embed.0.weight"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (safetensors_find(st, others[i].tensor))
            die("%s: the names of %s's own program (%.*s): scripts/convert_weights.py makes this one's of them", path,
                others[i].program, (int)strcspn(others[i].tensor, "."), others[i].tensor);
}

/* Published vision transformers that are not this one: says what is different, before a tensor is missed. */
static void refuse_relatives(const Model *model, const char *path) {
    Error error;
    SafeTensors st;
    if (!safetensors_open(&st, path, &error)) die("%s", error.text);
    const SafeTensor *positions = safetensors_find(&st, "pos_embed");
    bool token = safetensors_find(&st, "cls_token") != NULL, wanted = params_find(&model->params, "cls_token") != NULL;
    if (safetensors_find(&st, "dist_token"))
        die("%s: a distilled DeiT: its second token (dist_token, head_dist) has no place in this model, and no setting "
            "makes one: the DeiT of that size without distillation will do", path);
    for (int i = 0; i < st.count; i++)
        if (ends_with(st.tensors[i].name, ".gamma_1") || ends_with(st.tensors[i].name, ".ls1.gamma"))
            die("%s: %s: LayerScale, which DeiT-III and later models have, has no place in this model, and no setting "
                "makes one", path, st.tensors[i].name);
    refuse_other_stem(model, &st, path);
    refuse_other_names(&st, path);
    if (token && !wanted && (params_find(&model->params, "pos_embed") || params_find(&model->params, "pos_embed1")))
        die("%s: its classifier sees a class token (cls_token), this model's the average of all tokens: pool cls is "
            "needed", path);
    if (!token && wanted && (positions || safetensors_find(&st, "pos_embed1")))
        die("%s: no class token (cls_token) in it, but this model's classifier sees one: pool gap is needed", path);
    const Param *own = params_find(&model->params, "pos_embed");
    if (token && own && own->grid.prefix && positions && positions->ndim == 3 && is_square(positions->shape[1]))
        die("%s: pos_embed has %zu positions and none for the class token, as DeiT-III: this model has one there, and "
            "no setting takes it away", path, positions->shape[1]);
    refuse_other_sizes(model, &st, path);
    safetensors_close(&st);
}

FittedWeights fit_weights(Model *model, const char *path, const Model *origin, const char *head, uint64_t seed) {
    return fit_weights_inflated(model, path, origin, head, seed, INFLATE_NONE);
}

FittedWeights fit_weights_inflated(Model *model, const char *path, const Model *origin, const char *head,
                                   uint64_t seed, Inflate rule) {
    FittedWeights done = {.path = path};
    Fit fit = {model, origin, head, seed, rule, &done};
    refuse_relatives(model, path);
    checkpoint_load_weights(&model->params, path, &(CheckpointFit){fit_tensor, &fit});
    return done;
}

/* "14x14", of clips "4x14x14". */
static const char *grid_text(char text[48], Grid grid) {
    if (grid.frames > 1) snprintf(text, 48, "%dx%dx%d", grid.frames, grid.rows, grid.columns);
    else snprintf(text, 48, "%dx%d", grid.rows, grid.columns);
    return text;
}

void fitted_weights_print(const FittedWeights *fitted, FILE *out) {
    char more[32] = "";
    if (fitted->resampled > 1) snprintf(more, sizeof more, " and %d more", fitted->resampled - 1);
    if (fitted->resampled) {
        char from[48], to[48];
        const char *how = fitted->first->resampled == RESAMPLED_BILINEAR ? "bilinearly" : "bicubically";
        print_line_to(out, "%s: resampled %s: %s from %s to %s%s\n", fitted->path, how, fitted->first->name,
                      grid_text(from, fitted->from.positions), grid_text(to, fitted->first->grid.positions), more);
    }
    more[0] = 0;
    if (fitted->inflated > 1) snprintf(more, sizeof more, " and %d more", fitted->inflated - 1);
    if (fitted->inflated)
        print_line_to(out, "%s: of images, extended in time: %s%s\n", fitted->path, fitted->clip->name, more);
    if (fitted->classes)
        print_line_to(out, "%s: its head has %zu classes, this model %d: the head is drawn afresh\n", fitted->path,
                      fitted->classes, fitted->head->shape[0]);
}
