/* Layer norm and GELU without a rounding between them; kernels/norm/norm_gelu.c has the formulas.  Rows are short,
 * those of a head: a warp processes one, and reads it again from the first-level cache. */
#include <math.h>

#include "kernels/cuda/fragments.cuh"
#include "kernels/linear/gelu.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/norm/norm_gelu.h"
#include "kernels/norm/norms.h"

enum { WARPS = 8, THREADS = WARPS * WARP };

__global__ void __launch_bounds__(THREADS) layernorm_gelu_forward_kernel(real *y, const real *x, LayerNorm l) {
    size_t i = (size_t)blockIdx.x * WARPS + warp_id();
    if (i >= l.n) return;
    float sum = 0, squares = 0;
    for (int j = lane_id(); j < l.M; j += WARP) sum += to_float(x[i * l.M + j]);
    float mu = warp_sum(sum) / l.M;
    for (int j = lane_id(); j < l.M; j += WARP) {
        float d = to_float(x[i * l.M + j]) - mu;
        squares += d * d;
    }
    float r = 1 / sqrtf(warp_sum(squares) / l.M + l.eps);
    for (int j = lane_id(); j < l.M; j += WARP)
        y[i * l.M + j] = to_real(gelu(l.w[j] * (to_float(x[i * l.M + j]) - mu) * r + l.b[j]));
    if (lane_id() == 0) {
        l.mean[i] = mu;
        l.rstd[i] = r;
    }
}

__global__ void __launch_bounds__(THREADS)
    layernorm_gelu_backward_kernel(real *dh, const real *dy, const real *x, LayerNorm l) {
    size_t i = (size_t)blockIdx.x * WARPS + warp_id();
    if (i >= l.n) return;
    for (int j = lane_id(); j < l.M; j += WARP) {
        float h = l.w[j] * (to_float(x[i * l.M + j]) - l.mean[i]) * l.rstd[i] + l.b[j], dx, unused;
        gelu_gradient(dx, unused, to_float(dy[i * l.M + j]), h);
        dh[i * l.M + j] = to_real(dx);
    }
}

void layernorm_gelu_forward(real *y, const real *x, const LayerNorm *norm) {
    LAUNCH(layernorm_gelu_forward_kernel, (unsigned)ceil_div(norm->n, WARPS), THREADS, 0, y, x, *norm);
}

void layernorm_gelu_backward(real *dh, const real *dy, const real *x, const LayerNorm *norm) {
    LAUNCH(layernorm_gelu_backward_kernel, (unsigned)ceil_div(norm->n, WARPS), THREADS, 0, dh, dy, x, *norm);
}
