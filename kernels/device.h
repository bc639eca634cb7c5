/* The device and its memory, host memory that it reads at full speed, graphs of kernels, and its peaks. */
#ifndef VIT_KERNELS_DEVICE_H
#define VIT_KERNELS_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* First of all calls, before anything is opened or printed: the CPU backend may start the program again (device.c).
 * Works where there is no device: what needs one says so. */
void kernels_init(void);
void kernels_exit(void);

/* "2 threads, AVX-512, oneDNN 2.6.3": what the kernels run on, for the first line of a run. */
const char *kernels_device(void);

/* One workspace for all kernels; replaces an earlier, smaller one. */
void kernels_reserve(size_t bytes);

/* Zeroed, 64-byte aligned; dies with `what` and the size when there is not enough. */
void *device_malloc(size_t bytes, const char *what);
void device_free(void *p);
void device_zero(void *p, size_t bytes);
void device_upload(void *device, const void *host, size_t bytes);
void device_download(void *host, const void *device, size_t bytes);
void device_copy(void *to, const void *from, size_t bytes);
/* Waits until everything asked for is done: before a clock is read. */
void device_synchronize(void);
/* The most memory this process has held on the device for the model, in bytes: not the two measurements' below. */
size_t device_peak_bytes(void);

/* Host memory that a device reads at full speed; zeroed, 64-byte aligned, dies as device_malloc does. */
void *host_malloc(size_t bytes, const char *what);
void host_free(void *p);
/* device_upload that leaves the bytes where they are: nobody writes to `host`, which is host_malloc's, before
 * device_synchronize or the next download has returned. */
void device_upload_async(void *device, const void *host, size_t bytes);

/* The same kernels with the same arguments, again and again, asked for at once where the device can:
 *   if (device_graph_begin(&graph)) {
 *       kernels, and copies within the device; nothing up or down, no reserve, and an all_reduce_start with its finish
 *       device_graph_end(&graph);
 *   }
 * The work is done by the return of begin when it says false, and by that of end when it says true.  *graph is NULL at
 * first.  What the pointers point to may change between calls, the pointers and sizes may not. */
typedef struct DeviceGraph DeviceGraph;
bool device_graph_begin(DeviceGraph **graph);
void device_graph_end(DeviceGraph **graph);
void device_graph_free(DeviceGraph **graph);

void real_upload(real *device, const float *host, size_t n);
void real_download(float *host, const real *device, size_t n);

/* Numbers of one activation [B,N,M] that are enough to keep this device busy: what a micro-batch is chosen by. */
size_t activations_at_once(void);

/* Does it compute on the host's own cores, so that threads beside it take some away? */
bool device_shares_cores(void);

/* Multiply-adds a second, in 1e9 floating point operations (two each), of a large product:
 * the peak a step is held against. */
double gemm_peak_gflops(void);
/* Bytes a second, in 1e9, of a large copy within the device, counting those read and those written.  Takes 256 MiB or
 * more for a moment. */
double memory_peak_gbytes(void);

#ifdef __cplusplus
}
#endif

#endif
