/* Batches.  Any batch of any epoch is a function of (seed, epoch, batch) alone, whatever loads it: a resumed run goes
 * on in the middle of an epoch with the bytes it would have seen, and image j of a batch is the same on any number of
 * ranks.
 *
 *   training     order = a uniformly random permutation of all images keyed by (seed, epoch);
 *                batches = count / batch_size: the images left over sit this epoch out, as in DeiT
 *   evaluation   order = the data set's; batches = count / batch_size rounded up; the last may be short
 *   ranks        of the n images of a batch, rank r of R has those at [r n / R, (r+1) n / R)
 *
 * A pool of threads works ahead, in any order; loader_next hands out in order what they have filled.  An image that
 * cannot be read is named on stderr once, and the next one of the data set that can be takes its place. */
#ifndef VIT_DATA_LOADER_H
#define VIT_DATA_LOADER_H

#include "data/dataset.h"
#include "data/transform.h"

typedef struct LoaderPool LoaderPool;

typedef struct {
    uint64_t seed;
    int batch_size; /* of all ranks together */
    bool train;
    int rank, ranks;   /* ranks 0: one */
    int part;          /* images that loader_next gives at a time, 0: this rank's share of a batch */
    int repeats;       /* training: each image so many times in a row, augmented afresh, and only count / repeats of
                          them in an epoch (DeiT's repeated augmentation has 3); 0: once */
    float max_damaged; /* more than this share of an epoch's images damaged ends the run */
    Transform transform;
    LoaderPool *pool; /* NULL: loader_next fills its part itself, with OpenMP */
    void *(*allocate)(size_t bytes, const char *what); /* of the parts' pixels, NULL: xcalloc and free */
    void (*release)(void *memory);
} LoaderConfig;

/* Images next to each other in a batch: pixels [n,height,width,3], labels [n]. */
typedef struct {
    uint8_t *pixels;
    int *labels;
    int n;
    size_t batch; /* of the epoch */
    int first;    /* place of the first in the global batch */
} LoaderPart;

/* Sums since loader_open. */
typedef struct {
    uint64_t images;
    double stalled; /* seconds that loader_next waited */
    double worked;  /* seconds of all workers together */
    size_t damaged; /* different images */
} LoaderStats;

typedef struct LoaderRing LoaderRing;

typedef struct {
    const Dataset *dataset;
    LoaderConfig config;
    size_t batches; /* per epoch */
    uint32_t epoch;
    uint32_t *order; /* [count] */
    LoaderRing *ring;
} Loader;

/* How many cores this process may use. */
int loader_cores(void);

/* workers 0: one a core.  They take no signals. */
LoaderPool *loader_pool_open(int workers);
/* After the loaders that use it. */
void loader_pool_close(LoaderPool *pool);

/* Starts at epoch 0.  Ends the run when a training set does not fill one batch. */
void loader_open(Loader *loader, const Dataset *dataset, const LoaderConfig *config);
/* At any moment: waits for the images that workers are at. */
void loader_close(Loader *loader);

/* Draws the order of that epoch; does nothing when it is the current one. */
void loader_epoch(Loader *loader, uint32_t epoch);

/* The pool begins to load from that batch on; what was loaded for another place is dropped.  Does nothing when that is
 * where it began and nothing has been taken yet. */
void loader_start(Loader *loader, uint32_t epoch, size_t batch);

/* The next part, until the call after it; false at the end of the epoch.  Ends the run when too many images are
 * damaged. */
bool loader_next(Loader *loader, LoaderPart *part);

/* Fills pixels [n,height,width,3] and labels [n] with the images at places first .. first+n-1 of the epoch's order.
 * Same bytes for any number of threads (OpenMP).  One call at a time, and not while the pool loads for this loader. */
void loader_fill(Loader *loader, size_t first, int n, uint8_t *pixels, int *labels);

/* The whole global batch, of which it returns the size; what lies behind it in pixels is left as it was. */
int loader_batch(Loader *loader, size_t batch, uint8_t *pixels, int *labels);

LoaderStats loader_stats(const Loader *loader);

/* targets [n,classes]: timm's smoothed one-hot (timm/data/mixup.py): off = s / C, on = 1 - s + s / C. */
void loader_targets(float *targets, const int *labels, int n, int classes, float smoothing);

#endif
