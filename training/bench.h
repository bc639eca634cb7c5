/* --bench: measures the training and inference speed of any model.  The program processes the batches:
 *
 *     Bench b;
 *     bench_begin(&b, t, params, micro);
 *     while (bench_next(&b)) {
 *         ... training_step_begin, if b.training
 *         while (bench_part(&b))
 *             ... forward and, if b.training, backward pass of b.n images, which are those from b.first on in the batch
 *         ... all_reduce_finish and training_update, if b.training
 *     }
 *     bench_print(&b, attn, macs, training_macs, "\"train_images_per_s\": %.2f", b.train.images_per_s);
 */
#ifndef VIT_TRAINING_BENCH_H
#define VIT_TRAINING_BENCH_H

#include "training/training.h"

typedef struct {
    double images_per_s; /* from the time of the median batch */
    double fastest;      /* seconds of the fastest batch, the one least disturbed by other programs on the machine */
} BenchSpeed;

typedef struct {
    bool training; /* purpose of the batch: a training step, or otherwise a forward pass */
    int first, n;  /* the images of the part */
    bool last;     /* this rank's share of the batch is done */
    BenchSpeed train, infer;
    double peak; /* GFLOP/s of a large matrix product on this device, the better of one run before and one after */
    size_t peak_bytes; /* peak memory of the measured passes, without the measurements of bench_print and its callers */

    Training *t;
    int micro; /* images at a time */
    int whole; /* the batch size in the settings */
    int phase, batches, timed;       /* batches of the current phase that were begun, and timed */
    double phase_began, batch_began; /* after the warm-up */
    DeviceMark *ends[2];             /* of the previous batch, and of this one */
} Bench;

/* Prepares to measure training, then inference, for about bench_seconds each, after one warm-up batch that is not
 * counted, or two where the device runs asynchronously: the time of a batch is then measured from the end of the
 * previous one to its own end.  If four training batches would take longer than bench_seconds, t->s->batch_size is
 * first reduced to a multiple of `micro` on every rank.  Allocates the optimizer's memory of `params`.  Reports
 * progress on stderr. */
void bench_begin(Bench *b, Training *t, Params *params, int micro);

/* True: process one batch, for training or inference according to b->training.  The device may still be working on it
 * at the next call, while the host prepares the next one, as in training.  All training batches come first.  False:
 * everything is measured. */
bool bench_next(Bench *b);

/* The next part of this rank's share of the batch; false at its end. */
bool bench_part(Bench *b);

/* Random bytes below `limit`, for a batch. */
void bench_fill(uint8_t *bytes, size_t n, int limit, uint64_t seed);

/* MFU: the share of the device's peak at `macs` multiply-adds an image and this speed. */
double bench_peak_share(const Bench *b, double macs, double images_per_s);

/* On rank 0: prints the results as one line of JSON.  Besides the program's own "key": value pairs it has the operator,
 * the device, ranks and batches, the multiply-adds of an image's forward pass, the memory, and the MFU of its
 * training. */
void bench_print(const Bench *b, const char *attn, double macs, double training_macs, const char *own, ...)
    __attribute__((format(printf, 5, 6)));

#endif
