/* Dropout in groups of 128 elements: sixteen Philox blocks, one in each lane, with eight decisions from each block. */
#ifndef VIT_KERNELS_LINEAR_DROPOUT_CPU_H
#define VIT_KERNELS_LINEAR_DROPOUT_CPU_H

#include <math.h>
#include <stdbool.h>

#include "core/rng.h"
#include "kernels/cpu/vecmath.h"
#include "kernels/linear/dropout.h"

enum {
    DROPOUT_BLOCKS = 16,
    DROPOUT_GROUP = 8 * DROPOUT_BLOCKS,        /* elements */
    DROPOUT_VECTORS = DROPOUT_GROUP / TILE,    /* and vectors of them */
    DROPOUT_LINE = DROPOUT_BLOCKS / TILE       /* vectors that hold one word of every block */
};

/* The four words of each block of a group. */
typedef struct {
    uvec of[4][DROPOUT_LINE];
} DropoutWords;

typedef struct {
    uint64_t seed;
    uint32_t step, stream, threshold;
    float scale;
} DropoutDraw;

static inline DropoutDraw dropout_draw(const Dropout *d, int image) {
    return (DropoutDraw){d->seed, d->step, d->site << 20 | (d->first + (uint32_t)image),
                         (uint32_t)lrintf(65536 * d->rate), 1 / (1 - d->rate)};
}

/* The high words of a times a constant; *low receives the low words. */
TILE_INLINE uvec multiply_high(uvec *low, uvec a, unsigned constant) {
#if defined(__AVX512F__)
    __m512i c = _mm512_set1_epi32((int)constant), even = _mm512_mul_epu32((__m512i)a, c),
            odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)a, 32), c);
    *low = (uvec)_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
    return (uvec)_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
#elif defined(__AVX2__)
    __m256i c = _mm256_set1_epi32((int)constant), even = _mm256_mul_epu32((__m256i)a, c),
            odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)a, 32), c);
    *low = (uvec)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    return (uvec)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
#else
    uvec high;
    for (int i = 0; i < TILE; i++) high[i] = (unsigned)((uint64_t)a[i] * constant >> 32);
    *low = a * constant;
    return high;
#endif
}

/* rng_philox of the blocks 16 group .. 16 group + 15. */
TILE_INLINE void dropout_words(DropoutWords *word, const DropoutDraw *d, uint64_t group) {
#pragma GCC unroll 4
    for (int part = 0; part < DROPOUT_LINE; part++) {
        uint64_t block = group * DROPOUT_BLOCKS + (uint64_t)part * TILE;
        uvec c0 = (uvec)vec_lanes() + (unsigned)block, c1 = (uvec){0} + d->step, c2 = (uvec){0} + d->stream;
        uvec c3 = (uvec){0} + ((unsigned)RNG_DROPOUT | (unsigned)(block >> 32) << 8);
        unsigned k0 = (unsigned)d->seed, k1 = (unsigned)(d->seed >> 32);
        for (int round = 0; round < 10; round++) {
            uvec low0, low1, high0 = multiply_high(&low0, c0, 0xD2511F53u), high1 = multiply_high(&low1, c2, 0xCD9E8D57u);
            c0 = high1 ^ c1 ^ k0;
            c1 = low1;
            c2 = high0 ^ c3 ^ k1;
            c3 = low0;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        word->of[0][part] = c0;
        word->of[1][part] = c1;
        word->of[2][part] = c2;
        word->of[3][part] = c3;
    }
}

/* Which elements of a group's vector i survive: word i / 2 / DROPOUT_LINE of each block decides about two lines. */
TILE_INLINE ivec dropout_kept(const DropoutWords *word, const DropoutDraw *d, int i) {
    int line = i / DROPOUT_LINE;
    uvec half = (word->of[line / 2][i % DROPOUT_LINE] >> (unsigned)(16 * (line % 2))) & 0xffffu;
    return (ivec)(half >= d->threshold);
}

/* y = drop(x) of elements 128 group .. 128 group + n-1, n <= 128; relu: of the larger of x and 0. */
TILE_INLINE void dropout_group(float *y, const float *x, const DropoutDraw *d, uint64_t group, size_t n, bool relu) {
    DropoutWords word;
    dropout_words(&word, d, group);
#pragma GCC unroll 8
    for (int i = 0; i < DROPOUT_VECTORS; i++) {
        if ((size_t)i * TILE >= n) break;
        vec v = vec_load_part(x + i * TILE, n - i * TILE);
        if (relu) v = vec_select(v < 0.0f, vec_set(0), v);
        vec_store_part(y + i * TILE, vec_select(dropout_kept(&word, d, i), d->scale * v, vec_set(0)), n - i * TILE);
    }
}

#endif
