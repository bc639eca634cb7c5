/* Elementary functions on a vector of floats at a time, branch-free and without a library call.
 *
 *   exp      x = n ln 2 + r, |r| <= ln 2 / 2;  e^x = 2^n p(r)
 *   log      x = 2^n (1 + r), sqrt(1/2) <= 1 + r < sqrt 2;  n ln 2 + r - r^2/2 + r^3 p(r)
 *   sin, cos x = n pi + r, |r| <= pi / 2;  (-1)^n (p(r), q(r)): both share the reduction and are never swapped
 *   normal   Phi(x) = 1/2 + x p(x^2) for |x| < 1, else Phi(-a) = exp(-a^2/2) w(1 / (1 + 0.27 a))
 *
 * The polynomials are weighted minimax fits on those intervals (Lawson's iteration, in double). Constants are split so
 * that n times a part is exact: the results do not need a fused multiply-add. NaN in, NaN out. */
#ifndef VIT_KERNELS_CPU_VECMATH_H
#define VIT_KERNELS_CPU_VECMATH_H

#include <math.h>
#include <string.h>
#ifdef __AVX__
#include <immintrin.h>
#endif

#include "kernels/cpu/tile.h"

typedef unsigned uvec __attribute__((vector_size(4 * TILE), aligned(4), may_alias));

/* Stores the first n < TILE lanes: a copy of variable length would go through memory, and would keep whole vectors
 * there, too. */
#if defined(__AVX512F__)
TILE_INLINE __mmask16 vec_lanes_below(size_t n) { return (__mmask16)((1u << n) - 1); }
TILE_INLINE vec vec_load_first(const float *p, size_t n) { return (vec)_mm512_maskz_loadu_ps(vec_lanes_below(n), p); }
TILE_INLINE void vec_store_first(float *p, vec x, size_t n) { _mm512_mask_storeu_ps(p, vec_lanes_below(n), (__m512)x); }
#elif defined(__AVX__)
TILE_INLINE __m256i vec_lanes_below(size_t n) { return (__m256i)(vec_lanes() < (int)n); }
TILE_INLINE vec vec_load_first(const float *p, size_t n) { return (vec)_mm256_maskload_ps(p, vec_lanes_below(n)); }
TILE_INLINE void vec_store_first(float *p, vec x, size_t n) { _mm256_maskstore_ps(p, vec_lanes_below(n), (__m256)x); }
#else
TILE_INLINE vec vec_load_first(const float *p, size_t n) {
    vec x = {0};
    memcpy(&x, p, n * sizeof *p);
    return x;
}
TILE_INLINE void vec_store_first(float *p, vec x, size_t n) { memcpy(p, &x, n * sizeof *p); }
#endif

/* Loads the first n of TILE floats and fills with zeros; n >= TILE loads all. */
TILE_INLINE vec vec_load_part(const float *p, size_t n) { return n >= TILE ? vec_load(p) : vec_load_first(p, n); }

TILE_INLINE void vec_store_part(float *p, vec x, size_t n) {
    if (n >= TILE) vec_store(p, x);
    else vec_store_first(p, x, n);
}

/* The dot product of a [n] and b [n]. */
TILE_INLINE float vec_dot(const float *a, const float *b, int n) {
    vec sum = {0};
    for (int j = 0; j < n; j += TILE) sum += vec_load_part(a + j, n - j) * vec_load_part(b + j, n - j);
    return vec_sum(sum);
}

TILE_INLINE vec vec_abs(vec x) { return (vec)((uvec)x & 0x7fffffffu); }

/* Returns b if either is NaN: vec_max(limit, x) keeps a NaN in x, vec_max(x, limit) drops it. */
#if defined(__AVX512F__) /* one instruction, which GCC does not find in a comparison and a selection */
TILE_INLINE vec vec_max(vec a, vec b) { return (vec)_mm512_max_ps((__m512)a, (__m512)b); }
TILE_INLINE vec vec_min(vec a, vec b) { return (vec)_mm512_min_ps((__m512)a, (__m512)b); }
#elif defined(__AVX__)
TILE_INLINE vec vec_max(vec a, vec b) { return (vec)_mm256_max_ps((__m256)a, (__m256)b); }
TILE_INLINE vec vec_min(vec a, vec b) { return (vec)_mm256_min_ps((__m256)a, (__m256)b); }
#else
TILE_INLINE vec vec_max(vec a, vec b) { return vec_select(a > b, a, b); }
TILE_INLINE vec vec_min(vec a, vec b) { return vec_select(a < b, a, b); }
#endif

TILE_INLINE float vec_largest(vec x) {
    float s[TILE];
    vec_store(s, x);
#pragma GCC unroll 4
    for (int half = TILE / 2; half >= 4; half /= 2)
        for (int i = 0; i < half; i++) s[i] = s[i] > s[i + half] ? s[i] : s[i + half];
    float a = s[0] > s[2] ? s[0] : s[2], b = s[1] > s[3] ? s[1] : s[3];
    return a > b ? a : b;
}

/* Adding 1.5 2^23 rounds to an integer, which is then in the low bits. */
#define VEC_ROUND 12582912.0f

TILE_INLINE vec vec_power_of_two(ivec n) { return (vec)((uvec)(n + 127) << 23); }

/* e^(x - n ln 2) for |x - n ln 2| <= ln 2 / 2. */
TILE_INLINE vec vec_exp_reduced(vec x, vec n) {
    vec r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    vec p = 0.0013814611f * r + 0.00836871004f;
    p = p * r + 0.0416683874f;
    p = p * r + 0.166665207f;
    p = p * r + 0.499999935f;
    return p * (r * r) + r + 1.0f;
}

/* Within 1 ulp; denormal results are rounded once more; 0 below -104, infinity above 88.73. */
TILE_INLINE vec vec_exp(vec x) {
    x = vec_min(vec_set(89), vec_max(vec_set(-104), x));
    vec shifted = x * 1.44269504f + VEC_ROUND, n = shifted - VEC_ROUND;
    ivec whole = (ivec)((uvec)shifted - 0x4b400000u), half = whole >> 1;
    return vec_exp_reduced(x, n) * vec_power_of_two(half) * vec_power_of_two(whole - half);
}

/* e^x for x <= 88 within 1 ulp, for sums in which e^-86 is negligible: one scaling is enough for normal numbers, and
 * below -87.7 the result is 0.  The smallest normal number in its place would make products denormal, which is slow:
 * the keys that only pad a vector, or that belong to another region of a rolled grid, would cost more than all
 * others. */
TILE_INLINE vec vec_exp_floored(vec x) {
    x = vec_max(vec_set(-88), x);
    vec shifted = x * 1.44269504f + (VEC_ROUND + 127), n = shifted - (VEC_ROUND + 127);
    return vec_exp_reduced(x, n) * (vec)((uvec)shifted << 23);
}

/* Within 1 ulp of the larger of 1 and the result, for normal x > 0; some finite number for 0 and denormal x. */
TILE_INLINE vec vec_log(vec x) {
    uvec above = (uvec)x - 0x3f3504f3u; /* sqrt(1/2) */
    ivec whole = (ivec)above >> 23;
    vec n = __builtin_convertvector(whole, vec), r = (vec)((above & 0x7fffffu) + 0x3f3504f3u) - 1.0f, z = r * r;
    vec p = 7.0376836292e-2f * r + -1.1514610310e-1f;
    p = p * r + 1.1676998740e-1f;
    p = p * r + -1.2420140846e-1f;
    p = p * r + 1.4249322787e-1f;
    p = p * r + -1.6668057665e-1f;
    p = p * r + 2.0000714765e-1f;
    p = p * r + -2.4999993993e-1f;
    p = p * r + 3.3333331174e-1f;
    p = p * r * z + n * -2.12194440e-4f - 0.5f * z;
    return n * 0.693359375f + (r + p);
}

/* Largest argument for which n times the first two parts of pi is exact. */
#define VEC_SINCOS_LIMIT 10000.0f

/* Within 1.3e-7 for |x| <= VEC_SINCOS_LIMIT. */
TILE_INLINE void vec_sincos(vec *sine, vec *cosine, vec x) {
    vec shifted = x * 0.318309886f + VEC_ROUND, n = shifted - VEC_ROUND;
    uvec sign = (uvec)shifted << 31;
    vec r = x - n * 3.140625f;
    r = r - n * 9.67502593994140625e-4f;
    r = r - n * 1.50995799e-7f;
    vec z = r * r;
    vec s = 2.60575107e-06f * z + -0.000198095903f;
    s = s * z + 0.00833306609f;
    s = s * z + -0.166666595f;
    s = s * z * r + r;
    vec c = -2.60768208e-07f * z + 2.47618709e-05f;
    c = c * z + -0.00138884032f;
    c = c * z + 0.0416666407f;
    c = c * (z * z) + (-0.5f * z + 1.0f);
    *sine = (vec)((uvec)s ^ sign);
    *cosine = (vec)((uvec)c ^ sign);
}

/* Sine and cosine of any x [rows,n], n a multiple of TILE. The rare argument beyond the limit goes to the C library. */
static inline void sincos_tile(float *sine, float *cosine, size_t ld, const float *x, size_t ldx, int rows, int n) {
    const float limit = VEC_SINCOS_LIMIT;
    unsigned limit_bits;
    memcpy(&limit_bits, &limit, sizeof limit);
    uvec beyond = {0};
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < n; j += TILE) {
            vec v = vec_load(x + i * ldx + j), s, c;
            beyond |= limit_bits - ((uvec)v & 0x7fffffffu);
            vec_sincos(&s, &c, v);
            vec_store(sine + i * ld + j, s);
            vec_store(cosine + i * ld + j, c);
        }
    unsigned any = 0;
    for (int l = 0; l < TILE; l++) any |= beyond[l];
    if (any >> 31 == 0) return;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < n; j++)
            if (!(fabsf(x[i * ldx + j]) <= limit)) {
                sine[i * ld + j] = sinf(x[i * ldx + j]);
                cosine[i * ld + j] = cosf(x[i * ldx + j]);
            }
}

/* The normal distribution: returns Phi(x) = (1 + erf(x / sqrt 2)) / 2 within 1e-7, and its density. */
TILE_INLINE vec vec_normal(vec x, vec *density) {
    vec z = x * x, e = vec_exp_floored(-0.5f * z), t = 1.0f / (0.27f * vec_abs(x) + 1.0f) - 0.6f;
    vec w = -0.0707215265f * t + -0.105100107f;
    w = w * t + 0.0858014371f;
    w = w * t + 0.441702496f;
    w = w * t + 0.696764344f;
    w = w * t + 0.685988503f;
    w = w * t + 0.47806082f;
    w = e * (w * t + 0.142752286f);
    vec p = -7.65431362e-06f * z + 0.000113486662f;
    p = p * z + -0.00118633023f;
    p = p * z + 0.00997332354f;
    p = p * z + -0.0664903599f;
    p = p * z + 0.39894228f;
    *density = 0.39894228f * e;
    return vec_select(z < 1.0f, x * p + 0.5f, vec_select(x > 0.0f, 1.0f - w, w));
}

#endif
