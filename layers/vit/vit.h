/* The vision transformer of DeiT (Touvron et al. 2020): patch embedding, pre-norm blocks, a norm and a linear
 * classifier.  With several stages it is hierarchical: each stage begins with a patch embedding that halves the rows
 * and columns of tokens.  Parameters have timm's names, for a hierarchical model those of its pvt_v2, or with patch
 * merging those of its swin_transformer. */
#ifndef VIT_LAYERS_VIT_VIT_H
#define VIT_LAYERS_VIT_VIT_H

#include <stdint.h>
#include <stdio.h>

#include "layers/vit/classifier.h"
#include "layers/vit/embedding.h"
#include "layers/vit/hybrid_stem.h"
#include "layers/vit/inflate.h"
#include "layers/model.h"
#include "layers/stage.h"

enum { VIT_MAX_STAGES = 8 };

typedef enum { POOL_CLS, POOL_GAP, POOL_GAP_RAW } Pool;
typedef enum { POSITIONS_LEARNED, POSITIONS_NONE, POSITIONS_CONV, POSITIONS_STAGES } PositionEmbedding;
typedef enum { STEM_NONE, STEM_HYBRID } StemKind;
typedef enum { INIT_SCALE_NONE, INIT_SCALE_DEPTH } InitScale;

/* The settings of the model.  Lists have one number for each stage, or one for all stages. */
typedef struct {
    ConfigItems attn; /* of AttentionOp */
    int img_size[2], frames, patch_size, patch_pad, tubelet, num_classes;
    int time_kernel, conv_time_kernel;
    Inflate inflate;
    StemKind stem;
    bool patch_overlap, patch_norm, patch_merging, stage_norm, mlp_conv, mlp_relu, recompute;
    float norm_eps;
    ConfigInts dim, depth, heads;
    ConfigFloats mlp_ratio;
    int conv_stages;
    const AttentionOp *conv_block; /* of those stages */
    Pool pool;
    HeadKind head;
    PositionEmbedding pos_embed;
    float drop_path; /* rate of the last block; it grows linearly from 0 in the first */
    float dropout;
    InitScale init_scale;
    float head_init_scale;
} VitSettings;
extern const ConfigGroup vit_settings;

/* The operator of a stage, without regard to conv_stages. */
const AttentionOp *vit_attn(const VitSettings *s, int stage);
/* The setting attn as text, "focused,focused,swin,swin". */
enum { VIT_ATTN_SIZE = 256 };
const char *vit_attn_names(const VitSettings *s, char text[VIT_ATTN_SIZE]);
/* "14 x 14", of clips "4 x 14 x 14", with `by` between the numbers. */
enum { VIT_GRID_SIZE = 48 };
const char *vit_grid_text(char text[VIT_GRID_SIZE], Grid grid, const char *by);

/* Adds vit_settings and the settings of all operators. */
VitSettings *vit_add_settings(Config *config);
/* Marks the settings of the chosen operator as used.  Must be called before config_settle, which checks the settings in
 * use. */
void vit_use_settings(Config *config);
/* Rejects settings that contradict each other, for instance heads that do not divide dim.  vit_create calls it too. */
void vit_check_settings(const Config *config);

/* Weights in the file `path` were trained with `origin`: rejects other numbers of heads, which the shapes of the
 * weights do not tell. */
void vit_check_heads(const char *path, const Config *config, const VitSettings *origin);
/* On stdout, what weights are taken for whose file tells no settings, and a warning that their shapes fit any number of
 * heads. */
void vit_print_assumptions(const char *path, const Config *config, const float *mean, const float *std);
/* On stdout, a line if the weights in the file, of settings `origin`, are used with other values of attention settings
 * on which no tensor's shape depends. */
void vit_print_other_attention(const char *path, const Config *config, const Config *origin);

typedef struct {
    VitSettings settings;
    Grid grid; /* of the first stage's tokens */
    int N;     /* number of tokens of the first stage, class token included */
    int depth;     /* number of blocks in all stages */
    Model model;

    HybridStem stem; /* if settings.stem asks for one: it makes what the first embedding reads */
    unsigned stem_turn; /* model.turn when its weights were standardised */
    Embedding embeddings[VIT_MAX_STAGES];
    Stage stages[VIT_MAX_STAGES];
    Classifier head;
    Stream stream;

    /* With clips every image is `frames` images, one after the other: [B,frames,..], [B+2,frames,..]. */
    uint8_t *pixels;     /* [B,Hi,Wi,3];  in training [B+2,Hi,Wi,3] (MixedImages) */
    int *pairs, *boxes;  /* [B,2], [B+2,4] arguments of images_mix, in training only */
    uint32_t *draws;     /* [B+2] likewise */
    real *images;        /* [B,3,Hi,Wi] normalised */
    real *pooled;        /* [B,M] */
    real *logits;        /* [B,C] */
    float *targets;      /* [B,C] */
    float *loss;         /* [B] */
    float *keep_host;    /* host [2*depth,B] */
    int *frame_rows;     /* host: the arguments of images_mix for every frame; NULL with one frame */
    real *dlogits, *dpooled;
} Vit;

/* Checks the settings (vit_check_settings) and declares every parameter; allocates no device memory yet.  num_classes
 * must be set, and the config must outlive the model. */
void vit_create(Vit *vit, const Config *config);

/* Plans activations for up to `batch` images; training also plans the backward pass.  Allocates nothing. */
void vit_plan(Vit *vit, int batch, bool training);

/* Allocates what was planned, on the device and on the host. */
void vit_allocate(Vit *vit);

/* Fills images from host pixels [B,Hi,Wi,3], of clips [B,frames,Hi,Wi,3], which must come from host_malloc: on a GPU
 * they are copied beside what was called before, and must not be written to before device_uploads_wait has returned.
 * The same holds for vit_load_mixed. */
void vit_load_pixels(Vit *vit, const uint8_t *pixels, const float *mean, const float *std, int B);

/* How loaded images become a batch with random erasing and mixing (images_mix in kernels/tokens/images.h).  Host
 * arrays.  All frames of a clip share its pair, its boxes and lam; each has noise of its own. */
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

/* Draws the drop path of this step for images first .. first+B-1 of the global batch, and notes for them what dropout
 * is a function of.  Must be called before a training forward pass. */
void vit_draw_drops(Vit *vit, uint64_t seed, uint32_t step, size_t first, int B);

/* Draws the operator's random features and codes, if it has any.  Must be called before the first micro-batch of each
 * step, and once before a model that was never trained is used. */
void vit_draw_buffers(const Vit *vit, uint64_t seed, uint32_t step);

/* images -> logits.  Drop path and dropout are applied if `drop` is set and the training plan is the current one. */
void vit_forward(Vit *vit, int B, bool drop);

/* Host targets [B,C], each row summing to one, for vit_loss. */
void vit_load_targets(Vit *vit, const float *targets, int B);

/* Soft-target cross entropy of the logits against the targets.  dlogits get `scale` times the gradient: 1 / global
 * batch makes their sum over micro-batches and ranks the gradient of the mean loss. */
void vit_loss(Vit *vit, int B, float scale);

/* Copies the losses [B] of the last vit_loss to the host.  This waits for the device, so it is best called when all
 * other work of the step has been launched. */
void vit_losses(const Vit *vit, float *losses, int B);

/* dlogits -> every parameter's gradient (+=).  Requires a vit_forward under the training plan with the same B and drop.
 * `final` is called with ranges of gradients that are complete (final_gradients.h); NULL if more micro-batches of the
 * step follow. */
void vit_backward(Vit *vit, int B, bool drop, GradientsListener final);

/* Block i, counted over all stages. */
Block *vit_block(const Vit *vit, int i);

/* Multiply-adds of one image's forward pass: products of the linear layers, of attention and of convolutions. */
size_t vit_macs(const Vit *vit);

/* The multiply-adds of Fourier transforms and of mixing their results (AttentionOp.transform_macs). */
size_t vit_transform_macs(const Vit *vit);

/* An estimate of the bytes that one training step of B images moves between memory and processor without any cache.
 * Every planned tensor is written once and read once; a kept one is read again in the backward pass, and with recompute
 * also written and read once more.  Each parameter adds ten floats for gradient, gradient norm and AdamW. */
double vit_moved_bytes(const Vit *vit, int B);

/* Prints a table of the layers with their parameters, multiply-adds and bytes, and then lines `key: value` that a
 * program can read. */
void vit_describe(const Vit *vit, FILE *out);

void vit_destroy(Vit *vit);

#endif
