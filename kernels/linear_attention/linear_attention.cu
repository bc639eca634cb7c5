/* Linear attention; the formulas are those of kernels/linear_attention/linear_attention.c.
 *   forward   sums     S = sum_m phi(k_m) [v_m, 1]^T            a block for each (head, chunk of tokens)
 *             rows     [num_n, s_n] = phi(q_n)^T S,  den_n = rule(s_n),  y_n = num_n / den_n
 *   backward  queries  dphi(q_n) = S [dy_n, -dy_n.y_n] / den_n,  dS = sum_n (phi(q_n) / den_n) [dy_n, -dy_n.y_n]^T
 *             keys     dphi(k_m) = dS [v_m, 1],  dv_m = dS^T phi(k_m)
 *   saves     den, S.
 *
 * Each pass reads its activations once and is limited by memory bandwidth, so that more exact products take no extra
 * time: S and dS enter products as the sum of two bfloat16 tiles, high and low, and besides activations only phi / den
 * is rounded.  If there are few heads, their tokens are divided into chunks, whose sums a third kernel adds in order.
 *
 * In shared memory F and D are padded with zeros to P and W, and the 1 after v is column W of W + 16. */
#include "kernels/cuda/tiles.cuh"
#include "kernels/linear_attention/linear_attention.h"

enum { THREADS = 128, WARPS = THREADS / WARP, TOKENS = WARPS * TILE_M };

/* The largest F or D whose tiles fit into the shared memory of any GPU. */
static constexpr int WIDEST = sizeof(real) == 2 ? 128 : 64;

/* Number of blocks that fills a large device; with fewer heads the tokens are divided into chunks. */
enum { BLOCKS = 1024 };

DEVICE float denominator(float sum, Denominator rule) {
    const float epsilon = 1e-6f, nearest = 1e-2f;
    if (rule == DENOMINATOR_EPSILON) return sum + epsilon;
    return fabsf(sum) < nearest ? copysignf(nearest, sum) : sum;
}

/* True if den depends on the sum of the weights; false if the rule has replaced it by a constant. */
DEVICE bool follows(float den, Denominator rule) { return rule == DENOMINATOR_EPSILON || !(fabsf(den) <= 1e-2f); }

/* The sizes of a launch over queries or of one over keys. */
typedef struct {
    int N; /* queries, or keys */
    int H, D, F;
    int first_head; /* first head of this launch, of all B*H */
    unsigned heads; /* of this launch */
    int chunks;     /* a head's */
    bool wide_phi, wide_v, wide_y;
    Denominator rule;
    float one; /* the column after v: 1, or 0 with DENOMINATOR_GIVEN */
    size_t phi_row, v_row; /* elements from one token to the next */
} LinearAttentionShape;

/* One head's first rows and the distances of the next ones, in elements; chunk: tokens first .. end-1. */
typedef struct {
    size_t phi, v, y, den, M, phi_row, v_row;
    size_t in_launch;                     /* of the heads of this launch */
    int chunk, first, end;
} LinearPlace;

DEVICE LinearPlace place_of(size_t in_launch, int chunk, LinearAttentionShape s) {
    size_t head = s.first_head + in_launch, b = head / s.H, h = head % s.H, M = (size_t)s.H * s.D;
    int tiles = (s.N + TOKENS - 1) / TOKENS;
    LinearPlace at;
    at.phi = b * s.N * s.phi_row + h * s.F;
    at.v = (b * s.N + 1) * s.v_row - M + h * s.D;
    at.y = b * s.N * M + h * s.D;
    at.den = b * s.N * s.H + h;
    at.M = M;
    at.phi_row = s.phi_row;
    at.v_row = s.v_row;
    at.in_launch = in_launch;
    at.chunk = chunk;
    at.first = (int)((size_t)tiles * chunk / s.chunks) * TOKENS;
    at.end = (int)((size_t)tiles * (chunk + 1) / s.chunks) * TOKENS;
    if (at.end > s.N) at.end = s.N;
    return at;
}

/* Neighbouring heads run at the same time, because their rows are adjacent. */
DEVICE LinearPlace place_of_block(LinearAttentionShape s) {
    return place_of(blockIdx.x % s.heads, (int)(blockIdx.x / s.heads), s);
}

/* Tiles [.., x_ld] contain [x, 1]: W columns and those of one more product. */
static constexpr int x_ld(int W) { return tile_ld(W + TILE_K); }

template <int ROWS, int COLUMNS, int COUNT>
DEVICE void load_rows(real *tile, int ld, const real *rows, size_t stride, int first, int end, int columns, bool wide,
                      int thread) {
    const real *from = rows + first * stride;
    tile_load<ROWS, COLUMNS, COUNT>(
        tile, ld, [=](int i) { return from + i * stride; }, end - first, columns, wide, thread);
}

/* The warp's own rows of a tile. */
template <int COLUMNS>
DEVICE void store_rows(real *rows, size_t stride, const real *tile, int ld, int first, int end, int columns,
                       bool wide) {
    real *to = rows + first * stride;
    tile_store<TILE_M, COLUMNS, WARP>([=](int i) { return to + i * stride; }, tile, ld, end - first, columns, wide,
                                      lane_id());
}

/* Columns W .. W+15 of `rows` rows: one, then zeros. */
template <int W>
DEVICE void fill_ones(real *tile, int rows, float one) {
    for (int i = (int)threadIdx.x; i < rows * TILE_K; i += THREADS)
        tile[i / TILE_K * x_ld(W) + W + i % TILE_K] = to_real(i % TILE_K ? 0 : one);
}

/* tile [P,x_ld] = sums [F,D+1], and a second tile = their rounding errors. */
template <int P, int W>
DEVICE void load_sums(real *tile, const float *sums, LinearAttentionShape s) {
    for (int i = (int)threadIdx.x; i < P * (W + TILE_K); i += THREADS) {
        int f = i / (W + TILE_K), c = i % (W + TILE_K), from = c < W ? c : s.D;
        bool inside = f < s.F && (c < W ? c < s.D : c == W);
        float x = inside ? sums[(size_t)f * (s.D + 1) + from] : 0;
        real high = to_real(x);
        tile[f * x_ld(W) + c] = high;
        if (SPLIT) tile[(P + f) * x_ld(W) + c] = to_real(x - to_float(high));
    }
}

/* c += a b and c += a b^T for the pair of B tiles at p of such a matrix, K row tiles deep. */
template <int P, int W, int K>
DEVICE void multiply(FragmentC (&c)[2], const FragmentA (&a)[K], const real *p) {
#pragma unroll
    for (int part = 0; part <= SPLIT; part++)
#pragma unroll
        for (int k = 0; k < K; k++) {
            FragmentB b[2];
            load_b(b, p + (part * P + k * TILE_K) * x_ld(W), x_ld(W));
            mma(c[0], a[k], b[0]);
            mma(c[1], a[k], b[1]);
        }
}
template <int P, int W, int K>
DEVICE void multiply_transposed(FragmentC (&c)[2], const FragmentA (&a)[K], const real *p) {
#pragma unroll
    for (int part = 0; part <= SPLIT; part++)
#pragma unroll
        for (int k = 0; k < K; k++) {
            FragmentB b[2];
            load_b_transposed(b, p + part * P * x_ld(W) + k * TILE_K, x_ld(W));
            mma(c[0], a[k], b[0]);
            mma(c[1], a[k], b[1]);
        }
}

template <int K>
DEVICE void load_owned(FragmentA (&a)[K], const real *rows, int ld) {
#pragma unroll
    for (int k = 0; k < K; k++) a[k] = load_a(rows + k * TILE_K, ld);
}

/* == Sums over tokens ============================================================================================= */

/* A warp's share of S: 32 features by all columns, over every TOKEN_GROUPS-th slice of 16 tokens. */
template <int P, int W>
struct Outer {
    static constexpr int FEATURE_GROUPS = P / 32, TOKEN_GROUPS = WARPS / FEATURE_GROUPS, COLUMNS = W + TILE_N;
    FragmentC sum[2][COLUMNS / TILE_N];

    __device__ __forceinline__ Outer() {
#pragma unroll
        for (int n = 0; n < COLUMNS / TILE_N; n++) {
            fragment_zero(sum[0][n]);
            fragment_zero(sum[1][n]);
        }
    }

    /* sum += phi^T x over one tile of tokens: phi [TOKENS,tile_ld(P)], x [TOKENS,x_ld(W)]. */
    __device__ __forceinline__ void add(const real *phi, const real *x) {
        phi += warp_id() % FEATURE_GROUPS * 32;
#pragma unroll
        for (int slice = 0; slice < TOKENS / TILE_K / TOKEN_GROUPS; slice++) {
            int token = (slice * TOKEN_GROUPS + warp_id() / FEATURE_GROUPS) * TILE_K;
            FragmentA a[2];
            a[0] = load_a_transposed(phi + token * tile_ld(P), tile_ld(P));
            a[1] = load_a_transposed(phi + token * tile_ld(P) + TILE_M, tile_ld(P));
#pragma unroll
            for (int n = 0; n < COLUMNS / TILE_N; n += 2) {
                FragmentB b[2];
                load_b(b, x + token * x_ld(W) + n * TILE_N, x_ld(W));
#pragma unroll
                for (int j = 0; j < 2; j++)
                    if (n + j < COLUMNS / TILE_N) {
                        mma(sum[0][n + j], a[0], b[j]);
                        mma(sum[1][n + j], a[1], b[j]);
                    }
            }
        }
    }

    /* to [F,D+1] = the warps' sums in order, columns W and W+1 together last; parts [TOKEN_GROUPS,P,COLUMNS] shared. */
    __device__ __forceinline__ void store(float *to, float *parts, LinearAttentionShape s) {
        int feature = warp_id() % FEATURE_GROUPS * 32, group = warp_id() / FEATURE_GROUPS;
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int n = 0; n < COLUMNS / TILE_N; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    parts[(group * P + feature + r * TILE_M + fragment_c_row(i)) * COLUMNS + n * TILE_N +
                          fragment_c_column(i)] = sum[r][n].x[i];
        block_sync();
        for (int at = (int)threadIdx.x; at < s.F * (s.D + 1); at += THREADS) {
            int f = at / (s.D + 1), c = at % (s.D + 1);
            float total = 0;
            for (int g = 0; g < TOKEN_GROUPS; g++) {
                const float *row = parts + (g * P + f) * COLUMNS;
                total += c < s.D ? row[c] : row[W] + row[W + 1];
            }
            to[at] = total;
        }
    }
};

template <int P, int W>
static constexpr size_t parts_bytes() {
    return sizeof(float) * Outer<P, W>::TOKEN_GROUPS * P * Outer<P, W>::COLUMNS;
}
static constexpr size_t larger(size_t a, size_t b) { return a > b ? a : b; }

template <int P, int W>
static constexpr size_t sums_bytes() {
    return larger(2 * TOKENS * (tile_ld(P) + x_ld(W)) * sizeof(real), parts_bytes<P, W>());
}

/* sums [heads of the launch][chunks][F,D+1]. */
template <int P, int W>
__global__ void __launch_bounds__(THREADS)
    linear_sums_kernel(float *sums, const real *phi, const real *qkv, LinearAttentionShape s) {
    SHARED(real, phi_tile);                            /* [2][TOKENS,tile_ld(P)] */
    real *x_tile = phi_tile + 2 * TOKENS * tile_ld(P); /* [2][TOKENS,x_ld(W)] */
    LinearPlace at = place_of_block(s);
    phi += at.phi;
    qkv += at.v;
    auto fetch = [&](int first, int stage) {
        load_rows<TOKENS, P, THREADS>(phi_tile + stage * TOKENS * tile_ld(P), tile_ld(P), phi, at.phi_row, first,
                                      at.end, s.F, s.wide_phi, (int)threadIdx.x);
        load_rows<TOKENS, W, THREADS>(x_tile + stage * TOKENS * x_ld(W), x_ld(W), qkv, at.v_row, first, at.end, s.D,
                                      s.wide_v, (int)threadIdx.x);
    };
    fill_ones<W>(x_tile, 2 * TOKENS, s.one);
    fetch(at.first, 0);
    copy_commit();
    Outer<P, W> outer;
    for (int first = at.first, stage = 0; first < at.end; first += TOKENS, stage ^= 1) {
        copy_wait<0>();
        block_sync();
        if (first + TOKENS < at.end) fetch(first + TOKENS, stage ^ 1);
        copy_commit();
        outer.add(phi_tile + stage * TOKENS * tile_ld(P), x_tile + stage * TOKENS * x_ld(W));
    }
    block_sync();
    outer.store(sums + (at.in_launch * s.chunks + at.chunk) * s.F * (s.D + 1), reinterpret_cast<float *>(phi_tile), s);
}

/* sums [heads][size] = parts [heads][chunks][size], chunk by chunk. */
__global__ void __launch_bounds__(THREADS)
    linear_join_kernel(float *sums, const float *parts, size_t count, int size, int chunks) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const float *from = parts + i / size * chunks * size + i % size;
    float sum = 0;
#pragma unroll 8
    for (int c = 0; c < chunks; c++) sum += from[(size_t)c * size];
    sums[i] = sum;
}

/* == Rows ========================================================================================================= */

/* In the kernels below, each warp processes every fourth slice of 16 tokens of its block's chunk, and loads the next
 * slice meanwhile. */

template <int P, int W>
static constexpr size_t forward_bytes() {
    return ((1 + SPLIT) * P * x_ld(W) + TOKENS * (2 * tile_ld(P) + tile_ld(W))) * sizeof(real);
}

template <int P, int W>
__global__ void __launch_bounds__(THREADS)
    linear_forward_kernel(real *y, float *den, const float *kv, const real *phi, LinearAttentionShape s) {
    constexpr int SLICE = TILE_M * tile_ld(P);
    SHARED(real, sums);                                                        /* [1 + SPLIT][P,x_ld(W)] */
    real *phi_tile = sums + (1 + SPLIT) * P * x_ld(W) + warp_id() * 2 * SLICE; /* the warp's [2][TILE_M,tile_ld(P)] */
    real *y_tile = sums + (1 + SPLIT) * P * x_ld(W) + WARPS * 2 * SLICE + warp_id() * TILE_M * tile_ld(W);
    LinearPlace at = place_of_block(s);
    auto fetch = [&](int first, int stage) {
        load_rows<TILE_M, P, WARP>(phi_tile + stage * SLICE, tile_ld(P), phi + at.phi, at.phi_row, first, at.end, s.F,
                                   s.wide_phi, lane_id());
    };
    int mine = at.first + warp_id() * TILE_M;
    if (mine < at.end) fetch(mine, 0);
    copy_commit();
    load_sums<P, W>(sums, kv + (s.first_head + at.in_launch) * s.F * (s.D + 1), s);
    block_sync();
    for (int first = mine, stage = 0; first < at.end; first += TOKENS, stage ^= 1) {
        copy_wait<0>();
        warp_sync();
        if (first + TOKENS < at.end) fetch(first + TOKENS, stage ^ 1);
        copy_commit();
        FragmentA a[P / TILE_K];
        FragmentC c[2];
        load_owned(a, phi_tile + stage * SLICE, tile_ld(P));
        fragment_zero(c[0]);
        fragment_zero(c[1]);
        multiply<P, W>(c, a, sums + W);
        float inverse[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = warp_shuffle(c[0].x[2 * half], lane_id() & ~3);
            int row = first + fragment_c_row(2 * half);
            float *own = den + at.den + (size_t)(row < at.end ? row : first) * s.H;
            if (s.rule != DENOMINATOR_GIVEN) sum = denominator(sum, s.rule);
            else sum = *own;
            if (s.rule != DENOMINATOR_GIVEN && lane_id() % 4 == 0 && row < at.end) *own = sum;
            inverse[half] = 1 / sum;
        }
#pragma unroll
        for (int n = 0; n < W; n += 2 * TILE_N) {
            fragment_zero(c[0]);
            fragment_zero(c[1]);
            multiply<P, W>(c, a, sums + n);
#pragma unroll
            for (int j = 0; j < 2; j++) {
#pragma unroll
                for (int i = 0; i < 4; i++) c[j].x[i] *= inverse[i / 2];
                tile_put(y_tile + n + j * TILE_N, tile_ld(W), c[j], 1);
            }
        }
        warp_sync();
        store_rows<W>(y + at.y, at.M, y_tile, tile_ld(W), first, at.end, s.D, s.wide_y);
    }
}

template <int P, int W>
static constexpr size_t queries_bytes() {
    size_t tiles = TOKENS * (2 * x_ld(W) + 3 * tile_ld(P)) * sizeof(real);
    return P * sizeof(float) + (1 + SPLIT) * P * x_ld(W) * sizeof(real) + larger(tiles, parts_bytes<P, W>());
}

/* The warp's 16 rows h = S dy: out = dphi = (h - z dy.y) / den, without z where den is a constant, and the factors of
 * dS: phi / den, and dy followed by -dy.y and, in the next column, the rounding error of that.  dy.y is computed from
 * h, as phi.h / den, which is more exact than with the rounded y and does not read y. */
template <int P, int W>
DEVICE void query_gradients(real *out, real *phi, real *x, const FragmentC (&h)[P / TILE_N], const float *z,
                            const float (&den)[2], Denominator rule) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float inverse = 1 / den[half];
        int row = fragment_c_row(2 * half), column = fragment_c_column(0);
        float dot = 0, features[P / TILE_N][2];
#pragma unroll
        for (int n = 0; n < P / TILE_N; n++) {
            load<2>(features[n], phi + row * tile_ld(P) + n * TILE_N + column);
            dot += features[n][0] * h[n].x[2 * half] + features[n][1] * h[n].x[2 * half + 1];
        }
        dot = row_sum(dot) * inverse;
        if (rule == DENOMINATOR_GIVEN || !follows(den[half], rule)) dot = 0;
#pragma unroll
        for (int n = 0; n < P / TILE_N; n++) {
            float dphi[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                dphi[i] = (h[n].x[2 * half + i] - z[n * TILE_N + column + i] * dot) * inverse;
                features[n][i] *= inverse;
            }
            store<2>(out + row * tile_ld(P) + n * TILE_N + column, dphi);
            store<2>(phi + row * tile_ld(P) + n * TILE_N + column, features[n]);
        }
        if (lane_id() % 4 == 0) {
            real high = to_real(-dot);
            x[row * x_ld(W) + W] = high;
            x[row * x_ld(W) + W + 1] = to_real(-dot - to_float(high));
        }
    }
}

/* dphi of q, and dS [heads of the launch][chunks][F,D+1]. */
template <int P, int W>
__global__ void __launch_bounds__(THREADS)
    linear_backward_queries_kernel(float *ds, real *dphi, const real *dy, const float *den, const float *kv,
                                   const real *phi, LinearAttentionShape s) {
    SHARED(float, z);                                  /* [P], the last column of S */
    real *sums = reinterpret_cast<real *>(z + P);      /* [1 + SPLIT][P,x_ld(W)] */
    real *phi_tile = sums + (1 + SPLIT) * P * x_ld(W); /* [2][TOKENS,tile_ld(P)]: phi, then phi / den */
    real *x_tile = phi_tile + 2 * TOKENS * tile_ld(P); /* [2][TOKENS,x_ld(W)]: [dy, -dy.y] */
    real *out_tile = x_tile + 2 * TOKENS * x_ld(W);    /* [TOKENS,tile_ld(P)] */
    LinearPlace at = place_of_block(s);
    int owned = warp_id() * TILE_M;
    auto fetch = [&](int first, int stage) {
        load_rows<TOKENS, P, THREADS>(phi_tile + stage * TOKENS * tile_ld(P), tile_ld(P), phi + at.phi, at.phi_row,
                                      first, at.end, s.F, s.wide_phi, (int)threadIdx.x);
        load_rows<TOKENS, W, THREADS>(x_tile + stage * TOKENS * x_ld(W), x_ld(W), dy + at.y, at.M, first, at.end, s.D,
                                      s.wide_y, (int)threadIdx.x);
    };
    auto fetch_den = [&](int first, int half) {
        int row = first + owned + fragment_c_row(2 * half);
        return row < at.end ? den[at.den + (size_t)row * s.H] : 1;
    };
    fetch(at.first, 0);
    copy_commit();
    float held[2] = {fetch_den(at.first, 0), fetch_den(at.first, 1)};
    kv += (s.first_head + at.in_launch) * s.F * (s.D + 1);
    load_sums<P, W>(sums, kv, s);
    for (int f = (int)threadIdx.x; f < P; f += THREADS) z[f] = f < s.F ? kv[(size_t)f * (s.D + 1) + s.D] : 0;
    fill_ones<W>(x_tile, 2 * TOKENS, 0);
    Outer<P, W> outer;
    for (int first = at.first, stage = 0; first < at.end; first += TOKENS, stage ^= 1) {
        real *phi_rows = phi_tile + stage * TOKENS * tile_ld(P), *x_rows = x_tile + stage * TOKENS * x_ld(W);
        real *out = out_tile + owned * tile_ld(P);
        float own[2] = {held[0], held[1]};
        copy_wait<0>();
        block_sync();
        if (first + TOKENS < at.end) {
            fetch(first + TOKENS, stage ^ 1);
            held[0] = fetch_den(first + TOKENS, 0);
            held[1] = fetch_den(first + TOKENS, 1);
        }
        copy_commit();
        FragmentA a[W / TILE_K];
        FragmentC h[P / TILE_N];
        load_owned(a, x_rows + owned * x_ld(W), x_ld(W));
#pragma unroll
        for (int n = 0; n < P / TILE_N; n += 2) {
            FragmentC c[2] = {};
            multiply_transposed<P, W>(c, a, sums + n * TILE_N * x_ld(W));
            h[n] = c[0];
            h[n + 1] = c[1];
        }
        query_gradients<P, W>(out, phi_rows + owned * tile_ld(P), x_rows + owned * x_ld(W), h, z, own, s.rule);
        block_sync();
        outer.add(phi_rows, x_rows);
        store_rows<P>(dphi + at.phi, at.phi_row, out, tile_ld(P), first + owned, at.end, s.F, s.wide_phi);
    }
    block_sync();
    outer.store(ds + (at.in_launch * s.chunks + at.chunk) * s.F * (s.D + 1), reinterpret_cast<float *>(phi_tile), s);
}

template <int P, int W>
static constexpr size_t keys_bytes() {
    return ((1 + SPLIT) * P * x_ld(W) + 2 * TOKENS * (tile_ld(P) + x_ld(W))) * sizeof(real);
}

/* dphi of k, and dv. */
template <int P, int W>
__global__ void __launch_bounds__(THREADS)
    linear_backward_keys_kernel(real *dqkv, real *dphi, const float *ds, const real *phi, const real *qkv,
                                LinearAttentionShape s) {
    constexpr int PHI_SLICE = TILE_M * tile_ld(P), X_SLICE = TILE_M * x_ld(W);
    SHARED(real, sums);                               /* [1 + SPLIT][P,x_ld(W)] */
    real *x_tiles = sums + (1 + SPLIT) * P * x_ld(W); /* [WARPS][2][TILE_M,x_ld(W)]: [v, 1], then dv */
    real *x_tile = x_tiles + warp_id() * 2 * X_SLICE;
    real *phi_tile = x_tiles + WARPS * 2 * X_SLICE + warp_id() * 2 * PHI_SLICE; /* [2][TILE_M,tile_ld(P)], then dphi */
    LinearPlace at = place_of_block(s);
    auto fetch = [&](int first, int stage) {
        load_rows<TILE_M, P, WARP>(phi_tile + stage * PHI_SLICE, tile_ld(P), phi + at.phi, at.phi_row, first,
                                   at.end, s.F, s.wide_phi, lane_id());
        load_rows<TILE_M, W, WARP>(x_tile + stage * X_SLICE, x_ld(W), qkv + at.v, at.v_row, first, at.end, s.D,
                                   s.wide_v, lane_id());
    };
    int mine = at.first + warp_id() * TILE_M;
    if (mine < at.end) fetch(mine, 0);
    copy_commit();
    fill_ones<W>(x_tiles, 2 * TOKENS, s.one);
    load_sums<P, W>(sums, ds + at.in_launch * s.F * (s.D + 1), s);
    block_sync();
    for (int first = mine, stage = 0; first < at.end; first += TOKENS, stage ^= 1) {
        real *phi_rows = phi_tile + stage * PHI_SLICE, *x_rows = x_tile + stage * X_SLICE;
        copy_wait<0>();
        warp_sync();
        if (first + TOKENS < at.end) fetch(first + TOKENS, stage ^ 1);
        copy_commit();
        FragmentA features[P / TILE_K], x[W / TILE_K + 1];
        load_owned(features, phi_rows, tile_ld(P));
        load_owned(x, x_rows, x_ld(W));
        warp_sync();
#pragma unroll
        for (int n = 0; n < P; n += 2 * TILE_N) {
            FragmentC c[2] = {};
            multiply_transposed<P, W>(c, x, sums + n * x_ld(W));
            tile_put(phi_rows + n, tile_ld(P), c[0], 1);
            tile_put(phi_rows + n + TILE_N, tile_ld(P), c[1], 1);
        }
#pragma unroll
        for (int n = 0; n < W; n += 2 * TILE_N) {
            FragmentC c[2] = {};
            multiply<P, W>(c, features, sums + n);
            tile_put(x_rows + n, x_ld(W), c[0], 1);
            tile_put(x_rows + n + TILE_N, x_ld(W), c[1], 1);
        }
        warp_sync();
        store_rows<P>(dphi + at.phi, at.phi_row, phi_rows, tile_ld(P), first, at.end, s.F, s.wide_phi);
        store_rows<W>(dqkv + at.v, at.v_row, x_rows, x_ld(W), first, at.end, s.D, s.wide_v);
    }
}

/* == Sizes whose tiles do not fit into shared memory ============================================================== */

/* Element c of [v, 1], or of g: token's gradient row, whose last column is -dy.y. */
DEVICE float plain_value(const real *v, int c, LinearAttentionShape s) { return c < s.D ? to_float(v[c]) : s.one; }

DEVICE float plain_gradient(const real *dy, const real *y, float den, int c, LinearAttentionShape s) {
    if (c < s.D) return to_float(dy[c]) / den;
    if (s.rule == DENOMINATOR_GIVEN || !follows(den, s.rule)) return 0;
    float dot = 0;
    for (int i = 0; i < s.D; i++) dot += to_float(dy[i]) * to_float(y[i]);
    return -dot / den;
}

/* Head and token of a block that has one row. */
DEVICE LinearPlace place_of_row(LinearAttentionShape s) {
    LinearPlace at = place_of(blockIdx.x % s.heads, 0, s);
    at.first = (int)(blockIdx.x / s.heads);
    return at;
}

/* Computes S if dy is NULL, otherwise dS, with a thread for each element. */
__global__ void __launch_bounds__(THREADS)
    linear_sums_plain_kernel(float *sums, const real *dy, const real *y, const float *den, const real *phi,
                             const real *qkv, LinearAttentionShape s) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x, size = (size_t)s.F * (s.D + 1);
    if (i >= s.heads * size) return;
    LinearPlace at = place_of(i / size, 0, s);
    int f = (int)(i % size / (s.D + 1)), c = (int)(i % size % (s.D + 1));
    phi += at.phi + f;
    float sum = 0;
    for (size_t t = 0; t < (size_t)s.N; t++) {
        float x = dy ? plain_gradient(dy + at.y + t * at.M, y + at.y + t * at.M, den[at.den + t * s.H], c, s)
                     : plain_value(qkv + at.v + t * at.v_row, c, s);
        sum += to_float(phi[t * at.phi_row]) * x;
    }
    sums[i] = sum;
}

__global__ void __launch_bounds__(THREADS)
    linear_forward_plain_kernel(real *y, float *den, const float *kv, const real *phi, LinearAttentionShape s) {
    SHARED(float, scratch); /* [WARPS] */
    LinearPlace at = place_of_row(s);
    kv += at.in_launch * s.F * (s.D + 1);
    phi += at.phi + at.first * at.phi_row;
    float part = 0;
    for (int f = (int)threadIdx.x; f < s.F; f += THREADS) part += to_float(phi[f]) * kv[(size_t)f * (s.D + 1) + s.D];
    float sum = block_sum(part, scratch), *own = den + at.den + (size_t)at.first * s.H;
    sum = s.rule == DENOMINATOR_GIVEN ? *own : denominator(sum, s.rule);
    if (threadIdx.x == 0 && s.rule != DENOMINATOR_GIVEN) *own = sum;
    for (int c = (int)threadIdx.x; c < s.D; c += THREADS) {
        float num = 0;
        for (int f = 0; f < s.F; f++) num += to_float(phi[f]) * kv[(size_t)f * (s.D + 1) + c];
        y[at.y + at.first * at.M + c] = to_real(num / sum);
    }
}

__global__ void __launch_bounds__(THREADS)
    linear_backward_queries_plain_kernel(real *dphi, const real *dy, const float *den, const float *kv, const real *phi,
                                         LinearAttentionShape s) {
    SHARED(float, scratch); /* [WARPS], then h = S dy [F] */
    float *h = scratch + WARPS, part = 0;
    LinearPlace at = place_of_row(s);
    kv += (s.first_head + at.in_launch) * s.F * (s.D + 1);
    dy += at.y + at.first * at.M;
    size_t row = at.phi + at.first * at.phi_row;
    float own = den[at.den + (size_t)at.first * s.H], inverse = 1 / own;
    for (int f = (int)threadIdx.x; f < s.F; f += THREADS) {
        h[f] = 0;
        for (int c = 0; c < s.D; c++) h[f] += to_float(dy[c]) * kv[(size_t)f * (s.D + 1) + c];
        part += to_float(phi[row + f]) * h[f];
    }
    float dot = block_sum(part, scratch) * inverse;
    if (s.rule == DENOMINATOR_GIVEN || !follows(own, s.rule)) dot = 0;
    for (int f = (int)threadIdx.x; f < s.F; f += THREADS)
        dphi[row + f] = to_real(inverse * (h[f] - dot * kv[(size_t)f * (s.D + 1) + s.D]));
}

__global__ void __launch_bounds__(THREADS)
    linear_backward_keys_plain_kernel(real *dqkv, real *dphi, const float *ds, const real *phi, const real *qkv,
                                      LinearAttentionShape s) {
    LinearPlace at = place_of_row(s);
    size_t phi_at = at.phi + at.first * at.phi_row, v_at = at.v + at.first * at.v_row;
    ds += at.in_launch * s.F * (s.D + 1);
    for (int f = (int)threadIdx.x; f < s.F; f += THREADS) {
        const float *row = ds + (size_t)f * (s.D + 1);
        float sum = s.one * row[s.D];
        for (int c = 0; c < s.D; c++) sum += to_float(qkv[v_at + c]) * row[c];
        dphi[phi_at + f] = to_real(sum);
    }
    for (int c = (int)threadIdx.x; c < s.D; c += THREADS) {
        float sum = 0;
        for (int f = 0; f < s.F; f++) sum += to_float(phi[phi_at + f]) * ds[(size_t)f * (s.D + 1) + c];
        dqkv[v_at + c] = to_real(sum);
    }
}

/* == Launches ===================================================================================================== */

/* Calls launch(P, W) with the padded sizes for F and D <= WIDEST. */
template <typename Launch>
static void with_sizes(int F, int D, Launch launch) {
    if (F <= 32 && D <= 32) launch(Constant<32>(), Constant<32>());
    else if (F <= 32 && D <= 64) launch(Constant<32>(), Constant<64>());
    else if (F <= 64 && D <= 32) launch(Constant<64>(), Constant<32>());
    else if (F <= 64 && D <= 64) launch(Constant<64>(), Constant<64>());
    else if (D <= 64) launch(Constant<WIDEST>(), Constant<64>());
    else launch(Constant<WIDEST>(), Constant<WIDEST>());
}

/* The shared memory of a block on an H100, an A100 and an RTX 4090: 227, 163 and 99 KiB.  <128, 128> takes 166 KiB. */
static bool is_plain(int F, int D) {
    bool plain = F > WIDEST || D > WIDEST;
    if (!plain)
        with_sizes(F, D, [&](auto features, auto width) {
            constexpr int P = features.value, W = width.value;
            constexpr size_t forward = larger(sums_bytes<P, W>(), forward_bytes<P, W>());
            plain = larger(forward, larger(queries_bytes<P, W>(), keys_bytes<P, W>())) > launch_shared_most();
        });
    return plain;
}

static size_t sums_size(int D, int F) { return (size_t)F * (D + 1); }

/* The number of matrices [F,D+1] in the workspace: dS of a group of heads, or dS of a quarter as many heads and the
 * parts that fit into half of it. */
static size_t slots(int D, int F) {
    size_t fit = ((size_t)1 << 24) / sums_size(D, F);
    return fit < 16 ? 16 : fit < 2 * BLOCKS ? fit : 2 * BLOCKS;
}

size_t linear_attention_workspace(int D, int F) { return slots(D, F) * sums_size(D, F) * sizeof(float); }

/* The number of chunks into which the tokens of each head are divided. */
static int chunks_of(size_t heads, int N, int D, int F) {
    size_t chunks = slots(D, F) / 2 / heads, tiles = ceil_div(N, TOKENS);
    return chunks < 2 || is_plain(F, D) ? 1 : (int)(chunks < tiles ? chunks : tiles);
}

/* The sizes of a launch over the queries of heads first .. first+count-1, or over their keys.  The caller sets how rows
 * are read. */
static LinearAttentionShape shape_of(const LinearAttention *l, bool of_keys, size_t first, size_t count) {
    size_t features = (size_t)l->H * l->F, M = (size_t)l->H * l->D;
    LinearAttentionShape s = {};
    s.N = of_keys && l->keys.count ? l->keys.count : l->N;
    s.H = l->H;
    s.D = l->D;
    s.F = l->F;
    s.first_head = (int)first;
    s.heads = (unsigned)count;
    s.chunks = chunks_of(count, s.N, l->D, l->F);
    s.rule = l->rule;
    s.one = l->rule == DENOMINATOR_GIVEN ? 0.0f : 1.0f;
    s.phi_row = l->keys.count ? features : 2 * features;
    s.v_row = l->keys.count ? 2 * M : 3 * M;
    return s;
}


/* The features of the keys, and their gradient. */
static const real *key_features(const LinearAttention *l, const real *phi) {
    return l->keys.count ? l->keys.phi : phi + (size_t)l->H * l->F;
}
static real *key_gradients(const LinearAttention *l, real *dphi) {
    return l->keys.count ? l->keys.dphi : dphi + (size_t)l->H * l->F;
}

static void join(float *sums, const float *parts, LinearAttentionShape s) {
    size_t size = sums_size(s.D, s.F), count = s.heads * size;
    LAUNCH(linear_join_kernel, (unsigned)ceil_div(count, THREADS), THREADS, 0, sums, parts, count, (int)size, s.chunks);
}

void linear_attention_forward(real *y, float *den, float *kv, const real *phi, const real *qkv,
                              const LinearAttention *shape) {
    int D = shape->D, F = shape->F;
    size_t heads = (size_t)shape->B * shape->H;
    LinearAttentionShape keys = shape_of(shape, true, 0, heads), queries = shape_of(shape, false, 0, heads);
    const real *phi_k = key_features(shape, phi);
    keys.wide_phi = is_wide(F, phi_k);
    queries.wide_phi = is_wide(F, phi);
    keys.wide_v = is_wide(D, qkv);
    queries.wide_y = is_wide(D, y);
    if (is_plain(F, D)) {
        LAUNCH(linear_sums_plain_kernel, (unsigned)ceil_div(heads * sums_size(D, F), THREADS), THREADS, 0, kv,
               static_cast<const real *>(NULL), static_cast<const real *>(NULL), static_cast<const float *>(NULL),
               phi_k, qkv, keys);
        LAUNCH(linear_forward_plain_kernel, (unsigned)(heads * queries.N), THREADS, WARPS * sizeof(float), y, den, kv,
               phi, queries);
        return;
    }
    float *parts = keys.chunks > 1 ? static_cast<float *>(kernels_workspace(linear_attention_workspace(D, F))) : kv;
    with_sizes(F, D, [&](auto features, auto width) {
        constexpr int P = features.value, W = width.value;
        LAUNCH((linear_sums_kernel<P, W>), keys.heads * keys.chunks, THREADS, (sums_bytes<P, W>()), parts, phi_k,
               qkv, keys);
        if (keys.chunks > 1) join(kv, parts, keys);
        LAUNCH((linear_forward_kernel<P, W>), queries.heads * queries.chunks, THREADS, (forward_bytes<P, W>()), y, den,
               kv, phi, queries);
    });
}

/* The features of queries and keys, and their gradients. */
typedef struct {
    const real *q, *k;
    real *dq, *dk;
} Features;

static void backward_plain(real *dqkv, const Features &phi, const real *dy, const real *y, const float *den,
                           const float *kv, const real *qkv, float *ds, LinearAttentionShape queries,
                           LinearAttentionShape keys) {
    size_t sums = queries.heads * sums_size(queries.D, queries.F);
    LAUNCH(linear_sums_plain_kernel, (unsigned)ceil_div(sums, THREADS), THREADS, 0, ds, dy, y, den, phi.q, qkv,
           queries);
    LAUNCH(linear_backward_queries_plain_kernel, queries.heads * (unsigned)queries.N, THREADS,
           (WARPS + queries.F) * sizeof(float), phi.dq, dy, den, kv, phi.q, queries);
    LAUNCH(linear_backward_keys_plain_kernel, keys.heads * (unsigned)keys.N, THREADS, 0, dqkv, phi.dk, ds, phi.k,
           qkv, keys);
}

static void backward(real *dqkv, const Features &phi, const real *dy, const float *den, const float *kv,
                     const real *qkv, float *ds, LinearAttentionShape queries, LinearAttentionShape keys) {
    float *parts = queries.chunks > 1 ? ds + queries.heads * sums_size(queries.D, queries.F) : ds;
    with_sizes(queries.F, queries.D, [&](auto features, auto width) {
        constexpr int P = features.value, W = width.value;
        static_assert(queries_bytes<P, W>() <= 227 * 1024, "the largest of these kernels fits");
        LAUNCH((linear_backward_queries_kernel<P, W>), queries.heads * queries.chunks, THREADS, (queries_bytes<P, W>()),
               parts, phi.dq, dy, den, kv, phi.q, queries);
        if (queries.chunks > 1) join(ds, parts, queries);
        LAUNCH((linear_backward_keys_kernel<P, W>), keys.heads * keys.chunks, THREADS, (keys_bytes<P, W>()), dqkv,
               phi.dk, ds, phi.k, qkv, keys);
    });
}

void linear_attention_backward(real *dqkv, real *dphi, const real *dy, const real *y, const float *den, const float *kv,
                               const real *phi, const real *qkv, const LinearAttention *shape) {
    int D = shape->D, F = shape->F;
    size_t heads = (size_t)shape->B * shape->H, groups = ceil_div(heads, slots(D, F)), most = ceil_div(heads, groups);
    float *ds = static_cast<float *>(kernels_workspace(linear_attention_workspace(D, F)));
    Features features = {phi, key_features(shape, phi), dphi, key_gradients(shape, dphi)};
    for (size_t first = 0; first < heads; first += most) {
        size_t count = heads - first < most ? heads - first : most;
        LinearAttentionShape queries = shape_of(shape, false, first, count), keys = shape_of(shape, true, first, count);
        queries.wide_phi = is_wide(F, features.q, features.dq);
        keys.wide_phi = is_wide(F, features.k, features.dk);
        queries.wide_y = is_wide(D, dy);
        keys.wide_v = is_wide(D, dqkv, qkv);
        if (is_plain(F, D)) backward_plain(dqkv, features, dy, y, den, kv, qkv, ds, queries, keys);
        else backward(dqkv, features, dy, den, kv, qkv, ds, queries, keys);
    }
}

/* == The denominator alone ======================================================================================== */

/* A block processes a head; each warp has every fourth token, and each lane LANE_FEATURES features; more than PASS
 * features take several passes. */
enum { LANE_FEATURES = 4, PASS = LANE_FEATURES * WARP };

size_t denominator_workspace(int) { return 0; }

/* The distance from the first query's features to those of the first key. */
DEVICE size_t keys_at(LinearAttentionShape s) { return (size_t)s.H * s.F; }

/* total [PASS] in shared memory = the warps' sums in order; sums [WARPS][PASS]. */
DEVICE void join_warps(float *total, float *sums, const float (&own)[LANE_FEATURES]) {
    for (int j = 0; j < LANE_FEATURES; j++) sums[warp_id() * PASS + j * WARP + lane_id()] = own[j];
    block_sync();
    for (int f = (int)threadIdx.x; f < PASS; f += THREADS) {
        total[f] = 0;
        for (int w = 0; w < WARPS; w++) total[f] += sums[w * PASS + f];
    }
    block_sync();
}

__global__ void __launch_bounds__(THREADS)
    denominator_forward_kernel(float *den, float *z, const real *phi, LinearAttentionShape s) {
    SHARED(float, sums);                /* [WARPS][PASS] */
    float *total = sums + WARPS * PASS; /* [PASS] */
    LinearPlace at = place_of(blockIdx.x, 0, s);
    z += (size_t)blockIdx.x * s.F;
    phi += at.phi;
    for (int base = 0; base < s.F; base += PASS) {
        float own[LANE_FEATURES] = {};
        for (int n = warp_id(); n < s.N; n += WARPS)
            for (int j = 0; j < LANE_FEATURES; j++) {
                int f = base + j * WARP + lane_id();
                if (f < s.F) own[j] += to_float(phi[keys_at(s) + n * at.phi_row + f]);
            }
        join_warps(total, sums, own);
        for (int f = (int)threadIdx.x; f < PASS && base + f < s.F; f += THREADS) z[base + f] = total[f];
        for (int n = warp_id(); n < s.N; n += WARPS) {
            float part = 0, *to = den + at.den + (size_t)n * s.H;
            for (int j = 0; j < LANE_FEATURES; j++) {
                int f = j * WARP + lane_id();
                if (base + f < s.F) part += to_float(phi[n * at.phi_row + base + f]) * total[f];
            }
            part = warp_sum(part) + (base ? *to : 0);
            warp_sync();
            if (lane_id() == 0) *to = base + PASS < s.F ? part : denominator(part, s.rule);
            warp_sync();
        }
        block_sync();
    }
}

__global__ void __launch_bounds__(THREADS)
    denominator_backward_kernel(real *dphi, const real *dy, const real *y, const float *den, const float *z,
                                const real *phi, LinearAttentionShape s) {
    SHARED(float, sums);
    float *total = sums + WARPS * PASS;
    LinearPlace at = place_of(blockIdx.x, 0, s);
    z += (size_t)blockIdx.x * s.F;
    dphi += at.phi;
    phi += at.phi;
    for (int base = 0; base < s.F; base += PASS) {
        float own[LANE_FEATURES] = {};
        for (int n = warp_id(); n < s.N; n += WARPS) {
            float dot = 0, value = den[at.den + (size_t)n * s.H];
            size_t row = at.y + n * at.M;
            for (int c = lane_id(); c < s.D; c += WARP) dot += to_float(dy[row + c]) * to_float(y[row + c]);
            dot = warp_sum(dot);
            if (!follows(value, s.rule)) continue;
            float dden = -dot / value;
            for (int j = 0; j < LANE_FEATURES; j++) {
                int f = base + j * WARP + lane_id();
                if (f >= s.F) continue;
                real *to = dphi + n * at.phi_row + f;
                *to = to_real(to_float(*to) + dden * z[f]);
                own[j] += dden * to_float(phi[n * at.phi_row + f]);
            }
        }
        join_warps(total, sums, own);
        for (size_t i = threadIdx.x; i < (size_t)s.N * PASS; i += THREADS) {
            int f = base + (int)(i % PASS);
            if (f >= s.F) continue;
            real *to = dphi + keys_at(s) + i / PASS * at.phi_row + f;
            *to = to_real(to_float(*to) + total[i % PASS]);
        }
        block_sync();
    }
}


void denominator_forward(float *den, float *z, const real *phi, const LinearAttention *shape) {
    LinearAttentionShape s = shape_of(shape, false, 0, (size_t)shape->B * shape->H);
    s.chunks = 1;
    LAUNCH(denominator_forward_kernel, s.heads, THREADS, (WARPS + 1) * PASS * sizeof(float), den, z, phi, s);
}

void denominator_backward(real *dphi, const real *dy, const real *y, const float *den, const float *z, const real *phi,
                          const LinearAttention *shape) {
    LinearAttentionShape s = shape_of(shape, false, 0, (size_t)shape->B * shape->H);
    s.chunks = 1;
    LAUNCH(denominator_backward_kernel, s.heads, THREADS, (WARPS + 1) * PASS * sizeof(float), dphi, dy, y, den, z, phi,
           s);
}
