/* The stem of a hybrid (Dosovitskiy et al. 2021): the first stages of a ResNet, whose features become patches in place
 * of the image's pixels.  images [B,3,Hi,Wi] -> features [B,Hs*Ws,C], channels last, so that features are tokens.  It
 * is the ResNet of Big Transfer (Kolesnikov et al. 2020) without its pre-activation: standardised weights and group
 * norms, which do not mix images.  Names, shapes and padding are those of timm's ResNetV2. */
#ifndef VIT_LAYERS_VIT_HYBRID_STEM_H
#define VIT_LAYERS_VIT_HYBRID_STEM_H

#include <stdint.h>

#include "core/config/config.h"
#include "training/params.h"
#include "training/plan.h"
#include "kernels/kernels.h"
#include "layers/layer_norm.h"

enum { STEM_STAGES = 4, STEM_GROUPS = 32 };

/* Settings that count with stem hybrid. */
typedef struct {
    ConfigInts stem_blocks; /* blocks of each stage; a single 0: no stages */
    int stem_width;         /* channels of the first convolution; those of the stages are 4, 8, 16, 32 times that */
} StemSettings;
extern const ConfigGroup hybrid_stem_settings;

/* A convolution with standardised weights, and its group norm. */
typedef struct {
    Convolution shape;
    int H, W; /* of its input */
    float *w, *dw; /* [out,in,k,k] */
    NormPair norm; /* [out] */
    Standardized rows;
    void *folded;       /* the standardised weights (convolution_fold) */
    real *raw;          /* [B,Ho*Wo,out] kept: input of the norm */
    float *mean, *rstd; /* [B,STEM_GROUPS] kept */
} StemUnit;

/* y = relu(conv3(h2) + x or downsample(x)), h2 = relu(conv2(h1)), h1 = relu(conv1(x)), each with its norm. */
typedef struct {
    StemUnit conv1, conv2, conv3, downsample;
    bool downsampled;  /* the first block of a stage */
    real *h1, *h2, *y; /* kept */
} StemBlock;

typedef struct {
    StemSettings settings;
    int Hi, Wi;
    Grid grid;    /* of the features */
    int channels; /* of the features */
    StemUnit first;
    StemBlock *blocks[STEM_STAGES];
    int stages;
    StemUnit **units; /* all of them: [unit_count] */
    int unit_count;
    void *memory;           /* holds folded and rows of all units, ones and zeros */
    float *ones, *zeros;    /* [most output channels] scale and shift of convolutions that have none */
    real *pixels;           /* [B,Hi*Wi,3] kept: the images, channels last */
    real *h, *pooled;       /* scratch [B,Hi/2*Wi/2,width]: the first unit's output; kept: after the max pool */
    uint8_t *at;            /* kept: the positions of the maxima */
    real *features;         /* [B,Hs*Ws,channels]: pooled, or the last block's y */
    real *dfeatures;        /* scratch, for the caller to write before hybrid_stem_backward */
    float *weights, *slope; /* scratch of the largest unit's weights: standardised; their gradient */
    real *d3, *d2, *d1;     /* scratch: gradients of the three convolutions' outputs */
    real *dx[STEM_STAGES];  /* scratch: gradients of the stages' inputs */
    real *dh;               /* scratch, laid out like h */
} HybridStem;

/* Rejects, with config_reject, impossible settings. */
void hybrid_stem_check(const Config *config);
/* The side of the features for a side of the image, and the number of their channels. */
int hybrid_stem_side(const StemSettings *settings, int side);
int hybrid_stem_channels(const StemSettings *settings);

/* Declares every tensor, with timm's names after `prefix` ("patch_embed.backbone."). */
void hybrid_stem_declare(HybridStem *stem, const Config *config, Params *params, const char *prefix, int Hi, int Wi);
void hybrid_stem_plan(HybridStem *stem, Plan *plan, const char *prefix, int B);
/* Allocates what does not depend on the batch. */
void hybrid_stem_allocate(HybridStem *stem);

/* Must be called before a forward pass if the weights have changed since the last call. */
void hybrid_stem_standardize(const HybridStem *stem);
/* images [B,3,Hi,Wi] -> stem->features, which in inference must be read before anything else of the plan is written. */
void hybrid_stem_forward(const HybridStem *stem, const real *images, int B);
/* stem->dfeatures -> parameters (+=).  Overwrites dfeatures. */
void hybrid_stem_backward(const HybridStem *stem, int B);

size_t hybrid_stem_macs(const HybridStem *stem);
void hybrid_stem_destroy(HybridStem *stem);

#endif
