/* Attention of one head with float arithmetic, without tensor cores: a block has ROWS tokens of the head and computes
 * their weights with all tokens, COLUMNS at a time.  Tiles are in shared memory, their
 * rows of D numbers odd_ld(D) apart; the caller puts a block_sync between these functions. */
#ifndef VIT_KERNELS_CUDA_HEAD_TILES_CUH
#define VIT_KERNELS_CUDA_HEAD_TILES_CUH

#include <device.cuh>

#include "kernels/cuda/banks.cuh"

enum { THREADS = 256, WARPS = THREADS / WARP, ROWS = 16, COLUMNS = WARP, OWNED = ROWS / WARPS };

/* Bytes of `rows` tiles [ROWS,D], `columns` tiles [COLUMNS,D] and `pairs` tiles [ROWS,COLUMNS]. */
static inline size_t tiles_bytes(int rows, int columns, int pairs, int D) {
    return ((size_t)(rows * ROWS + columns * COLUMNS) * odd_ld(D) + (size_t)pairs * ROWS * COLUMNS) * sizeof(float);
}

/* out [ROWS,COLUMNS] = a [ROWS,D] times b [COLUMNS,D] transposed: a thread has a column of OWNED rows, and reads its
 * row of b once for them. */
DEVICE void products(float *out, const float *a, const float *b, int D) {
    const float *rows = a + warp_id() * odd_ld(D), *column = b + lane_id() * odd_ld(D);
    float sum[OWNED] = {};
    for (int c = 0; c < D; c++)
#pragma unroll
        for (int i = 0; i < OWNED; i++) sum[i] += rows[i * WARPS * odd_ld(D) + c] * column[c];
#pragma unroll
    for (int i = 0; i < OWNED; i++) out[(warp_id() + i * WARPS) * COLUMNS + lane_id()] = sum[i];
}

/* sum [ROWS,D] += p [ROWS,COLUMNS] times b [COLUMNS,D]. */
DEVICE void accumulate(float *sum, const float *p, const float *b, int D) {
    for (int at = threadIdx.x; at < ROWS * D; at += THREADS) {
        int row = at / D, c = at % D;
        float total = sum[row * odd_ld(D) + c];
        for (int n = 0; n < COLUMNS; n++) total += p[row * COLUMNS + n] * b[n * odd_ld(D) + c];
        sum[row * odd_ld(D) + c] = total;
    }
}

#endif
