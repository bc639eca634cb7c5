/* Baselines that a density model has to beat. */
#ifndef VIT_DATA_SEQUENCES_SEQUENCE_BASELINES_H
#define VIT_DATA_SEQUENCES_SEQUENCE_BASELINES_H

#include "data/sequences/sequences.h"

/* The bits a byte of a split under the histogram of the training bytes, every value counted once more than it occurs.
 * Images: a histogram for each of the n positions, of the first `most` training images and over the first `most` of the
 * split (0: all), without those that cannot be read; NaN if there are none.  Text and sound: one histogram; `most` is
 * ignored. */
double sequences_histogram_bits(const SequenceSet *set, SequencesSplit split, size_t most);

#endif
