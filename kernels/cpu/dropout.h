/* Dropout sixteen elements at a time: one block of Philox in each lane, eight decisions from each block. */
#ifndef VIT_KERNELS_CPU_DROPOUT_H
#define VIT_KERNELS_CPU_DROPOUT_H

#include "core/rng.h"
#include "kernels/cpu/vecmath.h"
#include "kernels/kernels.h"

enum { DROPOUT_GROUP = 8 * TILE }; /* elements that sixteen blocks serve */

typedef struct {
    uint64_t seed;
    uint32_t step, stream, threshold;
    float scale;
} DropoutDraw;

static inline DropoutDraw dropout_draw(const Dropout *d, int image) {
    return (DropoutDraw){d->seed, d->step, d->site << 20 | (d->first + (uint32_t)image),
                         (uint32_t)lrintf(65536 * d->rate), 1 / (1 - d->rate)};
}

/* The high words of a times a constant, *low gets the low ones. */
TILE_INLINE uvec multiply_high(uvec *low, uvec a, unsigned constant) {
#ifdef __AVX512F__
    __m512i c = _mm512_set1_epi32((int)constant), even = _mm512_mul_epu32((__m512i)a, c),
            odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)a, 32), c);
    *low = (uvec)_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
    return (uvec)_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
#else
    uvec high;
    for (int i = 0; i < TILE; i++) high[i] = (unsigned)((uint64_t)a[i] * constant >> 32);
    *low = a * constant;
    return high;
#endif
}

/* rng_philox of the blocks 16 group .. 16 group + 15, a lane each. */
TILE_INLINE void dropout_words(uvec word[4], const DropoutDraw *d, uint64_t group) {
    uint64_t block = group * TILE;
    uvec lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    uvec c0 = lane + (unsigned)block, c1 = (uvec){0} + d->step, c2 = (uvec){0} + d->stream;
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
    word[0] = c0;
    word[1] = c1;
    word[2] = c2;
    word[3] = c3;
}

/* Which of sixteen elements survive: those of group `part` among the eight groups that these words decide about. */
TILE_INLINE ivec dropout_kept(const uvec word[4], const DropoutDraw *d, int part) {
    uvec half = (word[part / 2] >> (unsigned)(16 * (part % 2))) & 0xffffu;
    return (ivec)(half >= d->threshold);
}

/* y = drop(x) of elements 128 group .. 128 group + n-1, n <= 128; relu: of the larger of x and 0. */
TILE_INLINE void dropout_group(float *y, const float *x, const DropoutDraw *d, uint64_t group, size_t n, bool relu) {
    uvec word[4];
    dropout_words(word, d, group);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        if ((size_t)i * TILE >= n) break;
        vec v = vec_load_part(x + i * TILE, n - i * TILE);
        if (relu) v = vec_select(v < 0.0f, vec_set(0), v);
        vec_store_part(y + i * TILE, vec_select(dropout_kept(word, d, i), d->scale * v, vec_set(0)), n - i * TILE);
    }
}

#endif
