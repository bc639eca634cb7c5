/* Batches for classification.  Any batch of any epoch is a function of (seed, epoch, batch) alone, whatever loads it: a
 * resumed run goes on in the middle of an epoch with the bytes it would have seen, and image j of a batch is the same
 * on any number of ranks.
 *
 *   training     order = a uniformly random permutation of all images keyed by (seed, epoch);
 *                batches = count / batch_size: the images left over sit this epoch out, as in DeiT;
 *                sampler.h has repeated augmentation, mixup.h the order within a batch that mixup asks for
 *   evaluation   order = the data set's; batches = count / batch_size rounded up; the last may be short
 *
 * data/parts.h shares batches among ranks and threads, and says what becomes of images that cannot be read. */
#ifndef VIT_DATA_LOADER_H
#define VIT_DATA_LOADER_H

#include "data/dataset.h"
#include "data/parts.h"

typedef struct {
    uint64_t seed;
    int batch_size; /* of all ranks together */
    bool train;
    int rank, ranks;   /* ranks 0: one */
    int part;          /* images that loader_next gives at a time, 0: this rank's share of a batch */
    int repeats;       /* training: repeated augmentation, places in a row for every image (sampler.h); 0 or 1: one */
    bool pairs;        /* training: the samples of a batch in mixup's order (mixup.h) */
    float max_damaged; /* more than this share of an epoch's images damaged ends the run */
    Transform transform;
    LoaderPool *pool; /* NULL: loader_next fills its part itself, with OpenMP */
    void *(*allocate)(size_t bytes, const char *what); /* of the parts' pixels, NULL: xcalloc and free */
    void (*release)(void *memory);
} LoaderConfig;

/* n samples next to each other in a batch, and before or behind them the partners that mixup pairs them with: count
 * images in all, at most n + 2. */
typedef struct {
    uint8_t *pixels; /* [count,height,width,3] */
    int *labels;     /* [count] */
    uint32_t *draws; /* [count]: what their random draws are keyed by */
    int *pairs;      /* [n,2]: which of the images a sample and its partner are; without `pairs` both the same */
    int n, count;
    size_t batch; /* of the epoch */
    int first;    /* position of the first sample in the global batch */
} LoaderPart;

typedef struct LoaderSlot LoaderSlot;

typedef struct {
    const Dataset *dataset;
    LoaderConfig config;
    size_t batches; /* per epoch */
    uint32_t epoch;
    uint32_t *order; /* [count]: a permutation of the images */
    LoaderSlot *slots;
    Parts parts;
} Loader;

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

/* The number by which the random draws of the sample at a position of the epoch are keyed: the image's, plus the data
 * set's size for each time it was repeated. */
uint32_t loader_draw(const Loader *loader, size_t position);

/* Fills pixels [n,height,width,3] and labels [n] with the images at positions first .. first+n-1 of the epoch.  Same
 * bytes for any number of threads (OpenMP).  One call at a time, and not while the pool loads for this loader. */
void loader_fill(Loader *loader, size_t first, int n, uint8_t *pixels, int *labels);

LoaderStats loader_stats(const Loader *loader);

/* targets [n,classes]: timm's smoothed one-hot (timm/data/mixup.py): off = s / C, on = 1 - s + s / C. */
void loader_targets(float *targets, const int *labels, int n, int classes, float smoothing);

#endif
