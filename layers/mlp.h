/* The feed-forward half of a block.  h [n,M] -> f [n,M] */
#ifndef VIT_LAYERS_MLP_H
#define VIT_LAYERS_MLP_H

#include "core/plan.h"
#include "layers/projection.h"

typedef struct {
    Projection fc1, fc2;
    real *a;      /* [n,hidden] kept: what GELU saw */
    real *g, *dg; /* [n,hidden] scratch: GELU's output (formed again in backward) and the gradient on its way */
} Mlp;

void mlp_declare(Mlp *mlp, Params *params, const char *prefix, int dim, int hidden);
void mlp_plan(Mlp *mlp, Plan *plan, const char *prefix, size_t n);
void mlp_forward(const Mlp *mlp, real *f, const real *h, size_t n);
/* dh (=), parameters (+=).  dh may be df. */
void mlp_backward(const Mlp *mlp, real *dh, const real *df, const real *h, size_t n);
size_t mlp_macs(const Mlp *mlp, size_t n);

#endif
