/* A contact sheet: images side by side, each with the name of its class below, for a person to look at. */
#ifndef VIT_DATA_IMAGES_SHEET_H
#define VIT_DATA_IMAGES_SHEET_H

#include <stdbool.h>
#include <stdint.h>

#include "core/error.h"

/* Writes pixels [n,frames,height,width,3] with their labels as a PNG file that is roughly square; a clip is a strip of
 * its frames from left to right, an image one frame.  names [classes]; NULL: labels are written as numbers.  labels
 * NULL: nothing is written.  pixels NULL: only whether n images fit into one picture.  On failure returns false
 * and sets `error`. */
bool sheet_write(const char *path, const uint8_t *pixels, int n, int frames, int height, int width, const int *labels,
                 const char *const *names, Error *error);

#endif
