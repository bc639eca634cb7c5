/* Layer norms.  The mathematics is that of layernorm_forward and its variants (kernels/norm/norms.h). */
#ifndef VIT_LAYERS_LAYER_NORM_H
#define VIT_LAYERS_LAYER_NORM_H

#include "kernels/kernels.h"
#include "training/params.h"
#include "training/plan.h"

/* Only the parameters. */
typedef struct {
    float *w, *dw, *b, *db; /* [M] */
} NormPair;

/* The eps that is added to the variance in timm's vision transformers, and PyTorch's default. */
#define TIMM_NORM_EPS 1e-6f
#define PYTORCH_NORM_EPS 1e-5f

/* Declares prefix + name + ".weight" (ones) and ".bias" (zeros). */
static inline void layer_norm_declare(NormPair *norm, Params *params, const char *prefix, const char *name, int M,
                                      bool decay) {
    params_declare(params, (Param){.value = &norm->w, .grad = &norm->dw, .named = {prefix, name, ".weight"},
                                   .init = INIT_ONES, .decay = decay, .shape = {M}});
    params_declare(params, (Param){.value = &norm->b, .grad = &norm->db, .named = {prefix, name, ".bias"},
                                   .init = INIT_ZEROS, .decay = decay, .shape = {M}});
}

/* A norm with its own parameters and its own saved statistics, x [n,M] -> y [n,M]. */
typedef struct {
    NormPair pair;
    float *mean, *rstd; /* [n] kept */
    int M;
    float eps;
} NormLayer;

static inline void norm_layer_declare(NormLayer *l, Params *params, const char *prefix, const char *name, int M,
                                      float eps, bool decay) {
    l->M = M;
    l->eps = eps;
    layer_norm_declare(&l->pair, params, prefix, name, M, decay);
}

static inline void norm_layer_plan(NormLayer *l, Plan *plan, const char *prefix, size_t n) {
    plan_keep(plan, prefix, "mean", &l->mean, n * sizeof(float));
    plan_keep(plan, prefix, "rstd", &l->rstd, n * sizeof(float));
    plan_workspace(plan, layernorm_workspace(l->M));
}

/* The kernels' description of the norm of n rows. */
static inline LayerNorm norm_layer_of(const NormLayer *l, size_t n) {
    return (LayerNorm){l->pair.w, l->pair.b, l->mean, l->rstd, n, l->M, l->eps};
}

static inline void norm_layer_forward(const NormLayer *l, real *y, const real *x, size_t n) {
    LayerNorm norm = norm_layer_of(l, n);
    layernorm_forward(y, x, &norm);
}

/* Writes dx (=) and adds to the parameters' gradients (+=). */
static inline void norm_layer_backward(const NormLayer *l, real *dx, const real *dy, const real *x, size_t n) {
    LayerNorm norm = norm_layer_of(l, n);
    add_layernorm_backward(dx, NULL, l->pair.dw, l->pair.db, NULL, dy, x, NULL, &norm);
}

#endif
