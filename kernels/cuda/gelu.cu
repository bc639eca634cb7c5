/* The exact Gaussian error linear unit; kernels/cuda/gelu.cuh has its arithmetic. */
#include "kernels/cuda/gelu.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/kernels.h"

enum { THREADS = 256 };

template <int W>
__global__ void __launch_bounds__(THREADS) gelu_forward_kernel(real *y, const real *x, size_t n) {
    size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * W;
    if (i + W > n) {
        for (; i < n; i++) y[i] = to_real(gelu(to_float(x[i])));
        return;
    }
    float v[W];
    load(v, x + i);
#pragma unroll
    for (int j = 0; j < W; j++) v[j] = gelu(v[j]);
    store(y + i, v);
}

void gelu_forward(real *y, const real *x, size_t n) {
    if (is_wide(0, y, x))
        LAUNCH((gelu_forward_kernel<WIDE>), (unsigned)ceil_div(n, THREADS * WIDE), THREADS, 0, y, x, n);
    else
        LAUNCH((gelu_forward_kernel<1>), (unsigned)ceil_div(n, THREADS), THREADS, 0, y, x, n);
}

template <int W>
__global__ void __launch_bounds__(THREADS)
    gelu_backward_kernel(real *dx, real *y, const real *dy, const real *x, size_t n) {
    size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * W;
    if (i + W > n) {
        for (; i < n; i++) {
            float g, v;
            gelu_gradient(g, v, to_float(dy[i]), to_float(x[i]));
            dx[i] = to_real(g);
            y[i] = to_real(v);
        }
        return;
    }
    float g[W], v[W];
    load(g, dy + i);
    load(v, x + i);
#pragma unroll
    for (int j = 0; j < W; j++) gelu_gradient(g[j], v[j], g[j], v[j]);
    store(dx + i, g);
    store(y + i, v);
}

void gelu_backward(real *dx, real *y, const real *dy, const real *x, size_t n) {
    if (is_wide(0, dx, y, dy, x))
        LAUNCH((gelu_backward_kernel<WIDE>), (unsigned)ceil_div(n, THREADS * WIDE), THREADS, 0, dx, y, dy, x, n);
    else
        LAUNCH((gelu_backward_kernel<1>), (unsigned)ceil_div(n, THREADS), THREADS, 0, dx, y, dy, x, n);
}
