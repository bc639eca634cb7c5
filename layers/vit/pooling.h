/* Computes the classifier's input y [B,M] from the last stage's tokens h [B,N,M]: the class token, the mean of all
 * tokens, or with pool seq their mean weighted by a softmax of learned scores (kernels/tokens/sequence_pool.h). */
#ifndef VIT_LAYERS_VIT_POOLING_H
#define VIT_LAYERS_VIT_POOLING_H

#include "layers/projection.h"
#include "layers/vit/vit_settings.h"
#include "training/plan.h"

typedef struct {
    Pool pool;
    Projection scores; /* [1,M], pool seq only; its bias has no effect and the gradient 0 */
    float *a, *ds;     /* [B,N] kept: the weights; scratch: the gradients of the scores */
} Pooling;

/* Declares "attention_pool.weight" and ".bias" for pool seq. */
void pooling_declare(Pooling *p, Params *params, Pool pool, int M);
void pooling_plan(Pooling *p, Plan *plan, const TokenShape *tokens);
void pooling_forward(const Pooling *p, real *y, const real *h, const TokenShape *tokens);
/* dh (=), parameters (+=). */
void pooling_backward(const Pooling *p, real *dh, const real *dy, const real *h, const TokenShape *tokens);

#endif
