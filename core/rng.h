/* Counter-based random numbers.  Philox4x32-10 (Salmon et al., SC 2011) turns a counter into random bits, so a
 * number depends only on the seed and what it is used for: no generator object exists, nothing is saved, and threads,
 * ranks, workers and a resumed run draw the same bits.  The functions are inline so that kernels on every device share
 * them. */
#ifndef VIT_CORE_RNG_H
#define VIT_CORE_RNG_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Purposes of random numbers.  Reproducibility depends on the values: append new ones, never renumber. */
typedef enum {
    RNG_INIT = 1,      /* parameter initialisation: a = tensor index, b = 0 */
    RNG_SHUFFLE,       /* order of an epoch: a = epoch, b = round of the permutation */
    RNG_CROP,          /* random crop: a = epoch, b = draw: sample index, or data/loading/sampler.h's number */
    RNG_FLIP,          /* horizontal flip: a = epoch, b = draw */
    RNG_DROP_PATH,     /* stochastic depth: a = step, b = layer; element = sample within the global batch */
    RNG_SHAPES,        /* the embedded data set: a = split, b = sample index */
    RNG_TEST,          /* tests */
    RNG_RANDAUGMENT,   /* operations and their strengths: a = epoch, b = draw */
    RNG_JITTER,        /* colour jitter: a = epoch, b = draw */
    RNG_ERASING,       /* box of random erasing: a = epoch, b = draw */
    RNG_ERASING_NOISE, /* what fills it: a = epoch, b = draw; element = number within the image */
    RNG_MIXUP,         /* mixup or cutmix of a batch: a = low word of the step, b = high word */
    RNG_FEATURES,      /* random feature maps: a = step, b = block; element within the heads' matrices, head by head */
    RNG_CODES,         /* stochastic positional codes: a = step, b = block */
    RNG_DROPOUT,       /* a = step, b = which dropout << 20 | image of the global batch; element: kernels/linear/dropout.h */
    RNG_HOLD_OUT,      /* which training images validate: a = b = 0 */
    RNG_WINDOWS,       /* where an epoch's windows of a text begin: a = epoch, b = 0 */
    RNG_SAMPLE,        /* tokens that a density model draws: a = sequence, b = 0; element = position */
    RNG_FRAMES,        /* frames of a clip: a = epoch, b = draw; element = frame of the clip */
    RNG_MOVING,        /* the embedded clips: a = split, b = clip */
    RNG_REGIONS        /* which anchors and proposals count: detection/regions/sample.h */
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
 * Four consecutive elements share one block, counter = (i/4, a, b, purpose). */
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

/* Standard normal by Box and Muller: element i uses the uniforms 2i and 2i + 1. */
RNG_INLINE float rng_normal(uint64_t seed, RngPurpose purpose, uint32_t a, uint32_t b, uint64_t i) {
    uint32_t u = rng_bits(seed, purpose, a, b, 2 * i), v = rng_bits(seed, purpose, a, b, 2 * i + 1);
    float radius = sqrtf(-2.0f * logf(((float)(u >> 8) + 0.5f) * (1.0f / 16777216.0f)));
    return radius * cosf(6.283185307179586f * ((float)(v >> 8) * (1.0f / 16777216.0f)));
}

/* ln(v / 2^24) for a whole number 1 <= v < 2^24: v = 2^e (1 + f), 1 + f in [sqrt 1/2, sqrt 2). */
RNG_INLINE float rng_log(uint32_t v) {
    float whole = (float)v, f;
    uint32_t bits;
    memcpy(&bits, &whole, sizeof bits);
    int e = (int)(bits - 0x3f3504f3u) >> 23;
    bits -= (uint32_t)e << 23;
    memcpy(&f, &bits, sizeof f);
    f -= 1;
    float p = fmaf(-0.0763443792f, f, 0.127615629f);
    p = fmaf(p, f, -0.13160198f);
    p = fmaf(p, f, 0.14201761f);
    p = fmaf(p, f, -0.16623356f);
    p = fmaf(p, f, 0.200012267f);
    p = fmaf(p, f, -0.250008211f);
    p = fmaf(p, f, 0.333333317f);
    float square = f * f, tail = fmaf(p, square * f, -0.5f * square);
    float n = (float)(e - 24);
    return fmaf(n, 0.693359375f, fmaf(n, -2.12194440e-4f, tail) + f);
}

/* cos(2 pi k / 2^24), k < 2^24: the nearest quarter turn and the rest, |r| <= pi / 4. */
RNG_INLINE float rng_cosine(uint32_t k) {
    uint32_t quarter = (k + (1u << 21)) >> 22;
    float r = (float)((int32_t)k - (int32_t)(quarter << 22)) * (1.5707963267948966f / 4194304), z = r * r;
    float sine = fmaf(fmaf(fmaf(-1.95172971e-4f, z, 8.33217813e-3f), z, -0.166666549f), z * r, r);
    float cosine = fmaf(fmaf(fmaf(2.4438449e-5f, z, -1.38873675e-3f), z, 0.0416666469f), z * z, fmaf(-0.5f, z, 1.0f));
    float value = quarter & 1 ? sine : cosine;
    return (quarter + 1) & 2 ? -value : value;
}

/* A standard normal number with the same bits on every device: rng_normal asks the library for ln and cos, whose last
 * bits differ.  Products are only added by fmaf here, so that no compiler can change the rounding. */
RNG_INLINE float rng_normal_of(uint32_t u, uint32_t v) {
    return sqrtf(-2.0f * rng_log(u >> 8 | 1)) * rng_cosine(v >> 8);
}

RNG_INLINE float rng_normal_exact(uint64_t seed, RngPurpose purpose, uint32_t a, uint32_t b, uint64_t i) {
    return rng_normal_of(rng_bits(seed, purpose, a, b, 2 * i), rng_bits(seed, purpose, a, b, 2 * i + 1));
}

/* Fills x [n], in host memory, with rng_normal_exact of the elements 0 .. n-1, using all threads. */
#ifdef __cplusplus
extern "C"
#endif
void rng_normals(float *x, size_t n, uint64_t seed, RngPurpose purpose, uint32_t a, uint32_t b);

/* Puts order [blocks,length] into one of the blocks! orders of its blocks, each equally likely to the bias of rng_below
 * (Fisher and Yates: place i takes one of the i + 1 blocks not placed yet).  Some 10 ns a block. */
static inline void rng_shuffle(uint32_t *order, size_t blocks, size_t length, uint64_t seed, RngPurpose purpose,
                               uint32_t a, uint32_t b) {
    for (size_t i = blocks; i-- > 1;) {
        size_t j = rng_below(seed, purpose, a, b, i, (uint32_t)i + 1);
        for (size_t k = 0; k < length; k++) {
            uint32_t swap = order[i * length + k];
            order[i * length + k] = order[j * length + k];
            order[j * length + k] = swap;
        }
    }
}

#endif
