/* The linear layer. */
#ifndef VIT_KERNELS_LINEAR_H
#define VIT_KERNELS_LINEAR_H

#include <stddef.h>

#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y = x w^T + b.  y [n,out] real;  x [n,in] real;  w [out,in] float;  b [out] float or NULL. */
void linear_forward(real *y, const real *x, const float *w, const float *b, size_t n, int in, int out);
/* dx = dy w.  dx [n,in] (=);  dy [n,out]. */
void linear_backward_input(real *dx, const real *dy, const float *w, size_t n, int in, int out);
/* dw += dy^T x, db += column sums of dy.  dw [out,in] (+=);  db [out] (+=) or NULL. */
void linear_backward_weight(float *dw, float *db, const real *dy, const real *x, size_t n, int in, int out);

/* The same with rows of y and dy `row` numbers apart, row >= out: a layer that fills part of a wider tensor. */
void linear_forward_rows(real *y, int row, const real *x, const float *w, const float *b, size_t n, int in, int out);
void linear_backward_input_rows(real *dx, const real *dy, int row, const float *w, size_t n, int in, int out);
void linear_backward_weight_rows(float *dw, float *db, const real *dy, int row, const real *x, size_t n, int in,
                                 int out);

#ifdef __cplusplus
}
#endif

#endif
