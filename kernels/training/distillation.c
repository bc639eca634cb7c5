/* Losses against a teacher; kernels/training/distillation.h has the formulas.  Logits are shifted by their largest
 * before anything is summed, and sums are in double. */
#include "kernels/training/distillation.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/activations.h"

void logits_mean(real *y, const real *a, const real *b, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = real_of((real_get(a[i]) + real_get(b[i])) / 2);
}

static int largest(const real *x, int C) {
    int best = 0;
    for (int c = 1; c < C; c++)
        if (real_get(x[c]) > real_get(x[best])) best = c;
    return best;
}

/* sum_c exp((x_c - max) inverse) */
static double sum_of_exps(const real *x, float max, float inverse, int C) {
    double sum = 0;
    for (int c = 0; c < C; c += TILE) {
        int n = C - c < TILE ? C - c : TILE;
        vec e = vec_exp((real_load_part(x + c, n) - max) * inverse);
        for (int i = 0; i < n; i++) sum += e[i];
    }
    return sum;
}

/* q += weight s(t) */
static void add_targets(float *q, const real *t, float weight, float tau, int C) {
    int best = largest(t, C);
    if (tau <= 0) {
        q[best] += weight;
        return;
    }
    float max = real_get(t[best]), factor = (float)(weight / sum_of_exps(t, max, 1 / tau, C));
    for (int c = 0; c < C; c += TILE) {
        vec e = vec_exp((real_load_part(t + c, C - c) - max) * (1 / tau));
        vec_store_part(q + c, vec_load_part(q + c, C - c) + factor * e, C - c);
    }
}

void teacher_targets(float *q, const real *logits, const int *pairs, float lam, float tau, int B, int C) {
#pragma omp parallel for schedule(static)
    for (int b = 0; b < B; b++) {
        float *to = q + (size_t)b * C;
        memset(to, 0, (size_t)C * sizeof *to);
        add_targets(to, logits + (size_t)(pairs ? pairs[2 * b] : b) * C, pairs ? lam : 1, tau, C);
        if (pairs && lam < 1) add_targets(to, logits + (size_t)pairs[2 * b + 1] * C, 1 - lam, tau, C);
    }
}

static double row_divergence(real *dx, const real *x, const float *q, float weight, float tau, bool adds, int C) {
    float max = real_get(x[largest(x, C)]), inverse = 1 / tau;
    double sum = sum_of_exps(x, max, inverse, C), log_sum = log(sum), D = 0;
    for (int c = 0; c < C; c++)
        if (q[c] > 0) D += (double)q[c] * (log((double)q[c]) - ((double)((real_get(x[c]) - max) * inverse) - log_sum));
    for (int c = 0; c < C; c += TILE) {
        vec p = vec_exp((real_load_part(x + c, C - c) - max) * inverse) * (float)(1 / sum);
        vec d = weight * tau * (p - vec_load_part(q + c, C - c));
        if (adds) d += real_load_part(dx + c, C - c);
        real_store_part(dx + c, d, C - c);
    }
    return (double)tau * (double)tau * D;
}

void distillation_loss(float *loss, real *dlogits, const real *logits, const float *targets, float alpha, float tau,
                       bool adds, float scale, int B, int C) {
#pragma omp parallel for schedule(static)
    for (int b = 0; b < B; b++) {
        size_t at = (size_t)b * C;
        double D = row_divergence(dlogits + at, logits + at, targets + at, scale * alpha, tau, adds, C);
        loss[b] = (float)((1 - (double)alpha) * (double)loss[b] + (double)alpha * D);
    }
}
