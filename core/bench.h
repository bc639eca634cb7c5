/* Speed: what --bench measures of any model. */
#ifndef VIT_CORE_BENCH_H
#define VIT_CORE_BENCH_H

#include <stdbool.h>

typedef struct {
    double images_per_s; /* of the median batch */
    double fastest;      /* seconds of the batch that neighbours disturbed least */
} BenchSpeed;

typedef struct {
    BenchSpeed train, infer;
    double peak; /* GFLOP/s of a large matrix product on this device, the better of one before and one after */
} Bench;

/* Trains, then infers, batches of *images of all ranks together, each for about so many seconds, after one batch that
 * is not counted.  Where four batches of training would take longer, *images is made less first, to a
 * multiple of `least`.  batch: one of them, done when it returns; `training` changes once.  Says on stderr what it
 * does. */
Bench bench(void (*batch)(void *run, bool training), void *run, int *images, int least, double seconds);

#endif
