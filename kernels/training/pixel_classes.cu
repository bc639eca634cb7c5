/* The classes of a picture's pixels; kernels/training/pixel_classes.c has the formulas.  A warp processes a pixel, a
 * lane every 32nd class. */
#include "kernels/cuda/rows.cuh"
#include "kernels/training/pixel_cross_entropy.h"

enum { WARPS = 8, THREADS = WARPS * WARP };

DEVICE float mixed(float low, float high, float part) { return (1 - part) * low + part * high; }

/* A window's logit for one pixel of the network's picture; z is that of the window's first cell. */
DEVICE float window_logit(const real *z, int y, int x, const LogitWindows &s) {
    Between v = bilinear_source(y, s.h, s.height), u = bilinear_source(x, s.w, s.width);
    const real *low = z + (size_t)v.low * s.w * s.K, *high = z + (size_t)v.high * s.w * s.K;
    size_t a = (size_t)u.low * s.K, b = (size_t)u.high * s.K;
    return mixed(mixed(to_float(low[a]), to_float(low[b]), u.fraction), mixed(to_float(high[a]), to_float(high[b]), u.fraction),
                 v.fraction);
}

/* The mean over the windows that contain the pixel. */
DEVICE float network_logit(const real *z, int y, int x, const LogitWindows &s) {
    size_t window = (size_t)s.h * s.w * s.K;
    float sum = 0;
    int count = 0;
    for (int i = 0; i < s.down; i++) {
        if (!window_holds(i, y, s.height, s.stride_y, s.H)) continue;
        for (int j = 0; j < s.across; j++) {
            if (!window_holds(j, x, s.width, s.stride_x, s.W)) continue;
            sum += window_logit(z + (size_t)(i * s.across + j) * window,
                                y - window_begin(i, s.height, s.stride_y, s.H),
                                x - window_begin(j, s.width, s.stride_x, s.W), s);
            count++;
        }
    }
    return sum * (1 / (float)count);
}

DEVICE float picture_logit(const real *z, Between v, Between u, const LogitWindows &s) {
    float above = network_logit(z, v.low, u.low, s);
    if (u.fraction > 0) above = mixed(above, network_logit(z, v.low, u.high, s), u.fraction);
    if (!(v.fraction > 0)) return above;
    float below = network_logit(z, v.high, u.low, s);
    if (u.fraction > 0) below = mixed(below, network_logit(z, v.high, u.high, s), u.fraction);
    return mixed(above, below, v.fraction);
}

__global__ void __launch_bounds__(THREADS)
    pixel_classes_kernel(uint8_t *classes, const real *logits, LogitWindows s) {
    size_t i = (size_t)blockIdx.x * WARPS + warp_id();
    if (i >= (size_t)s.out_H * s.out_W) return;
    Between v = bilinear_source((int)(i / s.out_W), s.H, s.out_H);
    Between u = bilinear_source((int)(i % s.out_W), s.W, s.out_W);
    float best = 0;
    int found = s.K;
    for (int k = lane_id(); k < s.K; k += WARP) {
        float l = picture_logit(logits + k, v, u, s);
        if (found < s.K && !(l > best)) continue;
        best = l;
        found = k;
    }
    for (int mask = WARP / 2; mask; mask /= 2) {
        float other = warp_shuffle_xor(best, mask);
        int other_found = (int)warp_shuffle_xor((float)found, mask);
        bool better = other_found < s.K && (found == s.K || other > best || (other == best && other_found < found));
        if (!better) continue;
        best = other;
        found = other_found;
    }
    if (lane_id() == 0) classes[i] = (uint8_t)found;
}

void pixel_classes(uint8_t *classes, const real *logits, const LogitWindows *windows) {
    size_t pixels = (size_t)windows->out_H * windows->out_W;
    LAUNCH(pixel_classes_kernel, (unsigned)ceil_div(pixels, WARPS), THREADS, 0, classes, logits, *windows);
}
