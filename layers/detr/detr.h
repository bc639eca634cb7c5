/* SMCA-DETR (Gao et al. 2021) with a single scale: a detector that consists of a ResNet, a transformer encoder over the
 * ResNet's last feature map (C5), and a decoder with object queries.  Parameters have the names of the published code.
 *
 * Letters: B images padded to Hi x Wi; h x w the grid of C5, N = h*w; L decoder layers; Q queries; C class logits. */
#ifndef VIT_LAYERS_DETR_DETR_H
#define VIT_LAYERS_DETR_DETR_H

#include <stdint.h>
#include <stdio.h>

#include "layers/detr/detr_decoder.h"
#include "layers/detr/detr_encoder.h"
#include "layers/detr/detr_heads.h"
#include "layers/backbone/resnet.h"
#include "layers/model.h"

typedef enum { SCALE_TYPE1, SCALE_TYPE2, SCALE_TYPE3, SCALE_TYPE4 } DynamicScale;

/* The settings of the model. */
typedef struct {
    const AttentionOp *attn;    /* of the encoder */
    ConfigInts backbone_blocks; /* of the ResNet's four stages */
    int backbone_width;
    bool freeze_backbone;
    int dim, ffn, encoder_layers, decoder_layers, heads, queries, num_classes;
    DynamicScale dynamic_scale; /* of the spatial modulation (kernels/softmax/masked_attention.h) */
    float dropout;              /* rate in encoder and decoder, in training */
    bool share_heads;
} DetrSettings;
extern const ConfigGroup detr_settings;

/* Adds detr_settings and the settings of the operators that an encoder supports. */
DetrSettings *detr_add_settings(Config *config);
/* Marks the settings of the chosen operator as used.  Must be called before config_settle, which checks the settings in
 * use. */
void detr_use_settings(Config *config);

typedef struct {
    DetrSettings settings;
    int channels; /* of the features */
    int columns;  /* class logits of a query: num_classes + 1, as in DETR, although no label uses the last one */
    Model model;
    size_t backbone_floats; /* the parameters of the backbone are the first backbone_floats of the arena */

    ResNet backbone;
    Projection neck; /* input_proj */
    DetrEncoder encoder;
    DetrDecoder decoder;
    DetrHeads heads;

    int most_h, most_w; /* largest padded height and width that the plans have room for */
    int B, H, W;        /* the current batch: images, and their padded height and width */
    Grid grid;          /* of C5, for that batch */
    Dropout dropout;    /* of this step, without rate and site */

    uint8_t *pixels;  /* [B,Hi,Wi,3] */
    int *sizes;       /* [B,2] height and width of each image without padding */
    int *cells;       /* [B,2] rows and columns of the grid without padding */
    int *cells_host;  /* host [B,2] */
    real *images;     /* [B,Hi,Wi,3] normalised */
    real *features;   /* [B,N,channels] C5 */
    real *x;          /* [B,N,M] input of the encoder */
    real *pos;        /* [B,N,M] sine position embedding */
    const real *encoded; /* [B,N,M] output of the encoder */
    real *dx;         /* [B,N,M] scratch */
    real *dfeatures;  /* [B,N,channels] scratch */
} Detr;

/* The prefix of the backbone's tensors. */
extern const char detr_backbone_prefix[];

/* Declares every parameter; allocates no device memory yet.  The settings must be complete (num_classes included) and
 * checked, and the config must outlive the model.  channels > 0: there is no backbone, and the caller writes features
 * with this many channels. */
void detr_create(Detr *detr, const Config *config, int channels);

/* Plans activations for up to B images padded to at most H x W, or W x H; training also plans the backward pass. */
void detr_plan(Detr *detr, int B, int H, int W, bool training);

/* Allocates what was planned, on the device and on the host.  Under the training plan a forward pass applies dropout,
 * gives predictions of all L layers, and can be followed by a backward pass; under the inference plan it gives the last
 * layer's predictions. */
void detr_allocate(Detr *detr);

/* Folds the backbone's batch norms into its weights (resnet_fold).  Must be called whenever the weights have changed:
 * after they were read or initialised, after every optimizer step, and after params_view. */
void detr_fold(Detr *detr);

/* Loads the next batch: host pixels [B,H,W,3], with any values in the padding, and host sizes [B,2], the height and
 * width of each image.  H and W may change from batch to batch.  The pixels must come from host_malloc: on a GPU they
 * are copied while earlier calls run, and must not be written to before device_uploads_wait has returned. */
void detr_load(Detr *detr, const uint8_t *pixels, const int *sizes, const float *mean, const float *std, int B, int H,
               int W);

/* Loads the sizes for a model without backbone, whose features [B,N,channels] the caller writes. */
void detr_load_sizes(Detr *detr, const int *sizes, int B, int H, int W);

/* Sets the dropout of this step for images first .. first+B-1 of the global batch.  Must be called before a training
 * forward pass.  The result does not depend on how images are distributed over micro-batches and ranks. */
void detr_draw(Detr *detr, uint64_t seed, uint32_t step, size_t first);

/* The forward pass of the current batch, from its pixels or from its features. */
void detr_forward(Detr *detr);
void detr_forward_features(Detr *detr);

/* How many decoder layers give predictions: L under the training plan, 1 (the last) under the inference plan. */
int detr_predicted_layers(const Detr *detr);

/* Copies the predictions to host logits [layers,B,Q,C] and boxes [layers,B,Q,4]: centre x, centre y, width and height
 * as fractions of the image without padding. */
void detr_predictions(const Detr *detr, float *logits, float *boxes);

/* Loads the host gradients of the loss by the predictions, in the same shapes, as set_loss gives them. */
void detr_load_gradients(Detr *detr, const float *dlogits, const float *dboxes);

/* The backward pass, from the loaded gradients to every parameter's (+=).  Requires a detr_forward of the same batch
 * under the training plan.  `final` is called with ranges of gradients that are complete (final_gradients.h); NULL if
 * more micro-batches of the step follow. */
void detr_backward(Detr *detr, GradientsListener final);
void detr_backward_features(Detr *detr, GradientsListener final);

/* Multiply-adds of one image's forward pass: convolutions, linear layers, attention. */
size_t detr_macs(Detr *detr, int H, int W);

/* Multiply-adds of one image's forward and backward pass, without gradients that frozen parameters do not need. */
size_t detr_training_macs(Detr *detr, int H, int W);

/* Calls `part` for each of the model's parts, with its multiply-adds for an image of H x W. */
void detr_parts(Detr *detr, int H, int W, ModelPart part, void *context);

/* Prints a table of the model's parts with their parameters and multiply-adds for an image of H x W, and then lines
 * `key: value` that a program can read. */
void detr_describe(Detr *detr, FILE *out, int H, int W);

void detr_destroy(Detr *detr);

#endif
