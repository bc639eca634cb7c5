/* Swin's patch merging (Liu et al. 2021): halves the rows and columns of tokens.  x [B,N,C] -> y [B,N/4,M] */
#ifndef VIT_LAYERS_VIT_MERGING_H
#define VIT_LAYERS_VIT_MERGING_H

#include "training/plan.h"
#include "layers/layer_norm.h"
#include "layers/projection.h"

typedef struct {
    Grid tokens, grid; /* before and after */
    int C;
    NormLayer norm;       /* of 4C */
    Projection reduction; /* without bias */
    real *cells, *h;      /* [B,N/4,4C] scratch */
    real *dcells;         /* the same, in training */
} Merging;

/* Requires even sides. */
void merging_create(Merging *m, int C, Grid tokens);
void merging_set_tokens(Merging *m, Grid tokens);
void merging_declare(Merging *m, Params *params, const char *prefix, int M);
void merging_plan(Merging *m, Plan *plan, const char *prefix, int B);
void merging_forward(const Merging *m, real *y, const real *x, int B);
/* dx (=), or NULL;  parameters (+=). */
void merging_backward(const Merging *m, real *dx, const real *dy, const real *x, int B);

#endif
