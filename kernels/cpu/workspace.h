/* The backend's one workspace, cut into a slice for each thread.  device.c owns it (kernels_reserve); a kernel says in
 * floats what one thread needs, answers its *_workspace function with workspace_bytes of that number, and takes the
 * slice inside the parallel region.  What a slice holds on arrival is arbitrary. */
#ifndef VIT_KERNELS_CPU_WORKSPACE_H
#define VIT_KERNELS_CPU_WORKSPACE_H

#include <assert.h>
#include <omp.h>
#include <stddef.h>

extern char *kernels_workspace_base; /* 64-byte aligned */
extern size_t kernels_workspace_bytes;

enum { WORKSPACE_LINE = 16 }; /* floats in a cache line: no two threads share one */

static inline size_t workspace_line_up(size_t floats) {
    return (floats + WORKSPACE_LINE - 1) / WORKSPACE_LINE * WORKSPACE_LINE;
}

static inline size_t workspace_bytes(size_t floats_per_thread) {
    return (size_t)omp_get_max_threads() * workspace_line_up(floats_per_thread) * sizeof(float);
}

/* The slice of `thread`: how the reductions after a parallel region reach the partial sums. */
static inline float *workspace_of(int thread, size_t floats_per_thread) {
    size_t slice = workspace_line_up(floats_per_thread);
    assert(((size_t)thread + 1) * slice * sizeof(float) <= kernels_workspace_bytes);
    return (float *)kernels_workspace_base + (size_t)thread * slice;
}

static inline float *kernels_workspace(size_t floats_per_thread) {
    return workspace_of(omp_get_thread_num(), floats_per_thread);
}

/* The next n floats of a slice, cache-line aligned; add workspace_line_up(n) for each to the floats asked for. */
static inline float *workspace_take(float **next, size_t n) {
    float *taken = *next;
    *next += workspace_line_up(n);
    return taken;
}

#endif
