/* Fourier transforms of tensors in memory with cuFFT, for operators that also have kernels of their own with transforms
 * in shared memory (fft.cuh).  VIT_TRANSFORMS in the environment chooses between them:
 *   blocks   its own kernels, wherever a sequence fits into shared memory; this is the default
 *   cufft    the library */
#ifndef VIT_KERNELS_LISA_TRANSFORMS_H
#define VIT_KERNELS_LISA_TRANSFORMS_H

#include <device.cuh>

#include <stdbool.h>
#include <stddef.h>

#include "kernels/cuda/runtime.h"
#include "kernels/tokens/grid.h"

/* == Plans ======================================================================================================== */

/* The transforms of `batch` real tensors x [batch,T,Hg,Wg], or [batch,N] unless `grid`, and their half spectra
 * X [batch,T,Hg,Wg/2+1], or [batch,N/2+1]; neither direction scales.  The last few
 * hundred plans that were used are kept. */
struct Transform {
    Grid tokens;
    bool grid;
    int batch;
    int N, F;          /* numbers of x and of X */
    size_t work_bytes; /* of the work area, which is aligned to 256 bytes */
    int forward, backward; /* the library's handles */
};

/* False in a build without cuFFT, where none of the functions below may be called. */
bool transforms_available(void);

/* Makes a plan if there is none, which allocates memory: for *_workspace functions, and for the first batch with a grid
 * where grids change from batch to batch. */
const Transform *transform_plan(Grid tokens, bool grid, int batch);
/* X = F x. */
void transform_forward(const Transform *t, float2 *X, float *x, void *work);
/* x = F' X; X is destroyed. */
void transform_backward(const Transform *t, float *x, float2 *X, void *work);

static inline int half_of(Grid tokens, bool grid) {
    return grid ? tokens.frames * tokens.rows * (tokens.columns / 2 + 1) : grid_tokens(tokens) / 2 + 1;
}

/* == Which of the two ============================================================================================= */

/* Whether an operator uses cuFFT: if VIT_TRANSFORMS says so, or if its own kernels do not support the size (`fits` is
 * false); never in a build without cuFFT. */
bool transforms_by_cufft(bool fits);

#endif
