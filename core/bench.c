#include "core/bench.h"

#include "core/distributed.h"
#include "core/progress.h"
#include "kernels/kernels.h"

static BenchSpeed speed(void (*batch)(void *run, bool training), void *run, bool training, int images, double limit) {
    enum { MAX_BATCHES = 4096 };
    static double seconds[MAX_BATCHES];
    int count = 0;
    batch(run, training);
    double begin = now_seconds();
    while (count < MAX_BATCHES && !distributed_any(count >= 3 && now_seconds() - begin >= limit)) {
        double start = now_seconds();
        batch(run, training);
        double took = now_seconds() - start;
        int i = count++;
        for (; i > 0 && seconds[i - 1] > took; i--) seconds[i] = seconds[i - 1];
        seconds[i] = took;
    }
    return (BenchSpeed){images / seconds[count / 2], seconds[0]};
}

Bench bench(void (*batch)(void *run, bool training), void *run, int images, double seconds) {
    Bench b = {.peak = gemm_peak_gflops()};
    b.train = speed(batch, run, true, images, seconds);
    b.infer = speed(batch, run, false, images, seconds);
    double again = gemm_peak_gflops();
    if (again > b.peak) b.peak = again;
    return b;
}
