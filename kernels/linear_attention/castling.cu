/* Castling-ViT's angular features; the formulas are in kernels/linear_attention/castling.c.  One warp for each row of a
 * head. */
#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/linear_attention/operator_features.h"
#include "kernels/softmax/attention_shape.h"

enum { THREADS = 256, WARPS = THREADS / WARP };

static const float SHORTEST = 1e-6f, COSINE = 0.564189584f /* 1 / sqrt pi */, CONSTANT = 0.707106781f;

DEVICE float norm_of(const real *z, int D) {
    float squares = 0;
    for (int d = lane_id(); d < D; d += WARP) squares += to_float(z[d]) * to_float(z[d]);
    return sqrtf(warp_sum(squares));
}

/* Row `index` of q and k of all tokens, 2*H to a token. */
DEVICE size_t qkv_at(size_t index, int H, int D) { return (index / (2 * H) * 3 * H + index % (2 * H)) * D; }

__global__ void __launch_bounds__(THREADS)
    angular_forward_kernel(real *phi, const real *__restrict__ qkv, size_t rows, int H, int D) {
    size_t index = (size_t)blockIdx.x * WARPS + warp_id();
    if (index >= rows) return;
    const real *z = qkv + qkv_at(index, H, D);
    float norm = norm_of(z, D), factor = COSINE / (norm < SHORTEST ? SHORTEST : norm);
    for (int d = lane_id(); d < D; d += WARP) phi[index * (D + 1) + d] = to_real(factor * to_float(z[d]));
    if (lane_id() == 0) phi[index * (D + 1) + D] = to_real(CONSTANT);
}

__global__ void __launch_bounds__(THREADS)
    angular_backward_kernel(real *dqkv, const real *__restrict__ dphi, const real *__restrict__ qkv, size_t rows, int H,
                            int D) {
    size_t index = (size_t)blockIdx.x * WARPS + warp_id();
    if (index >= rows) return;
    size_t at = qkv_at(index, H, D);
    const real *z = qkv + at, *g = dphi + index * (D + 1);
    float norm = norm_of(z, D), inverse = 1 / (norm < SHORTEST ? SHORTEST : norm), dot = 0;
    for (int d = lane_id(); d < D; d += WARP) dot += to_float(z[d]) * to_float(g[d]);
    dot = warp_sum(dot);
    float along = norm < SHORTEST ? 0 : dot * inverse * inverse;
    for (int d = lane_id(); d < D; d += WARP)
        dqkv[at + d] = to_real(COSINE * inverse * (to_float(g[d]) - along * to_float(z[d])));
}

void angular_features_forward(real *phi, const real *qkv, const AttentionShape *shape) {
    size_t n = (size_t)shape->B * shape->N;
    int H = shape->H, D = shape->D;
    size_t rows = n * 2 * H;
    LAUNCH(angular_forward_kernel, (unsigned)ceil_div(rows, WARPS), THREADS, 0, phi, qkv, rows, H, D);
}

void angular_features_backward(real *dqkv, const real *dphi, const real *qkv, const AttentionShape *shape) {
    size_t n = (size_t)shape->B * shape->N;
    int H = shape->H, D = shape->D;
    size_t rows = n * 2 * H;
    LAUNCH(angular_backward_kernel, (unsigned)ceil_div(rows, WARPS), THREADS, 0, dqkv, dphi, qkv, rows, H, D);
}
