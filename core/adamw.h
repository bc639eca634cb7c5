/* AdamW over the parameter arena.  Weight decay applies to the tensors declared with it: matrices, but not 1-D tensors
 * or embeddings. */
#ifndef VIT_CORE_ADAMW_H
#define VIT_CORE_ADAMW_H

#include "core/config.h"
#include "core/params.h"

typedef struct {
    float weight_decay, beta1, beta2, eps;
    float clip_grad; /* maximum norm of the gradient of all parameters; 0: no clipping */
    float ema_decay; /* 0: no averaging */
} AdamWSettings;

extern const ConfigGroup adamw_settings;

/* Optimizer step number t >= 1 with learning rate lr, multiplied for each tensor by its Param.rate.  Clips the
 * gradient, updates parameters and moments, then the EMA if there is one.  Returns the gradient's norm before
 * clipping.  If that norm is not finite, nothing is changed. */
float adamw_step(const AdamWSettings *s, Params *params, float lr, int t);

#endif
