/* EfficientViT's second scale of q, k and v (Cai et al. 2023), and its ReLU features.
 *   forward   all = [x, W_g wide_g], with a D x D matrix W_g for each head g of q, k and v
 *   backward  dx = the first half of dall,  dwide_g = W_g^T dall_g,  dW_g += sum_n dall_g wide_g^T
 * Tokens are processed in blocks. */
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/device/workspace.h"
#include "kernels/linear_attention/operator_features.h"
#include "kernels/softmax/attention_shape.h"

enum { BLOCK = 32 };

/* Per thread: all matrices (or their gradients) [3H][D,Dp], blocks of rows in, their gradient and out [BLOCK,Dp]. */
static size_t matrices_floats(int H, int D) { return (size_t)3 * H * D * tile_round_up(D); }
static size_t work_floats(int H, int D) {
    return 2 * workspace_line_up(matrices_floats(H, D)) + 3 * (size_t)BLOCK * tile_round_up(D);
}

size_t multiscale_workspace(int H, int D) { return workspace_bytes(work_floats(H, D)); }

/* to [3H][D,Dp]: each matrix, or its transpose, with zeros in the padding. */
static void gather_matrices(float *to, const float *w, int groups, int D, bool transpose) {
    int Dp = tile_round_up(D);
    for (int row = 0; row < groups * D; row++)
        for (int j = 0; j < Dp; j++) {
            size_t g = row / D, i = row % D;
            to[(size_t)row * Dp + j] = j >= D ? 0 : transpose ? w[(g * D + j) * D + i] : w[(g * D + i) * D + j];
        }
}

/* The offset of head h of part 0, 1 or 2 in a row of `all`, and that of the first scale. */
static size_t all_at(int part, int h, int H, int D) { return ((size_t)part * 2 * H + h) * D; }

static int rows_from(size_t first, size_t n) { return n - first < BLOCK ? (int)(n - first) : BLOCK; }

void multiscale_forward(real *all, const real *qkv, const real *wide, const float *w, const AttentionShape *shape) {
    size_t n = (size_t)shape->B * shape->N;
    int H = shape->H, D = shape->D;
    int Dp = tile_round_up(D);
    size_t row = (size_t)3 * H * D, M = (size_t)H * D;
#pragma omp parallel
    {
        float *next = kernels_workspace(work_floats(H, D)), *wt = workspace_take(&next, matrices_floats(H, D));
        float *in = workspace_take(&next, (size_t)BLOCK * Dp), *out = workspace_take(&next, (size_t)BLOCK * Dp);
        gather_matrices(wt, w, 3 * H, D, true);
#pragma omp for schedule(static)
        for (size_t first = 0; first < n; first += BLOCK) {
            int rows = rows_from(first, n);
            for (size_t i = first; i < first + rows; i++)
                for (int part = 0; part < 3; part++)
                    memcpy(all + i * 2 * row + all_at(part, 0, H, D), qkv + i * row + part * M, M * sizeof *all);
            for (int g = 0; g < 3 * H; g++) {
                FloatRows x = reals_as_floats(in, Dp, wide + first * row + (size_t)g * D, row, rows, D);
                tile_gemm(out, Dp, x.at, x.row, 1, wt + (size_t)g * D * Dp, Dp, rows, Dp, D, 0);
                rows_scatter(all + first * 2 * row + all_at(g / H, H + g % H, H, D), 2 * row, out, Dp, 1, rows, D);
            }
        }
    }
}

void multiscale_backward(real *dqkv, real *dwide, float *dw, const real *dall, const real *wide, const float *w,
                         const AttentionShape *shape) {
    size_t n = (size_t)shape->B * shape->N;
    int H = shape->H, D = shape->D;
    int Dp = tile_round_up(D);
    size_t row = (size_t)3 * H * D, M = (size_t)H * D, size = matrices_floats(H, D);
#pragma omp parallel
    {
        float *next = kernels_workspace(work_floats(H, D)), *sums = workspace_take(&next, size);
        float *matrices = workspace_take(&next, size), *in = workspace_take(&next, (size_t)BLOCK * Dp);
        float *gradient = workspace_take(&next, (size_t)BLOCK * Dp), *out = workspace_take(&next, (size_t)BLOCK * Dp);
        gather_matrices(matrices, w, 3 * H, D, false);
        memset(sums, 0, size * sizeof *sums);
#pragma omp for schedule(static)
        for (size_t first = 0; first < n; first += BLOCK) {
            int rows = rows_from(first, n);
            for (size_t i = first; i < first + rows; i++)
                for (int part = 0; part < 3; part++)
                    memcpy(dqkv + i * row + part * M, dall + i * 2 * row + all_at(part, 0, H, D), M * sizeof *dqkv);
            for (int g = 0; g < 3 * H; g++) {
                size_t at = first * row + (size_t)g * D, matrix = (size_t)g * D * Dp;
                const real *from = dall + first * 2 * row + all_at(g / H, H + g % H, H, D);
                FloatRows dy = reals_as_floats(gradient, Dp, from, 2 * row, rows, D);
                tile_gemm(out, Dp, dy.at, dy.row, 1, matrices + matrix, Dp, rows, Dp, D, 0);
                rows_scatter(dwide + at, row, out, Dp, 1, rows, D);
                rows_gather(in, Dp, wide + at, row, 1, rows, D);
                tile_gemm(sums + matrix, Dp, dy.at, 1, dy.row, in, Dp, D, Dp, rows, 1);
            }
        }
        int threads = omp_get_num_threads();
#pragma omp for schedule(static)
        for (int i = 0; i < 3 * H * D; i++)
            for (int j = 0; j < D; j++)
                for (int t = 0; t < threads; t++)
                    dw[(size_t)i * D + j] += workspace_of(t, work_floats(H, D))[(size_t)i * Dp + j];
    }
}

void relu_features_forward(real *phi, const real *qkv, const AttentionShape *shape) {
    size_t n = (size_t)shape->B * shape->N;
    int M = shape->H * shape->D;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++)
        for (int m = 0; m < 2 * M; m += TILE)
            real_store_part(phi + i * 2 * M + m, vec_max(vec_set(0), real_load_part(qkv + i * 3 * M + m, 2 * M - m)),
                            2 * M - m);
}

void relu_features_backward(real *dqkv, const real *dphi, const real *phi, const AttentionShape *shape) {
    size_t n = (size_t)shape->B * shape->N;
    int M = shape->H * shape->D;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++)
        for (int m = 0; m < 2 * M; m += TILE) {
            size_t at = i * 2 * M + m, left = 2 * M - m;
            vec alive = vec_select(real_load_part(phi + at, left) > 0, real_load_part(dphi + at, left), vec_set(0));
            real_store_part(dqkv + i * 3 * M + m, alive, left);
        }
}
