/* The gradient's norm, and AdamW with the moving average. */
#include <math.h>

#include "kernels/training/optimizer.h"

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

void step_add_losses(StepStats *stats, const float *loss, int B) {
    double sum = 0;
    for (int b = 0; b < B; b++) sum += (double)loss[b];
    stats->loss += sum;
}

void step_measure(StepStats *stats, const float *g, size_t n, float clip) {
    stats->squares = sum_of_squares(g, n);
    float norm = (float)sqrt(stats->squares), scale = clip / (norm + 1e-6f);
    stats->scale = clip > 0 && scale < 1 ? scale : 1;
    if (!isfinite(norm) || !isfinite(stats->loss)) stats->scale = NAN;
}

/* One learning rate's constants: decayed = 1 - lr wd, step = lr / (1 - b1^t). */
typedef struct {
    float decayed, step;
} Rate;

static Rate rate_of(const AdamWStep *s, double lr) {
    return (Rate){(float)(1 - lr * s->weight_decay), (float)(lr / (1 - pow(s->beta1, s->t)))};
}

static void adamw_piece(float *w, float *m, float *v, const float *g, int n, const AdamWStep *s, float scale,
                        float keep, float step, float inverse) {
    float beta1 = s->beta1, beta2 = s->beta2, eps = s->eps;
#pragma omp simd
    for (int i = 0; i < n; i++) {
        float gi = scale * g[i];
        m[i] = beta1 * m[i] + (1 - beta1) * gi;
        v[i] = beta2 * v[i] + (1 - beta2) * gi * gi;
        w[i] = keep * w[i] - step * m[i] / (sqrtf(v[i]) * inverse + eps);
    }
}

static void ema_piece(float *ema, const float *w, int n, float decay) {
#pragma omp simd
    for (int i = 0; i < n; i++) ema[i] = decay * ema[i] + (1 - decay) * w[i];
}

void adamw_update(float *w, float *m, float *v, float *ema, const float *g, const uint8_t *kinds, size_t n,
                  const AdamWStep *s) {
    Rate rates[PIECE_RATES];
    for (int r = 0; r < s->rate_count; r++) rates[r] = rate_of(s, (double)s->lr * s->rates[r]);
    float inverse = (float)(1 / sqrt(1 - pow(s->beta2, s->t))), scale = s->stats ? s->stats->scale : s->scale;
    if (isnan(scale)) return;
#pragma omp parallel for schedule(static)
    for (size_t piece = 0; piece < (n + ARENA_PIECE - 1) / ARENA_PIECE; piece++) {
        size_t i = piece * ARENA_PIECE;
        int length = n - i < ARENA_PIECE ? (int)(n - i) : ARENA_PIECE, kind = kinds[piece] % PIECE_KINDS;
        Rate rate = rates[kinds[piece] / PIECE_KINDS];
        if (kind != PIECE_FROZEN)
            adamw_piece(w + i, m + i, v + i, g + i, length, s, scale, kind == PIECE_DECAYED ? rate.decayed : 1,
                        rate.step, inverse);
        if (ema) ema_piece(ema + i, w + i, length, kind == PIECE_FROZEN ? 0 : s->ema_decay);
    }
}
