#include "layers/model.h"

#include <string.h>

#include "core/integers.h"
#include "kernels/kernels.h"

void model_plan(Model *model, int batch, bool training, void (*activations)(Plan *plan, void *owner), void *owner) {
    model->batch = batch;
    plan_start(&model->inference, false);
    activations(&model->inference, owner);
    if (!training) return;
    plan_start(&model->training, true);
    activations(&model->training, owner);
}

static size_t planned_bytes(const Model *model) {
    return larger_size(plan_bytes(&model->training), plan_bytes(&model->inference));
}

static void keep_weights(Model *model, bool keeps) {
    model->keeps_weights = keeps;
    model->turn++;
    linear_keep_weights(keeps);
}

void model_allocate(Model *model) {
    size_t least = planned_bytes(model);
    model->training.has_room = model->training.spare && device_keeps(least + model->training.spare);
    model->memory = device_malloc(planned_bytes(model), "activations");
    model_set_training(model, model_trains(model));
    keep_weights(model, false); /* they may not be loaded yet */
}

void model_set_training(Model *model, bool training) {
    const Plan *before = model->plan;
    model->plan = training ? &model->training : &model->inference;
    plan_bind(model->plan, model->memory);
    if (model->plan != before) device_uploads_used(); /* the memory to which images are being uploaded has other tensors
                                                       * now */
    keep_weights(model, !training);
}

void model_evaluation_begin(Model *model) {
    if (model->params.ema) params_view(&model->params, model->params.ema);
    model_set_training(model, false);
}

void model_evaluation_end(Model *model) {
    if (model_trains(model)) model_set_training(model, true);
    if (model->params.ema) params_view(&model->params, model->params.values);
}

size_t model_activation_bytes(const Model *model) {
    return planned_bytes(model) + larger_size(model->training.workspace, model->inference.workspace);
}

static const Plan *described(const Model *model) { return model_trains(model) ? &model->training : &model->inference; }

void model_describe_head(FILE *out, const char *sample) {
    char kept[32];
    snprintf(kept, sizeof kept, "KiB/%s", sample);
    fprintf(out, "  %-18s %-28s %10s %12s %12s\n", "layer", "", "parameters", "10^6 macs", kept);
}

void model_describe_row(const Model *model, FILE *out, const char *prefix, const char *what, double macs) {
    double kept = (double)plan_kept(described(model), prefix) / model->batch;
    fprintf(out, "  %-18s %-28s %10zu %12.3f %12.1f\n", prefix, what, params_size_of(&model->params, prefix),
            macs / 1e6, kept / 1024);
}

void model_describe_memory(const Model *model, FILE *out, const char *sample, bool recompute) {
    const Plan *plan = described(model);
    double MiB = 1 << 20;
    if (recompute) fprintf(out, "recompute: the input of each block is kept, and the activations of one block at a time\n");
    fprintf(out, "memory for %d %ss at a time: kept %.1f MiB, scratch %.1f MiB, kernel workspace %.1f MiB\n",
            model->batch, sample, (double)plan->keep_peak / MiB, (double)plan->scratch_peak / MiB,
            (double)plan->workspace / MiB);
}

FinalGradients model_final_gradients(const Model *model, GradientsListener listener) {
    return (FinalGradients){.listener = listener, .gradients = model->params.grads, .end = model->params.total};
}

void model_destroy(Model *model) {
    linear_keep_weights(false);
    plan_free(&model->training);
    plan_free(&model->inference);
    device_free(model->memory);
    params_free(&model->params);
    memset(model, 0, sizeof *model);
}
