/* Softmax attention with padded keys, dropout of its weights and SMCA's modulation on the matrix units; the formulas
 * are those of kernels/softmax/masked_attention.c, the blocks those of softmax_attention.cu.
 *   forward   by queries
 *   backward  by queries: dq, the modulation's moments, delta;  by keys: dk, dv
 * Only keys without padding are read, and dropout is drawn where a weight is computed.  Scores include the factor
 * log2(e), so that the weights are powers of two. */
#include "kernels/linear/dropout.cuh"
#include "kernels/softmax/softmax_tiles.cuh"
#include "kernels/softmax/masked_attention.h"

enum { MOMENTS = 7, SUMS = 2 * MOMENTS + 1 }; /* moments of ds, moments of p, sum of ds */

struct Masked {
    int B, H, D, Q, h, w, q_row, kv_row;
    const int *cells;
    const float *centre; /* NULL without modulation */
    const real *z;
    int type;
    DropoutDraw drop;
    unsigned blocks; /* a head's */
    bool wide;
    float scale;     /* 1 / sqrt D */
};

/* One head of one image, and the number of its keys without padding. */
struct MaskedHead {
    int b, h, rows, columns, keys;
    size_t M;
};

DEVICE MaskedHead head_of(unsigned number, const Masked &s) {
    int b = (int)(number / s.H), rows = s.cells ? s.cells[2 * b] : s.h, columns = s.cells ? s.cells[2 * b + 1] : s.w;
    return {b, (int)(number % s.H), rows, columns, rows * columns, (size_t)s.H * s.D};
}

DEVICE size_t token_of(int key, const MaskedHead &head, const Masked &s) {
    int y = key / head.columns;
    return (size_t)y * s.w + (key - y * head.columns);
}

DEVICE const real *queries_of(const real *q, size_t row, const MaskedHead &head, const Masked &s) {
    return q + (size_t)head.b * s.Q * row + (size_t)head.h * s.D;
}

DEVICE const real *keys_of(const real *k, const MaskedHead &head, const Masked &s) {
    return k + (size_t)head.b * s.h * s.w * s.kv_row + (size_t)head.h * s.D;
}

/* == Modulation =================================================================================================== */

struct Blob {
    float x, y, weight[3], z[3]; /* G = -(weight[0] dx^2 + weight[1] dy^2 + weight[2] dx^2 dy^2) */
};

DEVICE Blob blob_of(int query, const MaskedHead &head, const Masked &s) {
    Blob blob = {0, 0, {0, 0, 0}, {1, 1, 0}};
    if (!s.centre || query >= s.Q) return blob;
    int scales = s.type - 1;
    size_t row = ((size_t)head.b * s.Q + query) * s.H + head.h;
    blob.x = s.centre[2 * row];
    blob.y = s.centre[2 * row + 1];
    if (scales > 0) blob.z[0] = blob.z[1] = to_float(s.z[row * scales]);
    if (scales > 1) blob.z[1] = to_float(s.z[row * scales + 1]);
    if (scales > 2) blob.z[2] = to_float(s.z[row * scales + 2]);
#pragma unroll
    for (int i = 0; i < 3; i++) blob.weight[i] = blob.z[i] * blob.z[i] / 8;
    return blob;
}

struct MaskedCell {
    float x, y;
};

DEVICE MaskedCell cell_of(int key, const MaskedHead &head) {
    int y = key / head.columns;
    return {(float)(key - y * head.columns), (float)y};
}

/* The score of a pair times log2(e), from q.k. */
DEVICE float pair_score(float product, const Blob &blob, MaskedCell cell, const Masked &s) {
    float score = product * s.scale;
    if (s.centre) {
        float dx = blob.x - cell.x, dy = blob.y - cell.y, xx = dx * dx, yy = dy * dy;
        score -= blob.weight[0] * xx + (blob.weight[2] * xx + blob.weight[1]) * yy;
    }
    return LOG2_E * score;
}

/* Adds p and ds of a pair to the sums: moments are those of ux, uy, ux^2, uy^2, ux uy^2, ux^2 uy, ux^2 uy^2. */
DEVICE void add_moments(float (&sum)[SUMS], float p, float ds, const Blob &blob, MaskedCell cell) {
    float ux = cell.x - blob.x, uy = cell.y - blob.y, xx = ux * ux, yy = uy * uy;
    float power[MOMENTS] = {ux, uy, xx, yy, ux * yy, xx * uy, xx * yy};
#pragma unroll
    for (int n = 0; n < MOMENTS; n++) {
        sum[n] += ds * power[n];
        sum[MOMENTS + n] += p * power[n];
    }
    sum[2 * MOMENTS] += ds;
}

/* One lane for each row. */
DEVICE void put_modulation(float *dcentre, real *dz, const float (&sum)[SUMS], const Blob &blob, int query,
                           const MaskedHead &head, const Masked &s) {
    int scales = s.type - 1;
    float moment[MOMENTS];
#pragma unroll
    for (int n = 0; n < MOMENTS; n++) moment[n] = sum[n] - sum[2 * MOMENTS] * sum[MOMENTS + n];
    size_t row = ((size_t)head.b * s.Q + query) * s.H + head.h;
    dcentre[2 * row] = 2 * (blob.weight[0] * moment[0] + blob.weight[2] * moment[4]);
    dcentre[2 * row + 1] = 2 * (blob.weight[1] * moment[1] + blob.weight[2] * moment[5]);
    float x = -blob.z[0] / 4 * moment[2], y = -blob.z[1] / 4 * moment[3];
    if (scales == 1) dz[row] = to_real(x + y);
    if (scales > 1) {
        dz[row * scales] = to_real(x);
        dz[row * scales + 1] = to_real(y);
    }
    if (scales > 2) dz[row * scales + 2] = to_real(-blob.z[2] / 4 * moment[6]);
}

/* == Dropout ====================================================================================================== */

DEVICE uint64_t element_of(int query, int key, const MaskedHead &head, const Masked &s) {
    size_t groups = ((size_t)s.h * s.w + DROPOUT_GROUP - 1) / DROPOUT_GROUP;
    return ((size_t)head.h * s.Q + query) * groups * DROPOUT_GROUP + key;
}

DEVICE float factor_of(int query, int key, const MaskedHead &head, const Masked &s) {
    if (!s.drop.on) return 1;
    return dropout_factor(s.drop, dropout_block(s.drop, head.b, element_of(query, key, head, s)), key / 16 % 8);
}

/* The factors of the streamed columns first.. of a row of scores: factor[n][j] is that of column 8 n + 2t + j. A lane's
 * columns have four positions within sixteen, and 64 columns are within 128, so four Philox blocks are enough for
 * all. */
template <int N>
DEVICE void row_factors(float (&factor)[N][2], int query, int first, const MaskedHead &head, const Masked &s) {
#pragma unroll
    for (int n = 0; n < N; n++) factor[n][0] = factor[n][1] = 1;
    if (!s.drop.on) return;
#pragma unroll
    for (int side = 0; side < 2; side++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            RngBlock block = {};
#pragma unroll
            for (int n = side; n < N; n += 2) {
                int key = first + n * TILE_N + fragment_c_column(j);
                if (n == side)
                    block = dropout_block(s.drop, head.b, element_of(query, key, head, s));
                factor[n][j] = dropout_factor(s.drop, block, key / 16 % 8);
            }
        }
}

/* == Rows ========================================================================================================= */

template <int ROWS, int W>
DEVICE void load_queries(real *tile, const real *head_rows, size_t row, int first, const Masked &s) {
    tile_load<ROWS, W, THREADS>(
        tile, tile_ld(W), [&](int i) { return head_rows + (size_t)(first + i) * row; }, s.Q - first, s.D, s.wide,
        (int)threadIdx.x);
}

template <int ROWS, int W>
DEVICE void load_keys(real *tile, const real *head_rows, int first, const MaskedHead &head, const Masked &s) {
    tile_load<ROWS, W, THREADS>(
        tile, tile_ld(W), [&](int i) { return head_rows + token_of(first + i, head, s) * s.kv_row; }, head.keys - first,
        s.D, s.wide, (int)threadIdx.x);
}

/* rows = scale times the warp's result, through its own rows of `tile`; row(i): index of its i-th row. */
template <int W, typename Row>
DEVICE void store_rows(Row row, real *tile, const FragmentC (&sum)[1][W / TILE_N], const float (&scale)[2], int count,
                       const Masked &s) {
    tile += warp_id() * TILE_M * tile_ld(W);
#pragma unroll
    for (int n = 0; n < W / TILE_N; n++) {
        FragmentC c = sum[0][n];
#pragma unroll
        for (int i = 0; i < 4; i++) c.x[i] *= scale[i / 2];
        tile_put(tile + n * TILE_N, tile_ld(W), c, 1);
    }
    warp_sync();
    tile_store<TILE_M, W, WARP>(row, tile, tile_ld(W), count - warp_id() * TILE_M, s.D, s.wide, lane_id());
}

/* == Forward ====================================================================================================== */

enum { OWNED = WARPS * TILE_M };

static constexpr size_t tiles_bytes(int W, int owned) {
    return shared_bytes(W, 1, owned) + 2 * STREAM * sizeof(MaskedCell);
}

template <int W>
__global__ void __launch_bounds__(THREADS)
    masked_forward_kernel(real *y, float *lse, const real *q, const real *k, const real *v, Masked s) {
    constexpr int LD = tile_ld(W), STAGE = STREAM * LD;
    SHARED(real, q_tile);                                             /* [OWNED,LD] */
    real *k_tile = q_tile + OWNED * LD, *v_tile = k_tile + 2 * STAGE; /* [2][STREAM,LD] each */
    MaskedCell *cells = reinterpret_cast<MaskedCell *>(v_tile + 2 * STAGE); /* [2][STREAM] */
    MaskedHead head = head_of(blockIdx.x / s.blocks, s);
    int first_row = (int)(blockIdx.x % s.blocks) * OWNED;
    k = keys_of(k, head, s);
    v = keys_of(v, head, s);
    load_queries<OWNED, W>(q_tile, queries_of(q, s.q_row, head, s), s.q_row, first_row, s);
    load_keys<STREAM, W>(k_tile, k, 0, head, s);
    load_keys<STREAM, W>(v_tile, v, 0, head, s);
    copy_commit();
    FragmentA a[1][W / TILE_K];
    FragmentC sum[1][W / TILE_N];
    float m[2] = {-INFINITY, -INFINITY}, l[2] = {0, 0};
    int row[2] = {owned_row<1>(first_row, 0, 0), owned_row<1>(first_row, 0, 1)};
    Blob blob[2] = {blob_of(row[0], head, s), blob_of(row[1], head, s)};
    clear<W, 1>(sum);
    for (int first = 0, stage = 0; first < head.keys; first += STREAM, stage ^= 1) {
        if (threadIdx.x < STREAM) cells[stage * STREAM + threadIdx.x] = cell_of(first + (int)threadIdx.x, head);
        copy_wait<0>();
        block_sync();
        if (first == 0) load_owned<W, 1>(a, q_tile);
        if (first + STREAM < head.keys) {
            load_keys<STREAM, W>(k_tile + (stage ^ 1) * STAGE, k, first + STREAM, head, s);
            load_keys<STREAM, W>(v_tile + (stage ^ 1) * STAGE, v, first + STREAM, head, s);
        }
        copy_commit();
        FragmentC score[STREAM / TILE_N][1];
#pragma unroll
        for (int j = 0; j < STREAM / TILE_K; j++)
            product<W, 1>(score + 2 * j, a, k_tile + stage * STAGE + j * TILE_K * LD);
#pragma unroll
        for (int n = 0; n < STREAM / TILE_N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                score[n][0].x[i] = pair_score(score[n][0].x[i], blob[i / 2],
                                              cells[stage * STREAM + n * TILE_N + fragment_c_column(i)], s);
        if (first + STREAM > head.keys) mask_keys<1>(score, head.keys - first);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float seen = m[half], total = 0, factor[STREAM / TILE_N][2];
#pragma unroll
            for (int n = 0; n < STREAM / TILE_N; n++)
                seen = fmaxf(seen, fmaxf(score[n][0].x[2 * half], score[n][0].x[2 * half + 1]));
            seen = row_max(seen);
            float shrink = fast_exp2(m[half] - seen);
            m[half] = seen;
            row_factors(factor, row[half], first, head, s);
#pragma unroll
            for (int n = 0; n < STREAM / TILE_N; n++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    float p = fast_exp2(score[n][0].x[2 * half + j] - seen);
                    total += p;
                    score[n][0].x[2 * half + j] = p * factor[n][j];
                }
            l[half] = l[half] * shrink + total;
#pragma unroll
            for (int n = 0; n < W / TILE_N; n++) {
                sum[0][n].x[2 * half] *= shrink;
                sum[0][n].x[2 * half + 1] *= shrink;
            }
        }
#pragma unroll
        for (int j = 0; j < STREAM / TILE_K; j++)
            accumulate<W, 1>(sum, score + 2 * j, v_tile + stage * STAGE + j * TILE_K * LD);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float total = row_sum(l[half]);
        if (row[half] < s.Q && lane_id() % 4 == 0)
            lse[((size_t)head.b * s.H + head.h) * s.Q + row[half]] = m[half] / LOG2_E + logf(total);
        l[half] = 1 / total;
    }
    real *to = y + ((size_t)head.b * s.Q + first_row + warp_id() * TILE_M) * head.M + (size_t)head.h * s.D;
    store_rows<W>([=](int i) { return to + i * head.M; }, q_tile, sum, l, s.Q - first_row, s);
}

/* == Backward ===================================================================================================== */

/* dq, the modulation's gradients, and delta [B,H,Q] for the other kernel. */
template <int W>
__global__ void __launch_bounds__(THREADS)
    masked_backward_queries_kernel(real *dq, float *dcentre, real *dz, float *delta, const real *dy, const real *y,
                                   const float *lse, const real *q, const real *k, const real *v, Masked s) {
    constexpr int LD = tile_ld(W), CHUNK = chunk_rows(W), STAGE = CHUNK * LD;
    SHARED(real, q_tile);                                               /* [OWNED,LD] */
    real *dy_tile = q_tile + OWNED * LD, *k_tile = dy_tile + OWNED * LD; /* [OWNED,LD], [2][CHUNK,LD] */
    real *v_tile = k_tile + 2 * STAGE;                                  /* [2][CHUNK,LD] */
    MaskedCell *cells = reinterpret_cast<MaskedCell *>(v_tile + 2 * STAGE); /* [2][CHUNK] */
    MaskedHead head = head_of(blockIdx.x / s.blocks, s);
    int first_row = (int)(blockIdx.x % s.blocks) * OWNED;
    k = keys_of(k, head, s);
    v = keys_of(v, head, s);
    const real *dy_rows = queries_of(dy, head.M, head, s), *y_rows = queries_of(y, head.M, head, s);
    load_queries<OWNED, W>(q_tile, queries_of(q, s.q_row, head, s), s.q_row, first_row, s);
    load_queries<OWNED, W>(dy_tile, dy_rows, head.M, first_row, s);
    load_keys<CHUNK, W>(k_tile, k, 0, head, s);
    load_keys<CHUNK, W>(v_tile, v, 0, head, s);
    copy_commit();
    FragmentA qa[1][W / TILE_K], dya[1][W / TILE_K];
    FragmentC sum[1][W / TILE_N];
    int row[2] = {owned_row<1>(first_row, 0, 0), owned_row<1>(first_row, 0, 1)};
    Blob blob[2] = {blob_of(row[0], head, s), blob_of(row[1], head, s)};
    float shift[2], row_delta[2], moments[2][SUMS] = {};
    size_t statistics = ((size_t)head.b * s.H + head.h) * s.Q;
    clear<W, 1>(sum);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float dot = 0;
        bool there = row[half] < s.Q;
        for (int c = lane_id() % 4; there && c < s.D; c += 4)
            dot += to_float(dy_rows[row[half] * head.M + c]) * to_float(y_rows[row[half] * head.M + c]);
        row_delta[half] = row_sum(dot);
        shift[half] = there ? LOG2_E * lse[statistics + row[half]] : INFINITY;
        if (there && lane_id() % 4 == 0) delta[statistics + row[half]] = row_delta[half];
    }
    for (int first = 0, stage = 0; first < head.keys; first += CHUNK, stage ^= 1) {
        if (threadIdx.x < CHUNK) cells[stage * CHUNK + threadIdx.x] = cell_of(first + (int)threadIdx.x, head);
        copy_wait<0>();
        block_sync();
        if (first == 0) {
            load_owned<W, 1>(qa, q_tile);
            load_owned<W, 1>(dya, dy_tile);
        }
        if (first + CHUNK < head.keys) {
            load_keys<CHUNK, W>(k_tile + (stage ^ 1) * STAGE, k, first + CHUNK, head, s);
            load_keys<CHUNK, W>(v_tile + (stage ^ 1) * STAGE, v, first + CHUNK, head, s);
        }
        copy_commit();
        float factor[2][CHUNK / TILE_N][2];
        row_factors(factor[0], row[0], first, head, s);
        row_factors(factor[1], row[1], first, head, s);
#pragma unroll
        for (int j = 0; j < CHUNK / TILE_K; j++) {
            const real *k_rows = k_tile + stage * STAGE + j * TILE_K * LD,
                       *v_rows = v_tile + stage * STAGE + j * TILE_K * LD;
            FragmentC score[2][1], t[2][1];
            product<W, 1>(score, qa, k_rows);
            product<W, 1>(t, dya, v_rows);
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int column = j * TILE_K + n * TILE_N + fragment_c_column(i), half = i / 2;
                    MaskedCell cell = cells[stage * CHUNK + column];
                    float p = fast_exp2(pair_score(score[n][0].x[i], blob[half], cell, s) - shift[half]);
                    float ds = p * (t[n][0].x[i] * factor[half][2 * j + n][i % 2] - row_delta[half]);
                    if (first + column >= head.keys) p = ds = 0;
                    score[n][0].x[i] = ds;
                    if (s.centre) add_moments(moments[half], p, ds, blob[half], cell);
                }
            accumulate<W, 1>(sum, score, k_rows);
        }
    }
    float scale[2] = {s.scale, s.scale};
    real *to = dq + ((size_t)head.b * s.Q + first_row + warp_id() * TILE_M) * s.q_row + (size_t)head.h * s.D;
    store_rows<W>([=](int i) { return to + (size_t)i * s.q_row; }, q_tile, sum, scale, s.Q - first_row, s);
    if (!s.centre) return;
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int i = 0; i < SUMS; i++) moments[half][i] = row_sum(moments[half][i]);
        if (row[half] < s.Q && lane_id() % 4 == 0)
            put_modulation(dcentre, dz, moments[half], blob[half], row[half], head, s);
    }
}

/* dk and dv of the keys without padding. */
template <int W>
__global__ void __launch_bounds__(THREADS)
    masked_backward_keys_kernel(real *dk, real *dv, const float *delta, const real *dy, const float *lse, const real *q,
                                const real *k, const real *v, Masked s) {
    constexpr int LD = tile_ld(W), STAGE = STREAM * LD;
    SHARED(real, k_tile);                                                 /* [OWNED,LD] */
    real *v_tile = k_tile + OWNED * LD, *q_tile = v_tile + OWNED * LD;    /* [OWNED,LD], [STREAM,LD] */
    real *dy_tile = q_tile + STAGE;                                       /* [STREAM,LD] */
    Blob *blobs = reinterpret_cast<Blob *>(dy_tile + STAGE);              /* [STREAM] */
    float *shift = reinterpret_cast<float *>(blobs + STREAM), *query_delta = shift + STREAM; /* [STREAM] each */
    MaskedHead head = head_of(blockIdx.x / s.blocks, s);
    int first_key = (int)(blockIdx.x % s.blocks) * OWNED;
    if (first_key >= head.keys) return;
    load_keys<OWNED, W>(k_tile, keys_of(k, head, s), first_key, head, s);
    load_keys<OWNED, W>(v_tile, keys_of(v, head, s), first_key, head, s);
    copy_commit();
    FragmentA ka[1][W / TILE_K], va[1][W / TILE_K];
    FragmentC dk_sum[1][W / TILE_N], dv_sum[1][W / TILE_N];
    int key[2] = {owned_row<1>(first_key, 0, 0), owned_row<1>(first_key, 0, 1)};
    MaskedCell cell[2] = {cell_of(key[0], head), cell_of(key[1], head)};
    size_t statistics = ((size_t)head.b * s.H + head.h) * s.Q;
    clear<W, 1>(dk_sum);
    clear<W, 1>(dv_sum);
    for (int first = 0; first < s.Q; first += STREAM) {
        block_sync();
        load_queries<STREAM, W>(q_tile, queries_of(q, s.q_row, head, s), s.q_row, first, s);
        load_queries<STREAM, W>(dy_tile, queries_of(dy, head.M, head, s), head.M, first, s);
        copy_commit();
        if (threadIdx.x < STREAM) {
            int row = first + (int)threadIdx.x;
            blobs[threadIdx.x] = blob_of(row, head, s);
            shift[threadIdx.x] = row < s.Q ? LOG2_E * lse[statistics + row] : INFINITY; /* beyond the last p is 0 */
            query_delta[threadIdx.x] = row < s.Q ? delta[statistics + row] : 0;
        }
        copy_wait<0>();
        block_sync();
        if (first == 0) {
            load_owned<W, 1>(ka, k_tile);
            load_owned<W, 1>(va, v_tile);
        }
        for (int j = 0; j < STREAM && first + j < s.Q; j += TILE_K) {
            FragmentC p[2][1], t[2][1];
            product<W, 1>(p, ka, q_tile + j * LD);
            product<W, 1>(t, va, dy_tile + j * LD);
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int query = j + n * TILE_N + fragment_c_column(i), half = i / 2;
                    float weight = fast_exp2(pair_score(p[n][0].x[i], blobs[query], cell[half], s) - shift[query]);
                    float factor = factor_of(first + query, key[half], head, s);
                    p[n][0].x[i] = weight * factor;
                    t[n][0].x[i] = weight * (t[n][0].x[i] * factor - query_delta[query]);
                }
            accumulate<W, 1>(dv_sum, p, dy_tile + j * LD);
            accumulate<W, 1>(dk_sum, t, q_tile + j * LD);
        }
    }
    float scale[2] = {s.scale, s.scale}, one[2] = {1, 1};
    int mine = first_key + warp_id() * TILE_M;
    real *to_k = dk + (keys_of(k, head, s) - k), *to_v = dv + (keys_of(v, head, s) - v);
    store_rows<W>([&](int i) { return to_k + token_of(mine + i, head, s) * s.kv_row; }, k_tile, dk_sum, scale,
                  head.keys - first_key, s);
    store_rows<W>([&](int i) { return to_v + token_of(mine + i, head, s) * s.kv_row; }, v_tile, dv_sum, one,
                  head.keys - first_key, s);
}

/* One thread for each number of a key; padding becomes zero. */
__global__ void __launch_bounds__(THREADS) clear_padding_kernel(real *dk, real *dv, size_t n, Masked s) {
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x, M = (size_t)s.H * s.D;
    if (at >= n) return;
    size_t token = at / M, b = token / ((size_t)s.h * s.w);
    int x = (int)(token % s.w), y = (int)(token / s.w % s.h);
    if (y < s.cells[2 * b] && x < s.cells[2 * b + 1]) return;
    dk[token * s.kv_row + at % M] = dv[token * s.kv_row + at % M] = to_real(0);
}

/* == Heads wider than 128 ========================================================================================= */

DEVICE float wide_score(const real *q, const real *k, const Blob &blob, int key, const MaskedHead &head,
                        const Masked &s) {
    return pair_score(warp_dot(q, k + token_of(key, head, s) * s.kv_row, s.D), blob, cell_of(key, head), s);
}

/* One warp for each query. */
__global__ void __launch_bounds__(THREADS)
    masked_forward_wide_kernel(real *y, float *lse, const real *q, const real *k, const real *v, Masked s) {
    MaskedHead head = head_of(blockIdx.x / s.blocks, s);
    int row = (int)(blockIdx.x % s.blocks) * WARPS + warp_id();
    if (row >= s.Q) return;
    Blob blob = blob_of(row, head, s);
    q = queries_of(q, s.q_row, head, s) + (size_t)row * s.q_row;
    k = keys_of(k, head, s);
    v = keys_of(v, head, s);
    float m = -INFINITY, l = 0;
    for (int j = 0; j < head.keys; j++) {
        float score = wide_score(q, k, blob, j, head, s), seen = fmaxf(m, score);
        l = l * fast_exp2(m - seen) + fast_exp2(score - seen);
        m = seen;
    }
    if (lane_id() == 0) lse[((size_t)head.b * s.H + head.h) * s.Q + row] = m / LOG2_E + logf(l);
    for (int first = 0; first < s.D; first += STRETCH) {
        float sum[LANE_COLUMNS] = {};
        for (int j = 0; j < head.keys; j++) {
            float p = fast_exp2(wide_score(q, k, blob, j, head, s) - m) * factor_of(row, j, head, s);
            add_row(sum, p, v + token_of(j, head, s) * s.kv_row, first, s.D);
        }
        put_row(y + ((size_t)head.b * s.Q + row) * head.M + (size_t)head.h * s.D, sum, 1 / l, first, s.D);
    }
}

__global__ void __launch_bounds__(THREADS)
    masked_backward_queries_wide_kernel(real *dq, float *dcentre, real *dz, float *delta, const real *dy, const real *y,
                                        const float *lse, const real *q, const real *k, const real *v, Masked s) {
    MaskedHead head = head_of(blockIdx.x / s.blocks, s);
    int row = (int)(blockIdx.x % s.blocks) * WARPS + warp_id();
    if (row >= s.Q) return;
    Blob blob = blob_of(row, head, s);
    size_t at = ((size_t)head.b * s.H + head.h) * s.Q + row;
    q = queries_of(q, s.q_row, head, s) + (size_t)row * s.q_row;
    dy = queries_of(dy, head.M, head, s) + row * head.M;
    k = keys_of(k, head, s);
    v = keys_of(v, head, s);
    float own = warp_dot(dy, queries_of(y, head.M, head, s) + row * head.M, s.D), shift = LOG2_E * lse[at];
    float moments[SUMS] = {};
    if (lane_id() == 0) delta[at] = own;
    for (int first = 0; first < s.D; first += STRETCH) {
        float sum[LANE_COLUMNS] = {};
        for (int j = 0; j < head.keys; j++) {
            size_t token = token_of(j, head, s) * s.kv_row;
            float p = fast_exp2(wide_score(q, k, blob, j, head, s) - shift);
            float ds = p * (warp_dot(dy, v + token, s.D) * factor_of(row, j, head, s) - own);
            add_row(sum, ds, k + token, first, s.D);
            if (first == 0) add_moments(moments, p, ds, blob, cell_of(j, head));
        }
        put_row(dq + ((size_t)head.b * s.Q + row) * s.q_row + (size_t)head.h * s.D, sum, s.scale, first, s.D);
    }
    if (s.centre && lane_id() == 0) put_modulation(dcentre, dz, moments, blob, row, head, s);
}

/* One warp for each key. */
__global__ void __launch_bounds__(THREADS)
    masked_backward_keys_wide_kernel(real *dk, real *dv, const float *delta, const real *dy, const float *lse,
                                     const real *q, const real *k, const real *v, Masked s) {
    MaskedHead head = head_of(blockIdx.x / s.blocks, s);
    int key = (int)(blockIdx.x % s.blocks) * WARPS + warp_id();
    if (key >= head.keys) return;
    size_t at = ((size_t)head.b * s.H + head.h) * s.Q, token = token_of(key, head, s) * s.kv_row;
    const real *k_rows = keys_of(k, head, s), *v_row = keys_of(v, head, s) + token;
    q = queries_of(q, s.q_row, head, s);
    dy = queries_of(dy, head.M, head, s);
    for (int first = 0; first < s.D; first += STRETCH) {
        float dk_sum[LANE_COLUMNS] = {}, dv_sum[LANE_COLUMNS] = {};
        for (int i = 0; i < s.Q; i++) {
            const real *q_row = q + (size_t)i * s.q_row, *dy_row = dy + i * head.M;
            float p = fast_exp2(wide_score(q_row, k_rows, blob_of(i, head, s), key, head, s) - LOG2_E * lse[at + i]);
            float factor = factor_of(i, key, head, s);
            add_row(dv_sum, p * factor, dy_row, first, s.D);
            add_row(dk_sum, p * (warp_dot(dy_row, v_row, s.D) * factor - delta[at + i]), q_row, first, s.D);
        }
        put_row(dk + (k_rows - k) + token, dk_sum, s.scale, first, s.D);
        put_row(dv + (v_row - v), dv_sum, 1, first, s.D);
    }
}

/* == Launches ===================================================================================================== */

static Masked masked(const MaskedAttention *a, const Modulation *m, bool wide) {
    return {a->B, a->H, a->D, a->Q, a->grid.rows, a->grid.columns, a->q_row, a->kv_row, a->cells,
            m ? m->centre : NULL, m ? m->z : NULL, a->scale_type, dropout_draw(&a->dropout), 0, wide,
            1 / sqrtf((float)a->D)};
}

static unsigned blocks_of(Masked &s, int rows, int each) {
    s.blocks = (unsigned)ceil_div(rows, each);
    return (unsigned)((size_t)s.B * s.H * s.blocks);
}

/* Calls launch(W) with the padded width for D. */
template <typename Launch>
static void with_width(int D, Launch launch) {
    if (D <= 16) launch(Constant<16>());
    else if (D <= 32) launch(Constant<32>());
    else if (D <= 64) launch(Constant<64>());
    else launch(Constant<128>());
}

/* Wider heads use the plain kernels. */
static int widest() {
    return widest_of([](int W) {
        size_t forward = tiles_bytes(W, 1), backward = tiles_bytes(W, 2);
        return forward > backward ? forward : backward;
    });
}

size_t masked_attention_workspace(const MaskedAttention *shape) {
    return (size_t)shape->B * shape->H * shape->Q * sizeof(float);
}

/* Rows of W activations may be read 16 bytes at a time. */
static bool rows_wide(const MaskedAttention *a, bool addresses) {
    return addresses && a->q_row % WIDE == 0 && a->kv_row % WIDE == 0;
}

void masked_attention_forward(real *y, float *lse, const MaskedInputs *in, const Modulation *m,
                              const MaskedAttention *shape) {
    const real *q = in->q, *k = in->k, *v = in->v;
    Masked s = masked(shape, m, rows_wide(shape, is_wide(shape->D, y, q, k, v)));
    if (s.D > widest()) {
        unsigned grid = blocks_of(s, s.Q, WARPS);
        LAUNCH(masked_forward_wide_kernel, grid, THREADS, 0, y, lse, q, k, v, s);
        return;
    }
    with_width(s.D, [&](auto width) {
        constexpr int W = width.value;
        unsigned grid = blocks_of(s, s.Q, OWNED);
        LAUNCH((masked_forward_kernel<W>), grid, THREADS, tiles_bytes(W, 1), y, lse, q, k, v, s);
    });
}

void masked_attention_backward(const MaskedGradients *d, const ModulationGradients *dm, const real *dy, const real *y,
                               const float *lse, const MaskedInputs *in, const Modulation *m,
                               const MaskedAttention *shape) {
    const real *q = in->q, *k = in->k, *v = in->v;
    real *dq = d->q, *dk = d->k, *dv = d->v;
    Masked s = masked(shape, m, rows_wide(shape, is_wide(shape->D, dq, dk, dv, dy, q, k, v)));
    float *delta = static_cast<float *>(kernels_workspace(masked_attention_workspace(shape)));
    float *dcentre = dm ? dm->centre : NULL;
    real *dz = dm ? dm->z : NULL;
    size_t n = (size_t)s.B * s.h * s.w * s.H * s.D;
    int N = s.h * s.w;
    if (s.cells) LAUNCH(clear_padding_kernel, (unsigned)ceil_div(n, THREADS), THREADS, 0, dk, dv, n, s);
    if (s.D > widest()) {
        unsigned grid = blocks_of(s, s.Q, WARPS);
        LAUNCH(masked_backward_queries_wide_kernel, grid, THREADS, 0, dq, dcentre, dz, delta, dy, y, lse, q, k, v, s);
        grid = blocks_of(s, N, WARPS);
        LAUNCH(masked_backward_keys_wide_kernel, grid, THREADS, 0, dk, dv, delta, dy, lse, q, k, v, s);
        return;
    }
    with_width(s.D, [&](auto width) {
        constexpr int W = width.value;
        constexpr size_t queries_bytes = tiles_bytes(W, 2);
        constexpr size_t keys_bytes = (2 * OWNED + 2 * STREAM) * tile_ld(W) * sizeof(real) +
                                      STREAM * (sizeof(Blob) + 2 * sizeof(float));
        unsigned grid = blocks_of(s, s.Q, OWNED);
        LAUNCH((masked_backward_queries_kernel<W>), grid, THREADS, queries_bytes, dq, dcentre, dz, delta, dy, y, lse, q,
               k, v, s);
        grid = blocks_of(s, N, OWNED);
        LAUNCH((masked_backward_keys_kernel<W>), grid, THREADS, keys_bytes, dk, dv, delta, dy, lse, q, k, v, s);
    });
}
