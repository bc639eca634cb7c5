/* The mean of tokens weighted by a softmax of their scores; kernels/tokens/sequence_pool.h has the formulas.  A block
 * processes an image: its warps share the tokens, then its threads share the columns. */
#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/tokens/sequence_pool.h"

enum { THREADS = 256, WARPS = THREADS / WARP, SUM_ROWS = 8 };

/* x.v of rows [M], by a warp. */
template <class T>
DEVICE float row_dot(const real *__restrict__ x, const T *__restrict__ v, int M) {
    float sum = 0;
    for (int m = lane_id(); m < M; m += WARP) sum += to_float(x[m]) * to_float(v[m]);
    return warp_sum(sum);
}

__global__ void __launch_bounds__(THREADS)
    sequence_pool_kernel(real *y, float *a, const real *__restrict__ x, const float *__restrict__ w, int N, int M) {
    SHARED(float, scratch); /* [WARPS] */
    const real *image = x + (size_t)blockIdx.x * N * M;
    float *weights = a + (size_t)blockIdx.x * N, most = -INFINITY, sum = 0;
    for (int n = warp_id(); n < N; n += WARPS) {
        float score = row_dot(image + (size_t)n * M, w, M);
        if (lane_id() == 0) weights[n] = score;
    }
    block_sync();
    for (int n = lane_id(); n < N; n += WARP) most = fmaxf(most, weights[n]);
    most = warp_max(most);
    block_sync(); /* every warp has read the scores */
    for (int n = (int)threadIdx.x; n < N; n += THREADS) sum += weights[n] = expf(weights[n] - most);
    sum = block_sum(sum, scratch);
    for (int n = (int)threadIdx.x; n < N; n += THREADS) weights[n] /= sum;
    block_sync();
    for (int m = (int)threadIdx.x; m < M; m += THREADS) {
        float total = 0;
#pragma unroll 4
        for (int n = 0; n < N; n++) total += weights[n] * to_float(image[(size_t)n * M + m]);
        y[(size_t)blockIdx.x * M + m] = to_real(total);
    }
}

void sequence_pool_forward(real *y, float *a, const real *x, const float *w, const TokenShape *shape) {
    LAUNCH(sequence_pool_kernel, (unsigned)shape->B, THREADS, WARPS * sizeof(float), y, a, x, w, shape->N, shape->M);
}

__global__ void __launch_bounds__(THREADS)
    sequence_pool_backward_kernel(real *dx, float *ds, const real *__restrict__ dy, const real *__restrict__ x,
                                  const float *__restrict__ w, const float *__restrict__ a, int N, int M) {
    SHARED(float, scratch); /* [WARPS] */
    size_t first = (size_t)blockIdx.x * N;
    const real *slope = dy + (size_t)blockIdx.x * M;
    float mean = 0;
    for (int n = warp_id(); n < N; n += WARPS) {
        float da = row_dot(x + (first + n) * M, slope, M);
        if (lane_id() == 0) {
            ds[first + n] = da;
            mean += a[first + n] * da;
        }
    }
    mean = block_sum(mean, scratch);
    for (int n = warp_id(); n < N; n += WARPS) {
        float weight = a[first + n], score = weight * (ds[first + n] - mean);
        warp_sync(); /* every lane has read it */
        if (lane_id() == 0) ds[first + n] = score;
        for (int m = lane_id(); m < M; m += WARP)
            dx[(first + n) * M + m] = to_real(weight * to_float(slope[m]) + score * w[m]);
    }
}

/* Each lane has a column, each warp of the block every n-th row. */
__global__ void __launch_bounds__(SUM_ROWS *WARP)
    sequence_pool_weight_kernel(float *dw, const float *__restrict__ ds, const real *__restrict__ x, size_t rows, int M) {
    SHARED(float, sums); /* [SUM_ROWS][WARP] */
    int m = (int)blockIdx.x * WARP + lane_id();
    float sum = 0;
    for (size_t i = warp_id(); m < M && i < rows; i += SUM_ROWS) sum += ds[i] * to_float(x[i * M + m]);
    sums[threadIdx.x] = sum;
    block_sync();
    if (warp_id() > 0 || m >= M) return;
    for (int i = 1; i < SUM_ROWS; i++) sum += sums[i * WARP + lane_id()];
    dw[m] += sum;
}

void sequence_pool_backward(real *dx, float *dw, float *ds, const real *dy, const real *x, const float *w,
                            const float *a, const TokenShape *shape) {
    int B = shape->B, N = shape->N, M = shape->M;
    LAUNCH(sequence_pool_backward_kernel, (unsigned)B, THREADS, WARPS * sizeof(float), dx, ds, dy, x, w, a, N, M);
    LAUNCH(sequence_pool_weight_kernel, (unsigned)ceil_div(M, WARP), SUM_ROWS *WARP, SUM_ROWS *WARP * sizeof(float), dw, ds,
           x, (size_t)B * N, M);
}
