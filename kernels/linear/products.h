/* The matrix products of a linear layer on a CPU: products_onednn.c computes them with oneDNN, products_own.c in plain C
 * (make ONEDNN=0). */
#ifndef VIT_KERNELS_LINEAR_PRODUCTS_H
#define VIT_KERNELS_LINEAR_PRODUCTS_H

#include <stdbool.h>

#include "kernels/linear/linear.h"

/* The contracts are those of linear_forward, linear_keep_weights, linear_backward_input and linear_backward_weight, which
 * adds the bias. */
void product_forward(real *y, const real *x, const float *w, const float *b, const LinearShape *shape);
void products_keep_weights(bool keep);
void product_backward_input(real *dx, const real *dy, const float *w, const LinearShape *shape);
void product_backward_weight(float *dw, const real *dy, const real *x, const LinearShape *shape);

/* c = a b, all [side,side]: the product with which the processor's peak is measured. */
void product_square(real *c, const real *a, const real *b, int side);

static inline int linear_y_row(const LinearShape *s) { return s->y_row ? s->y_row : s->out; }

#endif
