/* Efficient attention's features (Shen et al. 2021): softmax of q over the channels of a head, of k over the tokens.
 *   forward   p_i = exp(z_i - max z) / sum_j exp(z_j - max z)
 *   backward  dz_i = p_i (dp_i - sum_j p_j dp_j)
 * k is processed TILE channels at a time, q a head at a time. */
#include <math.h>

#include "kernels/cpu/activations.h"
#include "kernels/linear_attention/operator_features.h"
#include "kernels/softmax/attention_shape.h"

/* Whether p can hold exponentials until their sum is known.  In bfloat16 they would be rounded twice, and are computed
 * twice instead. */
enum { KEEPS = sizeof(real) == sizeof(float) };

TILE_INLINE vec exponentials(const real *p, const real *z, vec largest, int n) {
    return KEEPS ? real_load_part(p, n) : vec_exp_floored(real_load_part(z, n) - largest);
}

static void softmax_row(real *p, const real *z, int D) {
    float most = -INFINITY;
    for (int d = 0; d < D; d++) most = real_get(z[d]) > most ? real_get(z[d]) : most;
    vec sum = {0}, largest = vec_set(most);
    for (int d = 0; d < D; d += TILE) {
        vec e = vec_exp_floored(real_load_part(z + d, D - d) - largest);
        if (KEEPS) real_store_part(p + d, e, D - d);
        sum += vec_load_part((const float *)&e, D - d);
    }
    vec share = vec_set(1 / vec_sum(sum));
    for (int d = 0; d < D; d += TILE)
        real_store_part(p + d, share * exponentials(p + d, z + d, largest, D - d), D - d);
}

/* p and z point to the first token, with row strides 2*M and 3*M.  Long sums are computed group by group,
 * against rounding. */
static void softmax_columns(real *p, const real *z, int N, size_t M, int channels) {
    enum { GROUP = 64 };
    vec largest = vec_set(-INFINITY), sum = {0};
    for (int n = 0; n < N; n++) largest = vec_max(largest, real_load_part(z + n * 3 * M, channels));
    for (int first = 0; first < N; first += GROUP) {
        vec part = {0};
        for (int n = first; n < N && n < first + GROUP; n++) {
            vec e = vec_exp_floored(real_load_part(z + n * 3 * M, channels) - largest);
            if (KEEPS) real_store_part(p + n * 2 * M, e, channels);
            part += e;
        }
        sum += part;
    }
    for (int n = 0; n < N; n++)
        real_store_part(p + n * 2 * M, exponentials(p + n * 2 * M, z + n * 3 * M, largest, channels) / sum, channels);
}

/* Calls `rows` for every token and head of q, `columns` for every image and TILE channels of k. */
#define EACH_PART(rows, columns)                                                             \
    do {                                                                                     \
        _Pragma("omp parallel for schedule(static)") for (size_t n = 0; n < (size_t)B * N; n++) \
            for (int h = 0; h < H; h++) {                                                    \
                size_t at_phi = n * 2 * M + (size_t)h * D, at_qkv = n * 3 * M + (size_t)h * D; \
                rows;                                                                        \
            }                                                                                \
        _Pragma("omp parallel for collapse(2) schedule(static)") for (int b = 0; b < B; b++) \
            for (int c = 0; c < H * D; c += TILE) {                                          \
                size_t at_phi = (size_t)b * N * 2 * M + M + c, at_qkv = (size_t)b * N * 3 * M + M + c; \
                int channels = H * D - c < TILE ? H * D - c : TILE;                          \
                columns;                                                                     \
            }                                                                                \
    } while (0)

void efficient_features_forward(real *phi, const real *qkv, const AttentionShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D;
    size_t M = (size_t)H * D;
    EACH_PART(softmax_row(phi + at_phi, qkv + at_qkv, D), softmax_columns(phi + at_phi, qkv + at_qkv, N, M, channels));
}

static void row_backward(real *dz, const real *dp, const real *p, int D) {
    vec dot = {0};
    for (int d = 0; d < D; d += TILE) dot += real_load_part(p + d, D - d) * real_load_part(dp + d, D - d);
    vec mean = vec_set(vec_sum(dot));
    for (int d = 0; d < D; d += TILE)
        real_store_part(dz + d, real_load_part(p + d, D - d) * (real_load_part(dp + d, D - d) - mean), D - d);
}

static void columns_backward(real *dz, const real *dp, const real *p, int N, size_t M, int channels) {
    vec mean = {0};
    for (int n = 0; n < N; n++)
        mean += real_load_part(p + n * 2 * M, channels) * real_load_part(dp + n * 2 * M, channels);
    for (int n = 0; n < N; n++)
        real_store_part(dz + n * 3 * M,
                        real_load_part(p + n * 2 * M, channels) * (real_load_part(dp + n * 2 * M, channels) - mean),
                        channels);
}

void efficient_features_backward(real *dqkv, const real *dphi, const real *phi, const AttentionShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D;
    size_t M = (size_t)H * D;
    EACH_PART(row_backward(dqkv + at_qkv, dphi + at_phi, phi + at_phi, D),
              columns_backward(dqkv + at_qkv, dphi + at_phi, phi + at_phi, N, M, channels));
}
