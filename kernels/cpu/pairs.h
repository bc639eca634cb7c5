/* Matrix products of bfloat16 by the instructions that take two numbers of the inner dimension at a time and add to
 * floats: AMX's tiles, or AVX-512's dot products of pairs (vdpbf16ps).  Both want their operands laid out alike:
 *
 *     C [m,n] (= or +=) A [m,k] B [k,n]
 *
 * A is row-major; B is [k/2][n][2], the two numbers of a pair beside each other; C is row-major and of floats.  m, n
 * and k are multiples of PAIR_BLOCK: callers pad their copies with zeros. */
#ifndef VIT_KERNELS_CPU_PAIRS_H
#define VIT_KERNELS_CPU_PAIRS_H

#include "kernels/cpu/activations.h"

#if !defined(VIT_FP32) && defined(__AVX512BF16__)
#define VIT_PAIRS

#include <stdbool.h>
#include <stddef.h>

enum { PAIR_BLOCK = 32 };

/* Which instructions are faster than products of widened floats: AMX where it is, and the dot products on processors
 * of AMD, which take them as fast as multiply-adds of floats.  Intel's take half as many (docs/performance.md). */
typedef enum { PAIRS_SLOW, PAIRS_DOTS, PAIRS_AMX } Pairs;

/* The first call asks the system for AMX, outside of parallel regions. */
Pairs pairs_kind(void);

/* Around a thread's products by AMX; the second leaves its registers as if they were unused.  Nothing for the others. */
void pairs_begin(Pairs kind);
void pairs_end(Pairs kind);

/* lda and ldc in numbers, ldb in pairs. */
void pairs_gemm(Pairs kind, float *c, size_t ldc, const real *a, size_t lda, const real *b, size_t ldb, int m, int n,
                int k, bool accumulate);

static inline int pairs_round_up(int n) { return (n + PAIR_BLOCK - 1) / PAIR_BLOCK * PAIR_BLOCK; }

/* MR rows by two vectors of C in registers; MR is a literal. */
TILE_INLINE void pairs_micro(int MR, float *c, size_t ldc, const real *a, size_t lda, const real *b, size_t ldb, int k,
                             bool accumulate) {
    __m512 acc[TILE_ROWS][2];
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++)
            acc[i][j] = accumulate ? (__m512)vec_load(c + i * ldc + j * TILE) : _mm512_setzero_ps();
    for (int p = 0; p < k; p += 2) {
        const real *row = b + (size_t)p * ldb;
        __m512bh b0 = (__m512bh)_mm512_loadu_si512(row), b1 = (__m512bh)_mm512_loadu_si512(row + 2 * TILE);
#pragma GCC unroll 8
        for (int i = 0; i < MR; i++) {
            int pair;
            memcpy(&pair, a + i * lda + p, sizeof pair);
            __m512bh ai = (__m512bh)_mm512_set1_epi32(pair);
            acc[i][0] = _mm512_dpbf16_ps(acc[i][0], ai, b0);
            acc[i][1] = _mm512_dpbf16_ps(acc[i][1], ai, b1);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) vec_store(c + i * ldc + j * TILE, (vec)acc[i][j]);
}

#endif
#endif
