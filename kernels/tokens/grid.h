/* The grid of an image's or a clip's tokens, the same struct for every kernel and layer.  An image has one frame.
 * Kernels whose headers do not mention frames accept one only. */
#ifndef VIT_KERNELS_TOKENS_GRID_H
#define VIT_KERNELS_TOKENS_GRID_H

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

typedef struct {
    int t, y, x; /* frame, row, column */
} GridPlace;

GRID_INLINE GridPlace grid_place(Grid grid, int token) {
    int area = grid.rows * grid.columns, t = grid.frames > 1 ? token / area : 0, within = token - t * area;
    GridPlace place = {t, within / grid.columns, within % grid.columns};
    return place;
}

/* The grid of all offsets between two tokens: -(rows - 1) .. rows - 1 down, and likewise across and in time. */
GRID_INLINE Grid grid_offsets(Grid grid) {
    Grid offsets = {2 * grid.frames - 1, 2 * grid.rows - 1, 2 * grid.columns - 1};
    return offsets;
}

#endif
