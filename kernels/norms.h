/* Layer norms, the residual sums that go with them, and the activation GELU. */
#ifndef VIT_KERNELS_NORMS_H
#define VIT_KERNELS_NORMS_H

#include <stddef.h>

#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* h = w (x - mean) rstd + b over the last dimension.  h, x [n,M] real;  mean, rstd [n] float (saved);  w, b [M].
 * h may be x. */
void layernorm_forward(real *h, float *mean, float *rstd, const real *x, const float *w, const float *b, size_t n,
                       int M, float eps);
/* y = x + s f, then h = norm(y), in one pass.  s is scale[row / rows_per_scale], or 1 when scale is NULL (drop path).
 * x, f, y, h [n,M] real;  scale [n / rows_per_scale] float;  mean, rstd [n] float (saved).
 * y may be x; h may be f; nothing else overlaps. */
void add_layernorm_forward(real *y, real *h, float *mean, float *rstd, const real *x, const real *f, const float *scale,
                           int rows_per_scale, const float *w, const float *b, size_t n, int M, float eps);
/* The norm's gradient joined with the residual stream's: dy = dres + norm'(dh), df = s dy.
 * dy [n,M] (=), may be dres;  df [n,M] (=), not written when scale is NULL (df is dy then);  dres [n,M], or NULL for
 * zero;  dw, db [M] (+=);  dh [n,M];  y [n,M] what was normalised. */
void add_layernorm_backward(real *dy, real *df, float *dw, float *db, const real *dres, const real *dh, const real *y,
                            const float *scale, int rows_per_scale, const float *w, const float *mean,
                            const float *rstd, size_t n, int M);
size_t layernorm_workspace(int M);

/* The residual sum where no norm follows it: y = x + s f, s as in add_layernorm_forward.  y may be x or f. */
void residual_forward(real *y, const real *x, const real *f, const float *scale, int rows_per_scale, size_t n, int M);
/* df (=) s dy.  df may be dy.  (dx is dy.) */
void residual_backward(real *df, const real *dy, const float *scale, int rows_per_scale, size_t n, int M);

/* Layer norm of every head by itself, with weights that the heads share.  y, x: H*D numbers of each of n tokens, which
 * lie `row` apart;  w [D];  b [D] or NULL.  y may be x. */
void heads_norm_forward(real *y, const real *x, const float *w, const float *b, size_t n, int row, int H, int D,
                        float eps);
/* dx (=), may be dy, rows as x's;  dw (+=);  db (+=) or NULL. */
void heads_norm_backward(real *dx, float *dw, float *db, const real *dy, const real *x, const float *w, size_t n,
                         int row, int H, int D, float eps);
size_t heads_norm_workspace(int D);

/* y = x/2 (1 + erf(x / sqrt 2)).  y, x [n] real.  y may be x. */
void gelu_forward(real *y, const real *x, size_t n);
/* dx = dy gelu'(x), and y = gelu(x) once more, so that it need not be kept.  dx (=), may be dy;  y (=). */
void gelu_backward(real *dx, real *y, const real *dy, const real *x, size_t n);

/* y = a + b.  y, a, b [n] real;  y may be a or b. */
void add_forward(real *y, const real *a, const real *b, size_t n);

#ifdef __cplusplus
}
#endif

#endif
