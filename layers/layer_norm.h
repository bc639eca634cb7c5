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
    char tensor[PARAM_NAME_SIZE];
    snprintf(tensor, sizeof tensor, "%s.weight", name);
    params_declare(params, &norm->w, &norm->dw, prefix, tensor, INIT_ONES, decay, 1, (int[]){M});
    snprintf(tensor, sizeof tensor, "%s.bias", name);
    params_declare(params, &norm->b, &norm->db, prefix, tensor, INIT_ZEROS, decay, 1, (int[]){M});
}

#endif
