/* Softmax attention with a threshold on the weights; the formulas are those of kernels/softmax/thresholded_attention.c.
 * The tokens of a block (pair_tiles.cuh) are queries for y and dq, keys for dk and dv. */
#include "kernels/softmax/pair_tiles.cuh"
#include "kernels/softmax/attention_shape.h"
#include "kernels/softmax/softmax_attention.h"

enum { OWNED = MOST_ROWS / WARPS };

struct ThresholdedShape {
    int N, H, D;
    float threshold, scale;
    bool wide;
    int rows;        /* of a block */
    unsigned blocks; /* a head's */
};

static ThresholdedShape shape_of(float threshold, const AttentionShape *a, int rows, bool wide) {
    return {a->N, a->H, a->D, threshold, 1 / sqrtf((float)a->D), wide, rows, (unsigned)ceil_div(a->N, rows)};
}

/* The data of a block: offsets of the head's first row in qkv, y and lse. */
struct ThresholdedPlace {
    size_t qkv, y, lse, M;
    int first;
};

DEVICE ThresholdedPlace place_of(const ThresholdedShape &s) {
    size_t head = blockIdx.x / s.blocks, M = (size_t)s.H * s.D, token = head / s.H * s.N, c = head % s.H * s.D;
    return {token * 3 * M + c, token * M + c, head * s.N, M, (int)(blockIdx.x % s.blocks) * s.rows};
}

/* The head's rows += scale times sum. */
DEVICE void add_rows(real *head, size_t row, const float *sum, float scale, int first, const ThresholdedShape &s) {
    for_pair_rows(s.rows, first, s.N, s.D, [&](int i, int c) {
        real *to = head + (first + i) * row + c;
        *to = to_real(to_float(*to) + scale * sum[i * pair_ld(s.D) + c]);
    });
}

/* Calls visit(k, row) for the rows of the block that belong to this warp: row = warp + WARPS k. */
template <typename Visit>
DEVICE void for_owned(const ThresholdedShape &s, Visit visit) {
#pragma unroll
    for (int k = 0; k < OWNED; k++)
        if (k * WARPS < s.rows) visit(k, warp_id() + k * WARPS);
}

/* The log-sum-exp of the block's rows; that of row w + WARPS*k is in result[k] of warp w. */
DEVICE void log_sums(float (&result)[OWNED], const real *q, real *k, float *p, const real *keys, size_t row,
                     const ThresholdedShape &s) {
    float most[OWNED], sum[OWNED];
#pragma unroll
    for (int i = 0; i < OWNED; i++) most[i] = -INFINITY, sum[i] = 0;
    for (int j = 0; j < s.N; j += COLUMNS) {
        pair_load(k, COLUMNS, keys, row, j, s.N, s.D, s.wide);
        pair_wait();
        block_sync();
        pair_products(p, q, k, s.rows, s.D);
        block_sync();
        for_owned(s, [&](int i, int local) {
            float x = j + lane_id() < s.N ? s.scale * p[local * PAIR_LD + lane_id()] : -INFINITY;
            float largest = fmaxf(most[i], warp_max(x));
            sum[i] = sum[i] * expf(most[i] - largest) + warp_sum(expf(x - largest));
            most[i] = largest;
        });
        block_sync();
    }
#pragma unroll
    for (int i = 0; i < OWNED; i++) result[i] = most[i] + logf(sum[i]);
}

__global__ void __launch_bounds__(THREADS, 2)
    masked_forward_kernel(real *y, float *lse, const real *qkv, ThresholdedShape s) {
    SHARED(real, q);                                              /* [rows,D] */
    int ld = pair_ld(s.D);
    real *k = q + s.rows * ld, *v = k + COLUMNS * ld;             /* [COLUMNS,D] */
    float *sum = reinterpret_cast<float *>(v + COLUMNS * ld);     /* [rows,D] */
    float *p = sum + s.rows * ld;                                 /* [rows,COLUMNS] */
    ThresholdedPlace at = place_of(s);
    const real *head = qkv + at.qkv;
    float own[OWNED];
    pair_load(q, s.rows, head, 3 * at.M, at.first, s.N, s.D, s.wide);
    pair_zero(sum, s.rows, s.D);
    log_sums(own, q, k, p, head + at.M, 3 * at.M, s);
    for_owned(s, [&](int i, int local) {
        if (lane_id() == 0 && at.first + local < s.N) lse[at.lse + at.first + local] = own[i];
    });
    for (int j = 0; j < s.N; j += COLUMNS) {
        pair_load(k, COLUMNS, head + at.M, 3 * at.M, j, s.N, s.D, s.wide);
        pair_load(v, COLUMNS, head + 2 * at.M, 3 * at.M, j, s.N, s.D, s.wide);
        pair_wait();
        block_sync();
        pair_products(p, q, k, s.rows, s.D);
        block_sync();
        for_owned(s, [&](int i, int local) {
            float *x = p + local * PAIR_LD + lane_id(), weight = expf(s.scale * *x - own[i]);
            *x = weight > s.threshold && j + lane_id() < s.N ? weight : 0;
        });
        block_sync();
        pair_accumulate(sum, p, v, s.rows, s.D);
        block_sync();
    }
    add_rows(y + at.y, at.M, sum, 1, at.first, s);
}

/* delta and dq of a block's queries: dq = sum c p t k - delta sum p k. */
__global__ void __launch_bounds__(THREADS, 2)
    masked_queries_kernel(real *dqkv, float *delta, const real *dy, const float *lse, const real *qkv,
                          ThresholdedShape s) {
    SHARED(real, q);                                                             /* [rows,D] */
    int ld = pair_ld(s.D);
    real *g = q + s.rows * ld, *k = g + s.rows * ld, *v = k + COLUMNS * ld;      /* [rows,D], [COLUMNS,D] */
    float *sum = reinterpret_cast<float *>(v + COLUMNS * ld);                    /* [rows,D] */
    float *plain = sum + s.rows * ld, *p = plain + s.rows * ld;                  /* [rows,D], [rows,COLUMNS] */
    float *t = p + s.rows * PAIR_LD, *deltas = t + s.rows * PAIR_LD;             /* [rows,COLUMNS], [rows] */
    ThresholdedPlace at = place_of(s);
    const real *head = qkv + at.qkv;
    float total[OWNED] = {};
    pair_load(q, s.rows, head, 3 * at.M, at.first, s.N, s.D, s.wide);
    pair_load(g, s.rows, dy + at.y, at.M, at.first, s.N, s.D, s.wide);
    pair_zero(sum, s.rows, s.D);
    pair_zero(plain, s.rows, s.D);
    for (int j = 0; j < s.N; j += COLUMNS) {
        pair_load(k, COLUMNS, head + at.M, 3 * at.M, j, s.N, s.D, s.wide);
        pair_load(v, COLUMNS, head + 2 * at.M, 3 * at.M, j, s.N, s.D, s.wide);
        pair_wait();
        block_sync();
        pair_products(p, q, k, s.rows, s.D);
        pair_products(t, g, v, s.rows, s.D);
        block_sync();
        for_owned(s, [&](int i, int local) {
            int row = at.first + local;
            bool inside = row < s.N && j + lane_id() < s.N;
            float *x = p + local * PAIR_LD + lane_id(), *slope = t + local * PAIR_LD + lane_id();
            *x = inside ? expf(s.scale * *x - lse[at.lse + row]) : 0;
            *slope = *x > s.threshold ? *x * *slope : 0;
            total[i] += warp_sum(*slope);
        });
        block_sync();
        pair_accumulate(sum, t, k, s.rows, s.D);
        pair_accumulate(plain, p, k, s.rows, s.D);
        block_sync();
    }
    for_owned(s, [&](int i, int local) {
        if (lane_id()) return;
        deltas[local] = total[i];
        if (at.first + local < s.N) delta[at.lse + at.first + local] = total[i];
    });
    block_sync();
    for_pair_rows(s.rows, at.first, s.N, s.D,
                  [&](int i, int c) { sum[i * ld + c] -= deltas[i] * plain[i * ld + c]; });
    block_sync();
    add_rows(dqkv + at.qkv, 3 * at.M, sum, s.scale, at.first, s);
}

/* dk and dv of a block's keys. */
__global__ void __launch_bounds__(THREADS, 2)
    masked_keys_kernel(real *dqkv, const float *delta, const real *dy, const float *lse, const real *qkv,
                       ThresholdedShape s) {
    SHARED(real, k);                                                             /* [rows,D] */
    int ld = pair_ld(s.D);
    real *v = k + s.rows * ld, *q = v + s.rows * ld, *g = q + COLUMNS * ld;      /* [rows,D], [COLUMNS,D] */
    float *dk = reinterpret_cast<float *>(g + COLUMNS * ld);                     /* [rows,D] */
    float *dv = dk + s.rows * ld, *p = dv + s.rows * ld;                         /* [rows,D], [rows,COLUMNS] */
    float *t = p + s.rows * PAIR_LD;                                             /* [rows,COLUMNS] */
    ThresholdedPlace at = place_of(s);
    const real *head = qkv + at.qkv;
    pair_load(k, s.rows, head + at.M, 3 * at.M, at.first, s.N, s.D, s.wide);
    pair_load(v, s.rows, head + 2 * at.M, 3 * at.M, at.first, s.N, s.D, s.wide);
    pair_zero(dk, s.rows, s.D);
    pair_zero(dv, s.rows, s.D);
    for (int j = 0; j < s.N; j += COLUMNS) {
        pair_load(q, COLUMNS, head, 3 * at.M, j, s.N, s.D, s.wide);
        pair_load(g, COLUMNS, dy + at.y, at.M, j, s.N, s.D, s.wide);
        pair_wait();
        block_sync();
        pair_products(p, k, q, s.rows, s.D);
        pair_products(t, v, g, s.rows, s.D);
        block_sync();
        for (int i = threadIdx.x; i < s.rows * COLUMNS; i += THREADS) {
            int query = j + i % COLUMNS, place = i / COLUMNS * PAIR_LD + i % COLUMNS;
            float weight = query < s.N ? expf(s.scale * p[place] - lse[at.lse + query]) : 0;
            p[place] = weight > s.threshold ? weight : 0;
            t[place] = query < s.N ? p[place] * t[place] - weight * delta[at.lse + query] : 0;
        }
        block_sync();
        pair_accumulate(dv, p, g, s.rows, s.D);
        pair_accumulate(dk, t, q, s.rows, s.D);
        block_sync();
    }
    add_rows(dqkv + at.qkv + at.M, 3 * at.M, dk, s.scale, at.first, s);
    add_rows(dqkv + at.qkv + 2 * at.M, 3 * at.M, dv, 1, at.first, s);
}

/* == Launches ===================================================================================================== */

size_t thresholded_attention_workspace(int, int) { return 0; }

void thresholded_attention_forward(real *y, float *lse, const real *qkv, float threshold,
                                   const AttentionShape *shape) {
    int D = shape->D, rows = pair_rows(1, 2, 1, 1, D, 0);
    ThresholdedShape s = shape_of(threshold, shape, rows, is_wide(D, qkv));
    LAUNCH(masked_forward_kernel, shape->B * s.H * s.blocks, THREADS, pair_bytes(1, 2, 1, 1, rows, D), y, lse, qkv, s);
}

void thresholded_attention_backward(real *dqkv, float *delta, const real *dy, const float *lse, const real *qkv,
                                    float threshold, const AttentionShape *shape) {
    int D = shape->D, rows = pair_rows(2, 2, 2, 2, D, MOST_ROWS * sizeof(float));
    ThresholdedShape s = shape_of(threshold, shape, rows, is_wide(D, qkv, dy));
    unsigned blocks = shape->B * s.H * s.blocks;
    size_t tiles = pair_bytes(2, 2, 2, 2, rows, D);
    LAUNCH(masked_queries_kernel, blocks, THREADS, tiles + rows * sizeof(float), dqkv, delta, dy, lse, qkv, s);
    LAUNCH(masked_keys_kernel, blocks, THREADS, tiles, dqkv, delta, dy, lse, qkv, s);
}
