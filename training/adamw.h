/* AdamW over the parameter arena.  Weight decay applies to the tensors declared with it: matrices, but not 1-D tensors
 * or embeddings; or to all tensors. */
#ifndef VIT_TRAINING_ADAMW_H
#define VIT_TRAINING_ADAMW_H

#include "core/config/config.h"
#include "training/params.h"

typedef enum { DECAY_OF_MATRICES, DECAY_OF_ALL } DecayOf;

typedef struct {
    float weight_decay, beta1, beta2, eps;
    DecayOf weight_decay_of;
    float clip_grad; /* maximum norm of the gradient of all parameters; 0: no clipping */
    float ema_decay; /* 0: no averaging */
} AdamWSettings;

extern const ConfigGroup adamw_settings;

/* Optimizer step number t >= 1 with learning rate lr, multiplied for each tensor by its Param.rate.  Clips the
 * gradient, updates parameters and moments, then the EMA if there is one.  params->step_stats gets the square of the
 * gradient's norm before clipping; if that norm or the loss in params->step_stats is not finite, nothing is changed.
 * Does not wait for the device. */
void adamw_start(const AdamWSettings *s, Params *params, float lr, int t);

#endif
