/* Depthwise convolution over the token grid; kernels/convolution/depthwise.c has the formulas.  A block copies 8 x 8
 * tokens of 32 channels with their border to shared memory.  Each lane has a channel and each warp a line of tokens,
 * whose eight sums share loads.  Weight gradients: each block sums its share of all tiles, and a second kernel adds the
 * blocks' parts, and the channels that share a weight, in a fixed order. */
#include "kernels/convolution/depthwise.cuh"
#include "kernels/convolution/convolution.h"

enum { SIDE = 8, THREADS = SIDE * WARP, PARTS = 128 };

struct Tiles {
    unsigned across, down, channels; /* of an image; groups of 32 channels */
};

static Tiles tiles_of(const Depthwise *s) {
    return {(unsigned)ceil_div(s->grid.columns, SIDE), (unsigned)ceil_div(s->grid.rows, SIDE),
            (unsigned)ceil_div(s->C, WARP)};
}

/* Tile `index` of all images, where each frame of a clip is an image: image, first line, first column. */
struct DepthwisePlace {
    size_t image;
    int y, x;
};
DEVICE DepthwisePlace place_of(size_t index, Tiles t) {
    size_t line = quotient(index, (int)t.across), image = quotient(line, (int)t.down);
    return {image, (int)(line - image * t.down) * SIDE, (int)(index - line * t.across) * SIDE};
}

/* The place one tap in time away, or false if the clip has no frame there. */
DEVICE bool move_in_time(DepthwisePlace *at, int tap, const Depthwise &s) {
    int frames = s.grid.frames, d = tap - depthwise_frames(&s) / 2, t = (int)(at->image % frames) + d;
    at->image += d;
    return t >= 0 && t < frames;
}

/* tile [LINE,LINE,WARP] = tokens y - border .. of channel c, zeros outside. */
template <int LINE>
DEVICE void load_tile(real *tile, const real *x, size_t row, DepthwisePlace at, int border, int c, const Depthwise &s) {
    x += at.image * s.grid.rows * s.grid.columns * row + c;
    for (int i = warp_id(); i < LINE * LINE; i += SIDE) {
        int yi = at.y + i / LINE - border, xi = at.x + i % LINE - border;
        bool inside = c < s.C && yi >= 0 && yi < s.grid.rows && xi >= 0 && xi < s.grid.columns;
        tile[i * WARP + lane_id()] = inside ? x[((size_t)yi * s.grid.columns + xi) * row] : to_real(0);
    }
}

/* y = add + b + the sum over the window; with `reverse` the weights are reversed, which gives the gradient of x. */
template <int K>
__global__ void __launch_bounds__(THREADS)
    depthwise_kernel(real *y, const real *add, const real *__restrict__ x, const float *__restrict__ w,
                     const float *__restrict__ b, Depthwise s, Tiles t, bool reverse) {
    constexpr int LINE = SIDE + K - 1, BORDER = K / 2;
    SHARED(real, tile); /* [LINE,LINE,WARP] */
    DepthwisePlace at = place_of(blockIdx.x / t.channels, t);
    int c = (int)(blockIdx.x % t.channels) * WARP + lane_id(), yi = at.y + warp_id();
    int frames = depthwise_frames(&s), taps = frames * K * K;
    bool active = c < s.C && yi < s.grid.rows;
    w += c % s.period * taps;
    float sum[SIDE];
#pragma unroll
    for (int p = 0; p < SIDE; p++) sum[p] = active && b ? b[c % s.period] : 0;
    for (int frame = 0; frame < frames; frame++) {
        DepthwisePlace from = at;
        if (!move_in_time(&from, frame, s)) continue;
        block_sync();
        load_tile<LINE>(tile, x, s.x_row, from, BORDER, c, s);
        block_sync();
        if (!active) continue;
#pragma unroll
        for (int i = 0; i < K; i++) {
            float in[LINE];
#pragma unroll
            for (int j = 0; j < LINE; j++) in[j] = to_float(tile[((warp_id() + i) * LINE + j) * WARP + lane_id()]);
#pragma unroll
            for (int j = 0; j < K; j++) {
                int at_tap = (frame * K + i) * K + j;
                float tap = w[reverse ? taps - 1 - at_tap : at_tap];
#pragma unroll
                for (int p = 0; p < SIDE; p++) sum[p] += tap * in[p + j];
            }
        }
    }
    if (!active) return;
    size_t first = (at.image * s.grid.rows + yi) * s.grid.columns;
#pragma unroll
    for (int p = 0; p < SIDE; p++) {
        if (at.x + p >= s.grid.columns) break;
        size_t to = (first + at.x + p) * s.y_row + c;
        y[to] = to_real(sum[p] + (add ? to_float(add[to]) : 0));
    }
}

/* parts [shares][taps + 1,C]: the result of each share of the tiles.  A share has a block for each tap in time and
 * group of channels; that of the middle tap sums the bias's gradient. */
template <int K>
__global__ void __launch_bounds__(THREADS)
    depthwise_weight_kernel(float *parts, const real *__restrict__ dy, const real *__restrict__ x, Depthwise s, Tiles t,
                            size_t tiles) {
    constexpr int LINE = SIDE + K - 1, BORDER = K / 2;
    SHARED(float, sums);                                              /* [SIDE][WARP] */
    real *x_tile = reinterpret_cast<real *>(sums + SIDE * WARP);      /* [LINE,LINE,WARP] */
    real *dy_tile = x_tile + LINE * LINE * WARP;                      /* [SIDE,SIDE,WARP] */
    int frames = depthwise_frames(&s), taps = frames * K * K;
    unsigned share = blockIdx.x / t.channels, count = gridDim.x / t.channels / frames, part = share / frames;
    int frame = (int)(share % frames);
    int c = (int)(blockIdx.x % t.channels) * WARP + lane_id();
    float sum[K * K + 1] = {};
    for (size_t i = part; i < tiles; i += count) {
        DepthwisePlace at = place_of(i, t), from = at;
        if (!move_in_time(&from, frame, s)) continue;
        block_sync();
        load_tile<LINE>(x_tile, x, s.x_row, from, BORDER, c, s);
        load_tile<SIDE>(dy_tile, dy, s.y_row, at, 0, c, s);
        block_sync();
        float d[SIDE];
#pragma unroll
        for (int p = 0; p < SIDE; p++) {
            d[p] = to_float(dy_tile[(warp_id() * SIDE + p) * WARP + lane_id()]);
            sum[K * K] += d[p];
        }
#pragma unroll
        for (int r = 0; r < K; r++) {
            float in[LINE];
#pragma unroll
            for (int j = 0; j < LINE; j++) in[j] = to_float(x_tile[((warp_id() + r) * LINE + j) * WARP + lane_id()]);
#pragma unroll
            for (int q = 0; q < K; q++)
#pragma unroll
                for (int p = 0; p < SIDE; p++) sum[r * K + q] += d[p] * in[p + q];
        }
    }
    parts += (size_t)part * (taps + 1) * s.C;
#pragma unroll
    for (int tap = 0; tap <= K * K; tap++) {
        block_sync();
        sums[threadIdx.x] = sum[tap];
        block_sync();
        if (warp_id() || c >= s.C || (tap == K * K && frame != frames / 2)) continue;
        float total = 0;
        for (int i = 0; i < SIDE; i++) total += sums[i * WARP + lane_id()];
        parts[(size_t)(tap == K * K ? taps : frame * K * K + tap) * s.C + c] = total;
    }
}

/* One warp for each weight. */
__global__ void __launch_bounds__(THREADS)
    depthwise_join_kernel(float *dw, float *db, const float *__restrict__ parts, int count, Depthwise s) {
    int taps = depthwise_taps(&s), weight = (int)blockIdx.x * SIDE + warp_id(), p = weight / (taps + 1),
        tap = weight % (taps + 1);
    if (p >= s.period) return;
    int channels = (s.C - p + s.period - 1) / s.period;
    float sum = 0;
    for (int i = lane_id(); i < count * channels; i += WARP)
        sum += parts[((size_t)(i / channels) * (taps + 1) + tap) * s.C + p + i % channels * s.period];
    sum = warp_sum(sum);
    if (lane_id()) return;
    if (tap < taps) dw[p * taps + tap] += sum;
    else if (db) db[p] += sum;
}

/* == Launches ===================================================================================================== */

static void convolve(real *y, const real *add, const real *x, const float *w, const float *b, Depthwise s, int B,
                     bool reverse) {
    Tiles t = tiles_of(&s);
    with_kernel_size(s.k, [&](auto size) {
        constexpr int K = size.value, LINE = SIDE + K - 1;
        LAUNCH((depthwise_kernel<K>), (unsigned)(B * s.grid.frames) * t.down * t.across * t.channels, THREADS,
               LINE * LINE * WARP * sizeof(real), y, add, x, w, b, s, t, reverse);
    });
}

void depthwise_forward(real *y, const real *add, const real *x, const float *w, const float *b, const Depthwise *shape,
                       int B) {
    convolve(y, add, x, w, b, *shape, B, false);
}

size_t depthwise_workspace(const Depthwise *shape) {
    return (size_t)PARTS * (depthwise_taps(shape) + 1) * shape->C * sizeof(float);
}

void depthwise_backward(real *dx, const real *add, float *dw, float *db, const real *dy, const real *x, const float *w,
                        const Depthwise *shape, int B) {
    Depthwise s = *shape, swapped = s;
    Tiles t = tiles_of(shape);
    size_t tiles = (size_t)B * s.grid.frames * t.down * t.across;
    unsigned count = blocks_for(tiles, 1, PARTS);
    float *parts = static_cast<float *>(kernels_workspace(depthwise_workspace(shape)));
    swapped.x_row = s.y_row;
    swapped.y_row = s.x_row;
    with_kernel_size(s.k, [&](auto size) {
        constexpr int K = size.value, LINE = SIDE + K - 1;
        LAUNCH((depthwise_weight_kernel<K>), count * depthwise_frames(&s) * t.channels, THREADS,
               THREADS * sizeof(float) + (LINE * LINE + SIDE * SIDE) * WARP * sizeof(real), parts, dy, x, s, t, tiles);
    });
    LAUNCH(depthwise_join_kernel, (unsigned)ceil_div((size_t)s.period * (depthwise_taps(&s) + 1), SIDE), THREADS, 0, dw,
           db, parts, (int)count, s);
    convolve(dx, add, dy, w, NULL, swapped, B, true);
}
