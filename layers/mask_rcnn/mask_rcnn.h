/* Mask R-CNN (He et al. 2017) on a feature pyramid, with torchvision's names and shapes.  A forward pass has three
 * parts, because the host chooses the regions for the heads in between:
 *   mask_rcnn_forward        images -> backbone, pyramid, and the logits and deltas of all anchors
 *   mask_rcnn_forward_boxes  regions -> their class logits and deltas
 *   mask_rcnn_forward_masks  regions -> their 28 x 28 mask logits of every class
 *
 * Letters: B images padded to H x W, multiples of 32; R regions; K classes, of which 0 is the background. */
#ifndef VIT_LAYERS_MASK_RCNN_MASK_RCNN_H
#define VIT_LAYERS_MASK_RCNN_MASK_RCNN_H

#include "core/config/config.h"
#include "detection/regions/proposals.h"
#include "detection/regions/region_detections.h"
#include "detection/regions/sample.h"
#include "layers/backbone/backbone.h"
#include "layers/mask_rcnn/roi_heads.h"
#include "layers/mask_rcnn/rpn_head.h"

typedef struct {
    int num_classes; /* categories, without the background: 80 for COCO */
    int fpn_width, box_width, mask_width;
    float anchor_size, canonical_size;
    int anchor_sample, region_sample;
    int train_candidates, eval_candidates, proposals, detections;
} MaskRcnnSettings;
extern const ConfigGroup mask_rcnn_settings;

/* Boxes in pixels of the images of a batch, and the images and pyramid levels that their features come from. */
typedef struct {
    int count, room;
    float (*boxes)[4]; /* host [room] */
    int (*place)[2];   /* host [room]: image, level */
    float *device_boxes;
    int *device_place;
} Regions;

typedef struct {
    MaskRcnnSettings settings;
    int K;
    Model model;
    size_t backbone_floats; /* the parameters of the backbone are the first backbone_floats of the arena, */
    size_t pyramid_floats, rpn_floats; /* and those of the pyramid and of the RPN end here */
    ConvLayers convs;
    Backbone backbone;
    Fpn fpn;
    RpnHead rpn;
    BoxHead box;
    MaskHead mask;
    real *dfeatures[BACKBONE_LEVELS]; /* scratch */

    int B, H, W; /* the current batch */
    Anchors anchors;
    Regions regions, masks; /* of the box and of the mask head */

    /* Host memory: the outputs, and in training the gradients of the loss with respect to them, which the caller fills
     * in. */
    float *logits[FPN_LEVELS], *deltas[FPN_LEVELS];   /* [B,h_i,w_i,3] and [B,h_i,w_i,3,4] */
    float *dlogits[FPN_LEVELS], *ddeltas[FPN_LEVELS];
    float *class_logits, *class_deltas;               /* [R,K], [R,K,4] */
    float *dclass_logits, *dclass_deltas;
    float *mask_logits, *dmask_logits;                /* [R,28,28,K] */
} MaskRcnn;

/* The rules of mmdetection's Mask R-CNN, with the numbers in the settings. */
SampleRule mask_rcnn_anchor_rule(const MaskRcnn *m);
SampleRule mask_rcnn_region_rule(const MaskRcnn *m);
ProposalRule mask_rcnn_proposal_rule(const MaskRcnn *m, bool training);
RegionDetectionRule mask_rcnn_detection_rule(const MaskRcnn *m);

/* Declares every parameter; allocates no device memory yet.  num_classes must be set, and the config must outlive the
 * model.  `way` is that of all convolutions: CONVOLUTION_CENTRED or CONVOLUTION_QUICK. */
void mask_rcnn_create(MaskRcnn *m, const Config *config, int way);

/* Plans activations for up to B images padded to at most H x W, or W x H; training also plans the backward pass. */
void mask_rcnn_plan(MaskRcnn *m, int B, int H, int W, bool training);
void mask_rcnn_allocate(MaskRcnn *m);

/* Loads the next batch (backbone_load). */
void mask_rcnn_load(MaskRcnn *m, const uint8_t *pixels, const int *sizes, const float *mean, const float *std, int B,
                    int H, int W);

/* Must be called whenever the weights have changed (backbone_fold). */
void mask_rcnn_fold(MaskRcnn *m);

/* The current batch -> logits and deltas of all anchors, which are those of m->anchors.  m->regions and m->masks are
 * empty then. */
void mask_rcnn_forward(MaskRcnn *m);

/* The logits and deltas of image b's anchors, level by level, for proposals_find. */
void mask_rcnn_outputs_of(const MaskRcnn *m, int b, const float *logits[FPN_LEVELS], const float *deltas[FPN_LEVELS]);

/* Adds a region of that image; there must be room. */
void regions_add(MaskRcnn *m, Regions *regions, const float box[4], int image);

/* m->regions -> class_logits, class_deltas. */
void mask_rcnn_forward_boxes(MaskRcnn *m);
/* m->masks -> mask_logits. */
void mask_rcnn_forward_masks(MaskRcnn *m);

/* Sets all gradients on the host to 0, as they must be before a loss is added. */
void mask_rcnn_clear_gradients(MaskRcnn *m);
/* The host's gradients -> every parameter's (+=).  After the three forward passes under the training plan. */
void mask_rcnn_backward(MaskRcnn *m, GradientsListener final);

/* Multiply-adds of one image of H x W with this number of regions in each head, as mmdetection counts them. */
size_t mask_rcnn_macs(MaskRcnn *m, int H, int W, int proposals, int masks);
/* Multiply-adds of a forward and a backward pass in training. */
size_t mask_rcnn_training_macs(MaskRcnn *m, int H, int W);

/* Calls `part` for each of the model's parts, with its multiply-adds for an image of H x W. */
void mask_rcnn_parts(MaskRcnn *m, int H, int W, ModelPart part, void *context);

/* Prints a table of the parts with their parameters and multiply-adds for an image of H x W, and then lines
 * `key: value`. */
void mask_rcnn_describe(MaskRcnn *m, FILE *out, int H, int W);

void mask_rcnn_destroy(MaskRcnn *m);

#endif
