#include "layers/fit_weights.h"

#include <stdlib.h>
#include <string.h>

#include "core/checkpoint.h"
#include "core/die.h"
#include "layers/resample_grid.h"

typedef struct {
    const Model *model, *origin;
    const char *head;
    uint64_t seed;
    FittedWeights *done;
} Fit;

static bool fit_grid(const Fit *fit, float *to, const Param *p, const SafeTensor *tensor) {
    const Param *origin = fit->origin ? params_find(&fit->origin->params, p->name) : NULL;
    ParamGrid grid;
    Error error;
    if (!grid_of_tensor(&grid, p, origin ? &origin->grid : NULL, tensor->ndim, tensor->shape)) return false;
    Grid from_grid = grid.positions, to_grid = p->grid.positions;
    if (from_grid.rows == to_grid.rows && from_grid.columns == to_grid.columns) return false;
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
    return fit_grid(context, to, p, tensor) || fit_head(context, to, p, tensor);
}

FittedWeights fit_weights(Model *model, const char *path, const Model *origin, const char *head, uint64_t seed) {
    FittedWeights done = {.path = path};
    Fit fit = {model, origin, head, seed, &done};
    checkpoint_load_weights(&model->params, path, &(CheckpointFit){fit_tensor, &fit});
    return done;
}

void fitted_weights_print(const FittedWeights *fitted, FILE *out) {
    char more[32] = "";
    if (fitted->resampled > 1) snprintf(more, sizeof more, " and %d more", fitted->resampled - 1);
    if (fitted->resampled) {
        Grid from = fitted->from.positions, to = fitted->first->grid.positions;
        fprintf(out, "%s: resampled bicubically: %s from %dx%d to %dx%d%s\n", fitted->path, fitted->first->name,
                from.rows, from.columns, to.rows, to.columns, more);
    }
    if (fitted->classes)
        fprintf(out, "%s: its head has %zu classes, this model %d: the head is drawn afresh\n", fitted->path,
                fitted->classes, fitted->head->shape[0]);
}
