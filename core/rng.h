/* Randomness as a pure function.  Philox4x32-10 (Salmon et al., SC 2011) turns a counter into random bits, so a
 * number depends only on what it is for: no generator object exists, nothing is saved, and threads, ranks, workers
 * and a resumed run draw the same bits.  The functions are inline so that kernels on every device share them. */
#ifndef VIT_CORE_RNG_H
#define VIT_CORE_RNG_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

/* What a number is drawn for.  Values are part of the file format of reproducibility: append, never renumber. */
typedef enum {
    RNG_INIT = 1,  /* parameter initialisation: a = tensor index, b = 0 */
    RNG_SHUFFLE,   /* order of an epoch: a = epoch, b = round of the permutation */
    RNG_CROP,      /* random crop: a = epoch, b = sample index */
    RNG_FLIP,      /* horizontal flip: a = epoch, b = sample index */
    RNG_DROP_PATH, /* stochastic depth: a = step, b = layer; element = sample within the global batch */
    RNG_SHAPES,    /* the embedded data set: a = split, b = sample index */
    RNG_TEST,      /* tests */
    RNG_FEATURES,  /* random feature maps: a = step, b = block; element within the heads' matrices, head by head */
    RNG_CODES      /* stochastic positional codes: a = step, b = block */
} RngPurpose;

typedef struct {
    uint32_t word[4];
} RngBlock;

#ifdef __CUDACC__
#define RNG_INLINE static inline __host__ __device__
#else
#define RNG_INLINE static inline
#endif

/* Ten rounds of Philox on a 128-bit counter with a 64-bit key. */
RNG_INLINE RngBlock rng_philox(const uint32_t counter[4], uint64_t key) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    RngBlock block = {{c0, c1, c2, c3}};
    return block;
}

/* The 32 random bits of element i of the stream (seed, purpose, a, b): a, b < 2^32, i < 2^34.
 * Four consecutive elements share one block, counter = (i/4, a, b, purpose << 2 high bits of i/4's overflow). */
RNG_INLINE uint32_t rng_bits(uint64_t seed, RngPurpose purpose, uint32_t a, uint32_t b, uint64_t i) {
    uint64_t block = i >> 2;
    uint32_t counter[4] = {(uint32_t)block, a, b, (uint32_t)purpose | (uint32_t)(block >> 32) << 8};
    return rng_philox(counter, seed).word[i & 3];
}

/* Uniform in [0, 1), 24 bits. */
RNG_INLINE float rng_uniform(uint64_t seed, RngPurpose purpose, uint32_t a, uint32_t b, uint64_t i) {
    return (float)(rng_bits(seed, purpose, a, b, i) >> 8) * (1.0f / 16777216.0f);
}

/* Uniform integer in [0, n) by the high word of a product; its bias is below n / 2^32. */
RNG_INLINE uint32_t rng_below(uint64_t seed, RngPurpose purpose, uint32_t a, uint32_t b, uint64_t i, uint32_t n) {
    return (uint32_t)((uint64_t)rng_bits(seed, purpose, a, b, i) * n >> 32);
}

/* Standard normal from two words of bits, by Box and Muller. */
RNG_INLINE float rng_normal_of(uint32_t u, uint32_t v) {
    float radius = sqrtf(-2.0f * logf(((float)(u >> 8) + 0.5f) * (1.0f / 16777216.0f)));
    return radius * cosf(6.283185307179586f * ((float)(v >> 8) * (1.0f / 16777216.0f)));
}

/* Standard normal: element i uses the uniforms 2i and 2i + 1. */
RNG_INLINE float rng_normal(uint64_t seed, RngPurpose purpose, uint32_t a, uint32_t b, uint64_t i) {
    return rng_normal_of(rng_bits(seed, purpose, a, b, 2 * i), rng_bits(seed, purpose, a, b, 2 * i + 1));
}

/* x [n] = rng_normal of the elements 0 .. n-1, host memory.  Each block of bits is made once, and by all threads. */
#ifdef __cplusplus
extern "C"
#endif
void rng_normals(float *x, size_t n, uint64_t seed, RngPurpose purpose, uint32_t a, uint32_t b);

#endif
