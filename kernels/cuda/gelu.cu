/* The exact Gaussian error linear unit; kernels/cpu/gelu.c has the formulas.  The normal distribution's upper tail is
 *   1 - Phi(a) = phi(a) p(t),  t = 1 / (1 + 0.2316419 a),  a >= 0, within 7.5e-8
 * (Abramowitz and Stegun 1964, 26.2.17): one exponential serves Phi and its density, no branch, some twenty
 * instructions; with erff and expf the arithmetic would take longer than the memory. */
#include "kernels/cuda/rows.cuh"
#include "kernels/kernels.h"

enum { THREADS = 256 };

/* Phi(x), and its density.  fmaf where the compiler could choose: forward and backward give the same bits. */
DEVICE float normal(float x, float &density) {
    float t = fast_reciprocal(fmaf(0.2316419f, fabsf(x), 1));
    density = 0.39894228f * fast_exp2(-0.72134752f * x * x);
    float p = fmaf(1.330274429f, t, -1.821255978f);
    p = fmaf(p, t, 1.781477937f);
    p = fmaf(p, t, -0.356563782f);
    p = fmaf(p, t, 0.319381530f) * t;
    return x > 0 ? fmaf(-p, density, 1) : p * density;
}

DEVICE float gelu(float x) {
    float density;
    return x * normal(x, density);
}

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

DEVICE void gelu_gradient(float &dx, float &y, float dy, float x) {
    float density, phi = normal(x, density);
    y = x * phi;
    dx = dy * fmaf(x, density, phi);
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
