/* The detector's backbone: a ResNet of bottlenecks (He et al. 2015, torchvision's v1.5: the 3x3 convolution carries the
 * stride) with frozen batch norms.  images [B,H,W,3] -> features [B,h*w,C], h = ceil(H/32), w = ceil(W/32),
 * C = 32*width: channels last, so that features are tokens.  conv1 and layer1 are never trained,
 * and no gradient goes below layer2. */
#ifndef VIT_LAYERS_RESNET_H
#define VIT_LAYERS_RESNET_H

#include "core/params.h"
#include "core/plan.h"
#include "kernels/kernels.h"
#include "layers/final_gradients.h"

enum { RESNET_STAGES = 4 };

typedef struct {
    int blocks[RESNET_STAGES]; /* ResNet-50: 3, 4, 6, 3 */
    int width;                 /* channels of conv1, 64; the stages' bottlenecks have 1, 2, 4, 8 times that */
    bool freeze;               /* layers 2 to 4 are not trained either */
    const char *prefix;        /* "backbone.0.body.": what stands before torchvision's names */
} ResNetConfig;

/* y = relu?(s conv(x, W) + t [+ add]), s = weight / sqrt(running_var + 1e-5), t = bias - running_mean s. */
typedef struct {
    Convolution shape;
    int halvings; /* its input has 1/2^halvings of the image's height and width */
    bool trained;
    float *w, *dw;                                   /* [out,in,k,k];  dw NULL where frozen */
    float *bn_w, *bn_b, *running_mean, *running_var; /* [out] */
    float *scale, *shift;                            /* [out] s and t, as of the last resnet_fold: */
    void *folded;                                    /* s W as the kernels read it */
} ResNetConv;

/* y = relu(conv3(h2) + x or downsample(x)), h2 = relu(conv2(h1)), h1 = relu(conv1(x)). */
typedef struct {
    ResNetConv conv1, conv2, conv3, downsample;
    bool downsampled;  /* the first block of a stage */
    real *h1, *h2, *y; /* kept for the backward pass where the stage is trained, else the stage's blocks share them */
} Bottleneck;

typedef struct {
    ResNetConfig config;
    ResNetConv conv1;
    Bottleneck *blocks[RESNET_STAGES];
    ResNetConv **convs; /* all of them, in the order of their tensors: [conv_count] */
    int conv_count;
    size_t first[RESNET_STAGES];     /* where each stage's tensors begin in the parameter arena */
    void *memory;                    /* scale, shift and folded of all convolutions */
    size_t room[RESNET_STAGES + 1];  /* positions planned for: of conv1's output, and of each stage's */
    real *features;                  /* [B,h*w,C]: the last block's y */
    real *stem, *pooled;             /* [B,H/2,W/2,width], [B,H/4,W/4,width]: conv1's output, and after the max pool */
    real *dy[RESNET_STAGES];         /* scratch: the gradients of the stages' outputs but the last's, */
    real *dh1, *dh2;                 /* and of h1 and h2 before their ReLU */
} ResNet;

/* Declares every tensor: torchvision's names below config->prefix, 53 weights and
 * 53 batch norms of four tensors in a ResNet-50.  What is frozen is a buffer of the arena.  Without a file the weights
 * start as torchvision's (Kaiming normal, fan out), batch norms as the identity but the last of each block, whose
 * weight is 1/sqrt(blocks): frozen ones do not hold back what a sum of so many branches grows to. */
void resnet_create(ResNet *net, const ResNetConfig *config, Params *params);

/* Plans activations for B images of H x W, and so of W x H and everything smaller; a training plan also plans the
 * backward pass unless the whole backbone is frozen. */
void resnet_plan(ResNet *net, Plan *plan, int B, int H, int W);
/* Is there room for this batch in what was planned? */
bool resnet_fits(const ResNet *net, int B, int H, int W);

/* Folds the batch norms into the weights: after params_allocate and a file or params_initialize, after every optimizer
 * step (unless all is frozen), and after params_view.  The first call allocates; call it before the first step. */
void resnet_fold(ResNet *net);

/* images [B,H,W,3] (images_normalize_padded) -> net->features [B,h*w,C]. */
void resnet_forward(const ResNet *net, const real *images, int B, int H, int W);
/* dfeatures -> dw (+=) of layers 2 to 4, after resnet_forward of the same batch under a training plan; overwrites
 * dfeatures.  `final` may be NULL.  Nothing to do where all is frozen. */
void resnet_backward(const ResNet *net, real *dfeatures, int B, int H, int W, FinalGradients *final);

/* Channels and grid of the features. */
int resnet_channels(const ResNet *net);
static inline int resnet_grid(int side) { return (side + 31) / 32; }

/* Multiply-adds of one image's forward pass, and of its backward pass: nothing for what is frozen. */
size_t resnet_macs(const ResNet *net, int H, int W);
size_t resnet_backward_macs(const ResNet *net, int H, int W);

void resnet_destroy(ResNet *net);

#endif
