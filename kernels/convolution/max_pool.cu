/* The maximum of 3 x 3 windows, 2 apart; kernels/convolution/max_pool.c has the formulas.  A thread has some channels
 * of a result, or of a pixel's gradient. */
#include "kernels/cuda/rows.cuh"
#include "kernels/convolution/convolution.h"
#include "kernels/tokens/images.h"

enum { THREADS = 256, SIDE = 3, STRIDE = 2 };

struct MaxPoolWindows {
    int H, W, C, Ho, Wo, top, left;
};

static MaxPoolWindows windows_of(const ImageShape *images, int C, bool same) {
    const Convolution window = {C, C, SIDE, STRIDE, same};
    return {images->Hi, images->Wi, C, convolution_side(images->Hi, STRIDE), convolution_side(images->Wi, STRIDE),
            convolution_before(&window, images->Hi), convolution_before(&window, images->Wi)};
}

/* Each thread computes V channels of a position; at may be NULL. */
template <int V>
__global__ void __launch_bounds__(THREADS)
    max_pool_kernel(real *y, uint8_t *at, const real *__restrict__ x, MaxPoolWindows s, bool relu, size_t n) {
    size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * V;
    if (i >= n) return;
    size_t position = quotient(i, s.C), line = quotient(position, s.Wo), image = quotient(line, s.Ho);
    int c = (int)(i - position * s.C), left = STRIDE * (int)(position - line * s.Wo) - s.left,
        top = STRIDE * (int)(line - image * s.Ho) - s.top;
    float most[V];
    int which[V];
    bool any = false;
    for (int tap = 0; tap < SIDE * SIDE; tap++) {
        int yi = top + tap / SIDE, xi = left + tap % SIDE;
        if (yi < 0 || yi >= s.H || xi < 0 || xi >= s.W) continue;
        float v[V];
        load(v, x + ((image * s.H + yi) * s.W + xi) * s.C + c);
#pragma unroll
        for (int e = 0; e < V; e++)
            if (!any || v[e] > most[e]) {
                most[e] = v[e];
                which[e] = tap;
            }
        any = true;
    }
#pragma unroll
    for (int e = 0; e < V; e++)
        if (relu && most[e] <= 0) {
            most[e] = 0;
            which[e] = SIDE * SIDE;
        }
    store(y + i, most);
#pragma unroll
    for (int e = 0; e < V && at; e++) at[i + e] = (uint8_t)which[e];
}

static void pool(real *y, uint8_t *at, const real *x, const ImageShape *images, int C, bool same, bool relu) {
    MaxPoolWindows s = windows_of(images, C, same);
    size_t n = (size_t)images->B * s.Ho * s.Wo * C;
    if (is_wide(C, y, x))
        LAUNCH((max_pool_kernel<WIDE>), (unsigned)ceil_div(n, THREADS * WIDE), THREADS, 0, y, at, x, s, relu, n);
    else LAUNCH((max_pool_kernel<1>), (unsigned)ceil_div(n, THREADS), THREADS, 0, y, at, x, s, relu, n);
}

void max_pool_forward(real *y, uint8_t *at, const real *x, const ImageShape *images, int C, bool same) {
    pool(y, at, x, images, C, same, false);
}

void relu_max_pool_forward(real *y, uint8_t *at, const real *x, const ImageShape *images, int C) {
    pool(y, at, x, images, C, false, true);
}

__global__ void __launch_bounds__(THREADS)
    max_pool_backward_kernel(real *dx, const real *__restrict__ dy, const uint8_t *__restrict__ at, MaxPoolWindows s,
                             size_t n) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    size_t pixel = quotient(i, s.C), line = quotient(pixel, s.W), image = quotient(line, s.H);
    int c = (int)(i - pixel * s.C), below = (int)(line - image * s.H) + s.top;
    int right = (int)(pixel - line * s.W) + s.left;
    float sum = 0;
    for (int tap = 0; tap < SIDE * SIDE; tap++) {
        int yo = below - tap / SIDE, xo = right - tap % SIDE;
        if (yo < 0 || yo % STRIDE || yo / STRIDE >= s.Ho || xo < 0 || xo % STRIDE || xo / STRIDE >= s.Wo) continue;
        size_t from = ((image * s.Ho + yo / STRIDE) * s.Wo + xo / STRIDE) * s.C + c;
        if (at[from] == tap) sum += to_float(dy[from]);
    }
    dx[i] = to_real(sum);
}

void max_pool_backward(real *dx, const real *dy, const uint8_t *at, const ImageShape *images, int C, bool same) {
    size_t n = (size_t)images->B * images->Hi * images->Wi * C;
    MaxPoolWindows s = windows_of(images, C, same);
    LAUNCH(max_pool_backward_kernel, (unsigned)ceil_div(n, THREADS), THREADS, 0, dx, dy, at, s, n);
}
