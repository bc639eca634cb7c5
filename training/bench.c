#include "training/bench.h"

#include <stdarg.h>
#include <stdio.h>

#include "core/distributed.h"
#include "core/progress.h"
#include "kernels/kernels.h"

static BenchSpeed speed(void (*batch)(void *run, bool training), void *run, bool training, int images, double limit) {
    enum { MAX_BATCHES = 4096 };
    static double seconds[MAX_BATCHES];
    DeviceMark *ends[2] = {NULL, NULL}; /* of the batch before, and of this one */
    int count = 0;
    for (int warm = 0; warm < (device_shares_cores() ? 1 : 2); warm++) {
        batch(run, training);
        device_mark(&ends[warm]);
    }
    device_wait(ends[0]);
    double begin = now_seconds(), start = begin;
    while (count < MAX_BATCHES && !distributed_any(count >= 3 && now_seconds() - begin >= limit)) {
        batch(run, training);
        device_mark(&ends[count % 2]);
        device_wait(ends[(count + 1) % 2]);
        double end = now_seconds(), took = end - start;
        start = end;
        int i = count++;
        for (; i > 0 && seconds[i - 1] > took; i--) seconds[i] = seconds[i - 1];
        seconds[i] = took;
    }
    for (int i = 0; i < 2; i++) {
        device_wait(ends[i]);
        device_mark_free(&ends[i]);
    }
    return (BenchSpeed){images / seconds[count / 2], seconds[0]};
}

static void say(const char *format, ...) {
    va_list arguments;
    if (distributed_rank() > 0) return;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
}

/* Reduces *images if four batches would exceed the limit.  Times the second batch; the first is a warm-up. */
static void fit_batch(void (*batch)(void *run, bool training), void *run, const char *unit, int *images, int least,
                      double limit) {
    enum { BATCHES = 4 };
    int whole = *images;
    if (whole <= least) return;
    say("bench: how long %d %s take ...\n", least, unit);
    *images = least;
    batch(run, true);
    device_synchronize();
    double start = now_seconds();
    batch(run, true);
    device_synchronize();
    double fit = limit / BATCHES / (now_seconds() - start);
    distributed_broadcast(&fit, sizeof fit);
    *images = fit < 1 ? least : fit * least < whole ? (int)fit * least : whole;
    if (*images < whole)
        say("bench: batches of %d %s in place of %d, which would take longer than bench_seconds %g\n", *images, unit,
            whole, limit);
}

Bench bench(void (*batch)(void *run, bool training), void *run, const char *unit, int *images, int least,
            double seconds) {
    say("bench: the speed of a large matrix product ...\n");
    Bench b = {.peak = gemm_peak_gflops()};
    fit_batch(batch, run, unit, images, least, seconds);
    say("bench: training, batches of %d %s, about %g s ...\n", *images, unit, seconds);
    b.train = speed(batch, run, true, *images, seconds);
    say("bench: inference, the same ...\n");
    b.infer = speed(batch, run, false, *images, seconds);
    double again = gemm_peak_gflops();
    if (again > b.peak) b.peak = again;
    return b;
}
