/* Arithmetic in which a GPU differs from a CPU; see device.cuh.  Compiled without the sanitizers, for speed. */
#include "tests/emulate/emulate.h"

/* == Tensor cores ================================================================================================== */

/* The sum of a tensor core as measured on an H100 (Khattak and Mikaitis, "Accurate models of NVIDIA tensor cores",
 * 2025) and earlier GPUs (Fasi and others, "Numerical behavior of NVIDIA tensor cores", 2021).  Products of bfloat16
 * are exact; all terms and the accumulator are shifted to their largest exponent and cut off two bits below its last
 * bit; their sum is exact and is cut off to a float. */
enum { EXTRA_BITS = 2 };

static uint64_t bits_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static double double_of(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* The exponent of zero is below that of every product. */
static int exponent(float x) {
    int biased = bits_of(x) >> 23 & 0xFF;
    return x == 0 ? -400 : (biased ? biased : 1) - 127;
}
static double power_of_two(int n) { return double_of((uint64_t)(n + 1023) << 52); }
static float toward_zero(double x) { return (float)double_of(bits_of(x) & ~(((uint64_t)1 << 29) - 1)); }

void emulate_tensor_core(float (&c)[TENSOR_COLUMNS], const float (&a)[TENSOR_TERMS],
                         const float (&b)[TENSOR_TERMS][TENSOR_COLUMNS]) {
    int largest[TENSOR_COLUMNS];
    double place[TENSOR_COLUMNS], sum[TENSOR_COLUMNS], rough[TENSOR_COLUMNS];
    for (int j = 0; j < TENSOR_COLUMNS; j++) largest[j] = exponent(c[j]);
    for (int k = 0; k < TENSOR_TERMS; k++) {
        int mine = exponent(a[k]);
        for (int j = 0; j < TENSOR_COLUMNS; j++) {
            int e = mine + exponent(b[k][j]);
            largest[j] = e > largest[j] ? e : largest[j];
        }
    }
    for (int j = 0; j < TENSOR_COLUMNS; j++) {
        place[j] = power_of_two(23 + EXTRA_BITS - largest[j]);
        rough[j] = c[j];
        sum[j] = (double)(int)(c[j] * place[j]);
    }
    for (int k = 0; k < TENSOR_TERMS; k++)
        for (int j = 0; j < TENSOR_COLUMNS; j++) {
            double product = (double)a[k] * b[k][j];
            rough[j] += product;
            sum[j] += (double)(int)(product * place[j]);
        }
    for (int j = 0; j < TENSOR_COLUMNS; j++)
        c[j] = isfinite(rough[j]) ? toward_zero(sum[j] / place[j]) : (float)rough[j];
}

/* == Special functions ============================================================================================= */

/* A number in (-1, 1) that depends on x only, because the hardware's error is also the same for the same argument. */
static double noise(float x) {
    uint32_t h = bits_of(x) * 2654435761u;
    h = (h ^ h >> 15) * 2246822519u;
    h ^= h >> 13;
    return ((double)h + 0.5) / 2147483648.0 - 1;
}

static float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }

/* The exact value y with an error of at most `ulps`, of which rounding takes 0.5. */
static float approximate(double y, float x, double ulps) {
    if (!(fabs(y) >= 0x1p-126 && fabs(y) < 0x1p128)) return flushed((float)y);
    double ulp = double_of((bits_of(y) & (uint64_t)0x7FF << 52)) * 0x1p-23;
    return flushed((float)(y + (ulps - 0.5) * ulp * noise(x)));
}

/* As in PTX's tables, 2^0 is 1 and 1/0 is infinite, also where a denormal was flushed to zero. */
float emulate_exp2(float x) {
    x = flushed(x);
    return x == 0 ? 1 : approximate(exp2((double)x), x, 2);
}
float emulate_reciprocal(float x) {
    x = flushed(x);
    return approximate(1 / (double)x, x, 1);
}

/* The absolute errors of CUDA's __sinf and __cosf in (-pi, pi). */
float emulate_sine(float x) { return (float)(sin((double)x) + 0x1p-21 * 0.7526 * noise(x)); }
float emulate_cosine(float x) { return (float)(cos((double)x) + 0x1p-21 * 0.8766 * noise(-x)); }
