/* Hydra attention; kernels/linear_attention/hydra.c has the formulas.  A warp computes the
 * norms and gradients of a token.  A block adds 32 channels of an image over the tokens: each lane has a channel, and the
 * block's warps share the tokens. */
#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/linear_attention/operator_features.h"
#include "kernels/softmax/attention_shape.h"

enum { THREADS = 256, WARPS = THREADS / WARP };

static const float LONGEST_INVERSE = 1e6f;

/* Row i of the rows of q and k, which alternate from token to token. */
__global__ void __launch_bounds__(THREADS)
    hydra_norm_kernel(float *inverse, const real *__restrict__ qkv, size_t rows, int M) {
    size_t i = (size_t)blockIdx.x * WARPS + warp_id();
    if (i >= rows) return;
    const real *z = qkv + (i / 2 * 3 + i % 2) * M;
    float squares = 0;
    for (int m = lane_id(); m < M; m += WARP) squares += to_float(z[m]) * to_float(z[m]);
    float x = 1 / sqrtf(warp_sum(squares));
    if (lane_id() == 0) inverse[i] = x > LONGEST_INVERSE ? LONGEST_INVERSE : x;
}

/* sum [B,M] of scale[2 n] a_n b_n over an image's tokens. */
__global__ void __launch_bounds__(THREADS)
    hydra_sum_kernel(float *sum, const real *__restrict__ a, int a_row, const real *__restrict__ b, int b_row,
                     const float *__restrict__ scale, int N, int M, unsigned groups) {
    SHARED(float, scratch); /* [THREADS] */
    size_t image = blockIdx.x / groups, first = image * N;
    int c = (int)(blockIdx.x % groups) * WARP + lane_id();
    float part = 0;
    for (size_t n = first + warp_id(); n < first + N && c < M; n += WARPS)
        part += scale[2 * n] * to_float(a[n * a_row + c]) * to_float(b[n * b_row + c]);
    scratch[threadIdx.x] = part;
    block_sync();
    if (warp_id() || c >= M) return;
    for (int w = 1; w < WARPS; w++) part += scratch[w * WARP + lane_id()];
    sum[image * M + c] = part;
}

__global__ void __launch_bounds__(THREADS)
    hydra_forward_kernel(real *y, const float *__restrict__ inverse, const float *__restrict__ kv,
                         const real *__restrict__ qkv, size_t tokens, int N, int M) {
    size_t n = (size_t)blockIdx.x * WARPS + warp_id();
    if (n >= tokens) return;
    const float *sum = kv + n / N * M;
    for (int m = lane_id(); m < M; m += WARP)
        y[n * M + m] = to_real(inverse[2 * n] * to_float(qkv[n * 3 * M + m]) * sum[m]);
}

__global__ void __launch_bounds__(THREADS)
    hydra_backward_kernel(real *dqkv, const float *__restrict__ dkv, const real *__restrict__ dy,
                          const float *__restrict__ inverse, const float *__restrict__ kv, const real *__restrict__ qkv,
                          size_t tokens, int N, int M) {
    size_t n = (size_t)blockIdx.x * WARPS + warp_id();
    if (n >= tokens) return;
    const real *q = qkv + n * 3 * M, *k = q + M, *v = k + M;
    const float *sum = kv + n / N * M, *dsum = dkv + n / N * M;
    float q_inverse = inverse[2 * n], k_inverse = inverse[2 * n + 1], q_dot = 0, k_dot = 0;
    for (int m = lane_id(); m < M; m += WARP) {
        q_dot += to_float(q[m]) * to_float(dy[n * M + m]) * sum[m];
        k_dot += to_float(k[m]) * to_float(v[m]) * dsum[m];
    }
    q_dot = warp_sum(q_dot);
    k_dot = warp_sum(k_dot);
    float q_along = q_inverse < LONGEST_INVERSE ? q_dot * q_inverse * q_inverse : 0;
    float k_along = k_inverse < LONGEST_INVERSE ? k_dot * k_inverse * k_inverse : 0;
    real *dq = dqkv + n * 3 * M;
    for (int m = lane_id(); m < M; m += WARP) {
        dq[m] = to_real(q_inverse * (to_float(dy[n * M + m]) * sum[m] - q_along * to_float(q[m])));
        dq[M + m] = to_real(k_inverse * (to_float(v[m]) * dsum[m] - k_along * to_float(k[m])));
        dq[2 * M + m] = to_real(k_inverse * to_float(k[m]) * dsum[m]);
    }
}

static void sum_products(float *sum, const real *a, int a_row, const real *b, int b_row, const float *scale, int B,
                         int N, int M) {
    unsigned groups = (unsigned)ceil_div(M, WARP);
    LAUNCH(hydra_sum_kernel, (unsigned)B * groups, THREADS, THREADS * sizeof(float), sum, a, a_row, b, b_row, scale, N,
           M, groups);
}

void hydra_attention_forward(real *y, float *inverse, float *kv, const real *qkv, const AttentionShape *shape) {
    int B = shape->B, N = shape->N, M = shape->H * shape->D;
    size_t tokens = (size_t)B * N;
    LAUNCH(hydra_norm_kernel, (unsigned)ceil_div(2 * tokens, WARPS), THREADS, 0, inverse, qkv, 2 * tokens, M);
    sum_products(kv, qkv + M, 3 * M, qkv + 2 * M, 3 * M, inverse + 1, B, N, M);
    LAUNCH(hydra_forward_kernel, (unsigned)ceil_div(tokens, WARPS), THREADS, 0, y, inverse, kv, qkv, tokens, N, M);
}

void hydra_attention_backward(real *dqkv, float *dkv, const real *dy, const float *inverse, const float *kv,
                              const real *qkv, const AttentionShape *shape) {
    int B = shape->B, N = shape->N, M = shape->H * shape->D;
    size_t tokens = (size_t)B * N;
    sum_products(dkv, dy, M, qkv, 3 * M, inverse, B, N, M);
    LAUNCH(hydra_backward_kernel, (unsigned)ceil_div(tokens, WARPS), THREADS, 0, dqkv, dkv, dy, inverse, kv, qkv,
           tokens, N, M);
}
