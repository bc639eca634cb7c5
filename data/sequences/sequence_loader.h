/* Batches of sequences.  Every batch is a pure function of (seed, epoch, batch), whichever thread or rank loads it: a
 * run resumed in the middle of an epoch sees the same bytes as an uninterrupted one, and sequence j of a batch is the
 * same on any number of ranks.
 *
 *   training     order = a uniformly random permutation of the epoch's sequences keyed by (seed, epoch);
 *                an incomplete last batch is dropped
 *   evaluation   every token of the split is scored once, in order; the last batch may be smaller
 *
 * data/loading/parts.h shares batches among ranks and threads, and replaces pictures that cannot be read. */
#ifndef VIT_DATA_SEQUENCES_SEQUENCE_LOADER_H
#define VIT_DATA_SEQUENCES_SEQUENCE_LOADER_H

#include "data/loading/parts.h"
#include "data/sequences/sequences.h"

typedef struct {
    PartsConfig parts;    /* train: batches of the training split; otherwise of an evaluation */
    SequencesSplit split; /* evaluation only */
    int step;             /* evaluation of text and audio: tokens from one window to the next; 0: n */
} SequenceLoaderConfig;

/* n consecutive sequences of a batch. */
typedef struct {
    uint8_t *tokens;  /* [n,row_bytes] */
    int *scored_from; /* [n]: targets scored_from .. set->n - 1 count, none of a damaged image; 0 in training */
    int n;
    size_t batch; /* of the epoch */
    int first;    /* position of the first one in the global batch */
} SequencePart;

typedef struct {
    const SequenceSet *set;
    SequenceLoaderConfig config;
    Parts parts;
} SequenceLoader;

/* Starts at epoch 0.  Ends the process when a training split does not fill one batch, or a split is too short for one
 * sequence. */
void sequence_loader_open(SequenceLoader *loader, const SequenceSet *set, const SequenceLoaderConfig *config);
/* Returns the next part, like parts_next: false at the end of the epoch. */
bool sequence_loader_next(SequenceLoader *loader, SequencePart *part);

#endif
