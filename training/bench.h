/* --bench: measures the training and inference speed of any model. */
#ifndef VIT_TRAINING_BENCH_H
#define VIT_TRAINING_BENCH_H

#include <stdbool.h>

typedef struct {
    double images_per_s; /* from the time of the median batch */
    double fastest;      /* seconds of the fastest batch, the one least disturbed by other programs on the machine */
} BenchSpeed;

typedef struct {
    BenchSpeed train, infer;
    double peak; /* GFLOP/s of a large matrix product on this device, the better of one run before and one after */
} Bench;

/* Measures training, then inference, for about `seconds` each, after one warm-up batch that is not counted, or two where
 * the device runs beside the host: the time of a batch is then from the end of the one before to its own.  *images is
 * the batch size summed over all ranks.  If four training batches would take longer than `seconds`, *images is first
 * reduced to a multiple of `least`.  batch(run, training) must process one batch; the device may still be working on it
 * when the call returns, and the host prepares the next one meanwhile, as in training.  All calls with training = true
 * come first.  Reports progress on stderr; unit: what it calls an image, as in "sequences". */
Bench bench(void (*batch)(void *run, bool training), void *run, const char *unit, int *images, int least,
            double seconds);

#endif
