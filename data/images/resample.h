/* Resizing as Pillow does it, bit for bit: with the filters of core/resampling.h, first along the rows, then along the
 * columns, rounded to 8 bits in between. */
#ifndef VIT_DATA_IMAGES_RESAMPLE_H
#define VIT_DATA_IMAGES_RESAMPLE_H

#include <stdbool.h>

#include "core/resampling.h"
#include "data/images/pixels.h"

/* Weight tables and intermediate rows; each thread needs its own.  Buffers grow as needed.  Initialise to {0}. */
typedef struct {
    uint8_t *rows, *columns;
    int32_t *weights[2];
    int *first[2];
    size_t rows_room, columns_room, weights_room[2], first_room[2];
} Resampler;

void resampler_free(Resampler *resampler);

/* out [rows->count,columns->count,3] from `in`, which holds at least the ranges of both axes.  False: out of memory. */
bool resample(Resampler *resampler, uint8_t *out, const ImagePart *in, const ResampleAxis *rows,
              const ResampleAxis *columns, ResampleFilter filter);

/* Resamples to rows of `out` that are `out_stride` bytes apart. */
bool resample_strided(Resampler *resampler, uint8_t *out, size_t out_stride, const ImagePart *in,
                      const ResampleAxis *rows, const ResampleAxis *columns, ResampleFilter filter);

#endif
