/* A contact sheet: images side by side, each with the name of its class below, for a person to look at. */
#ifndef VIT_DATA_SHEET_H
#define VIT_DATA_SHEET_H

#include <stdbool.h>
#include <stdint.h>

#include "core/error.h"
#include "data/loader.h"

/* Writes pixels [n,height,width,3] with their labels as a PNG file, about as wide as high.  names [classes]; NULL:
 * labels are written as numbers.  False: `error` says why not. */
bool sheet_write(const char *path, const uint8_t *pixels, int n, int height, int width, const int *labels,
                 const char *const *names, Error *error);

/* The same with the first images of a run's training, at most 64, as transform and seed make them.  Returns how many;
 * 0: `error` says why not. */
int sheet_write_training(const char *path, const Dataset *dataset, const Transform *transform, uint64_t seed,
                         Error *error);

#endif
