/* The gradient's norm, and AdamW with the moving average.  All are limited by memory bandwidth: each parameter needs 28
 * bytes in a step for AdamW, 8 for the average and 4 for the norm. */
#include <math.h>

#include "kernels/cuda/rows.cuh"
#include "kernels/device/device.h"
#include "kernels/training/optimizer.h"

enum { THREADS = 256, FOUR = 4 };

/* Four blocks for each of an H200's 132 multiprocessors.  Fixed, so that the sum has the same bits on every GPU. */
enum { PARTS = 528 };

/* part[block] = the sum of squares over every PARTS-th piece. */
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

/* The parts of a sum, in 4 KiB of memory that are kept for the next call. */
static double *squares(const float *x, size_t n) {
    static double *part;
    if (!part) part = static_cast<double *>(device_malloc(PARTS * sizeof *part, "gradient norm"));
    if ((uintptr_t)x % 16 == 0)
        LAUNCH((squares_kernel<FOUR>), PARTS, THREADS, THREADS * sizeof(double), part, x, n);
    else
        LAUNCH((squares_kernel<1>), PARTS, THREADS, THREADS * sizeof(double), part, x, n);
    return part;
}

/* Added on the host, which waits for the result anyway. */
double sum_of_squares(const float *x, size_t n) {
    double part[PARTS], sum = 0;
    device_download(part, squares(x, n), sizeof part);
    for (int p = 0; p < PARTS; p++) sum += part[p];
    return sum;
}

/* == What a step finds out ======================================================================================== */

/* The same value for every thread of a block of THREADS: the sum of x[0..n-1], each thread adds every THREADS-th
 * number, and then the threads' sums are added in a tree. */
template <typename T>
DEVICE double block_total(const T *__restrict__ x, int n, double *sums) {
    double sum = 0;
    for (int i = (int)threadIdx.x; i < n; i += THREADS) sum += (double)x[i];
    sums[threadIdx.x] = sum;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        block_sync();
        if ((int)threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    block_sync();
    return sums[0];
}

__global__ void __launch_bounds__(THREADS) losses_kernel(StepStats *stats, const float *loss, int B) {
    SHARED(double, sums);
    double sum = block_total(loss, B, sums);
    if (threadIdx.x == 0) stats->loss += sum;
}

void step_add_losses(StepStats *stats, const float *loss, int B) {
    LAUNCH(losses_kernel, 1, THREADS, THREADS * sizeof(double), stats, loss, B);
}

__global__ void __launch_bounds__(THREADS) measure_kernel(StepStats *stats, const double *part, float clip) {
    SHARED(double, sums);
    double sum = block_total(part, PARTS, sums);
    if (threadIdx.x) return;
    float norm = (float)sqrt(sum), scale = clip / (norm + 1e-6f);
    stats->squares = sum;
    stats->scale = clip > 0 && scale < 1 ? scale : 1;
    if (!isfinite(norm) || !isfinite(stats->loss)) stats->scale = NAN;
}

void step_measure(StepStats *stats, const float *g, size_t n, float clip) {
    const double *part = squares(g, n);
    LAUNCH(measure_kernel, 1, THREADS, THREADS * sizeof(double), stats, part, clip);
}

/* == The update =================================================================================================== */

/* One step's constants, the first two for every learning rate: decayed = 1 - lr wd, step = lr / (1 - b1^t),
 * inverse = 1 / sqrt(1 - b2^t). */
struct AdamWConstants {
    float decayed[PIECE_RATES], step[PIECE_RATES], beta1, beta2, eps, scale, inverse, ema_decay;
};

DEVICE void adamw(float &w, float &m, float &v, float g, float scale, float keep, float step,
                  const AdamWConstants &c) {
    g *= scale;
    m = c.beta1 * m + (1 - c.beta1) * g;
    v = c.beta2 * v + (1 - c.beta2) * g * g;
    w = keep * w - step * m / (sqrtf(v) * c.inverse + c.eps);
}

/* A thread has W floats, all of one piece. */
template <int W>
__global__ void __launch_bounds__(THREADS)
    adamw_kernel(float *w, float *m, float *v, float *ema, const float *__restrict__ g,
                 const uint8_t *__restrict__ kinds, size_t n, AdamWConstants c, const StepStats *stats) {
    static_assert(ARENA_PIECE % W == 0);
    size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * W;
    float scale = stats ? stats->scale : c.scale;
    if (i >= n || isnan(scale)) return;
    int kind = kinds[i / ARENA_PIECE] % PIECE_KINDS, rate = kinds[i / ARENA_PIECE] / PIECE_KINDS;
    float step = c.step[rate], keep = kind == PIECE_DECAYED ? c.decayed[rate] : 1;
    float ema_decay = kind == PIECE_FROZEN ? 0 : c.ema_decay;
    if (i + W > n) {
        for (; i < n; i++) {
            if (kind != PIECE_FROZEN) adamw(w[i], m[i], v[i], g[i], scale, keep, step, c);
            if (ema) ema[i] = ema_decay * ema[i] + (1 - ema_decay) * w[i];
        }
        return;
    }
    float wi[W];
    load(wi, w + i);
    if (kind != PIECE_FROZEN) {
        float mi[W], vi[W], gi[W];
        load(mi, m + i);
        load(vi, v + i);
        load(gi, g + i);
#pragma unroll
        for (int j = 0; j < W; j++) adamw(wi[j], mi[j], vi[j], gi[j], scale, keep, step, c);
        store(w + i, wi);
        store(m + i, mi);
        store(v + i, vi);
    }
    if (ema) {
        float average[W];
        load(average, ema + i);
#pragma unroll
        for (int j = 0; j < W; j++) average[j] = ema_decay * average[j] + (1 - ema_decay) * wi[j];
        store(ema + i, average);
    }
}

void adamw_update(float *w, float *m, float *v, float *ema, const float *g, const uint8_t *kinds, size_t n,
                  const AdamWStep *s) {
    double moved = 1 - pow((double)s->beta1, s->t);
    AdamWConstants c = {{}, {}, s->beta1, s->beta2, s->eps, s->scale, (float)(1 / sqrt(1 - pow((double)s->beta2, s->t))),
                        s->ema_decay};
    for (int r = 0; r < s->rate_count; r++) {
        double lr = (double)s->lr * s->rates[r];
        c.decayed[r] = (float)(1 - lr * s->weight_decay);
        c.step[r] = (float)(lr / moved);
    }
    uintptr_t addresses = (uintptr_t)w | (uintptr_t)m | (uintptr_t)v | (uintptr_t)ema | (uintptr_t)g;
    if (!n) return;
    if (addresses % 16 == 0)
        LAUNCH((adamw_kernel<FOUR>), (unsigned)ceil_div(n, THREADS * FOUR), THREADS, 0, w, m, v, ema, g, kinds, n, c,
               s->stats);
    else
        LAUNCH((adamw_kernel<1>), (unsigned)ceil_div(n, THREADS), THREADS, 0, w, m, v, ema, g, kinds, n, c,
               s->stats);
    memory_changed(w);
    if (ema) memory_changed(ema);
}
