/* The host side of this backend that kernels share: one stream, checked calls, workspace. */
#ifndef VIT_KERNELS_CUDA_RUNTIME_H
#define VIT_KERNELS_CUDA_RUNTIME_H

#include <cuda_runtime.h>
#include <stddef.h>

#include "real.h"

/* NULL until device_open. */
extern cudaStream_t kernels_stream;

/* Takes this rank's GPU, once; dies with one line where there is none.  Everything that gives out device memory or
 * measures calls it, so that a program which uses no device needs none. */
void device_open(void);

/* The workspace reserved with kernels_reserve; dies when `bytes` were not reserved. */
void *kernels_workspace(size_t bytes);

/* Prints the call, the place, the library's message, and ends the run. */
[[noreturn]] void cuda_fail(const char *call, const char *file, int line, const char *message);

#define CUDA_TRY(call)                                                                                    \
    do {                                                                                                  \
        cudaError_t status_ = (call);                                                                     \
        if (status_ != cudaSuccess) cuda_fail(#call, __FILE__, __LINE__, cudaGetErrorString(status_));    \
    } while (0)

/* The copy of parameters that matrix products read: rounded to bfloat16 when first asked for and again after
 * memory_changed; in an FP32 build p itself.  Good for products asked for before the parameters change. */
const real *real_copy(const float *p);
/* Whoever writes float parameters says so: p is anywhere in the memory that device_malloc gave for them. */
void memory_changed(const void *p);

/* linear.cu's library handle and memory, between device_open and kernels_exit. */
void linear_open(void);
void linear_close(void);

/* What kernels_exit calls before the stream is gone, where a library was opened that not every program has. */
extern void (*library_close)(void);

/* Allows a kernel more than 48 KiB of shared memory where it asks for that. */
void launch_prepare(const void *kernel, size_t shared_bytes);
/* Checks the launch; in a debug build (VIT_DEBUG) also waits for it. */
void launch_check(const char *kernel, const char *file, int line);

#endif
