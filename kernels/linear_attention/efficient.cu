/* Efficient attention's features; kernels/linear_attention/efficient.c has the formulas.  For q a
 * warp computes the channels of one head.  For k a block computes 32 channels of an image: each lane has a channel, and
 * the block's warps share the tokens. */
#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/linear_attention/operator_features.h"
#include "kernels/softmax/attention_shape.h"

enum { THREADS = 256, WARPS = THREADS / WARP };

static const float LOG2_E = 1.44269504f;

struct EfficientShape {
    int N, H, D;
    size_t M, rows; /* tokens times heads of all images */
    unsigned groups; /* of 32 channels */
};

/* Sums or maxima of the block's warps, for each lane; the same for all warps. */
template <typename Join>
DEVICE float join_warps(float x, float *scratch, Join join) {
    scratch[threadIdx.x] = x;
    block_sync();
    float total = scratch[lane_id()];
    for (int w = 1; w < WARPS; w++) total = join(total, scratch[w * WARP + lane_id()]);
    block_sync();
    return total;
}

/* The offset of row `index` of q in qkv, and in phi. */
DEVICE size_t qkv_row(size_t index, const EfficientShape &s) { return index / s.H * 3 * s.M + index % s.H * s.D; }
DEVICE size_t phi_row(size_t index, const EfficientShape &s) { return index / s.H * 2 * s.M + index % s.H * s.D; }

__global__ void __launch_bounds__(THREADS) efficient_rows_kernel(real *phi, const real *qkv, EfficientShape s) {
    size_t index = (size_t)blockIdx.x * WARPS + warp_id();
    if (index >= s.rows) return;
    const real *z = qkv + qkv_row(index, s);
    real *p = phi + phi_row(index, s);
    float largest = -INFINITY, sum = 0;
    for (int d = lane_id(); d < s.D; d += WARP) largest = fmaxf(largest, to_float(z[d]));
    largest = warp_max(largest);
    for (int d = lane_id(); d < s.D; d += WARP) sum += fast_exp2(LOG2_E * (to_float(z[d]) - largest));
    sum = warp_sum(sum);
    for (int d = lane_id(); d < s.D; d += WARP) p[d] = to_real(fast_exp2(LOG2_E * (to_float(z[d]) - largest)) / sum);
}

__global__ void __launch_bounds__(THREADS) efficient_columns_kernel(real *phi, const real *qkv, EfficientShape s) {
    SHARED(float, scratch); /* [THREADS] */
    size_t image = blockIdx.x / s.groups, c = blockIdx.x % s.groups * WARP + lane_id();
    bool inside = c < s.M;
    const real *z = qkv + image * s.N * 3 * s.M + s.M + c;
    real *p = phi + image * s.N * 2 * s.M + s.M + c;
    float largest = -INFINITY, sum = 0;
    for (int n = warp_id(); n < s.N && inside; n += WARPS) largest = fmaxf(largest, to_float(z[n * 3 * s.M]));
    largest = join_warps(largest, scratch, [](float a, float b) { return fmaxf(a, b); });
    for (int n = warp_id(); n < s.N && inside; n += WARPS)
        sum += fast_exp2(LOG2_E * (to_float(z[n * 3 * s.M]) - largest));
    sum = join_warps(sum, scratch, [](float a, float b) { return a + b; });
    for (int n = warp_id(); n < s.N && inside; n += WARPS)
        p[n * 2 * s.M] = to_real(fast_exp2(LOG2_E * (to_float(z[n * 3 * s.M]) - largest)) / sum);
}

__global__ void __launch_bounds__(THREADS)
    efficient_rows_backward_kernel(real *dqkv, const real *dphi, const real *phi, EfficientShape s) {
    size_t index = (size_t)blockIdx.x * WARPS + warp_id(), at = phi_row(index, s);
    if (index >= s.rows) return;
    real *dz = dqkv + qkv_row(index, s);
    float dot = 0;
    for (int d = lane_id(); d < s.D; d += WARP) dot += to_float(phi[at + d]) * to_float(dphi[at + d]);
    dot = warp_sum(dot);
    for (int d = lane_id(); d < s.D; d += WARP) dz[d] = to_real(to_float(phi[at + d]) * (to_float(dphi[at + d]) - dot));
}

__global__ void __launch_bounds__(THREADS)
    efficient_columns_backward_kernel(real *dqkv, const real *dphi, const real *phi, EfficientShape s) {
    SHARED(float, scratch); /* [THREADS] */
    size_t image = blockIdx.x / s.groups, c = blockIdx.x % s.groups * WARP + lane_id();
    size_t at = image * s.N * 2 * s.M + s.M + c;
    bool inside = c < s.M;
    real *dz = dqkv + image * s.N * 3 * s.M + s.M + c;
    float dot = 0;
    for (size_t n = warp_id(); n < (size_t)s.N && inside; n += WARPS)
        dot += to_float(phi[at + n * 2 * s.M]) * to_float(dphi[at + n * 2 * s.M]);
    dot = join_warps(dot, scratch, [](float a, float b) { return a + b; });
    for (size_t n = warp_id(); n < (size_t)s.N && inside; n += WARPS)
        dz[n * 3 * s.M] = to_real(to_float(phi[at + n * 2 * s.M]) * (to_float(dphi[at + n * 2 * s.M]) - dot));
}

static EfficientShape shape_of(int B, int N, int H, int D) {
    size_t M = (size_t)H * D;
    return {N, H, D, M, (size_t)B * N * H, (unsigned)ceil_div(M, WARP)};
}

void efficient_features_forward(real *phi, const real *qkv, const AttentionShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D;
    EfficientShape s = shape_of(B, N, H, D);
    LAUNCH(efficient_rows_kernel, (unsigned)ceil_div(s.rows, WARPS), THREADS, 0, phi, qkv, s);
    LAUNCH(efficient_columns_kernel, (unsigned)B * s.groups, THREADS, THREADS * sizeof(float), phi, qkv, s);
}

void efficient_features_backward(real *dqkv, const real *dphi, const real *phi, const AttentionShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D;
    EfficientShape s = shape_of(B, N, H, D);
    LAUNCH(efficient_rows_backward_kernel, (unsigned)ceil_div(s.rows, WARPS), THREADS, 0, dqkv, dphi, phi, s);
    LAUNCH(efficient_columns_backward_kernel, (unsigned)B * s.groups, THREADS, THREADS * sizeof(float), dqkv, dphi, phi,
           s);
}
