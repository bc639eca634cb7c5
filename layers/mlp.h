/* The MLP of a block.  h [n,M] -> f [n,M] */
#ifndef VIT_LAYERS_MLP_H
#define VIT_LAYERS_MLP_H

#include "training/plan.h"
#include "layers/depthwise.h"
#include "layers/projection.h"

typedef struct {
    Projection fc1, fc2;
    bool convolves;
    bool relu, sigmoid;    /* ReLU before the convolution; GELU as x sigmoid(1.702 x): both set after mlp_declare */
    bool recomputed;       /* forward is called again before backward: set before mlp_plan */
    int time_kernel;       /* length of the convolution in frames, 0: in each frame alone; set before mlp_declare */
    DepthwiseLayer dwconv; /* 3x3 over the token grid, between fc1 and GELU */
    real *a;      /* [n,hidden] kept: fc1's output, after ReLU if there is one */
    real *c;      /* [n,hidden] kept: the convolution's output */
    real *kept;   /* [n,hidden] GELU's output until backward, if the plan has room for it, or NULL */
    real *g, *dg; /* [n,hidden] scratch: GELU's output (computed again in backward), and the gradients of g and c */
    real *da;     /* [n,hidden] scratch: the gradient of a, if there is a convolution */
} Mlp;

/* `grid` is the token grid for a convolution between the layers, or NULL for none. */
void mlp_declare(Mlp *mlp, Params *params, const char *prefix, int dim, int hidden, const Grid *grid);
void mlp_plan(Mlp *mlp, Plan *plan, const char *prefix, size_t n);
/* There are n = B N rows.  `dropout` is that of the hidden layer, with rate 0 for none; the backward pass draws it
 * again.  With f NULL, only the inputs of the backward pass are computed. */
void mlp_forward(const Mlp *mlp, real *f, const real *h, const Dropout *dropout, int B, int N);
/* dh (=), parameters (+=).  dh may not be df. */
void mlp_backward(const Mlp *mlp, real *dh, const real *df, const real *h, const Dropout *dropout, int B, int N);
size_t mlp_macs(const Mlp *mlp, size_t n);

#endif
