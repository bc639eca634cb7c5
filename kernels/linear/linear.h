/* The linear layer. */
#ifndef VIT_KERNELS_LINEAR_LINEAR_H
#define VIT_KERNELS_LINEAR_LINEAR_H

#include <stdbool.h>
#include <stddef.h>

#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    size_t n; /* rows */
    int in, out;
    int y_row; /* row stride of y and dy, at least out; 0: out */
} LinearShape;

/* y = x w^T + b.  y [n,out] real with row stride y_row;  x [n,in] real;  w [out,in] float;  b [out] float or NULL. */
void linear_forward(real *y, const real *x, const float *w, const float *b, const LinearShape *shape);
/* Between a call with true and one with false, weights that were passed to linear_forward must not change: it may keep
 * a copy in another layout, since for few rows the conversion takes as long as the product. */
void linear_keep_weights(bool keep);
/* dx = dy w.  dx [n,in] (=);  dy [n,out] with row stride y_row. */
void linear_backward_input(real *dx, const real *dy, const float *w, const LinearShape *shape);
/* dw += dy^T x, db += column sums of dy.  dw [out,in] (+=);  db [out] (+=) or NULL. */
void linear_backward_weight(float *dw, float *db, const real *dy, const real *x, const LinearShape *shape);
/* db += column sums of dy alone, for the bias of a convolution, whose rows are pixels.  db [out] (+=);  shape's
 * `in` is not read. */
void linear_backward_bias(float *db, const real *dy, const LinearShape *shape);

/* Like linear_backward_weight, but it may run until the next linear_backward returns, at the same time as other
 * functions: until then dw and db must be neither read nor written, and dy and x must not be written. */
void linear_backward_weight_beside(float *dw, float *db, const real *dy, const real *x, const LinearShape *shape);

/* linear_backward_input and linear_backward_weight: dx (=), dw (+=), db (+=) or NULL.  dx may not overlap dy or x. */
void linear_backward(real *dx, float *dw, float *db, const real *dy, const real *x, const float *w,
                     const LinearShape *shape);

/* A linear layer and the GELU after it: a = x w^T + b, g = gelu(a).  a, g [n,out] real, without row stride. */
void linear_gelu_forward(real *a, real *g, const real *x, const float *w, const float *b, const LinearShape *shape);
/* The gradient through a linear layer and the GELU before it, y = gelu(a) w^T:
 *   da = (dy w) gelu'(a),  g = gelu(a) again, with the bits of forward,  and the gradients of two layers' biases, db of
 *   y's and da_sums of a's: column sums of dy and of da.
 * da [n,in] (=);  g [n,in] (=), or NULL if forward's g still exists;  da_sums [in], db [out] (+=);  dy [n,out];  a
 * [n,in];  w [out,in].  da may not be a. */
void linear_gelu_backward(real *da, real *g, float *da_sums, float *db, const real *dy, const real *a, const float *w,
                          const LinearShape *shape);
size_t linear_gelu_workspace(const LinearShape *shape);

#ifdef __cplusplus
}
#endif

#endif
