/* Kernels of activation functions.  F::value(x) is the activation;  F::gradient(dx, y, dy, x) sets the gradient and,
 * since the backward pass of the next layer needs it, the activation again, which is not stored if y is NULL. */
#ifndef VIT_KERNELS_CUDA_ACTIVATION_CUH
#define VIT_KERNELS_CUDA_ACTIVATION_CUH

#include "kernels/cuda/rows.cuh"

enum { ACTIVATION_THREADS = 256 };

/* The first of the W numbers of this thread. */
template <int W>
DEVICE size_t activation_index() {
    return ((size_t)blockIdx.x * ACTIVATION_THREADS + threadIdx.x) * W;
}

template <typename F, int W>
__global__ void __launch_bounds__(ACTIVATION_THREADS) activation_forward_kernel(real *y, const real *x, size_t n) {
    size_t i = activation_index<W>();
    if (i + W > n) {
        for (; i < n; i++) y[i] = to_real(F::value(to_float(x[i])));
        return;
    }
    float v[W];
    load(v, x + i);
#pragma unroll
    for (int j = 0; j < W; j++) v[j] = F::value(v[j]);
    store(y + i, v);
}

template <typename F, int W>
__global__ void __launch_bounds__(ACTIVATION_THREADS)
    activation_backward_kernel(real *dx, real *y, const real *dy, const real *x, size_t n) {
    size_t i = activation_index<W>();
    if (i + W > n) {
        for (; i < n; i++) {
            float g, v;
            F::gradient(g, v, to_float(dy[i]), to_float(x[i]));
            dx[i] = to_real(g);
            if (y) y[i] = to_real(v);
        }
        return;
    }
    float g[W], v[W];
    load(g, dy + i);
    load(v, x + i);
#pragma unroll
    for (int j = 0; j < W; j++) F::gradient(g[j], v[j], g[j], v[j]);
    store(dx + i, g);
    if (y) store(y + i, v);
}

template <typename F>
void activation_forward(real *y, const real *x, size_t n) {
    const int W = is_wide(0, y, x) ? WIDE : 1;
    unsigned blocks = (unsigned)ceil_div(n, ACTIVATION_THREADS * W);
    if (W == WIDE) LAUNCH((activation_forward_kernel<F, WIDE>), blocks, ACTIVATION_THREADS, 0, y, x, n);
    else LAUNCH((activation_forward_kernel<F, 1>), blocks, ACTIVATION_THREADS, 0, y, x, n);
}

template <typename F>
void activation_backward(real *dx, real *y, const real *dy, const real *x, size_t n) {
    const int W = is_wide(0, dx, y, dy, x) ? WIDE : 1;
    unsigned blocks = (unsigned)ceil_div(n, ACTIVATION_THREADS * W);
    if (W == WIDE) LAUNCH((activation_backward_kernel<F, WIDE>), blocks, ACTIVATION_THREADS, 0, dx, y, dy, x, n);
    else LAUNCH((activation_backward_kernel<F, 1>), blocks, ACTIVATION_THREADS, 0, dx, y, dy, x, n);
}

#endif
