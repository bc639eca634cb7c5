/* Baselines that a density model has to beat. */
#ifndef VIT_DATA_SEQUENCES_SEQUENCE_BASELINES_H
#define VIT_DATA_SEQUENCES_SEQUENCE_BASELINES_H

#include "data/sequences/sequences.h"

/* Bits per byte of a split under the histogram of the training bytes, in which every value is counted once more than it
 * occurs.  For images there is a histogram for each of the n positions: it is made from the first `most` training
 * images and evaluated on the first `most` images of the split (0: all), without those that cannot be read; NaN if
 * there are none.  For text and sound there is one histogram, and `most` is ignored. */
double sequences_histogram_bits(const SequenceSet *set, SequencesSplit split, size_t most);

#endif
