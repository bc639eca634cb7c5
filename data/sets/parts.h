/* Code shared by the loaders: it divides batches among ranks and into parts, fills parts ahead of their use with a pool
 * of threads, and hands them out in order.  The contents of a slot are up to the loader (data/loading/loader.h,
 * data/detection/detection_loader.h).
 *
 *   ranks   rank r of R has images [r n / R, (r+1) n / R) of a batch of n
 *   slots   part i of an epoch lies in slot i mod slots, and stays valid until the next part is requested
 *
 * An image that cannot be read is named on stderr once and replaced by the next readable image of the data set.  When
 * memory runs out, the process ends instead. */
#ifndef VIT_DATA_SETS_PARTS_H
#define VIT_DATA_SETS_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"
#include "data/images/transform.h"

/* Settings common to all loaders of a program. */
typedef struct {
    int workers;
    float max_damaged; /* the run ends when a larger share of an epoch's images is damaged; if it is not 0, one
                          damaged image is always allowed */
} LoaderSettings;

extern const ConfigGroup loader_settings;

typedef struct LoaderPool LoaderPool;

/* The number of cores that this process may use. */
int loader_cores(void);

/* workers 0: one per core.  The threads block all signals but SIGBUS. */
LoaderPool *loader_pool_open(int workers);
/* workers 0: one if the device computes on the same cores, otherwise this rank's share of all cores. */
LoaderPool *loader_pool_start(const LoaderSettings *s, bool device_shares_cores);
/* Call this after closing the loaders that use the pool. */
void loader_pool_close(LoaderPool *pool);

/* Sums since the loader was opened. */
typedef struct {
    uint64_t images;
    double stalled; /* seconds spent waiting for the next part */
    double worked;  /* seconds of work, summed over the workers */
    size_t damaged; /* distinct damaged images */
} LoaderStats;

typedef struct {
    const char *name;  /* of the data set */
    size_t count;      /* number of images in the data set */
    size_t length;     /* number of positions in an epoch */
    int batch_size;    /* global batch size, over all ranks */
    bool short_batch;  /* an incomplete last batch is kept */
    int rank, ranks;   /* ranks 0: one */
    int part;          /* images in a part; 0: the rank's share of a batch */
    int chunk;         /* images that a worker takes at a time */
    int views;         /* positions of an image in an epoch, each counted when it is damaged; 0: one */
    float max_damaged; /* the run ends when a larger share of an epoch's images is damaged */
    LoaderPool *pool;  /* NULL: parts_next fills its part itself, with OpenMP */
    void *loader;
    /* Prepares `slot` for the *n images of that batch from `first` on.  It may reduce *n, to no less than one.  Returns
     * the number of images to fill.  Never called concurrently; called with the mutex held, so it must be quick. */
    int (*open)(void *loader, int slot, size_t batch, int first, int *n);
    /* Fills image i of that slot; called from any thread. */
    void (*fill)(void *loader, int slot, int i, TransformScratch *scratch);
    /* Writes the name of image `index`, for messages. */
    void (*describe)(const void *loader, size_t index, char *text, size_t size);
} PartsConfig;

enum { PARTS_FAILURE = 1024 };

/* The progress of one part. */
typedef struct {
    int count; /* images to fill */
    int taken; /* images that a thread has started */
    int done;
} PartsSlot;

/* Parts `released` to `opened` - 1 are in memory; `next` is the one that parts_next returns.  The pool's mutex protects
 * the fields that change while loading. */
typedef struct {
    PartsConfig config;
    size_t batches; /* per epoch */
    int slots;
    int room; /* most images in a part */
    PartsSlot *slot; /* [slots] */
    uint64_t opened, next, released;
    uint32_t begun_epoch; /* the arguments of parts_start */
    size_t begun;
    size_t batch; /* where the next part to open begins: its batch, and its position in the batch */
    int first;
    bool running;
    int busy; /* workers that are loading an image of this loader */
    char failure[PARTS_FAILURE];
    uint8_t *damaged;     /* [count]: has been named on stderr */
    size_t damaged_epoch; /* images replaced in this epoch on this rank */
    LoaderStats stats;
    TransformScratch *scratch; /* [threads], one for each OpenMP thread */
    int threads;
} Parts;

/* Sets slots and room; nothing is loaded yet. */
void parts_open(Parts *parts, const PartsConfig *config);
/* May be called at any time; waits for workers to finish the images they are loading. */
void parts_close(Parts *parts);

/* Whether parts_start was last called with this position and no part has been taken since. */
bool parts_begun(const Parts *parts, uint32_t epoch, size_t batch);
/* Discards the loaded parts; no worker touches this loader until parts_start. */
void parts_stop(Parts *parts);
/* The pool starts to load from that batch on.  Call parts_stop first. */
void parts_start(Parts *parts, uint32_t epoch, size_t batch);

/* The slot of the next part, valid until the next call; -1 at the end of the epoch.  Ends the process when too many
 * images are damaged. */
int parts_next(Parts *parts);

/* Calls load(job, index); if that image is damaged, tries the following ones until one can be read.  Returns the index
 * of the image loaded.  positions: of the epoch that it fills, each of which counts if the image is damaged. */
size_t parts_load(Parts *parts, size_t index, int positions, void *job,
                  bool (*load)(void *job, size_t index, Error *error));

/* The same without a replacement: false, and the image is named and counted, if it is damaged. */
bool parts_try(Parts *parts, size_t index, void *job, bool (*load)(void *job, size_t index, Error *error));

/* Ends the process with the reason if too many images have been damaged. */
void parts_check(const Parts *parts);

LoaderStats parts_stats(const Parts *parts);

/* The default allocator for the memory of parts. */
void *parts_allocate(size_t bytes, const char *what);
void parts_release(void *memory);

#endif
