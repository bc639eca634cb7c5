/* The parameters of a depthwise convolution on the token grid.  x [B,N,C] -> y [B,N,C].  The mathematics and the shape
 * are those of depthwise_forward (kernels/convolution/convolution.h). */
#ifndef VIT_LAYERS_DEPTHWISE_H
#define VIT_LAYERS_DEPTHWISE_H

#include <stdio.h>

#include "training/params.h"
#include "kernels/kernels.h"

typedef struct {
    Depthwise shape;
    float *w, *dw; /* [period,1,k,k], of a clip [period,1,kt,k,k] */
    float *b, *db; /* [period], NULL without bias */
} DepthwiseLayer;

/* Declares prefix + name + ".weight", initialised uniformly within 1/sqrt(kt k k), as PyTorch's Conv2d and Conv3d are. */
static inline void depthwise_declare_weight(DepthwiseLayer *l, Params *params, const char *prefix, const char *name,
                                            Depthwise shape) {
    char tensor[PARAM_NAME_SIZE];
    int k = shape.k, fan = depthwise_taps(&shape), flat[] = {shape.period, 1, k, k};
    int deep[] = {shape.period, 1, shape.kt, k, k};
    bool is_deep = shape.kt > 1;
    l->shape = shape;
    snprintf(tensor, sizeof tensor, "%s.weight", name);
    params_declare_fan(params, &l->w, &l->dw, prefix, tensor, fan, true, is_deep ? 5 : 4,
                       is_deep ? deep : flat);
    params_in_time(params, (ParamTime){TIME_TAPS, 2, shape.kt, 0, true});
}

/* Declares its ".bias", drawn likewise. */
static inline void depthwise_declare_bias(DepthwiseLayer *l, Params *params, const char *prefix, const char *name) {
    char tensor[PARAM_NAME_SIZE];
    snprintf(tensor, sizeof tensor, "%s.bias", name);
    params_declare_fan(params, &l->b, &l->db, prefix, tensor, depthwise_taps(&l->shape), false, 1,
                       (int[]){l->shape.period});
}

static inline void depthwise_declare(DepthwiseLayer *l, Params *params, const char *prefix, const char *name,
                                     Depthwise shape, bool bias) {
    depthwise_declare_weight(l, params, prefix, name, shape);
    if (bias) depthwise_declare_bias(l, params, prefix, name);
}

/* Multiply-adds of one image. */
static inline size_t depthwise_macs(const Depthwise *s) {
    return (size_t)grid_tokens(s->grid) * (size_t)s->C * (size_t)depthwise_taps(s);
}

#endif
