/* The host side of this backend that kernels share: one stream, checked calls, workspace. */
#ifndef VIT_KERNELS_CUDA_RUNTIME_H
#define VIT_KERNELS_CUDA_RUNTIME_H

#include <cuda_runtime.h>
#include <stddef.h>

#include "real.h"

/* NULL until device_open. */
extern cudaStream_t kernels_stream;

/* Opens this rank's GPU at the first call; dies with a message if there is none.  Called by all functions that allocate
 * device memory or measure speed, so that a program that does neither runs without a GPU. */
void device_open(void);

/* The workspace reserved with kernels_reserve; dies if it is smaller than `bytes`. */
void *kernels_workspace(size_t bytes);

/* Prints the call, the place, the library's message, and ends the run. */
[[noreturn]] void cuda_fail(const char *call, const char *file, int line, const char *message);

#define CUDA_TRY(call)                                                                                    \
    do {                                                                                                  \
        cudaError_t status_ = (call);                                                                     \
        if (status_ != cudaSuccess) cuda_fail(#call, __FILE__, __LINE__, cudaGetErrorString(status_));    \
    } while (0)

/* The copy of parameters that matrix products read.  It is rounded to bfloat16 at the first call and again after
 * memory_changed; in an FP32 build it is p itself.  It is valid for products that are launched before the parameters
 * change. */
const real *real_copy(const float *p);
/* Must be called after float parameters were written.  p is any address in the memory that device_malloc returned for
 * them. */
void memory_changed(const void *p);

/* linear.cu creates its library handle and memory, and frees them, called by device_open and kernels_exit. */
void linear_open(void);
void linear_close(void);

/* collective.cu: waits for an event, or with NULL for all of kernels_stream, and dies as soon as a sum over ranks has
 * failed; returns at once with one rank.  To be called before the host waits for either. */
void collective_wait(cudaEvent_t event);

/* A function that kernels_exit calls before it destroys the stream, set by files whose library is not in every
 * program. */
extern void (*library_close)(void);

/* The most shared memory that a block can have on this GPU; how many multiprocessors it has. */
size_t launch_shared_most(void);
int device_multiprocessors(void);
/* Permits a kernel more than 48 KiB of shared memory if it needs that much. */
void launch_prepare(const void *kernel, size_t shared_bytes);
/* Checks the launch; in a debug build (VIT_DEBUG) also waits for it. */
void launch_check(const char *kernel, const char *file, int line);

#endif
