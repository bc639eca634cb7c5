/* T2R's feature map; kernels/linear_attention/feature_relu.c has the formulas.  A block processes tiles of rows; its
 * sums of dw and db are in workspace, each element belongs to one thread, and add_parts adds the blocks' sums. */
#include "kernels/cuda/plain.cuh"
#include "kernels/linear_attention/feature_maps.h"
#include "kernels/softmax/attention_shape.h"

enum { THREADS = 256, MOST_BLOCKS = 528 };

typedef struct {
    int H, D, F, tile; /* rows of a tile */
    int copied;        /* floats of w in shared memory, or 0 */
    size_t rows;
    float scale;       /* D^-1/4 */
} ReluFeatureShape;

static ReluFeatureShape shape_of(size_t n, int H, int D, int F) {
    return {H, D, F, plain_rows(D + F), plain_weights((size_t)F * D), n * 2 * H, 1 / sqrtf(sqrtf((float)D))};
}

static size_t shared_bytes(ReluFeatureShape s) {
    return ((size_t)s.copied + (size_t)s.tile * (s.D + s.F)) * sizeof(float);
}

/* The offset of a row in qkv, which skips v after the last head of k. */
DEVICE size_t row_at(size_t row, ReluFeatureShape s) { return (row + quotient(row, 2 * s.H) * s.H) * s.D; }

DEVICE int rows_left(size_t first, ReluFeatureShape s) {
    return s.rows - first < (size_t)s.tile ? (int)(s.rows - first) : s.tile;
}

__global__ void __launch_bounds__(THREADS)
    feature_relu_forward_kernel(real *phi, const real *qkv, const float *w, const float *b, ReluFeatureShape s) {
    SHARED(float, wt); /* [D,F] */
    float *z = wt + s.copied; /* [tile,D] */
    if (s.copied) plain_copy(wt, w, s.F, s.D, true);
    for (size_t first = (size_t)blockIdx.x * s.tile; first < s.rows; first += (size_t)gridDim.x * s.tile) {
        int rows = rows_left(first, s);
        block_sync();
        plain_load(z, rows, s.D, [=](int i) { return qkv + row_at(first + i, s); });
        block_sync();
        for (int at = (int)threadIdx.x; at < rows * s.F; at += THREADS) {
            int i = at / s.F, f = at % s.F;
            float p = 0;
            for (int d = 0; d < s.D; d++) p += (s.copied ? wt[d * s.F + f] : w[(size_t)f * s.D + d]) * z[i * s.D + d];
            p = s.scale * p + b[f];
            phi[first * s.F + at] = to_real(p < 0 ? 0 : p);
        }
    }
}

void feature_relu_forward(real *phi, const real *qkv, const float *w, const float *b, const FeatureShape *shape) {
    size_t n = (size_t)shape->B * shape->N;
    int H = shape->H, D = shape->D, F = shape->F;
    ReluFeatureShape s = shape_of(n, H, D, F);
    unsigned blocks = blocks_for(s.rows, s.tile, 8 * MOST_BLOCKS);
    LAUNCH(feature_relu_forward_kernel, blocks, THREADS, shared_bytes(s), phi, qkv, w, b, s);
}

/* parts_w [blocks][F,D], parts_b [blocks][F]. */
__global__ void __launch_bounds__(THREADS)
    feature_relu_backward_kernel(real *dqkv, float *parts_w, float *parts_b, const real *dphi, const real *phi,
                                 const real *qkv, const float *w, ReluFeatureShape s) {
    SHARED(float, copy); /* [F,D] */
    float *z = copy + s.copied, *dp = z + (size_t)s.tile * s.D; /* [tile,D], [tile,F] */
    float *dw = parts_w + (size_t)blockIdx.x * s.F * s.D, *db = parts_b + (size_t)blockIdx.x * s.F;
    if (s.copied) {
        plain_copy(copy, w, s.F, s.D, false);
        w = copy;
    }
    for (size_t i = threadIdx.x; i < (size_t)s.F * s.D; i += THREADS) dw[i] = 0;
    for (int f = (int)threadIdx.x; f < s.F; f += THREADS) db[f] = 0;
    for (size_t first = (size_t)blockIdx.x * s.tile; first < s.rows; first += (size_t)gridDim.x * s.tile) {
        int rows = rows_left(first, s);
        block_sync();
        plain_load(z, rows, s.D, [=](int i) { return qkv + row_at(first + i, s); });
        for (int at = (int)threadIdx.x; at < rows * s.F; at += THREADS)
            dp[at] = to_float(phi[first * s.F + at]) <= 0 ? 0 : to_float(dphi[first * s.F + at]);
        block_sync();
        for (size_t at = threadIdx.x; at < (size_t)s.F * s.D; at += THREADS) {
            int f = (int)(at / s.D), d = (int)(at % s.D);
            float sum = 0;
            for (int i = 0; i < rows; i++) sum += dp[i * s.F + f] * z[i * s.D + d];
            dw[at] += s.scale * sum;
        }
        for (int f = (int)threadIdx.x; f < s.F; f += THREADS)
            for (int i = 0; i < rows; i++) db[f] += dp[i * s.F + f];
        for (int at = (int)threadIdx.x; at < rows * s.D; at += THREADS) {
            int i = at / s.D, d = at % s.D;
            float dz = 0;
            for (int f = 0; f < s.F; f++) dz += w[(size_t)f * s.D + d] * dp[i * s.F + f];
            dqkv[row_at(first + i, s) + d] = to_real(s.scale * dz);
        }
    }
}

/* As many blocks as have sums in 64 MB, but at least one. */
static size_t most_parts(int D, int F) {
    size_t fit = ((size_t)1 << 24) / ((size_t)F * (D + 1));
    return fit < 1 ? 1 : fit < MOST_BLOCKS ? fit : (size_t)MOST_BLOCKS;
}

size_t feature_relu_workspace(int D, int F) { return most_parts(D, F) * F * (D + 1) * sizeof(float); }

void feature_relu_backward(real *dqkv, float *dw, float *db, const real *dphi, const real *phi, const real *qkv,
                           const float *w, const FeatureShape *shape) {
    size_t n = (size_t)shape->B * shape->N;
    int H = shape->H, D = shape->D, F = shape->F;
    ReluFeatureShape s = shape_of(n, H, D, F);
    unsigned blocks = blocks_for(s.rows, s.tile, most_parts(D, F));
    float *parts_w = static_cast<float *>(kernels_workspace(feature_relu_workspace(D, F)));
    float *parts_b = parts_w + (size_t)blocks * F * D;
    LAUNCH(feature_relu_backward_kernel, blocks, THREADS, shared_bytes(s), dqkv, parts_w, parts_b, dphi, phi, qkv, w,
           s);
    add_parts(dw, NULL, parts_w, (int)blocks, F * D);
    add_parts(db, NULL, parts_b, (int)blocks, F);
}
