/* Activations and sums, element by element. */
#ifndef VIT_KERNELS_LINEAR_ELEMENTWISE_H
#define VIT_KERNELS_LINEAR_ELEMENTWISE_H

#include <stddef.h>

#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y = x/2 (1 + erf(x / sqrt 2)).  y, x [n] real.  y may be x. */
void gelu_forward(real *y, const real *x, size_t n);
/* dx = dy gelu'(x), and y = gelu(x) again, so that forward's y need not be stored.  dx (=), may be dy;  y (=) or
 * NULL. */
void gelu_backward(real *dx, real *y, const real *dy, const real *x, size_t n);

/* The same for y = x sigmoid(1.702 x). */
void sigmoid_gelu_forward(real *y, const real *x, size_t n);
void sigmoid_gelu_backward(real *dx, real *y, const real *dy, const real *x, size_t n);

/* y = tanh(x).  y, x [n] real.  y may be x. */
void tanh_forward(real *y, const real *x, size_t n);
/* dx = dy (1 - y^2).  dx (=), may be dy. */
void tanh_backward(real *dx, const real *dy, const real *y, size_t n);

/* y = a + b.  y, a, b [n] real;  y may be a or b. */
void add_forward(real *y, const real *a, const real *b, size_t n);

/* y = relu(x + b).  y, x [n,C] real;  b [C] float.  y may be x. */
void bias_relu_forward(real *y, const real *x, const float *b, size_t n, int C);

#ifdef __cplusplus
}
#endif

#endif
