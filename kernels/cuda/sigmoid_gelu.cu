/* y = x sigmoid(1.702 x); kernels/cpu/sigmoid_gelu.c has the formulas.  One exponential and one reciprocal each. */
#include "kernels/cuda/rows.cuh"
#include "kernels/kernels.h"

enum { THREADS = 256 };

DEVICE float sigmoid_of(float x) { return fast_reciprocal(1 + fast_exp2(-1.702f * 1.44269504f * x)); }

template <int W>
__global__ void __launch_bounds__(THREADS) sigmoid_gelu_forward_kernel(real *y, const real *x, size_t n) {
    size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * W;
    if (i + W > n) {
        for (; i < n; i++) y[i] = to_real(to_float(x[i]) * sigmoid_of(to_float(x[i])));
        return;
    }
    float v[W];
    load(v, x + i);
#pragma unroll
    for (int j = 0; j < W; j++) v[j] *= sigmoid_of(v[j]);
    store(y + i, v);
}

void sigmoid_gelu_forward(real *y, const real *x, size_t n) {
    if (is_wide(0, y, x))
        LAUNCH((sigmoid_gelu_forward_kernel<WIDE>), (unsigned)ceil_div(n, THREADS * WIDE), THREADS, 0, y, x, n);
    else
        LAUNCH((sigmoid_gelu_forward_kernel<1>), (unsigned)ceil_div(n, THREADS), THREADS, 0, y, x, n);
}

DEVICE void sigmoid_gelu_gradient(float &dx, float &y, float dy, float x) {
    float s = sigmoid_of(x);
    y = x * s;
    dx = dy * fmaf(1.702f * y, 1 - s, s);
}

template <int W>
__global__ void __launch_bounds__(THREADS)
    sigmoid_gelu_backward_kernel(real *dx, real *y, const real *dy, const real *x, size_t n) {
    size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * W;
    if (i + W > n) {
        for (; i < n; i++) {
            float g, v;
            sigmoid_gelu_gradient(g, v, to_float(dy[i]), to_float(x[i]));
            dx[i] = to_real(g);
            y[i] = to_real(v);
        }
        return;
    }
    float g[W], v[W];
    load(g, dy + i);
    load(v, x + i);
#pragma unroll
    for (int j = 0; j < W; j++) sigmoid_gelu_gradient(g[j], v[j], g[j], v[j]);
    store(dx + i, g);
    store(y + i, v);
}

void sigmoid_gelu_backward(real *dx, real *y, const real *dy, const real *x, size_t n) {
    if (is_wide(0, dx, y, dy, x))
        LAUNCH((sigmoid_gelu_backward_kernel<WIDE>), (unsigned)ceil_div(n, THREADS * WIDE), THREADS, 0, dx, y, dy, x,
               n);
    else
        LAUNCH((sigmoid_gelu_backward_kernel<1>), (unsigned)ceil_div(n, THREADS), THREADS, 0, dx, y, dy, x, n);
}
