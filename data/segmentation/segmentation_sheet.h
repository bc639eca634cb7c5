/* Pictures of segmentations, for a person to look at: each picture, beside it the same with its classes as colours, and
 * below all of them a legend of the classes that occur, the most frequent first. */
#ifndef VIT_DATA_SEGMENTATION_SEGMENTATION_SHEET_H
#define VIT_DATA_SEGMENTATION_SEGMENTATION_SHEET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"

typedef struct {
    int height, width;
    const uint8_t *pixels; /* [height,width,3], rows `stride` bytes apart */
    size_t stride;
    const uint8_t *labels; /* [height,width], rows `label_stride` bytes apart; 255: no label, nearly white */
    size_t label_stride;
} SegmentationView;

/* The colour of a class, that of PASCAL VOC's colour map; no two of 256 are equal. */
void segmentation_colour(uint8_t rgb[3], int class);

/* Writes views [n] as a PNG file.  names [classes]; NULL: classes are written as numbers.  On failure returns false and
 * sets `error`. */
bool segmentation_sheet_write(const char *path, const SegmentationView *views, int n, const char *const *names,
                              Error *error);

#endif
