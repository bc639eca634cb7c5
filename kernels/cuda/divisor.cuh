/* Division by a number that is known before the launch, in two instructions and exactly (Granlund and Montgomery 1994):
 * a quotient of two variables takes twenty. */
#ifndef VIT_KERNELS_CUDA_DIVISOR_CUH
#define VIT_KERNELS_CUDA_DIVISOR_CUH

#include <device.cuh>

#include <stddef.h>

struct Divisor {
    unsigned by, multiplier, shift;
};

/* by > 0. */
static inline Divisor divisor_of(int by) {
    unsigned d = (unsigned)by, shift = 0;
    while (((uint64_t)1 << shift) < d) shift++;
    uint64_t multiplier = ((((uint64_t)1 << shift) - d) << 32) / d + 1;
    return {d, (unsigned)multiplier, shift};
}

/* n / d.by and n % d.by; 0 <= n < 2^31. */
static inline __host__ __device__ int divided(int n, const Divisor &d, int *rest) {
    unsigned u = (unsigned)n, quotient = ((unsigned)((uint64_t)u * d.multiplier >> 32) + u) >> d.shift;
    *rest = (int)(u - quotient * d.by);
    return (int)quotient;
}

#endif
