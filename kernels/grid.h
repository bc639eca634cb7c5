/* The grid of an image's tokens, the same struct for every kernel and layer.  It has room for the frames of a video,
 * but no kernel works on more than one yet: frames is 1 wherever a Grid is given. */
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

/* The offsets between two tokens, as a grid of their own: -(rows - 1) .. rows - 1, and so on. */
GRID_INLINE Grid grid_offsets(Grid grid) {
    Grid offsets = {2 * grid.frames - 1, 2 * grid.rows - 1, 2 * grid.columns - 1};
    return offsets;
}

#endif
