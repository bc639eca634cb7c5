/* Layer norm over the last dimension, alone or fused with the residual sum before it; kernels/norm/layernorm.c has the
 * formulas.  A warp processes one row at a time.  A row of up to 1024 numbers is kept in its registers, so each array
 * is read or written in memory once; a longer or unaligned one is read again from the first-level cache.  The variance
 * is taken around the mean.  Weight gradients are accumulated in registers over all rows of a warp, added in a block,
 * and then by a second kernel, in an order that depends only on n. */
#include <math.h>

#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/norm/norms.h"

enum { WARPS = 8, THREADS = WARPS * WARP };

/* A kernel's V is how many numbers of a row a lane holds in registers, a multiple of W; 0 is none.  Piece k of a lane
 * starts at column (k * WARP + lane) * W. */
/* Blocks that a multiprocessor's registers hold at a time.  A grid has at most that times the 132 of an H200: with more
 * rows, each warp processes several and reads w and b once for all of them, and there is no last wave that is half
 * empty.  In backward each block writes two rows of sums, which also favours few blocks. */
constexpr int forward_residents(int V) { return V <= 8 ? 5 : V == 16 ? 3 : 2; }
constexpr int backward_residents(int V) { return V <= 8 ? 3 : V == 16 ? 2 : 1; }
enum { MULTIPROCESSORS = 132 };

/* The number of blocks that share long or unaligned rows for the weight gradients, column by column. */
enum { COLUMN_PARTS = 64 };

template <int W, int V>
DEVICE int pieces_of(int M) {
    return V ? V / W : (M + WARP * W - 1) / (WARP * W);
}

/* == Forward ====================================================================================================== */

template <int W, int V, bool ADD>
__global__ void __launch_bounds__(THREADS, forward_residents(V))
    layernorm_forward_kernel(real *y, real *h, float *mean, float *rstd, const real *x, const real *f,
                             const float *scale, int rows_per_scale, const float *__restrict__ w,
                             const float *__restrict__ b, size_t n, int M, float eps) {
    constexpr int HELD = V ? V / W : 1;
    const int pieces = pieces_of<W, V>(M);
    float weight[HELD][W] = {}, bias[HELD][W] = {};
#pragma unroll
    for (int k = 0; k < V / W; k++) {
        int j = (k * WARP + lane_id()) * W;
        if (j < M) load(weight[k], w + j);
        if (j < M) load(bias[k], b + j);
    }
    for (size_t i = (size_t)blockIdx.x * WARPS + warp_id(); i < n; i += (size_t)gridDim.x * WARPS) {
        float row[HELD][W] = {}, s = ADD && scale ? scale[quotient(i, rows_per_scale)] : 1;
        const real *xi = x + i * M, *fi = ADD ? f + i * M : NULL, *normed = ADD ? y + i * M : xi;
        real *yi = ADD ? y + i * M : NULL, *hi = h + i * M;
        float sum = 0, squares = 0;
#pragma unroll
        for (int k = 0; k < pieces; k++) {
            int j = (k * WARP + lane_id()) * W, slot = V ? k : 0;
            if (j >= M) continue;
            load(row[slot], xi + j);
            if (ADD) {
                float branch[W];
                load(branch, fi + j);
#pragma unroll
                for (int e = 0; e < W; e++) /* normalises y as stored, after rounding */
                    row[slot][e] = to_float(to_real(row[slot][e] + s * branch[e]));
                store(yi + j, row[slot]);
            }
#pragma unroll
            for (int e = 0; e < W; e++) sum += row[slot][e];
        }
        float mu = warp_sum(sum) / M;
#pragma unroll
        for (int k = 0; k < pieces; k++) {
            int j = (k * WARP + lane_id()) * W, slot = V ? k : 0;
            if (j >= M) continue;
            if (!V) load(row[slot], normed + j);
#pragma unroll
            for (int e = 0; e < W; e++) squares += (row[slot][e] - mu) * (row[slot][e] - mu);
        }
        float r = 1 / sqrtf(warp_sum(squares) / M + eps);
#pragma unroll
        for (int k = 0; k < pieces; k++) {
            int j = (k * WARP + lane_id()) * W, slot = V ? k : 0;
            if (j >= M) continue;
            if (!V) {
                load(row[slot], normed + j);
                load(weight[slot], w + j);
                load(bias[slot], b + j);
            }
#pragma unroll
            for (int e = 0; e < W; e++) row[slot][e] = weight[slot][e] * (row[slot][e] - mu) * r + bias[slot][e];
            store(hi + j, row[slot]);
        }
        if (lane_id() == 0) {
            mean[i] = mu;
            rstd[i] = r;
        }
    }
}

/* Numbers of a row of M in each lane: the smallest of four choices that is enough. */
static int held_values(bool wide, int M) {
    int each = (int)ceil_div(M, 8 * WARP) * 8;
    return wide && each <= 32 ? each : 0;
}

template <bool ADD>
static void forward(real *y, real *h, const real *x, const real *f, const RowScale *s, const LayerNorm *norm) {
    const float *scale = s ? s->scale : NULL, *w = norm->w, *b = norm->b;
    size_t n = norm->n;
    int M = norm->M, rows_per_scale = scale ? s->rows : 1;
    bool wide = is_wide(M, y, h, x, f, w, b);
#define FORWARD(W, V)                                                                                            \
    LAUNCH((layernorm_forward_kernel<W, V, ADD>), blocks_for(n, WARPS, forward_residents(V) * MULTIPROCESSORS),  \
           THREADS, 0, y, h, norm->mean, norm->rstd, x, f, scale, rows_per_scale, w, b, n, M, norm->eps)
    switch (held_values(wide, M)) {
    case 8: FORWARD(WIDE, 8); break;
    case 16: FORWARD(WIDE, 16); break;
    case 24: FORWARD(WIDE, 24); break;
    case 32: FORWARD(WIDE, 32); break;
    default:
        if (wide) FORWARD(WIDE, 0);
        else FORWARD(1, 0);
    }
#undef FORWARD
}

void layernorm_forward(real *h, const real *x, const LayerNorm *norm) {
    forward<false>(NULL, h, x, NULL, NULL, norm);
}

void add_layernorm_forward(real *y, real *h, const real *x, const real *f, const RowScale *s, const LayerNorm *norm) {
    forward<true>(y, h, x, f, s, norm);
}

/* == Backward ===================================================================================================== */

size_t layernorm_workspace(int M) {
    int held = held_values(true, M), parts = held ? backward_residents(held) * MULTIPROCESSORS : COLUMN_PARTS;
    return (size_t)parts * 3 * (size_t)M * sizeof(float);
}

/* part[j] = the sum of the block's warps for column j, one warp after the other. */
template <int W, int V>
DEVICE void join_warps(float *part, const float (&mine)[V / W][W], float *shared, int M) {
#pragma unroll
    for (int k = 0; k < V / W; k++) {
        int j = (k * WARP + lane_id()) * W;
        if (j < M) store(shared + (size_t)warp_id() * M + j, mine[k]);
    }
    block_sync();
    for (int j = (int)threadIdx.x; j < M; j += THREADS) {
        float sum = 0;
#pragma unroll
        for (int v = 0; v < WARPS; v++) sum += shared[v * M + j];
        part[j] = sum;
    }
    block_sync();
}

/* dy and df; with V also the block's share of dw, db and, if SUMS, the branch's sums, parts[block] [2 or 3,M]. */
template <int W, int V, bool SUMS>
__global__ void __launch_bounds__(THREADS, backward_residents(V))
    layernorm_backward_kernel(real *dy, real *df, float *parts, const real *dres, const real *__restrict__ dh,
                              const real *__restrict__ y, const float *scale, int rows_per_scale,
                              const float *__restrict__ w, const float *__restrict__ mean,
                              const float *__restrict__ rstd, size_t n, int M) {
    constexpr int HELD = V ? V / W : 1;
    constexpr bool ALL_HELD = V && !(SUMS && V == 16); /* there registers for two blocks are not enough */
    const int pieces = pieces_of<W, V>(M);
    float weight[HELD][W] = {}, dw[HELD][W] = {}, db[HELD][W] = {}, sums[HELD][W] = {};
#pragma unroll
    for (int k = 0; k < V / W; k++) {
        int j = (k * WARP + lane_id()) * W;
        if (ALL_HELD && j < M) load(weight[k], w + j);
    }
    for (size_t i = (size_t)blockIdx.x * WARPS + warp_id(); i < n; i += (size_t)gridDim.x * WARPS) {
        size_t at = i * M;
        float g[HELD][W] = {}, xh[HELD][W] = {}, rest[HELD][W] = {}; /* w dh, (y - mu) r, the residual's gradient */
        float mu = mean[i], r = rstd[i], s = scale ? scale[quotient(i, rows_per_scale)] : 1, sum = 0, sum_xh = 0;
#pragma unroll
        for (int k = 0; k < pieces; k++) {
            int j = (k * WARP + lane_id()) * W, slot = V ? k : 0;
            if (j >= M) continue;
            load(g[slot], dh + at + j);
            load(xh[slot], y + at + j);
            if (ALL_HELD && dres) load(rest[slot], dres + at + j);
            if (!ALL_HELD) load(weight[slot], w + j);
#pragma unroll
            for (int e = 0; e < W; e++) {
                xh[slot][e] = (xh[slot][e] - mu) * r;
                if (V) dw[slot][e] += g[slot][e] * xh[slot][e];
                if (V) db[slot][e] += g[slot][e];
                g[slot][e] *= weight[slot][e];
                sum += g[slot][e];
                sum_xh += g[slot][e] * xh[slot][e];
            }
        }
        float mean_g = warp_sum(sum) / M, mean_gxh = warp_sum(sum_xh) / M;
#pragma unroll
        for (int k = 0; k < pieces; k++) {
            int j = (k * WARP + lane_id()) * W, slot = V ? k : 0;
            if (j >= M) continue;
            if (!ALL_HELD && dres) load(rest[slot], dres + at + j);
            if (!V) {
                load(g[slot], dh + at + j);
                load(xh[slot], y + at + j);
                load(weight[slot], w + j);
#pragma unroll
                for (int e = 0; e < W; e++) {
                    g[slot][e] *= weight[slot][e];
                    xh[slot][e] = (xh[slot][e] - mu) * r;
                }
            }
#pragma unroll
            for (int e = 0; e < W; e++) g[slot][e] = r * (g[slot][e] - mean_g - xh[slot][e] * mean_gxh) + rest[slot][e];
            store(dy + at + j, g[slot]);
            if (scale) {
#pragma unroll
                for (int e = 0; e < W; e++) g[slot][e] *= s;
                store(df + at + j, g[slot]);
            }
            if (SUMS && V)
#pragma unroll
                for (int e = 0; e < W; e++) sums[slot][e] += to_float(to_real(g[slot][e]));
        }
    }
    if constexpr (V > 0) {
        SHARED(float, shared); /* [WARPS,M] */
        float *part = parts + (size_t)blockIdx.x * (SUMS ? 3 : 2) * M;
        join_warps<W, V>(part, dw, shared, M);
        join_warps<W, V>(part + M, db, shared, M);
        if (SUMS) join_warps<W, V>(part + 2 * M, sums, shared, M);
    }
}

/* Long or unaligned rows: dw and db of the rows of one part, and the sums of df, which may be NULL, with a thread for
 * each column. parts [COLUMN_PARTS][2 or 3,M]. */
__global__ void __launch_bounds__(THREADS)
    layernorm_columns_kernel(float *parts, const real *__restrict__ dh, const real *__restrict__ y,
                             const real *__restrict__ df, const float *__restrict__ mean,
                             const float *__restrict__ rstd, size_t n, int M) {
    int j = (int)(blockIdx.y * THREADS + threadIdx.x);
    size_t each = (n + gridDim.x - 1) / gridDim.x, first = blockIdx.x * each;
    size_t last = first + each < n ? first + each : n;
    float dw = 0, db = 0, sum = 0;
    int kinds = df ? 3 : 2;
    if (j >= M) return;
#pragma unroll 4
    for (size_t i = first; i < last; i++) {
        float g = to_float(dh[i * M + j]);
        dw += g * (to_float(y[i * M + j]) - mean[i]) * rstd[i];
        db += g;
        if (df) sum += to_float(df[i * M + j]);
    }
    parts += (size_t)blockIdx.x * kinds * M;
    parts[j] = dw;
    parts[M + j] = db;
    if (df) parts[2 * M + j] = sum;
}

void add_layernorm_backward(real *dy, real *df, float *dw, float *db, const real *dres, const real *dh, const real *y,
                            const RowScale *s, const LayerNorm *norm) {
    const float *scale = s ? s->scale : NULL, *w = norm->w, *mean = norm->mean, *rstd = norm->rstd;
    float *sums = s ? s->sums : NULL;
    size_t n = norm->n;
    int M = norm->M, rows_per_scale = scale ? s->rows : 1;
    bool wide = is_wide(M, dy, scale ? df : NULL, dres, dh, y, w);
    float *parts = static_cast<float *>(kernels_workspace(layernorm_workspace(M)));
    unsigned blocks;
    size_t shared = (size_t)WARPS * M * sizeof(float);
#define BACKWARD_AND(W, V, SUMS, shared)                                                                            \
    LAUNCH((layernorm_backward_kernel<W, V, SUMS>), blocks, THREADS, shared, dy, df, parts, dres, dh, y, scale, \
           rows_per_scale, w, mean, rstd, n, M)
#define BACKWARD(W, V, shared)                                                  \
    do {                                                                        \
        blocks = blocks_for(n, WARPS, backward_residents(V) * MULTIPROCESSORS); \
        if (V && sums) BACKWARD_AND(W, V, true, shared);                        \
        else BACKWARD_AND(W, V, false, shared);                                 \
    } while (0)
    switch (held_values(wide, M)) {
    case 8: BACKWARD(WIDE, 8, shared); break;
    case 16: BACKWARD(WIDE, 16, shared); break;
    case 24: BACKWARD(WIDE, 24, shared); break;
    case 32: BACKWARD(WIDE, 32, shared); break;
    default:
        if (wide) BACKWARD(WIDE, 0, 0);
        else BACKWARD(1, 0, 0);
        blocks = blocks_for(n, WARPS, COLUMN_PARTS);
        LAUNCH(layernorm_columns_kernel, dim3(blocks, (unsigned)ceil_div(M, THREADS)), THREADS, 0, parts, dh, y,
               !sums ? NULL : scale ? df : dy, mean, rstd, n, M);
    }
#undef BACKWARD
#undef BACKWARD_AND
    add_parts_to({{dw, db, sums}, {M, M, sums ? M : 0}}, parts, (int)blocks, sums ? 3 * M : 2 * M);
}
