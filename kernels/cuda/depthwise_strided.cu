/* Depthwise convolution of which only every stride-th row and column of every frame is computed;
 * kernels/cpu/depthwise_strided.c has the formulas.  A thread computes one number of y or of dx; neighbouring threads have
 * neighbouring channels.  A block sums one tap's gradient of 32 channels over all images in a fixed order. */
#include "kernels/cuda/rows.cuh"
#include "kernels/kernels.h"

enum { THREADS = 256, WARPS = THREADS / WARP };

struct Shape {
    Depthwise s;
    int stride, kt, Ho, Wo;
};

static Shape shape_of(const StridedDepthwise *d) {
    const Grid &grid = d->window.grid;
    return {d->window, d->stride, depthwise_frames(&d->window), convolution_side(grid.rows, d->stride), convolution_side(grid.columns, d->stride)};
}

/* A result (f,i,j) of an image: the place of its window's first tap, and its number among all images' results. */
struct Window {
    size_t image;
    int f, top, left;
};

DEVICE Window window_of(size_t place, Shape d) {
    int area = d.Ho * d.Wo, results = d.s.grid.frames * area;
    size_t image = place / results;
    int at = (int)(place - image * results), f = at / area, within = at - f * area;
    return {image, f - d.kt / 2, within / d.Wo * d.stride - d.s.k / 2, within % d.Wo * d.stride - d.s.k / 2};
}

/* The token that a tap of a window lies on, of its image; -1: none. */
DEVICE int token_of(Window o, int tap, Shape d) {
    int k = d.s.k, u = tap / (k * k), within = tap - u * k * k;
    int t = o.f + u, yi = o.top + within / k, xi = o.left + within % k;
    bool inside = t >= 0 && t < d.s.grid.frames && yi >= 0 && yi < d.s.grid.rows && xi >= 0 && xi < d.s.grid.columns;
    return inside ? (t * d.s.grid.rows + yi) * d.s.grid.columns + xi : -1;
}

/* y [n] = sums over windows. */
__global__ void __launch_bounds__(THREADS)
    strided_kernel(real *y, const real *__restrict__ x, const float *__restrict__ w, Shape d, size_t n) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x, place = i / d.s.C;
    if (i >= n) return;
    int c = (int)(i - place * d.s.C), taps = d.kt * d.s.k * d.s.k;
    Window o = window_of(place, d);
    x += o.image * grid_tokens(d.s.grid) * d.s.x_row + c;
    float sum = 0;
    for (int tap = 0; tap < taps; tap++) {
        int token = token_of(o, tap, d);
        if (token >= 0) sum += w[c * taps + tap] * to_float(x[(size_t)token * d.s.x_row]);
    }
    y[place * d.s.y_row + c] = to_real(sum);
}

/* dx [n]: token (t,i,j) is in the windows whose tap there is i + k/2 - r = stride o, t + kt/2 - u = f. */
__global__ void __launch_bounds__(THREADS)
    strided_input_kernel(real *dx, const real *__restrict__ dy, const float *__restrict__ w, Shape d, size_t n) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x, place = i / d.s.C, N = grid_tokens(d.s.grid),
           image = place / N;
    if (i >= n) return;
    int c = (int)(i - place * d.s.C), k = d.s.k;
    GridPlace at = grid_place(d.s.grid, (int)(place - image * N));
    int ti = at.t + d.kt / 2, yi = at.y + k / 2, xi = at.x + k / 2;
    dy += image * d.s.grid.frames * d.Ho * d.Wo * d.s.y_row + c;
    float sum = 0;
    for (int u = 0; u < d.kt && u <= ti; u++)
        for (int r = yi % d.stride; r < k && r <= yi; r += d.stride)
            for (int q = xi % d.stride; q < k && q <= xi; q += d.stride) {
                int f = ti - u, o = (yi - r) / d.stride, p = (xi - q) / d.stride;
                if (f >= d.s.grid.frames || o >= d.Ho || p >= d.Wo) continue;
                sum += w[((c * d.kt + u) * k + r) * k + q] *
                       to_float(dy[(((size_t)f * d.Ho + o) * d.Wo + p) * d.s.y_row]);
            }
    dx[place * d.s.x_row + c] = to_real(sum);
}

/* Block (channel group, tap): dw += the sum over `places` results of all images. */
__global__ void __launch_bounds__(THREADS)
    strided_weight_kernel(float *dw, const real *__restrict__ dy, const real *__restrict__ x, Shape d, size_t places) {
    SHARED(float, sums); /* [WARPS][WARP] */
    int taps = d.kt * d.s.k * d.s.k, tap = (int)blockIdx.y, c = (int)blockIdx.x * WARP + lane_id();
    float sum = 0;
    for (size_t place = warp_id(); place < places && c < d.s.C; place += WARPS) {
        Window o = window_of(place, d);
        int token = token_of(o, tap, d);
        if (token < 0) continue;
        size_t row = o.image * grid_tokens(d.s.grid) + token;
        sum += to_float(dy[place * d.s.y_row + c]) * to_float(x[row * d.s.x_row + c]);
    }
    sums[threadIdx.x] = sum;
    block_sync();
    if (warp_id() || c >= d.s.C) return;
    float total = 0;
    for (int i = 0; i < WARPS; i++) total += sums[i * WARP + lane_id()];
    dw[c * taps + tap] += total;
}

void strided_depthwise_forward(real *y, const real *x, const float *w, const StridedDepthwise *shape, int B) {
    Shape d = shape_of(shape);
    size_t n = (size_t)B * d.s.grid.frames * d.Ho * d.Wo * d.s.C;
    LAUNCH(strided_kernel, (unsigned)ceil_div(n, THREADS), THREADS, 0, y, x, w, d, n);
}

void strided_depthwise_backward(real *dx, float *dw, const real *dy, const real *x, const float *w,
                                const StridedDepthwise *shape, int B) {
    Shape d = shape_of(shape);
    size_t n = (size_t)B * grid_tokens(d.s.grid) * d.s.C, places = (size_t)B * d.s.grid.frames * d.Ho * d.Wo;
    dim3 blocks((unsigned)ceil_div(d.s.C, WARP), (unsigned)(d.kt * d.s.k * d.s.k));
    LAUNCH(strided_weight_kernel, blocks, THREADS, THREADS * sizeof(float), dw, dy, x, d, places);
    LAUNCH(strided_input_kernel, (unsigned)ceil_div(n, THREADS), THREADS, 0, dx, dy, w, d, n);
}
