/* The exact Gaussian error linear unit.
 *   forward   y = x Phi(x),  Phi(x) = (1 + erf(x / sqrt 2)) / 2
 *   backward  dx = dy (Phi(x) + x phi(x)),  phi(x) = exp(-x^2 / 2) / sqrt(2 pi)
 *   saves     nothing: backward computes y again from x. */
#include "kernels/cpu/activations.h"
#include "kernels/linear/elementwise.h"

void gelu_forward(real *y, const real *x, size_t n) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i += TILE) {
        vec v = real_load_part(x + i, n - i), density;
        real_store_part(y + i, v * vec_normal(v, &density), n - i);
    }
}

void gelu_backward(real *dx, real *y, const real *dy, const real *x, size_t n) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i += TILE) {
        vec v = real_load_part(x + i, n - i), density, phi = vec_normal(v, &density);
        real_store_part(dx + i, real_load_part(dy + i, n - i) * (phi + v * density), n - i);
        if (y) real_store_part(y + i, v * phi, n - i);
    }
}
