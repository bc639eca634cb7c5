/* A convolution with a bias and, if wanted, a ReLU: y = relu?(conv(x, W) + b).  Images are channels last and may change
 * their size from call to call.  A ConvLayers has all convolutions of a model and their weights in the layout of the
 * kernels, which conv_layers_fold updates at the beginning of a forward pass. */
#ifndef VIT_LAYERS_PYRAMID_CONV_LAYER_H
#define VIT_LAYERS_PYRAMID_CONV_LAYER_H

#include "layers/model.h"
#include "kernels/kernels.h"
#include "training/program.h"

typedef struct {
    Convolution shape;
    bool relu;
    float *w, *dw; /* [out,in,k,k] */
    float *b, *db; /* [out], NULL without bias */
    void *folded;
    const float *scale, *shift; /* [out] of the folded convolution: ones, and the bias or zeros */
} ConvLayer;

enum { CONV_LAYERS = 64 };

typedef struct {
    ConvLayer *layers[CONV_LAYERS];
    int count;
    int way;            /* of all convolutions (Convolution), set before the first is declared */
    bool trained;       /* room for the backward pass as well */
    void *memory;       /* NULL before conv_layers_allocate */
    float *ones, *zeros; /* [largest number of outputs] */
    unsigned turn;      /* value of model.turn when the weights were folded */
} ConvLayers;

/* The `way` of all convolutions of a model: CONVOLUTION_QUICK, but not with --parity, which compares with other
 * frameworks, whose sums are more exact.  modes: NULL for a model outside of a program. */
static inline int conv_layers_way(const ModeSettings *modes) {
    return modes && *modes->parity ? CONVOLUTION_CENTRED : CONVOLUTION_QUICK;
}

/* The initial weights; biases are initialised to zero. */
typedef enum {
    CONV_XAVIER,  /* uniform within sqrt(6 / (k k (in + out))) */
    CONV_KAIMING, /* normal with the variance 2 / (k k out): fan out */
    CONV_KAIMING_IN, /* normal with the variance 2 / (k k in) */
    CONV_NORMAL   /* normal with the deviation 0.01 */
} ConvInit;

typedef struct {
    const char *prefix, *name; /* the tensors are prefix + name + ".weight" and ".bias" */
    Convolution shape;
    bool bias, relu;
    ConvInit init;
} ConvConfig;

/* Declares the tensors and joins the layer to `all`, which keeps its address. */
void conv_layer_declare(ConvLayer *layer, ConvLayers *all, Params *params, const ConvConfig *config);

/* Allocates the memory of the folded weights, once the model's plans and all layers are there. */
void conv_layers_allocate(ConvLayers *all, const Model *model);
/* Folds the weights of all layers, if they have changed since the last call (Model.turn). */
void conv_layers_fold(ConvLayers *all, const Model *model);
void conv_layers_free(ConvLayers *all);

/* The workspace for up to `images` of that size. */
void conv_layer_plan(const ConvLayer *layer, Plan *plan, const ImageShape *images);

/* x [B,Hi,Wi,in] -> y [B,Ho,Wo,out]. */
void conv_layer_forward(const ConvLayer *layer, real *y, const real *x, const ImageShape *images);
/* dy [B,Ho,Wo,out] is the gradient of the convolution's sum: for a layer with a ReLU, relu_gradient, or the layer above
 * with its `below`, computes it from the gradient of y.  dw, db (+=). dx (=) add + conv^T dy, where `below` is
 * positive; add may be dx, or NULL; below: x if that is the output of a ReLU, else NULL; dx NULL: no layer before this
 * one is trained.  With a stride of more than 1, `add` is NULL. */
void conv_layer_backward(const ConvLayer *layer, real *dx, const real *add, const real *dy, const real *x,
                         const real *below, const ImageShape *images);

/* Multiply-adds of one image of H x W. */
size_t conv_layer_macs(const ConvLayer *layer, int H, int W);

#endif
