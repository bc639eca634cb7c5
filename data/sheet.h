/* A contact sheet: images side by side, each with the name of its class below, for a person to look at. */
#ifndef VIT_DATA_SHEET_H
#define VIT_DATA_SHEET_H

#include <stdbool.h>
#include <stdint.h>

#include "core/error.h"

/* Writes pixels [n,height,width,3] with their labels as a PNG file, about as wide as high.  names [classes]; NULL:
 * labels are written as numbers.  False: `error` says why not. */
bool sheet_write(const char *path, const uint8_t *pixels, int n, int height, int width, const int *labels,
                 const char *const *names, Error *error);

#endif
