/* A ResNet of bottlenecks (He et al. 2015; as in torchvision's v1.5, the 3x3 convolution has the stride) with frozen
 * batch norms, the backbone of detectors.  images [B,H,W,3] -> C2 to C5, the outputs of its four stages: C_i is
 * [B,h*w,C] with h = ceil(H/2^i), w = ceil(W/2^i), C = 2^i*width, channels last, so that they are tokens.  conv1 and
 * layer1 are never trained, as in DETR and in torchvision's detectors. */
#ifndef VIT_LAYERS_BACKBONE_RESNET_H
#define VIT_LAYERS_BACKBONE_RESNET_H

#include "training/params.h"
#include "training/plan.h"
#include "kernels/kernels.h"
#include "layers/final_gradients.h"

enum { RESNET_STAGES = 4 };

typedef struct {
    int blocks[RESNET_STAGES]; /* ResNet-50: 3, 4, 6, 3 */
    int width;                 /* output channels of conv1 (64); the stages' bottlenecks have 1, 2, 4, 8 times that */
    int trained;               /* number of trained stages, 0 to 3, counted from the last; layer1 is never trained */
    bool pyramid;              /* all four outputs are wanted; false: only the last one */
    int way;                   /* of all convolutions (Convolution): CONVOLUTION_CENTRED or CONVOLUTION_QUICK */
    const char *prefix;        /* of all tensor names, followed by torchvision's name: "backbone.0.body." */
} ResNetConfig;

/* y = relu?(s conv(x, W) + t [+ add]), s = weight / sqrt(running_var + 1e-5), t = bias - running_mean s. */
typedef struct {
    Convolution shape;
    int halvings; /* its input has the image's height and width divided by 2^halvings */
    bool trained;
    float *w, *dw;                                   /* [out,in,k,k];  dw NULL if not trained */
    float *bn_w, *bn_b, *running_mean, *running_var; /* [out] */
    float *scale, *shift;                            /* [out] s and t, computed by resnet_fold */
    void *folded;                                    /* s W, computed by resnet_fold (convolution_fold) */
} ResNetConv;

/* y = relu(conv3(h2) + x or downsample(x)), h2 = relu(conv2(h1)), h1 = relu(conv1(x)). */
typedef struct {
    ResNetConv conv1, conv2, conv3, downsample;
    bool downsampled;  /* the first block of a stage */
    real *h1, *h2, *y; /* kept for the backward pass if the stage is trained, otherwise shared by the stage's blocks */
} Bottleneck;

typedef struct {
    ResNetConfig config;
    ResNetConv conv1;
    Bottleneck *blocks[RESNET_STAGES];
    ResNetConv **convs; /* all of them, in the order of their tensors: [conv_count] */
    int conv_count;
    size_t first[RESNET_STAGES];     /* index of each stage's first parameter in the arena */
    void *memory;                    /* holds scale, shift and folded of all convolutions */
    size_t room[RESNET_STAGES + 1];  /* planned number of positions in the output of conv1 and of each stage */
    real *features[RESNET_STAGES];   /* C2 to C5; without `pyramid` only the last one can be read */
    real *stem, *pooled;             /* [B,H/2,W/2,width], [B,H/4,W/4,width]: conv1's output, and after the max pool */
    real *dy[RESNET_STAGES];         /* scratch: gradients of the outputs of all stages but the last */
    real *dh1, *dh2;                 /* scratch: gradients of h1 and h2 before their ReLU */
} ResNet;

/* Declares every tensor, with torchvision's names after config->prefix.  Frozen tensors are buffers of the arena.
 * Weights that are not read from a file are initialised as in torchvision (Kaiming normal, fan out) and batch norms as
 * the identity, except that the last one of each block has the weight 1/sqrt(blocks): frozen batch norms do not
 * normalise the growing sum of the residual branches. */
void resnet_create(ResNet *net, const ResNetConfig *config, Params *params);

/* Plans activations for up to B images of up to H x W or W x H.  A training plan includes the backward pass, unless the
 * whole backbone is frozen.  Features live as long as the plan's kept tensors. */
void resnet_plan(ResNet *net, Plan *plan, int B, int H, int W);
/* Sets the sizes of the current plan if another was made later. */
void resnet_set_room(ResNet *net, int B, int H, int W);
/* True if the plan has room for this batch. */
bool resnet_fits(const ResNet *net, int B, int H, int W);

/* Folds the batch norms into the weights.  Must be called whenever the weights have changed: after they were read or
 * initialised, after every optimizer step (unless the whole backbone is frozen), and after params_view.  The first call
 * allocates memory. */
void resnet_fold(ResNet *net);

/* images [B,H,W,3] (images_normalize_padded) -> net->features. */
void resnet_forward(const ResNet *net, const real *images, int B, int H, int W);
/* dfeatures, the gradients of C2 to C5, -> dw (+=) of the trained stages.  All but the last may be NULL, for zero;
 * those of stages that are not trained are not read.  Requires a resnet_forward of the same batch under a training
 * plan.  Overwrites the last of dfeatures.  `final` may be NULL.  Does nothing if the whole backbone is frozen. */
void resnet_backward(const ResNet *net, real *const dfeatures[RESNET_STAGES], int B, int H, int W,
                     FinalGradients *final);

/* Channels of a stage's output, and rows or columns of the last one's grid. */
int resnet_channels(const ResNet *net, int stage);
static inline int resnet_grid(int side) { return (side + 31) / 32; }
/* Is a gradient of that stage's output used? */
bool resnet_is_trained(const ResNet *net, int stage);

/* Multiply-adds of one image's forward pass, and of its backward pass without what frozen weights do not need. */
size_t resnet_macs(const ResNet *net, int H, int W);
size_t resnet_backward_macs(const ResNet *net, int H, int W);

void resnet_destroy(ResNet *net);

#endif
