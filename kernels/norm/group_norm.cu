/* Group norm, channels last; kernels/norm/group_norm.c has the formulas.  A block processes a group of an image, which
 * it reads three times forward and twice backward, from the second time on from the second-level cache.  Each thread
 * has one channel, neighbouring threads have neighbouring channels; sums are added in a fixed order. */
#include <math.h>

#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/norm/group_norm.h"

enum { THREADS = 256, WARPS = THREADS / WARP };

size_t group_norm_workspace(const GroupNorm *g) { return (size_t)g->B * 2 * g->C * sizeof(float); }

/* The channels of a group that a block works on at a time, and this thread's position: every `rows`-th position from
 * `row` on of every `channels`-th channel from `channel` on. */
struct Share {
    int channels, rows, channel, row;
};
DEVICE Share share_of(int width) {
    int channels = width < THREADS ? width : THREADS, rows = THREADS / channels, t = (int)threadIdx.x;
    return {channels, rows, t < rows * channels ? t % channels : width, t / channels};
}

__global__ void __launch_bounds__(THREADS)
    group_norm_forward_kernel(real *y, const real *x, const real *add, bool relu, GroupNorm g) {
    SHARED(float, scratch); /* [WARPS] */
    int image = (int)blockIdx.x / g.groups, group = (int)blockIdx.x % g.groups, width = g.C / g.groups;
    Share s = share_of(width);
    size_t first = (size_t)image * g.N * g.C + (size_t)group * width;
    float sum = 0, squares = 0, count = (float)width * g.N;
    for (int c = s.channel; c < width; c += s.channels)
        for (int n = s.row; n < g.N; n += s.rows) sum += to_float(x[first + (size_t)n * g.C + c]);
    float mu = block_sum(sum, scratch) / count;
    for (int c = s.channel; c < width; c += s.channels)
        for (int n = s.row; n < g.N; n += s.rows) {
            float d = to_float(x[first + (size_t)n * g.C + c]) - mu;
            squares += d * d;
        }
    float r = 1 / sqrtf(block_sum(squares, scratch) / count + g.eps);
    for (int c = s.channel; c < width; c += s.channels) {
        float w = g.w[group * width + c], b = g.b[group * width + c];
        for (int n = s.row; n < g.N; n += s.rows) {
            size_t at = first + (size_t)n * g.C + c;
            float v = w * ((to_float(x[at]) - mu) * r) + b; /* the product in brackets is the same as in backward */
            if (add) v += to_float(add[at]);
            y[at] = to_real(relu && !(v > 0) ? 0 : v);
        }
    }
    if (threadIdx.x) return;
    g.mean[blockIdx.x] = mu;
    g.rstd[blockIdx.x] = r;
}

/* The sum over the threads of one channel, in the thread whose row is 0. */
DEVICE float channel_sum(float mine, float *shared, const Share &s) {
    block_sync();
    shared[threadIdx.x] = mine;
    block_sync();
    float sum = 0;
    for (int row = 0; !s.row && row < s.rows; row++) sum += shared[row * s.channels + (int)threadIdx.x];
    return sum;
}

/* dy at one position, 0 where the ReLU set w xh + b to 0. */
DEVICE float past_relu(real dy, float xh, bool relu, const GroupNorm &g, int channel) {
    return relu && !(g.w[channel] * xh + g.b[channel] > 0) ? 0 : to_float(dy);
}

/* dx; parts [B,2,C]: each image's share of dw and of db. */
__global__ void __launch_bounds__(THREADS)
    group_norm_backward_kernel(real *dx, float *parts, const real *dy, const real *x, bool relu, GroupNorm g) {
    SHARED(float, shared); /* [THREADS], and behind them [WARPS] */
    float *scratch = shared + THREADS;
    int image = (int)blockIdx.x / g.groups, group = (int)blockIdx.x % g.groups, width = g.C / g.groups;
    Share s = share_of(width);
    size_t first = (size_t)image * g.N * g.C + (size_t)group * width;
    float mu = g.mean[blockIdx.x], r = g.rstd[blockIdx.x], sum = 0, sum_xh = 0, count = (float)width * g.N;
    for (int turn = 0; turn < width; turn += s.channels) { /* all threads reach the barriers */
        int c = s.channel + turn;
        float db = 0, dw = 0;
        for (int n = s.row; c < width && n < g.N; n += s.rows) {
            size_t at = first + (size_t)n * g.C + c;
            float xh = (to_float(x[at]) - mu) * r, d = past_relu(dy[at], xh, relu, g, group * width + c);
            db += d;
            dw += d * xh;
        }
        db = channel_sum(db, shared, s);
        dw = channel_sum(dw, shared, s);
        if (s.row || c >= width) continue;
        int channel = group * width + c;
        parts[(size_t)image * 2 * g.C + channel] = dw;
        parts[(size_t)image * 2 * g.C + g.C + channel] = db;
        sum += g.w[channel] * db;
        sum_xh += g.w[channel] * dw;
    }
    float mean = block_sum(sum, scratch) / count, mean_xh = block_sum(sum_xh, scratch) / count;
    for (int c = s.channel; c < width; c += s.channels)
        for (int n = s.row; n < g.N; n += s.rows) {
            size_t at = first + (size_t)n * g.C + c;
            float xh = (to_float(x[at]) - mu) * r, d = past_relu(dy[at], xh, relu, g, group * width + c);
            dx[at] = to_real(r * (g.w[group * width + c] * d - mean - xh * mean_xh));
        }
}

void group_norm_forward(real *y, const real *x, const real *add, bool relu, const GroupNorm *norm) {
    LAUNCH(group_norm_forward_kernel, (unsigned)(norm->B * norm->groups), THREADS, WARPS * sizeof(float), y, x, add,
           relu, *norm);
}

void group_norm_backward(real *dx, float *dw, float *db, const real *dy, const real *x, bool relu,
                         const GroupNorm *norm) {
    float *parts = static_cast<float *>(kernels_workspace(group_norm_workspace(norm)));
    LAUNCH(group_norm_backward_kernel, (unsigned)(norm->B * norm->groups), THREADS, (THREADS + WARPS) * sizeof(float),
           dx, parts, dy, x, relu, *norm);
    add_parts(dw, db, parts, norm->B, norm->C);
}
