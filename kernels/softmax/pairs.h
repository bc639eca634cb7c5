/* Matrix products of bfloat16 with instructions that multiply two numbers of the inner dimension at a time and add to
 * floats: AMX's tiles, or AVX-512's dot products of pairs (vdpbf16ps).  Both need operands in the same layout:
 *
 *     C [m,n] (= or +=) A [m,k] B [k,n]
 *
 * A is row-major; B is [k/2][n][2], the two numbers of a pair are adjacent; C is row-major and of floats.  m, n and k
 * are multiples of PAIR_BLOCK; for dot products m is any number, n a multiple of 16 and k even.  Callers pad their
 * copies with zeros. */
#ifndef VIT_KERNELS_SOFTMAX_PAIRS_H
#define VIT_KERNELS_SOFTMAX_PAIRS_H

#include "kernels/cpu/activations.h"

#if !defined(VIT_FP32) && defined(__AVX512BF16__)
#define VIT_PAIRS

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

enum { PAIR_BLOCK = 32 };

/* The instructions that are faster than products of widened floats: AMX if there is any, and the dot products on AMD's
 * processors, which execute them as fast as multiply-adds of floats.  Intel's execute them at half that rate
 * (docs/notebook/bfloat16.md). */
typedef enum { PAIRS_SLOW, PAIRS_DOTS, PAIRS_AMX } Pairs;

/* The first call asks the system for AMX, outside of parallel regions. */
Pairs pairs_kind(void);

/* Called before and after a thread's products with AMX; the second releases its registers.  Without AMX they do
 * nothing. */
void pairs_begin(Pairs kind);
void pairs_end(Pairs kind);

/* lda and ldc in numbers, ldb in pairs. */
void pairs_gemm(Pairs kind, float *c, size_t ldc, const real *a, size_t lda, const real *b, size_t ldb, int m, int n,
                int k, bool accumulate);

static inline int pairs_round_up(int n) { return (n + PAIR_BLOCK - 1) / PAIR_BLOCK * PAIR_BLOCK; }

/* The numbers of a and b alternate. */
TILE_INLINE __m512i pairs_of(halfvec a, halfvec b) {
    __m512i low = _mm512_cvtepu16_epi32((__m256i)a), high = _mm512_cvtepu16_epi32((__m256i)b);
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

/* to [rows/2][columns][2] = from [rows,columns], an even number of rows. */
static inline void pair_rows(real *to, const real *from, int rows, int columns) {
    for (int i = 0; i < rows; i += 2, to += 2 * columns, from += 2 * columns)
        for (int j = 0; j < columns; j += TILE)
            _mm512_storeu_si512(to + 2 * j,
                                pairs_of(*(const halfvec *)(from + j), *(const halfvec *)(from + columns + j)));
}

/* to [Dp/2][rows][2], ldt pairs from one to the next, = the transpose of from [rows,Dp]: pairs are moved as floats. */
static inline void transpose_pairs(real *to, size_t ldt, const real *from, int rows, int Dp) {
    tiles_transpose((float *)to, ldt, (const float *)from, Dp / 2, rows, Dp / 2);
}

/* Rows of A whose pairs are `row` apart between rows, and `step` apart along a row. */
typedef struct {
    const real *at;
    size_t row, step;
} PairRows;

typedef __m512 PairSums[TILE_ROWS][2];

/* sums [MR,NV vectors] += A B, b [k/2][..][2] with rows ldb pairs apart; MR and NV are literals. */
TILE_INLINE void pairs_multiply(int MR, int NV, PairSums sums, PairRows a, const real *b, size_t ldb, int k) {
    for (int p = 0; p < k / 2; p++, b += 2 * ldb) {
        __m512bh columns[2];
#pragma GCC unroll 2
        for (int j = 0; j < NV; j++) columns[j] = (__m512bh)_mm512_loadu_si512(b + 2 * j * TILE);
#pragma GCC unroll 8
        for (int i = 0; i < MR; i++) {
            int pair;
            memcpy(&pair, a.at + 2 * (i * a.row + p * a.step), sizeof pair);
            __m512bh ai = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 2
            for (int j = 0; j < NV; j++) sums[i][j] = _mm512_dpbf16_ps(sums[i][j], ai, columns[j]);
        }
    }
}

/* MR rows by NV vectors of C in registers. */
TILE_INLINE void pairs_micro(int MR, int NV, float *c, size_t ldc, PairRows a, const real *b, size_t ldb, int k,
                             bool accumulate) {
    PairSums sums;
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 2
        for (int j = 0; j < NV; j++)
            sums[i][j] = accumulate ? (__m512)vec_load(c + i * ldc + j * TILE) : _mm512_setzero_ps();
    pairs_multiply(MR, NV, sums, a, b, ldb, k);
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 2
        for (int j = 0; j < NV; j++) vec_store(c + i * ldc + j * TILE, (vec)sums[i][j]);
}

/* The product with dot products only, which allow smaller blocks: n a multiple of 16, k even, any m. */
static inline void pairs_dots(float *c, size_t ldc, PairRows a, const real *b, size_t ldb, int m, int n, int k,
                              bool accumulate) {
    for (int j = 0; j < n; j += 2 * TILE) {
        int i = 0;
#define MICRO(MR, NV)                                                                                           \
    for (; i + MR <= m; i += MR)                                                                                \
        pairs_micro(MR, NV, c + i * ldc + j, ldc, (PairRows){a.at + 2 * i * a.row, a.row, a.step}, b + 2 * j, ldb, k, \
                    accumulate);
        if (j + TILE < n) {
            MICRO(8, 2)
            MICRO(2, 2)
            MICRO(1, 2)
        } else {
            MICRO(8, 1)
            MICRO(2, 1)
            MICRO(1, 1)
        }
#undef MICRO
    }
}

#endif
#endif
