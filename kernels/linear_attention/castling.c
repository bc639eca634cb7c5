/* Castling-ViT's angular features (You et al. 2023), a row of a head at a time.
 *   forward   x = z / |z|,  phi(z) = [x / sqrt pi; 1 / sqrt 2], so that phi(q).phi(k) = 1/2 + cos(q, k) / pi
 *   backward  g = dphi / sqrt pi without its last,  dz = (g - x (x.g)) / |z|
 * A row with |z| < 1e-6 is divided by 1e-6 instead, a constant for the gradient. */
#include <math.h>

#include "kernels/cpu/activations.h"
#include "kernels/linear_attention/operator_features.h"
#include "kernels/softmax/attention_shape.h"

static const float SHORTEST = 1e-6f, COSINE = 0.564189584f /* 1 / sqrt pi */, CONSTANT = 0.707106781f;

static float norm_of(const real *z, int D) {
    vec squares = {0};
    for (int d = 0; d < D; d += TILE) {
        vec x = real_load_part(z + d, D - d);
        squares += x * x;
    }
    return sqrtf(vec_sum(squares));
}

void angular_features_forward(real *phi, const real *qkv, const AttentionShape *shape) {
    size_t n = (size_t)shape->B * shape->N;
    int H = shape->H, D = shape->D;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++)
        for (int row = 0; row < 2 * H; row++) {
            const real *z = qkv + (i * 3 * H + row) * D;
            real *to = phi + (i * 2 * H + row) * (D + 1);
            float norm = norm_of(z, D);
            vec factor = vec_set(COSINE / (norm < SHORTEST ? SHORTEST : norm));
            for (int d = 0; d < D; d += TILE) real_store_part(to + d, factor * real_load_part(z + d, D - d), D - d);
            to[D] = real_of(CONSTANT);
        }
}

void angular_features_backward(real *dqkv, const real *dphi, const real *qkv, const AttentionShape *shape) {
    size_t n = (size_t)shape->B * shape->N;
    int H = shape->H, D = shape->D;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++)
        for (int row = 0; row < 2 * H; row++) {
            size_t at = (i * 3 * H + row) * D;
            const real *z = qkv + at, *g = dphi + (i * 2 * H + row) * (D + 1);
            float norm = norm_of(z, D), inverse = 1 / (norm < SHORTEST ? SHORTEST : norm);
            vec dot = {0};
            for (int d = 0; d < D; d += TILE) dot += real_load_part(z + d, D - d) * real_load_part(g + d, D - d);
            vec along = vec_set(norm < SHORTEST ? 0 : vec_sum(dot) * inverse * inverse);
            for (int d = 0; d < D; d += TILE)
                real_store_part(
                    dqkv + at + d,
                    COSINE * inverse * (real_load_part(g + d, D - d) - along * real_load_part(z + d, D - d)), D - d);
        }
}
