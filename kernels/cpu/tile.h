/* The one inner loop that every attention kernel of this backend shares: a small matrix product on tiles that fit in
 * the first-level cache, in vectors as wide as the machine's registers.
 *
 *     C [m,n] (= or +=) A [m,k] B [k,n]
 *
 * A is read one scalar at a time, so any pair of strides works: (lda, 1) reads A, (1, lda) its transpose.
 * B and C are row-major and n is a multiple of TILE: callers pad their copies with zeros. Any m >= 0, k >= 0. */
#ifndef VIT_KERNELS_CPU_TILE_H
#define VIT_KERNELS_CPU_TILE_H

#include <stddef.h>

/* Put before a loop of a fixed length, at most n, whose arrays should be registers.  With a number, clang unrolls so
 * late that they are in memory. */
#define TILE_PRAGMA(words) _Pragma(#words)
#ifdef __clang__
#define TILE_UNROLL(n) TILE_PRAGMA(clang loop unroll(full))
#else
#define TILE_UNROLL(n) TILE_PRAGMA(GCC unroll n)
#endif

/* TILE floats are one register: a wider vector would be kept in memory.  The innermost product keeps TILE_ROWS rows by
 * TILE_VECS vectors of C in registers, and TILE_VECS of B and one of A: 19 of the 32 of AVX-512, 15 of the 16 of AVX2,
 * 21 of the 32 of NEON.  scripts/checks/check_spills.py checks that the compiler does so. */
#if defined(__AVX512F__)
enum { TILE = 16, TILE_ROWS = 8, TILE_VECS = 2 };
#define TILE_LANES(lane) TILE_LANES_16(lane)
#elif defined(__AVX__)
enum { TILE = 8, TILE_ROWS = 6, TILE_VECS = 2 };
#define TILE_LANES(lane) TILE_LANES_8(lane)
#elif defined(__wasm_simd128__)
enum { TILE = 4, TILE_ROWS = 6, TILE_VECS = 2 };
#define TILE_LANES(lane) TILE_LANES_4(lane)
#elif defined(__aarch64__)
enum { TILE = 4, TILE_ROWS = 4, TILE_VECS = 4 };
#define TILE_LANES(lane) TILE_LANES_4(lane)
#else
enum { TILE = 4, TILE_ROWS = 4, TILE_VECS = 2 };
#define TILE_LANES(lane) TILE_LANES_4(lane)
#endif

/* lane(0), lane(1), ... lane(TILE-1) */
#define TILE_LANES_4(lane) lane(0), lane(1), lane(2), lane(3)
#define TILE_LANES_8(lane) TILE_LANES_4(lane), lane(4), lane(5), lane(6), lane(7)
#define TILE_LANES_16(lane) \
    TILE_LANES_8(lane), lane(8), lane(9), lane(10), lane(11), lane(12), lane(13), lane(14), lane(15)

typedef float vec __attribute__((vector_size(4 * TILE), aligned(4), may_alias));
typedef int ivec __attribute__((vector_size(4 * TILE), aligned(4), may_alias));

#define TILE_INLINE static inline __attribute__((always_inline))

TILE_INLINE vec vec_load(const float *p) { return *(const vec *)p; }
TILE_INLINE void vec_store(float *p, vec x) { *(vec *)p = x; }
TILE_INLINE vec vec_set(float x) { return x - (vec){0}; } /* x + 0 would be 0 for -0, so the compiler could not remove
                                                           * the addition */

/* Selects per lane: a where the mask is all ones, else b. */
TILE_INLINE vec vec_select(ivec mask, vec a, vec b) { return (vec)(((ivec)a & mask) | ((ivec)b & ~mask)); }

/* 0, 1, 2 ... */
#define VEC_LANE(i) (i)
TILE_INLINE ivec vec_lanes(void) { return (ivec){TILE_LANES(VEC_LANE)}; }

/* By halves; loops of fixed length stay in vectors. */
TILE_INLINE float vec_sum(vec x) {
    float s[TILE];
    vec_store(s, x);
    TILE_UNROLL(4)
    for (int half = TILE / 2; half >= 4; half /= 2)
        for (int i = 0; i < half; i++) s[i] += s[i + half];
    return (s[0] + s[2]) + (s[1] + s[3]);
}

/* Lane i in one stage of a transpose: two vectors exchange the blocks of S lanes next to the diagonal. */
#define LOW_1(i) ((i)&1 ? TILE + (i)-1 : (i))
#define LOW_2(i) ((i)&2 ? TILE + (i)-2 : (i))
#define LOW_4(i) ((i)&4 ? TILE + (i)-4 : (i))
#define LOW_8(i) ((i)&8 ? TILE + (i)-8 : (i))
#define HIGH_1(i) ((i)&1 ? TILE + (i) : (i) + 1)
#define HIGH_2(i) ((i)&2 ? TILE + (i) : (i) + 2)
#define HIGH_4(i) ((i)&4 ? TILE + (i) : (i) + 4)
#define HIGH_8(i) ((i)&8 ? TILE + (i) : (i) + 8)

/* to [TILE,TILE] = from [TILE,TILE] transposed, rows ldt and ldf floats apart. */
TILE_INLINE void tile_transpose(float *to, size_t ldt, const float *from, size_t ldf) {
    vec r[TILE];
    TILE_UNROLL(16)
    for (int i = 0; i < TILE; i++) r[i] = vec_load(from + i * ldf);
#define STAGE(S)                                                                          \
    TILE_UNROLL(16) for (int i = 0; i < TILE; i++) if (!(i & S)) {                        \
        vec low = __builtin_shufflevector(r[i], r[i + S], TILE_LANES(LOW_##S));           \
        r[i + S] = __builtin_shufflevector(r[i], r[i + S], TILE_LANES(HIGH_##S));         \
        r[i] = low;                                                                       \
    }
#ifdef __AVX512F__
    STAGE(8);
#endif
#ifdef __AVX__
    STAGE(4);
#endif
    STAGE(2);
    STAGE(1);
#undef STAGE
    TILE_UNROLL(16)
    for (int i = 0; i < TILE; i++) vec_store(to + i * ldt, r[i]);
}

/* to [columns,ldt] = from [rows,ldf] transposed; rows and columns are multiples of TILE. */
static inline void tiles_transpose(float *to, size_t ldt, const float *from, size_t ldf, int rows, int columns) {
    for (int i = 0; i < rows; i += TILE)
        for (int j = 0; j < columns; j += TILE) tile_transpose(to + j * ldt + i, ldt, from + i * ldf + j, ldf);
}

/* The same for any rows and columns, with zeros beyond the rows of from. */
static inline void transpose_padded(float *to, size_t ldt, const float *from, size_t ldf, int rows, int columns) {
    for (int j = 0; j < columns; j++)
        for (size_t i = 0; i < ldt; i++) to[j * ldt + i] = i < (size_t)rows ? from[i * ldf + j] : 0;
}

/* Adds neighbouring groups of S lanes, those of a first, then those of b: lane i is the sum of lanes i + i / S * S of
 * (a, b) and of that S further on. */
#define EVEN_1(i) ((i) + (i))
#define EVEN_2(i) ((i) + (i) / 2 * 2)
#define EVEN_4(i) ((i) + (i) / 4 * 4)
#define EVEN_8(i) ((i) + (i) / 8 * 8)
#define ODD_1(i) (EVEN_1(i) + 1)
#define ODD_2(i) (EVEN_2(i) + 2)
#define ODD_4(i) (EVEN_4(i) + 4)
#define ODD_8(i) (EVEN_8(i) + 8)
#define VEC_FOLD(S, a, b) \
    (__builtin_shufflevector(a, b, TILE_LANES(EVEN_##S)) + __builtin_shufflevector(a, b, TILE_LANES(ODD_##S)))

/* Lane i of the result is the sum of the lanes of x[i]; x [TILE] is overwritten. */
TILE_INLINE vec vec_sums(vec *x) {
#ifdef __AVX512F__
    TILE_UNROLL(8)
    for (int i = 0; i < TILE / 2; i++) x[i] = VEC_FOLD(8, x[2 * i], x[2 * i + 1]);
#endif
#ifdef __AVX__
    TILE_UNROLL(4)
    for (int i = 0; i < 4; i++) x[i] = VEC_FOLD(4, x[2 * i], x[2 * i + 1]);
#endif
    vec low = VEC_FOLD(2, x[0], x[1]), high = VEC_FOLD(2, x[2], x[3]);
    return VEC_FOLD(1, low, high);
}

TILE_INLINE int tile_round_up(int n) { return (n + TILE - 1) / TILE * TILE; }

/* total += part [n], n a multiple of TILE, and part = 0. */
static inline void sums_join(float *total, float *part, size_t n) {
    for (size_t i = 0; i < n; i += TILE) {
        vec_store(total + i, vec_load(total + i) + vec_load(part + i));
        vec_store(part + i, vec_set(0));
    }
}

/* MR rows by NV vectors of C, in registers.  MR and NV are literals at every call, so that the loops unroll. */
TILE_INLINE void tile_micro(int MR, int NV, float *c, size_t ldc, const float *a, size_t a_row, size_t a_col,
                            const float *b, size_t ldb, int k, int accumulate) {
    vec acc[TILE_ROWS][TILE_VECS];
    TILE_UNROLL(8)
    for (int i = 0; i < MR; i++)
        TILE_UNROLL(4)
        for (int j = 0; j < NV; j++) acc[i][j] = accumulate ? vec_load(c + i * ldc + j * TILE) : vec_set(0);
    for (int p = 0; p < k; p++) {
        vec bp[TILE_VECS];
        TILE_UNROLL(4)
        for (int j = 0; j < NV; j++) bp[j] = vec_load(b + p * ldb + j * TILE);
        TILE_UNROLL(8)
        for (int i = 0; i < MR; i++) {
            vec ai = vec_set(a[i * a_row + p * a_col]);
            TILE_UNROLL(4)
            for (int j = 0; j < NV; j++) acc[i][j] += ai * bp[j];
        }
    }
    TILE_UNROLL(8)
    for (int i = 0; i < MR; i++)
        TILE_UNROLL(4)
        for (int j = 0; j < NV; j++) vec_store(c + i * ldc + j * TILE, acc[i][j]);
}

/* Full blocks of rows, then one block of four, then single rows.  Eight rows are twice four, not six and two. */
TILE_INLINE void tile_columns(int NV, float *c, size_t ldc, const float *a, size_t a_row, size_t a_col, const float *b,
                              size_t ldb, int m, int k, int accumulate) {
    int i = 0;
    for (; i + TILE_ROWS <= m && (TILE_ROWS != 6 || m - i != 8); i += TILE_ROWS)
        tile_micro(TILE_ROWS, NV, c + i * ldc, ldc, a + i * a_row, a_row, a_col, b, ldb, k, accumulate);
    for (; i + 4 <= m; i += 4)
        tile_micro(4, NV, c + i * ldc, ldc, a + i * a_row, a_row, a_col, b, ldb, k, accumulate);
    for (; i < m; i++) tile_micro(1, NV, c + i * ldc, ldc, a + i * a_row, a_row, a_col, b, ldb, k, accumulate);
}

static inline void tile_gemm(float *c, size_t ldc, const float *a, size_t a_row, size_t a_col, const float *b,
                             size_t ldb, int m, int n, int k, int accumulate) {
    int j = 0;
    for (; j + TILE_VECS * TILE <= n; j += TILE_VECS * TILE)
        tile_columns(TILE_VECS, c + j, ldc, a, a_row, a_col, b + j, ldb, m, k, accumulate);
#if defined(__aarch64__)
    if (j + 2 * TILE <= n) {
        tile_columns(2, c + j, ldc, a, a_row, a_col, b + j, ldb, m, k, accumulate);
        j += 2 * TILE;
    }
#endif
    if (j < n) tile_columns(1, c + j, ldc, a, a_row, a_col, b + j, ldb, m, k, accumulate);
}

#endif
