/* The parameters of a depthwise convolution on the token grid.  x [B,N,C] -> y [B,N,C].  The mathematics and the shape
 * are those of depthwise_forward (kernels/convolution.h). */
#ifndef VIT_LAYERS_DEPTHWISE_H
#define VIT_LAYERS_DEPTHWISE_H

#include <stdio.h>

#include "core/params.h"
#include "kernels/kernels.h"

typedef struct {
    Depthwise shape;
    float *w, *dw; /* [period,1,k,k] */
    float *b, *db; /* [period], NULL without bias */
} DepthwiseLayer;

/* Declares prefix + name + ".weight" and, if `bias`, ".bias"; initialised uniformly in [-1/k, 1/k), as PyTorch's Conv2d
 * is. */
static inline void depthwise_declare(DepthwiseLayer *l, Params *params, const char *prefix, const char *name,
                                     Depthwise shape, bool bias) {
    char tensor[PARAM_NAME_SIZE];
    int k = shape.k, fan = k * k;
    l->shape = shape;
    snprintf(tensor, sizeof tensor, "%s.weight", name);
    params_declare_fan(params, &l->w, &l->dw, prefix, tensor, fan, true, 4, (int[]){shape.period, 1, k, k});
    snprintf(tensor, sizeof tensor, "%s.bias", name);
    if (bias) params_declare_fan(params, &l->b, &l->db, prefix, tensor, fan, false, 1, (int[]){shape.period});
}

/* Multiply-adds of one image. */
static inline size_t depthwise_macs(const Depthwise *s) {
    return (size_t)grid_tokens(s->grid) * (size_t)s->C * (size_t)(s->k * s->k);
}

#endif
