/* Softmax attention on the matrix units; the formulas are those of kernels/softmax/softmax_attention.c.
 *   forward   a block owns 64 or 128 queries and streams the keys, with the running maximum and sum of Dao et
 *             al. 2022; the scores become the left factor of p v without leaving the registers
 *   backward  two kernels of the same shape, so that no sum crosses blocks and every run gives the same bits:
 *             by queries   delta = dy.y,  s = q k^T,  t = dy v^T,  ds = p (t - delta),  dq = ds k / sqrt D
 *             by keys      s^T = k q^T,  t^T = v dy^T,  dv = p^T dy,  dk = ds^T q / sqrt D
 *             which is seven products where one kernel with atomic sums needs five, or one that has all keys of a
 *             head in a block (softmax_head.cu)
 *   saves     lse [B,H,N].
 *
 * Exponentials are powers of two: the factor log2(e) / sqrt D is applied when the score is shifted.  Head widths are
 * padded with zeros to W = 16, 32, 64 or 128 in shared memory; wider heads use the plain kernels at the end.
 *
 * The same kernels are used with a relative position bias and for sparse sets of keys.  For a sparse set, a head's
 * tokens are permuted so that tokens that attend to each other are close; a block reads the range of positions that its
 * rows need and masks the pairs in it that are not in the set.  The union of two sets needs two launches: the second
 * one continues the running softmax from the first one's y and lse, with a sum of 1. */
#include "kernels/softmax/softmax_tiles.cuh"
#include "kernels/softmax/attention_shape.h"
#include "kernels/softmax/softmax_attention.h"
#include "kernels/tokens/grid.h"


/* delta of as many heads at a time as have this number of queries, so that a group takes far longer than its two
 * launches. */
static const size_t DELTA_ROWS = (size_t)1 << 22;

enum Mode { PLAIN, BIASED, SPARSE };
enum SoftmaxSet {
    SET_NEAR,
    SET_COLUMN,
    SET_BLOCK,
    SET_SUMMARY
}; /* kernels/softmax/softmax_attention.c defines them */

typedef struct {
    int N, H, D;
    int heads, skipped; /* heads of an image in this launch, and heads before them */
    int first_head;     /* first of all images' `heads` in this launch */
    unsigned blocks;    /* a head's */
    bool wide;
    float scale;        /* 1 / sqrt D */

    RelativeBias bias; /* BIASED */
    const float *table;

    SoftmaxSet set;        /* SPARSE */
    int stride, summaries; /* SET_SUMMARY: number of tokens to which all attend, in the first positions */
    bool rest;             /* continue from the first set's results, without its pairs */
    SparsePattern pattern; /* for the kernels of wide heads, which have no sets */
} SoftmaxShape;

/* == What a query sees ============================================================================================ */

/* The token at a position: columns one after the other, or summaries before the others; otherwise in order. */
template <Mode mode>
DEVICE int token_at(int position, const SoftmaxShape &s) {
    if (mode != SPARSE || s.set == SET_NEAR || s.set == SET_BLOCK) return position;
    int l = s.stride, c = s.pattern.summary;
    if (s.set == SET_SUMMARY) {
        int other = position - s.summaries;
        if (other < 0) return position / c * l + l - c + position % c;
        return c < l ? other / (l - c) * l + other % (l - c) : s.N;
    }
    int whole = s.N / l, longer = s.N % l, in_longer = longer * (whole + 1); /* the first columns have one more token */
    if (position < in_longer) return position / (whole + 1) + position % (whole + 1) * l;
    position -= in_longer;
    return longer + position / whole + position % whole * l;
}

DEVICE int group_of(int token, const SoftmaxShape &s) {
    return s.set == SET_COLUMN ? token % s.stride : token / s.stride;
}

struct SoftmaxRange {
    int first, last;
};

/* Positions that pair with some of rows first .. first + rows - 1; `keys`: the rows are keys and the range queries. */
template <Mode mode>
DEVICE SoftmaxRange range_of(int first, int rows, bool keys, const SoftmaxShape &s) {
    if (mode != SPARSE) return {0, s.N};
    int end = (first + rows < s.N ? first + rows : s.N) - 1, l = s.stride;
    if (s.set == SET_NEAR) return {first > l ? first - l : 0, end + l + 1 < s.N ? end + l + 1 : s.N};
    if (s.set == SET_BLOCK) return {first / l * l, end / l * l + l < s.N ? end / l * l + l : s.N};
    if (s.set == SET_SUMMARY) return {0, !keys ? s.summaries : first < s.summaries ? s.N : 0};
    int whole = s.N / l, longer = s.N % l;
    int g = group_of(token_at<mode>(first, s), s), h = group_of(token_at<mode>(end, s), s) + 1;
    return {g * whole + (g < longer ? g : longer), h * whole + (h < longer ? h : longer)};
}

/* Data of a token for its scores.  BIASED: `token` is its place in a table [.,2Wg-1], in which frames are 2 Hg - 1
 * lines apart, or -1.  SPARSE: its token (-1 for keys that no query sees) and its column or block. */
struct Spot {
    int token, group;
};

template <Mode mode>
DEVICE Spot spot_of(int position, bool key, const SoftmaxShape &s) {
    if (mode == PLAIN) return {0, 0};
    if (mode == BIASED) {
        int n = position - s.bias.prefix, Wg = s.bias.grid.columns;
        int line = n / Wg, apart = s.bias.grid.frames > 1 ? line / s.bias.grid.rows * (s.bias.grid.rows - 1) : 0;
        return {n < 0 || position >= s.N ? -1 : (line + apart) * (2 * Wg - 1) + n % Wg, 0};
    }
    int token = token_at<mode>(position, s);
    bool unseen = key && (position >= s.N || (s.set == SET_SUMMARY && position >= s.summaries));
    return {unseen ? -1 : token, group_of(token, s)};
}

DEVICE bool is_near(int a, int b, int stride) { return a - b <= stride && b - a <= stride; }

/* The number of values in a table; the offset of a token to itself is in the middle. */
static __host__ __device__ __forceinline__ int table_numbers(const Grid &g) {
    return (2 * g.frames - 1) * (2 * g.rows - 1) * (2 * g.columns - 1);
}

/* The score of a pair, from q.k; without the factor of the exponential.  table: the head's. */
template <Mode mode>
DEVICE float pair_score(float score, Spot query, Spot key, const float *table, const SoftmaxShape &s) {
    if (mode == BIASED && query.token >= 0 && key.token >= 0) {
        int centre = table_numbers(s.bias.grid) / 2;
        return score + table[key.token - query.token + centre] / s.scale;
    }
    if (mode == SPARSE) {
        bool together = query.group == key.group, seen = true;
        if (s.set == SET_NEAR) seen = is_near(query.token, key.token, s.stride);
        else if (s.set == SET_SUMMARY) seen = !s.rest || !together;
        else seen = together && !(s.rest && is_near(query.token, key.token, s.stride));
        return seen && key.token >= 0 ? score : -INFINITY;
    }
    return score;
}

static size_t table_size(const RelativeBias *b) { return (size_t)table_numbers(b->grid); }
static int bias_tokens(const RelativeBias *b) { return b->prefix + grid_tokens(b->grid); }

/* The data of a block: rows first.. of one head. */
typedef struct {
    size_t qkv, y, lse; /* element of the head's first row in each */
    size_t in_launch;   /* the head's first row among those of this launch */
    size_t M;
    int first, head;
} SoftmaxPlace;

template <Mode mode>
DEVICE const float *table_of(SoftmaxPlace at, const SoftmaxShape &s) {
    if (mode != BIASED || s.bias.tables == 1) return s.table;
    return s.table + (size_t)at.head * table_numbers(s.bias.grid);
}

DEVICE SoftmaxPlace place_of(size_t head_in_launch, int first, SoftmaxShape s) {
    size_t head = s.first_head + head_in_launch, b = head / s.heads, h = s.skipped + head % s.heads;
    size_t M = (size_t)s.H * s.D;
    return {b * s.N * 3 * M + h * s.D, b * s.N * M + h * s.D, (b * s.H + h) * s.N, head_in_launch * s.N, M, first,
            (int)h};
}

DEVICE SoftmaxPlace place_of_block(int rows, SoftmaxShape s) {
    return place_of(blockIdx.x / s.blocks, (int)(blockIdx.x % s.blocks) * rows, s);
}

/* tile = the rows at positions first.. of a head, `stride` apart. */
template <int ROWS, int W, Mode mode>
DEVICE void load_rows(real *tile, const real *head, size_t stride, int first, const SoftmaxShape &s) {
    tile_load<ROWS, W, THREADS>(
        tile, tile_ld(W), [&](int i) { return head + token_at<mode>(first + i, s) * stride; }, s.N - first, s.D, s.wide,
        (int)threadIdx.x);
}

/* rows = scale times the warp's result, through its own rows of `tile`; `add`: rows +=. */
template <int W, int T, Mode mode>
DEVICE void store_owned(real *head, size_t stride, real *tile, const FragmentC (&sum)[T][W / TILE_N],
                        const float (&scale)[T][2], int first, bool add, const SoftmaxShape &s) {
    constexpr int LD = tile_ld(W), ROWS = TILE_M * T;
    int row = warp_id() * ROWS;
    tile += row * LD;
    first += row;
#pragma unroll
    for (int r = 0; r < T; r++)
#pragma unroll
        for (int n = 0; n < W / TILE_N; n++) {
            FragmentC c = sum[r][n];
#pragma unroll
            for (int i = 0; i < 4; i++) c.x[i] *= scale[r][i / 2];
            tile_put(tile + r * TILE_M * LD + n * TILE_N, LD, c, 1);
        }
    warp_sync();
    if (mode == SPARSE && add) {
        for (int at = lane_id(); at < ROWS * W; at += WARP) {
            int i = at / W, j = at % W;
            real *to = head + token_at<mode>(first + i, s) * stride + j;
            if (first + i < s.N && j < s.D) *to = to_real(to_float(*to) + to_float(tile[i * LD + j]));
        }
        return;
    }
    tile_store<ROWS, W, WARP>([&](int i) { return head + token_at<mode>(first + i, s) * stride; }, tile, LD,
                              s.N - first, s.D, s.wide, lane_id());
}

template <int T, Mode mode>
DEVICE void owned_spots(Spot (&spot)[T][2], int first, bool keys, const SoftmaxShape &s) {
#pragma unroll
    for (int r = 0; r < T; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) spot[r][half] = spot_of<mode>(owned_row<T>(first, r, half), keys, s);
}

/* == Forward ====================================================================================================== */

/* One step of the running softmax for a row tile: the scores become p, and m, l and y are updated.  m is the same in
 * the four lanes that share a row, l is this lane's share of the sum. */
template <int W, int T, Mode mode>
DEVICE void softmax_step(FragmentC (*score)[T], FragmentC (&y)[W / TILE_N], float (&m)[2], float (&l)[2], int r,
                         float scale) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float seen = m[half];
#pragma unroll
        for (int n = 0; n < STREAM / TILE_N; n++)
            seen = fmaxf(seen, fmaxf(score[n][r].x[2 * half], score[n][r].x[2 * half + 1]));
        seen = row_max(seen);
        float shrink = fast_exp2((m[half] - seen) * scale), shift = seen * scale, sum = 0;
        if (mode == SPARSE && !(seen > -INFINITY)) shrink = 1, shift = 0; /* no key seen yet, or NaN */
        m[half] = seen;
#pragma unroll
        for (int n = 0; n < STREAM / TILE_N; n++)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                score[n][r].x[i] = fast_exp2(score[n][r].x[i] * scale - shift);
                sum += score[n][r].x[i];
            }
        l[half] = l[half] * shrink + sum;
#pragma unroll
        for (int n = 0; n < W / TILE_N; n++) {
            y[n].x[2 * half] *= shrink;
            y[n].x[2 * half + 1] *= shrink;
        }
    }
}

/* The state to continue from: lse as maximum, y unchanged, and a sum of 1 in the first of the lanes that share a
 * row. */
template <int W, int T, Mode mode>
DEVICE void load_state(FragmentC (&sum)[T][W / TILE_N], float (&m)[T][2], float (&l)[T][2], const real *y,
                       const float *lse, SoftmaxPlace at, const SoftmaxShape &s) {
#pragma unroll
    for (int r = 0; r < T; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = owned_row<T>(at.first, r, half);
            if (row >= s.N) continue;
            size_t token = token_at<mode>(row, s);
            m[r][half] = lse[at.lse + token] / s.scale;
            l[r][half] = lane_id() % 4 == 0;
#pragma unroll
            for (int n = 0; n < W / TILE_N; n++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    int column = n * TILE_N + fragment_c_column(i);
                    if (column < s.D) sum[r][n].x[i] = to_float(y[at.y + token * at.M + column]);
                }
        }
}

template <int W, int T, Mode mode>
__global__ void __launch_bounds__(THREADS)
    softmax_forward_kernel(real *y, float *lse, const real *qkv, SoftmaxShape s) {
    constexpr int LD = tile_ld(W), ROWS = owned_rows(T), STAGE = STREAM * LD;
    SHARED(real, q_tile);                                            /* [ROWS,LD] */
    real *k_tile = q_tile + ROWS * LD, *v_tile = k_tile + 2 * STAGE; /* [2][STREAM,LD] each */
    Spot *spots = reinterpret_cast<Spot *>(v_tile + 2 * STAGE);      /* [2][STREAM] of the keys, if not PLAIN */
    SoftmaxPlace at = place_of_block(ROWS, s);
    SoftmaxRange range = range_of<mode>(at.first, ROWS, false, s);
    const float *table = table_of<mode>(at, s);
    const real *q = qkv + at.qkv, *k = q + at.M, *v = k + at.M;
    load_rows<ROWS, W, mode>(q_tile, q, 3 * at.M, at.first, s);
    load_rows<STREAM, W, mode>(k_tile, k, 3 * at.M, range.first, s);
    load_rows<STREAM, W, mode>(v_tile, v, 3 * at.M, range.first, s);
    copy_commit();

    FragmentA a[T][W / TILE_K];
    FragmentC sum[T][W / TILE_N];
    float m[T][2], l[T][2];
    Spot owned[T][2];
    owned_spots<T, mode>(owned, at.first, false, s);
    clear<W, T>(sum);
#pragma unroll
    for (int r = 0; r < T; r++) {
        m[r][0] = m[r][1] = -INFINITY;
        l[r][0] = l[r][1] = 0;
    }
    if (mode == SPARSE && s.rest) load_state<W, T, mode>(sum, m, l, y, lse, at, s);
    const bool idle = owns_none<T>(at.first, s.N);
    for (int first = range.first, stage = 0; first < range.last; first += STREAM, stage ^= 1) {
        if (mode != PLAIN && threadIdx.x < STREAM)
            spots[stage * STREAM + threadIdx.x] = spot_of<mode>(first + (int)threadIdx.x, true, s);
        copy_wait<0>();
        block_sync();
        if (first == range.first) load_owned<W, T>(a, q_tile);
        if (first + STREAM < range.last) {
            load_rows<STREAM, W, mode>(k_tile + (stage ^ 1) * STAGE, k, 3 * at.M, first + STREAM, s);
            load_rows<STREAM, W, mode>(v_tile + (stage ^ 1) * STAGE, v, 3 * at.M, first + STREAM, s);
        }
        copy_commit();
        if (idle) continue;
        FragmentC score[STREAM / TILE_N][T];
#pragma unroll
        for (int j = 0; j < STREAM / TILE_K; j++) { /* keys past the last one are masked */
            if (first + j * TILE_K < s.N) product<W, T>(score + 2 * j, a, k_tile + stage * STAGE + j * TILE_K * LD);
            else no_product<T>(score + 2 * j);
        }
        if (mode != PLAIN) {
#pragma unroll
            for (int n = 0; n < STREAM / TILE_N; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    Spot key = spots[stage * STREAM + n * TILE_N + fragment_c_column(i)];
#pragma unroll
                    for (int r = 0; r < T; r++)
                        score[n][r].x[i] = pair_score<mode>(score[n][r].x[i], owned[r][i / 2], key, table, s);
                }
        }
        if (first + STREAM > s.N) mask_keys<T>(score, s.N - first);
#pragma unroll
        for (int r = 0; r < T; r++) softmax_step<W, T, mode>(score, sum[r], m[r], l[r], r, LOG2_E * s.scale);
#pragma unroll
        for (int j = 0; j < STREAM / TILE_K; j++)
            if (first + j * TILE_K < s.N)
                accumulate<W, T>(sum, score + 2 * j, v_tile + stage * STAGE + j * TILE_K * LD);
    }
    if (idle) return;

#pragma unroll
    for (int r = 0; r < T; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = row_sum(l[r][half]);
            int row = owned_row<T>(at.first, r, half);
            if (row < s.N && lane_id() % 4 == 0)
                lse[at.lse + token_at<mode>(row, s)] = m[r][half] * s.scale + logf(total);
            l[r][half] = 1 / total;
        }
    store_owned<W, T, mode>(y + at.y, at.M, q_tile, sum, l, at.first, false, s);
}

/* == Backward ===================================================================================================== */

/* dq, and delta [heads of the launch, N] for the other kernels. */
template <int W, int T, Mode mode>
__global__ void __launch_bounds__(THREADS)
    softmax_backward_queries_kernel(real *dqkv, float *delta, const real *dy, const real *y, const float *lse,
                                    const real *qkv, SoftmaxShape s) {
    constexpr int LD = tile_ld(W), ROWS = owned_rows(T), CHUNK = chunk_rows(W), STAGE = CHUNK * LD;
    SHARED(real, q_tile);                                              /* [ROWS,LD] */
    real *dy_tile = q_tile + ROWS * LD, *k_tile = dy_tile + ROWS * LD; /* [ROWS,LD], [2][CHUNK,LD] */
    real *v_tile = k_tile + 2 * STAGE;                               /* [2][CHUNK,LD] */
    Spot *spots = reinterpret_cast<Spot *>(v_tile + 2 * STAGE);      /* [2][CHUNK] of the keys, if not PLAIN */
    SoftmaxPlace at = place_of_block(ROWS, s);
    SoftmaxRange range = range_of<mode>(at.first, ROWS, false, s);
    const float *table = table_of<mode>(at, s);
    const real *q = qkv + at.qkv, *k = q + at.M, *v = k + at.M;
    auto fetch_spots = [&](int first, int stage) {
        if (mode != PLAIN && threadIdx.x < CHUNK)
            spots[stage * CHUNK + threadIdx.x] = spot_of<mode>(first + (int)threadIdx.x, true, s);
    };
    load_rows<ROWS, W, mode>(q_tile, q, 3 * at.M, at.first, s);
    load_rows<ROWS, W, mode>(dy_tile, dy + at.y, at.M, at.first, s);
    load_rows<CHUNK, W, mode>(k_tile, k, 3 * at.M, range.first, s);
    load_rows<CHUNK, W, mode>(v_tile, v, 3 * at.M, range.first, s);
    copy_commit();
    fetch_spots(range.first, 0);
    copy_wait<0>();
    block_sync();

    FragmentA qa[T][W / TILE_K], dya[T][W / TILE_K];
    FragmentC dq[T][W / TILE_N];
    Spot owned[T][2];
    float shift[T][2], row_delta[T][2];
    const bool idle = owns_none<T>(at.first, s.N);
    owned_spots<T, mode>(owned, at.first, false, s);
    clear<W, T>(dq);
    load_owned<W, T>(qa, q_tile);
    load_owned<W, T>(dya, dy_tile);
#pragma unroll
    for (int r = 0; r < T; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = owned_row<T>(at.first, r, half), tile_row = row - at.first;
            size_t token = token_at<mode>(row, s);
            const real *y_row = y + at.y + token * at.M;
            float dot = 0;
            if (row < s.N)
                for (int c = lane_id() % 4; c < s.D; c += 4)
                    dot += to_float(dy_tile[tile_row * LD + c]) * to_float(y_row[c]);
            row_delta[r][half] = row_sum(dot);
            shift[r][half] = row < s.N ? LOG2_E * lse[at.lse + token] : 0;
            if (row < s.N && lane_id() % 4 == 0) delta[at.in_launch + token] = row_delta[r][half];
        }

    for (int first = range.first, stage = 0; first < range.last; first += CHUNK, stage ^= 1) {
        if (first > range.first) {
            fetch_spots(first, stage);
            copy_wait<0>();
            block_sync();
        }
        if (first + CHUNK < range.last) {
            load_rows<CHUNK, W, mode>(k_tile + (stage ^ 1) * STAGE, k, 3 * at.M, first + CHUNK, s);
            load_rows<CHUNK, W, mode>(v_tile + (stage ^ 1) * STAGE, v, 3 * at.M, first + CHUNK, s);
        }
        copy_commit();
        if (idle) continue;
        for (int j = 0; j < CHUNK && first + j < range.last; j += TILE_K) {
            const real *k_rows = k_tile + stage * STAGE + j * LD, *v_rows = v_tile + stage * STAGE + j * LD;
            FragmentC score[2][T], t[2][T];
            product<W, T>(score, qa, k_rows);
            product<W, T>(t, dya, v_rows);
            int keys = s.N - first - j;
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int column = n * TILE_N + fragment_c_column(i);
                    Spot key = mode == PLAIN ? Spot{0, 0} : spots[stage * CHUNK + j + column];
#pragma unroll
                    for (int r = 0; r < T; r++) {
                        float x = pair_score<mode>(score[n][r].x[i], owned[r][i / 2], key, table, s);
                        float p = fast_exp2(x * (LOG2_E * s.scale) - shift[r][i / 2]);
                        p = column < keys ? p : 0;
                        score[n][r].x[i] = p * (t[n][r].x[i] - row_delta[r][i / 2]);
                    }
                }
            accumulate<W, T>(dq, score, k_rows);
        }
    }
    if (idle) return;
    fill<T>(shift, s.scale);
    store_owned<W, T, mode>(dqkv + at.qkv, 3 * at.M, q_tile, dq, shift, at.first, s.rest, s);
}

/* Data of query first + thread % CHUNK in addition to q and dy: its lse for powers of two, or its delta.  A query
 * beyond the last one has p = 0. */
template <int CHUNK, Mode mode>
DEVICE float query_statistic(const float *lse, const float *delta, int first, const SoftmaxShape &s) {
    int row = first + (int)threadIdx.x % CHUNK;
    if (threadIdx.x < CHUNK) return row < s.N ? LOG2_E * lse[token_at<mode>(row, s)] : INFINITY;
    return row < s.N ? delta[token_at<mode>(row, s)] : 0;
}

/* dk and dv. */
template <int W, int T, Mode mode>
__global__ void __launch_bounds__(THREADS)
    softmax_backward_keys_kernel(real *dqkv, const float *delta, const real *dy, const float *lse, const real *qkv,
                                 SoftmaxShape s) {
    static_assert(THREADS >= 2 * chunk_rows(W), "a thread holds one statistic of one query");
    constexpr int LD = tile_ld(W), ROWS = owned_rows(T), CHUNK = chunk_rows(W), STAGE = CHUNK * LD;
    SHARED(real, k_tile);                                               /* [ROWS,LD] */
    real *v_tile = k_tile + ROWS * LD, *q_tile = v_tile + ROWS * LD;    /* [ROWS,LD], [2][CHUNK,LD] */
    real *dy_tile = q_tile + 2 * STAGE;                                 /* [2][CHUNK,LD] */
    float *statistics = reinterpret_cast<float *>(dy_tile + 2 * STAGE); /* [2][lse, delta][CHUNK] */
    Spot *spots = reinterpret_cast<Spot *>(statistics + 2 * THREADS);   /* [2][CHUNK] of the queries, if not PLAIN */
    SoftmaxPlace at = place_of_block(ROWS, s);
    SoftmaxRange range = range_of<mode>(at.first, ROWS, true, s);
    const float *table = table_of<mode>(at, s);
    const real *q = qkv + at.qkv, *k = q + at.M, *v = k + at.M;
    load_rows<ROWS, W, mode>(k_tile, k, 3 * at.M, at.first, s);
    load_rows<ROWS, W, mode>(v_tile, v, 3 * at.M, at.first, s);
    load_rows<CHUNK, W, mode>(q_tile, q, 3 * at.M, range.first, s);
    load_rows<CHUNK, W, mode>(dy_tile, dy + at.y, at.M, range.first, s);
    copy_commit();
    float held = query_statistic<CHUNK, mode>(lse + at.lse, delta + at.in_launch, range.first, s);

    FragmentA ka[T][W / TILE_K], va[T][W / TILE_K];
    FragmentC dk[T][W / TILE_N], dv[T][W / TILE_N];
    Spot owned[T][2];
    const bool idle = owns_none<T>(at.first, s.N);
    owned_spots<T, mode>(owned, at.first, true, s);
    clear<W, T>(dk);
    clear<W, T>(dv);
    for (int first = range.first, stage = 0; first < range.last; first += CHUNK, stage ^= 1) {
        float *shift = statistics + stage * THREADS, *query_delta = shift + CHUNK;
        shift[threadIdx.x] = held;
        if (mode != PLAIN && threadIdx.x < CHUNK)
            spots[stage * CHUNK + threadIdx.x] = spot_of<mode>(first + (int)threadIdx.x, false, s);
        copy_wait<0>();
        block_sync();
        if (first == range.first) {
            load_owned<W, T>(ka, k_tile);
            load_owned<W, T>(va, v_tile);
        }
        if (first + CHUNK < range.last) {
            load_rows<CHUNK, W, mode>(q_tile + (stage ^ 1) * STAGE, q, 3 * at.M, first + CHUNK, s);
            load_rows<CHUNK, W, mode>(dy_tile + (stage ^ 1) * STAGE, dy + at.y, at.M, first + CHUNK, s);
            held = query_statistic<CHUNK, mode>(lse + at.lse, delta + at.in_launch, first + CHUNK, s);
        }
        copy_commit();
        if (idle) continue;
        for (int j = 0; j < CHUNK && first + j < range.last; j += TILE_K) {
            const real *q_rows = q_tile + stage * STAGE + j * LD, *dy_rows = dy_tile + stage * STAGE + j * LD;
            FragmentC p[2][T], t[2][T];
            product<W, T>(p, ka, q_rows);
            product<W, T>(t, va, dy_rows);
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int query = j + n * TILE_N + fragment_c_column(i);
                    Spot spot = mode == PLAIN ? Spot{0, 0} : spots[stage * CHUNK + query];
#pragma unroll
                    for (int r = 0; r < T; r++) {
                        float x = pair_score<mode>(p[n][r].x[i], spot, owned[r][i / 2], table, s);
                        p[n][r].x[i] = fast_exp2(x * (LOG2_E * s.scale) - shift[query]);
                        t[n][r].x[i] = p[n][r].x[i] * (t[n][r].x[i] - query_delta[query]);
                    }
                }
            accumulate<W, T>(dv, p, dy_rows);
            accumulate<W, T>(dk, t, q_rows);
        }
    }
    if (mode == SPARSE) { /* this range may be empty */
        copy_wait<0>();
        block_sync();
    }
    if (idle) return;
    float factor[T][2];
    fill<T>(factor, s.scale);
    store_owned<W, T, mode>(dqkv + at.qkv + at.M, 3 * at.M, k_tile, dk, factor, at.first, s.rest, s);
    fill<T>(factor, 1);
    store_owned<W, T, mode>(dqkv + at.qkv + 2 * at.M, 3 * at.M, v_tile, dv, factor, at.first, s.rest, s);
}

/* == Gradient of the bias ========================================================================================= */

/* A block sums one row of one table, (dt, dy) = blockIdx.x's, over its share of the heads: for every line of queries
 * the line of keys that is dy below, dt frames later.  The scores are computed again, 16 x 16 at a time, and ds is
 * summed pair by pair in the registers of a warp; only the sum over all lines and heads is folded to offsets. parts
 * [chunks][tables,2T-1,2Hg-1,2Wg-1]. */
template <int W>
__global__ void __launch_bounds__(THREADS)
    bias_backward_kernel(float *parts, const float *delta, const real *dy, const float *lse, const real *qkv,
                         unsigned launched, unsigned chunks, SoftmaxShape s) {
    constexpr int LD = tile_ld(W), TILE = TILE_M * LD;
    const int Hg = s.bias.grid.rows, Wg = s.bias.grid.columns, prefix = s.bias.prefix, tables = s.bias.tables;
    SHARED(real, tiles); /* [WARPS][q, dy, k, v][TILE_M,LD] */
    float *folded = reinterpret_cast<float *>(tiles + WARPS * 4 * TILE); /* [WARPS][TILE_M,TILE_M] */
    float *row = folded + WARPS * TILE_M * TILE_M;                       /* [2Wg-1] */
    const int frames = s.bias.grid.frames;
    int across = 2 * Wg - 1, down = (2 * frames - 1) * (2 * Hg - 1), r = (int)(blockIdx.x % down);
    int dt = r / (2 * Hg - 1) - (frames - 1), dy_lines = r % (2 * Hg - 1) - (Hg - 1);
    int t = (int)(blockIdx.x / down % tables);
    unsigned chunk = blockIdx.x / down / tables;
    int top = dy_lines < 0 ? -dy_lines : 0, each = Hg - (dy_lines < 0 ? -dy_lines : dy_lines);
    int first_frame = dt < 0 ? -dt : 0, lines = each * (frames - (dt < 0 ? -dt : dt));
    /* The heads of this table in the launch, every chunks-th of them. */
    unsigned step = tables > 1 ? (unsigned)s.H : 1, begin = (unsigned)((t + s.H - s.first_head % s.H) % s.H);
    if (tables == 1) begin = 0;
    real *q_tile = tiles + warp_id() * 4 * TILE, *dy_tile = q_tile + TILE;
    real *k_tile = dy_tile + TILE, *v_tile = k_tile + TILE;
    for (int x = (int)threadIdx.x; x < across; x += THREADS) row[x] = 0;
    for (int xq = 0; xq < Wg; xq += TILE_M)
        for (int xk = 0; xk < Wg; xk += TILE_M) {
            FragmentC sum[2];
            fragment_zero(sum[0]);
            fragment_zero(sum[1]);
            for (unsigned head = begin + chunk * step; head < launched; head += chunks * step)
                for (int line = warp_id(); line < lines; line += WARPS) {
                    SoftmaxPlace at = place_of(head, 0, s);
                    const float *table = table_of<BIASED>(at, s);
                    int from = (first_frame + line / each) * Hg + top + line % each;
                    int query = prefix + from * Wg + xq, key = prefix + (from + dt * Hg + dy_lines) * Wg + xk;
                    const real *q = qkv + at.qkv + query * 3 * at.M, *k = qkv + at.qkv + at.M + key * 3 * at.M;
                    const real *g = dy + at.y + query * at.M;
                    auto load = [&](real *tile, const real *from, size_t stride, int rows) {
                        tile_load<TILE_M, W, WARP>(
                            tile, LD, [=](int i) { return from + i * stride; }, rows, s.D, s.wide, lane_id());
                    };
                    warp_sync();
                    load(q_tile, q, 3 * at.M, Wg - xq);
                    load(dy_tile, g, at.M, Wg - xq);
                    load(k_tile, k, 3 * at.M, Wg - xk);
                    load(v_tile, k + at.M, 3 * at.M, Wg - xk);
                    copy_commit();
                    copy_wait<0>();
                    warp_sync();
                    FragmentC score[2], value[2];
#pragma unroll
                    for (int n = 0; n < 2; n++) {
                        fragment_zero(score[n]);
                        fragment_zero(value[n]);
                    }
#pragma unroll
                    for (int c = 0; c < W; c += TILE_K) {
                        FragmentA qa = load_a(q_tile + c, LD), ga = load_a(dy_tile + c, LD);
                        FragmentB kb[2], vb[2];
                        load_b_transposed(kb, k_tile + c, LD);
                        load_b_transposed(vb, v_tile + c, LD);
#pragma unroll
                        for (int n = 0; n < 2; n++) {
                            mma(score[n], qa, kb[n]);
                            mma(value[n], ga, vb[n]);
                        }
                    }
#pragma unroll
                    for (int n = 0; n < 2; n++)
#pragma unroll
                        for (int i = 0; i < 4; i++) {
                            int y = fragment_c_row(i), x = n * TILE_N + fragment_c_column(i);
                            if (xq + y >= Wg || xk + x >= Wg) continue;
                            float bias = table[r * across + xk + x - xq - y + Wg - 1];
                            float p = fast_exp2(LOG2_E * (score[n].x[i] * s.scale + bias - lse[at.lse + query + y]));
                            sum[n].x[i] += p * (value[n].x[i] - delta[at.in_launch + query + y]);
                        }
                }
            block_sync();
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    folded[(warp_id() * TILE_M + fragment_c_row(i)) * TILE_M + n * TILE_N + fragment_c_column(i)] =
                        sum[n].x[i];
            block_sync();
            for (int offset = (int)threadIdx.x; offset < 2 * TILE_M - 1; offset += THREADS) {
                float total = 0;
                int x = offset - (TILE_M - 1); /* column of the key minus that of the query, within the tile */
                for (int w = 0; w < WARPS; w++)
                    for (int y = x < 0 ? -x : 0; y < TILE_M && y + x < TILE_M; y++)
                        total += folded[(w * TILE_M + y) * TILE_M + y + x];
                int to = xk - xq + x + Wg - 1;
                if (to >= 0 && to < across) row[to] += total;
            }
        }
    block_sync();
    parts += ((size_t)chunk * tables + t) * down * across + (size_t)r * across;
    for (int x = (int)threadIdx.x; x < across; x += THREADS) parts[x] = row[x];
}

/* == Heads wider than 128 ========================================================================================= */

/* True if the query attends to the key in the whole pattern, not only in the launch's set. */
template <Mode mode>
DEVICE bool sees(int head, int query, int key, const SoftmaxShape &s) {
    if (mode != SPARSE) return true;
    const SparsePattern &p = s.pattern;
    int l = p.stride;
    bool first = p.fixed ? query / l == key / l : is_near(query, key, l);
    bool second = p.fixed ? key % l >= l - p.summary : query % l == key % l;
    return (head < p.first && first) || (head >= s.H - p.second && second);
}

/* The scaled score of a pair, or minus infinity if the query does not attend to the key. */
template <Mode mode>
DEVICE float wide_score(const real *q, const real *k, int query, int key, SoftmaxPlace at, const SoftmaxShape &s) {
    if (!sees<mode>(at.head, query, key, s)) return -INFINITY;
    float score = warp_dot(q, k, s.D);
    if (mode == BIASED)
        score = pair_score<mode>(score, spot_of<mode>(query, false, s), spot_of<mode>(key, true, s),
                                 table_of<mode>(at, s), s);
    return s.scale * score;
}

template <Mode mode>
__global__ void __launch_bounds__(THREADS)
    softmax_forward_wide_kernel(real *y, float *lse, const real *qkv, SoftmaxShape s) {
    SoftmaxPlace at = place_of(blockIdx.x / s.blocks, (int)(blockIdx.x % s.blocks) * WARPS + warp_id(), s);
    if (at.first >= s.N) return;
    const real *q = qkv + at.qkv + at.first * 3 * at.M, *k = qkv + at.qkv + at.M, *v = k + at.M;
    float m = -INFINITY, l = 0;
    for (int j = 0; j < s.N; j++) {
        float score = wide_score<mode>(q, k + j * 3 * at.M, at.first, j, at, s), seen = fmaxf(m, score);
        if (mode == SPARSE && score == -INFINITY) continue;
        l = l * fast_exp2(LOG2_E * (m - seen)) + fast_exp2(LOG2_E * (score - seen));
        m = seen;
    }
    if (lane_id() == 0) lse[at.lse + at.first] = m + logf(l);
    for (int first = 0; first < s.D; first += STRETCH) {
        float sum[LANE_COLUMNS] = {};
        for (int j = 0; j < s.N; j++) {
            float score = wide_score<mode>(q, k + j * 3 * at.M, at.first, j, at, s);
            if (mode == SPARSE && score == -INFINITY) continue;
            add_row(sum, fast_exp2(LOG2_E * (score - m)), v + j * 3 * at.M, first, s.D);
        }
        put_row(y + at.y + at.first * at.M, sum, 1 / l, first, s.D);
    }
}

template <Mode mode>
__global__ void __launch_bounds__(THREADS)
    softmax_backward_queries_wide_kernel(real *dqkv, float *delta, const real *dy, const real *y, const float *lse,
                                         const real *qkv, SoftmaxShape s) {
    SoftmaxPlace at = place_of(blockIdx.x / s.blocks, (int)(blockIdx.x % s.blocks) * WARPS + warp_id(), s);
    if (at.first >= s.N) return;
    const real *q = qkv + at.qkv + at.first * 3 * at.M, *k = qkv + at.qkv + at.M, *v = k + at.M;
    const real *dy_row = dy + at.y + at.first * at.M;
    float row_delta = warp_dot(dy_row, y + at.y + at.first * at.M, s.D), row_lse = lse[at.lse + at.first];
    if (lane_id() == 0) delta[at.in_launch + at.first] = row_delta;
    for (int first = 0; first < s.D; first += STRETCH) {
        float sum[LANE_COLUMNS] = {};
        for (int j = 0; j < s.N; j++) {
            float score = wide_score<mode>(q, k + j * 3 * at.M, at.first, j, at, s);
            if (mode == SPARSE && score == -INFINITY) continue;
            float p = fast_exp2(LOG2_E * (score - row_lse));
            add_row(sum, p * (warp_dot(dy_row, v + j * 3 * at.M, s.D) - row_delta), k + j * 3 * at.M, first, s.D);
        }
        put_row(dqkv + at.qkv + at.first * 3 * at.M, sum, s.scale, first, s.D);
    }
}

template <Mode mode>
__global__ void __launch_bounds__(THREADS)
    softmax_backward_keys_wide_kernel(real *dqkv, const float *delta, const real *dy, const float *lse, const real *qkv,
                                      SoftmaxShape s) {
    SoftmaxPlace at = place_of(blockIdx.x / s.blocks, (int)(blockIdx.x % s.blocks) * WARPS + warp_id(), s);
    if (at.first >= s.N) return;
    const real *q = qkv + at.qkv, *k = q + at.M + at.first * 3 * at.M, *v = k + at.M;
    real *dk = dqkv + at.qkv + at.M + at.first * 3 * at.M;
    for (int first = 0; first < s.D; first += STRETCH) {
        float sum_k[LANE_COLUMNS] = {}, sum_v[LANE_COLUMNS] = {};
        for (int i = 0; i < s.N; i++) {
            const real *q_row = q + i * 3 * at.M, *dy_row = dy + at.y + i * at.M;
            float score = wide_score<mode>(q_row, k, i, at.first, at, s);
            if (mode == SPARSE && score == -INFINITY) continue;
            float p = fast_exp2(LOG2_E * (score - lse[at.lse + i]));
            add_row(sum_v, p, dy_row, first, s.D);
            add_row(sum_k, p * (warp_dot(v, dy_row, s.D) - delta[at.in_launch + i]), q_row, first, s.D);
        }
        put_row(dk, sum_k, s.scale, first, s.D);
        put_row(dk + at.M, sum_v, 1, first, s.D);
    }
}

/* dtable +=: one warp for each element, over all pairs at its offset. */
__global__ void __launch_bounds__(THREADS)
    bias_backward_wide_kernel(float *dtable, const float *delta, const real *dy, const float *lse, const real *qkv,
                              unsigned launched, SoftmaxShape s) {
    const int Hg = s.bias.grid.rows, Wg = s.bias.grid.columns, prefix = s.bias.prefix, tables = s.bias.tables;
    int across = 2 * Wg - 1, area = (2 * Hg - 1) * across, size = table_numbers(s.bias.grid);
    int element = (int)blockIdx.x * WARPS + warp_id();
    if (element >= tables * size) return;
    int t = element / size, later = element % size / area - (s.bias.grid.frames - 1);
    int down = element % area / across - (Hg - 1), right = element % across - (Wg - 1);
    float sum = 0;
    for (unsigned head = 0; head < launched; head++) {
        SoftmaxPlace at = place_of(head, 0, s);
        if (tables > 1 && at.head != t) continue;
        for (int n = 0; n < grid_tokens(s.bias.grid); n++) {
            GridPlace at_query = grid_place(s.bias.grid, n);
            int f = at_query.t + later, y = at_query.y + down, x = at_query.x + right, query = prefix + n;
            if (f < 0 || f >= s.bias.grid.frames || y < 0 || y >= Hg || x < 0 || x >= Wg) continue;
            int key = prefix + (f * Hg + y) * Wg + x;
            const real *q = qkv + at.qkv + query * 3 * at.M, *k = qkv + at.qkv + at.M + key * 3 * at.M;
            float score = wide_score<BIASED>(q, k, query, key, at, s);
            float p = fast_exp2(LOG2_E * (score - lse[at.lse + query]));
            sum += p * (warp_dot(dy + at.y + query * at.M, k + at.M, s.D) - delta[at.in_launch + query]);
        }
    }
    if (lane_id() == 0) dtable[element] += sum;
}

/* == Launches ===================================================================================================== */

static int widest() {
    return widest_of([](int W) {
        size_t forward = shared_bytes(W, 1, 1), backward = shared_bytes(W, 1, 2);
        return forward > backward ? forward : backward;
    });
}

/* Calls launch(W) with the padded width for D <= WIDEST. */
template <typename Launch>
static void with_width(int D, Launch launch) {
    if (D <= 16) launch(Constant<16>());
    else if (D <= 32) launch(Constant<32>());
    else if (D <= 64) launch(Constant<64>());
    else launch(Constant<WIDEST>());
}

/* Calls launch(W, T): one row tile per warp if there are rows for only one, or if smaller blocks attend to fewer keys;
 * otherwise two. */
template <int held, Mode mode, typename Launch>
static void with_tiles(int N, int D, Launch launch) {
    with_width(D, [&](auto width) {
        constexpr int T = mode == SPARSE ? 1 : row_tiles(width.value, held);
        if (N <= owned_rows(1)) launch(width, Constant<1>());
        else launch(width, Constant<T>());
    });
}

static SoftmaxShape shape_of(int N, int H, int D, bool wide) {
    SoftmaxShape s = {};
    s.N = N;
    s.H = s.heads = H;
    s.D = D;
    s.wide = wide;
    s.scale = 1 / sqrtf((float)D);
    return s;
}

/* The launch's blocks if each has `rows` rows. */
static SoftmaxShape blocks_of(SoftmaxShape s, int rows) {
    s.blocks = (unsigned)ceil_div(s.N, rows);
    return s;
}

static size_t spots_bytes(Mode mode) { return mode == PLAIN ? 0 : 2 * STREAM * sizeof(Spot); }

template <Mode mode>
static void forward(real *y, float *lse, const real *qkv, int B, SoftmaxShape s) {
    size_t heads = (size_t)B * s.heads;
    if (s.D > widest()) {
        s = blocks_of(s, WARPS);
        LAUNCH((softmax_forward_wide_kernel<mode>), (unsigned)(heads * s.blocks), THREADS, 0, y, lse, qkv, s);
        return;
    }
    with_tiles<HELD_FORWARD, mode>(s.N, s.D, [&](auto width, auto tiles) {
        constexpr int W = width.value, T = tiles.value;
        s = blocks_of(s, owned_rows(T));
        LAUNCH((softmax_forward_kernel<W, T, mode>), (unsigned)(heads * s.blocks), THREADS,
               shared_bytes(W, T, 1) + spots_bytes(mode), y, lse, qkv, s);
    });
}

static size_t heads_at_once(int N) { return DELTA_ROWS / N > 0 ? DELTA_ROWS / N : 1; }

template <Mode mode>
static void backward_group(real *dqkv, float *delta, const real *dy, const real *y, const float *lse, const real *qkv,
                           size_t heads, SoftmaxShape s) {
    if (s.D > widest()) {
        s = blocks_of(s, WARPS);
        unsigned grid = (unsigned)(heads * s.blocks);
        LAUNCH((softmax_backward_queries_wide_kernel<mode>), grid, THREADS, 0, dqkv, delta, dy, y, lse, qkv, s);
        LAUNCH((softmax_backward_keys_wide_kernel<mode>), grid, THREADS, 0, dqkv, delta, dy, lse, qkv, s);
        return;
    }
    with_tiles<HELD_QUERIES, mode>(s.N, s.D, [&](auto width, auto tiles) {
        constexpr int W = width.value, T = tiles.value;
        s = blocks_of(s, owned_rows(T));
        LAUNCH((softmax_backward_queries_kernel<W, T, mode>), (unsigned)(heads * s.blocks), THREADS,
               shared_bytes(W, T, 2) + spots_bytes(mode), dqkv, delta, dy, y, lse, qkv, s);
    });
    with_tiles<HELD_KEYS, mode>(s.N, s.D, [&](auto width, auto tiles) {
        constexpr int W = width.value, T = tiles.value;
        s = blocks_of(s, owned_rows(T));
        LAUNCH((softmax_backward_keys_kernel<W, T, mode>), (unsigned)(heads * s.blocks), THREADS,
               shared_bytes(W, T, 2) + 2 * THREADS * sizeof(float) + spots_bytes(mode), dqkv, delta, dy, lse, qkv, s);
    });
}

/* Launches as many heads at a time as delta has room for; also(heads, shape) runs after each group, while its delta is
 * valid. */
template <Mode mode, typename Also>
static void backward(real *dqkv, float *delta, const real *dy, const real *y, const float *lse, const real *qkv, int B,
                     SoftmaxShape s, Also also) {
    size_t heads = (size_t)B * s.heads, most = heads_at_once(s.N);
    for (size_t first = 0; first < heads; first += most) {
        size_t count = heads - first < most ? heads - first : most;
        s.first_head = (int)first;
        backward_group<mode>(dqkv, delta, dy, y, lse, qkv, count, s);
        also((unsigned)count, s);
    }
}

static size_t delta_floats(int N) { return heads_at_once(N) * N; }

/* == All keys ===================================================================================================== */

void softmax_attention_forward(real *y, float *lse, const real *qkv, const AttentionShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D;
    forward<PLAIN>(y, lse, qkv, B, shape_of(N, H, D, is_wide(D, y, qkv)));
}

/* The heads of a shorter sequence may need more of the budget than those of a longer one. */
size_t softmax_attention_workspace(int N, int D) {
    (void)D;
    return ((size_t)N > (size_t)DELTA_ROWS ? (size_t)N : (size_t)DELTA_ROWS) * sizeof(float);
}

void softmax_attention_backward(real *dqkv, const real *dy, const real *y, const float *lse, const real *qkv,
                                const AttentionShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D;
    if (softmax_backward_heads(dqkv, dy, y, lse, qkv, shape)) return;
    float *delta = static_cast<float *>(kernels_workspace(softmax_attention_workspace(N, D)));
    SoftmaxShape s = shape_of(N, H, D, is_wide(D, dqkv, dy, qkv));
    backward<PLAIN>(dqkv, delta, dy, y, lse, qkv, B, s, [](unsigned, SoftmaxShape) {});
}

/* == With a relative position bias ================================================================================ */

static SoftmaxShape biased(const float *table, const RelativeBias *bias, int H, int D, bool wide) {
    SoftmaxShape s = shape_of(bias_tokens(bias), H, D, wide);
    s.table = table;
    s.bias = *bias;
    return s;
}

void biased_attention_forward(real *y, float *lse, const real *qkv, const float *table, const RelativeBias *bias,
                              const AttentionShape *shape) {
    int B = shape->B, H = shape->H, D = shape->D;
    forward<BIASED>(y, lse, qkv, B, biased(table, bias, H, D, is_wide(D, y, qkv)));
}

/* Rows of a table, with a block for each. */
static int bias_rows(const RelativeBias *b) { return table_numbers(b->grid) / (2 * b->grid.columns - 1); }

/* The number of chunks into which the heads are divided among the blocks that sum the table's gradient: some thousand
 * blocks in all. */
static unsigned bias_chunks(const RelativeBias *bias) {
    return blocks_for(4096, (size_t)bias->tables * bias_rows(bias), 64);
}

size_t biased_attention_workspace(const RelativeBias *bias, int D) {
    (void)D;
    size_t tables = bias->tables * table_size(bias);
    return (delta_floats(bias_tokens(bias)) + bias_chunks(bias) * tables) * sizeof(float);
}

void biased_attention_backward(real *dqkv, float *dtable, const real *dy, const real *y, const float *lse,
                               const real *qkv, const float *table, const RelativeBias *bias,
                               const AttentionShape *shape) {
    int B = shape->B, H = shape->H, D = shape->D;
    SoftmaxShape all = biased(table, bias, H, D, is_wide(D, dqkv, dy, qkv));
    float *delta = static_cast<float *>(kernels_workspace(biased_attention_workspace(bias, D)));
    float *parts = delta + delta_floats(all.N);
    size_t size = bias->tables * table_size(bias);
    unsigned chunks = bias_chunks(bias), rows = (unsigned)(bias->tables * bias_rows(bias));
    backward<BIASED>(dqkv, delta, dy, y, lse, qkv, B, all, [&](unsigned heads, SoftmaxShape s) {
        if (D > widest()) {
            LAUNCH(bias_backward_wide_kernel, (unsigned)ceil_div(size, WARPS), THREADS, 0, dtable, delta, dy, lse, qkv,
                   heads, s);
            return;
        }
        with_width(D, [&](auto width) {
            constexpr int W = width.value;
            size_t bytes = WARPS * 4 * TILE_M * tile_ld(W) * sizeof(real) +
                           (WARPS * TILE_M * TILE_M + 2 * (size_t)bias->grid.columns) * sizeof(float);
            LAUNCH((bias_backward_kernel<W>), rows * chunks, THREADS, bytes, parts, delta, dy, lse, qkv, heads, chunks,
                   s);
        });
        add_parts(dtable, NULL, parts, (int)chunks, (int)size);
    });
}

/* == Sparse ======================================================================================================= */

size_t sparse_attention_workspace(const SparsePattern *pattern, int N, int D) {
    (void)pattern;
    return softmax_attention_workspace(N, D);
}

static bool is_union(const SparsePattern *p, int H) { return p->first + p->second > H; }

/* The launch for the heads of the first set, or of the second. */
static SoftmaxShape sparse(const SparsePattern *p, bool second, int N, int H, int D, bool wide) {
    SoftmaxShape s = shape_of(N, H, D, wide);
    int whole = N / p->stride, left = N % p->stride - (p->stride - p->summary);
    s.pattern = *p;
    s.stride = p->stride;
    s.set = p->fixed ? second ? SET_SUMMARY : SET_BLOCK : second ? SET_COLUMN : SET_NEAR;
    s.summaries = whole * p->summary + (left > 0 ? left : 0);
    s.heads = second ? p->second : p->first;
    s.skipped = second ? H - p->second : 0;
    s.rest = second && is_union(p, H);
    return s;
}

/* Calls run(shape) for each set of the heads; heads wider than the tiles need one launch for both. */
template <typename Run>
static void each_set(const SparsePattern *p, int N, int H, int D, bool wide, Run run) {
    if (D > widest()) {
        SoftmaxShape s = sparse(p, false, N, H, D, wide);
        s.heads = H;
        run(s);
        return;
    }
    if (p->first) run(sparse(p, false, N, H, D, wide));
    if (p->second) run(sparse(p, true, N, H, D, wide));
}

void sparse_attention_forward(real *y, float *lse, const real *qkv, const SparsePattern *pattern,
                              const AttentionShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D;
    each_set(pattern, N, H, D, is_wide(D, y, qkv), [&](SoftmaxShape s) { forward<SPARSE>(y, lse, qkv, B, s); });
}

void sparse_attention_backward(real *dqkv, const real *dy, const real *y, const float *lse, const real *qkv,
                               const SparsePattern *pattern, const AttentionShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D;
    float *delta = static_cast<float *>(kernels_workspace(sparse_attention_workspace(pattern, N, D)));
    each_set(pattern, N, H, D, is_wide(D, dqkv, dy, qkv), [&](SoftmaxShape s) {
        backward<SPARSE>(dqkv, delta, dy, y, lse, qkv, B, s, [](unsigned, SoftmaxShape) {});
    });
}
