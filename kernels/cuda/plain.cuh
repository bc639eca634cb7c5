/* For kernels whose products are cheap compared with the memory they read: float tiles of any size in shared memory.
 * All threads of a block call these functions together, followed by a barrier. */
#ifndef VIT_KERNELS_CUDA_PLAIN_CUH
#define VIT_KERNELS_CUDA_PLAIN_CUH

#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/rows.cuh"

/* The largest weight, in floats, that is copied to shared memory; larger ones are read from global memory. */
enum { PLAIN_WEIGHTS = 8192, PLAIN_TILE = 4096, PLAIN_ROWS = 32 };

static inline int plain_weights(size_t floats) { return floats <= PLAIN_WEIGHTS ? (int)floats : 0; }

/* The number of rows in a tile whose rows have `columns` floats. */
static inline int plain_rows(int columns) {
    int rows = PLAIN_TILE / columns;
    return rows < 1 ? 1 : rows < PLAIN_ROWS ? rows : PLAIN_ROWS;
}

/* tile [rows,columns]; row(i) is where row i begins. */
template <typename Row>
DEVICE void plain_load(float *tile, int rows, int columns, Row row) {
    for (int i = (int)threadIdx.x; i < rows * columns; i += (int)blockDim.x)
        tile[i] = to_float(row(i / columns)[i % columns]);
}

/* copy [columns,rows] = w [rows,columns] transposed, or copy = w. */
DEVICE void plain_copy(float *copy, const float *w, int rows, int columns, bool transposed) {
    for (int i = (int)threadIdx.x; i < rows * columns; i += (int)blockDim.x)
        copy[transposed ? i % columns * rows + i / columns : i] = w[i];
}

/* The sum of a[i] b[i], computed by the whole warp; every lane gets it. */
template <typename A, typename B>
DEVICE float plain_dot(const A *a, const B *b, int n) {
    float sum = 0;
    for (int i = lane_id(); i < n; i += WARP) sum += to_float(a[i]) * to_float(b[i]);
    return warp_sum(sum);
}

#endif
