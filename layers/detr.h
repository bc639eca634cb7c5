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
#include "layers/detr_heads.h"
#include "layers/model.h"
#include "layers/resnet.h"

typedef enum { SCALE_TYPE1, SCALE_TYPE2, SCALE_TYPE3, SCALE_TYPE4 } DynamicScale;

/* What a user can say about the model. */
typedef struct {
    const AttentionOp *attn;    /* of the encoder; heads count in the decoder, too */
    ConfigInts backbone_blocks; /* of the ResNet's four stages */
    int backbone_width;
    bool freeze_backbone;
    int dim, ffn, encoder_layers, decoder_layers, heads, queries, num_classes;
    DynamicScale dynamic_scale; /* of the modulation: kernels.h, SpatialMap */
    float dropout;              /* in encoder and decoder, in training */
    bool share_heads;
} DetrSettings;
extern const ConfigGroup detr_settings;

/* Adds detr_settings and those of the operators that an encoder can have. */
DetrSettings *detr_add_settings(Config *config);
/* The chosen operator's settings count: before config_settle, which checks them all. */
void detr_use_settings(Config *config);

typedef struct {
    DetrSettings settings;
    int channels; /* of the features */
    int columns;  /* of the class logits: num_classes + 1 as in DETR, though no label has the last one */
    Model model;
    size_t backbone_floats; /* the arena's first so many are the backbone's: AdamW's second group */

    ResNet backbone;
    Projection neck; /* input_proj */
    DetrEncoder encoder;
    DetrDecoder decoder;
    DetrHeads heads;

    int most_h, most_w; /* sides of images that the plans have room for */
    int B, H, W;        /* the batch in hand */
    Grid grid;          /* C5's, of that batch */
    Dropout dropout;    /* this step's, but for rate and site */

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

/* The prefix of the backbone's tensors. */
extern const char detr_backbone_prefix[];

/* Declares every parameter; nothing is allocated on the device yet.  num_classes is known by now, and the settings have
 * been checked; the config outlives the model.  channels > 0: there is no backbone, and whoever calls writes features
 * of so many channels. */
void detr_create(Detr *detr, const Config *config, int channels);

/* Plans activations for up to B images padded to at most H x W, or W x H; training also plans the backward pass. */
void detr_plan(Detr *detr, int B, int H, int W, bool training);

/* Allocates what was planned: model_allocate, and what is on the host.  With the training plan in force there are
 * dropout, all L layers' predictions and a backward pass, with the inference plan the last layer's predictions. */
void detr_allocate(Detr *detr);

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
 * `final` hears of gradients that this pass will not touch again; NULL when more micro-batches follow. */
void detr_backward(Detr *detr, GradientsListener final);
void detr_backward_features(Detr *detr, GradientsListener final);

/* Multiply-adds of one image's forward pass: convolutions, linear layers, attention. */
size_t detr_macs(Detr *detr, int H, int W);

/* And of its forward and backward pass: nothing for the gradients of what is frozen. */
size_t detr_training_macs(Detr *detr, int H, int W);

/* A table of parts with parameters and multiply-adds of an image of H x W, and three lines for programs. */
void detr_describe(Detr *detr, FILE *out, int H, int W);

void detr_destroy(Detr *detr);

#endif
