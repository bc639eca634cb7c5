/* Fourier transforms of tensors in memory by cuFFT, for operators that also have kernels of their own, whose transforms
 * stay in shared memory (fft.cuh).  VIT_TRANSFORMS in the environment says which an operator takes:
 *   blocks     its own kernels, wherever a sequence fits into shared memory
 *   cufft      the library
 *   measured   the faster one, both timed when memory is planned, unless the run has chosen already (choices.h)
 * Where it says nothing, an operator takes what the run has chosen, else `blocks`. */
#ifndef VIT_KERNELS_LISA_TRANSFORMS_H
#define VIT_KERNELS_LISA_TRANSFORMS_H

#include <device.cuh>

#include <stddef.h>

#include "kernels/device/choices.h"
#include "kernels/device/runtime.h"
#include "kernels/tokens/grid.h"

/* == Plans ======================================================================================================== */

/* Of `batch` real tensors x [batch,T,Hg,Wg], or [batch,N] unless `grid`, and their half spectra
 * X [batch,T,Hg,Wg/2+1], or [batch,N/2+1]; neither direction scales.  A plan is kept for the life of the program. */
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
/* The library's version; 0 without it. */
int transforms_library(void);

/* Makes a plan that is not there yet, which allocates: for *_workspace functions. */
const Transform *transform_plan(Grid tokens, bool grid, int batch);
/* X = F x. */
void transform_forward(const Transform *t, float2 *X, float *x, void *work);
/* x = F' X; X is destroyed. */
void transform_backward(const Transform *t, float *x, float2 *X, void *work);

static inline int half_of(Grid tokens, bool grid) {
    return grid ? tokens.frames * tokens.rows * (tokens.columns / 2 + 1) : grid_tokens(tokens) / 2 + 1;
}

/* == Which of the two ============================================================================================= */

enum TransformWay { WAY_BLOCKS, WAY_CUFFT, WAY_MEASURED };

/* What is to be done for `what`, an operator and its shape in words.  fits: the operator's own kernels can do it.
 * WAY_MEASURED: the caller measures, and tells transforms_chose. */
TransformWay transforms_way(const char *what, bool fits);
void transforms_chose(const char *what, bool cufft);

/* Milliseconds of a few runs after a first one. */
template <typename Run>
static inline float transforms_time(Run run) {
    enum { RUNS = 3 };
    cudaEvent_t start, end;
    float milliseconds;
    CUDA_TRY(cudaEventCreate(&start));
    CUDA_TRY(cudaEventCreate(&end));
    run();
    CUDA_TRY(cudaEventRecord(start, kernels_stream));
    for (int i = 0; i < RUNS; i++) run();
    CUDA_TRY(cudaEventRecord(end, kernels_stream));
    CUDA_TRY(cudaEventSynchronize(end));
    CUDA_TRY(cudaEventElapsedTime(&milliseconds, start, end));
    CUDA_TRY(cudaEventDestroy(start));
    CUDA_TRY(cudaEventDestroy(end));
    return milliseconds;
}

/* Device memory for measuring: gone with this object, zero at first, and not counted in device_peak_bytes. */
struct Scratch {
    void *p;
    explicit Scratch(size_t bytes) : p(NULL) {
        if (!bytes) return;
        CUDA_TRY(cudaMalloc(&p, bytes));
        CUDA_TRY(cudaMemsetAsync(p, 0, bytes, kernels_stream));
    }
    Scratch(const Scratch &) = delete;
    ~Scratch() { CUDA_TRY(cudaFree(p)); }
    template <typename T>
    T *as() const {
        return static_cast<T *>(p);
    }
};

#endif
