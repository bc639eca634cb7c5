/* Patch embedding: windows of an image, or of the tokens of the stage before, projected to tokens of another width.
 * x -> y [B,Hg*Wg,M] */
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
    real *raw;          /* [B,Hg*Wg,M] kept: what the norm sees */
    float *mean, *rstd; /* [B,Hg*Wg] kept */
    real *cols, *draw;  /* scratch: [B*Hg*Wg,C*k*k], like raw */
} Embedding;

/* Patches `stride` apart of a [C,Hi,Wi] image (planes) or of Hi x Wi tokens.  Plain ones have that side; overlapping
 * ones are PVTv2's, 2*stride - 1 wide with zeros around the input and a layer norm after them. */
void embedding_create(Embedding *e, int C, int Hi, int Wi, bool planes, int stride, bool overlap);
void embedding_declare(Embedding *e, Params *params, const char *prefix, int M);
void embedding_plan(Embedding *e, Plan *plan, const char *prefix, int B);
void embedding_forward(const Embedding *e, real *y, const real *x, int B);
/* dx (=), or NULL where nothing below learns;  parameters (+=).  dx is not dy. */
void embedding_backward(const Embedding *e, real *dx, const real *dy, const real *x, int B);
size_t embedding_macs(const Embedding *e);

#endif
