/* Group norm and the standardisation of a convolution's weights: they replace batch norms in a convolutional network
 * whose images must not influence each other. */
#ifndef VIT_KERNELS_NORM_GROUP_NORM_H
#define VIT_KERNELS_NORM_GROUP_NORM_H

#include <stdbool.h>
#include <stddef.h>

#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A group norm of B images, channels last: its parameters, the statistics that forward saves, and the sizes.  A group
 * is C / groups neighbouring channels at all N positions of an image. */
typedef struct {
    const float *w, *b; /* [C] */
    float *mean, *rstd; /* [B,groups] mean and 1 / standard deviation of each group: written by forward (saved) */
    int B, N, C;
    int groups; /* a divisor of C */
    float eps;
} GroupNorm;

/* y = w (x - mean) rstd + b + add, followed by a ReLU if relu is true.
 * y, x [B,N,C] real;  add [B,N,C] real, or NULL for zero.  y may be x or add. */
void group_norm_forward(real *y, const real *x, const real *add, bool relu, const GroupNorm *norm);
/* The gradient of a norm that adds nothing: of its ReLU, too, if relu is true.  Without one, dy may be the gradient of
 * a sum that it was added to.  dx (=), may be dy;  dw, db [C] (+=). */
void group_norm_backward(real *dx, float *dw, float *db, const real *dy, const real *x, bool relu,
                         const GroupNorm *norm);
/* The workspace is enough for both directions. */
size_t group_norm_workspace(const GroupNorm *shape);

/* Standardised weights: each output's row has mean 0 and variance 1. */
typedef struct {
    float *mean, *rstd; /* [out] of each row: written by forward (saved) */
    int out, fan;       /* rows, and weights in each */
    float eps;
} Standardized;

/* y = (w - mean) rstd, rstd = 1 / sqrt(var + eps).  y, w [out,fan] float. */
void standardize_forward(float *y, const float *w, const Standardized *rows);
/* dw [out,fan] (+=), from dy, the gradient of y. */
void standardize_backward(float *dw, const float *dy, const float *w, const Standardized *rows);

#ifdef __cplusplus
}
#endif

#endif
