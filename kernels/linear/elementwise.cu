/* Elementwise operations; the formulas are in kernels/linear/elementwise.c.  In dropout sixteen threads share 128
 * elements: each has the eight about which one Philox block decides, so that a warp reads and writes whole cache
 * lines. */
#include "kernels/linear/dropout.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/device/device.h"
#include "kernels/linear/dropout.h"
#include "kernels/linear/elementwise.h"

enum { DROPOUT_THREADS = 256, PARTS = DROPOUT_GROUP / DROPOUT_SIDE };

/* n numbers of an image, `groups` times 128 of them at most; a dropped NaN is 0. */
template <bool RELU>
__global__ void __launch_bounds__(DROPOUT_THREADS)
    dropout_kernel(real *y, const real *x, DropoutDraw d, size_t n, size_t groups, size_t count) {
    size_t thread = (size_t)blockIdx.x * DROPOUT_THREADS + threadIdx.x, group = thread / DROPOUT_SIDE;
    if (group >= count) return;
    size_t image = group / groups, first = (group - image * groups) * DROPOUT_GROUP + thread % DROPOUT_SIDE;
    RngBlock block = dropout_block(d, (int)image, first);
    y += image * n;
    x += image * n;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        size_t i = first + part * DROPOUT_SIDE;
        if (i >= n) break;
        float v = to_float(x[i]), factor = dropout_factor(d, block, part);
        if (RELU && v < 0) v = 0;
        y[i] = to_real(factor > 0 ? factor * v : 0);
    }
}

template <bool RELU>
static void pass(real *y, const real *x, const Dropout *dropout, int B, size_t n) {
    size_t groups = ceil_div(n, DROPOUT_GROUP), count = B * groups;
    LAUNCH((dropout_kernel<RELU>), (unsigned)ceil_div(count * DROPOUT_SIDE, DROPOUT_THREADS), DROPOUT_THREADS, 0, y, x,
           dropout_draw(dropout), n, groups, count);
}

/* Each thread computes W elements: put(v, i) loads those at i and computes v. */
template <int W, typename Put>
__global__ void __launch_bounds__(DROPOUT_THREADS) each_kernel(real *y, size_t n, Put put) {
    size_t i = ((size_t)blockIdx.x * DROPOUT_THREADS + threadIdx.x) * W;
    if (i + W > n) {
        for (; i < n; i++) {
            float v[1];
            put(v, i);
            store(y + i, v);
        }
        return;
    }
    float v[W];
    put(v, i);
    store(y + i, v);
}

struct Relu {
    const real *x;
    template <int W>
    __device__ void operator()(float (&v)[W], size_t i) const {
        load(v, x + i);
#pragma unroll
        for (int j = 0; j < W; j++) v[j] = v[j] < 0 ? 0 : v[j];
    }
};

struct ReluGradient {
    const real *dy, *y;
    float scale;
    template <int W>
    __device__ void operator()(float (&v)[W], size_t i) const {
        float passed[W];
        load(v, dy + i);
        load(passed, y + i);
#pragma unroll
        for (int j = 0; j < W; j++) v[j] = passed[j] > 0 ? scale * v[j] : 0;
    }
};

struct Sum {
    const real *a, *b;
    template <int W>
    __device__ void operator()(float (&v)[W], size_t i) const {
        float other[W];
        load(v, a + i);
        load(other, b + i);
#pragma unroll
        for (int j = 0; j < W; j++) v[j] += other[j];
    }
};

/* C is a multiple of the elements of a thread, or these are one. */
struct BiasRelu {
    const real *x;
    const float *b;
    int C;
    template <int W>
    __device__ void operator()(float (&v)[W], size_t i) const {
        float bias[W];
        load(v, x + i);
        load(bias, b + (i - quotient(i, C) * C));
#pragma unroll
        for (int j = 0; j < W; j++) v[j] = v[j] + bias[j] < 0 ? 0 : v[j] + bias[j];
    }
};

struct Tanh {
    const real *x;
    template <int W>
    __device__ void operator()(float (&v)[W], size_t i) const {
        load(v, x + i);
#pragma unroll
        for (int j = 0; j < W; j++) v[j] = tanhf(v[j]);
    }
};

struct TanhGradient {
    const real *dy, *y;
    template <int W>
    __device__ void operator()(float (&v)[W], size_t i) const {
        float reached[W];
        load(v, dy + i);
        load(reached, y + i);
#pragma unroll
        for (int j = 0; j < W; j++) v[j] *= 1 - reached[j] * reached[j];
    }
};

template <typename Put>
static void each(real *y, size_t n, bool wide, Put put) {
    if (!n) return;
    if (wide)
        LAUNCH((each_kernel<WIDE, Put>), (unsigned)ceil_div(n, DROPOUT_THREADS * WIDE), DROPOUT_THREADS, 0, y, n, put);
    else LAUNCH((each_kernel<1, Put>), (unsigned)ceil_div(n, DROPOUT_THREADS), DROPOUT_THREADS, 0, y, n, put);
}

void dropout_forward(real *y, const real *x, const Dropout *dropout, int B, size_t n) {
    if (dropout->rate > 0) pass<false>(y, x, dropout, B, n);
    else if (y != x) device_copy(y, x, B * n * sizeof *y);
}

void relu_dropout_forward(real *y, const real *x, const Dropout *dropout, int B, size_t n) {
    if (dropout->rate > 0) pass<true>(y, x, dropout, B, n);
    else each(y, B * n, is_wide(0, y, x), Relu{x});
}

void relu_dropout_backward(real *dx, const real *dy, const real *y, float rate, size_t n) {
    each(dx, n, is_wide(0, dx, dy, y), ReluGradient{dy, y, 1 / (1 - rate)});
}

void add_forward(real *y, const real *a, const real *b, size_t n) { each(y, n, is_wide(0, y, a, b), Sum{a, b}); }

void tanh_forward(real *y, const real *x, size_t n) { each(y, n, is_wide(0, y, x), Tanh{x}); }

void tanh_backward(real *dx, const real *dy, const real *y, size_t n) {
    each(dx, n, is_wide(0, dx, dy, y), TanhGradient{dy, y});
}

void bias_relu_forward(real *y, const real *x, const float *b, size_t n, int C) {
    each(y, n * C, is_wide(C, y, x, b), BiasRelu{x, b, C});
}
