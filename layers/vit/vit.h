/* The vision transformer of DeiT (Touvron et al. 2020): patch embedding, pre-norm blocks, a norm and a linear
 * classifier.  With several stages it is hierarchical: each stage begins with a patch embedding that halves the rows
 * and columns of tokens.  Parameters have timm's names, for a hierarchical model those of its pvt_v2, or with patch
 * merging those of its swin_transformer. */
#ifndef VIT_LAYERS_VIT_VIT_H
#define VIT_LAYERS_VIT_VIT_H

#include <stdint.h>
#include <stdio.h>

#include "layers/model.h"
#include "layers/vit/classifier.h"
#include "layers/vit/distillation.h"
#include "layers/vit/pooling.h"
#include "layers/vit/trunk.h"

typedef struct {
    VitSettings settings;
    const Config *config;
    Model model;
    Trunk trunk;
    unsigned stem_turn; /* value of model.turn when the weights of the trunk's stem were standardised */
    Pooling pooling;
    Classifier head, head_dist; /* head_dist: with `distilled` only, of the distillation token */
    Distillation distillation;  /* set before vit_plan: the loss against a teacher's targets, if there is one */

    /* With clips every image is `frames` images, one after the other: [B,frames,..], [B+2,frames,..]. */
    uint8_t *pixels;     /* [B,Hi,Wi,3];  in training [B+2,Hi,Wi,3] (MixedImages) */
    int *pairs, *boxes;  /* [B,2], [B+2,4] arguments of images_mix, in training only */
    uint32_t *draws;     /* [B+2] likewise */
    real *images;        /* [B,3,Hi,Wi] normalised */
    real *pooled;        /* [B,M] */
    real *logits;        /* [B,C];  with `distilled` the mean of the two classifiers' */
    real *cls_logits, *dist_logits, *dist_pooled; /* with `distilled`: the classifiers' own [B,C], and [B,M] */
    real *teacher_logits;                         /* [B+2,C] of a teacher, for the images as they are loaded */
    float *teacher_targets;                       /* [B,C] */
    float *targets;      /* [B,C] */
    float *loss;         /* [B] */
    float *weights;      /* [B] of the losses */
    int *frame_rows;     /* host: the arguments of images_mix for every frame; NULL with one frame */
    real *dlogits, *dpooled, *ddist_logits, *ddist_pooled;
} Vit;

/* Checks the settings (vit_check_settings) and declares every parameter; allocates no device memory yet.  num_classes
 * must be set, and the config must outlive the model. */
void vit_create(Vit *vit, const Config *config);

/* Plans activations for up to `batch` images; training also plans the backward pass.  Allocates nothing. */
void vit_plan(Vit *vit, int batch, bool training);

/* Allocates what was planned, on the device and on the host. */
void vit_allocate(Vit *vit);

/* Fills images from host pixels [B,Hi,Wi,3], or clips [B,frames,Hi,Wi,3], which must come from host_malloc: on a GPU
 * they are copied while earlier calls run, and must not be written to before device_uploads_wait has returned. The same
 * holds for vit_load_mixed. */
void vit_load_pixels(Vit *vit, const uint8_t *pixels, const float *mean, const float *std, int B);

/* A batch of loaded images with random erasing and mixing (images_mix in kernels/tokens/images.h).  Host arrays.  All
 * frames of a clip share its pair, its boxes and lam; each has noise of its own. */
typedef struct {
    int count;             /* number of loaded images, at most B + 2 */
    const int *pairs;      /* [B,2] */
    const int *boxes;      /* [count,4] */
    const uint32_t *draws; /* [count] */
    ImageMix mix;
} MixedImages;

/* Fills B images from host pixels [count,Hi,Wi,3] or [count,frames,Hi,Wi,3].  Requires the training plan. */
void vit_load_mixed(Vit *vit, const uint8_t *pixels, const MixedImages *mixed, const float *mean, const float *std,
                    int B);

/* images -> logits.  Drop path and dropout, as trunk_draw_drops has drawn them for this step, are applied if `drop` is
 * set and the training plan is the current one.  trunk_draw_buffers must be called before the first micro-batch of each
 * step, and once before a model that was never trained is used. */
void vit_forward(Vit *vit, int B, bool drop);

/* Host targets [B,C], each row summing to one, for vit_loss. */
void vit_load_targets(Vit *vit, const float *targets, int B);

/* Host weights [B] of the images' losses, for vit_weigh_losses. */
void vit_load_weights(Vit *vit, const float *weights, int B);
/* Multiplies the losses of vit_loss, and their gradients, by these weights. */
void vit_weigh_losses(Vit *vit, int B);

/* Fills the teacher's targets from teacher_logits; with `mixed`, of the images in the pairs of the last
 * vit_load_mixed, whose targets are mixed like the images. */
void vit_load_teacher(Vit *vit, bool mixed, float lam, int B);

/* Soft-target cross entropy of the logits against the targets.  With a teacher it is (1 - alpha) times that of the
 * class token's classifier, plus alpha times the loss against the teacher's targets of the distillation token's
 * classifier or, without such a token, of the same classifier (kernels/training/distillation.h).  dlogits get `scale`
 * times the gradient: 1 / global batch makes their sum over micro-batches and ranks the gradient of the mean loss. */
void vit_loss(Vit *vit, int B, float scale);

/* Copies the losses [B] of the last vit_loss to the host.  This waits for the device, so it is best called when all
 * other work of the step has been launched. */
void vit_losses(const Vit *vit, float *losses, int B);

/* dlogits -> every parameter's gradient (+=).  Requires a vit_forward under the training plan with the same B and drop.
 * `final` is called with ranges of gradients that are complete (final_gradients.h); NULL if more micro-batches of the
 * step follow. */
void vit_backward(Vit *vit, int B, bool drop, GradientsListener final);

/* Multiply-adds of one image's forward pass: products of the linear layers, of attention and of convolutions. */
size_t vit_macs(const Vit *vit);

/* An estimate of the bytes that one training step of B images moves between memory and processor without any cache.
 * Every planned tensor is written once and read once; a kept one is read again in the backward pass, and with recompute
 * also written and read once more.  Each parameter adds ten floats for gradient, gradient norm and AdamW. */
double vit_moved_bytes(const Vit *vit, int B);

/* Prints a table of the layers with their parameters, multiply-adds and bytes, and then lines `key: value` that a
 * program can read. */
void vit_describe(const Vit *vit, FILE *out);

void vit_destroy(Vit *vit);

#endif
