/* The tokenizer of compact transformers (Hassani et al. 2021): convolutions, each with a ReLU and a max pool, and the
 * features of the last one are the tokens.  images [B,3,Hi,Wi], or channels last, -> tokens [B,N,M] */
#ifndef VIT_LAYERS_VIT_TOKENIZER_H
#define VIT_LAYERS_VIT_TOKENIZER_H

#include <stdint.h>

#include "core/config/config.h"
#include "layers/pyramid/conv_layer.h"
#include "training/plan.h"

enum { TOKENIZER_CONVS = 4 };

/* Settings that count with stem conv. */
typedef struct {
    int tokenizer_convs, tokenizer_kernel;
    int tokenizer_width; /* channels of all convolutions but the last, which has the tokens' width */
} TokenizerSettings;
extern const ConfigGroup tokenizer_settings;

/* A convolution, and the maximum of its ReLU over 3 x 3 windows that lie 2 apart. */
typedef struct {
    ConvLayer conv;
    int H, W;    /* of its input */
    real *y;     /* [B,H',W',out] kept: the next layer's input; of the last layer the tokens, which the caller has */
    uint8_t *at; /* the same shape, kept: the positions of the maxima */
} TokenizerLayer;

typedef struct {
    TokenizerSettings settings;
    bool planes; /* images are [B,3,Hi,Wi] */
    TokenizerLayer layers[TOKENIZER_CONVS];
    ConvLayers convs; /* the model allocates their memory, and folds them before a forward pass */
    real *pixels;     /* [B,Hi,Wi,3] kept: the images, channels last; unused if they are that already */
    real *h, *dh;     /* scratch: a convolution's output and its gradient */
    real *dy;         /* scratch: the gradient of a layer's output, except the last one's */
} Tokenizer;

/* Rejects, with config_reject, impossible settings. */
void tokenizer_check(const Config *config);
/* The side of the token grid for a side of the image. */
int tokenizer_side(const TokenizerSettings *settings, int side);

/* way: of its convolutions (conv_layers_way). */
void tokenizer_create(Tokenizer *t, const TokenizerSettings *settings, int way, int Hi, int Wi, bool planes);
/* Declares prefix + "0.0.weight" and so on, the authors' names behind "tokenizer.conv_layers.". */
void tokenizer_declare(Tokenizer *t, Params *params, const char *prefix, int M);
void tokenizer_plan(Tokenizer *t, Plan *plan, const char *prefix, int B);
/* If the images are channels last, the caller keeps them until the backward pass. */
void tokenizer_forward(const Tokenizer *t, real *tokens, const real *images, int B);
/* Parameters (+=); images have no gradient. */
void tokenizer_backward(const Tokenizer *t, const real *dtokens, const real *images, int B);
size_t tokenizer_macs(const Tokenizer *t);
void tokenizer_destroy(Tokenizer *t);

#endif
