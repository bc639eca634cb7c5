/* The optimizer's loops over flat memory: gradient norm, AdamW, moving average.  Nothing here is computed that memory
 * does not hide: 28 bytes a parameter and step for AdamW, 12 for the average, 4 for the norm. */
#include <math.h>

#include "kernels/cuda/rows.cuh"
#include "kernels/kernels.h"

enum { THREADS = 256, FOUR = 4 };

/* Four blocks for each of an H200's 132 multiprocessors.  Fixed, so that the sum has the same bits on every GPU. */
enum { PARTS = 528 };

/* part[block] = the squares of every PARTS-th piece; threads join by halves. */
template <int W>
__global__ void __launch_bounds__(THREADS) squares_kernel(double *part, const float *__restrict__ x, size_t n) {
    SHARED(double, sums); /* [THREADS] */
    size_t thread = (size_t)blockIdx.x * THREADS + threadIdx.x, threads = (size_t)gridDim.x * THREADS, pieces = n / W;
    double sum = 0;
#pragma unroll 4
    for (size_t i = thread; i < pieces; i += threads) {
        float v[W];
        load(v, x + i * W);
#pragma unroll
        for (int j = 0; j < W; j++) sum += (double)v[j] * v[j];
    }
    if (thread < n % W) sum += (double)x[pieces * W + thread] * x[pieces * W + thread];
    sums[threadIdx.x] = sum;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        block_sync();
        if ((int)threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    if (threadIdx.x == 0) part[blockIdx.x] = sums[0];
}

/* The parts are added on the host, which waits for the result anyway.  Their 4 KiB stay for the next call. */
double sum_of_squares(const float *x, size_t n) {
    static double *device_part;
    double part[PARTS], sum = 0;
    if (!device_part) device_part = static_cast<double *>(device_malloc(sizeof part, "gradient norm"));
    if ((uintptr_t)x % 16 == 0)
        LAUNCH((squares_kernel<FOUR>), PARTS, THREADS, THREADS * sizeof(double), device_part, x, n);
    else
        LAUNCH((squares_kernel<1>), PARTS, THREADS, THREADS * sizeof(double), device_part, x, n);
    device_download(part, device_part, sizeof part);
    for (int p = 0; p < PARTS; p++) sum += part[p];
    return sum;
}

/* One step's constants: keep = 1 - lr wd, step = lr / (1 - b1^t), inverse = 1 / sqrt(1 - b2^t). */
struct AdamWStep {
    float beta1, beta2, eps, scale, keep, step, inverse;
};

DEVICE void adamw(float &w, float &m, float &v, float g, AdamWStep s) {
    g *= s.scale;
    m = s.beta1 * m + (1 - s.beta1) * g;
    v = s.beta2 * v + (1 - s.beta2) * g * g;
    w = s.keep * w - s.step * m / (sqrtf(v) * s.inverse + s.eps);
}

template <int W>
__global__ void __launch_bounds__(THREADS)
    adamw_kernel(float *w, float *m, float *v, const float *__restrict__ g, size_t n, AdamWStep s) {
    size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * W;
    if (i + W > n) {
        for (; i < n; i++) adamw(w[i], m[i], v[i], g[i], s);
        return;
    }
    float wi[W], mi[W], vi[W], gi[W];
    load(wi, w + i);
    load(mi, m + i);
    load(vi, v + i);
    load(gi, g + i);
#pragma unroll
    for (int j = 0; j < W; j++) adamw(wi[j], mi[j], vi[j], gi[j], s);
    store(w + i, wi);
    store(m + i, mi);
    store(v + i, vi);
}

void adamw_update(float *w, float *m, float *v, const float *g, size_t n, float lr, float beta1, float beta2, float eps,
                  float weight_decay, float scale, int t) {
    AdamWStep s = {beta1,
                   beta2,
                   eps,
                   scale,
                   (float)(1 - (double)lr * weight_decay),
                   (float)(lr / (1 - pow((double)beta1, t))),
                   (float)(1 / sqrt(1 - pow((double)beta2, t)))};
    if (((uintptr_t)w | (uintptr_t)m | (uintptr_t)v | (uintptr_t)g) % 16 == 0)
        LAUNCH((adamw_kernel<FOUR>), (unsigned)ceil_div(n, THREADS * FOUR), THREADS, 0, w, m, v, g, n, s);
    else
        LAUNCH((adamw_kernel<1>), (unsigned)ceil_div(n, THREADS), THREADS, 0, w, m, v, g, n, s);
    memory_changed(w);
}

template <int W>
__global__ void __launch_bounds__(THREADS) ema_kernel(float *ema, const float *__restrict__ w, size_t n, float decay) {
    size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * W;
    if (i + W > n) {
        for (; i < n; i++) ema[i] = decay * ema[i] + (1 - decay) * w[i];
        return;
    }
    float average[W], now[W];
    load(average, ema + i);
    load(now, w + i);
#pragma unroll
    for (int j = 0; j < W; j++) average[j] = decay * average[j] + (1 - decay) * now[j];
    store(ema + i, average);
}

void ema_update(float *ema, const float *w, size_t n, float decay) {
    if (((uintptr_t)ema | (uintptr_t)w) % 16 == 0)
        LAUNCH((ema_kernel<FOUR>), (unsigned)ceil_div(n, THREADS * FOUR), THREADS, 0, ema, w, n, decay);
    else
        LAUNCH((ema_kernel<1>), (unsigned)ceil_div(n, THREADS), THREADS, 0, ema, w, n, decay);
    memory_changed(ema);
}
