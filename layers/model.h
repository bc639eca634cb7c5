/* Members of every model besides its layers: the arena of parameters, and two plans of activations, one for training
 * and one for inference, that use the same memory. */
#ifndef VIT_LAYERS_MODEL_H
#define VIT_LAYERS_MODEL_H

#include <stdio.h>

#include "training/params.h"
#include "training/plan.h"
#include "layers/final_gradients.h"

typedef struct {
    Params params;
    Plan training, inference; /* in the same memory; training is empty for a model that is not trained */
    Plan *plan;               /* the current one of the two, whose pointers are valid */
    void *memory;
    int batch; /* largest number of images */
    bool keeps_weights; /* parameters do not change until model_set_training is called again, */
    unsigned turn;      /* the number of its calls */
} Model;

/* Plans activations for up to `batch` images, for inference and, if `training`, for training as well.  Calls
 * activations(plan, owner) for each of the two, which names every tensor; plan->training distinguishes them.  Allocates
 * no device memory. */
void model_plan(Model *model, int batch, bool training, void (*activations)(Plan *plan, void *owner), void *owner);

/* True if there is a training plan. */
static inline bool model_trains(const Model *model) { return model->training.count > 0; }

/* Allocates what was planned.  The current plan is then the training plan, or if there is none the inference plan. */
void model_allocate(Model *model);

/* Chooses the current plan.  Only the training plan keeps activations for a backward pass.  Between a call with false
 * and the next call, parameters must not change after they were used. */
void model_set_training(Model *model, bool training);

/* Between these two, layers have the inference plan and the EMA of the parameters if there is one; then they have the
 * parameters again and, if there is one, the training plan. */
void model_evaluation_begin(Model *model);
void model_evaluation_end(Model *model);

/* Bytes of activations, scratch and kernel workspace. */
size_t model_activation_bytes(const Model *model);

/* Called for every part in a model's description; the part's parameters are those whose names begin with `prefix`. */
typedef void (*ModelPart)(void *context, const char *prefix, const char *what, size_t macs);

/* A table of layers: its head, a row for the parameters with a prefix, the multiply-adds for one sample ("image") and
 * its kept activations, and the planned memory.  The plan described is that of training, if there is one. */
void model_describe_head(FILE *out, const char *sample);
void model_describe_row(const Model *model, FILE *out, const char *prefix, const char *what, double macs);
void model_describe_memory(const Model *model, FILE *out, const char *sample, bool recompute);

/* The state of final_gradients.h at the start of a backward pass. */
FinalGradients model_final_gradients(const Model *model, GradientsListener listener);

void model_destroy(Model *model);

#endif
