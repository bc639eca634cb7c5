/* Hydra attention (Bolya et al. 2022): as many heads as channels, cosine features.
 *   forward   q^ = q / |q|, k^ = k / |k| over the whole token,  kv = sum_m k^_m * v_m,  y_n = q^_n * kv
 *   backward  dkv = sum_n dy_n * q^_n,  dq^ = dy * kv,  dk^ = dkv * v,  dv = dkv * k^,  dq = (dq^ - q^ (q^.dq^)) / |q|
 *   saves     1 / |q|, 1 / |k|, kv.   Norms below 1e-6 are replaced by 1e-6, a constant for the gradient. */
#include <math.h>

#include "kernels/cpu/activations.h"
#include "kernels/linear_attention/operator_features.h"
#include "kernels/softmax/attention_shape.h"

static const float LONGEST_INVERSE = 1e6f;

static float inverse_norm(const real *x, int M) {
    vec squares = {0};
    for (int m = 0; m < M; m += TILE) {
        vec v = real_load_part(x + m, M - m);
        squares += v * v;
    }
    float inverse = 1 / sqrtf(vec_sum(squares));
    return inverse > LONGEST_INVERSE ? LONGEST_INVERSE : inverse;
}

/* sum [M] of scale[2 n] a_n b_n over the tokens, computed group by group to limit rounding. */
static void sum_products(float *sum, const real *a, size_t a_row, const real *b, size_t b_row, const float *scale,
                         int N, int M) {
    enum { GROUP = 64 };
    for (int m = 0; m < M; m += TILE) {
        vec total = {0};
        for (int first = 0; first < N; first += GROUP) {
            vec part = {0};
            for (int n = first; n < N && n < first + GROUP; n++)
                part += scale[2 * n] * real_load_part(a + n * a_row + m, M - m) *
                        real_load_part(b + n * b_row + m, M - m);
            total += part;
        }
        vec_store_part(sum + m, total, M - m);
    }
}

void hydra_attention_forward(real *y, float *inverse, float *kv, const real *qkv, const AttentionShape *shape) {
    int B = shape->B, N = shape->N, M = shape->H * shape->D;
#pragma omp parallel for schedule(static)
    for (int b = 0; b < B; b++) {
        const real *q = qkv + (size_t)b * N * 3 * M;
        float *sum = kv + (size_t)b * M, *scale = inverse + (size_t)b * N * 2;
        for (int i = 0; i < 2 * N; i++) scale[i] = inverse_norm(q + ((size_t)i / 2 * 3 + i % 2) * M, M);
        sum_products(sum, q + M, 3 * M, q + 2 * M, 3 * M, scale + 1, N, M);
        for (int n = 0; n < N; n++)
            for (int m = 0; m < M; m += TILE)
                real_store_part(y + ((size_t)b * N + n) * M + m,
                                scale[2 * n] * real_load_part(q + (size_t)n * 3 * M + m, M - m) *
                                    vec_load_part(sum + m, M - m),
                                M - m);
    }
}

/* dz for z / |z|, where the gradient of the unit vector is g * h. */
static void unit_backward(real *dz, const real *z, const real *g, const float *h, float inverse, int M) {
    vec dot = {0};
    for (int m = 0; m < M; m += TILE)
        dot += real_load_part(z + m, M - m) * real_load_part(g + m, M - m) * vec_load_part(h + m, M - m);
    vec along = vec_set(inverse < LONGEST_INVERSE ? vec_sum(dot) * inverse * inverse : 0);
    for (int m = 0; m < M; m += TILE) {
        vec gradient = real_load_part(g + m, M - m) * vec_load_part(h + m, M - m);
        real_store_part(dz + m, inverse * (gradient - along * real_load_part(z + m, M - m)), M - m);
    }
}

void hydra_attention_backward(real *dqkv, float *dkv, const real *dy, const float *inverse, const float *kv,
                              const real *qkv, const AttentionShape *shape) {
    int B = shape->B, N = shape->N, M = shape->H * shape->D;
#pragma omp parallel for schedule(static)
    for (int b = 0; b < B; b++) {
        size_t at = (size_t)b * N * 3 * M, at_y = (size_t)b * N * M;
        const real *q = qkv + at;
        float *dsum = dkv + (size_t)b * M;
        const float *scale = inverse + (size_t)b * N * 2;
        sum_products(dsum, dy + at_y, M, q, 3 * M, scale, N, M);
        for (int n = 0; n < N; n++) {
            size_t row = (size_t)n * 3 * M;
            real *dq = dqkv + at + row;
            unit_backward(dq, q + row, dy + at_y + (size_t)n * M, kv + (size_t)b * M, scale[2 * n], M);
            unit_backward(dq + M, q + row + M, q + row + 2 * M, dsum, scale[2 * n + 1], M);
            for (int m = 0; m < M; m += TILE)
                real_store_part(
                    dq + 2 * M + m,
                    scale[2 * n + 1] * real_load_part(q + row + M + m, M - m) * vec_load_part(dsum + m, M - m), M - m);
        }
    }
}
