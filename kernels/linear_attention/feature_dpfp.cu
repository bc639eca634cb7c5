/* The deterministic parameter-free projection; kernels/linear_attention/feature_dpfp.c has the formulas.  There is a
 * thread for each feature, and for each element of dz. */
#include "kernels/cuda/rows.cuh"
#include "kernels/linear_attention/feature_maps.h"
#include "kernels/softmax/attention_shape.h"

enum { THREADS = 256 };

/* u_i of a row z [D], indices modulo 2D. */
DEVICE float rectified(const real *z, int i, int D) {
    if (i < 0) i += 2 * D;
    if (i >= 2 * D) i -= 2 * D;
    float x = i < D ? to_float(z[i]) : -to_float(z[i - D]);
    return x < 0 ? 0 : x;
}

/* The offset of a row in qkv, which skips v after the last head of k. */
DEVICE size_t row_at(size_t row, int H, int D) { return (row + quotient(row, 2 * H) * H) * D; }

__global__ void __launch_bounds__(THREADS)
    feature_dpfp_forward_kernel(real *phi, const real *qkv, size_t count, int H, int D, float scale) {
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= count) return;
    size_t row = quotient(at, 2 * D);
    int i = (int)(at - row * 2 * D);
    const real *z = qkv + row_at(row, H, D);
    phi[at] = to_real(scale * rectified(z, i, D) * rectified(z, i - 1, D));
}

void feature_dpfp_forward(real *phi, const real *qkv, const FeatureShape *shape) {
    size_t n = (size_t)shape->B * shape->N;
    int H = shape->H, D = shape->D;
    size_t count = n * 2 * H * 2 * D;
    LAUNCH(feature_dpfp_forward_kernel, (unsigned)ceil_div(count, THREADS), THREADS, 0, phi, qkv, count, H, D,
           1 / sqrtf((float)D));
}

__global__ void __launch_bounds__(THREADS)
    feature_dpfp_backward_kernel(real *dqkv, const real *dphi, const real *qkv, size_t count, int H, int D,
                                 float scale) {
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= count) return;
    size_t row = quotient(at, D);
    int i = (int)(at - row * D);
    const real *z = qkv + row_at(row, H, D), *slope = dphi + row * 2 * D;
    float x = to_float(z[i]), dz = x * 0;
    if (x > 0) {
        dz = to_float(slope[i]) * rectified(z, i - 1, D) + to_float(slope[i + 1]) * rectified(z, i + 1, D);
    } else if (x < 0) {
        float next = to_float(slope[i + 1 < D ? D + i + 1 : 0]);
        dz = -to_float(slope[D + i]) * rectified(z, D + i - 1, D) - next * rectified(z, D + i + 1, D);
    }
    dqkv[row_at(row, H, D) + i] = to_real(scale * dz);
}

void feature_dpfp_backward(real *dqkv, const real *dphi, const real *qkv, const FeatureShape *shape) {
    size_t n = (size_t)shape->B * shape->N;
    int H = shape->H, D = shape->D;
    size_t count = n * 2 * H * D;
    LAUNCH(feature_dpfp_backward_kernel, (unsigned)ceil_div(count, THREADS), THREADS, 0, dqkv, dphi, qkv, count, H, D,
           1 / sqrtf((float)D));
}
