/* The mean of tokens weighted by a softmax of their scores; kernels/tokens/sequence_pool.h has the formulas. */
#include "kernels/tokens/sequence_pool.h"

#include <math.h>

#include "kernels/cpu/activations.h"

/* a [N] = softmax(x w). */
static void weigh(float *a, const real *x, const float *w, int N, int M) {
    float most = -INFINITY;
    double sum = 0;
    for (int n = 0; n < N; n++) {
        a[n] = row_dot(x + (size_t)n * M, w, M);
        most = fmaxf(most, a[n]);
    }
    for (int n = 0; n < N; n++) sum += a[n] = expf(a[n] - most);
    for (int n = 0; n < N; n++) a[n] = (float)(a[n] / sum);
}

void sequence_pool_forward(real *y, float *a, const real *x, const float *w, const TokenShape *shape) {
    int N = shape->N, M = shape->M;
#pragma omp parallel for schedule(static)
    for (int b = 0; b < shape->B; b++) {
        const real *image = x + (size_t)b * N * M;
        float *weights = a + (size_t)b * N;
        weigh(weights, image, w, N, M);
        for (int m = 0; m < M; m += TILE) {
            vec sum = {0};
            for (int n = 0; n < N; n++) sum += weights[n] * real_load_part(image + (size_t)n * M + m, M - m);
            real_store_part(y + (size_t)b * M + m, sum, M - m);
        }
    }
}

/* dx and ds of one image. */
static void image_backward(real *dx, float *ds, const real *dy, const real *x, const float *w, const float *a, int N,
                           int M) {
    double mean = 0;
    for (int n = 0; n < N; n++) mean += a[n] * (double)(ds[n] = reals_dot(dy, x + (size_t)n * M, M));
    for (int n = 0; n < N; n++) {
        ds[n] = a[n] * (float)(ds[n] - mean);
        for (int m = 0; m < M; m += TILE)
            real_store_part(dx + (size_t)n * M + m,
                            a[n] * real_load_part(dy + m, M - m) + ds[n] * vec_load_part(w + m, M - m), M - m);
    }
}

void sequence_pool_backward(real *dx, float *dw, float *ds, const real *dy, const real *x, const float *w,
                            const float *a, const TokenShape *shape) {
    int N = shape->N, M = shape->M;
    size_t rows = (size_t)shape->B * N;
#pragma omp parallel for schedule(static)
    for (int b = 0; b < shape->B; b++) {
        size_t first = (size_t)b * N;
        image_backward(dx + first * M, ds + first, dy + (size_t)b * M, x + first * M, w, a + first, N, M);
    }
#pragma omp parallel for schedule(static)
    for (int m = 0; m < M; m += TILE) { /* the order of each sum does not depend on the number of threads */
        vec sum = {0};
        for (size_t i = 0; i < rows; i++) sum += ds[i] * real_load_part(x + i * M + m, M - m);
        vec_store_part(dw + m, vec_load_part(dw + m, M - m) + sum, M - m);
    }
}
