/* Backward of softmax attention over all keys with a block for each head, for up to 256 tokens: every tensor is read
 * once, and five products replace the seven of softmax_attention.cu.
 *   s^T = k q^T,  t^T = v dy^T,  p^T = exp2(s^T - lse),  ds^T = p^T (t^T - delta),  dv = p^T dy,  dk = ds^T q / sqrt D
 *   dq = ds k / sqrt D
 * A warp owns 16 keys, whose dk and dv stay in its registers, and iterates over 64 queries at a time.  The block has
 * all keys, so the sum for dq is complete as soon as ds^T of these 64 queries is in shared memory: no sum crosses
 * blocks. ds^T has two buffers, so that one barrier for 64 queries is enough: some warps multiply ds of the previous
 * queries by k while others already write the next.  Every sum has the same order as in softmax_attention.cu, and
 * therefore the same bits. */
#include <stdlib.h>
#include <string.h>

#include "kernels/softmax/softmax_tiles.cuh"
#include "kernels/softmax/attention_shape.h"

enum { QUERIES = 64, MOST_WARPS = 16, OUT_LD = tile_ld(TILE_K) };

typedef struct {
    int N, H, D;
    bool wide;
    float scale; /* 1 / sqrt D */
} SoftmaxHeadShape;

static size_t head_bytes(int W, int warps) {
    size_t rows = (size_t)warps * TILE_M;
    size_t tiles = rows * tile_ld(W) + 2 * rows * tile_ld(QUERIES) + 4 * QUERIES * tile_ld(W) + rows * OUT_LD;
    return tiles * sizeof(real) + 2 * rows * sizeof(float);
}

/* tile [16,W] = rows first.. of a head, `stride` apart, by the calling warp. */
template <int W>
DEVICE void load_sixteen(real *tile, const real *head, int stride, int first, const SoftmaxHeadShape &s) {
    tile_load<TILE_M, W, WARP>(
        tile, tile_ld(W), [&](int i) { return head + (first + i) * stride; }, s.N - first, s.D, s.wide, lane_id());
}

/* The warp's rows = scale times sum, through `tile` [16,LD]. */
template <int W>
DEVICE void store_sixteen(real *head, int stride, real *tile, const FragmentC (&sum)[1][W / TILE_N], float scale,
                          int first, const SoftmaxHeadShape &s) {
    warp_sync();
#pragma unroll
    for (int n = 0; n < W / TILE_N; n++) tile_put(tile + n * TILE_N, tile_ld(W), sum[0][n], scale);
    warp_sync();
    tile_store<TILE_M, W, WARP>([&](int i) { return head + (first + i) * stride; }, tile, tile_ld(W), s.N - first, s.D,
                                s.wide, lane_id());
}

template <int W>
__global__ void __launch_bounds__(MOST_WARPS *WARP)
    softmax_backward_head_kernel(real *dqkv, const real *dy, const real *y, const float *lse, const real *qkv,
                                 SoftmaxHeadShape s) {
    constexpr int LD = tile_ld(W), DS_LD = tile_ld(QUERIES), STAGE = QUERIES * LD;
    const int warps = (int)blockDim.x / WARP, rows = warps * TILE_M, own = warp_id() * TILE_M;
    SHARED(real, k_tile);                         /* [rows,LD] */
    real *ds_tile = k_tile + rows * LD;           /* [2][rows,DS_LD]; at first v [rows,LD] */
    real *q_tile = ds_tile + 2 * rows * DS_LD;    /* [2][QUERIES,LD] */
    real *dy_tile = q_tile + 2 * STAGE;           /* [2][QUERIES,LD] */
    real *out_tile = dy_tile + 2 * STAGE;         /* [warps][TILE_M,OUT_LD] */
    float *shift = reinterpret_cast<float *>(out_tile + rows * OUT_LD), *delta = shift + rows; /* [rows] each */
    const int M = s.H * s.D, row = 3 * M, h = (int)(blockIdx.x % s.H);
    const size_t b = blockIdx.x / s.H;
    const real *q = qkv + b * s.N * row + h * s.D, *k = q + M, *v = k + M;
    dqkv += b * s.N * row + h * s.D;
    dy += b * s.N * M + h * s.D;
    y += b * s.N * M + h * s.D;
    lse += (size_t)blockIdx.x * s.N;

    auto fetch = [&](int first, int stage) {
        for (int job = warp_id(); job < 2 * QUERIES / TILE_M; job += warps) {
            int at = job / 2 * TILE_M;
            if (first + at >= s.N) continue;
            if (job % 2) load_sixteen<W>(dy_tile + stage * STAGE + at * LD, dy, M, first + at, s);
            else load_sixteen<W>(q_tile + stage * STAGE + at * LD, q, row, first + at, s);
        }
    };
    load_sixteen<W>(k_tile + own * LD, k, row, own, s);
    load_sixteen<W>(ds_tile + own * LD, v, row, own, s);
    fetch(0, 0);
    copy_commit();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int mine = own + fragment_c_row(2 * half);
        float dot = 0;
        if (mine < s.N)
            for (int c = lane_id() % 4; c < s.D; c += 4) dot += to_float(dy[mine * M + c]) * to_float(y[mine * M + c]);
        dot = row_sum(dot);
        if (lane_id() % 4) continue;
        delta[mine] = dot;
        shift[mine] = mine < s.N ? LOG2_E * lse[mine] : INFINITY; /* a query beyond the last one has p = 0 */
    }
    copy_wait<0>();
    warp_sync();
    FragmentA ka[1][W / TILE_K], va[1][W / TILE_K];
    FragmentC dk[1][W / TILE_N], dv[1][W / TILE_N];
    load_owned<W, 1>(ka, k_tile);
    load_owned<W, 1>(va, ds_tile);
    clear<W, 1>(dk);
    clear<W, 1>(dv);

    for (int first = 0, stage = 0; first < s.N + QUERIES; first += QUERIES, stage ^= 1) {
        copy_wait<0>();
        block_sync();
        if (first + QUERIES < s.N) fetch(first + QUERIES, stage ^ 1);
        copy_commit();
        const int last = first - QUERIES; /* queries whose ds is complete */
        const real *ds = ds_tile + (stage ^ 1) * rows * DS_LD;
        for (int job = warp_id(); first && job < QUERIES / TILE_M * (W / TILE_K); job += warps) {
            int at = job / (W / TILE_K) * TILE_M, column = job % (W / TILE_K) * TILE_K;
            if (last + at >= s.N) break;
            real *out = out_tile + own * OUT_LD;
            FragmentC sum[2];
            fragment_zero(sum[0]);
            fragment_zero(sum[1]);
#pragma unroll 2
            for (int key = 0; key < rows; key += TILE_K) {
                FragmentA a = load_a_transposed(ds + key * DS_LD + at, DS_LD);
                FragmentB x[2];
                load_b(x, k_tile + key * LD + column, LD);
                mma(sum[0], a, x[0]);
                mma(sum[1], a, x[1]);
            }
            warp_sync();
            tile_put(out, OUT_LD, sum[0], s.scale);
            tile_put(out + TILE_N, OUT_LD, sum[1], s.scale);
            warp_sync();
            tile_store<TILE_M, TILE_K, WARP>([&](int i) { return dqkv + (last + at + i) * row + column; }, out, OUT_LD,
                                             s.N - last - at, s.D - column, s.wide, lane_id());
        }
        for (int j = 0; j < QUERIES && first + j < s.N; j += TILE_K) {
            const real *q_rows = q_tile + stage * STAGE + j * LD, *dy_rows = dy_tile + stage * STAGE + j * LD;
            FragmentC p[2][1], t[2][1];
            product<W, 1>(p, ka, q_rows);
            product<W, 1>(t, va, dy_rows);
#pragma unroll
            for (int n = 0; n < 2; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int query = first + j + n * TILE_N + fragment_c_column(i);
                    float e = fast_exp2(p[n][0].x[i] * (LOG2_E * s.scale) - shift[query]);
                    p[n][0].x[i] = own + fragment_c_row(i) < s.N ? e : 0; /* a key beyond the last one does not
                                                                           * contribute to dq */
                    t[n][0].x[i] = p[n][0].x[i] * (t[n][0].x[i] - delta[query]);
                }
            accumulate<W, 1>(dv, p, dy_rows);
            accumulate<W, 1>(dk, t, q_rows);
#pragma unroll
            for (int n = 0; n < 2; n++)
                tile_put(ds_tile + (stage * rows + own) * DS_LD + j + n * TILE_N, DS_LD, t[n][0], 1);
        }
    }
    /* q and dy are no longer read; their tiles have 256 rows together. */
    store_sixteen<W>(dqkv + M, row, q_tile + own * LD, dk, s.scale, own, s);
    store_sixteen<W>(dqkv + 2 * M, row, q_tile + own * LD, dv, 1, own, s);
}

bool softmax_backward_heads(real *dqkv, const real *dy, const real *y, const float *lse, const real *qkv,
                            const AttentionShape *shape) {
    const char *asked = getenv("VIT_FLASH");
    bool pays = asked && *asked ? !strcmp(asked, "heads") : sizeof(real) == 2;
    int N = shape->N, H = shape->H, D = shape->D, warps = (int)ceil_div(N, TILE_M);
    SoftmaxHeadShape s = {N, H, D, is_wide(D, dqkv, dy, qkv), 1 / sqrtf((float)D)};
    bool launched = false;
    auto launch = [&](auto width) {
        constexpr int W = width.value;
        size_t bytes = head_bytes(W, warps);
        if (warps > MOST_WARPS || bytes > launch_shared_most()) return;
        LAUNCH((softmax_backward_head_kernel<W>), (unsigned)(shape->B * H), warps * WARP, bytes, dqkv, dy, y, lse, qkv,
               s);
        launched = true;
    };
    if (!pays || D > 64) return false;
    if (D <= 16) launch(Constant<16>());
    else if (D <= 32) launch(Constant<32>());
    else launch(Constant<64>());
    return launched;
}
