/* The machinery that loaders share: batches divided among ranks and into parts, parts filled ahead of their use by a
 * pool of threads and handed out in order.  What an image is, and where a slot keeps it, the loader knows
 * (data/loader.h, data/detection_loader.h).
 *
 *   ranks   of the n images of a batch, rank r of R has those at [r n / R, (r+1) n / R)
 *   slots   part number i of an epoch lies in slot i mod slots until the part after it is asked for
 *
 * An image that cannot be read is named on stderr once,
 * and the next one of the data set that can be takes its place.  Memory that is short ends the run instead. */
#ifndef VIT_DATA_PARTS_H
#define VIT_DATA_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"
#include "data/transform.h"

/* What all loaders of a program have in common. */
typedef struct {
    int workers;
    float max_damaged; /* more than this share of an epoch's images damaged, and unless it is 0 more than one, ends the
                          run */
} LoaderSettings;

extern const ConfigGroup loader_settings;

typedef struct LoaderPool LoaderPool;

/* How many cores this process may use. */
int loader_cores(void);

/* workers 0: one a core.  They take no signals. */
LoaderPool *loader_pool_open(int workers);
/* workers 0: one where the device shares its cores with this process, else this rank's part of all cores. */
LoaderPool *loader_pool_start(const LoaderSettings *s, bool device_shares_cores);
/* After the loaders that use it. */
void loader_pool_close(LoaderPool *pool);

/* Sums since the loader was opened. */
typedef struct {
    uint64_t images;
    double stalled; /* seconds that the next part was waited for */
    double worked;  /* seconds of all workers together */
    size_t damaged; /* different images */
} LoaderStats;

typedef struct {
    const char *name;  /* of the data set */
    size_t count;      /* its images */
    size_t length;     /* positions of an epoch */
    int batch_size;    /* of all ranks together */
    bool short_batch;  /* what is left at the end of an epoch makes a batch of its own */
    int rank, ranks;   /* ranks 0: one */
    int part;          /* images of a part, 0: the rank's share of a batch */
    int chunk;         /* images that a worker takes at a time */
    float max_damaged; /* more than this share of an epoch's images damaged ends the run */
    LoaderPool *pool;  /* NULL: parts_next fills its part itself, with OpenMP */
    void *loader;
    /* The next part is to hold the *n images of that batch from `first` on, or fewer, at least one: *n says how many.
     * Returns how many images are to be filled.  One call at a time, and quick. */
    int (*open)(void *loader, int slot, size_t batch, int first, int *n);
    /* Fills image i of that slot; any thread. */
    void (*fill)(void *loader, int slot, int i, TransformScratch *scratch);
    /* What image `index` is called. */
    void (*describe)(const void *loader, size_t index, char *text, size_t size);
} PartsConfig;

enum { PARTS_FAILURE = 1024 };

/* One part and how far it is. */
typedef struct {
    int count; /* images to be filled */
    int taken; /* images that some thread has begun */
    int done;
} PartsSlot;

/* Parts number `released` to `opened` are in memory; next is the one that parts_next gives out.  Everything from here
 * on is the pool's mutex's. */
typedef struct {
    PartsConfig config;
    size_t batches; /* per epoch */
    int slots;
    int room; /* images of a part at most */
    PartsSlot *slot; /* [slots] */
    uint64_t opened, next, released;
    uint32_t begun_epoch; /* of parts_start */
    size_t begun;
    size_t batch; /* where the part after the last one opened begins: its batch, and its place in it */
    int first;
    bool running;
    int busy; /* workers at an image of this loader */
    char failure[PARTS_FAILURE];
    uint8_t *damaged;     /* [count]: was named */
    size_t damaged_epoch; /* images of this epoch and rank that were replaced */
    LoaderStats stats;
    TransformScratch *scratch; /* [threads] of OpenMP */
    int threads;
} Parts;

/* Decides slots and room; nothing is loaded yet. */
void parts_open(Parts *parts, const PartsConfig *config);
/* At any moment: waits for the images that workers are at. */
void parts_close(Parts *parts);

/* Is that where it began, and has nothing been taken yet? */
bool parts_begun(const Parts *parts, uint32_t epoch, size_t batch);
/* No worker touches this loader until parts_start; what was loaded is dropped. */
void parts_stop(Parts *parts);
/* The pool begins to load from that batch on.  After parts_stop. */
void parts_start(Parts *parts, uint32_t epoch, size_t batch);

/* The slot of the next part, which stays until the call after it; -1 at the end of the epoch.  Ends the run when too
 * many images are damaged. */
int parts_next(Parts *parts);

/* load(job, index), or where that image is damaged the next one that can be read.  Returns which one it was. */
size_t parts_load(Parts *parts, size_t index, void *job,
                  bool (*load)(void *job, size_t index, Error *error));

/* Ends the run, with the reason, once too many images are damaged. */
void parts_check(const Parts *parts);

LoaderStats parts_stats(const Parts *parts);

/* Memory of parts where a loader is given no other. */
void *parts_allocate(size_t bytes, const char *what);
void parts_release(void *memory);

#endif
