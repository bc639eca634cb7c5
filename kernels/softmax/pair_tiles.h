/* Shared by the softmax attentions whose products take pairs of bfloat16: copies in the layouts of
 * kernels/softmax/pairs.h, and the conversion of blocks of scores to weights.  Each lane of a vector is a query, each
 * row a key: s = k q^T, so that maxima, sums and log-sum-exps are vectors, and a block of weights is already in the
 * layout of an operand. */
#ifndef VIT_KERNELS_SOFTMAX_PAIR_TILES_H
#define VIT_KERNELS_SOFTMAX_PAIR_TILES_H

#include <float.h>
#include <string.h>

#include "kernels/softmax/pairs.h"
#include "kernels/softmax/softmax_tiles.h"

#ifdef VIT_PAIRS

/* Vectors of 16 queries in a block of QUERIES.  The scores of KEYS keys stay in the second-level cache. */
enum { LANES = QUERIES / TILE };
_Static_assert((int)QUERIES == PAIR_BLOCK && (int)PANEL == PAIR_BLOCK, "blocks of queries and of keys are whole");

/* == Numbers ====================================================================================================== */

#define LOG2_E 1.44269504f
#define LN_2 0.693147181f

/* 2^x with a relative error of 2e-7, 0 for very negative x: 2^floor(x) times a polynomial of the fraction. */
static inline vec power_of_two(vec x) {
    vec r = (vec)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF);
    vec p = 0.00187757669f * r + 0.00898934063f;
    p = p * r + 0.0558263175f;
    p = p * r + 0.240153611f;
    p = p * r + 0.693153083f;
    p = p * r + 0.99999994f;
    return (vec)_mm512_scalef_ps((__m512)p, (__m512)x);
}

/* Rounded to bfloat16, in the upper halves; ties away from zero.  A NaN that came from a bfloat16 remains NaN. */
static inline uvec upper_halves(vec x) { return ((uvec)x + 0x8000) & 0xffff0000u; }

/* == Layouts ====================================================================================================== */

/* to [padded,Dp] = rows first.. of from, `stride` apart, padded with zeros. */
static inline void copy_rows(real *to, const real *from, size_t stride, const int *order, int first, int rows,
                             int padded, int D, int Dp) {
    __mmask32 last = ~0u >> (Dp - D);
    for (int i = 0; i < rows; i++, to += Dp) {
        const real *row = from + position(order, first + i) * stride;
        for (int j = 0; j < Dp - 32; j += 32) _mm512_storeu_si512(to + j, _mm512_loadu_si512(row + j));
        _mm512_storeu_si512(to + Dp - 32, _mm512_maskz_loadu_epi16(last, row + Dp - 32));
    }
    memset(to, 0, (size_t)(padded - rows) * Dp * sizeof *to);
}

/* to [Dp,ldt] = the transpose of from [rows,Dp]; room for rows * Dp numbers. */
static inline void transpose_rows(real *to, size_t ldt, const real *from, real *room, int rows, int Dp) {
    transpose_pairs(room, rows, from, rows, Dp);
    for (int p = 0; p < Dp / 2; p++)
        for (int i = 0; i < rows; i += TILE) {
            __m512i both = _mm512_loadu_si512((const float *)room + (size_t)p * rows + i);
            halfvec *even = (halfvec *)(to + 2 * p * ldt + i), *odd = (halfvec *)(to + (2 * p + 1) * ldt + i);
            *even = (halfvec)_mm512_cvtepi32_epi16(both);
            *odd = (halfvec)_mm512_cvtepi32_epi16(_mm512_srli_epi32(both, 16));
        }
}

static inline size_t floats_of(size_t reals) { return workspace_line_up((reals + 1) / 2); }
static inline real *take_reals(float **next, size_t n) { return (real *)workspace_take(next, (n + 1) / 2); }

/* == Scores ======================================================================================================= */

/* The running state of a block of queries: the largest score, minus infinity before the first one, and the same as a
 * finite number; the sum of p, and the sum of p rounded as for the product, by which y is divided. */
typedef struct {
    vec largest[LANES], shift[LANES], sum[LANES], rounded[LANES];
} Running;

/* Updates the largest scores and returns the factors for the earlier sums.  Here and below, `lanes` is the number of
 * vectors of queries, a literal. */
TILE_INLINE void pairs_raise_maximum(int lanes, vec shrink[LANES], Running *r, const float *s, float scale, int keys) {
    vec largest[LANES];
    for (int v = 0; v < lanes; v++) largest[v] = vec_load(s + v * TILE);
    for (int j = 1; j < keys; j++)
        for (int v = 0; v < lanes; v++) largest[v] = vec_max(vec_load(s + j * QUERIES + v * TILE), largest[v]);
    for (int v = 0; v < lanes; v++) {
        largest[v] = vec_max(scale * largest[v], r->largest[v]);
        r->shift[v] = vec_max(largest[v], vec_set(-FLT_MAX));
        shrink[v] = power_of_two(r->largest[v] - r->shift[v]);
        r->largest[v] = largest[v];
    }
}

/* Turns a block of scores s [keys,QUERIES] into p, 2 to the power of scale s minus the maximum, in pairs of keys,
 * [padded/2][QUERIES][2].  y^T [Dp,QUERIES] and the state are updated for the new keys. */
TILE_INLINE void pairs_softmax_step(int lanes, real *p, Running *r, float *yt, const float *s, float scale, int keys,
                                    int padded, int Dp) {
    vec shrink[LANES], sum[LANES] = {{0}}, rounded[LANES] = {{0}};
    pairs_raise_maximum(lanes, shrink, r, s, scale, keys);
    for (int j = 0; j + 2 <= keys; j += 2)
        for (int v = 0; v < lanes; v++) {
            const float *at = s + j * QUERIES + v * TILE;
            vec even = power_of_two(scale * vec_load(at) - r->shift[v]);
            vec odd = power_of_two(scale * vec_load(at + QUERIES) - r->shift[v]);
            uvec low = upper_halves(even), high = upper_halves(odd);
            sum[v] += even + odd;
            rounded[v] += (vec)low + (vec)high;
            *(uvec *)(p + j * QUERIES + 2 * v * TILE) = low >> 16 | high;
        }
    memset(p + keys / 2 * 2 * QUERIES, 0, (padded - keys / 2 * 2) * QUERIES * sizeof *p);
    for (int v = 0; v < lanes; v++) {
        if (keys % 2) {
            vec last = power_of_two(scale * vec_load(s + (keys - 1) * QUERIES + v * TILE) - r->shift[v]);
            sum[v] += last;
            rounded[v] += (vec)upper_halves(last);
            *(uvec *)(p + (keys - 1) * QUERIES + 2 * v * TILE) = upper_halves(last) >> 16;
        }
        r->sum[v] = r->sum[v] * shrink[v] + sum[v];
        r->rounded[v] = r->rounded[v] * shrink[v] + rounded[v];
        for (int d = 0; d < Dp; d++) {
            float *at = yt + d * QUERIES + v * TILE;
            vec_store(at, shrink[v] * vec_load(at));
        }
    }
}

/* Packs a block of QUERIES as right operands, [Dp/2][QUERIES][2] and [QUERIES/2][Dp][2]; there must be room for
 * QUERIES * Dp numbers. */
static inline void pack_queries(real *transposed, real *paired, real *room, const real *from, size_t stride,
                                const int *order, int first, int rows, int D, int Dp) {
    copy_rows(room, from, stride, order, first, rows, QUERIES, D, Dp);
    transpose_pairs(transposed, QUERIES, room, QUERIES, Dp);
    pair_rows(paired, room, QUERIES, Dp);
}

/* Computes from a block of scores s = k q^T and t = v dy^T [keys,QUERIES]: p = 2^(scale s - lse) and ds = p (t -
 * delta), both [padded,QUERIES], and ds in pairs of keys. */
TILE_INLINE void pairs_scores_backward(int lanes, real *p, real *ds, real *ds_pairs, const float *s, const float *t,
                                       const float *lse, const float *delta, float scale, int keys, int padded) {
    for (int v = 0; v < lanes; v++) {
        vec shift = vec_load(lse + v * TILE), mean = vec_load(delta + v * TILE);
        for (int j = 0; j < padded; j += 2) {
            uvec weights[2] = {{0}}, slopes[2] = {{0}};
#pragma GCC unroll 2
            for (int odd = 0; odd < 2; odd++) {
                size_t at = (size_t)(j + odd) * QUERIES + v * TILE;
                if (j + odd >= keys) continue;
                vec weight = power_of_two(scale * vec_load(s + at) - shift);
                weights[odd] = upper_halves(weight);
                slopes[odd] = upper_halves(weight * (vec_load(t + at) - mean));
            }
#pragma GCC unroll 2
            for (int odd = 0; odd < 2; odd++) {
                size_t at = (size_t)(j + odd) * QUERIES + v * TILE;
                *(halfvec *)(p + at) = (halfvec)_mm512_cvtepi32_epi16((__m512i)(weights[odd] >> 16));
                *(halfvec *)(ds + at) = (halfvec)_mm512_cvtepi32_epi16((__m512i)(slopes[odd] >> 16));
            }
            *(uvec *)(ds_pairs + j * QUERIES + 2 * v * TILE) = slopes[0] >> 16 | slopes[1];
        }
    }
}

#endif
#endif
