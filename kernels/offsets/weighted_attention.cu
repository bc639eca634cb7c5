/* Attention with multiplicative position weights; the formulas are those of kernels/offsets/weighted_attention.c.  The
 * tokens of a block (pair_tiles.cuh) are queries for y and dq^, keys for dk^, dv and the table's gradient: a key and 32
 * queries read 32 different entries, so that each warp can add to its own table in shared memory.  If the tables are
 * too large for that, the table's gradient has a block for each entry. */
#include "kernels/softmax/pair_tiles.cuh"
#include "kernels/offsets/offsets.h"
#include "kernels/offsets/weighted_attention.h"
#include "kernels/tokens/grid.h"

enum { MOST_ENTRIES = 1024 };

struct WeightedShape {
    Offsets offsets;
    int N, H, D, tables, heads;
    int entries;     /* that a block sums, or 0 */
    bool wide;
    int rows;        /* of a block */
    unsigned blocks; /* a head's */
};

static WeightedShape shape_of(const WeightedAttention *a, int B, int rows) {
    int N = grid_tokens(a->offsets.grid);
    return {a->offsets, N, a->H, a->D, a->tables, B * a->H, 0, false, rows, (unsigned)ceil_div(N, rows)};
}

/* The offsets of a head in each tensor, the distances from one token to the next, and its table. */
struct WeightedHead {
    size_t qk, v, y, qk_row, qkv_row, y_row;
    int table;
};

DEVICE WeightedHead head_at(const WeightedShape &s, size_t head) {
    size_t M = (size_t)s.H * s.D, token = head / s.H * s.N, c = head % s.H * s.D;
    return {token * 2 * M + c, token * 3 * M + 2 * M + c, token * M + c, 2 * M, 3 * M, M,
            s.tables > 1 ? (int)(head % s.H) : 0};
}

DEVICE float weight_of(const float *r, int i, int j, const WeightedHead &h, const WeightedShape &s) {
    if (i >= s.N || j >= s.N) return 0;
    int t = offset_of(&s.offsets, i, j);
    return t < 0 ? 0 : r[(size_t)t * s.tables + h.table];
}

DEVICE void store_rows(real *head, size_t row, const float *sum, int first, const WeightedShape &s) {
    for_pair_rows(s.rows, first, s.N, s.D,
                  [&](int i, int c) { head[(first + i) * row + c] = to_real(sum[i * pair_ld(s.D) + c]); });
}

/* out rows of a block's queries: p = (left right^T) r, out = p other.  Forward left = q^, right = k^, other = v; for
 * dq^ left = dy, right = v, other = k^. */
__global__ void __launch_bounds__(THREADS, 2)
    weighted_queries_kernel(real *out, const real *dy, const real *qk, const real *qkv, const float *r, bool backward,
                            WeightedShape s) {
    SHARED(real, left);                                                  /* [rows,D] */
    int ld = pair_ld(s.D);
    real *right = left + s.rows * ld, *other = right + COLUMNS * ld;     /* [COLUMNS,D] */
    float *sum = reinterpret_cast<float *>(other + COLUMNS * ld);        /* [rows,D] */
    float *p = sum + s.rows * ld;                                        /* [rows,COLUMNS] */
    int first = (int)(blockIdx.x % s.blocks) * s.rows;
    WeightedHead h = head_at(s, blockIdx.x / s.blocks);
    const real *k = qk + h.qk + h.y_row, *v = qkv + h.v;
    pair_load(left, s.rows, backward ? dy + h.y : qk + h.qk, backward ? h.y_row : h.qk_row, first, s.N, s.D, s.wide);
    pair_zero(sum, s.rows, s.D);
    for (int j = 0; j < s.N; j += COLUMNS) {
        pair_load(right, COLUMNS, backward ? v : k, backward ? h.qkv_row : h.qk_row, j, s.N, s.D, s.wide);
        pair_load(other, COLUMNS, backward ? k : v, backward ? h.qk_row : h.qkv_row, j, s.N, s.D, s.wide);
        pair_wait();
        block_sync();
        pair_products(p, left, right, s.rows, s.D);
        block_sync();
        for (int at = threadIdx.x; at < s.rows * COLUMNS; at += THREADS)
            p[at / COLUMNS * PAIR_LD + at % COLUMNS] *=
                weight_of(r, first + at / COLUMNS, j + at % COLUMNS, h, s);
        block_sync();
        pair_accumulate(sum, p, other, s.rows, s.D);
        block_sync();
    }
    store_rows(out + (backward ? h.qk : h.y), backward ? h.qk_row : h.y_row, sum, first, s);
}

/* table [entries] += a t of the warp's keys and 32 queries, one key after the other. */
DEVICE void add_entries(float *table, const float *a, const float *t, int first, int i, const WeightedShape &s) {
    for (int row = warp_id(); row < s.rows && first + row < s.N; row += WARPS) {
        int query = i + lane_id(), entry = query < s.N ? offset_of(&s.offsets, query, first + row) : -1;
        if (entry >= 0) table[entry] += a[row * PAIR_LD + lane_id()] * t[row * PAIR_LD + lane_id()];
        warp_sync();
    }
}

/* dk^ and dv of a block's keys, and its share of dr: parts [blocks of a table's heads][T,tables]. */
__global__ void __launch_bounds__(THREADS, 2)
    weighted_keys_kernel(real *dqkv, real *dqk, float *parts, const real *dy, const real *qk, const real *qkv,
                         const float *r, WeightedShape s) {
    SHARED(real, k);                                                                   /* [rows,D] */
    int ld = pair_ld(s.D);
    real *v = k + s.rows * ld, *q = v + s.rows * ld, *g = q + COLUMNS * ld;            /* [rows,D], [COLUMNS,D] */
    float *dk = reinterpret_cast<float *>(g + COLUMNS * ld), *dv = dk + s.rows * ld;   /* [rows,D] */
    float *a = dv + s.rows * ld, *t = a + s.rows * PAIR_LD;                            /* [rows,COLUMNS] */
    float *tables = t + s.rows * PAIR_LD;                                              /* [WARPS,entries] */
    size_t head = blockIdx.x / s.blocks, block = blockIdx.x % s.blocks;
    int first = (int)block * s.rows;
    WeightedHead h = head_at(s, head);
    pair_load(k, s.rows, qk + h.qk + h.y_row, h.qk_row, first, s.N, s.D, s.wide);
    pair_load(v, s.rows, qkv + h.v, h.qkv_row, first, s.N, s.D, s.wide);
    pair_zero(dk, s.rows, s.D);
    pair_zero(dv, s.rows, s.D);
    for (int at = threadIdx.x; at < WARPS * s.entries; at += THREADS) tables[at] = 0;
    for (int i = 0; i < s.N; i += COLUMNS) {
        pair_load(q, COLUMNS, qk + h.qk, h.qk_row, i, s.N, s.D, s.wide);
        pair_load(g, COLUMNS, dy + h.y, h.y_row, i, s.N, s.D, s.wide);
        pair_wait();
        block_sync();
        pair_products(a, k, q, s.rows, s.D);
        pair_products(t, v, g, s.rows, s.D);
        block_sync();
        if (s.entries) {
            add_entries(tables + warp_id() * s.entries, a, t, first, i, s);
            block_sync();
        }
        for (int at = threadIdx.x; at < s.rows * COLUMNS; at += THREADS) {
            int place = at / COLUMNS * PAIR_LD + at % COLUMNS;
            float weight = weight_of(r, i + at % COLUMNS, first + at / COLUMNS, h, s);
            a[place] *= weight;
            t[place] *= weight;
        }
        block_sync();
        pair_accumulate(dv, a, g, s.rows, s.D);
        pair_accumulate(dk, t, q, s.rows, s.D);
        block_sync();
    }
    store_rows(dqk + h.qk + h.y_row, h.qk_row, dk, first, s);
    store_rows(dqkv + h.v, h.qkv_row, dv, first, s);
    parts += (head / s.tables * s.blocks + block) * s.entries * s.tables + h.table;
    for (int entry = threadIdx.x; entry < s.entries; entry += THREADS) {
        float sum = 0;
        for (int w = 0; w < WARPS; w++) sum += tables[w * s.entries + entry];
        parts[(size_t)entry * s.tables] = sum;
    }
}

/* dr of one entry and table: a thread has every THREADS-th query of the heads that read it. */
__global__ void __launch_bounds__(THREADS)
    weighted_table_kernel(float *dr, const real *dy, const real *qk, const real *qkv, WeightedShape s) {
    SHARED(float, scratch); /* [THREADS / 32] */
    int t = blockIdx.x / s.tables, table = blockIdx.x % s.tables, heads = s.heads / s.tables;
    float sum = 0;
    for (size_t at = threadIdx.x; at < (size_t)heads * s.N; at += THREADS) {
        int i = (int)(at % s.N), j = offset_key(&s.offsets, t, i);
        if (j < 0) continue;
        WeightedHead h = head_at(s, at / s.N * s.tables + table);
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

enum { OWN = 2, OTHERS = 2, SUMS = 2, PAIRS = 2 }; /* tiles of the keys' kernel */

static size_t tables_bytes(int entries) { return (size_t)WARPS * entries * sizeof(float); }

static WeightedShape shape_of_keys(const WeightedAttention *shape, int B) {
    int D = shape->D, entries = offsets_count(&shape->offsets);
    size_t least = pair_bytes(OWN, OTHERS, SUMS, PAIRS, TILE_M, D);
    if (entries > MOST_ENTRIES || least + tables_bytes(entries) > launch_shared_most()) entries = 0;
    WeightedShape s = shape_of(shape, B, pair_rows(OWN, OTHERS, SUMS, PAIRS, D, tables_bytes(entries)));
    s.entries = entries;
    return s;
}

size_t weighted_attention_workspace(const WeightedAttention *shape, int B) {
    WeightedShape s = shape_of_keys(shape, B);
    return (size_t)s.heads * s.blocks * s.entries * sizeof(float);
}

static void queries(real *out, const real *dy, const real *qk, const real *qkv, const float *r, bool backward,
                    const WeightedAttention *shape, int B) {
    int D = shape->D, rows = pair_rows(1, 2, 1, 1, D, 0);
    WeightedShape s = shape_of(shape, B, rows);
    s.wide = is_wide(D, dy, qk, qkv);
    LAUNCH(weighted_queries_kernel, s.heads * s.blocks, THREADS, pair_bytes(1, 2, 1, 1, rows, D), out, dy, qk, qkv, r,
           backward, s);
}

void weighted_attention_forward(real *y, const real *qk, const real *qkv, const float *r,
                                const WeightedAttention *shape, int B) {
    queries(y, NULL, qk, qkv, r, false, shape, B);
}

void weighted_attention_backward(real *dqkv, real *dqk, float *dr, const real *dy, const real *qk, const real *qkv,
                                 const float *r, const WeightedAttention *shape, int B) {
    WeightedShape s = shape_of_keys(shape, B);
    s.wide = is_wide(s.D, dy, qk, qkv);
    float *parts = static_cast<float *>(kernels_workspace(weighted_attention_workspace(shape, B)));
    queries(dqk, dy, qk, qkv, r, true, shape, B);
    LAUNCH(weighted_keys_kernel, s.heads * s.blocks, THREADS,
           pair_bytes(OWN, OTHERS, SUMS, PAIRS, s.rows, s.D) + tables_bytes(s.entries), dqkv, dqk, parts, dy, qk, qkv, r, s);
    if (s.entries)
        add_parts(dr, NULL, parts, s.heads / s.tables * (int)s.blocks, s.entries * s.tables);
    else
        LAUNCH(weighted_table_kernel, (unsigned)(offsets_count(&s.offsets) * s.tables), THREADS, WARPS * sizeof(float),
               dr, dy, qk, qkv, s);
}
