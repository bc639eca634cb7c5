/* Patch embedding: projects windows of an image or clip, or of the previous stage's tokens, to tokens y [B,N,M], with
 * N = T*Hg*Wg and T = 1 for an image. */
#ifndef VIT_LAYERS_VIT_EMBEDDING_H
#define VIT_LAYERS_VIT_EMBEDDING_H

#include "training/plan.h"
#include "layers/layer_norm.h"
#include "layers/vit/merging.h"
#include "layers/vit/tokenizer.h"
#include "layers/projection.h"

typedef enum {
    EMBEDS_PATCHES,
    EMBEDS_CELLS,       /* merging, which uses only `grid` of the members below */
    EMBEDS_CONVOLUTIONS /* tokenizer, likewise */
} EmbeddingKind;

typedef struct {
    EmbeddingKind kind;
    Merging merging;
    Tokenizer tokenizer;
    Unfold windows;
    Grid grid;
    int apart;       /* frames that are embedded one by one, like images: 1 for an image */
    Projection proj; /* of windows as rows: [M,C*k*k], of tubelets [M,C*kt*k*k] */
    bool normed;
    NormLayer norm;
    real *raw;          /* [B,N,M] kept: input of the norm */
    real *cols, *draw;  /* scratch: [B*N,C*kt*k*k], [B,N,M] */
} Embedding;

/* Patches of an image [C,Hi,Wi] (planes) or of Hi x Wi tokens, `stride` apart.  Their side is `stride`, or with
 * overlap, as in PVTv2, 2*stride - 1 with zero padding.  normed: a layer norm after the projection. */
void embedding_create(Embedding *e, int C, int Hi, int Wi, bool planes, int stride, bool overlap, bool normed);
/* Zero padding of overlapping patches other than half their width. */
void embedding_pad(Embedding *e, int pad);
/* Swin's patch merging of tokens with C channels (layers/vit/merging.h). */
void embedding_create_merging(Embedding *e, int C, Grid tokens);
/* The convolutions of a compact transformer (layers/vit/tokenizer.h), of images [B,3,Hi,Wi] (planes) or channels last. */
void embedding_create_tokenizer(Embedding *e, const TokenizerSettings *settings, int way, int Hi, int Wi, bool planes);
/* Makes the embedding one of clips of `frames` frames, x [B,frames,C,Hi,Wi] or [B,frames*Hi*Wi,C].  tubelet 1: every
 * frame is embedded alone; otherwise windows are `tubelet` frames long, 2 apart, with zero padding of tubelet/2. */
void embedding_take_frames(Embedding *e, int frames, int tubelet);
/* From now on the input has Hi rows and Wi columns. */
void embedding_set_input(Embedding *e, int Hi, int Wi);
void embedding_declare(Embedding *e, Params *params, const char *prefix, int M);
void embedding_plan(Embedding *e, Plan *plan, const char *prefix, int B);
void embedding_forward(const Embedding *e, real *y, const real *x, int B);
/* dx (=), or NULL if no layer before this one is trained, which is always so for a tokenizer;  parameters (+=). */
void embedding_backward(const Embedding *e, real *dx, const real *dy, const real *x, int B);
size_t embedding_macs(const Embedding *e);
/* The name that --describe prints. */
const char *embedding_kind(const Embedding *e);
void embedding_destroy(Embedding *e);

#endif
