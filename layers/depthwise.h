/* The parameters of a depthwise convolution on the token grid.  x [B,N,C] -> y [B,N,C].  The mathematics and the shape
 * are those of depthwise_forward (kernels/convolution/convolution.h). */
#ifndef VIT_LAYERS_DEPTHWISE_H
#define VIT_LAYERS_DEPTHWISE_H

#include "kernels/kernels.h"
#include "training/params.h"

typedef struct {
    Depthwise shape;
    float *w, *dw; /* [period,1,k,k], of a clip [period,1,kt,k,k] */
    float *b, *db; /* [period], NULL without bias */
} DepthwiseLayer;

/* Declares prefix + name + ".weight" and with `bias` ".bias", both initialised uniformly within 1/sqrt(kt k k), as
 * PyTorch's Conv2d and Conv3d are.  `from` is the setting that determines the shape. */
static inline void depthwise_declare_from(DepthwiseLayer *l, Params *params, const char *prefix, const char *name,
                                          Depthwise shape, bool bias, ParamSetting from) {
    int k = shape.k, fan = depthwise_taps(&shape);
    l->shape = shape;
    params_declare(params, (Param){.value = &l->w, .grad = &l->dw, .named = {prefix, name, ".weight"},
                                   .init = INIT_FAN_IN_UNIFORM, .fan = fan, .groups = shape.period, .decay = true,
                                   .from = from, .shape = {shape.period, 1, shape.kt > 1 ? shape.kt : 0, k, k},
                                   .time = {TIME_TAPS, 2, shape.kt, 0, true}});
    if (bias)
        params_declare(params, (Param){.value = &l->b, .grad = &l->db, .named = {prefix, name, ".bias"},
                                       .init = INIT_FAN_IN_UNIFORM, .fan = fan, .from = from, .shape = {shape.period}});
}

/* Declares the same tensors without naming a setting. */
static inline void depthwise_declare(DepthwiseLayer *l, Params *params, const char *prefix, const char *name,
                                     Depthwise shape, bool bias) {
    depthwise_declare_from(l, params, prefix, name, shape, bias, (ParamSetting){NULL, 0, 0});
}

/* Multiply-adds of one image. */
static inline size_t depthwise_macs(const Depthwise *s) {
    return (size_t)grid_tokens(s->grid) * (size_t)s->C * (size_t)depthwise_taps(s);
}

#endif
