/* Depthwise convolution on the token grid as a pair of declared tensors.  x [B,N,C] -> y [B,N,C]
 * The kernel's contract (depthwise_forward) has the mathematics and the meaning of the shape. */
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

/* Declares prefix + name + ".weight" and, if asked for, ".bias", uniform within 1/k as PyTorch's Conv2d. */
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
