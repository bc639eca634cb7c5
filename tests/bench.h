/* What benchmarks of kernels share. */
#ifndef VIT_TESTS_BENCH_H
#define VIT_TESTS_BENCH_H

#include <stdlib.h>
#include <time.h>

#include "kernels/kernels.h"

/* CLOCK_PROCESS_CPUTIME_ID for the processor's time, which neighbours disturb less; a GPU's is the same as the clock's,
 * since whoever waits for it spins. */
static clockid_t bench_clock = CLOCK_MONOTONIC;

static inline double seconds(void) {
    struct timespec now;
    device_synchronize();
    clock_gettime(bench_clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* result = seconds of the fastest of three stretches of at least `least` seconds of calls. */
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

/* The host's numbers, which are freed, on the device. */
static inline real *device_copy_of(float *host, size_t n) {
    real *device = device_malloc(n * sizeof *device, "bench");
    real_upload(device, host, n);
    free(host);
    return device;
}

#endif
