/* Batches of sequences.  Every batch is a pure function of (seed, epoch, batch), whichever thread or rank loads it: a
 * run resumed in the middle of an epoch sees the same bytes as an uninterrupted one, and sequence j of a batch is the
 * same on any number of ranks.
 *
 *   training     order = a uniformly random permutation of the epoch's sequences keyed by (seed, epoch);
 *                an incomplete last batch is dropped
 *   evaluation   every token of the split is scored once, in order; the last batch may be smaller
 *
 * data/sets/parts.h shares batches among ranks and threads, and replaces pictures that cannot be read. */
#ifndef VIT_DATA_SEQUENCES_SEQUENCE_LOADER_H
#define VIT_DATA_SEQUENCES_SEQUENCE_LOADER_H

#include "data/sets/parts.h"
#include "data/sequences/sequences.h"

typedef struct {
    uint64_t seed;
    int batch_size; /* global batch size, over all ranks */
    bool train;     /* of the training split; else evaluation */
    SequencesSplit split; /* evaluation only */
    int step;       /* evaluation of text and audio: tokens from one window to the next; 0: n */
    int rank, ranks;   /* ranks 0: one */
    int part;          /* sequences in a part of sequence_loader_next; 0: this rank's share of a batch */
    float max_damaged; /* the run ends when a larger share of an epoch's pictures is damaged */
    LoaderPool *pool; /* NULL: sequence_loader_next fills its part itself, with OpenMP */
    void *(*allocate)(size_t bytes, const char *what); /* for the parts' tokens; NULL: xcalloc and free */
    void (*release)(void *memory);
} SequenceLoaderConfig;

/* n consecutive sequences of a batch. */
typedef struct {
    uint8_t *tokens;  /* [n,row_bytes] */
    int *scored_from; /* [n]: targets scored_from .. set->n - 1 count; 0 in training */
    int n;
    size_t batch; /* of the epoch */
    int first;    /* position of the first one in the global batch */
} SequencePart;

typedef struct SequenceSlot SequenceSlot;

typedef struct {
    const SequenceSet *set;
    SequenceLoaderConfig config;
    size_t batches; /* per epoch */
    size_t length;  /* sequences in an epoch, an incomplete last batch included */
    uint32_t epoch;
    size_t offset;   /* of the epoch's windows */
    uint32_t *order; /* [length] */
    SequenceSlot *slots;
    Parts parts;
} SequenceLoader;

/* Starts at epoch 0.  Ends the process when a training split does not fill one batch, or a split is too short for one
 * sequence. */
void sequence_loader_open(SequenceLoader *loader, const SequenceSet *set, const SequenceLoaderConfig *config);
/* May be called at any time; waits for workers to finish what they are loading. */
void sequence_loader_close(SequenceLoader *loader);

/* The pool starts to load from that batch on; parts already loaded for another position are discarded.  Does nothing if
 * the pool was started at the same position and no part has been taken yet. */
void sequence_loader_start(SequenceLoader *loader, uint32_t epoch, size_t batch);

/* The next part, valid until the next call; false at the end of the epoch.  Ends the process when too many pictures are
 * damaged. */
bool sequence_loader_next(SequenceLoader *loader, SequencePart *part);

LoaderStats sequence_loader_stats(const SequenceLoader *loader);

#endif
