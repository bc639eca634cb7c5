/* Depthwise convolution of which only every stride-th row and column is computed; kernels/cpu/depthwise_strided.c has
 * the formulas.  A thread computes one number of y or of dx; neighbouring threads have neighbouring channels.  A block
 * sums one tap's gradient of 32 channels over all images in a fixed order. */
#include "kernels/cuda/rows.cuh"
#include "kernels/kernels.h"

enum { THREADS = 256, WARPS = THREADS / WARP };

struct Shape {
    Depthwise s;
    int stride, Ho, Wo;
};

static Shape shape_of(const StridedDepthwise *d) {
    const Grid &grid = d->window.grid;
    return {d->window, d->stride, convolution_side(grid.rows, d->stride), convolution_side(grid.columns, d->stride)};
}

/* y [n] = sums over windows. */
__global__ void __launch_bounds__(THREADS)
    strided_kernel(real *y, const real *__restrict__ x, const float *__restrict__ w, Shape d, size_t n) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x, place = i / d.s.C, image = place / (d.Ho * d.Wo);
    if (i >= n) return;
    int c = (int)(i - place * d.s.C), at = (int)(place - image * (d.Ho * d.Wo)), k = d.s.k;
    int top = at / d.Wo * d.stride - k / 2, left = at % d.Wo * d.stride - k / 2;
    x += image * grid_tokens(d.s.grid) * d.s.x_row + c;
    float sum = 0;
    for (int tap = 0; tap < k * k; tap++) {
        int yi = top + tap / k, xi = left + tap % k;
        if (yi < 0 || yi >= d.s.grid.rows || xi < 0 || xi >= d.s.grid.columns) continue;
        sum += w[c * k * k + tap] * to_float(x[((size_t)yi * d.s.grid.columns + xi) * d.s.x_row]);
    }
    y[place * d.s.y_row + c] = to_real(sum);
}

/* dx [n]: token (i,j) is in the windows whose tap there is i + k/2 - r = stride o. */
__global__ void __launch_bounds__(THREADS)
    strided_input_kernel(real *dx, const real *__restrict__ dy, const float *__restrict__ w, Shape d, size_t n) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x, place = i / d.s.C, N = grid_tokens(d.s.grid),
           image = place / N;
    if (i >= n) return;
    int c = (int)(i - place * d.s.C), at = (int)(place - image * N), k = d.s.k;
    int yi = at / d.s.grid.columns + k / 2, xi = at % d.s.grid.columns + k / 2;
    dy += image * d.Ho * d.Wo * d.s.y_row + c;
    float sum = 0;
    for (int r = yi % d.stride; r < k && r <= yi; r += d.stride)
        for (int q = xi % d.stride; q < k && q <= xi; q += d.stride) {
            int o = (yi - r) / d.stride, p = (xi - q) / d.stride;
            if (o >= d.Ho || p >= d.Wo) continue;
            sum += w[(c * k + r) * k + q] * to_float(dy[((size_t)o * d.Wo + p) * d.s.y_row]);
        }
    dx[place * d.s.x_row + c] = to_real(sum);
}

/* Block (channel group, tap): dw += the sum over `places` results of all images. */
__global__ void __launch_bounds__(THREADS)
    strided_weight_kernel(float *dw, const real *__restrict__ dy, const real *__restrict__ x, Shape d, size_t places) {
    SHARED(float, sums); /* [WARPS][WARP] */
    int k = d.s.k, tap = (int)blockIdx.y, c = (int)blockIdx.x * WARP + lane_id();
    float sum = 0;
    for (size_t place = warp_id(); place < places && c < d.s.C; place += WARPS) {
        size_t image = place / (d.Ho * d.Wo);
        int at = (int)(place - image * (d.Ho * d.Wo));
        int yi = at / d.Wo * d.stride + tap / k - k / 2, xi = at % d.Wo * d.stride + tap % k - k / 2;
        if (yi < 0 || yi >= d.s.grid.rows || xi < 0 || xi >= d.s.grid.columns) continue;
        size_t token = image * grid_tokens(d.s.grid) + (size_t)yi * d.s.grid.columns + xi;
        sum += to_float(dy[place * d.s.y_row + c]) * to_float(x[token * d.s.x_row + c]);
    }
    sums[threadIdx.x] = sum;
    block_sync();
    if (warp_id() || c >= d.s.C) return;
    float total = 0;
    for (int i = 0; i < WARPS; i++) total += sums[i * WARP + lane_id()];
    dw[c * k * k + tap] += total;
}

void strided_depthwise_forward(real *y, const real *x, const float *w, const StridedDepthwise *shape, int B) {
    Shape d = shape_of(shape);
    size_t n = (size_t)B * d.Ho * d.Wo * d.s.C;
    LAUNCH(strided_kernel, (unsigned)ceil_div(n, THREADS), THREADS, 0, y, x, w, d, n);
}

void strided_depthwise_backward(real *dx, float *dw, const real *dy, const real *x, const float *w,
                                const StridedDepthwise *shape, int B) {
    Shape d = shape_of(shape);
    size_t n = (size_t)B * grid_tokens(d.s.grid) * d.s.C, places = (size_t)B * d.Ho * d.Wo;
    dim3 blocks((unsigned)ceil_div(d.s.C, WARP), (unsigned)(d.s.k * d.s.k));
    LAUNCH(strided_weight_kernel, blocks, THREADS, THREADS * sizeof(float), dw, dy, x, d, places);
    LAUNCH(strided_input_kernel, (unsigned)ceil_div(n, THREADS), THREADS, 0, dx, dy, w, d, n);
}
