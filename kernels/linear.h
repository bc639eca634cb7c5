/* The linear layer. */
#ifndef VIT_KERNELS_LINEAR_H
#define VIT_KERNELS_LINEAR_H

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
/* dx = dy w.  dx [n,in] (=);  dy [n,out] with row stride y_row. */
void linear_backward_input(real *dx, const real *dy, const float *w, const LinearShape *shape);
/* dw += dy^T x, db += column sums of dy.  dw [out,in] (+=);  db [out] (+=) or NULL. */
void linear_backward_weight(float *dw, float *db, const real *dy, const real *x, const LinearShape *shape);

#ifdef __cplusplus
}
#endif

#endif
