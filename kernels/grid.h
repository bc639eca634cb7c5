/* The grid of an image's or a video's tokens, the same struct for every kernel and layer.  Images have one frame.
 * Kernels work within a frame: they read rows and columns, and frames is 1 unless a contract says otherwise. */
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

#endif
