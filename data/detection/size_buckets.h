/* The order of an epoch for pictures of many sizes: batches group pictures of similar size, since a batch is padded to
 * its largest width and height. */
#ifndef VIT_DATA_DETECTION_SIZE_BUCKETS_H
#define VIT_DATA_DETECTION_SIZE_BUCKETS_H

#include "core/config/config.h"

typedef struct {
    int size_window;
} SizeSettings;

extern const ConfigGroup size_settings;

/* order [count]: a permutation of 0 .. count-1 keyed by (seed, epoch); with window 0 it is that of data/loading/loader.
 * With a window, each run of window x batch pictures of that permutation is regrouped by size [count] (width, height
 * after this epoch's augmentation), and then the batches of the epoch are shuffled.  The last count mod batch pictures,
 * which do not fill a batch, remain last. */
void bucket_order(uint32_t *order, const int (*size)[2], size_t count, int batch, int window, uint64_t seed,
                  uint32_t epoch);

/* The fraction of padding in all pixels of the epoch's full batches, 0 to 1. */
double bucket_padding(const uint32_t *order, const int (*size)[2], size_t count, int batch);

#endif
