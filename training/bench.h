/* --bench: measures the training and inference speed of any model.  The program processes the batches:
 *
 *     Bench b;
 *     bench_begin(&b, training, params, micro);
 *     while (bench_next(&b))
 *         if (b.training) ... one step on a batch of training->s->batch_size ...
 *         else ... one forward pass of such a batch ...
 *     bench_print(&b, attn, macs, "\"train_images_per_s\": %.2f", b.train.images_per_s);
 */
#ifndef VIT_TRAINING_BENCH_H
#define VIT_TRAINING_BENCH_H

#include "training/training.h"

typedef struct {
    double images_per_s; /* from the time of the median batch */
    double fastest;      /* seconds of the fastest batch, the one least disturbed by other programs on the machine */
} BenchSpeed;

typedef struct {
    bool training; /* what bench_next wants: a step, or else a forward pass */
    BenchSpeed train, infer;
    double peak; /* GFLOP/s of a large matrix product on this device, the better of one run before and one after */

    int *images;      /* the batch size summed over all ranks */
    int least, whole; /* it may become any multiple of the first; the second is what was asked for */
    const char *unit; /* what the reports call an image */
    double limit;     /* seconds for training, and again for inference */
    uint64_t *step;   /* of the training, which each of its batches advances; NULL: none */
    int phase, batches, timed; /* of the current phase: how many were begun, and timed */
    double phase_began, batch_began; /* after the warm-up */
    DeviceMark *ends[2];             /* of the batch before, and of this one */
} Bench;

/* Prepares to measure training, then inference, for about bench_seconds each, after one warm-up batch that is not
 * counted, or two where the device runs beside the host: the time of a batch is then from the end of the one before to
 * its own.  If four training batches would take longer than bench_seconds, t->s->batch_size is first reduced to a
 * multiple of `micro` on every rank.  Allocates the optimizer's memory of `params`.  Reports progress on stderr. */
void bench_begin(Bench *b, Training *t, Params *params, int micro);

/* True: process one batch, as b->training says; the device may still be working on it at the next call, and the host
 * prepares the next one meanwhile, as in training.  All training batches come first.  False: everything is measured. */
bool bench_next(Bench *b);

/* The same loop for a batch(run, training). */
Bench bench(void (*batch)(void *run, bool training), void *run, const char *unit, int *images, int least,
            double limit);

/* The share of the device's peak that so many multiply-adds of an image mean at that speed. */
double bench_peak_share(const Bench *b, double macs, double images_per_s);

/* On rank 0: prints the results as one line of JSON: the operator, the device, the ranks and batches, then the
 * program's own "key": value pairs, then memory and, from the multiply-adds of an image's training, the share of the
 * peak. */
void bench_print(const Bench *b, const char *attn, double training_macs, const char *own, ...)
    __attribute__((format(printf, 4, 5)));

#endif
