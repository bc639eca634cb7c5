/* The residual sum by itself, y = x + s f, and its gradient for f, df = s dy; s is one number for several rows. `each`
 * numbers share a scale, and a thread has W of them. */
#include "kernels/cuda/rows.cuh"
#include "kernels/norm/norms.h"

enum { THREADS = 256 };

/* x NULL: y = s f. */
template <int W>
__global__ void __launch_bounds__(THREADS)
    residual_kernel(real *y, const real *x, const real *f, const float *__restrict__ scale, size_t each, size_t size) {
    size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * W;
    if (i >= size) return;
    float s = scale ? scale[i / each] : 1, v[W], sum[W] = {};
    load(v, f + i);
    if (x) load(sum, x + i);
#pragma unroll
    for (int e = 0; e < W; e++) sum[e] += s * v[e];
    store(y + i, sum);
}

static void residual(real *y, const real *x, const real *f, const RowScale *s, size_t n, int M) {
    const float *scale = s ? s->scale : NULL;
    size_t each = scale ? (size_t)s->rows * M : 1, size = n * M;
    if (is_wide(M, y, x, f))
        LAUNCH((residual_kernel<WIDE>), (unsigned)ceil_div(size, THREADS * WIDE), THREADS, 0, y, x, f, scale, each,
               size);
    else
        LAUNCH((residual_kernel<1>), (unsigned)ceil_div(size, THREADS), THREADS, 0, y, x, f, scale, each, size);
}

void residual_forward(real *y, const real *x, const real *f, const RowScale *s, size_t n, int M) {
    residual(y, x, f, s, n, M);
}

void residual_backward(real *df, const real *dy, const RowScale *s, size_t n, int M) {
    residual(df, NULL, dy, s, n, M);
}
