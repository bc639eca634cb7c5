/* AdamW over the parameter arena: decay for matrices, none for 1-D tensors and embeddings, as each tensor declared. */
#ifndef VIT_CORE_ADAMW_H
#define VIT_CORE_ADAMW_H

#include "core/config.h"
#include "core/params.h"

typedef struct {
    float weight_decay, beta1, beta2, eps;
    float clip_grad; /* largest norm of the whole gradient; 0: no clipping */
    float ema_decay; /* 0: no averaging */
} AdamWSettings;

extern const ConfigGroup adamw_settings;

/* One step number t >= 1 with rate lr, and `slow` times that for Param.slow: clips, updates parameters and moments,
 * then the EMA if there is one.  Returns the gradient's norm before clipping.  A gradient that is not finite leaves
 * everything as it was. */
float adamw_step(const AdamWSettings *s, Params *params, float lr, float slow, int t);

#endif
