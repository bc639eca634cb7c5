/* SMCA-DETR (Gao et al. 2021), single scale: a detector that is a ResNet, a transformer encoder over its last grid and
 * a decoder whose queries are objects.  All parameters live in one arena under the published names, all activations in
 * one plan.
 *
 * Letters: B images padded to Hi x Wi, h x w the grid of C5, N = h*w; L decoder layers, Q queries,
 * C columns (classes). */
#ifndef VIT_LAYERS_DETR_H
#define VIT_LAYERS_DETR_H

#include <stdint.h>
#include <stdio.h>

#include "layers/detr_decoder.h"
#include "layers/detr_encoder.h"
#include "layers/resnet.h"

typedef struct {
    int dim, ffn; /* M, and the inner width of a feed-forward layer */
    int encoder_layers, decoder_layers, queries, columns;
    int scale_type; /* of the modulation, 1 to 4: kernels/masked_attention.h */
    float dropout;  /* in encoder and decoder, in training */
    AttentionConfig attention; /* the encoder's; `heads` counts in the decoder too */
    ResNetConfig backbone;     /* width 0: none, and whoever calls writes the features */
    int channels;              /* of the features, where there is no backbone */
} DetrConfig;

typedef struct {
    DetrConfig config;
    Params params;
    size_t backbone_floats; /* the arena's first so many are the backbone's: AdamW's second group */

    ResNet backbone;
    Projection neck; /* input_proj */
    DetrEncoder encoder;
    DetrDecoder decoder;
    DetrHeads heads;

    Plan training, inference; /* over the same memory */
    Plan *plan;               /* the one in force */
    void *memory;
    int most, most_h, most_w; /* images and their sides that the plans have room for */

    int B, H, W;       /* the batch in hand */
    Grid grid;         /* C5's, of that batch */
    Dropout dropout;   /* this step's, but for rate and site */

    uint8_t *pixels;  /* [B,Hi,Wi,3] */
    int *sizes;       /* [B,2] own height and width */
    int *cells;       /* [B,2] rows and columns of the grid that are no padding */
    int *cells_host;  /* host [B,2] */
    real *images;     /* [B,Hi,Wi,3] normalised */
    real *features;   /* [B,N,channels] C5 */
    real *x;          /* [B,N,M] what the encoder reads */
    real *pos;        /* [B,N,M] sine positions */
    const real *encoded; /* [B,N,M] what the encoder gave */
    real *dx;         /* [B,N,M] scratch */
    real *dfeatures;  /* [B,N,channels] scratch */
} Detr;

/* Checks the settings (die_usage) and declares every parameter; nothing is allocated on the device yet. */
void detr_create(Detr *detr, const DetrConfig *config);

/* Plans activations for up to B images padded to at most H x W, or W x H; training also plans the backward pass. */
void detr_plan(Detr *detr, int B, int H, int W, bool training);

/* Allocates what was planned, and makes the training plan, or without one the inference plan, the one in force. */
void detr_allocate(Detr *detr);

/* Chooses the plan in force.  Training: dropout, all L layers' predictions, a backward pass.  Inference: the last
 * layer's. */
void detr_set_training(Detr *detr, bool training);

/* Takes over the weights: after params_allocate and a file or params_initialize, after every optimizer step, after
 * params_view. */
void detr_fold(Detr *detr);

/* The next batch: host pixels [B,H,W,3], anything beyond an image's own size, and host sizes [B,2], own height and
 * width. H and W may change from batch to batch. */
void detr_load(Detr *detr, const uint8_t *pixels, const int *sizes, const float *mean, const float *std, int B, int H,
               int W);

/* The same without pixels, where whoever calls writes the features [B,N,channels]. */
void detr_load_sizes(Detr *detr, const int *sizes, int B, int H, int W);

/* Draws the dropout of this step for images first .. first+B-1 of the global batch; before a training forward pass.
 * What is dropped does not depend on how images are dealt out to micro-batches and ranks. */
void detr_draw(Detr *detr, uint64_t seed, uint32_t step, size_t first);

/* The batch in hand -> predictions; or from the features on. */
void detr_forward(Detr *detr);
void detr_forward_features(Detr *detr);

/* L under the training plan, 1 (the last) under the inference plan. */
int detr_predicted_layers(const Detr *detr);

/* Host logits [layers,B,Q,C] and boxes [layers,B,Q,4]: cx, cy, w, h relative to the image's own size. */
void detr_predictions(const Detr *detr, float *logits, float *boxes);

/* Host gradients of the loss with respect to them, as set_loss gives them.  Scale them here for micro-batches. */
void detr_load_gradients(Detr *detr, const float *dlogits, const float *dboxes);

/* The loaded gradients -> every parameter's (+=).  After detr_forward under the training plan.
 * `final` hears of gradients [n] that this pass will not touch again, the last layers' first; NULL when more
 * micro-batches follow. */
void detr_backward(Detr *detr, void (*final)(float *gradients, size_t n));
void detr_backward_features(Detr *detr, void (*final)(float *gradients, size_t n));

/* Multiply-adds of one image's forward pass: convolutions, linear layers, attention. */
size_t detr_macs(Detr *detr, int H, int W);

/* And of its forward and backward pass: nothing for the gradients of what is frozen. */
size_t detr_training_macs(Detr *detr, int H, int W);

/* Bytes of activations, scratch and workspace. */
size_t detr_activation_bytes(const Detr *detr);

/* A table of parts with parameters and multiply-adds of an image of H x W, and three lines for programs. */
void detr_describe(Detr *detr, FILE *out, int H, int W);

void detr_destroy(Detr *detr);

#endif
