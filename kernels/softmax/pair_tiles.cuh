/* Attention of one head on the matrix units: a block has `rows` tokens of the head, 16, 32 or 64, and computes their
 * weights with all tokens, COLUMNS at a time.  Tokens' channels lie in shared memory as activations, with zeros up to
 * whole tiles; weights and sums are floats there, and a weight enters a product as the sum of two activations.  The
 * caller puts a block_sync between these functions. */
#ifndef VIT_KERNELS_CUDA_PAIR_TILES_CUH
#define VIT_KERNELS_CUDA_PAIR_TILES_CUH

#include "kernels/cuda/tiles.cuh"

enum { THREADS = 256, WARPS = THREADS / WARP, MOST_ROWS = 64, COLUMNS = 32, PAIR_LD = COLUMNS + 8 };

/* Channels of a head rounded up to whole tiles, and the distances between its rows and between its sums. */
static inline __host__ __device__ int padded(int D) { return (D + TILE_K - 1) / TILE_K * TILE_K; }
static inline __host__ __device__ int pair_ld(int D) { return tile_ld(padded(D)); }

/* Bytes of tiles: `own` of activations [rows,D], `others` [COLUMNS,D], `sums` [rows,D], `pairs` of weights
 * [rows,COLUMNS]. */
static inline size_t pair_bytes(int own, int others, int sums, int pairs, int rows, int D) {
    size_t ld = (size_t)pair_ld(D);
    return ((size_t)own * rows + (size_t)others * COLUMNS) * ld * sizeof(real) +
           ((size_t)sums * rows * ld + (size_t)pairs * rows * PAIR_LD) * sizeof(float);
}

/* The largest number of rows, at least TILE_M, whose tiles and `more` bytes fit into one block's shared memory and, where
 * that is large enough, let two blocks share a multiprocessor. */
static inline int pair_rows(int own, int others, int sums, int pairs, int D, size_t more) {
    enum { WISH = 112 * 1024 };
    size_t most = launch_shared_most() < WISH ? launch_shared_most() : (size_t)WISH;
    int rows = MOST_ROWS;
    while (rows > TILE_M && pair_bytes(own, others, sums, pairs, rows, D) + more > most) rows /= 2;
    return rows;
}

/* tile [rows,padded D] = the head's rows from token `first` of N on, zeros beyond the last; complete after
 * copy_wait<0>.  wide: 16 bytes at a time. */
DEVICE void pair_load(real *tile, int rows, const real *head, size_t row, int first, int N, int D, bool wide) {
    int ld = pair_ld(D), each = wide ? (int)WIDE : 1, pieces = padded(D) / each;
    for (int at = threadIdx.x; at < rows * pieces; at += THREADS) {
        int i = at / pieces, c = at % pieces * each;
        bool there = first + i < N && c < D;
        const real *from = head + (there ? (first + i) * row + c : 0);
        if (wide) copy_async_16_or_zero(tile + i * ld + c, from, there);
        else tile[i * ld + c] = there ? *from : to_real(0);
    }
}
/* Waits until this thread's copies have arrived. */
DEVICE void pair_wait() {
    copy_commit();
    copy_wait<0>();
}

DEVICE void pair_zero(float *sum, int rows, int D) {
    for (int at = threadIdx.x; at < rows * pair_ld(D); at += THREADS) sum[at] = 0;
}

/* out [rows,COLUMNS] = a [rows,D] times b [COLUMNS,D] transposed; a warp computes 16 x 16 of them. */
DEVICE void pair_products(float *out, const real *a, const real *b, int rows, int D) {
    int ld = pair_ld(D), depth = padded(D);
    for (int tile = warp_id(); tile < rows / TILE_M * (COLUMNS / TILE_K); tile += WARPS) {
        int row = tile / (COLUMNS / TILE_K) * TILE_M, column = tile % (COLUMNS / TILE_K) * TILE_K;
        FragmentC sum[2];
        fragment_zero(sum[0]);
        fragment_zero(sum[1]);
        for (int k = 0; k < depth; k += TILE_K) {
            FragmentA left = load_a(a + row * ld + k, ld);
            FragmentB right[2];
            load_b_transposed(right, b + column * ld + k, ld);
            mma(sum[0], left, right[0]);
            mma(sum[1], left, right[1]);
        }
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                out[(row + fragment_c_row(i)) * PAIR_LD + column + h * TILE_N + fragment_c_column(i)] = sum[h].x[i];
    }
}

/* A tile of weights rounded to activations, and the rounding errors. */
DEVICE void pair_split(FragmentA &high, FragmentA &low, const float *p) {
    int g = lane_id() / 4, t = lane_id() % 4;
    high = low = {};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float x = p[(g + 8 * (i / 2 % 2)) * PAIR_LD + 2 * t + i % 2 + 8 * (i / 4)];
        fragment_put(high, i, x);
        if (SPLIT) fragment_put(low, i, x - to_float(to_real(x)));
    }
}

/* sum [rows,D] += p [rows,COLUMNS] times b [COLUMNS,D]. */
DEVICE void pair_accumulate(float *sum, const float *p, const real *b, int rows, int D) {
    int ld = pair_ld(D), across = padded(D) / TILE_K;
    for (int tile = warp_id(); tile < rows / TILE_M * across; tile += WARPS) {
        int row = tile / across * TILE_M, column = tile % across * TILE_K;
        FragmentC add[2];
        fragment_zero(add[0]);
        fragment_zero(add[1]);
#pragma unroll
        for (int k = 0; k < COLUMNS; k += TILE_K) {
            FragmentA high, low;
            FragmentB right[2];
            pair_split(high, low, p + row * PAIR_LD + k);
            load_b(right, b + k * ld + column, ld);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                mma(add[h], high, right[h]);
                if (SPLIT) mma(add[h], low, right[h]);
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum[(row + fragment_c_row(i)) * ld + column + h * TILE_N + fragment_c_column(i)] += add[h].x[i];
    }
}

/* Calls visit(row, c) for the existing rows of a block and the channels of a head. */
template <typename Visit>
DEVICE void for_pair_rows(int rows, int first, int N, int D, Visit visit) {
    for (int at = threadIdx.x; at < rows * D; at += THREADS)
        if (first + at / D < N) visit(at / D, at % D);
}

#endif
