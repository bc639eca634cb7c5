/* Semantic FPN (Kirillov et al. 2019, as in mmsegmentation): semantic segmentation by a backbone, a feature pyramid and
 * a head that sums its levels.  Parameters have mmsegmentation's names, the backbone's have those of its classifier
 * after "backbone.".
 *
 * Letters: B images of H x W, multiples of 32; K classes; logits at stride 4. */
#ifndef VIT_LAYERS_SEMANTIC_FPN_SEMANTIC_FPN_H
#define VIT_LAYERS_SEMANTIC_FPN_SEMANTIC_FPN_H

#include <stdint.h>
#include <stdio.h>

#include "layers/backbone/backbone.h"
#include "layers/model.h"
#include "layers/pyramid/fpn.h"
#include "layers/semantic_fpn/semantic_head.h"

/* The settings of the model besides the backbone's. */
typedef struct {
    int fpn_dim, head_dim, num_classes;
    SegNorm seg_norm;
    float head_dropout;
} SemanticFpnSettings;
extern const ConfigGroup semantic_fpn_settings;

/* One adds semantic_fpn_settings and those of the backbones; the other marks those in use, before config_settle. */
SemanticFpnSettings *semantic_fpn_add_settings(Config *config);
void semantic_fpn_use_settings(Config *config);

/* The sizes of a plan: B images of H x W or W x H, whose labels have label_H x label_W or label_W x label_H pixels.
 * Evaluation has the labels of one image at a time. */
typedef struct {
    int B, H, W, label_H, label_W;
} SemanticRoom;

typedef struct {
    SemanticFpnSettings settings;
    Model model;
    Backbone backbone;
    ConvLayers convs;
    Fpn fpn;
    SemanticHead head;
    size_t backbone_floats; /* the backbone's parameters are the first of the arena */

    SemanticRoom room[2];          /* of the plan of inference, and of training */
    int B, H, W, label_H, label_W; /* the current batch */
    Dropout dropout;               /* of this step */
    uint8_t *labels;               /* [B,label_H,label_W]: a class, or 255: no label */
    float *loss;                   /* [B] */
    real *dfeatures[FPN_FEATURES]; /* NULL where the backbone needs none */
} SemanticFpn;

extern const char semantic_fpn_backbone_prefix[];

/* Declares every parameter; allocates no device memory yet.  num_classes must be set, and the config must outlive the
 * model.  `way` is that of all convolutions: CONVOLUTION_CENTRED or CONVOLUTION_QUICK. */
void semantic_fpn_create(SemanticFpn *net, const Config *config, int way);

/* Plans activations for inference and, unless that is NULL, for training. */
void semantic_fpn_plan(SemanticFpn *net, const SemanticRoom *inference, const SemanticRoom *training);
/* Allocates what was planned; the current plan is then the training plan, or if there is none the inference plan. */
void semantic_fpn_allocate(SemanticFpn *net);
/* Like model_set_training, model_evaluation_begin and model_evaluation_end, and fold the weights again. */
void semantic_fpn_set_training(SemanticFpn *net, bool training);
void semantic_fpn_evaluation_begin(SemanticFpn *net);
void semantic_fpn_evaluation_end(SemanticFpn *net);

/* Must be called whenever the weights have changed (backbone_fold). */
void semantic_fpn_fold(SemanticFpn *net);

/* Loads the next batch: images as backbone_load does, and host labels [B,label_H,label_W] for the loss. */
void semantic_fpn_load(SemanticFpn *net, const uint8_t *pixels, const int *sizes, const float *mean, const float *std,
                       int B, int H, int W);
void semantic_fpn_load_labels(SemanticFpn *net, const uint8_t *labels, int label_H, int label_W);

/* Sets the random numbers of this step for images first .. first+B-1 of the global batch: dropout, drop path.  Must be
 * called before a training forward pass. */
void semantic_fpn_draw(SemanticFpn *net, uint64_t seed, uint32_t step, size_t first);

/* The loaded images -> head.logits [B,H/4,W/4,K].  Under the training plan there is dropout, norms use the statistics
 * of the batch, and a backward pass can follow. */
void semantic_fpn_forward(SemanticFpn *net);

/* loss[b], the mean over the pixels of image b, which counts pixels without a label too (mmsegmentation's default), and
 * under the training plan dlogits, `scale` times its gradient: 1 / global batch for the mean loss's. */
void semantic_fpn_loss(SemanticFpn *net, float scale);

/* From dlogits to every parameter's gradient (+=).  `final` as for vit_backward; NULL if more micro-batches follow. */
void semantic_fpn_backward(SemanticFpn *net, GradientsListener final);

/* Multiply-adds of one image's forward pass, and of both passes without gradients that frozen weights do not need. */
size_t semantic_fpn_macs(SemanticFpn *net, int H, int W);
size_t semantic_fpn_training_macs(SemanticFpn *net, int H, int W);

/* Calls `part` for each of the model's parts, with its multiply-adds for an image of H x W. */
void semantic_fpn_parts(SemanticFpn *net, int H, int W, ModelPart part, void *context);

/* Prints a table of the model's parts for an image of H x W, and lines `key: value` that a program can read. */
void semantic_fpn_describe(SemanticFpn *net, FILE *out, int H, int W);

void semantic_fpn_destroy(SemanticFpn *net);

#endif
