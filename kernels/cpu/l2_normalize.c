/* Queries and keys at unit length, head by head.
 *   forward   r = 1 / max(|x|, 1e-6),  x^ = r x
 *   backward  dx = r (dx^ - x^ (x^.dx^)),  or r dx^ where |x| was below 1e-6
 *   saves     x^, r. */
#include "kernels/cpu/vecmath.h"
#include "kernels/kernels.h"

static const float LARGEST = 1e6f;

/* Row i of the n * 2 H rows of q^ and k^ in qkv. */
static size_t row_in_qkv(size_t i, int H, int D) { return i / (2 * H) * 3 * H * D + i % (2 * H) * D; }

/* 1 / |x| of sixteen squares; NaN stays. */
static vec inverse_lengths(vec squares) {
    vec inverse;
    for (int l = 0; l < TILE; l++) inverse[l] = 1 / sqrtf(squares[l]);
    return vec_min(vec_set(LARGEST), inverse);
}

/* Rows first .. first+15 of n * 2 H, their sums together. */
static void normalize_rows(real *qk, float *inverse, const real *qkv, size_t first, int rows, int H, int D) {
    vec squares[TILE] = {0};
    for (int r = 0; r < rows; r++) {
        const real *x = qkv + row_in_qkv(first + r, H, D);
        for (int j = 0; j < D; j += TILE) squares[r] += vec_load_part(x + j, D - j) * vec_load_part(x + j, D - j);
    }
    vec scale = inverse_lengths(vec_sums(squares));
    vec_store_part(inverse + first, scale, rows);
    for (int r = 0; r < rows; r++) {
        const real *x = qkv + row_in_qkv(first + r, H, D);
        for (int j = 0; j < D; j += TILE)
            vec_store_part(qk + (first + r) * D + j, scale[r] * vec_load_part(x + j, D - j), D - j);
    }
}

static void normalize_rows_backward(real *dqkv, const real *dqk, const real *qk, const float *inverse, size_t first,
                                    int rows, int H, int D) {
    vec dots[TILE] = {0};
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < D; j += TILE) {
            size_t at = (first + r) * D + j;
            dots[r] += vec_load_part(dqk + at, D - j) * vec_load_part(qk + at, D - j);
        }
    vec scale = vec_load_part(inverse + first, rows), along = vec_sums(dots);
    along = vec_select(scale < LARGEST, along, vec_set(0));
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < D; j += TILE) {
            size_t at = (first + r) * D + j;
            vec d = vec_load_part(dqk + at, D - j) - along[r] * vec_load_part(qk + at, D - j);
            vec_store_part(dqkv + row_in_qkv(first + r, H, D) + j, scale[r] * d, D - j);
        }
}

void l2_normalize_forward(real *qk, float *inverse, const real *qkv, size_t n, int H, int D) {
    size_t all = n * 2 * H;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < all; i += TILE)
        normalize_rows(qk, inverse, qkv, i, all - i < TILE ? (int)(all - i) : TILE, H, D);
}

void l2_normalize_backward(real *dqkv, const real *dqk, const real *qk, const float *inverse, size_t n, int H, int D) {
    size_t all = n * 2 * H;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < all; i += TILE)
        normalize_rows_backward(dqkv, dqk, qk, inverse, i, all - i < TILE ? (int)(all - i) : TILE, H, D);
}
