/* Timing for the benchmarks of kernels. */
#ifndef VIT_TESTS_BENCH_BENCH_H
#define VIT_TESTS_BENCH_BENCH_H

#include <stdlib.h>
#include <time.h>

#include "kernels/kernels.h"

/* CLOCK_PROCESS_CPUTIME_ID measures processor time, which other programs on the machine disturb less.  With a GPU it
 * equals elapsed time, since the CPU spins while it waits. */
static clockid_t bench_clock = CLOCK_MONOTONIC;

static inline double seconds(void) {
    struct timespec now;
    device_synchronize();
    clock_gettime(bench_clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* result = seconds for one call: three series of calls take at least `least` seconds each, and the fastest counts. */
#define TIME(result, least, call)                               \
    do {                                                        \
        result = 1e30;                                          \
        call;                                                   \
        for (int stretch = 0; stretch < 3; stretch++) {         \
            int calls = 0;                                      \
            double start = seconds(), spent;                    \
            do {                                                \
                call;                                           \
                calls++;                                        \
                spent = seconds() - start;                      \
            } while (spent < (least));                          \
            if (spent / calls < result) result = spent / calls; \
        }                                                       \
    } while (0)

/* Copies host data to the device and frees the host's. */
static inline real *device_copy_of(float *host, size_t n) {
    real *device = device_malloc(n * sizeof *device, "bench");
    real_upload(device, host, n);
    free(host);
    return device;
}

static inline float *uniform_on_host(size_t n, float from, float to) {
    float *x = malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = from + (to - from) * (float)rand() / (float)RAND_MAX;
    return x;
}

/* Numbers from `from` to `to` on the device. */
static inline real *uniform_real(size_t n, float from, float to) { return device_copy_of(uniform_on_host(n, from, to), n); }

static inline float *uniform_floats(size_t n, float from, float to) {
    float *x = uniform_on_host(n, from, to), *device = device_malloc(n * sizeof *device, "bench");
    device_upload(device, x, n * sizeof *device);
    free(x);
    return device;
}

#endif
