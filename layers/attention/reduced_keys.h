/* The tokens from which keys and values are computed where these are fewer than the queries (Wang et al. 2021, PVT, and
 * 2022, PVTv2).  x [B,N,M] -> z [B,L,M]
 * forward   reduction r > 1   z = norm(convolution r x r with stride r of x); rows and columns beyond the last whole
 *                             square are left out
 *           reduction 1       z = x
 *           cells c           z = gelu(norm(W a + b)), where a are the means of c x c cells, whatever the reduction
 * saves     z and what is before its norm.  Parameter names are timm's (pvt_v2).
 * Of clips every frame is reduced by itself. */
#ifndef VIT_LAYERS_REDUCED_KEYS_H
#define VIT_LAYERS_REDUCED_KEYS_H

#include "layers/attention.h"
#include "layers/layer_norm.h"
#include "layers/projection.h"

extern const ConfigGroup reduction_settings;

typedef struct {
    Projection sr; /* of squares as rows, or of means */
    NormLayer norm;
    int cells; /* to a side, or 0 */
    Unfold squares;                 /* of a frame */
    Grid tokens_of_frame, of_frame; /* grids before and after the reduction */
    int frames;
    Grid grid;          /* all L: for clips with the frames below each other, or with the tokens in a row */
    real *raw, *z;      /* [B,L,M] kept: before the norm; the result */
    real *cols;         /* scratch: [B*L,M*r*r], or the means [B,L,M] */
    real *dz, *draw;    /* scratch: [B,L,M] */
} ReducedKeys;

/* The stage's number of the setting `reduction`; rejects one that is larger than a side of the grid. */
int reduction_of(const Attention *a);
/* Is z another tensor than x? */
bool reduced_keys_differ(const ReducedKeys *k);
size_t reduced_keys_count(const ReducedKeys *k, int B);
/* Divides the weight of each key among the tokens from which it was computed, for a picture: weights [N] (=), of_keys
 * [L]. */
void reduced_keys_spread(const ReducedKeys *k, const Attention *a, float *weights, const float *of_keys);

/* The projections before and after such an operator, in place of Attention.frame.
 *   x -> q [B,N,M], kv [B,L,2,M] of z -> (the operator) -> mix [B,N,M] -> y [B,N,M] */
typedef struct {
    Projection q, kv, proj;
    ReducedKeys keys;
    real *q_act, *kv_act, *mix; /* kept */
    real *dq, *dkv, *dmix;      /* scratch, as above */
    real *dx;                   /* [B,N,M] scratch: the gradient through z */
} ReducedFrame;

/* The keys have reduction r or, unless c is 0, c cells a side. */
void reduced_frame_declare(ReducedFrame *f, const Attention *a, Params *params, int r, int c);
/* Adapts to a new grid, which must have at least one whole square of the reduction. */
void reduced_frame_follow_grid(ReducedFrame *f, const Attention *a);
/* Scratch is valid until the caller's plan_release. */
void reduced_frame_plan(ReducedFrame *f, const Attention *a, Plan *plan, int B);
void reduced_frame_forward_in(const ReducedFrame *f, const Attention *a, const real *x, int B);
/* Computes dx (=) from dq and dkv. */
void reduced_frame_backward_in(const ReducedFrame *f, const Attention *a, real *dx, const real *x, int B);
size_t reduced_frame_macs(const ReducedFrame *f, const Attention *a);

#endif
