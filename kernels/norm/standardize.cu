/* Weight standardisation; kernels/norm/standardize.c has the formulas.  A block processes the row of one output. */
#include <math.h>

#include "kernels/cuda/fragments.cuh"
#include "kernels/norm/group_norm.h"

enum { THREADS = 256, WARPS = THREADS / WARP };

__global__ void __launch_bounds__(THREADS) standardize_forward_kernel(float *y, const float *w, Standardized rows) {
    SHARED(float, scratch); /* [WARPS] */
    int o = (int)blockIdx.x, fan = rows.fan;
    size_t first = (size_t)o * fan;
    float sum = 0, squares = 0;
    for (int i = (int)threadIdx.x; i < fan; i += THREADS) sum += w[first + i];
    float mu = block_sum(sum, scratch) / fan;
    for (int i = (int)threadIdx.x; i < fan; i += THREADS) squares += (w[first + i] - mu) * (w[first + i] - mu);
    float r = 1 / sqrtf(block_sum(squares, scratch) / fan + rows.eps);
    for (int i = (int)threadIdx.x; i < fan; i += THREADS) y[first + i] = (w[first + i] - mu) * r;
    if (threadIdx.x) return;
    rows.mean[o] = mu;
    rows.rstd[o] = r;
}

__global__ void __launch_bounds__(THREADS)
    standardize_backward_kernel(float *dw, const float *dy, const float *w, Standardized rows) {
    SHARED(float, scratch); /* [WARPS] */
    int o = (int)blockIdx.x, fan = rows.fan;
    size_t first = (size_t)o * fan;
    float mu = rows.mean[o], r = rows.rstd[o], sum = 0, sum_y = 0;
    for (int i = (int)threadIdx.x; i < fan; i += THREADS) {
        sum += dy[first + i];
        sum_y += dy[first + i] * (w[first + i] - mu) * r;
    }
    float mean = block_sum(sum, scratch) / fan, mean_y = block_sum(sum_y, scratch) / fan;
    for (int i = (int)threadIdx.x; i < fan; i += THREADS)
        dw[first + i] += r * (dy[first + i] - mean - (w[first + i] - mu) * r * mean_y);
}

void standardize_forward(float *y, const float *w, const Standardized *rows) {
    LAUNCH(standardize_forward_kernel, (unsigned)rows->out, THREADS, WARPS * sizeof(float), y, w, *rows);
}

void standardize_backward(float *dw, const float *dy, const float *w, const Standardized *rows) {
    LAUNCH(standardize_backward_kernel, (unsigned)rows->out, THREADS, WARPS * sizeof(float), dw, dy, w, *rows);
}
