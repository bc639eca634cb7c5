/* From pixels to tokens and back to one vector: normalisation, patches, class token and positions, mean pooling. An
 * image's tokens are treated as one array of N*M numbers wherever that saves divisions. */
#include "kernels/cuda/rows.cuh"
#include "kernels/tokens/grid.h"
#include "kernels/tokens/images.h"
#include "kernels/tokens/tokens.h"

enum { THREADS = 256, WARPS = THREADS / WARP };

/* The blocks of all images are along x, `tiles` for each image. */
struct EmbeddedPlace {
    size_t image;
    unsigned tile;
};
DEVICE EmbeddedPlace place(unsigned tiles) { return {blockIdx.x / tiles, blockIdx.x % tiles}; }

/* == Pixels ======================================================================================================= */

struct Channels {
    float scale[3], shift[3];
};

static Channels channels_of(const float *mean, const float *std) {
    Channels c;
    for (int k = 0; k < 3; k++) {
        c.scale[k] = 1 / (255 * std[k]);
        c.shift[k] = -mean[k] / std[k];
    }
    return c;
}

/* A thread has W pixels: it reads 3 W bytes and writes W activations to each of three planes. */
template <int W>
__global__ void __launch_bounds__(THREADS) images_normalize_kernel(real *y, const uint8_t *__restrict__ x, Channels c,
                                                                   size_t pixels, unsigned tiles) {
    EmbeddedPlace at = place(tiles);
    const uint8_t *image = x + at.image * 3 * pixels;
    real *planes = y + at.image * 3 * pixels;
    size_t i = ((size_t)at.tile * THREADS + threadIdx.x) * W;
    if (i >= pixels) return;
    alignas(W) uint8_t in[3 * W];
#pragma unroll
    for (int k = 0; k < 3; k++) copy<W>(in + k * W, image + 3 * i + k * W);
#pragma unroll
    for (int k = 0; k < 3; k++) {
        float v[W];
#pragma unroll
        for (int e = 0; e < W; e++) v[e] = in[3 * e + k] * c.scale[k] + c.shift[k];
        store(planes + k * pixels + i, v);
    }
}

void images_normalize(real *y, const uint8_t *x, const float *mean, const float *std, const ImageShape *shape) {
    int B = shape->B, Hi = shape->Hi, Wi = shape->Wi;
    size_t pixels = (size_t)Hi * Wi;
    Channels c = channels_of(mean, std);
    bool wide = is_wide(pixels, y, x);
    unsigned tiles = (unsigned)ceil_div(pixels, wide ? THREADS * WIDE : THREADS), blocks = (unsigned)B * tiles;
    if (wide) LAUNCH((images_normalize_kernel<WIDE>), blocks, THREADS, 0, y, x, c, pixels, tiles);
    else LAUNCH((images_normalize_kernel<1>), blocks, THREADS, 0, y, x, c, pixels, tiles);
}

__global__ void __launch_bounds__(THREADS)
    images_renormalize_kernel(real *y, const real *__restrict__ x, Channels c, size_t pixels, size_t n) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    size_t plane = quotient(i, (int)pixels), k = plane - 3 * quotient(plane, 3);
    y[i] = to_real(to_float(x[i]) * c.scale[k] + c.shift[k]);
}

void images_renormalize(real *y, const real *x, const float *scale, const float *shift, const ImageShape *shape) {
    size_t pixels = (size_t)shape->Hi * shape->Wi, n = 3 * shape->B * pixels;
    Channels c;
    for (int k = 0; k < 3; k++) {
        c.scale[k] = scale[k];
        c.shift[k] = shift[k];
    }
    LAUNCH(images_renormalize_kernel, (unsigned)ceil_div(n, THREADS), THREADS, 0, y, x, c, pixels, n);
}

/* One thread for each number: the three channels of a pixel are adjacent in x and y. */
__global__ void __launch_bounds__(THREADS)
    images_normalize_padded_kernel(real *y, const uint8_t *__restrict__ x, const int *__restrict__ sizes, Channels c,
                                   int Hi, int Wi, size_t n) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    size_t pixel = quotient(i, 3), line = quotient(pixel, Wi), image = quotient(line, Hi);
    int k = (int)(i - 3 * pixel);
    bool inside = (int)(line - image * Hi) < sizes[2 * image] && (int)(pixel - line * Wi) < sizes[2 * image + 1];
    y[i] = to_real(inside ? x[i] * c.scale[k] + c.shift[k] : 0);
}

void images_normalize_padded(real *y, const uint8_t *x, const int *sizes, const float *mean, const float *std,
                             const ImageShape *shape) {
    int B = shape->B, Hi = shape->Hi, Wi = shape->Wi;
    size_t n = (size_t)B * Hi * Wi * 3;
    LAUNCH(images_normalize_padded_kernel, (unsigned)ceil_div(n, THREADS), THREADS, 0, y, x, sizes,
           channels_of(mean, std), Hi, Wi, n);
}

/* A thread has W neighbours in a patch's row, in the order of cols: writes are whole cache lines, and the reads of
 * neighbouring patches together are, too.  size = numbers of an image in cols. */
template <int W>
__global__ void __launch_bounds__(THREADS)
    patchify_kernel(real *cols, const real *__restrict__ x, int Hi, int Wi, int P, size_t size, unsigned tiles) {
    EmbeddedPlace at = place(tiles);
    size_t i = ((size_t)at.tile * THREADS + threadIdx.x) * W;
    if (i >= size) return;
    size_t line = quotient(i, P), plane = quotient(line, P), patch = quotient(plane, 3); /* i = (patch, c, r, column) */
    int column = (int)(i - line * P), r = (int)(line - plane * P), c = (int)(plane - patch * 3);
    size_t down = quotient(patch, Wi / P), right = patch - down * (Wi / P);
    const real *image = x + at.image * 3 * Hi * Wi;
    copy<W>(cols + at.image * size + i, image + ((size_t)c * Hi + down * P + r) * Wi + right * P + column);
}

void patchify(real *cols, const real *x, const ImageShape *shape, int P) {
    int B = shape->B, Hi = shape->Hi, Wi = shape->Wi;
    constexpr int HALF = WIDE / 2;
    size_t size = (size_t)(Hi / P) * (Wi / P) * 3 * P * P;
#define PATCHIFY(W)                                                                                          \
    do {                                                                                                     \
        unsigned tiles = (unsigned)ceil_div(size, THREADS * W);                                              \
        LAUNCH((patchify_kernel<W>), (unsigned)B * tiles, THREADS, 0, cols, x, Hi, Wi, P, size, tiles);      \
    } while (0)
    if (P % WIDE == 0 && is_wide(Wi, cols, x)) PATCHIFY(WIDE);
    else if (P % HALF == 0 && Wi % HALF == 0 && is_wide(0, cols, x)) PATCHIFY(HALF);
    else PATCHIFY(1);
#undef PATCHIFY
}

/* == Embedding ==================================================================================================== */

static FrontTokens front_or_none(const FrontTokens *front) {
    FrontTokens none = {};
    return front ? *front : none;
}

/* size = N*M numbers of an image, of which the first front.count * M are those of the tokens in front. */
template <int W>
__global__ void __launch_bounds__(THREADS)
    embed_forward_kernel(real *x, const real *__restrict__ patches, FrontTokens tokens, const float *__restrict__ pos,
                         size_t size, int M, unsigned tiles) {
    EmbeddedPlace at = place(tiles);
    size_t front = (size_t)tokens.count * M, i = ((size_t)at.tile * THREADS + threadIdx.x) * W;
    if (i >= size) return;
    float v[W], p[W] = {};
    if (pos) load(p, pos + i);
    if (i < front) load(v, i < (size_t)M ? tokens.w[0] + i : tokens.w[1] + (i - M));
    else load(v, patches + at.image * (size - front) + (i - front));
#pragma unroll
    for (int e = 0; e < W; e++) v[e] += p[e];
    store(x + at.image * size + i, v);
}

void embed_forward(real *x, const real *patches, const FrontTokens *front, const float *pos, const TokenShape *shape) {
    int B = shape->B, N = shape->N, M = shape->M;
    size_t size = (size_t)N * M;
    FrontTokens tokens = front_or_none(front);
    bool wide = is_wide(M, x, patches, tokens.w[0], tokens.w[1], pos);
    unsigned tiles = (unsigned)ceil_div(size, wide ? THREADS * WIDE : THREADS), blocks = (unsigned)B * tiles;
    if (wide) LAUNCH((embed_forward_kernel<WIDE>), blocks, THREADS, 0, x, patches, tokens, pos, size, M, tiles);
    else LAUNCH((embed_forward_kernel<1>), blocks, THREADS, 0, x, patches, tokens, pos, size, M, tiles);
}

/* Each lane has W numbers, each warp of the block every n-th image: copies and sums in one pass.  There are many warps,
 * because there are only N*M / (32 W) blocks. */
enum { EMBED_WARPS = 32 };

template <int W>
__global__ void __launch_bounds__(EMBED_WARPS *WARP)
    embed_backward_kernel(real *dpatches, FrontTokens tokens, float *dpos, const real *__restrict__ dx, int B,
                          size_t size, int M) {
    SHARED(float, sums); /* [EMBED_WARPS][WARP * W] */
    size_t front = (size_t)tokens.count * M, i = ((size_t)blockIdx.x * WARP + lane_id()) * W;
    float sum[W] = {};
    if (i < size)
#pragma unroll 4
        for (int b = warp_id(); b < B; b += EMBED_WARPS) {
            float v[W];
            load(v, dx + b * size + i);
            if (i >= front) copy<W>(dpatches + b * (size - front) + (i - front), dx + b * size + i);
#pragma unroll
            for (int e = 0; e < W; e++) sum[e] += v[e];
        }
    if (!dpos && (!tokens.dw[0] || (size_t)blockIdx.x * WARP * W >= front)) return;
    store(sums + (warp_id() * WARP + lane_id()) * W, sum);
    block_sync();
    size_t column = (size_t)blockIdx.x * WARP * W + threadIdx.x;
    if (threadIdx.x >= WARP * W || column >= size) return;
    float total = 0;
    for (int v = 0; v < EMBED_WARPS; v++) total += sums[v * WARP * W + threadIdx.x];
    if (dpos) dpos[column] += total;
    if (!tokens.dw[0] || column >= front) return;
    if (column < (size_t)M) tokens.dw[0][column] += total;
    else tokens.dw[1][column - M] += total;
}

void embed_backward(real *dpatches, const FrontTokens *front, float *dpos, const real *dx, const TokenShape *shape) {
    int B = shape->B, N = shape->N, M = shape->M;
    size_t size = (size_t)N * M;
    FrontTokens tokens = front_or_none(front);
#define EMBED_BACKWARD(W)                                                                                             \
    LAUNCH((embed_backward_kernel<W>), (unsigned)ceil_div(size, WARP * W), EMBED_WARPS * WARP,                        \
           EMBED_WARPS * WARP * W * sizeof(float), dpatches, tokens, dpos, dx, B, size, M)
    if (is_wide(M, dpatches, dx)) EMBED_BACKWARD(WIDE);
    else EMBED_BACKWARD(1);
#undef EMBED_BACKWARD
}

/* == Pooling ====================================================================================================== */

/* Each lane has W columns of one image, each warp of the block every n-th token. */
template <int W>
__global__ void __launch_bounds__(THREADS)
    pool_forward_kernel(real *y, const real *__restrict__ x, int N, int M, int first, int count) {
    SHARED(float, sums); /* [WARPS][WARP * W] */
    int m = ((int)blockIdx.y * WARP + lane_id()) * W;
    const real *in = x + ((size_t)blockIdx.x * N + first) * M + m;
    float sum[W] = {};
    if (m < M)
#pragma unroll 4
        for (int t = warp_id(); t < count; t += WARPS) {
            float v[W];
            load(v, in + (size_t)t * M);
#pragma unroll
            for (int e = 0; e < W; e++) sum[e] += v[e];
        }
    store(sums + (warp_id() * WARP + lane_id()) * W, sum);
    block_sync();
    int column = (int)blockIdx.y * WARP * W + (int)threadIdx.x;
    if ((int)threadIdx.x >= WARP * W || column >= M) return;
    float total = 0;
#pragma unroll
    for (int v = 0; v < WARPS; v++) total += sums[v * WARP * W + threadIdx.x];
    y[(size_t)blockIdx.x * M + column] = to_real(total / count);
}

void pool_forward(real *y, const real *x, const TokenShape *shape, int first, int count) {
    int B = shape->B, N = shape->N, M = shape->M;
#define POOL_FORWARD(W)                                                                                                \
    LAUNCH((pool_forward_kernel<W>), dim3((unsigned)B, (unsigned)ceil_div(M, WARP * W)), THREADS,                      \
           THREADS * W * sizeof(float), y, x, N, M, first, count)
    if (is_wide(M, x)) POOL_FORWARD(WIDE);
    else POOL_FORWARD(1);
#undef POOL_FORWARD
}

/* A warp writes one token. */
template <int W>
__global__ void __launch_bounds__(THREADS) pool_backward_kernel(real *dx, const real *__restrict__ dy, int N, int M,
                                                                int first, int count, float share, unsigned tiles) {
    EmbeddedPlace at = place(tiles);
    int t = (int)at.tile * WARPS + warp_id();
    if (t >= N) return;
    const real *in = dy + at.image * M;
    real *out = dx + (at.image * N + t) * M;
    for (int m = lane_id() * W; m < M; m += WARP * W) {
        float v[W] = {};
        if (t >= first && t < first + count) load(v, in + m);
#pragma unroll
        for (int e = 0; e < W; e++) v[e] *= share;
        store(out + m, v);
    }
}

void pool_backward(real *dx, const real *dy, const TokenShape *shape, int first, int count) {
    int B = shape->B, N = shape->N, M = shape->M;
    unsigned tiles = (unsigned)ceil_div(N, WARPS), blocks = (unsigned)B * tiles;
    float share = 1.0f / count;
    if (is_wide(M, dx, dy))
        LAUNCH((pool_backward_kernel<WIDE>), blocks, THREADS, 0, dx, dy, N, M, first, count, share, tiles);
    else
        LAUNCH((pool_backward_kernel<1>), blocks, THREADS, 0, dx, dy, N, M, first, count, share, tiles);
}

template <int W>
__global__ void __launch_bounds__(THREADS)
    rows_add_kernel(real *y, const real *a, const real *b, size_t n, int M, int y_row, int a_row, int b_row) {
    int pieces = M / W;
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x, i = quotient(at, pieces), m = (at - i * pieces) * W;
    if (i >= n) return;
    float v[W], more[W] = {};
    load(v, a + i * a_row + m);
    if (b) load(more, b + i * b_row + m);
#pragma unroll
    for (int e = 0; e < W; e++) v[e] += more[e];
    store(y + i * y_row + m, v);
}

void rows_add(real *y, const real *a, const real *b, size_t n, int M, int y_row, int a_row, int b_row) {
    bool wide = is_wide(M, y, a, b) && (y_row | a_row | (b ? b_row : 0)) % WIDE == 0;
    unsigned blocks = (unsigned)ceil_div(n * M, wide ? THREADS * WIDE : THREADS);
    if (wide) LAUNCH((rows_add_kernel<WIDE>), blocks, THREADS, 0, y, a, b, n, M, y_row, a_row, b_row);
    else LAUNCH((rows_add_kernel<1>), blocks, THREADS, 0, y, a, b, n, M, y_row, a_row, b_row);
}

/* A thread has W channels, in the order of cells. */
template <int W, bool BACK>
__global__ void __launch_bounds__(THREADS)
    token_cells_kernel(real *to, const real *__restrict__ from, size_t n, int columns, int C) {
    size_t at = ((size_t)blockIdx.x * THREADS + threadIdx.x) * W;
    if (at >= n) return;
    size_t piece = quotient(at, C), cell = piece / 4, y = quotient(cell, columns / 2), x = cell - y * (columns / 2);
    size_t token = (2 * y + piece % 2) * columns + 2 * x + piece % 4 / 2, there = token * C + (at - piece * C);
    copy<W>(to + (BACK ? there : at), from + (BACK ? at : there));
}

template <bool BACK>
static void token_cells(real *to, const real *from, Grid grid, int B, int C) {
    size_t n = (size_t)B * grid_tokens(grid) * C;
    bool wide = is_wide(C, to, from);
    unsigned blocks = (unsigned)ceil_div(n, wide ? THREADS * WIDE : THREADS);
    if (wide) LAUNCH((token_cells_kernel<WIDE, BACK>), blocks, THREADS, 0, to, from, n, grid.columns, C);
    else LAUNCH((token_cells_kernel<1, BACK>), blocks, THREADS, 0, to, from, n, grid.columns, C);
}

void token_cells_forward(real *cells, const real *x, Grid grid, int B, int C) {
    token_cells<false>(cells, x, grid, B, C);
}

void token_cells_backward(real *dx, const real *dcells, Grid grid, int B, int C) {
    token_cells<true>(dx, dcells, grid, B, C);
}

/* W channels a thread. */
template <int W>
__global__ void __launch_bounds__(THREADS)
    rows_stretch_forward_kernel(real *y, const real *__restrict__ x, RowStretch s) {
    size_t at = ((size_t)blockIdx.x * THREADS + threadIdx.x) * W, row = quotient(at, s.M), b = quotient(row, s.to);
    if (b >= (size_t)s.B) return;
    RowBlend blend = row_blend((int)(row - b * s.to), s.from, s.to);
    const real *in = x + (b * s.from + blend.row) * s.x_row + (at - row * s.M);
    float v[W], next[W];
    load(v, in);
    load(next, in + (blend.next > 0 ? s.x_row : 0));
#pragma unroll
    for (int e = 0; e < W; e++) v[e] = (1 - blend.next) * v[e] + blend.next * next[e];
    store(y + at, v);
}

template <int W>
__global__ void __launch_bounds__(THREADS)
    rows_stretch_backward_kernel(real *dx, const real *__restrict__ dy, RowStretch s) {
    size_t at = ((size_t)blockIdx.x * THREADS + threadIdx.x) * W, row = quotient(at, s.M), b = quotient(row, s.from);
    if (b >= (size_t)s.B) return;
    int j = (int)(row - b * s.from), end = row_blend_first(j + 2, s.from, s.to);
    size_t m = at - row * s.M;
    real *out = dx + row * s.x_row + m;
    float sum[W], g[W];
    load(sum, out);
    for (int i = row_blend_first(j, s.from, s.to); i < end; i++) {
        RowBlend blend = row_blend(i, s.from, s.to);
        float share = blend.row == j ? 1 - blend.next : blend.next;
        load(g, dy + (b * s.to + i) * s.M + m);
#pragma unroll
        for (int e = 0; e < W; e++) sum[e] += share * g[e];
    }
    store(out, sum);
}

void rows_stretch_forward(real *y, const real *x, const RowStretch *shape) {
    RowStretch s = *shape;
    bool wide = is_wide(s.M, y, x) && s.x_row % WIDE == 0;
    unsigned blocks = (unsigned)ceil_div((size_t)s.B * s.to * s.M, wide ? THREADS * WIDE : THREADS);
    if (wide) LAUNCH((rows_stretch_forward_kernel<WIDE>), blocks, THREADS, 0, y, x, s);
    else LAUNCH((rows_stretch_forward_kernel<1>), blocks, THREADS, 0, y, x, s);
}

void rows_stretch_backward(real *dx, const real *dy, const RowStretch *shape) {
    RowStretch s = *shape;
    bool wide = is_wide(s.M, dx, dy) && s.x_row % WIDE == 0;
    unsigned blocks = (unsigned)ceil_div((size_t)s.B * s.from * s.M, wide ? THREADS * WIDE : THREADS);
    if (wide) LAUNCH((rows_stretch_backward_kernel<WIDE>), blocks, THREADS, 0, dx, dy, s);
    else LAUNCH((rows_stretch_backward_kernel<1>), blocks, THREADS, 0, dx, dy, s);
}
