/* A linear layer and its parameters: y = x W^T + b.  x [n,in] -> y [n,out]
 * backward  dx = dy W,  dW += dy^T x,  db += sum_n dy. */
#ifndef VIT_LAYERS_PROJECTION_H
#define VIT_LAYERS_PROJECTION_H

#include <stdio.h>

#include "training/params.h"
#include "kernels/kernels.h"

typedef struct {
    int in, out;
    float *w, *dw; /* [out,in] */
    float *b, *db; /* [out], NULL without bias */
    bool summed;   /* db is made elsewhere, and not by projection_backward */
} Projection;

/* A projection without bias: declares prefix + name + ".weight" (truncated normal, standard deviation 0.02). */
static inline void projection_declare_weight(Projection *p, Params *params, const char *prefix, const char *name,
                                             int in, int out) {
    char tensor[PARAM_NAME_SIZE];
    p->in = in;
    p->out = out;
    snprintf(tensor, sizeof tensor, "%s.weight", name);
    params_declare(params, &p->w, &p->dw, prefix, tensor, INIT_TRUNC_NORMAL, true, 2, (int[]){out, in});
}

/* A projection with bias: declares the same and prefix + name + ".bias" (zeros). */
static inline void projection_declare(Projection *p, Params *params, const char *prefix, const char *name, int in,
                                      int out) {
    char tensor[PARAM_NAME_SIZE];
    projection_declare_weight(p, params, prefix, name, in, out);
    snprintf(tensor, sizeof tensor, "%s.bias", name);
    params_declare(params, &p->b, &p->db, prefix, tensor, INIT_ZEROS, false, 1, (int[]){out});
}

/* A projection of the detector: declares prefix + name + "weight" and prefix + name + "bias", where name ends in a dot
 * or an underscore.  `weight` and `bias` say how each is initialised (INIT_FAN_IN_UNIFORM: uniformly within
 * 1/sqrt(in)); both have weight decay. */
static inline void projection_declare_as(Projection *p, Params *params, const char *prefix, const char *name, int in,
                                         int out, ParamInit weight, ParamInit bias) {
    char tensor[PARAM_NAME_SIZE + sizeof "weight"];
    p->in = in;
    p->out = out;
    snprintf(tensor, sizeof tensor, "%sweight", name);
    params_declare(params, &p->w, &p->dw, prefix, tensor, weight, true, 2, (int[]){out, in});
    params_set_fan(params, in);
    snprintf(tensor, sizeof tensor, "%sbias", name);
    params_declare(params, &p->b, &p->db, prefix, tensor, bias, true, 1, (int[]){out});
    params_set_fan(params, in);
}

static inline void projection_forward(const Projection *p, real *y, const real *x, size_t n) {
    linear_forward(y, x, p->w, p->b, &(LinearShape){n, p->in, p->out, 0});
}

/* dx (=), or NULL if no layer before this one is trained;  parameters (+=). */
static inline void projection_backward(const Projection *p, real *dx, const real *dy, const real *x, size_t n) {
    LinearShape shape = {n, p->in, p->out, 0};
    float *db = p->summed ? NULL : p->db;
    if (dx) linear_backward(dx, p->dw, db, dy, x, p->w, &shape);
    else linear_backward_weight(p->dw, db, dy, x, &shape);
}

static inline size_t projection_macs(const Projection *p, size_t n) { return n * (size_t)p->in * (size_t)p->out; }

#endif
