/* The backend's one workspace, cut into a slice for each thread.  device.c owns it (kernels_reserve); a kernel computes
 * the floats that one thread needs, returns workspace_bytes of that number from its *_workspace function, and takes the
 * slice inside the parallel region.  The initial contents of a slice are arbitrary. */
#ifndef VIT_KERNELS_DEVICE_WORKSPACE_H
#define VIT_KERNELS_DEVICE_WORKSPACE_H

#include <assert.h>
#include <omp.h>
#include <stddef.h>

#include "kernels/cpu/tile.h"

extern void *kernels_workspace_base; /* 64-byte aligned */
extern size_t kernels_workspace_bytes;

/* Returns *room with at least `bytes` bytes; *size is its size, at first 0 with *room NULL.  Growing loses the contents.
 * The memory belongs to the process: a failing call does not free it (memory_shared_begin in core/die.h). */
void *workspace_grow(void **room, size_t *size, size_t bytes, const char *what);

enum { CACHE_LINE = 16 }; /* floats: no two threads share one */

static inline size_t workspace_slice(size_t floats) { return (floats + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE; }

/* The floats that workspace_take takes for n floats: whole vectors. */
static inline size_t workspace_line_up(size_t n) { return (n + TILE - 1) / TILE * TILE; }

static inline size_t workspace_bytes(size_t floats_per_thread) {
    return (size_t)omp_get_max_threads() * workspace_slice(floats_per_thread) * sizeof(float);
}

/* In some kernels the workspace begins with floats that all threads share, followed by the slices. */
static inline size_t workspace_bytes_behind(size_t shared, size_t floats_per_thread) {
    return workspace_slice(shared) * sizeof(float) + workspace_bytes(floats_per_thread);
}

static inline float *workspace_shared(void) { return (float *)kernels_workspace_base; }

/* The slice of `thread`, for reductions of partial sums after a parallel region. */
static inline float *workspace_behind(size_t shared, int thread, size_t floats_per_thread) {
    size_t slice = workspace_slice(floats_per_thread), first = workspace_slice(shared) + (size_t)thread * slice;
    assert((first + slice) * sizeof(float) <= kernels_workspace_bytes);
    return workspace_shared() + first;
}

static inline float *workspace_of(int thread, size_t floats_per_thread) {
    return workspace_behind(0, thread, floats_per_thread);
}

static inline float *kernels_workspace(size_t floats_per_thread) {
    return workspace_of(omp_get_thread_num(), floats_per_thread);
}

/* The next n floats of a slice; add workspace_line_up(n) for each to the floats asked for. */
static inline float *workspace_take(float **next, size_t n) {
    float *taken = *next;
    *next += workspace_line_up(n);
    return taken;
}

#endif
