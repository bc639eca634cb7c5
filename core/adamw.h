/* AdamW over the parameter arena: decay for matrices, none for 1-D tensors and embeddings, as each tensor declared. */
#ifndef VIT_CORE_ADAMW_H
#define VIT_CORE_ADAMW_H

#include "core/params.h"

typedef struct {
    float beta1, beta2, eps, weight_decay;
    float clip_grad; /* largest norm of the whole gradient; 0: no clipping */
    float ema_decay; /* 0: no averaging */
    float slow;      /* what the learning rate of Param.slow is a multiple of */
} AdamW;

/* One step number t >= 1 with rate lr: clips, updates parameters and moments, then the EMA if there is one.  Returns
 * the gradient's norm before clipping.  A gradient that is not finite leaves everything as it was. */
float adamw_step(const AdamW *adamw, Params *params, float lr, int t);

#endif
