/* The residual sum by itself, y = x + s f, and its gradient for f, df = s dy;
 * s is one number for rows_per_scale rows. */
#include "kernels/kernels.h"

void residual_forward(real *y, const real *x, const real *f, const float *scale, int rows_per_scale, size_t n, int M) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) {
        float s = scale ? scale[i / (size_t)rows_per_scale] : 1;
        for (size_t j = i * (size_t)M; j < (i + 1) * (size_t)M; j++) y[j] = x[j] + s * f[j];
    }
}

void residual_backward(real *df, const real *dy, const float *scale, int rows_per_scale, size_t n, int M) {
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) {
        float s = scale ? scale[i / (size_t)rows_per_scale] : 1;
        for (size_t j = i * (size_t)M; j < (i + 1) * (size_t)M; j++) df[j] = s * dy[j];
    }
}
