/* The grid of an image's tokens, the same struct for every kernel and layer.  `frames` is meant for video, which no
 * kernel supports yet: it must be 1. */
#ifndef VIT_KERNELS_GRID_H
#define VIT_KERNELS_GRID_H

/* Row-major: token (f * rows + r) * columns + c. */
typedef struct {
    int frames, rows, columns;
} Grid;

#ifdef __CUDACC__
#define GRID_INLINE static inline __host__ __device__
#else
#define GRID_INLINE static inline
#endif

GRID_INLINE int grid_tokens(Grid grid) { return grid.frames * grid.rows * grid.columns; }

/* The grid of all offsets between two tokens: -(rows - 1) .. rows - 1 down, and likewise across. */
GRID_INLINE Grid grid_offsets(Grid grid) {
    Grid offsets = {2 * grid.frames - 1, 2 * grid.rows - 1, 2 * grid.columns - 1};
    return offsets;
}

#endif
