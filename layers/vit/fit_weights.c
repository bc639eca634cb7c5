#include "layers/vit/fit_weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "training/checkpoint.h"
#include "core/die.h"
#include "core/text.h"
#include "layers/vit/classifier.h"
#include "layers/vit/other_weights.h"
#include "layers/vit/resample_grid.h"
#include "layers/vit/vit.h"

typedef struct {
    const Model *model, *origin;
    const char *head;
    uint64_t seed;
    Inflate inflate;
    FittedWeights *done;
} Fit;

/* Is this a table of windows on a grid of the same size, so that another resolution cannot be the reason for its
 * shape? */
static bool keeps_tokens(const Param *p, const Param *origin) {
    return p->tokens.rows > 0 && origin && origin->tokens.rows == p->tokens.rows &&
           origin->tokens.columns == p->tokens.columns;
}

static bool fit_grid(const Fit *fit, float *to, const Param *p, const SafeTensor *tensor) {
    const Param *origin = fit->origin ? params_find(&fit->origin->params, p->name) : NULL;
    ParamGrid grid;
    if (keeps_tokens(p, origin)) return false;
    if (!grid_of_tensor(&grid, p, origin ? &origin->grid : NULL, tensor->ndim, tensor->shape)) return false;
    Grid from_grid = grid.positions, to_grid = p->grid.positions;
    if (!memcmp(&from_grid, &to_grid, sizeof to_grid)) return false;
    float *from = xcalloc(tensor->size, sizeof *from, "resampling");
    safetensors_to_float(tensor, from, &error_fatal);
    grid_resample(to, p, from, &grid);
    free(from);
    if (!fit->done->resampled++) {
        fit->done->first = p;
        fit->done->from = grid;
    }
    return true;
}

/* Makes a clip model's tensor from an image model's.  Returns false if the two do not fit. */
static bool fit_frames(const Fit *fit, float *to, const Param *p, const SafeTensor *tensor) {
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
    if (!resampled && fits) safetensors_to_float(tensor, from, &error_fatal);
    if (resampled && fit->done->first == &flat) fit->done->first = p;
    if (resampled || fits) inflate_tensor(to, p, from, fit->inflate);
    free(from);
    if ((resampled || fits) && !fit->done->inflated++) fit->done->clip = p;
    return resampled || fits;
}

/* The last layer of a classifier, or of the classifier of a distillation token. */
static bool ends_with_classes(const char *name, const char *head) {
    return !strncmp(name, head, strlen(head)) || !strncmp(name, "head_dist.", 10);
}

static bool fit_head(const Fit *fit, float *to, const Param *p, const SafeTensor *tensor) {
    bool rest = tensor->ndim == p->ndim && (p->ndim < 2 || tensor->shape[1] == (size_t)p->shape[1]);
    if (!fit->head || !ends_with_classes(p->name, fit->head) || !rest) return false;
    if (tensor->shape[0] == (size_t)p->shape[0]) return false;
    params_draw(&fit->model->params, p, fit->seed, to);
    fit->done->head = p;
    fit->done->classes = tensor->shape[0];
    return true;
}

static bool is_of_head(const char *name) { return !strncmp(name, "head.", 5); }

/* A classifier of another kind than the file's (the setting head) starts with new random weights. */
static bool fit_other_head(const Fit *fit, float *to, const Param *p) {
    if (!fit->done->to_head || !is_of_head(p->name)) return false;
    params_draw(&fit->model->params, p, fit->seed, to);
    return true;
}

static const char *head_kind(bool hidden, bool norm) {
    return (const char *const[]){HEAD_KINDS}[!hidden ? HEAD_LINEAR : norm ? HEAD_MLP : HEAD_TANH];
}

/* Compares the kinds of classifier of a file that has one and of the model; refuses different kinds unless `fit`
 * initialises heads. */
static void compare_heads(const Fit *fit) {
    const Params *params = &fit->model->params;
    FittedWeights *done = fit->done;
    SafeTensors st;
    bool has_head = false;
    safetensors_open(&st, done->path, &error_fatal);
    for (int i = 0; i < st.count; i++) has_head |= is_of_head(st.tensors[i].name);
    const char *from = head_kind(safetensors_find(&st, "head.fc1.weight"), safetensors_find(&st, "head.norm.weight"));
    const char *to = head_kind(params_find(params, "head.fc1.weight"), params_find(params, "head.norm.weight"));
    safetensors_close(&st);
    if (!has_head || !strcmp(from, to)) return;
    if (!fit->head)
        die("%s: its classifier is head %s, this model's head %s: head %s is needed", done->path, from, to, from);
    done->from_head = from;
    done->to_head = to;
}

static bool fit_tensor(float *to, const Param *p, const SafeTensor *tensor, void *context) {
    if (fit_other_head(context, to, p)) return true;
    return tensor && (fit_frames(context, to, p, tensor) || fit_grid(context, to, p, tensor) ||
                      fit_head(context, to, p, tensor));
}

FittedWeights fit_weights(Model *model, const char *path, const Model *origin, const char *head, uint64_t seed,
                          Inflate rule) {
    FittedWeights done = {.path = path};
    Fit fit = {model, origin, head, seed, rule, &done};
    other_weights_refuse(model, path);
    compare_heads(&fit);
    checkpoint_load_weights(&model->params, path, &(CheckpointFit){fit_tensor, done.to_head ? "head." : NULL, &fit});
    return done;
}

void fitted_weights_print(const FittedWeights *fitted, FILE *out) {
    char more[32] = "";
    if (fitted->resampled > 1) snprintf(more, sizeof more, " and %d more", fitted->resampled - 1);
    if (fitted->resampled) {
        char from[VIT_GRID_SIZE], to[VIT_GRID_SIZE];
        static const char *const words[] = {[RESAMPLED_ANTIALIASED] = "bicubically",
                                            [RESAMPLED_BICUBIC] = "bicubically",
                                            [RESAMPLED_BILINEAR] = "bilinearly",
                                            [RESAMPLED_GEOMETRIC] = "at timm's geometric distances"};
        const char *how = words[fitted->first->resampled];
        print_line_to(out, "%s: resampled %s: %s from %s to %s%s\n", fitted->path, how, fitted->first->name,
                      vit_grid_text(from, fitted->from.positions, "x"),
                      vit_grid_text(to, fitted->first->grid.positions, "x"), more);
    }
    more[0] = 0;
    if (fitted->inflated > 1) snprintf(more, sizeof more, " and %d more", fitted->inflated - 1);
    if (fitted->inflated)
        print_line_to(out, "%s: weights for images, extended in time: %s%s\n", fitted->path, fitted->clip->name, more);
    if (fitted->to_head)
        print_line_to(out, "%s: its classifier is head %s, this model's head %s: it starts with new random weights\n", fitted->path,
                      fitted->from_head, fitted->to_head);
    if (fitted->classes)
        print_line_to(out, "%s: its head has %zu classes, this model %d: the head starts with new random weights\n", fitted->path,
                      fitted->classes, fitted->head->shape[0]);
}
