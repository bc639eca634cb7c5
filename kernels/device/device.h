/* The device: its memory, transfers from and to the host, recorded graphs of kernels, and its peak speeds. */
#ifndef VIT_KERNELS_DEVICE_DEVICE_H
#define VIT_KERNELS_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Must be the program's first call, before it opens or prints anything: the CPU backend may execute the program anew
 * with another setting of OpenMP (kernels/device/device.c).  Succeeds on a machine without a GPU; the first call that
 * needs one dies with a message. */
void kernels_init(void);
void kernels_exit(void);

/* To be called after an exception in oneDNN: drops what it had begun to create, on which a later call would fail. */
void kernels_recover(void);

/* A description of the device for the first line of a run, such as "CPU, 2 threads, AVX-512, bfloat16, oneDNN
 * 2.6.3". */
const char *kernels_device(void);

/* NULL, or one line that says why this machine should not run this build and what to do: a CPU without instructions for
 * bfloat16 would compute with it many times slower than with float.  VIT_ANY_CPU=1 in the environment permits it. */
const char *kernels_unsupported(void);

/* Allocates the one workspace that all kernels share, of at least this many bytes; a smaller one is freed. */
void kernels_reserve(size_t bytes);

/* Zeroed memory, aligned to 64 bytes or more.  If there is not enough, dies with a message that names `what` and the
 * size. */
void *device_malloc(size_t bytes, const char *what);
void device_free(void *p);
void device_zero(void *p, size_t bytes);
void device_upload(void *device, const void *host, size_t bytes);
void device_download(void *host, const void *device, size_t bytes);
void device_copy(void *to, const void *from, size_t bytes);
/* Waits until all kernels and copies called so far have finished, as is needed before a clock is read. */
void device_synchronize(void);
/* The most device memory that this process has held at one time, in bytes, without the buffers of gemm_peak_gflops and
 * memory_peak_gbytes. */
size_t device_peak_bytes(void);

/* Host memory that the device can copy from at full speed (page-locked for CUDA); otherwise as device_malloc. */
void *host_malloc(size_t bytes, const char *what);
void host_free(void *p);

/* Copies that overlap with kernels.  `host` must come from host_malloc.
 *
 * device_upload_async copies while kernels run that were called after the last device_uploads_used; kernels and copies
 * called before that are finished first, and those called after the upload see its contents.  The caller therefore
 * calls device_uploads_used after all calls that read or write `device` before the next upload to it.
 * device_uploads_wait returns when `host` of every upload so far may be written again; so does device_synchronize. */
void device_upload_async(void *device, const void *host, size_t bytes);
void device_uploads_used(void);
void device_uploads_wait(void);

/* The contents of `host` are valid after the wait for a later device_mark, or after a later device_download has
 * returned. */
void device_download_async(void *host, const void *device, size_t bytes);

/* A position in the sequence of calls: device_wait returns when everything that was called before device_mark is done.
 * *mark is NULL before the first use, and can be used again. */
typedef struct DeviceMark DeviceMark;
void device_mark(DeviceMark **mark);
void device_wait(const DeviceMark *mark);
void device_mark_free(DeviceMark **mark);

/* Records a sequence of kernel calls once and launches it as a whole from then on (a CUDA graph; the CPU backend simply
 * runs the calls each time).
 *   if (device_graph_begin(&graph)) {
 *       calls of kernels and of device_copy; every all_reduce_start with its all_reduce_finish;
 *       no uploads, no downloads, no marks, no kernels_reserve
 *       device_graph_end(&graph);
 *   }
 * begin returns false if it launched a recorded graph: the body is then not executed.  Otherwise the caller executes
 * the body and end launches it.  *graph is NULL before the first use.  The contents of the memory may change between
 * launches, the pointers and sizes may not. */
typedef struct DeviceGraph DeviceGraph;
bool device_graph_begin(DeviceGraph **graph);
void device_graph_end(DeviceGraph **graph);
void device_graph_free(DeviceGraph **graph);

/* Copies n elements between the host's float and the device's real, converting them. */
void real_upload(real *device, const float *host, size_t n);
void real_download(float *host, const real *device, size_t n);

/* The number of elements of an activation [B,N,M] that is needed to use this device fully.  The size of a micro-batch
 * depends on it. */
size_t activations_at_once(void);

/* True if `bytes` more of device memory are free, and on this device it is faster to keep a result of forward there for
 * the backward pass than to compute it again.  Results are the same. */
bool device_keeps(size_t bytes);

/* True if kernels run on the host's own cores, so that other threads of the program slow them down. */
bool device_shares_cores(void);

/* The measured speed of a large matrix product in 1e9 floating point operations a second, a multiply-add counting as
 * two.  The speed of a training step is reported as a share of it. */
double gemm_peak_gflops(void);
/* The measured speed of a large copy within the device in 1e9 bytes a second, counting both the bytes read and those
 * written.  Allocates 256 MiB or more during the measurement. */
double memory_peak_gbytes(void);

#ifdef __cplusplus
}
#endif

#endif
