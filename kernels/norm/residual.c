/* The residual sum by itself, y = x + s f, and its gradient for f, df = s dy;
 * s is one number for several rows. */
#include "kernels/cpu/activations.h"
#include "kernels/norm/norms.h"

void residual_forward(real *y, const real *x, const real *f, const RowScale *s, size_t n, int M) {
    const float *scale = s ? s->scale : NULL;
    size_t rows = scale ? (size_t)s->rows : 1;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) {
        float factor = scale ? scale[i / rows] : 1;
        for (size_t j = i * (size_t)M; j < (i + 1) * (size_t)M; j++)
            y[j] = real_of(real_get(x[j]) + factor * real_get(f[j]));
    }
}

void residual_backward(real *df, const real *dy, const RowScale *s, size_t n, int M) {
    const float *scale = s ? s->scale : NULL;
    size_t rows = scale ? (size_t)s->rows : 1;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) {
        float factor = scale ? scale[i / rows] : 1;
        for (size_t j = i * (size_t)M; j < (i + 1) * (size_t)M; j++) df[j] = real_of(factor * real_get(dy[j]));
    }
}
