/* Loads a whole batch: the parts of all ranks. */
#ifndef VIT_TESTS_WHOLE_BATCH_H
#define VIT_TESTS_WHOLE_BATCH_H

#include "data/loading/loader.h"

/* Fills pixels [n,height,width,3] and labels [n] and returns n, less than batch_size at the end of the data set. */
static inline int whole_batch(Loader *loader, size_t batch, uint8_t *pixels, int *labels) {
    size_t size = (size_t)loader->config.parts.batch_size, first = batch * size, left = loader->dataset->count - first;
    int n = left < size ? (int)left : (int)size;
    loader_fill(loader, first, n, pixels, labels);
    return n;
}

#endif
