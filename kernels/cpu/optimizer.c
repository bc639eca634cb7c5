/* The optimizer's loops over flat memory: gradient norm, AdamW, moving average. */
#include <math.h>

#include "kernels/kernels.h"

/* The number of partial sums is fixed, so the result does not depend on the number of threads. */
enum { PARTS = 256, LANES = 8 };

static double part_of_squares(const float *x, size_t n) {
    double lane[LANES] = {0}, sum = 0;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l] += (double)x[i + l] * x[i + l];
    for (; i < n; i++) sum += (double)x[i] * x[i];
    for (int l = 0; l < LANES; l++) sum += lane[l];
    return sum;
}

double sum_of_squares(const float *x, size_t n) {
    double part[PARTS], sum = 0;
    size_t each = (n + PARTS - 1) / PARTS;
#pragma omp parallel for schedule(static)
    for (int p = 0; p < PARTS; p++) {
        size_t first = p * each < n ? p * each : n, last = n - first < each ? n : first + each;
        part[p] = part_of_squares(x + first, last - first);
    }
    for (int p = 0; p < PARTS; p++) sum += part[p];
    return sum;
}

void adamw_update(float *w, float *m, float *v, const float *g, size_t n, float lr, float beta1, float beta2, float eps,
                  float weight_decay, float scale, int t) {
    float keep = (float)(1 - (double)lr * weight_decay), step = (float)(lr / (1 - pow(beta1, t)));
    float inverse = (float)(1 / sqrt(1 - pow(beta2, t)));
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < n; i++) {
        float gi = scale * g[i];
        m[i] = beta1 * m[i] + (1 - beta1) * gi;
        v[i] = beta2 * v[i] + (1 - beta2) * gi * gi;
        w[i] = keep * w[i] - step * m[i] / (sqrtf(v[i]) * inverse + eps);
    }
}

void ema_update(float *ema, const float *w, size_t n, float decay) {
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < n; i++) ema[i] = decay * ema[i] + (1 - decay) * w[i];
}
