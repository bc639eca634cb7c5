/* Batches.  Any batch of any epoch can be asked for in any order: batch b of epoch e is a function of (seed, e, b)
 * alone, so a resumed run goes on in the middle of an epoch with the bytes it would have seen.
 *
 *   training     order = a uniformly random permutation of all images keyed by (seed, epoch);
 *                batches = count / batch_size: the images left over sit this epoch out, as in DeiT;
 *                with repeated augmentation see sampler.h, for the order within a batch that mixup asks for, mixup.h
 *   evaluation   order = the data set's; batches = count / batch_size rounded up; the last may be short */
#ifndef VIT_DATA_LOADER_H
#define VIT_DATA_LOADER_H

#include "data/augment.h"
#include "data/dataset.h"

typedef struct {
    const Dataset *dataset;
    uint64_t seed;
    int batch_size;
    bool train;
    Augment augment; /* used in training only */
    size_t batches;  /* per epoch */
    uint32_t epoch;
    uint32_t *order; /* [count] */
    uint8_t *raw;    /* [batch_size + 2,height,width,3]: images before augmentation */
    uint8_t *scratch; /* [threads] pieces of pillow_scratch bytes, or NULL */
    int threads;
} Loader;

/* Starts at epoch 0.  Ends the run when a training set does not fill one batch. */
void loader_open(Loader *loader, const Dataset *dataset, uint64_t seed, int batch_size, bool train, Augment augment);
void loader_close(Loader *loader);

/* Draws the order of that epoch; does nothing in evaluation or when it is the current one. */
void loader_epoch(Loader *loader, uint32_t epoch);

/* The number by which the random draws of the sample at a position of the epoch are keyed. */
uint32_t loader_draw(const Loader *loader, size_t position);

/* Fills pixels [n,height,width,3] and labels [n] with the images at positions first .. first+n-1 of the epoch: a batch
 * or a part of one, n <= batch_size + 2.  Same bytes for any number of threads. */
void loader_fill(Loader *loader, size_t first, int n, uint8_t *pixels, int *labels);

/* Fills pixels [batch_size,height,width,3] and labels [batch_size] and returns how many images that are; what lies
 * behind them is left as it was.  batch < batches.  OpenMP over samples; same bytes for any number of threads.
 * One call at a time: the loader's scratch is shared. */
int loader_batch(Loader *loader, size_t batch, uint8_t *pixels, int *labels);

/* targets [n,classes]: timm's smoothed one-hot (timm/data/mixup.py): off = s / C, on = 1 - s + s / C. */
void loader_targets(float *targets, const int *labels, int n, int classes, float smoothing);

#endif
