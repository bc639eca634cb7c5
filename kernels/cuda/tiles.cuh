/* Tiles of activations in shared memory, copied from and to rows in global memory.  A tile's rows lie ld elements
 * apart: tile_ld pads them so that load_a and load_b (fragments.cuh) find them aligned and in different banks. */
#ifndef VIT_KERNELS_CUDA_TILES_CUH
#define VIT_KERNELS_CUDA_TILES_CUH

#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/rows.cuh"

static constexpr int tile_ld(int columns) { return columns + 8; }

/* Is a float stored as the sum of two activations, the second of which has the rounding error of the first? */
static constexpr bool SPLIT = sizeof(real) == 2;

/* A size for a generic lambda to make a template argument of: constexpr int W = width.value. */
template <int n>
struct Constant {
    static constexpr int value = n;
};

/* tile [ROWS,COLUMNS] = the first `columns` columns of `rows` rows, zeros beyond; row(i) is where row i begins; all
 * threads call it together, also for rows beyond `rows`.  `wide`: 16 bytes at a time (is_wide), complete after
 * copy_wait.  thread 0 .. THREADS-1: a block's or a warp's. */
template <int ROWS, int COLUMNS, int THREADS, typename Row>
DEVICE void tile_load(real *tile, int ld, Row row, int rows, int columns, bool wide, int thread) {
    constexpr int PIECES = COLUMNS / WIDE;
    if (wide) {
#pragma unroll
        for (int k = 0; k < (ROWS * PIECES + THREADS - 1) / THREADS; k++) {
            int at = thread + k * THREADS, i = at / PIECES, j = at % PIECES * WIDE;
            const real *from = row(i);
            if (i < ROWS) copy_async_16_or_zero(tile + i * ld + j, from + j, i < rows && j < columns);
        }
        return;
    }
    for (int at = thread; at < ROWS * COLUMNS; at += THREADS) {
        int i = at / COLUMNS, j = at % COLUMNS;
        const real *from = row(i);
        tile[i * ld + j] = i < rows && j < columns ? from[j] : to_real(0);
    }
}

/* The reverse: rows [rows,columns] = tile. */
template <int ROWS, int COLUMNS, int THREADS, typename Row>
DEVICE void tile_store(Row row, const real *tile, int ld, int rows, int columns, bool wide, int thread) {
    constexpr int PIECES = COLUMNS / WIDE;
    if (wide) {
#pragma unroll
        for (int k = 0; k < (ROWS * PIECES + THREADS - 1) / THREADS; k++) {
            int at = thread + k * THREADS, i = at / PIECES, j = at % PIECES * WIDE;
            real *to = row(i);
            if (i < rows && j < columns) copy_16(to + j, tile + i * ld + j);
        }
        return;
    }
    for (int at = thread; at < ROWS * COLUMNS; at += THREADS) {
        int i = at / COLUMNS, j = at % COLUMNS;
        real *to = row(i);
        if (i < rows && j < columns) to[j] = tile[i * ld + j];
    }
}

/* A C tile, times scale, into a tile in shared memory. */
DEVICE void tile_put(real *p, int ld, const FragmentC &c, float scale) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        real *to = p + fragment_c_row(i) * ld + fragment_c_column(i);
#ifdef VIT_FP32
        to[0] = scale * c.x[i];
        to[1] = scale * c.x[i + 1];
#else
        *reinterpret_cast<uint32_t *>(to) = bf16_pair(scale * c.x[i], scale * c.x[i + 1]);
#endif
    }
}

#endif
