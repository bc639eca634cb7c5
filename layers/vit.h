/* The vision transformer of DeiT (Touvron et al. 2020): patches, pre-norm blocks, a norm, a linear head.  With several
 * stages it is a hierarchy: each begins with a patch embedding of its own, half as fine as the one before.  All
 * parameters live in one arena, under timm's names (a hierarchy's are those of its pvt_v2),
 * all activations in one plan. */
#ifndef VIT_LAYERS_VIT_H
#define VIT_LAYERS_VIT_H

#include <stdint.h>
#include <stdio.h>

#include "layers/classifier.h"
#include "layers/embedding.h"
#include "layers/model.h"
#include "layers/stage.h"

enum { VIT_MAX_STAGES = 8 };

typedef enum { POOL_CLS, POOL_GAP } Pool;
typedef enum { POSITIONS_LEARNED, POSITIONS_NONE, POSITIONS_CONV } PositionEmbedding;
typedef enum { INIT_SCALE_NONE, INIT_SCALE_DEPTH } InitScale;

/* What a user can say about the model.  Lists have one number for each stage, or one for all. */
typedef struct {
    const AttentionOp *attn;
    int img_size[2], patch_size, num_classes;
    bool patch_overlap, mlp_conv, recompute;
    ConfigInts dim, depth, heads;
    ConfigFloats mlp_ratio;
    int conv_stages;
    const AttentionOp *conv_block; /* of those stages */
    Pool pool;
    HeadKind head;
    PositionEmbedding pos_embed;
    float drop_path; /* rate of the last block; grows linearly from 0 at the first */
    InitScale init_scale;
} VitSettings;
extern const ConfigGroup vit_settings;

/* Adds vit_settings and those of all operators. */
VitSettings *vit_add_settings(Config *config);
/* The chosen operator's settings count: before config_settle. */
void vit_use_settings(Config *config);
/* Rejects what no model can have, for instance heads that do not divide dim; vit_create asks again. */
void vit_check_settings(const Config *config);

typedef struct {
    VitSettings settings;
    Grid grid; /* of the first stage's tokens */
    int N;     /* those tokens, class token included */
    int depth;     /* blocks of all stages */
    Model model;

    Embedding embeddings[VIT_MAX_STAGES];
    Stage stages[VIT_MAX_STAGES];
    Classifier head;
    float *pos, *dpos; /* [N of the first station,M] */
    Stream stream;

    uint8_t *pixels;     /* [B,Hi,Wi,3]; two more in training */
    int *pairs, *boxes;  /* [B,2], [B+2,4] of images_mix; training only, as are: */
    uint32_t *draws;     /* [B+2] */
    real *images;        /* [B,3,Hi,Wi] normalised */
    real *pooled;        /* [B,M] */
    real *logits;        /* [B,C] */
    float *targets;      /* [B,C] */
    float *loss;         /* [B] */
    float *keep_host;    /* host [2*depth,B] */
    real *dlogits, *dpooled;
} Vit;

/* Rejects settings that no model can have, where they were set, and declares every parameter; nothing is allocated on
 * the device yet.  num_classes is known by now.  The config outlives the model. */
void vit_create(Vit *vit, const Config *config);

/* Plans activations for up to `batch` images; training also plans the backward pass.  Allocates nothing. */
void vit_plan(Vit *vit, int batch, bool training);

/* Allocates what was planned: model_allocate, and what is on the host. */
void vit_allocate(Vit *vit);

/* Fills images from host pixels [B,Hi,Wi,3]. */
void vit_load_pixels(Vit *vit, const uint8_t *pixels, const float *mean, const float *std, int B);

/* Images that are erased and mixed on their way (kernels/images.h, images_mix); host arrays. */
typedef struct {
    int count;             /* images that were loaded, at most B + 2 */
    const int *pairs;      /* [B,2] */
    const int *boxes;      /* [count,4] */
    const uint32_t *draws; /* [count] */
    ImageMix mix;
} MixedImages;

/* Fills B images from host pixels [count,Hi,Wi,3].  The training plan must be in force. */
void vit_load_mixed(Vit *vit, const uint8_t *pixels, const MixedImages *mixed, const float *mean, const float *std,
                    int B);

/* Draws the drop path of this step for samples first .. first+B-1 of the global batch.
 * Before a training forward pass. */
void vit_draw_drop_path(Vit *vit, uint64_t seed, uint32_t step, size_t first, int B);

/* Draws the random features and codes of this step, where the operator has any: before its first micro-batch, and once
 * before weights that were never trained are used. */
void vit_draw_buffers(const Vit *vit, uint64_t seed, uint32_t step);

/* images -> logits.  Drop path is applied when the training plan is in force and `drop` is set. */
void vit_forward(Vit *vit, int B, bool drop);

/* Host targets [B,C], each row summing to one, for vit_loss. */
void vit_load_targets(Vit *vit, const float *targets, int B);

/* Soft-target cross entropy of the logits against the targets.  dlogits get `scale` times the gradient: 1 / global
 * batch makes their sum over micro-batches and ranks the gradient of the mean loss. */
void vit_loss(Vit *vit, int B, float scale);

/* The losses [B] of the last vit_loss, to the host.  Waits for the device: ask when everything else is under way. */
void vit_losses(const Vit *vit, float *losses, int B);

/* dlogits -> every parameter's gradient (+=).  After vit_forward with the training plan, same B and drop.
 * `final` hears of gradients that this pass will not touch again; NULL when more micro-batches follow. */
void vit_backward(Vit *vit, int B, bool drop, GradientsListener final);

/* The mean of AttentionOp.divergence over the blocks that have one, of the last forward pass with B images; NaN:
 * none has. */
double vit_divergence(const Vit *vit, int B);

/* Block i of all stages' blocks. */
Block *vit_block(const Vit *vit, int i);

/* Multiply-adds of one image's forward pass: products of the linear layers, of attention and of convolutions. */
size_t vit_macs(const Vit *vit);

/* What Fourier transforms and the mixing of their results have in them (AttentionOp.transform_macs). */
size_t vit_transform_macs(const Vit *vit);

/* An estimate of the bytes that one training step of B images moves through memory when nothing stays in a cache: every
 * planned tensor is written once and read once, and what is kept is read a second time in the backward pass, after it
 * was written and read once more where it is recomputed; ten floats a parameter for gradient, norm and AdamW. */
double vit_moved_bytes(const Vit *vit, int B);

/* A table of layers with parameters, multiply-adds and bytes, and three lines for programs. */
void vit_describe(const Vit *vit, FILE *out);

void vit_destroy(Vit *vit);

#endif
