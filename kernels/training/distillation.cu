/* Losses against a teacher; kernels/training/distillation.h has the formulas.  A warp processes one row; sums are
 * tree-shaped in float, and the loss is rounded to float anyway. */
#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/training/distillation.h"

enum { ROWS = 4, THREADS = 256 };

__global__ void __launch_bounds__(THREADS) logits_mean_kernel(real *y, const real *a, const real *b, size_t n) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) y[i] = to_real((to_float(a[i]) + to_float(b[i])) / 2);
}

void logits_mean(real *y, const real *a, const real *b, size_t n) {
    LAUNCH(logits_mean_kernel, (unsigned)ceil_div(n, THREADS), THREADS, 0, y, a, b, n);
}

DEVICE float row_max(const real *x, int C) {
    float max = -INFINITY;
    for (int c = lane_id(); c < C; c += WARP) max = fmaxf(max, to_float(x[c]));
    return warp_max(max);
}

/* sum_c exp((x_c - max) inverse) */
DEVICE float sum_of_exps(const real *x, float max, float inverse, int C) {
    float sum = 0;
    for (int c = lane_id(); c < C; c += WARP) sum += expf((to_float(x[c]) - max) * inverse);
    return warp_sum(sum);
}

/* The index of the row's largest value, the first of equals. */
DEVICE int first_largest(const real *x, float max, int C) {
    float least = (float)C; /* a number of classes is exact in float */
    for (int c = lane_id(); c < C; c += WARP)
        if (to_float(x[c]) == max) least = fminf(least, (float)c);
    return (int)-warp_max(-least);
}

/* q = s(t) weight, or += */
DEVICE void add_targets(float *q, const real *t, float weight, float tau, bool adds, int C) {
    float max = row_max(t, C), factor = 0, inverse = tau > 0 ? 1 / tau : 0;
    int best = first_largest(t, max, C);
    if (tau > 0) factor = weight / sum_of_exps(t, max, inverse, C);
    for (int c = lane_id(); c < C; c += WARP) {
        float share = tau > 0 ? factor * expf((to_float(t[c]) - max) * inverse) : c == best ? weight : 0;
        q[c] = adds ? q[c] + share : share;
    }
}

__global__ void __launch_bounds__(ROWS *WARP)
    teacher_targets_kernel(float *q, const real *__restrict__ logits, const int *__restrict__ pairs, float lam,
                           float tau, int B, int C) {
    int b = (int)blockIdx.x * ROWS + warp_id();
    if (b >= B) return;
    float *to = q + (size_t)b * C;
    add_targets(to, logits + (size_t)(pairs ? pairs[2 * b] : b) * C, pairs ? lam : 1, tau, false, C);
    if (pairs && lam < 1) add_targets(to, logits + (size_t)pairs[2 * b + 1] * C, 1 - lam, tau, true, C);
}

void teacher_targets(float *q, const real *logits, const int *pairs, float lam, float tau, int B, int C) {
    LAUNCH(teacher_targets_kernel, (unsigned)ceil_div(B, ROWS), ROWS * WARP, 0, q, logits, pairs, lam, tau, B, C);
}

__global__ void __launch_bounds__(ROWS *WARP)
    distillation_loss_kernel(float *loss, real *dlogits, const real *__restrict__ logits,
                             const float *__restrict__ targets, float alpha, float tau, bool adds, float scale, int B,
                             int C) {
    int b = (int)blockIdx.x * ROWS + warp_id();
    if (b >= B) return;
    const real *x = logits + (size_t)b * C;
    const float *q = targets + (size_t)b * C;
    real *dx = dlogits + (size_t)b * C;
    float max = row_max(x, C), inverse = 1 / tau, sum = sum_of_exps(x, max, inverse, C), log_sum = logf(sum), D = 0;
    for (int c = lane_id(); c < C; c += WARP) {
        float shifted = (to_float(x[c]) - max) * inverse, d = scale * alpha * tau * (expf(shifted) / sum - q[c]);
        if (q[c] > 0) D += q[c] * (logf(q[c]) - (shifted - log_sum));
        dx[c] = to_real(adds ? d + to_float(dx[c]) : d);
    }
    D = warp_sum(D);
    if (lane_id() == 0) loss[b] = (1 - alpha) * loss[b] + alpha * tau * tau * D;
}

void distillation_loss(float *loss, real *dlogits, const real *logits, const float *targets, float alpha, float tau,
                       bool adds, float scale, int B, int C) {
    LAUNCH(distillation_loss_kernel, (unsigned)ceil_div(B, ROWS), ROWS * WARP, 0, loss, dlogits, logits, targets, alpha,
           tau, adds, scale, B, C);
}
