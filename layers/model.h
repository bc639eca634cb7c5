/* What surrounds the layers of every model: the arena of parameters, and a plan of activations for training and one for
 * inference over the same memory. */
#ifndef VIT_LAYERS_MODEL_H
#define VIT_LAYERS_MODEL_H

#include "core/params.h"
#include "core/plan.h"
#include "layers/final_gradients.h"

typedef struct {
    Params params;
    Plan training, inference; /* over the same memory */
    Plan *plan;               /* the one in force */
    void *memory;
    int batch; /* images the plans have room for */
} Model;

/* Plans activations for up to `batch` images, those of inference and, if asked for, those of training.
 * activations(plan, owner) names every tensor; plan->training says which of the two it is.  Allocates no device
 * memory. */
void model_plan(Model *model, int batch, bool training, void (*activations)(Plan *plan, void *owner), void *owner);

/* Is there a training plan? */
static inline bool model_trains(const Model *model) { return model->training.count > 0; }

/* Allocates what was planned, and makes the training plan, or without one the inference plan, the one in force. */
void model_allocate(Model *model);

/* Chooses the plan in force: training keeps everything for a backward pass, inference keeps nothing. */
void model_set_training(Model *model, bool training);

/* Bytes of activations, scratch and workspace. */
size_t model_activation_bytes(const Model *model);

/* For the backward pass that begins: all gradients are still to come. */
FinalGradients model_final_gradients(const Model *model, GradientsListener listener);

void model_destroy(Model *model);

#endif
