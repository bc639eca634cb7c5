/* Pictures of segmentations, for a person to look at: each picture, then the same with its classes as colours, once
 * for its labels and once for predictions, and below all of them a legend of the classes that occur, the most frequent
 * first. */
#ifndef VIT_DATA_SEGMENTATION_SEGMENTATION_SHEET_H
#define VIT_DATA_SEGMENTATION_SEGMENTATION_SHEET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"
#include "data/images/pixels.h"

typedef struct {
    int height, width;
    const uint8_t *pixels; /* [height,width,3], rows `stride` bytes apart */
    size_t stride;
    const uint8_t *labels; /* [height,width], rows `label_stride` bytes apart; 255: no label, nearly white */
    size_t label_stride;
    const uint8_t *predicted; /* likewise; NULL in all views or in none */
} SegmentationView;

/* The colour of a class, that of PASCAL VOC's colour map; no two of 256 are equal. */
void segmentation_colour(uint8_t rgb[3], int class);

/* Makes a sheet of views [n], each enlarged by the integer factor that makes its shorter side at least `least` pixels.
 * names [classes]; NULL: classes are written as numbers.  The caller frees sheet->pixels.  On failure returns false and
 * sets `error`. */
bool segmentation_sheet(Image *sheet, const SegmentationView *views, int n, int least, const char *const *names,
                        Error *error);

/* Writes the sheet as a PNG file. */
bool segmentation_sheet_write(const char *path, const SegmentationView *views, int n, const char *const *names,
                              Error *error);

#endif
