/* A contact sheet: images side by side, each with the name of its class below, for a person to look at. */
#ifndef VIT_DATA_SHEET_H
#define VIT_DATA_SHEET_H

#include <stdbool.h>
#include <stdint.h>

#include "core/error.h"
#include "data/loader.h"

/* Writes pixels [n,height,width,3] with their labels as a PNG file that is roughly square.  names [classes]; NULL:
 * labels are written as numbers.  labels NULL: nothing is written.  On failure returns false and sets `error`. */
bool sheet_write(const char *path, const uint8_t *pixels, int n, int height, int width, const int *labels,
                 const char *const *names, Error *error);

/* Writes the first training images of a run, at most 64, augmented according to transform and seed.  Returns their
 * number; on failure returns 0 and sets `error`. */
int sheet_write_training(const char *path, const Dataset *dataset, const Transform *transform, uint64_t seed,
                         Error *error);

#endif
