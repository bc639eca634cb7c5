/* The backbone of a model for dense prediction: images [B,H,W,3] -> four maps C2 to C5 at strides 4, 8, 16 and 32, C_i
 * [B,H/2^i,W/2^i,channels], channels last, so that they are tokens.  H and W are multiples of 32 and may change from
 * batch to batch. */
#ifndef VIT_LAYERS_BACKBONE_BACKBONE_H
#define VIT_LAYERS_BACKBONE_BACKBONE_H

#include <stdint.h>

#include "core/config/config.h"
#include "layers/backbone/hierarchy.h"
#include "layers/backbone/resnet.h"
#include "layers/model.h"
#include "training/program.h"

enum { BACKBONE_LEVELS = RESNET_STAGES, BACKBONE_STRIDE = 32 };

typedef enum { BACKBONE_RESNET, BACKBONE_HIERARCHY } BackboneKind;

typedef struct {
    BackboneKind backbone;
} BackboneKindSettings;
extern const ConfigGroup backbone_kind_settings;

/* Settings that count with backbone resnet. */
typedef struct {
    ConfigInts backbone_blocks; /* of the ResNet's four stages */
    int backbone_width, trainable_layers;
} ResNetSettings;
extern const ConfigGroup resnet_settings;

/* Adds the settings of all backbones (those of a hierarchy are in layers/backbone/hierarchy.h).
 * backbone_use_settings marks those of the chosen one as used and must be called before config_settle, which checks
 * the settings in use. */
void backbone_add_settings(Config *config);
void backbone_use_settings(Config *config);

typedef struct {
    BackboneKind kind;
    char prefix[PARAM_NAME_SIZE / 2]; /* of all tensor names: "backbone.body." */
    const Config *config;
    size_t begin; /* index of its first parameter in the arena */
    ResNet resnet;
    Trunk trunk; /* of a hierarchy */
    int most_B, most_H, most_W; /* the largest images of the plans: H and W may be exchanged */
    int B, H, W;                /* the current batch */
    const real *input;          /* its images */
    uint8_t *pixels;            /* [B,H,W,3] */
    int *sizes;                 /* device [B,2] height and width of each image without padding */
    real *images;               /* [B,H,W,3] normalised */
    real *features[BACKBONE_LEVELS]; /* C2 to C5: kept tensors of the plan, in inference too */
} Backbone;

/* Declares every tensor, with the classifier's name after `prefix` (at most 24 characters): torchvision's names of a
 * ResNet, timm's of a hierarchy, whose new norms are norm0 to norm3.  `way` is that of a ResNet's
 * convolutions.  The config must outlive the backbone. */
void backbone_create(Backbone *b, const Config *config, Params *params, const char *prefix, int way);

/* Plans activations, the loaded images among them, for up to B images of up to H x W or W x H.  A training plan
 * includes the backward pass. */
void backbone_plan(Backbone *b, Plan *plan, int B, int H, int W);
/* Sets the sizes that the current plan supports, where the plans of training and inference differ. */
void backbone_set_room(Backbone *b, int B, int H, int W);
/* True if the plan has room for this batch. */
bool backbone_fits(const Backbone *b, int B, int H, int W);

/* Must be called whenever the weights have changed: after they were read or initialised, after every optimizer step,
 * and after params_view.  The first call allocates memory. */
void backbone_fold(Backbone *b);

/* Fills b->images from host pixels [B,H,W,3], with any values in the padding, and host sizes [B,2], the height and
 * width of each image.  The pixels must come from host_malloc: on a GPU they are copied while earlier calls
 * run, and must not be written to before device_uploads_wait has returned. */
void backbone_load(Backbone *b, const uint8_t *pixels, const int *sizes, const float *mean, const float *std, int B,
                   int H, int W);

/* Draws, for images first .. first+B-1 of the global batch, the drop path of this step, and the random features that
 * all its micro-batches share, if the operators have any.  Must be called before a forward pass under the training
 * plan, and once for a model that was never trained. */
void backbone_draw(Backbone *b, uint64_t seed, uint32_t step, size_t first, int B);

/* images [B,H,W,3] -> b->features.  The images, normalised and 0 in the padding (images_normalize_padded), are
 * b->images or the caller's, who keeps them until backward.  Under a training plan there is drop path. */
void backbone_forward(Backbone *b, const real *images, int B, int H, int W);
/* From the gradients of C2 to C5 computes those of the parameters (+=), for the last backbone_forward, under the
 * training plan. Overwrites dfeatures.  Those of levels that are not trained (backbone_is_trained) may be NULL. */
void backbone_backward(Backbone *b, real *const dfeatures[BACKBONE_LEVELS], FinalGradients *final);

/* Channels of C2 to C5 by level 0 to 3, and the rows or columns of their grids for a side of the image. */
int backbone_channels(const Backbone *b, int level);
static inline int backbone_side(int side, int level) { return side >> (level + 2); }
/* Is the gradient of that level used?  If not, it need not be computed. */
bool backbone_is_trained(const Backbone *b, int level);

/* Sets the factor of the learning rate of every parameter: `rate`, and of a hierarchy with layer_decay the factors
 * of the classifier's groups (layers/vit/layer_decay.h), where the last group's stands for the rest of the model. */
void backbone_set_rates(const Backbone *b, Params *params, float rate, float layer_decay);

/* Multiply-adds of one image's forward pass, and of its backward pass without what frozen weights do not need. */
size_t backbone_macs(Backbone *b, int H, int W);
size_t backbone_backward_macs(Backbone *b, int H, int W);
/* The number of weights as papers count it: with frozen weights, without the statistics of frozen batch norms. */
size_t backbone_weights(const Backbone *b, const Params *params);

/* Calls `part` for each part of the backbone. */
void backbone_parts(Backbone *b, int H, int W, ModelPart part, void *context);

/* Writes the backbone in words: "a ResNet of 3, 4, 6 and 3 blocks, 64 wide". */
void backbone_tell(const Backbone *b, char *text, size_t size);

/* Is the file of weights a classifier's, whose names have no prefix? */
bool backbone_is_alone(const Backbone *b, const char *path);
/* Reads the backbone's weights from a classifier's file (safetensors; torchvision's or timm's names) without the head;
 * norms that are not in the file stay unchanged.  Dies, with the difference, if it is the file of another backbone. */
void backbone_load_weights(const Backbone *b, Params *params, const char *path);

void backbone_destroy(Backbone *b);

#endif
