/* Cross-entropy against soft targets and its gradient; kernels/training/cross_entropy.c has the formulas.  A warp
 * processes one row in three passes; the second and third read it from the first-level cache.  Sums are tree-shaped in
 * float: a loss is rounded to float anyway. */
#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/training/optimizer.h"

/* A block has few warps, because a batch has few rows, which should be spread over the multiprocessors. */
enum { ROWS = 4 };

__global__ void __launch_bounds__(ROWS *WARP)
    cross_entropy_kernel(float *loss, real *dlogits, const real *__restrict__ logits, const float *__restrict__ targets,
                         float scale, int B, int C) {
    int b = (int)blockIdx.x * ROWS + warp_id();
    if (b >= B) return;
    const real *x = logits + (size_t)b * C;
    const float *t = targets + (size_t)b * C;
    float max = -INFINITY, sum = 0, dot = 0;
    for (int c = lane_id(); c < C; c += WARP) max = fmaxf(max, to_float(x[c]));
    max = warp_max(max);
    for (int c = lane_id(); c < C; c += WARP) {
        float shifted = to_float(x[c]) - max;
        sum += expf(shifted);
        if (t[c] != 0) dot += t[c] * shifted; /* so that a logit of -infinity adds 0 where the target is 0 */
    }
    sum = warp_sum(sum);
    dot = warp_sum(dot);
    if (lane_id() == 0) loss[b] = logf(sum) - dot;
    if (!dlogits) return;
    real *dx = dlogits + (size_t)b * C;
    float inverse = 1 / sum;
    for (int c = lane_id(); c < C; c += WARP) dx[c] = to_real(scale * (expf(to_float(x[c]) - max) * inverse - t[c]));
}

void cross_entropy(float *loss, real *dlogits, const real *logits, const float *targets, float scale, int B, int C) {
    LAUNCH(cross_entropy_kernel, (unsigned)ceil_div(B, ROWS), ROWS * WARP, 0, loss, dlogits, logits, targets, scale, B,
           C);
}

__global__ void __launch_bounds__(ROWS *WARP)
    weigh_losses_kernel(float *loss, real *dlogits, const float *__restrict__ weights, int B, int C) {
    int b = (int)blockIdx.x * ROWS + warp_id();
    if (b >= B) return;
    float weight = weights[b];
    if (lane_id() == 0) loss[b] *= weight;
    real *dx = dlogits + (size_t)b * C;
    for (int c = lane_id(); c < C; c += WARP) dx[c] = to_real(weight * to_float(dx[c]));
}

void weigh_losses(float *loss, real *dlogits, const float *weights, int B, int C) {
    LAUNCH(weigh_losses_kernel, (unsigned)ceil_div(B, ROWS), ROWS *WARP, 0, loss, dlogits, weights, B, C);
}
