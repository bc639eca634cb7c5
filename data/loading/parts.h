/* The code shared by the loaders: it orders the samples of an epoch, divides batches among ranks and into parts, fills
 * parts ahead of their use with a pool of threads, and hands them out in order.  The contents of a slot are up to the
 * loader (data/loading/loader.h, data/detection/detection_loader.h, data/sequences/sequence_loader.h).
 *
 *   ranks   rank r of R has images [r n / R, (r+1) n / R) of a batch of n
 *   slots   part i of an epoch lies in slot i mod slots, and stays valid until the next part is requested
 *
 * An image that cannot be read is named on stderr once and, in training, replaced by the next readable image of the data
 * set.  When memory runs out, the process ends instead. */
#ifndef VIT_DATA_LOADING_PARTS_H
#define VIT_DATA_LOADING_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/config/config.h"
#include "core/error.h"
#include "data/images/transform.h"

/* The settings that all loaders of a program share. */
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

/* Counts of what has been loaded since the loader was opened. */
typedef struct {
    uint64_t images;
    double stalled; /* seconds spent waiting for the next part */
    double worked;  /* seconds of work, summed over the workers */
    size_t damaged; /* distinct damaged images */
} LoaderStats;

/* How a loader of any kind divides an epoch, and where its memory comes from. */
typedef struct {
    uint64_t seed;
    int batch_size;    /* global batch size, over all ranks */
    bool train;        /* an incomplete last batch is dropped unless keep_last is set; in evaluation it is kept */
    bool keep_last;
    int rank, ranks;   /* ranks 0: one */
    int part;          /* most samples in a part; 0: this rank's share of a batch */
    float max_damaged; /* the run ends when a larger share of an epoch's samples is damaged */
    LoaderPool *pool;  /* NULL: parts_next fills its part itself, with OpenMP */
    void *(*allocate)(size_t bytes, const char *what); /* for the first array of each slot; NULL: xcalloc and free */
    void (*release)(void *memory);
} PartsConfig;

/* An array of a slot: the pointer at offset `field` points to as many elements as a part has samples at most, and
 * `spare` more. */
typedef struct {
    size_t field, element; /* in bytes */
    size_t spare;
    const char *what; /* NULL ends a list of arrays */
} PartsArray;

enum { PARTS_ARRAYS = 12 };

/* The data set and the functions of one kind of loader. */
typedef struct {
    const char *name;  /* of the data set */
    const char *noun;  /* "images" */
    size_t count;      /* number of samples in the data set, less than 2^32 */
    size_t length;     /* number of positions in an epoch */
    int chunk;         /* samples that a worker takes at a time */
    int views;         /* positions of a sample in an epoch, each counted when it is damaged; 0: one */
    void *loader;
    /* Computes the order of an epoch from the data set's own; NULL: uniformly random in training, else as it is. */
    void (*shuffle)(void *loader);
    size_t slot_size; /* in bytes */
    PartsArray arrays[PARTS_ARRAYS];
    /* Prepares `slot` for the *n samples of that batch from `first` on.  It may reduce *n, to no less than one.
     * Returns the number of samples to fill.  Never called concurrently; called with the mutex held, so it must be
     * quick. */
    int (*open)(void *loader, void *slot, size_t batch, int first, int *n);
    /* Fills sample i of that slot; called from any thread. */
    void (*fill)(void *loader, void *slot, int i, TransformScratch *scratch);
    /* Writes the name of sample `index`, for messages. */
    void (*describe)(const void *loader, size_t index, char *text, size_t size);
} PartsSource;

enum { PARTS_FAILURE = 1024 };

/* The memory of one part, and the progress of its loading. */
typedef struct {
    void *memory; /* [slot_size] */
    int count;    /* samples to fill */
    int taken;    /* samples that a thread has started */
    int done;
} PartsSlot;

/* Parts `released` to `opened` - 1 are in memory; `next` is the one that parts_next returns.  The pool's mutex protects
 * the fields that change while loading. */
typedef struct {
    PartsConfig config;
    PartsSource source;
    uint32_t epoch;
    uint32_t *order; /* [count]: a permutation of the samples */
    size_t batches;  /* per epoch */
    int slots;
    int room; /* most samples in a part */
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
    size_t named_epoch;   /* images named in this epoch, also those that were to replace others */
    LoaderStats stats;
    TransformScratch *scratch; /* [threads], one for each OpenMP thread */
    int threads;
} Parts;

/* Allocates the slots and orders epoch 0; nothing is loaded yet.  Ends the process when a training set does not fill
 * one batch. */
void parts_open(Parts *parts, const PartsConfig *config, const PartsSource *source);
/* May be called at any time; waits for workers to finish the samples they are loading. */
void parts_close(Parts *parts);

/* Computes the order of that epoch; does nothing if it is the current one. */
void parts_epoch(Parts *parts, uint32_t epoch);

/* The pool starts to load from that batch on; parts already loaded for another position are discarded.  Does nothing if
 * the pool was started at the same position and no part has been taken yet. */
void parts_start(Parts *parts, uint32_t epoch, size_t batch);

/* The slot of the next part, valid until the next call; NULL at the end of the epoch.  Ends the process when too many
 * samples are damaged. */
void *parts_next(Parts *parts);

/* Number of samples in that global batch, over all ranks. */
int parts_batch(const Parts *parts, size_t batch);

/* Calls load(job, index); if that image is damaged, tries the following ones until one can be read.  Returns the index
 * of the image loaded.  positions: of the epoch that it fills, each of which counts if the image is damaged.  The image
 * is named with the consequence.  Gives up when an epoch has named a larger share of the data set than max_damaged. */
size_t parts_load(Parts *parts, size_t index, int positions, void *job,
                  bool (*load)(void *job, size_t index, Error *error), const char *consequence);
#define PARTS_REPLACED "the next image that can be read takes its place"

/* Loads an image without a replacement: false, and the image is named with the consequence and counted, if it is
 * damaged. */
bool parts_try(Parts *parts, size_t index, void *job, bool (*load)(void *job, size_t index, Error *error),
               const char *consequence);

/* Ends the process with the reason if too many images have been damaged. */
void parts_check(const Parts *parts);

LoaderStats parts_stats(const Parts *parts);

#endif
