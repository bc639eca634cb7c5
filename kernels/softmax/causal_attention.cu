/* Causal softmax attention over sets of keys, on the matrix units: the structure of the kernels is that of
 * kernels/softmax/softmax_attention.cu, the passes are those of kernels/softmax/causal_attention.c.  A pass has all
 * queries and all keys in an order, by columns or by tokens, in which each query attends to one range of the keys: a
 * pair needs only its key's position and the query's two bounds.  A block of threads reads the keys from its first
 * row's lower bound to its last row's upper one, and masks them unless every row attends to all.  A tile has several
 * short columns or blocks.
 *
 * The second pass of a merged set continues from the first one's y and lse, with a sum of 1.  Widths of queries are
 * padded to that of values or half of it; above 128 the plain kernels at the end are used. */
#include "kernels/softmax/softmax_tiles.cuh"
#include "kernels/softmax/causal_attention.h"

/* delta of as many heads at a time as have this number of queries, as in softmax_attention.cu. */
static const size_t DELTA_ROWS = (size_t)1 << 22;

typedef struct {
    int N, H, Dk, Dv, q_row, k_row, v_row;
    int heads, skipped; /* heads of a sequence in this launch, and heads before them */
    int first_head;     /* first of all sequences' `heads` in this launch */
    unsigned blocks;    /* a head's */
    bool wide;
    float scale; /* 1 / sqrt Dk */

    CausalSet set; /* not one of two passes */
    int window;
    bool rest;             /* the second of two passes */
    CausalPattern pattern; /* the heads' set, for the kernels of wide heads, which have no passes */
} CausalTileShape;

/* == What a query sees ============================================================================================ */

/* Columns in the order of positions: the first `longer` have one more token. */
struct Column {
    int first, number, length;
};

DEVICE Column column_of(int position, const CausalTileShape &s) {
    int l = s.pattern.stride, whole = s.N / l, longer = s.N % l, in_longer = longer * (whole + 1);
    if (position < in_longer) {
        int number = position / (whole + 1);
        return {number * (whole + 1), number, whole + 1};
    }
    int number = (position - in_longer) / whole; /* there is no position here if columns are empty */
    return {in_longer + number * whole, longer + number, whole};
}

DEVICE int query_token(int position, const CausalTileShape &s) {
    if (s.set != CAUSAL_COLUMN || position >= s.N) return position;
    Column c = column_of(position, s);
    return c.number + (position - c.first) * s.pattern.stride;
}

DEVICE int key_token(int position, int head, const CausalTileShape &s) {
    if (s.set != CAUSAL_SUMMARY) return query_token(position, s);
    int c = s.pattern.summary;
    return position / c * s.pattern.stride + causal_summary_first(&s.pattern, head) + position % c;
}

DEVICE int key_count(int head, const CausalTileShape &s) {
    return s.set == CAUSAL_SUMMARY ? causal_summaries(&s.pattern, head, s.N) : s.N;
}

struct CausalTileRange {
    int first, last;
};

/* The keys of a query; none for a position beyond the last. */
DEVICE CausalTileRange bounds_of(int position, int head, const CausalTileShape &s) {
    int l = s.pattern.stride;
    if (position >= s.N) return {0, 0};
    if (s.set == CAUSAL_WINDOW) return {position + 1 > s.window ? position + 1 - s.window : 0, position + 1};
    if (s.set == CAUSAL_BLOCK) return {position / l * l, position + 1};
    if (s.set == CAUSAL_COLUMN) return {column_of(position, s).first, s.rest ? position : position + 1};
    if (s.set == CAUSAL_SUMMARY)
        return {0, s.rest ? position / l * s.pattern.summary : causal_summaries(&s.pattern, head, position + 1)};
    return {0, position + 1};
}

/* The keys to which any of the queries first .. first + rows - 1 attends. */
DEVICE CausalTileRange keys_of(int first, int rows, int head, const CausalTileShape &s) {
    int last = (first + rows < s.N ? first + rows : s.N) - 1;
    return {bounds_of(first, head, s).first, bounds_of(last, head, s).last};
}

/* The queries that can attend to any of the keys first .. first + rows - 1. */
DEVICE CausalTileRange queries_of(int first, int rows, int head, const CausalTileShape &s) {
    int count = key_count(head, s), last = (first + rows < count ? first + rows : count) - 1, l = s.pattern.stride;
    int end = s.N;
    if (first >= count) return {0, 0};
    if (s.set == CAUSAL_SUMMARY) return {s.rest ? (first / s.pattern.summary + 1) * l : key_token(first, head, s), end};
    if (s.set == CAUSAL_WINDOW) end = last + s.window;
    if (s.set == CAUSAL_BLOCK) end = last / l * l + l;
    if (s.set == CAUSAL_COLUMN) end = column_of(last, s).first + column_of(last, s).length;
    return {first, end < s.N ? end : s.N};
}

/* Does a query, a token, attend to its own key in addition to those of the pass? */
DEVICE bool sees_own(int token, int head, const CausalTileShape &s) {
    return s.set == CAUSAL_SUMMARY && !s.rest && token < s.N && !causal_is_summary(&s.pattern, head, token);
}

/* The data of a block: rows first.. of one head. */
struct CausalTilePlace {
    size_t q, k, v, y, lse; /* element of the head's first row in each */
    size_t in_launch;       /* the head's first row among those of this launch */
    size_t y_row;
    int first, head;
};

DEVICE CausalTilePlace place_of(size_t head_in_launch, int first, const CausalTileShape &s) {
    size_t head = s.first_head + head_in_launch, b = head / s.heads, h = s.skipped + head % s.heads, row = b * s.N;
    size_t y_row = (size_t)s.H * s.Dv;
    return {row * s.q_row + h * s.Dk, row * s.k_row + h * s.Dk, row * s.v_row + h * s.Dv, row * y_row + h * s.Dv,
            (b * s.H + h) * s.N,      head_in_launch * s.N,     y_row,                    first,
            (int)h};
}

DEVICE CausalTilePlace place_of_block(int rows, const CausalTileShape &s) {
    return place_of(blockIdx.x / s.blocks, (int)(blockIdx.x % s.blocks) * rows, s);
}

/* tile = the rows at positions first.. of `count`, D wide, `stride` apart; token(position) is the index of a row. */
template <int ROWS, int W, typename Token>
DEVICE void load_rows(real *tile, const real *head, size_t stride, int first, int count, int D, Token token,
                      const CausalTileShape &s) {
    tile_load<ROWS, W, THREADS>(
        tile, tile_ld(W), [&](int i) { return head + token(first + i) * stride; }, count - first, D, s.wide,
        (int)threadIdx.x);
}

/* rows = scale times the warp's result, through its own rows of `tile`; `add`: rows +=. */
template <int W, int T, typename Token>
DEVICE void store_owned(real *head, size_t stride, real *tile, const FragmentC (&sum)[T][W / TILE_N],
                        const float (&scale)[T][2], int first, int count, int D, bool add, Token token,
                        const CausalTileShape &s) {
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
            if (add) { /* before it is rounded */
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int at = first + r * TILE_M + fragment_c_row(i), column = n * TILE_N + fragment_c_column(i);
                    if (at < count && column < D) c.x[i] += to_float(head[token(at) * stride + column]);
                }
            }
            tile_put(tile + r * TILE_M * LD + n * TILE_N, LD, c, 1);
        }
    warp_sync();
    tile_store<ROWS, W, WARP>([&](int i) { return head + token(first + i) * stride; }, tile, LD, count - first, D,
                              s.wide, lane_id());
}

/* The dot product of two rows, computed by the four lanes that share a row of a tile. */
DEVICE float quad_dot(const real *a, const real *b, int D) {
    float sum = 0;
    for (int c = lane_id() % 4; c < D; c += 4) sum += to_float(a[c]) * to_float(b[c]);
    return sum;
}

/* == Forward ====================================================================================================== */

/* One step of the running softmax for a row tile: the scores become p, and m, l and y are updated.  m is the same in
 * the four lanes that share a row, l is this lane's share of the sum. */
template <int V, int T>
DEVICE void softmax_step(FragmentC (*score)[T], FragmentC (&y)[V / TILE_N], float (&m)[2], float (&l)[2], int r,
                         float scale) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float seen = m[half];
#pragma unroll
        for (int n = 0; n < STREAM / TILE_N; n++)
            seen = fmaxf(seen, fmaxf(score[n][r].x[2 * half], score[n][r].x[2 * half + 1]));
        seen = row_max(seen);
        float shrink = fast_exp2((m[half] - seen) * scale), shift = seen * scale, sum = 0;
        if (!(seen > -INFINITY)) shrink = 1, shift = 0; /* no key seen yet, or NaN */
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
        for (int n = 0; n < V / TILE_N; n++) {
            y[n].x[2 * half] *= shrink;
            y[n].x[2 * half + 1] *= shrink;
        }
    }
}

/* The state before the first key: empty; the query's own key; or lse as maximum, y unchanged, and a sum of 1 in the
 * first of the lanes that share a row. */
template <int V, int T>
DEVICE void begin_rows(FragmentC (&sum)[T][V / TILE_N], float (&m)[T][2], float (&l)[T][2], const real *y,
                       const float *lse, const CausalInputs &in, const CausalTilePlace &at, const CausalTileShape &s) {
    clear<V, T>(sum);
#pragma unroll
    for (int r = 0; r < T; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = owned_row<T>(at.first, r, half);
            size_t token = query_token(row, s);
            bool own = sees_own(row, at.head, s), given = (s.rest && row < s.N) || own;
            const real *q = in.q + at.q + token * s.q_row, *k = in.k + at.k + token * s.k_row;
            float score = row_sum(own ? quad_dot(q, k, s.Dk) : 0);
            m[r][half] = !given ? -INFINITY : own ? score : lse[at.lse + token] / s.scale;
            l[r][half] = given && lane_id() % 4 == 0;
            const real *from = own ? in.v + at.v + token * s.v_row : y + at.y + token * at.y_row;
#pragma unroll
            for (int n = 0; n < V / TILE_N; n++)
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; i++) {
                    int column = n * TILE_N + fragment_c_column(i);
                    if (given && column < s.Dv) sum[r][n].x[i] = to_float(from[column]);
                }
        }
}

template <int T>
DEVICE void owned_bounds(CausalTileRange (&bounds)[T][2], const CausalTilePlace &at, const CausalTileShape &s) {
#pragma unroll
    for (int r = 0; r < T; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) bounds[r][half] = bounds_of(owned_row<T>(at.first, r, half), at.head, s);
}

DEVICE bool within(int key, CausalTileRange bounds) { return key >= bounds.first && key < bounds.last; }

template <int W, int V, int T>
__global__ void __launch_bounds__(THREADS)
    causal_forward_kernel(real *y, float *lse, CausalInputs in, CausalTileShape s) {
    constexpr int LD = tile_ld(W), LDV = tile_ld(V), ROWS = owned_rows(T);
    SHARED(real, q_tile);                                                 /* [ROWS,LDV], of which rows of LD are q */
    real *k_tile = q_tile + ROWS * LDV, *v_tile = k_tile + 2 * STREAM * LD; /* [2][STREAM,LD], [2][STREAM,LDV] */
    CausalTilePlace at = place_of_block(ROWS, s);
    CausalTileRange range = keys_of(at.first, ROWS, at.head, s);
    if (s.rest && range.first >= range.last) return;
    auto query = [&](int position) { return (size_t)query_token(position, s); };
    auto key = [&](int position) { return (size_t)key_token(position, at.head, s); };
    int keys = key_count(at.head, s);
    auto fetch = [&](int first, int stage) {
        load_rows<STREAM, W>(k_tile + stage * STREAM * LD, in.k + at.k, s.k_row, first, keys, s.Dk, key, s);
        load_rows<STREAM, V>(v_tile + stage * STREAM * LDV, in.v + at.v, s.v_row, first, keys, s.Dv, key, s);
    };
    load_rows<ROWS, W>(q_tile, in.q + at.q, s.q_row, at.first, s.N, s.Dk, query, s);
    if (range.first < range.last) fetch(range.first, 0);
    copy_commit();

    FragmentA a[T][W / TILE_K];
    FragmentC sum[T][V / TILE_N];
    float m[T][2], l[T][2];
    CausalTileRange bounds[T][2];
    owned_bounds<T>(bounds, at, s);
    begin_rows<V, T>(sum, m, l, y, lse, in, at, s);
    int low = bounds_of(at.first + ROWS - 1 < s.N ? at.first + ROWS - 1 : s.N - 1, at.head, s).first;
    int high = bounds_of(at.first, at.head, s).last;
    for (int first = range.first, stage = 0; first < range.last; first += STREAM, stage ^= 1) {
        copy_wait<0>();
        block_sync();
        if (first == range.first) load_owned<W, T>(a, q_tile);
        if (first + STREAM < range.last) fetch(first + STREAM, stage ^ 1);
        copy_commit();
        FragmentC score[STREAM / TILE_N][T];
#pragma unroll
        for (int j = 0; j < STREAM / TILE_K; j++)
            product<W, T>(score + 2 * j, a, k_tile + stage * STREAM * LD + j * TILE_K * LD);
        if (low > first || high < first + STREAM) { /* rows past the last need no mask */
#pragma unroll
            for (int n = 0; n < STREAM / TILE_N; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int r = 0; r < T; r++)
                        if (!within(first + n * TILE_N + fragment_c_column(i), bounds[r][i / 2]))
                            score[n][r].x[i] = -INFINITY;
        }
#pragma unroll
        for (int r = 0; r < T; r++) softmax_step<V, T>(score, sum[r], m[r], l[r], r, LOG2_E * s.scale);
#pragma unroll
        for (int j = 0; j < STREAM / TILE_K; j++)
            accumulate<V, T>(sum, score + 2 * j, v_tile + stage * STREAM * LDV + j * TILE_K * LDV);
    }
    copy_wait<0>(); /* q_tile becomes y's */
    block_sync();
#pragma unroll
    for (int r = 0; r < T; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = row_sum(l[r][half]);
            int row = owned_row<T>(at.first, r, half);
            if (row < s.N && lane_id() % 4 == 0) lse[at.lse + query_token(row, s)] = m[r][half] * s.scale + logf(total);
            l[r][half] = total > 0 ? 1 / total : 0;
        }
    store_owned<V, T>(y + at.y, at.y_row, q_tile, sum, l, at.first, s.N, s.Dv, false, query, s);
}

/* == Backward ===================================================================================================== */

/* The pair of a row and its own key, if that is not in the pass: the initial dq, dk and dv. */
template <int W, int T>
DEVICE void own_pair(FragmentC (&dq)[T][W / TILE_N], int r, int half, const CausalGradients &d, const real *dy,
                     float delta, float shift, const CausalInputs &in, const CausalTilePlace &at,
                     const CausalTileShape &s) {
    int token = owned_row<T>(at.first, r, half); /* the order is that of tokens here */
    bool own = sees_own(token, at.head, s);
    const real *q = in.q + at.q + (size_t)token * s.q_row, *k = in.k + at.k + (size_t)token * s.k_row;
    const real *v = in.v + at.v + (size_t)token * s.v_row, *g = dy + at.y + token * at.y_row;
    float score = row_sum(own ? quad_dot(q, k, s.Dk) : 0), t = row_sum(own ? quad_dot(g, v, s.Dv) : 0);
    if (!own) return;
    float p = fast_exp2(score * (LOG2_E * s.scale) - shift), ds = p * (t - delta);
#pragma unroll
    for (int n = 0; n < W / TILE_N; n++)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; i++) {
            int column = n * TILE_N + fragment_c_column(i);
            if (column < s.Dk) dq[r][n].x[i] = ds * to_float(k[column]);
        }
    for (int c = lane_id() % 4; c < s.Dk; c += 4)
        d.k[at.k + (size_t)token * s.k_row + c] = to_real(s.scale * ds * to_float(q[c]));
    for (int c = lane_id() % 4; c < s.Dv; c += 4) d.v[at.v + (size_t)token * s.v_row + c] = to_real(p * to_float(g[c]));
}

/* dq, and delta [heads of the launch, N] for the other kernel. */
template <int W, int V, int T>
__global__ void __launch_bounds__(THREADS)
    causal_backward_queries_kernel(CausalGradients d, float *delta, const real *dy, const real *y, const float *lse,
                                   CausalInputs in, CausalTileShape s) {
    constexpr int LD = tile_ld(W), LDV = tile_ld(V), ROWS = owned_rows(T);
    SHARED(real, q_tile);                                                 /* [ROWS,LD] */
    real *dy_tile = q_tile + ROWS * LD, *k_tile = dy_tile + ROWS * LDV;   /* [ROWS,LDV], [2][STREAM,LD] */
    real *v_tile = k_tile + 2 * STREAM * LD;                              /* [2][STREAM,LDV] */
    CausalTilePlace at = place_of_block(ROWS, s);
    CausalTileRange range = keys_of(at.first, ROWS, at.head, s);
    auto query = [&](int position) { return (size_t)query_token(position, s); };
    auto key = [&](int position) { return (size_t)key_token(position, at.head, s); };
    int keys = key_count(at.head, s);
    auto fetch = [&](int first, int stage) {
        load_rows<STREAM, W>(k_tile + stage * STREAM * LD, in.k + at.k, s.k_row, first, keys, s.Dk, key, s);
        load_rows<STREAM, V>(v_tile + stage * STREAM * LDV, in.v + at.v, s.v_row, first, keys, s.Dv, key, s);
    };
    load_rows<ROWS, W>(q_tile, in.q + at.q, s.q_row, at.first, s.N, s.Dk, query, s);
    load_rows<ROWS, V>(dy_tile, dy + at.y, at.y_row, at.first, s.N, s.Dv, query, s);
    if (range.first < range.last) fetch(range.first, 0);
    copy_commit();
    copy_wait<0>();
    block_sync();

    FragmentA qa[T][W / TILE_K], dya[T][V / TILE_K];
    FragmentC dq[T][W / TILE_N];
    CausalTileRange bounds[T][2];
    float shift[T][2], row_delta[T][2];
    owned_bounds<T>(bounds, at, s);
    clear<W, T>(dq);
    load_owned<W, T>(qa, q_tile);
    load_owned<V, T>(dya, dy_tile);
#pragma unroll
    for (int r = 0; r < T; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = owned_row<T>(at.first, r, half);
            size_t token = query_token(row, s);
            float dot = row < s.N ? quad_dot(dy_tile + (row - at.first) * LDV, y + at.y + token * at.y_row, s.Dv) : 0;
            row_delta[r][half] = row_sum(dot);
            shift[r][half] = row < s.N ? LOG2_E * lse[at.lse + token] : 0;
            if (row < s.N && lane_id() % 4 == 0) delta[at.in_launch + token] = row_delta[r][half];
            if (s.set == CAUSAL_SUMMARY && !s.rest)
                own_pair<W, T>(dq, r, half, d, dy, row_delta[r][half], shift[r][half], in, at, s);
        }

    for (int first = range.first, stage = 0; first < range.last; first += STREAM, stage ^= 1) {
        if (first > range.first) {
            copy_wait<0>();
            block_sync();
        }
        if (first + STREAM < range.last) fetch(first + STREAM, stage ^ 1);
        copy_commit();
        for (int j = 0; j < STREAM && first + j < range.last; j += TILE_K) {
            const real *k_rows = k_tile + (stage * STREAM + j) * LD, *v_rows = v_tile + (stage * STREAM + j) * LDV;
            FragmentC score[2][T], t[2][T];
            product<W, T>(score, qa, k_rows);
            product<V, T>(t, dya, v_rows);
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int r = 0; r < T; r++) {
                        bool seen = within(first + j + n * TILE_N + fragment_c_column(i), bounds[r][i / 2]);
                        float p = fast_exp2(score[n][r].x[i] * (LOG2_E * s.scale) - shift[r][i / 2]);
                        score[n][r].x[i] = seen ? p * (t[n][r].x[i] - row_delta[r][i / 2]) : 0;
                    }
            accumulate<W, T>(dq, score, k_rows);
        }
    }
    fill<T>(shift, s.scale);
    store_owned<W, T>(d.q + at.q, s.q_row, q_tile, dq, shift, at.first, s.N, s.Dk, s.rest, query, s);
}

/* A query for the other kernel: its lse for powers of two, its delta, and its range of keys. */
struct QueryStatistic {
    float shift, delta;
    CausalTileRange bounds;
};

/* dk and dv. */
template <int W, int V, int T>
__global__ void __launch_bounds__(THREADS)
    causal_backward_keys_kernel(CausalGradients d, const float *delta, const real *dy, const float *lse,
                                CausalInputs in, CausalTileShape s) {
    constexpr int LD = tile_ld(W), LDV = tile_ld(V), ROWS = owned_rows(T);
    SHARED(real, k_tile);                                               /* [ROWS,LD] */
    real *v_tile = k_tile + ROWS * LD, *q_tile = v_tile + ROWS * LDV;   /* [ROWS,LDV], [2][STREAM,LD] */
    real *dy_tile = q_tile + 2 * STREAM * LD;                           /* [2][STREAM,LDV] */
    QueryStatistic *statistics = reinterpret_cast<QueryStatistic *>(dy_tile + 2 * STREAM * LDV); /* [2][STREAM] */
    CausalTilePlace at = place_of_block(ROWS, s);
    CausalTileRange range = queries_of(at.first, ROWS, at.head, s);
    int keys = key_count(at.head, s);
    if (at.first >= keys) return;
    auto query = [&](int position) { return (size_t)query_token(position, s); };
    auto key = [&](int position) { return (size_t)key_token(position, at.head, s); };
    auto fetch = [&](int first, int stage) {
        load_rows<STREAM, W>(q_tile + stage * STREAM * LD, in.q + at.q, s.q_row, first, s.N, s.Dk, query, s);
        load_rows<STREAM, V>(dy_tile + stage * STREAM * LDV, dy + at.y, at.y_row, first, s.N, s.Dv, query, s);
    };
    auto statistic = [&](int row) -> QueryStatistic {
        if (row >= s.N) return {0, 0, {0, 0}};
        size_t token = query_token(row, s);
        return {LOG2_E * lse[at.lse + token], delta[at.in_launch + token], bounds_of(row, at.head, s)};
    };
    load_rows<ROWS, W>(k_tile, in.k + at.k, s.k_row, at.first, keys, s.Dk, key, s);
    load_rows<ROWS, V>(v_tile, in.v + at.v, s.v_row, at.first, keys, s.Dv, key, s);
    if (range.first < range.last) fetch(range.first, 0);
    copy_commit();

    FragmentA ka[T][W / TILE_K], va[T][V / TILE_K];
    FragmentC dk[T][W / TILE_N], dv[T][V / TILE_N];
    clear<W, T>(dk);
    clear<V, T>(dv);
    for (int first = range.first, stage = 0; first < range.last; first += STREAM, stage ^= 1) {
        QueryStatistic *of = statistics + stage * STREAM;
        if (threadIdx.x < STREAM) of[threadIdx.x] = statistic(first + (int)threadIdx.x);
        copy_wait<0>();
        block_sync();
        if (first == range.first) {
            load_owned<W, T>(ka, k_tile);
            load_owned<V, T>(va, v_tile);
        }
        if (first + STREAM < range.last) fetch(first + STREAM, stage ^ 1);
        copy_commit();
        for (int j = 0; j < STREAM && first + j < range.last; j += TILE_K) {
            const real *q_rows = q_tile + (stage * STREAM + j) * LD, *dy_rows = dy_tile + (stage * STREAM + j) * LDV;
            FragmentC p[2][T], t[2][T];
            product<W, T>(p, ka, q_rows);
            product<V, T>(t, va, dy_rows);
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    QueryStatistic one = of[j + n * TILE_N + fragment_c_column(i)];
#pragma unroll
                    for (int r = 0; r < T; r++) {
                        bool seen = within(owned_row<T>(at.first, r, i / 2), one.bounds);
                        float weight = fast_exp2(p[n][r].x[i] * (LOG2_E * s.scale) - one.shift);
                        p[n][r].x[i] = seen ? weight : 0;
                        t[n][r].x[i] = seen ? weight * (t[n][r].x[i] - one.delta) : 0;
                    }
                }
            accumulate<V, T>(dv, p, dy_rows);
            accumulate<W, T>(dk, t, q_rows);
        }
    }
    copy_wait<0>(); /* the tiles become those of dk and dv */
    block_sync();
    float factor[T][2];
    fill<T>(factor, s.scale);
    store_owned<W, T>(d.k + at.k, s.k_row, k_tile, dk, factor, at.first, keys, s.Dk, s.rest, key, s);
    fill<T>(factor, 1);
    store_owned<V, T>(d.v + at.v, s.v_row, v_tile, dv, factor, at.first, keys, s.Dv, s.rest, key, s);
}

/* == Heads wider than 128 ========================================================================================= */

/* The scaled score of a pair in the whole set. */
DEVICE float wide_score(const real *q, const real *k, const CausalTileShape &s) {
    return s.scale * warp_dot(q, k, s.Dk);
}

/* This warp's row of a head. */
DEVICE CausalTilePlace place_of_warp(const CausalTileShape &s) {
    return place_of(blockIdx.x / s.blocks, (int)(blockIdx.x % s.blocks) * WARPS + warp_id(), s);
}

__global__ void __launch_bounds__(THREADS)
    causal_forward_wide_kernel(real *y, float *lse, CausalInputs in, CausalTileShape s) {
    CausalTilePlace at = place_of_warp(s);
    int i = at.first;
    if (i >= s.N) return;
    const real *q = in.q + at.q + (size_t)i * s.q_row, *k = in.k + at.k, *v = in.v + at.v;
    float m = -INFINITY, l = 0;
    for (int j = 0; j <= i; j++) {
        if (!causal_sees(&s.pattern, at.head, i, j)) continue;
        float score = wide_score(q, k + (size_t)j * s.k_row, s), seen = fmaxf(m, score);
        l = l * fast_exp2(LOG2_E * (m - seen)) + fast_exp2(LOG2_E * (score - seen));
        m = seen;
    }
    if (lane_id() == 0) lse[at.lse + i] = m + logf(l);
    for (int first = 0; first < s.Dv; first += STRETCH) {
        float sum[LANE_COLUMNS] = {};
        for (int j = 0; j <= i; j++)
            if (causal_sees(&s.pattern, at.head, i, j))
                add_row(sum, fast_exp2(LOG2_E * (wide_score(q, k + (size_t)j * s.k_row, s) - m)),
                        v + (size_t)j * s.v_row, first, s.Dv);
        put_row(y + at.y + i * at.y_row, sum, 1 / l, first, s.Dv);
    }
}

__global__ void __launch_bounds__(THREADS)
    causal_backward_queries_wide_kernel(CausalGradients d, float *delta, const real *dy, const real *y,
                                        const float *lse, CausalInputs in, CausalTileShape s) {
    CausalTilePlace at = place_of_warp(s);
    int i = at.first;
    if (i >= s.N) return;
    const real *q = in.q + at.q + (size_t)i * s.q_row, *k = in.k + at.k, *v = in.v + at.v;
    const real *g = dy + at.y + i * at.y_row;
    float row_delta = warp_dot(g, y + at.y + i * at.y_row, s.Dv), row_lse = lse[at.lse + i];
    if (lane_id() == 0) delta[at.in_launch + i] = row_delta;
    for (int first = 0; first < s.Dk; first += STRETCH) {
        float sum[LANE_COLUMNS] = {};
        for (int j = 0; j <= i; j++) {
            if (!causal_sees(&s.pattern, at.head, i, j)) continue;
            float p = fast_exp2(LOG2_E * (wide_score(q, k + (size_t)j * s.k_row, s) - row_lse));
            add_row(sum, p * (warp_dot(g, v + (size_t)j * s.v_row, s.Dv) - row_delta), k + (size_t)j * s.k_row, first,
                    s.Dk);
        }
        put_row(d.q + at.q + (size_t)i * s.q_row, sum, s.scale, first, s.Dk);
    }
}

__global__ void __launch_bounds__(THREADS)
    causal_backward_keys_wide_kernel(CausalGradients d, const float *delta, const real *dy, const float *lse,
                                     CausalInputs in, CausalTileShape s) {
    CausalTilePlace at = place_of_warp(s);
    int j = at.first;
    if (j >= s.N) return;
    const real *k = in.k + at.k + (size_t)j * s.k_row, *v = in.v + at.v + (size_t)j * s.v_row;
    int widest = s.Dk > s.Dv ? s.Dk : s.Dv;
    for (int first = 0; first < widest; first += STRETCH) {
        float sum_k[LANE_COLUMNS] = {}, sum_v[LANE_COLUMNS] = {};
        for (int i = j; i < s.N; i++) {
            if (!causal_sees(&s.pattern, at.head, i, j)) continue;
            const real *q = in.q + at.q + (size_t)i * s.q_row, *g = dy + at.y + i * at.y_row;
            float p = fast_exp2(LOG2_E * (wide_score(q, k, s) - lse[at.lse + i]));
            add_row(sum_v, p, g, first, s.Dv);
            add_row(sum_k, p * (warp_dot(v, g, s.Dv) - delta[at.in_launch + i]), q, first, s.Dk);
        }
        put_row(d.k + at.k + (size_t)j * s.k_row, sum_k, s.scale, first, s.Dk);
        put_row(d.v + at.v + (size_t)j * s.v_row, sum_v, 1, first, s.Dv);
    }
}

/* == Launches ===================================================================================================== */

static int width_of(int D) { return D <= 16 ? 16 : D <= 32 ? 32 : D <= 64 ? 64 : WIDEST; }

/* Calls launch(W, V) with the padded widths of queries and values: equal ones, or queries half as wide. */
template <typename Launch>
static void with_widths(int Dk, int Dv, Launch launch) {
    int v = width_of(Dk > Dv ? Dk : Dv), half = v > 16 && Dk <= v / 2;
    if (v == 16) launch(Constant<16>(), Constant<16>());
    else if (v == 32 && half) launch(Constant<16>(), Constant<32>());
    else if (v == 32) launch(Constant<32>(), Constant<32>());
    else if (v == 64 && half) launch(Constant<32>(), Constant<64>());
    else if (v == 64) launch(Constant<64>(), Constant<64>());
    else if (half) launch(Constant<64>(), Constant<WIDEST>());
    else launch(Constant<WIDEST>(), Constant<WIDEST>());
}

/* Calls launch(W, V, T): one row tile per warp if there are rows for only one, or if smaller blocks attend to fewer
 * keys; otherwise two. */
template <int held, typename Launch>
static void with_tiles(const CausalTileShape &s, Launch launch) {
    with_widths(s.Dk, s.Dv, [&](auto width, auto values) {
        constexpr int T = row_tiles(values.value, held);
        if (T == 1 || s.N <= owned_rows(1) || s.set != CAUSAL_DENSE) launch(width, values, Constant<1>());
        else launch(width, values, Constant<T>());
    });
}

/* Rows owned in shared memory, and four tiles of streamed ones, of queries and of values. */
static constexpr size_t tiles_bytes(int W, int V, int rows) {
    return (size_t)(rows + 2 * STREAM) * (tile_ld(W) + tile_ld(V)) * sizeof(real);
}

static CausalTileShape blocks_of(CausalTileShape s, int rows) {
    s.blocks = (unsigned)ceil_div(s.N, rows);
    return s;
}

/* Wider heads use the plain kernels. */
static int widest() {
    return widest_of([](int W) { return tiles_bytes(W, W, owned_rows(row_tiles(W, HELD_FORWARD))); });
}

static void forward(real *y, float *lse, const CausalInputs &in, int B, CausalTileShape s) {
    size_t heads = (size_t)B * s.heads;
    if (s.Dk > widest() || s.Dv > widest()) {
        s = blocks_of(s, WARPS);
        LAUNCH(causal_forward_wide_kernel, (unsigned)(heads * s.blocks), THREADS, 0, y, lse, in, s);
        return;
    }
    with_tiles<HELD_FORWARD>(s, [&](auto width, auto values, auto tiles) {
        constexpr int W = width.value, V = values.value, T = tiles.value;
        s = blocks_of(s, owned_rows(T));
        LAUNCH((causal_forward_kernel<W, V, T>), (unsigned)(heads * s.blocks), THREADS,
               tiles_bytes(W, V, owned_rows(T)), y, lse, in, s);
    });
}

static void backward_group(const CausalGradients &d, float *delta, const real *dy, const real *y, const float *lse,
                           const CausalInputs &in, size_t heads, CausalTileShape s) {
    if (s.Dk > widest() || s.Dv > widest()) {
        s = blocks_of(s, WARPS);
        unsigned grid = (unsigned)(heads * s.blocks);
        LAUNCH(causal_backward_queries_wide_kernel, grid, THREADS, 0, d, delta, dy, y, lse, in, s);
        LAUNCH(causal_backward_keys_wide_kernel, grid, THREADS, 0, d, delta, dy, lse, in, s);
        return;
    }
    with_tiles<HELD_QUERIES>(s, [&](auto width, auto values, auto tiles) {
        constexpr int W = width.value, V = values.value, T = tiles.value;
        s = blocks_of(s, owned_rows(T));
        LAUNCH((causal_backward_queries_kernel<W, V, T>), (unsigned)(heads * s.blocks), THREADS,
               tiles_bytes(W, V, owned_rows(T)), d, delta, dy, y, lse, in, s);
    });
    with_tiles<HELD_KEYS>(s, [&](auto width, auto values, auto tiles) {
        constexpr int W = width.value, V = values.value, T = tiles.value;
        s = blocks_of(s, owned_rows(T));
        LAUNCH((causal_backward_keys_kernel<W, V, T>), (unsigned)(heads * s.blocks), THREADS,
               tiles_bytes(W, V, owned_rows(T)) + 2 * STREAM * sizeof(QueryStatistic), d, delta, dy, lse, in, s);
    });
}

static size_t heads_at_once(int N) { return DELTA_ROWS / N > 0 ? DELTA_ROWS / N : 1; }

/* The number of heads at a time for which delta has room. */
static void backward(const CausalGradients &d, float *delta, const real *dy, const real *y, const float *lse,
                     const CausalInputs &in, int B, CausalTileShape s) {
    size_t heads = (size_t)B * s.heads, most = heads_at_once(s.N);
    for (size_t first = 0; first < heads; first += most) {
        s.first_head = (int)first;
        backward_group(d, delta, dy, y, lse, in, heads - first < most ? heads - first : most, s);
    }
}

static CausalTileShape shape_of(const CausalShape *c, bool wide) {
    CausalTileShape s = {};
    s.N = c->N;
    s.H = c->H;
    s.Dk = c->Dk;
    s.Dv = c->Dv;
    s.q_row = c->q_row;
    s.k_row = c->k_row;
    s.v_row = c->v_row;
    s.wide = wide;
    s.scale = 1 / sqrtf((float)c->Dk);
    return s;
}

/* Calls run(shape) for each pass of each set of the heads; heads wider than the tiles need one launch for all
 * passes. */
template <typename Run>
static void each_pass(const CausalPattern *p, const CausalShape *c, bool wide, Run run) {
    for (int second = 0; second < 2; second++) {
        int split = p->split < 0 ? 0 : p->split < c->H ? p->split : c->H;
        CausalTileShape s = shape_of(c, wide);
        s.heads = second ? c->H - split : split;
        s.skipped = second ? split : 0;
        s.pattern = *p;
        s.set = second ? p->second : p->first;
        s.window = p->window;
        if (s.heads == 0) continue;
        bool merged = s.set == CAUSAL_STRIDED || s.set == CAUSAL_FIXED;
        bool strided = s.set == CAUSAL_STRIDED, plain = c->Dk > widest() || c->Dv > widest();
        if (merged && !plain) {
            s.set = strided ? CAUSAL_WINDOW : CAUSAL_BLOCK;
            s.window = p->stride;
            run(s);
            s.set = strided ? CAUSAL_COLUMN : CAUSAL_SUMMARY;
            s.rest = true;
        }
        run(s);
    }
}

static bool is_wide_layout(const CausalShape *s) {
    const int lengths[] = {s->Dk, s->Dv, s->q_row, s->k_row, s->v_row};
    for (int length : lengths)
        if (length % WIDE) return false;
    return true;
}

size_t causal_attention_workspace(const CausalPattern *pattern, const CausalShape *shape) {
    (void)pattern;
    return heads_at_once(shape->N) * shape->N * sizeof(float);
}

void causal_attention_forward(real *y, float *lse, const CausalInputs *in, const CausalPattern *pattern,
                              const CausalShape *shape) {
    bool wide = is_wide_layout(shape) && is_wide(0, y, in->q, in->k, in->v);
    each_pass(pattern, shape, wide, [&](CausalTileShape s) { forward(y, lse, *in, shape->B, s); });
}

void causal_attention_backward(const CausalGradients *d, const real *dy, const real *y, const float *lse,
                               const CausalInputs *in, const CausalPattern *pattern, const CausalShape *shape) {
    float *delta = static_cast<float *>(kernels_workspace(causal_attention_workspace(pattern, shape)));
    bool wide = is_wide_layout(shape) && is_wide(0, d->q, d->k, d->v, dy, in->q, in->k, in->v);
    each_pass(pattern, shape, wide, [&](CausalTileShape s) { backward(*d, delta, dy, y, lse, *in, shape->B, s); });
}
