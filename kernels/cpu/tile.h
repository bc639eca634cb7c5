/* The one inner loop that every attention kernel of this backend shares: a small matrix product on
 * tiles that sit in the first-level cache, sixteen floats wide.
 *
 *     C [m,n] (= or +=) A [m,k] B [k,n]
 *
 * A is read one scalar at a time, so any pair of strides will do: (lda, 1) reads A, (1, lda) its transpose.
 * B and C are row-major and n is a multiple of TILE: callers pad their copies with zeros. Any m >= 0, k >= 0. */
#ifndef VIT_KERNELS_CPU_TILE_H
#define VIT_KERNELS_CPU_TILE_H

#include <stddef.h>

enum { TILE = 16 };

/* GCC and Clang lower this to whatever the machine has: one AVX-512 register, two AVX2 ones, four of NEON. */
typedef float vec __attribute__((vector_size(4 * TILE), aligned(4), may_alias));
typedef int ivec __attribute__((vector_size(4 * TILE), aligned(4), may_alias));

#define TILE_INLINE static inline __attribute__((always_inline))

TILE_INLINE vec vec_load(const float *p) { return *(const vec *)p; }
TILE_INLINE void vec_store(float *p, vec x) { *(vec *)p = x; }
TILE_INLINE vec vec_set(float x) { return (vec){0} + x; }

/* Lane by lane: where the mask is all ones take a, else b. */
TILE_INLINE vec vec_select(ivec mask, vec a, vec b) { return (vec)(((ivec)a & mask) | ((ivec)b & ~mask)); }

/* Pairwise, so that the order of the additions does not depend on the machine; loops of fixed length stay in vectors. */
TILE_INLINE float vec_sum(vec x) {
    float s[TILE];
    vec_store(s, x);
    for (int i = 0; i < 8; i++) s[i] += s[i + 8];
    for (int i = 0; i < 4; i++) s[i] += s[i + 4];
    return (s[0] + s[2]) + (s[1] + s[3]);
}

TILE_INLINE int tile_round_up(int n) { return (n + TILE - 1) / TILE * TILE; }

/* MR rows by NV vectors of C live in registers: 8 x 2 accumulators, two loads and eight broadcasts feed
 * sixteen multiply-adds. MR and NV are literals at every call, so that the loops unroll. */
TILE_INLINE void tile_micro(int MR, int NV, float *c, size_t ldc, const float *a, size_t a_row, size_t a_col,
                            const float *b, size_t ldb, int k, int accumulate) {
    vec acc[8][4];
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++) acc[i][j] = accumulate ? vec_load(c + i * ldc + j * TILE) : vec_set(0);
    for (int p = 0; p < k; p++) {
        vec bp[4];
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++) bp[j] = vec_load(b + p * ldb + j * TILE);
#pragma GCC unroll 8
        for (int i = 0; i < MR; i++) {
            vec ai = vec_set(a[i * a_row + p * a_col]);
#pragma GCC unroll 4
            for (int j = 0; j < NV; j++) acc[i][j] += ai * bp[j];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++) vec_store(c + i * ldc + j * TILE, acc[i][j]);
}

TILE_INLINE void tile_columns(int NV, float *c, size_t ldc, const float *a, size_t a_row, size_t a_col, const float *b,
                              size_t ldb, int m, int k, int accumulate) {
    int i = 0;
    for (; i + 8 <= m; i += 8) tile_micro(8, NV, c + i * ldc, ldc, a + i * a_row, a_row, a_col, b, ldb, k, accumulate);
    if (i + 4 <= m) {
        tile_micro(4, NV, c + i * ldc, ldc, a + i * a_row, a_row, a_col, b, ldb, k, accumulate);
        i += 4;
    }
    for (; i < m; i++) tile_micro(1, NV, c + i * ldc, ldc, a + i * a_row, a_row, a_col, b, ldb, k, accumulate);
}

static inline void tile_gemm(float *c, size_t ldc, const float *a, size_t a_row, size_t a_col, const float *b,
                             size_t ldb, int m, int n, int k, int accumulate) {
    int j = 0;
    for (; j + 2 * TILE <= n; j += 2 * TILE)
        tile_columns(2, c + j, ldc, a, a_row, a_col, b + j, ldb, m, k, accumulate);
    if (j < n) tile_columns(1, c + j, ldc, a, a_row, a_col, b + j, ldb, m, k, accumulate);
}

#endif
