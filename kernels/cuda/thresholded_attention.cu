/* Softmax attention with a threshold on the weights; the formulas are those of kernels/cpu/thresholded_attention.c.
 * The tokens of a block (head_tiles.cuh) are queries for y and dq, keys for dk and dv. */
#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/head_tiles.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/kernels.h"

enum { OWNED = ROWS / WARPS };

struct Shape {
    int N, H, D;
    float threshold, scale;
    unsigned blocks; /* a head's */
};

static Shape shape_of(float threshold, int N, int H, int D) {
    return {N, H, D, threshold, 1 / sqrtf((float)D), (unsigned)ceil_div(N, ROWS)};
}

/* What a block works on: where the head's first row is in qkv, in y and in lse. */
struct Place {
    size_t qkv, y, lse, M;
    int first;
};

DEVICE Place place_of(const Shape &s) {
    size_t head = blockIdx.x / s.blocks, M = (size_t)s.H * s.D, token = head / s.H * s.N, c = head % s.H * s.D;
    return {token * 3 * M + c, token * M + c, head * s.N, M, (int)(blockIdx.x % s.blocks) * ROWS};
}

/* The head's rows += scale times sum. */
DEVICE void add_rows(real *head, size_t row, const float *sum, float scale, int first, const Shape &s) {
    for (int at = threadIdx.x; at < ROWS * s.D; at += THREADS) {
        int i = first + at / s.D;
        if (i >= s.N) continue;
        real *to = head + i * row + at % s.D;
        *to = to_real(to_float(*to) + scale * sum[at]);
    }
}

/* The log of the sum of exponentials of the block's rows, row w + WARPS*k in result[k] of warp w. */
DEVICE void log_sums(float (&result)[OWNED], const float *q, float *k, float *p, const real *keys, size_t row,
                     const Shape &s) {
    float most[OWNED], sum[OWNED];
    for (int i = 0; i < OWNED; i++) most[i] = -INFINITY, sum[i] = 0;
    for (int j = 0; j < s.N; j += COLUMNS) {
        load_rows(k, COLUMNS, keys, row, j, s.N, s.D);
        block_sync();
        products(p, q, k, s.D);
        block_sync();
        for (int i = 0; i < OWNED; i++) {
            bool inside = j + lane_id() < s.N;
            float x = inside ? s.scale * p[(warp_id() + i * WARPS) * COLUMNS + lane_id()] : -INFINITY;
            float largest = fmaxf(most[i], warp_max(x));
            sum[i] = sum[i] * expf(most[i] - largest) + warp_sum(expf(x - largest));
            most[i] = largest;
        }
        block_sync();
    }
    for (int i = 0; i < OWNED; i++) result[i] = most[i] + logf(sum[i]);
}

__global__ void __launch_bounds__(THREADS) masked_forward_kernel(real *y, float *lse, const real *qkv, Shape s) {
    SHARED(float, q);                                              /* [ROWS,D] */
    float *sum = q + ROWS * s.D, *k = sum + ROWS * s.D;            /* [ROWS,D], [COLUMNS,D] */
    float *v = k + COLUMNS * s.D, *p = v + COLUMNS * s.D;          /* [COLUMNS,D], [ROWS,COLUMNS] */
    Place at = place_of(s);
    const real *head = qkv + at.qkv;
    float own[OWNED];
    load_rows(q, ROWS, head, 3 * at.M, at.first, s.N, s.D);
    for (int i = threadIdx.x; i < ROWS * s.D; i += THREADS) sum[i] = 0;
    log_sums(own, q, k, p, head + at.M, 3 * at.M, s);
    for (int i = 0; i < OWNED; i++) {
        int row = at.first + warp_id() + i * WARPS;
        if (lane_id() == 0 && row < s.N) lse[at.lse + row] = own[i];
    }
    for (int j = 0; j < s.N; j += COLUMNS) {
        load_rows(k, COLUMNS, head + at.M, 3 * at.M, j, s.N, s.D);
        load_rows(v, COLUMNS, head + 2 * at.M, 3 * at.M, j, s.N, s.D);
        block_sync();
        products(p, q, k, s.D);
        block_sync();
        for (int i = 0; i < OWNED; i++) {
            float *x = p + (warp_id() + i * WARPS) * COLUMNS + lane_id(), weight = expf(s.scale * *x - own[i]);
            *x = weight > s.threshold && j + lane_id() < s.N ? weight : 0;
        }
        block_sync();
        accumulate(sum, p, v, s.D);
        block_sync();
    }
    add_rows(y + at.y, at.M, sum, 1, at.first, s);
}

/* delta and dq of ROWS queries: dq = sum c p t k - delta sum p k. */
__global__ void __launch_bounds__(THREADS)
    masked_queries_kernel(real *dqkv, float *delta, const real *dy, const float *lse, const real *qkv, Shape s) {
    SHARED(float, q);                                              /* [ROWS,D] */
    float *g = q + ROWS * s.D, *sum = g + ROWS * s.D;              /* [ROWS,D] */
    float *plain = sum + ROWS * s.D, *k = plain + ROWS * s.D;      /* [ROWS,D], [COLUMNS,D] */
    float *v = k + COLUMNS * s.D, *p = v + COLUMNS * s.D;          /* [COLUMNS,D], [ROWS,COLUMNS] */
    float *t = p + ROWS * COLUMNS, *deltas = t + ROWS * COLUMNS;   /* [ROWS,COLUMNS], [ROWS] */
    Place at = place_of(s);
    const real *head = qkv + at.qkv;
    float total[OWNED] = {};
    load_rows(q, ROWS, head, 3 * at.M, at.first, s.N, s.D);
    load_rows(g, ROWS, dy + at.y, at.M, at.first, s.N, s.D);
    for (int i = threadIdx.x; i < ROWS * s.D; i += THREADS) sum[i] = plain[i] = 0;
    for (int j = 0; j < s.N; j += COLUMNS) {
        load_rows(k, COLUMNS, head + at.M, 3 * at.M, j, s.N, s.D);
        load_rows(v, COLUMNS, head + 2 * at.M, 3 * at.M, j, s.N, s.D);
        block_sync();
        products(p, q, k, s.D);
        products(t, g, v, s.D);
        block_sync();
        for (int i = 0; i < OWNED; i++) {
            int local = warp_id() + i * WARPS, row = at.first + local;
            bool inside = row < s.N && j + lane_id() < s.N;
            float *x = p + local * COLUMNS + lane_id(), *slope = t + local * COLUMNS + lane_id();
            *x = inside ? expf(s.scale * *x - lse[at.lse + row]) : 0;
            *slope = *x > s.threshold ? *x * *slope : 0;
            total[i] += warp_sum(*slope);
        }
        block_sync();
        accumulate(sum, t, k, s.D);
        accumulate(plain, p, k, s.D);
        block_sync();
    }
    for (int i = 0; i < OWNED; i++) {
        int local = warp_id() + i * WARPS;
        if (lane_id()) continue;
        deltas[local] = total[i];
        if (at.first + local < s.N) delta[at.lse + at.first + local] = total[i];
    }
    block_sync();
    for (int i = threadIdx.x; i < ROWS * s.D; i += THREADS) sum[i] -= deltas[i / s.D] * plain[i];
    block_sync();
    add_rows(dqkv + at.qkv, 3 * at.M, sum, s.scale, at.first, s);
}

/* dk and dv of ROWS keys. */
__global__ void __launch_bounds__(THREADS)
    masked_keys_kernel(real *dqkv, const float *delta, const real *dy, const float *lse, const real *qkv, Shape s) {
    SHARED(float, k);                                              /* [ROWS,D] */
    float *v = k + ROWS * s.D, *dk = v + ROWS * s.D;               /* [ROWS,D] */
    float *dv = dk + ROWS * s.D, *q = dv + ROWS * s.D;             /* [ROWS,D], [COLUMNS,D] */
    float *g = q + COLUMNS * s.D, *p = g + COLUMNS * s.D;          /* [COLUMNS,D], [ROWS,COLUMNS] */
    float *t = p + ROWS * COLUMNS;                                 /* [ROWS,COLUMNS] */
    Place at = place_of(s);
    const real *head = qkv + at.qkv;
    load_rows(k, ROWS, head + at.M, 3 * at.M, at.first, s.N, s.D);
    load_rows(v, ROWS, head + 2 * at.M, 3 * at.M, at.first, s.N, s.D);
    for (int i = threadIdx.x; i < ROWS * s.D; i += THREADS) dk[i] = dv[i] = 0;
    for (int j = 0; j < s.N; j += COLUMNS) {
        load_rows(q, COLUMNS, head, 3 * at.M, j, s.N, s.D);
        load_rows(g, COLUMNS, dy + at.y, at.M, j, s.N, s.D);
        block_sync();
        products(p, k, q, s.D);
        products(t, v, g, s.D);
        block_sync();
        for (int i = threadIdx.x; i < ROWS * COLUMNS; i += THREADS) {
            int query = j + i % COLUMNS;
            float weight = query < s.N ? expf(s.scale * p[i] - lse[at.lse + query]) : 0;
            p[i] = weight > s.threshold ? weight : 0;
            t[i] = query < s.N ? p[i] * t[i] - weight * delta[at.lse + query] : 0;
        }
        block_sync();
        accumulate(dv, p, g, s.D);
        accumulate(dk, t, q, s.D);
        block_sync();
    }
    add_rows(dqkv + at.qkv + at.M, 3 * at.M, dk, s.scale, at.first, s);
    add_rows(dqkv + at.qkv + 2 * at.M, 3 * at.M, dv, 1, at.first, s);
}

/* == Launches ===================================================================================================== */

size_t thresholded_attention_workspace(int, int) { return 0; }

void thresholded_attention_forward(real *y, float *lse, const real *qkv, float threshold,
                                   const AttentionShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D;
    Shape s = shape_of(threshold, N, H, D);
    LAUNCH(masked_forward_kernel, B * H * s.blocks, THREADS, tiles_bytes(2, 2, 1, D), y, lse, qkv, s);
}

void thresholded_attention_backward(real *dqkv, float *delta, const real *dy, const float *lse, const real *qkv,
                                    float threshold, const AttentionShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D;
    Shape s = shape_of(threshold, N, H, D);
    unsigned blocks = B * H * s.blocks;
    size_t tiles = tiles_bytes(4, 2, 2, D), deltas = ROWS * sizeof(float);
    LAUNCH(masked_queries_kernel, blocks, THREADS, tiles + deltas, dqkv, delta, dy, lse, qkv, s);
    LAUNCH(masked_keys_kernel, blocks, THREADS, tiles, dqkv, delta, dy, lse, qkv, s);
}
