/* Convolution on a CPU, channels last.
 * With W' = s W and p a position of the output, o one of its channels
 *   forward          y[p,o] = sum_(tap,i) x[p*stride + tap - k/2, i] W'[o,i,tap] + t[o] + add[p,o], then ReLU
 *   backward, input  stride 1: the same sum with dy for x, input and output channels swapped and the taps reversed;
 *                    other strides: kernels/convolution/direct_cpu.h
 *   backward, weight dW'[o, tap, i] = sum_p dy[p,o] x[p*stride + tap - k/2, i]: for a few thousand positions at a time
 *                    each window is copied to a row (not needed for 1 x 1 with stride 1), which is then a linear
 *                    layer's input; oneDNN's kernels reach 60 % of that speed at stride 1 and 15 % at stride 2
 *                    (docs/notebook/detection.md).
 *
 * CONVOLUTION_QUICK uses kernels/convolution/winograd.c for the shapes that it supports, and the gradient of the
 * weights of small windows is in kernels/convolution/narrow.c. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/convolution/convolution.h"
#include "kernels/convolution/direct_cpu.h"
#include "kernels/convolution/narrow_cpu.h"
#include "kernels/convolution/winograd_cpu.h"
#include "kernels/cpu/activations.h"
#include "kernels/device/device.h"
#include "kernels/device/workspace.h"
#include "kernels/linear/linear.h"

/* == Weights ====================================================================================================== */

void batchnorm_fold(float *scale, float *shift, const float *w, const float *b, const float *mean, const float *var,
                    int n, float eps) {
    for (int i = 0; i < n; i++) {
        scale[i] = w[i] / sqrtf(var[i] + eps);
        shift[i] = b[i] - mean[i] * scale[i];
    }
}

size_t convolution_folded_bytes(const Convolution *c, bool backward) {
    if (winograd_serves(c)) return (backward ? 2 : 1) * winograd_weights(c) * sizeof(float);
    return direct_folded_bytes(c, backward);
}

void convolution_fold(void *folded, const float *w, const float *scale, const Convolution *c, bool backward) {
    if (!winograd_serves(c)) {
        direct_fold(folded, w, scale, c, backward);
        return;
    }
    winograd_fold(folded, w, scale, c, false);
    if (backward) winograd_fold((float *)folded + winograd_weights(c), w, scale, c, true);
}

/* == Forward, and backward to the input =========================================================================== */

void convolution_forward(real *y, const real *x, const real *add, const void *folded, const float *shift,
                         const Convolution *c, bool relu, const ImageShape *images) {
    if (!winograd_serves(c)) {
        direct_forward(y, x, add, folded, shift, c, relu, images);
        return;
    }
    kernels_reserve(winograd_workspace(c, false));
    winograd_convolve(y, x, add, folded, shift, relu, NULL, c->in, c->out, images);
}

void convolution_backward_input(real *dx, const real *add, const real *dy, const void *folded, const real *below,
                                const Convolution *c, const ImageShape *images) {
    if (!winograd_serves(c)) {
        direct_backward_input(dx, add, dy, folded, below, c, images);
        return;
    }
    const float *reversed = (const float *)folded + winograd_weights(c);
    kernels_reserve(winograd_workspace(c, false));
    winograd_convolve(dx, dy, add, reversed, NULL, false, below, c->out, c->in, images);
}

void relu_gradient(real *dx, const real *dy, const real *y, size_t n) {
#pragma omp parallel for simd schedule(static)
    for (size_t i = 0; i < n; i++) dx[i] = real_get(y[i]) > 0 ? dy[i] : real_of(0);
}

/* == Backward to the weights ====================================================================================== */

/* Positions in a product: enough that reading and writing its result costs little in comparison, and all of them if
 * windows need not be copied. */
enum { GATHER_FLOATS = 1 << 20, GATHER_LEAST = 512 };

static size_t positions_at_once(const Convolution *c, size_t positions) {
    size_t most = GATHER_FLOATS / (size_t)(c->in * c->k * c->k);
    if (most < GATHER_LEAST) most = GATHER_LEAST;
    return positions < most ? positions : most;
}

/* rows [count,k,k,in] = the windows of x at the positions from `first` on. */
static void gather(real *rows, const real *x, size_t first, size_t count, const Convolution *c, int H, int W) {
    size_t Ho = (size_t)convolution_side(H, c->stride), Wo = (size_t)convolution_side(W, c->stride);
    size_t line = (size_t)(c->k * c->in); /* a row of a window, whose pixels are adjacent */
#pragma omp parallel for schedule(static)
    for (size_t p = first; p < first + count; p++) {
        int left = (int)(p % Wo) * c->stride - convolution_before(c, W);
        int top = (int)(p / Wo % Ho) * c->stride - convolution_before(c, H);
        const real *image = x + p / (Wo * Ho) * (size_t)H * (size_t)W * (size_t)c->in;
        real *to = rows + (p - first) * (size_t)(c->k * c->k * c->in);
        int from = left < 0 ? -left : 0, end = W - left < c->k ? W - left : c->k; /* columns within the image */
        for (int yi = top; yi < top + c->k; yi++, to += line) {
            if (yi < 0 || yi >= H || from >= end) memset(to, 0, line * sizeof *to);
            else {
                memset(to, 0, (size_t)(from * c->in) * sizeof *to);
                memcpy(to + from * c->in, image + ((ptrdiff_t)yi * W + left + from) * c->in,
                       (size_t)((end - from) * c->in) * sizeof *to);
                memset(to + end * c->in, 0, (size_t)((c->k - end) * c->in) * sizeof *to);
            }
        }
    }
}

size_t convolution_workspace(const Convolution *c, const ImageShape *images, bool weights) {
    if (winograd_serves(c)) return winograd_workspace(c, weights);
    if (!weights) return 0;
    if (narrow_serves(c)) return narrow_workspace(c, images);
    size_t positions = convolution_results(c, images);
    size_t rows = convolution_is_product(c) ? 0 : positions_at_once(c, positions) * (size_t)(c->in * c->k * c->k);
    return convolution_weights(c) * sizeof(float) + rows * sizeof(real);
}

/* dw [out,in,taps] += scale sum [out,taps,in]. */
static void add_scaled(float *dw, const float *sum, const float *scale, const Convolution *c) {
    size_t in = (size_t)c->in, taps = (size_t)c->k * (size_t)c->k;
#pragma omp parallel for schedule(static)
    for (int o = 0; o < c->out; o++)
        for (size_t i = 0; i < in; i++)
            for (size_t tap = 0; tap < taps; tap++)
                dw[((size_t)o * in + i) * taps + tap] += scale[o] * sum[((size_t)o * taps + tap) * in + i];
}

void convolution_backward_weight(float *dw, const real *dy, const real *x, const float *scale, const Convolution *c,
                                 const ImageShape *images) {
    size_t n = convolution_results(c, images);
    LinearShape product = {.in = c->in * c->k * c->k, .out = c->out};
    size_t at_once = convolution_is_product(c) ? n : positions_at_once(c, n);
    kernels_reserve(convolution_workspace(c, images, true));
    if (winograd_serves(c)) {
        winograd_backward_weight(dw, dy, x, scale, c, images);
        return;
    }
    if (narrow_serves(c)) {
        narrow_backward_weight(dw, dy, x, scale, c, images);
        return;
    }
    float *sum = workspace_shared();
    real *rows = (real *)(sum + convolution_weights(c));
    memset(sum, 0, convolution_weights(c) * sizeof *sum);
    for (size_t p = 0; p < n; p += at_once) {
        product.n = n - p < at_once ? n - p : at_once;
        if (!convolution_is_product(c)) gather(rows, x, p, product.n, c, images->Hi, images->Wi);
        linear_backward_weight(sum, NULL, dy + p * (size_t)c->out, convolution_is_product(c) ? x : rows, &product);
    }
    add_scaled(dw, sum, scale, c);
}
