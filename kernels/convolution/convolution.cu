/* Convolution, channels last; the formulas are in kernels/convolution/convolution.c.  folded is W' as float
 * [out,k,k,in], and the libraries read a copy rounded to real (real_copy).  A 1 x 1 convolution of stride 1 is a linear
 * layer, whose weight gradient is float, except for its input gradient, which may have an addend; this and the others
 * use cuDNN, or a plain kernel where cuDNN has no algorithm.  Shift, addend and ReLU are a separate pass. */
#include <device.cuh>

#include "kernels/convolution/cudnn.h"
#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/convolution/convolution.h"
#include "kernels/device/device.h"
#include "kernels/linear/linear.h"
#include "kernels/tokens/images.h"

enum { THREADS = 256, WARPS = THREADS / WARP };

static size_t weight_count(const Convolution *c) { return (size_t)c->out * c->in * c->k * c->k; }

static bool is_product(const Convolution *c) { return c->k == 1 && c->stride == 1; }

static size_t positions(int B, int H, int W, int stride) {
    return (size_t)B * convolution_side(H, stride) * convolution_side(W, stride);
}

/* == Weights ====================================================================================================== */

__global__ void __launch_bounds__(THREADS)
    batchnorm_fold_kernel(float *scale, float *shift, const float *w, const float *b, const float *mean,
                          const float *var, int n, float eps) {
    int i = (int)blockIdx.x * THREADS + (int)threadIdx.x;
    if (i >= n) return;
    scale[i] = w[i] / sqrtf(var[i] + eps);
    shift[i] = b[i] - mean[i] * scale[i];
}

void batchnorm_fold(float *scale, float *shift, const float *w, const float *b, const float *mean, const float *var,
                    int n, float eps) {
    LAUNCH(batchnorm_fold_kernel, (unsigned)ceil_div(n, THREADS), THREADS, 0, scale, shift, w, b, mean, var, n, eps);
}

size_t convolution_folded_bytes(const Convolution *c, bool backward) {
    (void)backward;
    return weight_count(c) * sizeof(float);
}

/* folded [out,taps,in] = scale w [out,in,taps]. */
__global__ void __launch_bounds__(THREADS)
    fold_kernel(float *folded, const float *__restrict__ w, const float *__restrict__ scale, int in, int taps,
                size_t n) {
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= n) return;
    size_t row = quotient(at, in), o = quotient(row, taps), i = at - row * in, tap = row - o * taps;
    folded[at] = scale[o] * w[(o * in + i) * taps + tap];
}

void convolution_fold(void *folded, const float *w, const float *scale, const Convolution *c, bool backward) {
    (void)backward;
    size_t n = weight_count(c);
    LAUNCH(fold_kernel, (unsigned)ceil_div(n, THREADS), THREADS, 0, static_cast<float *>(folded), w, scale, c->in,
           c->k * c->k, n);
    memory_changed(folded);
}

/* == Without the library ========================================================================================== */

struct Geometry {
    Convolution c;
    int H, W, Ho, Wo, top, left;
};

static Geometry geometry_of(const Convolution *c, int H, int W) {
    return {*c, H, W, convolution_side(H, c->stride), convolution_side(W, c->stride), convolution_before(c, H),
            convolution_before(c, W)};
}

/* The first input position of output p, and its image. */
struct Corner {
    size_t image;
    int y, x;
};
DEVICE Corner corner_of(size_t p, const Geometry &s) {
    size_t line = quotient(p, s.Wo), image = quotient(line, s.Ho);
    return {image, (int)(line - image * s.Ho) * s.c.stride - s.top, (int)(p - line * s.Wo) * s.c.stride - s.left};
}

/* One warp for each element of y. */
__global__ void __launch_bounds__(THREADS)
    plain_forward_kernel(real *y, const real *__restrict__ x, const float *__restrict__ w, Geometry s, size_t n) {
    size_t at = (size_t)blockIdx.x * WARPS + warp_id();
    if (at >= n) return;
    size_t p = quotient(at, s.c.out), o = at - p * s.c.out;
    Corner from = corner_of(p, s);
    float sum = 0;
    for (int tap = 0; tap < s.c.k * s.c.k; tap++) {
        int yi = from.y + tap / s.c.k, xi = from.x + tap % s.c.k;
        if (yi < 0 || yi >= s.H || xi < 0 || xi >= s.W) continue;
        const real *pixel = x + ((from.image * s.H + yi) * s.W + xi) * s.c.in;
        const float *row = w + (o * s.c.k * s.c.k + tap) * s.c.in;
        for (int i = lane_id(); i < s.c.in; i += WARP) sum += row[i] * to_float(pixel[i]);
    }
    sum = warp_sum(sum);
    if (!lane_id()) y[at] = to_real(sum);
}

/* One thread for each element of dx, neighbouring threads for neighbouring channels. */
__global__ void __launch_bounds__(THREADS)
    plain_input_kernel(real *dx, const float *__restrict__ w, const real *__restrict__ dy, Geometry s, bool accumulate,
                       size_t n) {
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= n) return;
    size_t pixel = quotient(at, s.c.in), line = quotient(pixel, s.W), image = quotient(line, s.H);
    int i = (int)(at - pixel * s.c.in), x = (int)(pixel - line * s.W), y = (int)(line - image * s.H);
    float sum = 0;
    for (int tap = 0; tap < s.c.k * s.c.k; tap++) {
        int yo = y + s.top - tap / s.c.k, xo = x + s.left - tap % s.c.k;
        if (yo < 0 || xo < 0 || yo % s.c.stride || xo % s.c.stride) continue;
        yo /= s.c.stride;
        xo /= s.c.stride;
        if (yo >= s.Ho || xo >= s.Wo) continue;
        const real *out = dy + ((image * s.Ho + yo) * s.Wo + xo) * s.c.out;
        for (int o = 0; o < s.c.out; o++)
            sum += w[((size_t)o * s.c.k * s.c.k + tap) * s.c.in + i] * to_float(out[o]);
    }
    dx[at] = to_real(accumulate ? sum + to_float(dx[at]) : sum);
}

/* One thread for each element of dw [out,taps,in], neighbouring threads for neighbouring channels. */
__global__ void __launch_bounds__(THREADS)
    plain_weight_kernel(float *dw, const real *__restrict__ x, const real *__restrict__ dy, Geometry s, size_t outputs,
                        size_t n) {
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= n) return;
    int taps = s.c.k * s.c.k;
    size_t row = quotient(at, s.c.in), o = quotient(row, taps), i = at - row * s.c.in;
    int tap = (int)(row - o * taps);
    float sum = 0;
    for (size_t p = 0; p < outputs; p++) {
        Corner from = corner_of(p, s);
        int yi = from.y + tap / s.c.k, xi = from.x + tap % s.c.k;
        if (yi < 0 || yi >= s.H || xi < 0 || xi >= s.W) continue;
        sum += to_float(dy[p * s.c.out + o]) * to_float(x[((from.image * s.H + yi) * s.W + xi) * s.c.in + i]);
    }
    dw[at] = sum;
}

/* == With the library: its padding ================================================================================= */

/* The library pads both sides of an image alike.  If the windows need more below or to the right (CONVOLUTION_SAME), it
 * gets a copy of the image in a frame of zeros, without padding. */
struct Frame {
    bool needed;
    int H, W, top, left; /* size of the copy, and position of the image in it */
};

static Frame frame_of(const Convolution *c, int H, int W) {
    Geometry s = geometry_of(c, H, W);
    bool needed = (H + 2 * s.top - c->k) / c->stride + 1 != s.Ho || (W + 2 * s.left - c->k) / c->stride + 1 != s.Wo;
    return {needed, (s.Ho - 1) * c->stride + c->k, (s.Wo - 1) * c->stride + c->k, s.top, s.left};
}

static LibraryImages images_in(const Frame &f, int B, int H, int W) {
    return f.needed ? LibraryImages{B, f.H, f.W, 0, 0} : LibraryImages{B, H, W, f.top, f.left};
}

static size_t frame_count(const Frame &f, const Convolution *c, int B) {
    return f.needed ? (size_t)B * f.H * f.W * c->in : 0;
}
static size_t aligned_bytes(size_t count) { return ceil_div(count * sizeof(real), 256) * 256; }

/* One thread for each number of the copy. */
__global__ void __launch_bounds__(THREADS)
    frame_kernel(real *copy, const real *__restrict__ x, Frame f, int H, int W, int C, size_t n) {
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= n) return;
    size_t pixel = quotient(at, C), line = quotient(pixel, f.W), image = quotient(line, f.H);
    int yi = (int)(line - image * f.H) - f.top, xi = (int)(pixel - line * f.W) - f.left;
    bool inside = yi >= 0 && yi < H && xi >= 0 && xi < W;
    copy[at] = inside ? x[((image * H + yi) * W + xi) * C + (at - pixel * C)] : to_real(0);
}

/* The reverse: one thread for each number of the image, all of which lies in the frame. */
__global__ void __launch_bounds__(THREADS)
    unframe_kernel(real *x, const real *__restrict__ copy, Frame f, int H, int W, int C, size_t n) {
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= n) return;
    size_t pixel = quotient(at, C), line = quotient(pixel, W), image = quotient(line, H);
    int yi = (int)(line - image * H) + f.top, xi = (int)(pixel - line * W) + f.left;
    x[at] = copy[((image * f.H + yi) * f.W + xi) * C + (at - pixel * C)];
}

/* x, or its copy in a frame. */
static const real *framed(char *room, const real *x, const Frame &f, const Convolution *c, int B, int H, int W) {
    if (!f.needed) return x;
    size_t n = frame_count(f, c, B);
    real *copy = reinterpret_cast<real *>(room);
    LAUNCH(frame_kernel, (unsigned)ceil_div(n, THREADS), THREADS, 0, copy, x, f, H, W, c->in, n);
    return copy;
}

/* == Forward ====================================================================================================== */

/* y = y + shift + add, then ReLU if relu; each thread has W elements of a row. */
template <int W>
__global__ void __launch_bounds__(THREADS)
    finish_kernel(real *y, const real *before, const real *add, const float *__restrict__ shift, bool relu, int C,
                  size_t n) {
    size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * W;
    if (i >= n) return;
    int c = (int)(i - quotient(i, C) * C);
    float v[W], t[W], a[W] = {};
    load(v, before + i);
    if (add) load(a, add + i);
#pragma unroll
    for (int e = 0; e < W; e++) t[e] = shift[c + e];
#pragma unroll
    for (int e = 0; e < W; e++) {
        float sum = v[e] + t[e] + a[e];
        v[e] = relu && !(sum > 0) ? 0 : sum;
    }
    store(y + i, v);
}

/* If y is the addend, the product goes to the workspace. */
void convolution_forward(real *y, const real *x, const real *add, const void *folded, const float *shift,
                         const Convolution *c, bool relu, const ImageShape *images) {
    int B = images->B, H = images->Hi, W = images->Wi;
    size_t rows = positions(B, H, W, c->stride), n = rows * c->out;
    size_t apart = y == add ? aligned_bytes(n) : 0;
    const float *w = static_cast<const float *>(folded);
    Frame frame = frame_of(c, H, W);
    LibraryConvolution *l =
        is_product(c) ? NULL : library_convolution(LIBRARY_FORWARD, c, images_in(frame, B, H, W));
    size_t around = l ? aligned_bytes(frame_count(frame, c, B)) : 0;
    size_t bytes = apart + around + (l ? library_workspace(l) : 0);
    kernels_reserve(bytes);
    char *workspace = static_cast<char *>(kernels_workspace(bytes));
    real *product = apart ? reinterpret_cast<real *>(workspace) : y;
    LinearShape linear = {rows, c->in, c->out, 0};
    if (is_product(c)) linear_forward(product, x, w, NULL, &linear);
    else if (!l || !library_forward(l, product, framed(workspace + apart, x, frame, c, B, H, W), w,
                                    workspace + apart + around))
        LAUNCH(plain_forward_kernel, (unsigned)ceil_div(n, WARPS), THREADS, 0, product, x, w, geometry_of(c, H, W), n);
    if (is_wide(c->out, y, product, add))
        LAUNCH((finish_kernel<WIDE>), (unsigned)ceil_div(n, THREADS * WIDE), THREADS, 0, y, product, add, shift, relu,
               c->out, n);
    else
        LAUNCH((finish_kernel<1>), (unsigned)ceil_div(n, THREADS), THREADS, 0, y, product, add, shift, relu, c->out, n);
}

/* == Backward ===================================================================================================== */

template <int W>
__global__ void __launch_bounds__(THREADS) relu_gradient_kernel(real *dx, const real *dy, const real *y, size_t n) {
    size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * W;
    if (i >= n) return;
    float d[W], v[W];
    load(d, dy + i);
    load(v, y + i);
#pragma unroll
    for (int e = 0; e < W; e++) d[e] = v[e] > 0 ? d[e] : 0;
    store(dx + i, d);
}

void relu_gradient(real *dx, const real *dy, const real *y, size_t n) {
    if (is_wide(n, dx, dy, y))
        LAUNCH((relu_gradient_kernel<WIDE>), (unsigned)ceil_div(n, THREADS * WIDE), THREADS, 0, dx, dy, y, n);
    else LAUNCH((relu_gradient_kernel<1>), (unsigned)ceil_div(n, THREADS), THREADS, 0, dx, dy, y, n);
}

void convolution_backward_input(real *dx, const real *add, const real *dy, const void *folded, const real *below,
                                const Convolution *c, const ImageShape *images) {
    int B = images->B, H = images->Hi, W = images->Wi;
    size_t n = (size_t)B * H * W * c->in;
    const float *w = static_cast<const float *>(folded);
    Frame frame = frame_of(c, H, W);
    LibraryConvolution *l = library_convolution(LIBRARY_INPUT, c, images_in(frame, B, H, W));
    size_t around = l ? aligned_bytes(frame_count(frame, c, B)) : 0, bytes = around + (l ? library_workspace(l) : 0);
    kernels_reserve(bytes);
    char *workspace = static_cast<char *>(kernels_workspace(bytes));
    if (add && add != dx) device_copy(dx, add, n * sizeof *dx);
    /* A frame is needed only with a stride of more than 1, and then there is no addend. */
    real *to = frame.needed ? reinterpret_cast<real *>(workspace) : dx;
    if (!l || !library_input(l, to, w, dy, add && !frame.needed, workspace + around))
        LAUNCH(plain_input_kernel, (unsigned)ceil_div(n, THREADS), THREADS, 0, dx, w, dy, geometry_of(c, H, W),
               add != NULL, n);
    else if (frame.needed)
        LAUNCH(unframe_kernel, (unsigned)ceil_div(n, THREADS), THREADS, 0, dx, to, frame, H, W, c->in, n);
    if (below) relu_gradient(dx, dx, below, n);
}

size_t convolution_workspace(const Convolution *c, const ImageShape *, bool weights) {
    return !weights ? 0 : ceil_div(weight_count(c) * sizeof(float), 256) * 256;
}

/* dw [out,in,taps] += scale sum [out,taps,in]. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    add_scaled_kernel(float *dw, const T *__restrict__ sum, const float *__restrict__ scale, int in, int taps,
                      size_t n) {
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= n) return;
    size_t row = quotient(at, taps), o = quotient(row, in), tap = at - row * taps, i = row - o * in;
    dw[at] += scale[o] * to_float(sum[(o * taps + tap) * in + i]);
}

template <typename T>
static void add_scaled(float *dw, const T *sum, const float *scale, const Convolution *c) {
    size_t n = weight_count(c);
    LAUNCH((add_scaled_kernel<T>), (unsigned)ceil_div(n, THREADS), THREADS, 0, dw, sum, scale, c->in, c->k * c->k, n);
}

/* The gradient of W' goes to the workspace first: the library's as `real`, the others as float. */
void convolution_backward_weight(float *dw, const real *dy, const real *x, const float *scale, const Convolution *c,
                                 const ImageShape *images) {
    int B = images->B, H = images->Hi, W = images->Wi;
    size_t n = weight_count(c), rows = positions(B, H, W, c->stride);
    Frame frame = frame_of(c, H, W);
    LibraryConvolution *l =
        is_product(c) ? NULL : library_convolution(LIBRARY_WEIGHT, c, images_in(frame, B, H, W));
    size_t apart = convolution_workspace(c, images, true), around = l ? aligned_bytes(frame_count(frame, c, B)) : 0;
    size_t bytes = apart + around + (l ? library_workspace(l) : 0);
    kernels_reserve(bytes);
    char *workspace = static_cast<char *>(kernels_workspace(bytes));
    float *sum = reinterpret_cast<float *>(workspace);
    real *rounded_sum = reinterpret_cast<real *>(workspace);
    if (l && library_weight(l, rounded_sum, framed(workspace + apart, x, frame, c, B, H, W), dy,
                            workspace + apart + around)) {
        add_scaled(dw, rounded_sum, scale, c);
        return;
    }
    if (is_product(c)) {
        device_zero(sum, n * sizeof *sum);
        LinearShape linear = {rows, c->in, c->out, 0};
        linear_backward_weight(sum, NULL, dy, x, &linear);
    } else {
        LAUNCH(plain_weight_kernel, (unsigned)ceil_div(n, THREADS), THREADS, 0, sum, x, dy, geometry_of(c, H, W), rows,
               n);
    }
    add_scaled(dw, sum, scale, c);
}
