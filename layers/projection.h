/* A linear layer and its parameters: y = x W^T + b.  x [n,in] -> y [n,out]
 * backward  dx = dy W,  dW += dy^T x,  db += sum_n dy. */
#ifndef VIT_LAYERS_PROJECTION_H
#define VIT_LAYERS_PROJECTION_H

#include "kernels/kernels.h"
#include "training/params.h"

typedef struct {
    int in, out;
    float *w, *dw; /* [out,in] */
    float *b, *db; /* [out], NULL without bias */
    bool summed;   /* db is computed elsewhere, and not by projection_backward */
} Projection;

/* A projection without bias: declares prefix + name + ".weight" (truncated normal, standard deviation 0.02). */
static inline void projection_declare_weight(Projection *p, Params *params, const char *prefix, const char *name,
                                             int in, int out) {
    p->in = in;
    p->out = out;
    params_declare(params, (Param){.value = &p->w, .grad = &p->dw, .named = {prefix, name, ".weight"}, .init = INIT_TRUNC_NORMAL,
                                   .decay = true, .shape = {out, in}});
}

/* Param.draw: initialises the matrix as the identity. */
static inline void identity_matrix(float *x, const Param *p, uint64_t seed, uint32_t tensor) {
    (void)seed, (void)tensor;
    for (size_t i = 0; i < p->size; i++) x[i] = i / (size_t)p->shape[1] == i % (size_t)p->shape[1];
}

/* A projection with bias: declares the same and prefix + name + ".bias" (zeros). */
static inline void projection_declare(Projection *p, Params *params, const char *prefix, const char *name, int in,
                                      int out) {
    projection_declare_weight(p, params, prefix, name, in, out);
    params_declare(params, (Param){.value = &p->b, .grad = &p->db, .named = {prefix, name, ".bias"}, .init = INIT_ZEROS,
                                   .shape = {out}});
}

/* A projection of the detector: declares prefix + name + "weight" and prefix + name + "bias", where name ends in a dot
 * or an underscore.  `weight` and `bias` say how each is initialised (INIT_FAN_IN_UNIFORM: uniformly within
 * 1/sqrt(in)); both have weight decay. */
static inline void projection_declare_as(Projection *p, Params *params, const char *prefix, const char *name, int in,
                                         int out, ParamInit weight, ParamInit bias) {
    p->in = in;
    p->out = out;
    params_declare(params, (Param){.value = &p->w, .grad = &p->dw, .named = {prefix, name, "weight"}, .init = weight,
                                   .decay = true, .shape = {out, in}, .fan = in});
    params_declare(params, (Param){.value = &p->b, .grad = &p->db, .named = {prefix, name, "bias"}, .init = bias,
                                   .decay = true, .shape = {out}, .fan = in});
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
