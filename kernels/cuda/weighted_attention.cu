/* Attention with multiplicative position weights; the formulas are those of kernels/cpu/weighted_attention.c.  The
 * tokens of a block (head_tiles.cuh) are queries for y and dq^, keys for dk^ and dv.  The table's gradient has a block
 * for each entry. */
#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/head_tiles.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/kernels.h"

struct Shape {
    Offsets offsets;
    int N, H, D, tables, heads;
    unsigned blocks; /* a head's */
};

static Shape shape_of(const WeightedAttention *a, int B) {
    int N = grid_tokens(a->offsets.grid);
    return {a->offsets, N, a->H, a->D, a->tables, B * a->H, (unsigned)ceil_div(N, ROWS)};
}

/* Where a head begins in each tensor, from one token to the next, and its table. */
struct Head {
    size_t qk, v, y, qk_row, qkv_row, y_row;
    int table;
};

DEVICE Head head_at(const Shape &s, size_t head) {
    size_t M = (size_t)s.H * s.D, token = head / s.H * s.N, c = head % s.H * s.D;
    return {token * 2 * M + c, token * 3 * M + 2 * M + c, token * M + c, 2 * M, 3 * M, M,
            s.tables > 1 ? (int)(head % s.H) : 0};
}

DEVICE float weight_of(const float *r, int i, int j, const Head &h, const Shape &s) {
    if (i >= s.N || j >= s.N) return 0;
    int t = offset_of(&s.offsets, i, j);
    return t < 0 ? 0 : r[(size_t)t * s.tables + h.table];
}

DEVICE void store_rows(real *head, size_t row, const float *sum, int first, const Shape &s) {
    for (int at = threadIdx.x; at < ROWS * s.D; at += THREADS) {
        int i = first + at / s.D;
        if (i < s.N) head[i * row + at % s.D] = to_real(sum[at]);
    }
}

/* out rows of ROWS queries: p = (left right^T) r, out = p other.  Forward left = q^, right = k^, other = v; for dq^
 * left = dy, right = v, other = k^. */
__global__ void __launch_bounds__(THREADS)
    weighted_queries_kernel(real *out, const real *dy, const real *qk, const real *qkv, const float *r, bool backward,
                            Shape s) {
    SHARED(float, left);                                                     /* [ROWS,D] */
    float *sum = left + ROWS * s.D, *right = sum + ROWS * s.D;               /* [ROWS,D], [COLUMNS,D] */
    float *other = right + COLUMNS * s.D, *p = other + COLUMNS * s.D;        /* [COLUMNS,D], [ROWS,COLUMNS] */
    int first = (int)(blockIdx.x % s.blocks) * ROWS;
    Head h = head_at(s, blockIdx.x / s.blocks);
    const real *k = qk + h.qk + h.y_row, *v = qkv + h.v;
    load_rows(left, ROWS, backward ? dy + h.y : qk + h.qk, backward ? h.y_row : h.qk_row, first, s.N, s.D);
    for (int at = threadIdx.x; at < ROWS * s.D; at += THREADS) sum[at] = 0;
    for (int j = 0; j < s.N; j += COLUMNS) {
        load_rows(right, COLUMNS, backward ? v : k, backward ? h.qkv_row : h.qk_row, j, s.N, s.D);
        load_rows(other, COLUMNS, backward ? k : v, backward ? h.qk_row : h.qkv_row, j, s.N, s.D);
        block_sync();
        products(p, left, right, s.D);
        for (int at = threadIdx.x; at < ROWS * COLUMNS; at += THREADS)
            p[at] *= weight_of(r, first + at / COLUMNS, j + at % COLUMNS, h, s);
        block_sync();
        accumulate(sum, p, other, s.D);
        block_sync();
    }
    store_rows(out + (backward ? h.qk : h.y), backward ? h.qk_row : h.y_row, sum, first, s);
}

/* dk^ and dv of ROWS keys. */
__global__ void __launch_bounds__(THREADS)
    weighted_keys_kernel(real *dqkv, real *dqk, const real *dy, const real *qk, const real *qkv, const float *r,
                         Shape s) {
    SHARED(float, k);                                                        /* [ROWS,D] */
    float *v = k + ROWS * s.D, *dk = v + ROWS * s.D, *dv = dk + ROWS * s.D;  /* [ROWS,D] */
    float *q = dv + ROWS * s.D, *g = q + COLUMNS * s.D;                      /* [COLUMNS,D] */
    float *a = g + COLUMNS * s.D, *t = a + ROWS * COLUMNS;                   /* [ROWS,COLUMNS] */
    int first = (int)(blockIdx.x % s.blocks) * ROWS;
    Head h = head_at(s, blockIdx.x / s.blocks);
    load_rows(k, ROWS, qk + h.qk + h.y_row, h.qk_row, first, s.N, s.D);
    load_rows(v, ROWS, qkv + h.v, h.qkv_row, first, s.N, s.D);
    for (int at = threadIdx.x; at < ROWS * s.D; at += THREADS) dk[at] = dv[at] = 0;
    for (int i = 0; i < s.N; i += COLUMNS) {
        load_rows(q, COLUMNS, qk + h.qk, h.qk_row, i, s.N, s.D);
        load_rows(g, COLUMNS, dy + h.y, h.y_row, i, s.N, s.D);
        block_sync();
        products(a, k, q, s.D);
        products(t, v, g, s.D);
        for (int at = threadIdx.x; at < ROWS * COLUMNS; at += THREADS) {
            float weight = weight_of(r, i + at % COLUMNS, first + at / COLUMNS, h, s);
            a[at] *= weight;
            t[at] *= weight;
        }
        block_sync();
        accumulate(dv, a, g, s.D);
        accumulate(dk, t, q, s.D);
        block_sync();
    }
    store_rows(dqk + h.qk + h.y_row, h.qk_row, dk, first, s);
    store_rows(dqkv + h.v, h.qkv_row, dv, first, s);
}

/* dr of one entry and table: a thread has every THREADS-th query of the heads that read it. */
__global__ void __launch_bounds__(THREADS)
    weighted_table_kernel(float *dr, const real *dy, const real *qk, const real *qkv, Shape s) {
    SHARED(float, scratch); /* [THREADS / 32] */
    int t = blockIdx.x / s.tables, table = blockIdx.x % s.tables, heads = s.heads / s.tables;
    float sum = 0;
    for (size_t at = threadIdx.x; at < (size_t)heads * s.N; at += THREADS) {
        int i = (int)(at % s.N), j = offset_key(&s.offsets, t, i);
        if (j < 0) continue;
        Head h = head_at(s, at / s.N * s.tables + table);
        const real *q = qk + h.qk + i * h.qk_row, *k = qk + h.qk + h.y_row + j * h.qk_row;
        const real *g = dy + h.y + i * h.y_row, *v = qkv + h.v + j * h.qkv_row;
        float a = 0, b = 0;
        for (int c = 0; c < s.D; c++) {
            a += to_float(q[c]) * to_float(k[c]);
            b += to_float(g[c]) * to_float(v[c]);
        }
        sum += a * b;
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) dr[blockIdx.x] += sum;
}

/* == Launches ===================================================================================================== */

size_t weighted_attention_workspace(const WeightedAttention *, int) { return 0; }

void weighted_attention_forward(real *y, const real *qk, const real *qkv, const float *r,
                                const WeightedAttention *shape, int B) {
    Shape s = shape_of(shape, B);
    LAUNCH(weighted_queries_kernel, s.heads * s.blocks, THREADS, tiles_bytes(2, 2, 1, s.D), y, NULL, qk, qkv, r, false,
           s);
}

void weighted_attention_backward(real *dqkv, real *dqk, float *dr, const real *dy, const real *qk, const real *qkv,
                                 const float *r, const WeightedAttention *shape, int B) {
    Shape s = shape_of(shape, B);
    LAUNCH(weighted_queries_kernel, s.heads * s.blocks, THREADS, tiles_bytes(2, 2, 1, s.D), dqk, dy, qk, qkv, r, true,
           s);
    LAUNCH(weighted_keys_kernel, s.heads * s.blocks, THREADS, tiles_bytes(4, 2, 2, s.D), dqkv, dqk, dy, qk, qkv, r, s);
    LAUNCH(weighted_table_kernel, (unsigned)(offsets_count(&s.offsets) * s.tables), THREADS, WARPS * sizeof(float), dr,
           dy, qk, qkv, s);
}
