/* The parameters of a layer norm.  The mathematics is that of layernorm_forward and its variants (kernels/norm/norms.h). */
#ifndef VIT_LAYERS_LAYER_NORM_H
#define VIT_LAYERS_LAYER_NORM_H

#include <stdio.h>

#include "training/params.h"

typedef struct {
    float *w, *dw, *b, *db; /* [M] */
} NormPair;

/* The eps that is added to the variance in timm's vision transformers, and PyTorch's default. */
#define TIMM_NORM_EPS 1e-6f
#define PYTORCH_NORM_EPS 1e-5f

/* Declares prefix + name + ".weight" (ones) and ".bias" (zeros). */
static inline void layer_norm_declare(NormPair *norm, Params *params, const char *prefix, const char *name, int M,
                                      bool decay) {
    params_declare(params, (Param){.value = &norm->w, .grad = &norm->dw, .named = {prefix, name, ".weight"}, .init = INIT_ONES,
                                   .decay = decay, .shape = {M}});
    params_declare(params, (Param){.value = &norm->b, .grad = &norm->db, .named = {prefix, name, ".bias"}, .init = INIT_ZEROS,
                                   .decay = decay, .shape = {M}});
}

#endif
