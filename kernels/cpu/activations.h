/* Activations in memory, floats in registers: every load widens and every store rounds, to the nearest, ties to even.
 * Where an activation is a float, both are plain copies. */
#ifndef VIT_KERNELS_CPU_ACTIVATIONS_H
#define VIT_KERNELS_CPU_ACTIVATIONS_H

#include <stdint.h>
#include <string.h>

#include "kernels/cpu/tile.h"
#include "kernels/cpu/vecmath.h"
#include "real.h"

#ifdef VIT_FP32

TILE_INLINE float real_get(real x) { return x; }
TILE_INLINE real real_of(float x) { return x; }
TILE_INLINE vec real_load(const real *p) { return vec_load(p); }
TILE_INLINE void real_store(real *p, vec x) { vec_store(p, x); }
/* The first n of TILE, the others zero; n >= TILE: all. */
TILE_INLINE vec real_load_part(const real *p, size_t n) { return vec_load_part(p, n); }
TILE_INLINE void real_store_part(real *p, vec x, size_t n) { vec_store_part(p, x, n); }

#else

typedef uint16_t halfvec __attribute__((vector_size(2 * TILE), aligned(2), may_alias));

TILE_INLINE float real_get(real x) {
    uint32_t bits = (uint32_t)x.bits << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

TILE_INLINE real real_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return (real){0x7fc0};
    return (real){(unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

#ifdef __AVX512F__ /* one instruction, for which GCC takes four */
TILE_INLINE vec halfvec_widen(halfvec x) { return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)x), 16); }
#else
TILE_INLINE vec halfvec_widen(halfvec x) { return (vec)(__builtin_convertvector(x, uvec) << 16); }
#endif

#ifdef __AVX512BF16__ /* one instruction, which treats numbers below 2^-126 as zero */
TILE_INLINE halfvec halfvec_round(vec x) { return (halfvec)_mm512_cvtneps_pbh((__m512)x); }
#else
TILE_INLINE halfvec halfvec_round(vec x) {
    uvec bits = (uvec)x, rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return __builtin_convertvector((uvec)vec_select(x == x, (vec)rounded, (vec)((uvec){0} + 0x7fc0)), halfvec);
}
#endif

TILE_INLINE vec real_load(const real *p) { return halfvec_widen(*(const halfvec *)p); }
TILE_INLINE void real_store(real *p, vec x) { *(halfvec *)p = halfvec_round(x); }

TILE_INLINE vec real_load_part(const real *p, size_t n) {
    if (n >= TILE) return real_load(p);
    halfvec x = {0};
    memcpy(&x, p, n * sizeof *p);
    return halfvec_widen(x);
}

TILE_INLINE void real_store_part(real *p, vec x, size_t n) {
    halfvec rounded = halfvec_round(x);
    if (n >= TILE) *(halfvec *)p = rounded;
    else memcpy(p, &rounded, n * sizeof *p);
}

#endif

/* Rows of n numbers. */
TILE_INLINE void reals_widen(float *to, const real *from, size_t n) {
    for (size_t j = 0; j < n; j += TILE) vec_store_part(to + j, real_load_part(from + j, n - j), n - j);
}

TILE_INLINE void reals_round(real *to, const float *from, size_t n) {
    for (size_t j = 0; j < n; j += TILE) real_store_part(to + j, vec_load_part(from + j, n - j), n - j);
}

TILE_INLINE float reals_dot(const real *a, const real *b, int n) {
    vec sum = {0};
    for (int j = 0; j < n; j += TILE) sum += real_load_part(a + j, n - j) * real_load_part(b + j, n - j);
    return vec_sum(sum);
}

/* The dot product of a [n] and b [n]. */
TILE_INLINE float row_dot(const real *a, const float *b, int n) {
    vec sum = {0};
    for (int j = 0; j < n; j += TILE) sum += real_load_part(a + j, n - j) * vec_load_part(b + j, n - j);
    return vec_sum(sum);
}

/* sum += scale times x. */
static inline void reals_add(float *sum, float scale, const real *x, int n) {
    for (int j = 0; j < n; j += TILE)
        vec_store_part(sum + j, vec_load_part(sum + j, n - j) + scale * real_load_part(x + j, n - j), n - j);
}

/* Activations as an operand of tile_gemm. */
typedef struct {
    const float *at;
    size_t row; /* floats from one row to the next */
} FloatRows;

/* The first n numbers of each of the rows at `from`, `row` apart: if activations are floats, in place; otherwise
 * widened to `to`, whose rows are ld >= n apart. */
TILE_INLINE FloatRows reals_as_floats(float *to, size_t ld, const real *from, size_t row, int rows, int n) {
#ifdef VIT_FP32
    (void)to, (void)ld, (void)rows, (void)n;
    return (FloatRows){from, row};
#else
    for (int i = 0; i < rows; i++) reals_widen(to + (size_t)i * ld, from + (size_t)i * row, (size_t)n);
    return (FloatRows){to, ld};
#endif
}

/* to [rows,ld] = scale times the rows of from, n numbers each, `row` apart, with zeros behind them. */
static inline void rows_gather(float *to, int ld, const real *from, size_t row, float scale, int rows, int n) {
    for (int i = 0; i < rows; i++, to += ld, from += row) {
        for (int j = 0; j < n; j += TILE) vec_store(to + j, scale * real_load_part(from + j, n - j));
        for (int j = tile_round_up(n); j < ld; j += TILE) vec_store(to + j, vec_set(0));
    }
}

/* The same to [padded,ld], with zero rows behind the others. */
static inline void rows_gather_padded(float *to, int ld, const real *from, size_t row, float scale, int rows,
                                      int padded, int n) {
    rows_gather(to, ld, from, row, scale, rows, n);
    memset(to + (size_t)rows * ld, 0, (size_t)(padded - rows) * ld * sizeof *to);
}

/* The reverse of rows_gather: the rows of to, n numbers each, = scale times those of from [rows,ld]. */
static inline void rows_scatter(real *to, size_t row, const float *from, int ld, float scale, int rows, int n) {
    for (int i = 0; i < rows; i++, to += row, from += ld)
        for (int j = 0; j < n; j += TILE) real_store_part(to + j, scale * vec_load(from + j), n - j);
}

#endif
