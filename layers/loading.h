/* The division of batches among the loaders of a run, for every kind of data. */
#ifndef VIT_LAYERS_LOADING_H
#define VIT_LAYERS_LOADING_H

#include "data/loading/parts.h"
#include "training/training.h"

/* For a loader that gives `micro` samples at a time: in training, of a batch that the ranks share; in evaluation a
 * batch consists of the samples of all ranks at a time.  Starts the threads in *pool, which all loaders of a program
 * share, unless they are already running.  Parts are allocated in memory from which a device can copy. */
PartsConfig loading_parts(const Training *t, const LoaderSettings *s, LoaderPool **pool, bool train, int micro);

#endif
