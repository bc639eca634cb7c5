/* The block of Semantic FPN's head (Kirillov et al. 2019; mmsegmentation's ConvModule): a convolution 3 x 3 without bias,
 * a norm, a ReLU.  Images are channels last and may change their size from call to call. */
#ifndef VIT_LAYERS_SEMANTIC_FPN_CONV_NORM_H
#define VIT_LAYERS_SEMANTIC_FPN_CONV_NORM_H

#include "layers/pyramid/conv_layer.h"

/* Batch norm, with statistics over the images computed at a time on all ranks; group norm, for each image alone. */
typedef enum { SEG_NORM_BN, SEG_NORM_GN } SegNorm;

enum { SEG_NORM_GROUPS = 32 };

typedef struct {
    ConvLayer conv;
    SegNorm norm;
    float *w, *dw, *b, *db;            /* [C] of the norm */
    float *running_mean, *running_var; /* [C] of a batch norm */
    float *mean, *rstd;                /* [C] or [B,groups] kept */
    real *z;                           /* [B,H,W,C] the convolution's result: kept in training */
} ConvNorm;

/* Declares prefix + "conv.weight" and, for a batch norm, prefix + "bn.weight", "bn.bias", "bn.running_mean" and
 * "bn.running_var", or "gn.weight" and "gn.bias". */
void conv_norm_declare(ConvNorm *block, ConvLayers *convs, Params *params, const char *prefix, int in, int out,
                       SegNorm norm);

/* Plans the kept tensors and the workspace for up to `images` of that size.  In inference the caller plans the slot of
 * z. */
void conv_norm_plan(ConvNorm *block, Plan *plan, const char *prefix, const ImageShape *images);

/* x [B,H,W,in] -> y [B,H,W,out].  In inference y may be block->z. */
void conv_norm_forward(const ConvNorm *block, real *y, const real *x, bool training, const ImageShape *images);
/* dy -> dx (=), or NULL where no layer before this one is trained;  parameters (+=).  Overwrites dy. */
void conv_norm_backward(const ConvNorm *block, real *dx, real *dy, const real *x, const ImageShape *images);

#endif
