/* Softmax attention on the matrix units; the formulas are those of kernels/cpu/softmax_attention.c.
 *   forward   a block owns 64 or 128 queries and streams the keys past them, with the running maximum and sum of Dao et
 *             al. 2022; the scores become the left factor of p v without leaving the registers
 *   backward  two kernels of the same shape, so that no sum crosses blocks and every run gives the same bits:
 *             by queries   delta = dy.y,  s = q k^T,  t = dy v^T,  ds = p (t - delta),  dq = ds k / sqrt D
 *             by keys      s^T = k q^T,  t^T = v dy^T,  dv = p^T dy,  dk = ds^T q / sqrt D
 *             which is seven products where one kernel with atomic sums needs five
 *   saves     lse [B,H,N].
 *
 * Exponentials are powers of two: the factor log2(e) / sqrt D is applied to a score as it is shifted.  Head widths are
 * padded with zeros to W = 16, 32, 64 or 128 in shared memory; wider heads take the plain kernels at the end. */
#include "kernels/cuda/tiles.cuh"
#include "kernels/kernels.h"

enum { THREADS = 128, WARPS = THREADS / WARP, STREAM = 64, WIDEST = 128 };

/* delta of as many heads at a time as this many queries; a group is then far more work than its two launches. */
static const size_t DELTA_ROWS = (size_t)1 << 22;

static const float LOG2_E = 1.44269504f;

/* Row tiles of 16 that a warp owns.  A pair of streamed tiles takes the time of 2.5 matrix instructions to fetch from
 * shared memory and one row tile uses it in 2: with two the matrix units are the bound again, where the operands
 * (`held` widths of them) and sums of 32 rows still fit in the registers.  Floats take twice the room. */
static constexpr int row_tiles(int W, int held) { return sizeof(real) == 2 && W * held <= 256 ? 2 : 1; }
enum { HELD_FORWARD = 3, HELD_QUERIES = 4, HELD_KEYS = 6 };

static constexpr int owned_rows(int T) { return WARPS * TILE_M * T; }
static constexpr size_t shared_bytes(int W, int T, int owned) {
    return ((size_t)owned * owned_rows(T) + 4 * STREAM) * tile_ld(W) * sizeof(real);
}

typedef struct {
    int N, H, D;
    int first_head;  /* of all B*H, where this launch starts */
    unsigned blocks; /* a head's */
    bool wide;
    float scale; /* 1 / sqrt D */
} Shape;

/* What a block works on: rows first.. of one head. */
typedef struct {
    size_t qkv, y, lse; /* element of the head's first row in each */
    size_t in_launch;   /* the head's first row among those of this launch */
    size_t M;
    int first;
} Place;

DEVICE Place place_of(size_t head_in_launch, int first, Shape s) {
    size_t head = s.first_head + head_in_launch, b = head / s.H, h = head % s.H, M = (size_t)s.H * s.D;
    return {b * s.N * 3 * M + h * s.D, b * s.N * M + h * s.D, head * s.N, head_in_launch * s.N, M, first};
}

DEVICE Place place_of_block(int rows, Shape s) {
    return place_of(blockIdx.x / s.blocks, (int)(blockIdx.x % s.blocks) * rows, s);
}

/* tile = rows first.. of a head, `stride` apart. */
template <int ROWS, int W>
DEVICE void load_rows(real *tile, const real *head, size_t stride, int first, Shape s) {
    const real *from = head + first * stride;
    tile_load<ROWS, W, THREADS>(
        tile, tile_ld(W), [=](int i) { return from + i * stride; }, s.N - first, s.D, s.wide, (int)threadIdx.x);
}

/* rows = scale times what the warp owns, by way of its own rows of `tile`. */
template <int W, int T>
DEVICE void store_owned(real *head, size_t stride, real *tile, const FragmentC (&sum)[T][W / TILE_N],
                        const float (&scale)[T][2], int first, Shape s) {
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
    real *to = head + first * stride;
    tile_store<ROWS, W, WARP>([=](int i) { return to + i * stride; }, tile, LD, s.N - first, s.D, s.wide, lane_id());
}

template <int W, int T>
DEVICE void load_owned(FragmentA (&a)[T][W / TILE_K], const real *tile) {
#pragma unroll
    for (int r = 0; r < T; r++)
#pragma unroll
        for (int k = 0; k < W / TILE_K; k++)
            a[r][k] = load_a(tile + (warp_id() * T + r) * TILE_M * tile_ld(W) + k * TILE_K, tile_ld(W));
}

/* c [16 T, 16] = a x^T for 16 streamed rows x. */
template <int W, int T>
DEVICE void product(FragmentC (*c)[T], const FragmentA (&a)[T][W / TILE_K], const real *x) {
#pragma unroll
    for (int r = 0; r < T; r++) {
        fragment_zero(c[0][r]);
        fragment_zero(c[1][r]);
    }
#pragma unroll
    for (int k = 0; k < W / TILE_K; k++) {
        FragmentB b[2];
        load_b_transposed(b, x + k * TILE_K, tile_ld(W));
#pragma unroll
        for (int r = 0; r < T; r++) {
            mma(c[0][r], a[r][k], b[0]);
            mma(c[1][r], a[r][k], b[1]);
        }
    }
}

/* sum [16 T, W] += p x for 16 streamed rows x. */
template <int W, int T>
DEVICE void accumulate(FragmentC (&sum)[T][W / TILE_N], const FragmentC (*p)[T], const real *x) {
    FragmentA a[T];
#pragma unroll
    for (int r = 0; r < T; r++) a[r] = fragment_a_from_c(p[0][r], p[1][r]);
#pragma unroll
    for (int n = 0; n < W / TILE_N; n += 2) {
        FragmentB b[2];
        load_b(b, x + n * TILE_N, tile_ld(W));
#pragma unroll
        for (int r = 0; r < T; r++) {
            mma(sum[r][n], a[r], b[0]);
            mma(sum[r][n + 1], a[r], b[1]);
        }
    }
}

template <int W, int T>
DEVICE void clear(FragmentC (&sum)[T][W / TILE_N]) {
#pragma unroll
    for (int r = 0; r < T; r++)
#pragma unroll
        for (int n = 0; n < W / TILE_N; n++) fragment_zero(sum[r][n]);
}

/* == Forward ====================================================================================================== */

/* One step of the running softmax for a row tile: the scores become p, and m, l and y take them into account.  m is the
 * same in the four lanes that share a row, l is this lane's share of the sum. */
template <int W, int T>
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

/* Keys past the last one count for nothing. */
template <int T>
DEVICE void mask_keys(FragmentC (*score)[T], int keys) {
#pragma unroll
    for (int n = 0; n < STREAM / TILE_N; n++)
#pragma unroll
        for (int r = 0; r < T; r++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (n * TILE_N + fragment_c_column(i) >= keys) score[n][r].x[i] = -INFINITY;
}

template <int W, int T>
__global__ void __launch_bounds__(THREADS) softmax_forward_kernel(real *y, float *lse, const real *qkv, Shape s) {
    constexpr int LD = tile_ld(W), ROWS = owned_rows(T), STAGE = STREAM * LD;
    SHARED(real, q_tile);                                            /* [ROWS,LD] */
    real *k_tile = q_tile + ROWS * LD, *v_tile = k_tile + 2 * STAGE; /* [2][STREAM,LD] each */
    Place at = place_of_block(ROWS, s);
    const real *q = qkv + at.qkv, *k = q + at.M, *v = k + at.M;
    load_rows<ROWS, W>(q_tile, q, 3 * at.M, at.first, s);
    load_rows<STREAM, W>(k_tile, k, 3 * at.M, 0, s);
    load_rows<STREAM, W>(v_tile, v, 3 * at.M, 0, s);
    copy_commit();

    FragmentA a[T][W / TILE_K];
    FragmentC sum[T][W / TILE_N];
    float m[T][2], l[T][2];
    clear<W, T>(sum);
#pragma unroll
    for (int r = 0; r < T; r++) {
        m[r][0] = m[r][1] = -INFINITY;
        l[r][0] = l[r][1] = 0;
    }
    for (int first = 0, stage = 0; first < s.N; first += STREAM, stage ^= 1) {
        copy_wait<0>();
        block_sync();
        if (first == 0) load_owned<W, T>(a, q_tile);
        if (first + STREAM < s.N) {
            load_rows<STREAM, W>(k_tile + (stage ^ 1) * STAGE, k, 3 * at.M, first + STREAM, s);
            load_rows<STREAM, W>(v_tile + (stage ^ 1) * STAGE, v, 3 * at.M, first + STREAM, s);
        }
        copy_commit();
        FragmentC score[STREAM / TILE_N][T];
#pragma unroll
        for (int j = 0; j < STREAM / TILE_K; j++)
            product<W, T>(score + 2 * j, a, k_tile + stage * STAGE + j * TILE_K * LD);
        if (first + STREAM > s.N) mask_keys<T>(score, s.N - first);
#pragma unroll
        for (int r = 0; r < T; r++) softmax_step<W, T>(score, sum[r], m[r], l[r], r, LOG2_E * s.scale);
#pragma unroll
        for (int j = 0; j < STREAM / TILE_K; j++)
            accumulate<W, T>(sum, score + 2 * j, v_tile + stage * STAGE + j * TILE_K * LD);
    }

#pragma unroll
    for (int r = 0; r < T; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = row_sum(l[r][half]);
            int row = at.first + (warp_id() * T + r) * TILE_M + fragment_c_row(2 * half);
            if (row < s.N && lane_id() % 4 == 0) lse[at.lse + row] = m[r][half] * s.scale + logf(total);
            l[r][half] = 1 / total;
        }
    store_owned<W, T>(y + at.y, at.M, q_tile, sum, l, at.first, s);
}

/* == Backward ===================================================================================================== */

template <int T>
DEVICE void fill(float (&x)[T][2], float value) {
#pragma unroll
    for (int r = 0; r < T; r++) x[r][0] = x[r][1] = value;
}

/* dq, and delta [heads of the launch, N] for the other kernel. */
template <int W, int T>
__global__ void __launch_bounds__(THREADS)
    softmax_backward_queries_kernel(real *dqkv, float *delta, const real *dy, const real *y, const float *lse,
                                    const real *qkv, Shape s) {
    constexpr int LD = tile_ld(W), ROWS = owned_rows(T), STAGE = STREAM * LD;
    SHARED(real, q_tile);                                              /* [ROWS,LD] */
    real *dy_tile = q_tile + ROWS * LD, *k_tile = dy_tile + ROWS * LD; /* [ROWS,LD], [2][STREAM,LD] */
    real *v_tile = k_tile + 2 * STAGE;                                 /* [2][STREAM,LD] */
    Place at = place_of_block(ROWS, s);
    const real *q = qkv + at.qkv, *k = q + at.M, *v = k + at.M;
    load_rows<ROWS, W>(q_tile, q, 3 * at.M, at.first, s);
    load_rows<ROWS, W>(dy_tile, dy + at.y, at.M, at.first, s);
    load_rows<STREAM, W>(k_tile, k, 3 * at.M, 0, s);
    load_rows<STREAM, W>(v_tile, v, 3 * at.M, 0, s);
    copy_commit();
    copy_wait<0>();
    block_sync();

    FragmentA qa[T][W / TILE_K], dya[T][W / TILE_K];
    FragmentC dq[T][W / TILE_N];
    float shift[T][2], row_delta[T][2];
    clear<W, T>(dq);
    load_owned<W, T>(qa, q_tile);
    load_owned<W, T>(dya, dy_tile);
#pragma unroll
    for (int r = 0; r < T; r++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int owned = (warp_id() * T + r) * TILE_M + fragment_c_row(2 * half), row = at.first + owned;
            const real *y_row = y + at.y + row * at.M;
            float dot = 0;
            if (row < s.N)
                for (int c = lane_id() % 4; c < s.D; c += 4)
                    dot += to_float(dy_tile[owned * LD + c]) * to_float(y_row[c]);
            row_delta[r][half] = row_sum(dot);
            shift[r][half] = row < s.N ? LOG2_E * lse[at.lse + row] : 0;
            if (row < s.N && lane_id() % 4 == 0) delta[at.in_launch + row] = row_delta[r][half];
        }

    for (int first = 0, stage = 0; first < s.N; first += STREAM, stage ^= 1) {
        if (first) {
            copy_wait<0>();
            block_sync();
        }
        if (first + STREAM < s.N) {
            load_rows<STREAM, W>(k_tile + (stage ^ 1) * STAGE, k, 3 * at.M, first + STREAM, s);
            load_rows<STREAM, W>(v_tile + (stage ^ 1) * STAGE, v, 3 * at.M, first + STREAM, s);
        }
        copy_commit();
        for (int j = 0; j < STREAM && first + j < s.N; j += TILE_K) {
            const real *k_rows = k_tile + stage * STAGE + j * LD, *v_rows = v_tile + stage * STAGE + j * LD;
            FragmentC score[2][T], t[2][T];
            product<W, T>(score, qa, k_rows);
            product<W, T>(t, dya, v_rows);
            int keys = s.N - first - j;
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int r = 0; r < T; r++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        float p = fast_exp2(score[n][r].x[i] * (LOG2_E * s.scale) - shift[r][i / 2]);
                        p = n * TILE_N + fragment_c_column(i) < keys ? p : 0;
                        score[n][r].x[i] = p * (t[n][r].x[i] - row_delta[r][i / 2]);
                    }
            accumulate<W, T>(dq, score, k_rows);
        }
    }
    fill<T>(shift, s.scale);
    store_owned<W, T>(dqkv + at.qkv, 3 * at.M, q_tile, dq, shift, at.first, s);
}

/* What query first + thread % STREAM needs beside q and dy: its lse as a power of two, or its delta.  A query past the
 * last one gives p = 0. */
DEVICE float query_statistic(const float *lse, const float *delta, int first, int N) {
    int row = first + (int)threadIdx.x % STREAM;
    if (threadIdx.x < STREAM) return row < N ? LOG2_E * lse[row] : INFINITY;
    return row < N ? delta[row] : 0;
}

/* dk and dv. */
template <int W, int T>
__global__ void __launch_bounds__(THREADS) softmax_backward_keys_kernel(real *dqkv, const float *delta, const real *dy,
                                                                        const float *lse, const real *qkv, Shape s) {
    static_assert(THREADS == 2 * STREAM, "a thread holds one statistic of one query");
    constexpr int LD = tile_ld(W), ROWS = owned_rows(T), STAGE = STREAM * LD;
    SHARED(real, k_tile);                                               /* [ROWS,LD] */
    real *v_tile = k_tile + ROWS * LD, *q_tile = v_tile + ROWS * LD;    /* [ROWS,LD], [2][STREAM,LD] */
    real *dy_tile = q_tile + 2 * STAGE;                                 /* [2][STREAM,LD] */
    float *statistics = reinterpret_cast<float *>(dy_tile + 2 * STAGE); /* [2][lse, delta][STREAM] */
    Place at = place_of_block(ROWS, s);
    const real *q = qkv + at.qkv, *k = q + at.M, *v = k + at.M;
    load_rows<ROWS, W>(k_tile, k, 3 * at.M, at.first, s);
    load_rows<ROWS, W>(v_tile, v, 3 * at.M, at.first, s);
    load_rows<STREAM, W>(q_tile, q, 3 * at.M, 0, s);
    load_rows<STREAM, W>(dy_tile, dy + at.y, at.M, 0, s);
    copy_commit();
    float held = query_statistic(lse + at.lse, delta + at.in_launch, 0, s.N);

    FragmentA ka[T][W / TILE_K], va[T][W / TILE_K];
    FragmentC dk[T][W / TILE_N], dv[T][W / TILE_N];
    clear<W, T>(dk);
    clear<W, T>(dv);
    for (int first = 0, stage = 0; first < s.N; first += STREAM, stage ^= 1) {
        float *shift = statistics + stage * THREADS, *query_delta = shift + STREAM;
        shift[threadIdx.x] = held;
        copy_wait<0>();
        block_sync();
        if (first == 0) {
            load_owned<W, T>(ka, k_tile);
            load_owned<W, T>(va, v_tile);
        }
        if (first + STREAM < s.N) {
            load_rows<STREAM, W>(q_tile + (stage ^ 1) * STAGE, q, 3 * at.M, first + STREAM, s);
            load_rows<STREAM, W>(dy_tile + (stage ^ 1) * STAGE, dy + at.y, at.M, first + STREAM, s);
            held = query_statistic(lse + at.lse, delta + at.in_launch, first + STREAM, s.N);
        }
        copy_commit();
        for (int j = 0; j < STREAM && first + j < s.N; j += TILE_K) {
            const real *q_rows = q_tile + stage * STAGE + j * LD, *dy_rows = dy_tile + stage * STAGE + j * LD;
            FragmentC p[2][T], t[2][T];
            product<W, T>(p, ka, q_rows);
            product<W, T>(t, va, dy_rows);
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int query = j + n * TILE_N + fragment_c_column(i);
#pragma unroll
                    for (int r = 0; r < T; r++) {
                        p[n][r].x[i] = fast_exp2(p[n][r].x[i] * (LOG2_E * s.scale) - shift[query]);
                        t[n][r].x[i] = p[n][r].x[i] * (t[n][r].x[i] - query_delta[query]);
                    }
                }
            accumulate<W, T>(dv, p, dy_rows);
            accumulate<W, T>(dk, t, q_rows);
        }
    }
    float factor[T][2];
    fill<T>(factor, s.scale);
    store_owned<W, T>(dqkv + at.qkv + at.M, 3 * at.M, k_tile, dk, factor, at.first, s);
    fill<T>(factor, 1);
    store_owned<W, T>(dqkv + at.qkv + 2 * at.M, 3 * at.M, v_tile, dv, factor, at.first, s);
}

/* == Heads wider than 128 ========================================================================================= */

/* A warp per row, this many columns of the result at a time; the scores are formed again for each such stretch. */
enum { LANE_COLUMNS = 8, STRETCH = LANE_COLUMNS * WARP };

DEVICE float warp_dot(const real *a, const real *b, int D) {
    float sum = 0;
    for (int c = lane_id(); c < D; c += WARP) sum += to_float(a[c]) * to_float(b[c]);
    return warp_sum(sum);
}

/* sum += factor times columns first.. of x. */
DEVICE void add_row(float (&sum)[LANE_COLUMNS], float factor, const real *x, int first, int D) {
#pragma unroll
    for (int i = 0; i < LANE_COLUMNS; i++) {
        int c = first + i * WARP + lane_id();
        if (c < D) sum[i] += factor * to_float(x[c]);
    }
}

DEVICE void put_row(real *to, const float (&sum)[LANE_COLUMNS], float factor, int first, int D) {
#pragma unroll
    for (int i = 0; i < LANE_COLUMNS; i++) {
        int c = first + i * WARP + lane_id();
        if (c < D) to[c] = to_real(factor * sum[i]);
    }
}

__global__ void __launch_bounds__(THREADS) softmax_forward_wide_kernel(real *y, float *lse, const real *qkv, Shape s) {
    Place at = place_of(blockIdx.x / s.blocks, (int)(blockIdx.x % s.blocks) * WARPS + warp_id(), s);
    if (at.first >= s.N) return;
    const real *q = qkv + at.qkv + at.first * 3 * at.M, *k = qkv + at.qkv + at.M, *v = k + at.M;
    float m = -INFINITY, l = 0;
    for (int j = 0; j < s.N; j++) {
        float score = s.scale * warp_dot(q, k + j * 3 * at.M, s.D), seen = fmaxf(m, score);
        l = l * fast_exp2(LOG2_E * (m - seen)) + fast_exp2(LOG2_E * (score - seen));
        m = seen;
    }
    if (lane_id() == 0) lse[at.lse + at.first] = m + logf(l);
    for (int first = 0; first < s.D; first += STRETCH) {
        float sum[LANE_COLUMNS] = {};
        for (int j = 0; j < s.N; j++) {
            float score = s.scale * warp_dot(q, k + j * 3 * at.M, s.D);
            add_row(sum, fast_exp2(LOG2_E * (score - m)), v + j * 3 * at.M, first, s.D);
        }
        put_row(y + at.y + at.first * at.M, sum, 1 / l, first, s.D);
    }
}

__global__ void __launch_bounds__(THREADS)
    softmax_backward_queries_wide_kernel(real *dqkv, float *delta, const real *dy, const real *y, const float *lse,
                                         const real *qkv, Shape s) {
    Place at = place_of(blockIdx.x / s.blocks, (int)(blockIdx.x % s.blocks) * WARPS + warp_id(), s);
    if (at.first >= s.N) return;
    const real *q = qkv + at.qkv + at.first * 3 * at.M, *k = qkv + at.qkv + at.M, *v = k + at.M;
    const real *dy_row = dy + at.y + at.first * at.M;
    float row_delta = warp_dot(dy_row, y + at.y + at.first * at.M, s.D), row_lse = lse[at.lse + at.first];
    if (lane_id() == 0) delta[at.in_launch + at.first] = row_delta;
    for (int first = 0; first < s.D; first += STRETCH) {
        float sum[LANE_COLUMNS] = {};
        for (int j = 0; j < s.N; j++) {
            float p = fast_exp2(LOG2_E * (s.scale * warp_dot(q, k + j * 3 * at.M, s.D) - row_lse));
            add_row(sum, p * (warp_dot(dy_row, v + j * 3 * at.M, s.D) - row_delta), k + j * 3 * at.M, first, s.D);
        }
        put_row(dqkv + at.qkv + at.first * 3 * at.M, sum, s.scale, first, s.D);
    }
}

__global__ void __launch_bounds__(THREADS)
    softmax_backward_keys_wide_kernel(real *dqkv, const float *delta, const real *dy, const float *lse, const real *qkv,
                                      Shape s) {
    Place at = place_of(blockIdx.x / s.blocks, (int)(blockIdx.x % s.blocks) * WARPS + warp_id(), s);
    if (at.first >= s.N) return;
    const real *q = qkv + at.qkv, *k = q + at.M + at.first * 3 * at.M, *v = k + at.M;
    real *dk = dqkv + at.qkv + at.M + at.first * 3 * at.M;
    for (int first = 0; first < s.D; first += STRETCH) {
        float sum_k[LANE_COLUMNS] = {}, sum_v[LANE_COLUMNS] = {};
        for (int i = 0; i < s.N; i++) {
            const real *q_row = q + i * 3 * at.M, *dy_row = dy + at.y + i * at.M;
            float p = fast_exp2(LOG2_E * (s.scale * warp_dot(k, q_row, s.D) - lse[at.lse + i]));
            add_row(sum_v, p, dy_row, first, s.D);
            add_row(sum_k, p * (warp_dot(v, dy_row, s.D) - delta[at.in_launch + i]), q_row, first, s.D);
        }
        put_row(dk, sum_k, s.scale, first, s.D);
        put_row(dk + at.M, sum_v, 1, first, s.D);
    }
}

/* == Launches ===================================================================================================== */

/* launch(W) for the width that holds D <= WIDEST. */
template <typename Launch>
static void with_width(int D, Launch launch) {
    if (D <= 16) launch(Constant<16>());
    else if (D <= 32) launch(Constant<32>());
    else if (D <= 64) launch(Constant<64>());
    else launch(Constant<WIDEST>());
}

/* launch(W, T): one row tile a warp where two would have rows for one. */
template <int held, typename Launch>
static void with_tiles(int N, int D, Launch launch) {
    with_width(D, [&](auto width) {
        constexpr int T = row_tiles(width.value, held);
        if (N <= owned_rows(1)) launch(width, Constant<1>());
        else launch(width, Constant<T>());
    });
}

static Shape shape_of(int N, int H, int D, size_t first_head, bool wide) {
    return {N, H, D, (int)first_head, 0, wide, 1 / sqrtf((float)D)};
}

/* With so many rows to a block. */
static Shape blocks_of(Shape s, int rows) {
    s.blocks = (unsigned)ceil_div(s.N, rows);
    return s;
}

void softmax_attention_forward(real *y, float *lse, const real *qkv, int B, int N, int H, int D) {
    Shape s = shape_of(N, H, D, 0, is_wide(D, y, qkv));
    size_t heads = (size_t)B * H;
    if (D > WIDEST) {
        s = blocks_of(s, WARPS);
        LAUNCH(softmax_forward_wide_kernel, (unsigned)(heads * s.blocks), THREADS, 0, y, lse, qkv, s);
        return;
    }
    with_tiles<HELD_FORWARD>(N, D, [&](auto width, auto tiles) {
        constexpr int W = width.value, T = tiles.value;
        s = blocks_of(s, owned_rows(T));
        LAUNCH((softmax_forward_kernel<W, T>), (unsigned)(heads * s.blocks), THREADS, shared_bytes(W, T, 1), y, lse,
               qkv, s);
    });
}

static size_t heads_at_once(int N) { return DELTA_ROWS / N > 0 ? DELTA_ROWS / N : 1; }

size_t softmax_attention_workspace(int N, int D) {
    (void)D;
    return heads_at_once(N) * N * sizeof(float);
}

static void backward_wide(real *dqkv, float *delta, const real *dy, const real *y, const float *lse, const real *qkv,
                          size_t heads, Shape s) {
    s = blocks_of(s, WARPS);
    LAUNCH(softmax_backward_queries_wide_kernel, (unsigned)(heads * s.blocks), THREADS, 0, dqkv, delta, dy, y, lse, qkv,
           s);
    LAUNCH(softmax_backward_keys_wide_kernel, (unsigned)(heads * s.blocks), THREADS, 0, dqkv, delta, dy, lse, qkv, s);
}

static void backward(real *dqkv, float *delta, const real *dy, const real *y, const float *lse, const real *qkv,
                     size_t heads, Shape s) {
    with_tiles<HELD_QUERIES>(s.N, s.D, [&](auto width, auto tiles) {
        constexpr int W = width.value, T = tiles.value;
        s = blocks_of(s, owned_rows(T));
        LAUNCH((softmax_backward_queries_kernel<W, T>), (unsigned)(heads * s.blocks), THREADS, shared_bytes(W, T, 2),
               dqkv, delta, dy, y, lse, qkv, s);
    });
    with_tiles<HELD_KEYS>(s.N, s.D, [&](auto width, auto tiles) {
        constexpr int W = width.value, T = tiles.value;
        s = blocks_of(s, owned_rows(T));
        LAUNCH((softmax_backward_keys_kernel<W, T>), (unsigned)(heads * s.blocks), THREADS,
               shared_bytes(W, T, 2) + 2 * THREADS * sizeof(float), dqkv, delta, dy, lse, qkv, s);
    });
}

void softmax_attention_backward(real *dqkv, const real *dy, const real *y, const float *lse, const real *qkv, int B,
                                int N, int H, int D) {
    size_t heads = (size_t)B * H, most = heads_at_once(N);
    float *delta = static_cast<float *>(kernels_workspace(softmax_attention_workspace(N, D)));
    for (size_t first = 0; first < heads; first += most) {
        size_t count = heads - first < most ? heads - first : most;
        Shape s = shape_of(N, H, D, first, is_wide(D, dqkv, dy, qkv));
        (D > WIDEST ? backward_wide : backward)(dqkv, delta, dy, y, lse, qkv, count, s);
    }
}
