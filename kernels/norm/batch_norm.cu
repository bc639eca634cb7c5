/* Batch norm, channels last; kernels/norm/batch_norm.c has the formulas.  Each block sums some rows, with a lane for
 * each channel; the parts are added in order, and then over ranks. */
#include <math.h>

#include "kernels/cuda/rows.cuh"
#include "kernels/device/collective.h"
#include "kernels/norm/batch_norm.h"

extern "C" {
#include "core/distributed.h"
}

enum { WARPS = 8, THREADS = WARPS * WARP, MOST_PARTS = 512 };

enum Sums { SUM, SQUARES, GRADIENTS };

static int parts_of(const BatchNorm *s) { return (int)blocks_for((size_t)s->n, 4 * WARPS, MOST_PARTS); }

/* The sums [2,C], first of this rank and then of all, and the parts [parts,2,C]. */
size_t batch_norm_workspace(const BatchNorm *s) { return ((size_t)parts_of(s) + 1) * 2 * s->C * sizeof(float); }

/* dy at one position, 0 where the ReLU set w xh + b to 0. */
DEVICE float past_relu(real dy, float xh, bool relu, float w, float b) {
    return relu && !(w * xh + b > 0) ? 0 : to_float(dy);
}

/* parts[p] = the sums over every `count`-th eight rows from 8 p on: of x, of (x - mean)^2, or of dz and dz xh. */
template <int KIND>
__global__ void __launch_bounds__(THREADS)
    sums_kernel(float *parts, const real *x, const real *dy, bool relu, BatchNorm s, int count) {
    SHARED(float, shared); /* [2][THREADS] */
    int c = (int)blockIdx.y * WARP + lane_id(), part = (int)blockIdx.x;
    float sum = 0, other = 0, mu = 0, r = 0, w = 0, b = 0;
    if (KIND != SUM && c < s.C) mu = s.mean[c];
    if (KIND == GRADIENTS && c < s.C) r = s.rstd[c], w = s.w[c], b = s.b[c];
    for (size_t n = (size_t)part * WARPS + warp_id(); n < (size_t)s.n && c < s.C; n += (size_t)count * WARPS) {
        float v = to_float(x[n * s.C + c]);
        if (KIND == SUM) sum += v;
        if (KIND == SQUARES) sum += (v - mu) * (v - mu);
        if (KIND == GRADIENTS) {
            float xh = (v - mu) * r, d = past_relu(dy[n * s.C + c], xh, relu, w, b);
            sum += d;
            other += d * xh;
        }
    }
    shared[threadIdx.x] = sum;
    shared[THREADS + threadIdx.x] = other;
    block_sync();
    if (warp_id() || c >= s.C) return;
    for (int i = 1; i < WARPS; i++) {
        sum += shared[i * WARP + lane_id()];
        other += shared[THREADS + i * WARP + lane_id()];
    }
    parts[(size_t)part * 2 * s.C + c] = sum;
    parts[(size_t)part * 2 * s.C + s.C + c] = other;
}

/* sums [n] = the sum of parts [count,n]. */
__global__ void __launch_bounds__(THREADS) join_kernel(float *sums, const float *parts, int count, int n) {
    int j = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (j >= n) return;
    float sum = 0;
    for (int p = 0; p < count; p++) sum += parts[(size_t)p * n + j];
    sums[j] = sum;
}

/* Computes the mean from the sum of x, or the other statistics from the sum of squares; `rows`: of all ranks. */
__global__ void __launch_bounds__(THREADS)
    statistics_kernel(const float *sums, bool squares, BatchNorm s, float rows) {
    int c = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (c >= s.C) return;
    float mean = sums[c] / rows;
    if (!squares) {
        s.mean[c] = mean;
        s.running_mean[c] = (1 - s.momentum) * s.running_mean[c] + s.momentum * mean;
        return;
    }
    s.rstd[c] = 1 / sqrtf(mean + s.eps);
    s.running_var[c] = (1 - s.momentum) * s.running_var[c] + s.momentum * (sums[c] / fmaxf(rows - 1, 1));
}

__global__ void __launch_bounds__(THREADS) running_kernel(BatchNorm s) {
    int c = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (c >= s.C) return;
    s.mean[c] = s.running_mean[c];
    s.rstd[c] = 1 / sqrtf(s.running_var[c] + s.eps);
}

__global__ void __launch_bounds__(THREADS) normalize_kernel(real *y, const real *x, bool relu, BatchNorm s) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= (size_t)s.n * s.C) return;
    int c = (int)(i - quotient(i, s.C) * s.C);
    float v = s.w[c] * ((to_float(x[i]) - s.mean[c]) * s.rstd[c]) + s.b[c];
    y[i] = to_real(relu && !(v > 0) ? 0 : v);
}

__global__ void __launch_bounds__(THREADS) parameters_kernel(float *dw, float *db, const float *sums, int C) {
    int c = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (c >= C) return;
    db[c] += sums[c];
    dw[c] += sums[C + c];
}

__global__ void __launch_bounds__(THREADS)
    input_kernel(real *dx, const real *dy, const real *x, const float *sums, bool relu, BatchNorm s, float rows) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= (size_t)s.n * s.C) return;
    int c = (int)(i - quotient(i, s.C) * s.C);
    float xh = (to_float(x[i]) - s.mean[c]) * s.rstd[c], d = past_relu(dy[i], xh, relu, s.w[c], s.b[c]);
    dx[i] = to_real(s.w[c] * s.rstd[c] * (d - sums[c] / rows - xh * (sums[s.C + c] / rows)));
}

/* Computes this rank's sums. */
template <int KIND>
static float *sums_of(const real *x, const real *dy, bool relu, const BatchNorm *s) {
    float *sums = static_cast<float *>(kernels_workspace(batch_norm_workspace(s))), *parts = sums + 2 * s->C;
    int count = parts_of(s);
    LAUNCH((sums_kernel<KIND>), dim3((unsigned)count, (unsigned)ceil_div(s->C, WARP)), THREADS,
           2 * THREADS * sizeof(float), parts, x, dy, relu, *s, count);
    LAUNCH(join_kernel, (unsigned)ceil_div(2 * (size_t)s->C, THREADS), THREADS, 0, sums, parts, count, 2 * s->C);
    return sums;
}

static void share(float *sums, const BatchNorm *s) {
    all_reduce_start(sums, 2 * (size_t)s->C);
    all_reduce_finish();
}

static float rows_of(const BatchNorm *s) { return (float)s->n * (float)distributed_ranks(); }

static void normalize(real *y, const real *x, bool relu, const BatchNorm *s) {
    LAUNCH(normalize_kernel, (unsigned)ceil_div((size_t)s->n * s->C, THREADS), THREADS, 0, y, x, relu, *s);
}

void batch_norm_forward(real *y, const real *x, bool relu, const BatchNorm *s) {
    unsigned channels = (unsigned)ceil_div(s->C, THREADS);
    float *sums = sums_of<SUM>(x, NULL, false, s);
    share(sums, s);
    LAUNCH(statistics_kernel, channels, THREADS, 0, sums, false, *s, rows_of(s));
    sums = sums_of<SQUARES>(x, NULL, false, s);
    share(sums, s);
    LAUNCH(statistics_kernel, channels, THREADS, 0, sums, true, *s, rows_of(s));
    normalize(y, x, relu, s);
}

void batch_norm_inference(real *y, const real *x, bool relu, const BatchNorm *s) {
    LAUNCH(running_kernel, (unsigned)ceil_div(s->C, THREADS), THREADS, 0, *s);
    normalize(y, x, relu, s);
}

void batch_norm_backward(real *dx, float *dw, float *db, const real *dy, const real *x, bool relu,
                         const BatchNorm *s) {
    float *sums = sums_of<GRADIENTS>(x, dy, relu, s);
    LAUNCH(parameters_kernel, (unsigned)ceil_div(s->C, THREADS), THREADS, 0, dw, db, sums, s->C);
    share(sums, s);
    LAUNCH(input_kernel, (unsigned)ceil_div((size_t)s->n * s->C, THREADS), THREADS, 0, dx, dy, x, sums, relu, *s,
           rows_of(s));
}
