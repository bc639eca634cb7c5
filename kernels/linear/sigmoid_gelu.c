/* The Gaussian error linear unit as Child et al. 2019 approximate it.
 *   forward   y = x s,  s = sigmoid(1.702 x) = 1 / (1 + exp(-1.702 x))
 *   backward  dx = dy (s + 1.702 x s (1 - s))
 *   saves     nothing: backward computes y again from x. */
#include "kernels/cpu/activations.h"
#include "kernels/linear/elementwise.h"

TILE_INLINE vec sigmoid_of(vec x) { return 1.0f / (1.0f + vec_exp(-1.702f * x)); }

void sigmoid_gelu_forward(real *y, const real *x, size_t n) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i += TILE) {
        vec v = real_load_part(x + i, n - i);
        real_store_part(y + i, v * sigmoid_of(v), n - i);
    }
}

void sigmoid_gelu_backward(real *dx, real *y, const real *dy, const real *x, size_t n) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i += TILE) {
        vec v = real_load_part(x + i, n - i), s = sigmoid_of(v);
        real_store_part(dx + i, real_load_part(dy + i, n - i) * (s + 1.702f * v * s * (1.0f - s)), n - i);
        if (y) real_store_part(y + i, v * s, n - i);
    }
}
