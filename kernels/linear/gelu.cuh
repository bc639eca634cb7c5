/* The exact Gaussian error linear unit; kernels/linear/gelu.c has the formulas.  The normal distribution's upper tail
 * is
 *   1 - Phi(a) = phi(a) p(t),  t = 1 / (1 + 0.2316419 a),  a >= 0, within 7.5e-8
 * (Abramowitz and Stegun 1964, 26.2.17): Phi and its density share one exponential, and there are some twenty
 * instructions without a branch; with erff and expf the arithmetic would take longer than the memory accesses. */
#ifndef VIT_KERNELS_CUDA_GELU_CUH
#define VIT_KERNELS_CUDA_GELU_CUH

#include <device.cuh>

/* Phi(x), and its density.  Explicit fmaf leaves the compiler no choice, so that forward and backward compute the same
 * bits. */
DEVICE float normal(float x, float &density) {
    float t = fast_reciprocal(fmaf(0.2316419f, fabsf(x), 1));
    density = 0.39894228f * fast_exp2(-0.72134752f * x * x);
    float p = fmaf(1.330274429f, t, -1.821255978f);
    p = fmaf(p, t, 1.781477937f);
    p = fmaf(p, t, -0.356563782f);
    p = fmaf(p, t, 0.319381530f) * t;
    return x > 0 ? fmaf(-p, density, 1) : p * density;
}

DEVICE float gelu(float x) {
    float density;
    return x * normal(x, density);
}

DEVICE void gelu_gradient(float &dx, float &y, float dy, float x) {
    float density, phi = normal(x, density);
    y = x * phi;
    dx = dy * fmaf(x, density, phi);
}

#endif
