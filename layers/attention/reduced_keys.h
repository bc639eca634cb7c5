/* The tokens that keys and values are made of where they are fewer than the queries (Wang et al. 2021, PVT, and 2022,
 * PVTv2).  x [B,N,M] -> z [B,L,M]
 * forward   reduction r > 1   z = norm(convolution r x r with stride r of x); rows and columns beyond the last whole
 *                             square are left out
 *           reduction 1       z = x
 *           cells c           z = gelu(norm(W a + b)), where a are the means of c x c cells, whatever the reduction
 * saves     z and what is before its norm.  Parameter names are timm's (pvt_v2).
 * Of clips every frame is reduced by itself. */
#ifndef VIT_LAYERS_REDUCED_KEYS_H
#define VIT_LAYERS_REDUCED_KEYS_H

#include "layers/attention/attention.h"
#include "layers/layer_norm.h"
#include "layers/projection.h"

extern const ConfigGroup reduction_settings;

typedef struct {
    Projection sr; /* of squares as rows, or of means */
    NormPair norm;
    int cells; /* to a side, or 0 */
    Unfold squares;                 /* of a frame */
    Grid tokens_of_frame, of_frame; /* what is reduced, and what becomes of it */
    int frames;
    Grid grid;          /* all L: of clips the frames below each other, or the tokens in a row */
    real *raw, *z;      /* [B,L,M] kept: before the norm; the result */
    float *mean, *rstd; /* [B,L] kept */
    real *cols;         /* scratch: [B*L,M*r*r], or the means [B,L,M] */
    real *dz, *draw;    /* scratch: [B,L,M] */
} ReducedKeys;

/* The stage's number of the setting `reduction`; rejects one that is larger than a side of the grid. */
int reduction_of(const Attention *a);
/* Reduction r, or c cells to a side unless that is 0. */
void reduced_keys_create(ReducedKeys *k, const Attention *a, int r, int c);
/* Is z another tensor than x? */
bool reduced_keys_differ(const ReducedKeys *k);
size_t reduced_keys_count(const ReducedKeys *k, int B);
/* These four do nothing, or return x, where z is x. */
void reduced_keys_declare(ReducedKeys *k, const Attention *a, Params *params);
/* Scratch is valid until the caller's plan_release. */
void reduced_keys_plan(ReducedKeys *k, const Attention *a, Plan *plan, int B);
/* Returns z. */
const real *reduced_keys_forward(const ReducedKeys *k, const Attention *a, const real *x, int B);
/* Where the gradient of z goes before reduced_keys_backward, which turns it into dx (=). */
real *reduced_keys_gradient(const ReducedKeys *k, real *dx);
void reduced_keys_backward(const ReducedKeys *k, const Attention *a, real *dx, const real *x, int B);
size_t reduced_keys_macs(const ReducedKeys *k);
/* For pictures: divides the weight of key l among the tokens that it was made of.  weights [N] (+=). */
void reduced_keys_spread(const ReducedKeys *k, const Attention *a, float *weights, int l, float weight);

#endif
