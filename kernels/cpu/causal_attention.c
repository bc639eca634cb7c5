/* Causal softmax attention over sets of keys: the plain form, one query after the other. */
#include "kernels/cpu/activations.h"
#include "kernels/kernels.h"

size_t causal_attention_workspace(const CausalPattern *pattern, const CausalShape *shape) {
    (void)pattern, (void)shape;
    return 0;
}

static float dot(const real *a, const real *b, int n) {
    double sum = 0;
    for (int c = 0; c < n; c++) sum += (double)real_get(a[c]) * real_get(b[c]);
    return (float)sum;
}

static void forward_row(real *y, float *lse, const real *q, const real *k, const real *v, const CausalPattern *p,
                        const CausalShape *s, int h, int i) {
    float m = -INFINITY, scale = 1 / sqrtf((float)s->Dk);
    double l = 0;
    for (int j = 0; j <= i; j++)
        if (causal_sees(p, h, i, j)) m = fmaxf(m, scale * dot(q, k + (size_t)j * s->k_row, s->Dk));
    for (int j = 0; j <= i; j++)
        if (causal_sees(p, h, i, j)) l += exp(scale * dot(q, k + (size_t)j * s->k_row, s->Dk) - m);
    *lse = m + (float)log(l);
    for (int c = 0; c < s->Dv; c++) {
        double sum = 0;
        for (int j = 0; j <= i; j++)
            if (causal_sees(p, h, i, j))
                sum += exp(scale * dot(q, k + (size_t)j * s->k_row, s->Dk) - m) * real_get(v[(size_t)j * s->v_row + c]);
        y[c] = real_of((float)(sum / l));
    }
}

void causal_attention_forward(real *y, float *lse, const CausalInputs *in, const CausalPattern *pattern,
                              const CausalShape *s) {
#pragma omp parallel for collapse(3)
    for (int b = 0; b < s->B; b++)
        for (int h = 0; h < s->H; h++)
            for (int i = 0; i < s->N; i++) {
                size_t first = (size_t)b * s->N, row = first + i;
                forward_row(y + (row * s->H + h) * s->Dv, lse + ((size_t)b * s->H + h) * s->N + i,
                            in->q + row * s->q_row + h * s->Dk, in->k + first * s->k_row + h * s->Dk,
                            in->v + first * s->v_row + h * s->Dv, pattern, s, h, i);
            }
}

static void add(real *to, float factor, const real *from, int n) {
    for (int c = 0; c < n; c++) to[c] = real_of(real_get(to[c]) + factor * real_get(from[c]));
}

static void zero_rows(real *to, size_t row, int rows, int n) {
    for (int i = 0; i < rows; i++) memset(to + i * row, 0, n * sizeof *to);
}

void causal_attention_backward(const CausalGradients *d, const real *dy, const real *y, const float *lse,
                               const CausalInputs *in, const CausalPattern *pattern, const CausalShape *s) {
    float scale = 1 / sqrtf((float)s->Dk);
#pragma omp parallel for collapse(2)
    for (int b = 0; b < s->B; b++)
        for (int h = 0; h < s->H; h++) {
            size_t first = (size_t)b * s->N, atq = first * s->q_row + h * s->Dk, atk = first * s->k_row + h * s->Dk,
                   atv = first * s->v_row + h * s->Dv;
            zero_rows(d->q + atq, s->q_row, s->N, s->Dk);
            zero_rows(d->k + atk, s->k_row, s->N, s->Dk);
            zero_rows(d->v + atv, s->v_row, s->N, s->Dv);
            for (int i = 0; i < s->N; i++) {
                const real *q = in->q + atq + (size_t)i * s->q_row, *g = dy + ((first + i) * s->H + h) * s->Dv;
                float delta = dot(g, y + ((first + i) * s->H + h) * s->Dv, s->Dv);
                for (int j = 0; j <= i; j++) {
                    if (!causal_sees(pattern, h, i, j)) continue;
                    size_t jk = atk + (size_t)j * s->k_row, jv = atv + (size_t)j * s->v_row;
                    float p = expf(scale * dot(q, in->k + jk, s->Dk) - lse[((size_t)b * s->H + h) * s->N + i]);
                    float ds = scale * p * (dot(g, in->v + jv, s->Dv) - delta);
                    add(d->v + jv, p, g, s->Dv);
                    add(d->k + jk, ds, q, s->Dk);
                    add(d->q + atq + (size_t)i * s->q_row, ds, in->k + jk, s->Dk);
                }
            }
        }
}
