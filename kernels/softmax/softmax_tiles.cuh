/* Common to the softmax attentions of this backend.  A block of four warps has 16 or 32 rows for each warp and reads
 * the other tokens 64 at a time; for heads that are too wide for that, each warp computes one row. */
#ifndef VIT_KERNELS_CUDA_SOFTMAX_TILES_CUH
#define VIT_KERNELS_CUDA_SOFTMAX_TILES_CUH

#include "kernels/softmax/attention_shape.h"
#include "kernels/cuda/tiles.cuh"

enum { THREADS = 128, WARPS = THREADS / WARP, STREAM = 64, WIDEST = 128 };

static const float LOG2_E = 1.44269504f;

/* Row tiles of 16 that a warp owns.  Loading a pair of streamed tiles from shared memory takes the time of 2.5 matrix
 * instructions, and one row tile uses them in 2.  With two row tiles the matrix units are the bottleneck again,
 * provided that the operands (`held` widths of them) and the sums of 32 rows fit into the registers of at least two
 * blocks per multiprocessor.  At W = 64 two tiles take 250 to 255 registers and spill, and one takes 142 to 166.
 * Floats take twice the space. */
static constexpr int row_tiles(int W, int held) { return sizeof(real) == 2 && W * held < 196 && W < 64 ? 2 : 1; }
enum { HELD_FORWARD = 3, HELD_QUERIES = 4, HELD_KEYS = 6 };

static constexpr int owned_rows(int T) { return WARPS * TILE_M * T; }
/* Rows that a backward kernel streams at a time.  It also holds rows of two tensors: with rows of more than 128 bytes,
 * all of STREAM would not fit into the 99 KiB of a block on sm_86 and sm_89. */
static constexpr int chunk_rows(int W) { return W * sizeof(real) > 128 ? STREAM / 2 : STREAM; }
static constexpr size_t shared_bytes(int W, int T, int owned) {
    return ((size_t)owned * owned_rows(T) + 4 * (owned == 2 ? chunk_rows(W) : STREAM)) * tile_ld(W) * sizeof(real);
}
enum { STATISTICS = 4096 }; /* bytes in addition to the tiles, at most */
static_assert(sizeof(real) > 2 || shared_bytes(WIDEST, 1, 2) + STATISTICS <= 99 * 1024, "for sm_86");

/* The widest heads whose tiles, bytes(W), fit into the shared memory of a block on this GPU: with floats 64 instead of
 * 128 on all GPUs before Hopper.  Wider heads use the kernels in which a warp computes one row. */
template <typename Bytes>
static inline int widest_of(Bytes bytes) {
    int W = WIDEST;
    while (W > 16 && bytes(W) + STATISTICS > launch_shared_most()) W /= 2;
    return W;
}

/* The position of the row `half` of row tile r in this lane. */
template <int T>
DEVICE int owned_row(int first, int r, int half) {
    return first + (warp_id() * T + r) * TILE_M + fragment_c_row(2 * half);
}

/* Are all of this warp's rows beyond the last?  With 197 rows, which are thirteen tiles, only one of the last block's
 * four warps has rows. */
template <int T>
DEVICE bool owns_none(int first, int rows) {
    return first + warp_id() * T * TILE_M >= rows;
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

/* The result of product if there are no rows. */
template <int T>
DEVICE void no_product(FragmentC (*c)[T]) {
#pragma unroll
    for (int r = 0; r < T; r++) {
        fragment_zero(c[0][r]);
        fragment_zero(c[1][r]);
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

/* Masks keys beyond the last one. */
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

template <int T>
DEVICE void fill(float (&x)[T][2], float value) {
#pragma unroll
    for (int r = 0; r < T; r++) x[r][0] = x[r][1] = value;
}

/* Computes dqkv with one block for each head (softmax_head.cu), with the same bits as the two kernels that divide a
 * head's rows among blocks.  Returns false if that is not possible, which takes heads of at most 64 channels and at
 * most 256 tokens, or not wanted, as by default in a float build.  VIT_FLASH=heads or VIT_FLASH=rows in the environment
 * chooses one of the two wherever it is possible. */
bool softmax_backward_heads(real *dqkv, const real *dy, const real *y, const float *lse, const real *qkv,
                            const AttentionShape *shape);

/* == Heads wider than 128 ========================================================================================= */

/* One warp computes a row, this many columns of the result at a time, and computes the scores again for each group of
 * columns. */
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

#endif
