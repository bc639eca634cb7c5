/* Attention of one head with float arithmetic, without tensor cores: a block has ROWS tokens of the head and computes
 * their weights with all tokens, COLUMNS at a time.  Tiles are in shared memory; the caller puts a block_sync between
 * these functions. */
#ifndef VIT_KERNELS_CUDA_HEAD_TILES_CUH
#define VIT_KERNELS_CUDA_HEAD_TILES_CUH

#include <device.cuh>

enum { THREADS = 256, WARPS = THREADS / WARP, ROWS = 16, COLUMNS = WARP };

/* Bytes of so many tiles [ROWS,D], [COLUMNS,D] and [ROWS,COLUMNS]. */
static inline size_t tiles_bytes(int rows, int columns, int pairs, int D) {
    return ((size_t)(rows * ROWS + columns * COLUMNS) * D + (size_t)pairs * ROWS * COLUMNS) * sizeof(float);
}

/* tile [rows,D] = the head's rows from token `first` of N on, zeros beyond the last. */
DEVICE void load_rows(float *tile, int rows, const real *head, size_t row, int first, int N, int D) {
    for (int at = threadIdx.x; at < rows * D; at += THREADS) {
        int i = first + at / D;
        tile[at] = i < N ? to_float(head[i * row + at % D]) : 0;
    }
}

/* out [ROWS,COLUMNS] = a [ROWS,D] times b [COLUMNS,D] transposed. */
DEVICE void products(float *out, const float *a, const float *b, int D) {
    for (int at = threadIdx.x; at < ROWS * COLUMNS; at += THREADS) {
        float sum = 0;
        for (int c = 0; c < D; c++) sum += a[at / COLUMNS * D + c] * b[at % COLUMNS * D + c];
        out[at] = sum;
    }
}

/* sum [ROWS,D] += p [ROWS,COLUMNS] times b [COLUMNS,D]. */
DEVICE void accumulate(float *sum, const float *p, const float *b, int D) {
    for (int at = threadIdx.x; at < ROWS * D; at += THREADS)
        for (int n = 0; n < COLUMNS; n++) sum[at] += p[at / D * COLUMNS + n] * b[n * D + at % D];
}

#endif
