/* The one inner loop that every attention kernel of this backend shares: a small matrix product on
 * tiles that fit in the L1 cache, sixteen floats wide.
 *
 *     C [m,n] (= or +=) A [m,k] B [k,n]
 *
 * A is read one scalar at a time, so any pair of strides works: (lda, 1) reads A, (1, lda) its transpose.
 * B and C are row-major and n is a multiple of TILE: callers pad their copies with zeros. Any m >= 0, k >= 0. */
#ifndef VIT_KERNELS_CPU_TILE_H
#define VIT_KERNELS_CPU_TILE_H

#include <stddef.h>

enum { TILE = 16 };

/* GCC and Clang map this to the machine's vector registers: one AVX-512 register, two AVX2 ones, four of NEON. */
typedef float vec __attribute__((vector_size(4 * TILE), aligned(4), may_alias));
typedef int ivec __attribute__((vector_size(4 * TILE), aligned(4), may_alias));

#define TILE_INLINE static inline __attribute__((always_inline))

TILE_INLINE vec vec_load(const float *p) { return *(const vec *)p; }
TILE_INLINE void vec_store(float *p, vec x) { *(vec *)p = x; }
TILE_INLINE vec vec_set(float x) { return (vec){0} + x; }

/* Selects per lane: a where the mask is all ones, else b. */
TILE_INLINE vec vec_select(ivec mask, vec a, vec b) { return (vec)(((ivec)a & mask) | ((ivec)b & ~mask)); }

/* Pairwise, so that the order of the additions does not depend on the machine;
 * loops of fixed length stay in vectors. */
TILE_INLINE float vec_sum(vec x) {
    float s[TILE];
    vec_store(s, x);
    for (int i = 0; i < 8; i++) s[i] += s[i + 8];
    for (int i = 0; i < 4; i++) s[i] += s[i + 4];
    return (s[0] + s[2]) + (s[1] + s[3]);
}

/* Swaps the blocks of S lanes beside the diagonal between a and b: a stage of a transpose. */
#define TILE_SWAP(a, b, low, high)                          \
    do {                                                    \
        vec swapped_ = __builtin_shufflevector(a, b, low);  \
        b = __builtin_shufflevector(a, b, high);            \
        a = swapped_;                                       \
    } while (0)

/* to [16,16] = from [16,16] transposed, rows ldt and ldf floats apart. */
TILE_INLINE void tile_transpose(float *to, size_t ldt, const float *from, size_t ldf) {
    vec r[TILE];
#pragma GCC unroll 16
    for (int i = 0; i < TILE; i++) r[i] = vec_load(from + i * ldf);
#define LOW_8 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23
#define HIGH_8 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31
#define LOW_4 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27
#define HIGH_4 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31
#define LOW_2 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29
#define HIGH_2 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31
#define LOW_1 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30
#define HIGH_1 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31
#define STAGE(S)                                                       \
    _Pragma("GCC unroll 16") for (int i = 0; i < TILE; i++)            \
        if (!(i & S)) TILE_SWAP(r[i], r[i + S], LOW_##S, HIGH_##S)
    STAGE(8);
    STAGE(4);
    STAGE(2);
    STAGE(1);
#undef STAGE
#undef LOW_8
#undef HIGH_8
#undef LOW_4
#undef HIGH_4
#undef LOW_2
#undef HIGH_2
#undef LOW_1
#undef HIGH_1
#pragma GCC unroll 16
    for (int i = 0; i < TILE; i++) vec_store(to + i * ldt, r[i]);
}

/* The groups of n lanes of a, then those of b, each pair of neighbours added up. */
TILE_INLINE vec vec_fold_8(vec a, vec b) {
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
}
TILE_INLINE vec vec_fold_4(vec a, vec b) {
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
           __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}
TILE_INLINE vec vec_fold_2(vec a, vec b) {
    return __builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29) +
           __builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31);
}
TILE_INLINE vec vec_fold_1(vec a, vec b) {
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
           __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}

/* Lane i of the result is the sum of the lanes of x[i]; x is overwritten. */
TILE_INLINE vec vec_sums(vec *x) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) x[i] = vec_fold_8(x[2 * i], x[2 * i + 1]);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) x[i] = vec_fold_4(x[2 * i], x[2 * i + 1]);
    return vec_fold_1(vec_fold_2(x[0], x[1]), vec_fold_2(x[2], x[3]));
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
