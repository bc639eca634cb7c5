/* Depthwise convolution at every stride-th row and column of every frame; kernels/convolution/depthwise_strided.c has
 * the formulas.  A thread computes one number of y or of dx; neighbouring threads have neighbouring channels.  For the
 * weights' gradient a block has 32 channels, one tap in time and a slice of the images; a lane has the k x k sums of a
 * channel, and add_parts adds the slices in order. */
#include "kernels/cuda/divisor.cuh"
#include "kernels/convolution/depthwise.cuh"
#include "kernels/convolution/convolution.h"
#include "kernels/tokens/grid.h"

enum {
    THREADS = 256,
    WARPS = THREADS / WARP,
    BLOCKS = 1056 /* number of blocks for the weights' gradient: eight for each multiprocessor of an H200 */
};

struct StridedShape {
    Depthwise s;
    int stride, kt, Ho, Wo;
    Divisor by_area, by_Wo;
};

static StridedShape shape_of(const StridedDepthwise *d) {
    const Grid &grid = d->window.grid;
    int Ho = convolution_side(grid.rows, d->stride), Wo = convolution_side(grid.columns, d->stride);
    return {d->window, d->stride, depthwise_frames(&d->window), Ho, Wo, divisor_of(Ho * Wo), divisor_of(Wo)};
}

/* The position of the first tap of an image's result `at`. */
struct Window {
    int f, top, left;
};

DEVICE Window window_of(int at, const StridedShape &d) {
    int within, column, f = divided(at, d.by_area, &within), row = divided(within, d.by_Wo, &column);
    return {f - d.kt / 2, row * d.stride - d.s.k / 2, column * d.stride - d.s.k / 2};
}

/* The token at a tap of a window, in its image; -1: none. */
DEVICE int token_of(Window o, int tap, StridedShape d) {
    int k = d.s.k, u = tap / (k * k), within = tap - u * k * k;
    int t = o.f + u, yi = o.top + within / k, xi = o.left + within % k;
    bool inside = t >= 0 && t < d.s.grid.frames && yi >= 0 && yi < d.s.grid.rows && xi >= 0 && xi < d.s.grid.columns;
    return inside ? (t * d.s.grid.rows + yi) * d.s.grid.columns + xi : -1;
}

/* y [n] = sums over windows. */
__global__ void __launch_bounds__(THREADS)
    strided_kernel(real *y, const real *__restrict__ x, const float *__restrict__ w, StridedShape d, size_t n) {
    int results = d.s.grid.frames * d.Ho * d.Wo, taps = d.kt * d.s.k * d.s.k;
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x, place = quotient(i, d.s.C), image = quotient(place, results);
    if (i >= n) return;
    int c = (int)(i - place * d.s.C);
    Window o = window_of((int)(place - image * results), d);
    x += image * grid_tokens(d.s.grid) * d.s.x_row + c;
    float sum = 0;
    for (int tap = 0; tap < taps; tap++) {
        int token = token_of(o, tap, d);
        if (token >= 0) sum += w[c * taps + tap] * to_float(x[(size_t)token * d.s.x_row]);
    }
    y[place * d.s.y_row + c] = to_real(sum);
}

/* dx [n]: token (t,i,j) is in the windows whose tap there is i + k/2 - r = stride o, t + kt/2 - u = f. */
__global__ void __launch_bounds__(THREADS)
    strided_input_kernel(real *dx, const real *__restrict__ dy, const float *__restrict__ w, StridedShape d, size_t n) {
    int N = grid_tokens(d.s.grid), k = d.s.k;
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x, place = quotient(i, d.s.C), image = quotient(place, N);
    if (i >= n) return;
    int c = (int)(i - place * d.s.C);
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

/* parts [slices][C,taps]: blocks (channel group, tap in time, slice of `each` of the B images). */
template <int K>
__global__ void __launch_bounds__(THREADS)
    strided_weight_kernel(float *parts, const real *__restrict__ dy, const real *__restrict__ x, StridedShape d, int B,
                          int each) {
    SHARED(float, sums); /* [WARPS][WARP] */
    int c = (int)blockIdx.x * WARP + lane_id(), frame = (int)blockIdx.y, slice = (int)blockIdx.z;
    int rows = d.s.grid.rows, columns = d.s.grid.columns, results = d.s.grid.frames * d.Ho * d.Wo;
    int last = (slice + 1) * each < B ? (slice + 1) * each : B;
    float sum[K * K] = {};
    for (int image = slice * each; image < last && c < d.s.C; image++) {
        const real *from = x + (size_t)image * grid_tokens(d.s.grid) * d.s.x_row + c;
        const real *result = dy + (size_t)image * results * d.s.y_row + c;
        for (int at = warp_id(); at < results; at += WARPS) {
            Window o = window_of(at, d);
            int t = o.f + frame;
            if (t < 0 || t >= d.s.grid.frames) continue;
            float g = to_float(result[(size_t)at * d.s.y_row]);
#pragma unroll
            for (int i = 0; i < K; i++)
#pragma unroll
                for (int j = 0; j < K; j++) {
                    int yi = o.top + i, xi = o.left + j;
                    bool inside = yi >= 0 && yi < rows && xi >= 0 && xi < columns;
                    if (inside) sum[i * K + j] += g * to_float(from[((size_t)(t * rows + yi) * columns + xi) * d.s.x_row]);
                }
        }
    }
    parts += ((size_t)slice * d.s.C + c) * d.kt * K * K + frame * K * K;
#pragma unroll
    for (int tap = 0; tap < K * K; tap++) {
        block_sync();
        sums[threadIdx.x] = sum[tap];
        block_sync();
        if (warp_id() || c >= d.s.C) continue;
        float total = 0;
        for (int i = 0; i < WARPS; i++) total += sums[i * WARP + lane_id()];
        parts[tap] = total;
    }
}

void strided_depthwise_forward(real *y, const real *x, const float *w, const StridedDepthwise *shape, int B) {
    StridedShape d = shape_of(shape);
    size_t n = (size_t)B * d.s.grid.frames * d.Ho * d.Wo * d.s.C;
    LAUNCH(strided_kernel, (unsigned)ceil_div(n, THREADS), THREADS, 0, y, x, w, d, n);
}

void strided_depthwise_backward(real *dx, float *dw, const real *dy, const real *x, const float *w,
                                const StridedDepthwise *shape, int B) {
    StridedShape d = shape_of(shape);
    size_t n = (size_t)B * grid_tokens(d.s.grid) * d.s.C, groups = ceil_div(d.s.C, WARP);
    size_t bytes = depthwise_workspace(&d.s), count = (size_t)d.s.C * depthwise_taps(&d.s);
    size_t most = bytes / (count * sizeof(float));
    int each = (int)ceil_div(B, blocks_for(BLOCKS, groups * d.kt, most)), slices = (int)ceil_div(B, each);
    float *parts = static_cast<float *>(kernels_workspace(bytes));
    with_kernel_size(d.s.k, [&](auto size) {
        LAUNCH((strided_weight_kernel<size.value>), dim3((unsigned)groups, (unsigned)d.kt, (unsigned)slices), THREADS,
               THREADS * sizeof(float), parts, dy, x, d, B, each);
    });
    add_parts(dw, NULL, parts, slices, (int)count);
    LAUNCH(strided_input_kernel, (unsigned)ceil_div(n, THREADS), THREADS, 0, dx, dy, w, d, n);
}
