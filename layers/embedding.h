/* Patch embedding: projects windows of an image, or of the previous stage's tokens, to tokens y [B,Hg*Wg,M]. */
#ifndef VIT_LAYERS_EMBEDDING_H
#define VIT_LAYERS_EMBEDDING_H

#include "core/plan.h"
#include "layers/layer_norm.h"
#include "layers/projection.h"

typedef struct {
    Unfold windows;
    Grid grid;
    Projection proj; /* of windows as rows: [M,C*k*k] */
    bool normed;
    NormPair norm;
    real *raw;          /* [B,Hg*Wg,M] kept: input of the norm */
    float *mean, *rstd; /* [B,Hg*Wg] kept */
    real *cols, *draw;  /* scratch: [B*Hg*Wg,C*k*k], [B,Hg*Wg,M] */
} Embedding;

/* Patches of an image [C,Hi,Wi] (planes) or of Hi x Wi tokens, `stride` apart.  Their side is `stride`, or with
 * overlap, as in PVTv2, 2*stride - 1 with zero padding.  normed: a layer norm after the projection. */
void embedding_create(Embedding *e, int C, int Hi, int Wi, bool planes, int stride, bool overlap, bool normed);
void embedding_declare(Embedding *e, Params *params, const char *prefix, int M);
void embedding_plan(Embedding *e, Plan *plan, const char *prefix, int B);
void embedding_forward(const Embedding *e, real *y, const real *x, int B);
/* dx (=), or NULL if no layer before this one is trained;  parameters (+=). */
void embedding_backward(const Embedding *e, real *dx, const real *dy, const real *x, int B);
size_t embedding_macs(const Embedding *e);

#endif
