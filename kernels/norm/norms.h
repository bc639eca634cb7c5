/* Layer norm, and residual connections with and without it. */
#ifndef VIT_KERNELS_NORM_NORMS_H
#define VIT_KERNELS_NORM_NORMS_H

#include <stddef.h>

#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A layer norm of n rows: its parameters, the statistics that forward saves, and the sizes. */
typedef struct {
    const float *w, *b; /* [M] */
    float *mean, *rstd; /* [n] mean and 1 / standard deviation of each row: written by forward (saved) */
    size_t n;
    int M;
    float eps;
} LayerNorm;

/* Factors s of a residual branch, for drop path: row i has scale[i / rows], so `rows` is the number of tokens in an
 * image.  s = 1 if the pointer to the struct is NULL or scale is NULL. sums [M] (+=) or NULL, for
 * add_layernorm_backward alone: the column sums of the branch's gradient as it is stored, which are the gradient of a
 * bias that ends the branch. */
typedef struct {
    const float *scale;
    int rows;
    float *sums;
} RowScale;

/* h = w (x - mean) rstd + b over the last dimension.  h, x [n,M] real.  h may be x. */
void layernorm_forward(real *h, const real *x, const LayerNorm *norm);
/* y = x + s f, then h = norm(y), in one pass.  y, h, x, f [n,M] real.  y may be x; h may be f; nothing else
 * overlaps. */
void add_layernorm_forward(real *y, real *h, const real *x, const real *f, const RowScale *s, const LayerNorm *norm);
/* The gradient of add_layernorm_forward, for y's and h's gradients dres and dh: dy = dres + norm'(dh), df = s dy.
 * dy [n,M] (=), may be dres;  df [n,M] (=), written only if s has a scale, otherwise df equals dy;  dw, db [M] (+=);
 * dres [n,M], or NULL for zero;  dh [n,M];  y [n,M] the norm's input. */
void add_layernorm_backward(real *dy, real *df, float *dw, float *db, const real *dres, const real *dh, const real *y,
                            const RowScale *s, const LayerNorm *norm);
size_t layernorm_workspace(int M);

/* The residual sum without a norm: y = x + s f.  y, x, f [n,M] real.  y may be x or f. */
void residual_forward(real *y, const real *x, const real *f, const RowScale *s, size_t n, int M);
/* df = s dy (dx equals dy).  df [n,M] (=), may be dy. */
void residual_backward(real *df, const real *dy, const RowScale *s, size_t n, int M);

/* Layer norm over the D channels of each head separately, with weights that all heads share. */
typedef struct {
    size_t n; /* tokens */
    int row;  /* row stride of x and y, at least H*D */
    int H, D;
    float eps;
} HeadsNorm;

/* y, x [n,H,D] real with row stride `row`;  w [D];  b [D] or NULL.  y may be x. */
void heads_norm_forward(real *y, const real *x, const float *w, const float *b, const HeadsNorm *shape);
/* dx (=), may be dy;  dx, dy, x [n,H,D] with row stride `row`;  dw (+=);  db (+=) or NULL. */
void heads_norm_backward(real *dx, float *dw, float *db, const real *dy, const real *x, const float *w,
                         const HeadsNorm *shape);
size_t heads_norm_workspace(int D);

#ifdef __cplusplus
}
#endif

#endif
