/* Cross-entropy against soft targets (label smoothing, mixup), and its gradient.
 *   loss = log sum_c exp(x_c - max) - sum_c t_c (x_c - max),  dx = scale (softmax(x) - t)
 * Logits are shifted before anything is summed, so their size does not matter; sums are in double. */
#include <math.h>

#include "kernels/cpu/activations.h"
#include "kernels/training/optimizer.h"

static float row_loss(real *dx, const real *x, const float *t, float scale, int C) {
    float max = -INFINITY;
    for (int c = 0; c < C; c++) max = real_get(x[c]) > max ? real_get(x[c]) : max;
    double sum = 0, dot = 0;
    for (int c = 0; c < C; c += TILE) {
        int n = C - c < TILE ? C - c : TILE;
        vec shifted = real_load_part(x + c, n) - max, e = vec_exp(shifted), target = vec_load_part(t + c, n);
        for (int i = 0; i < n; i++) {
            sum += e[i];
            if (target[i] != 0) dot += (double)target[i] * shifted[i];
        }
    }
    if (dx)
        for (int c = 0; c < C; c += TILE) {
            vec p = vec_exp(real_load_part(x + c, C - c) - max) * (float)(1 / sum);
            real_store_part(dx + c, scale * (p - vec_load_part(t + c, C - c)), C - c);
        }
    return (float)(log(sum) - dot);
}

void cross_entropy(float *loss, real *dlogits, const real *logits, const float *targets, float scale, int B, int C) {
#pragma omp parallel for schedule(static)
    for (int b = 0; b < B; b++) {
        size_t at = (size_t)b * C;
        loss[b] = row_loss(dlogits ? dlogits + at : NULL, logits + at, targets + at, scale, C);
    }
}

void weigh_losses(float *loss, real *dlogits, const float *weights, int B, int C) {
#pragma omp parallel for schedule(static)
    for (int b = 0; b < B; b++) {
        loss[b] *= weights[b];
        for (size_t i = (size_t)b * C; i < (size_t)(b + 1) * C; i++) dlogits[i] = real_of(weights[b] * real_get(dlogits[i]));
    }
}
