#include "kernels/cuda/rows.cuh"
#include "kernels/kernels.h"

enum { THREADS = 256 };

/* Each thread computes W channels of a position. */
template <int W>
__global__ void __launch_bounds__(THREADS)
    max_pool_kernel(real *y, const real *__restrict__ x, int Hi, int Wi, int Ho, int Wo, int C, size_t n) {
    size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * W;
    if (i >= n) return;
    size_t position = quotient(i, C), line = quotient(position, Wo), image = quotient(line, Ho);
    int c = (int)(i - position * C), left = 2 * (int)(position - line * Wo) - 1, top = 2 * (int)(line - image * Ho) - 1;
    float most[W];
#pragma unroll
    for (int e = 0; e < W; e++) most[e] = -INFINITY;
    for (int yi = top < 0 ? 0 : top; yi <= top + 2 && yi < Hi; yi++)
        for (int xi = left < 0 ? 0 : left; xi <= left + 2 && xi < Wi; xi++) {
            float v[W];
            load(v, x + ((image * Hi + yi) * Wi + xi) * C + c);
#pragma unroll
            for (int e = 0; e < W; e++) most[e] = v[e] > most[e] ? v[e] : most[e];
        }
    store(y + i, most);
}

void max_pool_forward(real *y, const real *x, const ImageShape *images, int C) {
    int B = images->B, H = images->Hi, W = images->Wi;
    int Ho = convolution_side(H, 2), Wo = convolution_side(W, 2);
    size_t n = (size_t)B * Ho * Wo * C;
    if (is_wide(C, y, x))
        LAUNCH((max_pool_kernel<WIDE>), (unsigned)ceil_div(n, THREADS * WIDE), THREADS, 0, y, x, H, W, Ho, Wo, C, n);
    else LAUNCH((max_pool_kernel<1>), (unsigned)ceil_div(n, THREADS), THREADS, 0, y, x, H, W, Ho, Wo, C, n);
}
