/* Resizing as Pillow does it, bit for bit: bilinear, bicubic or box, antialiased (the filter widens when the
 * image shrinks), first along the rows, then along the columns, rounded to 8 bits in between. */
#ifndef VIT_DATA_IMAGES_RESAMPLE_H
#define VIT_DATA_IMAGES_RESAMPLE_H

#include "data/images/image.h"

typedef enum { RESAMPLE_BICUBIC, RESAMPLE_BILINEAR, RESAMPLE_BOX } ResampleFilter;

/* One direction.  The interval [start, start + length) of `in` input samples is resized to `out` output samples, of
 * which `count` from `first` on are computed.  Filters are truncated at the ends of the input. */
typedef struct {
    int in;
    double start, length;
    int out, first, count;
    bool mirror; /* the computed outputs are written in reverse order */
} ResampleAxis;

/* Resizes all `in` samples to `out` and computes all of them. */
ResampleAxis resample_whole(int in, int out);

/* range = [low, high): the inputs on which the computed outputs depend. */
void resample_range(const ResampleAxis *axis, ResampleFilter filter, int range[2]);

/* Writes the weights of output `j`, which sum to 1, and in *first the first input that they belong to.  Returns their
 * number; `weights` must have room for resample_taps. */
int resample_weights(double *weights, int *first, const ResampleAxis *axis, ResampleFilter filter, int j);

/* The largest number of inputs of any output. */
int resample_taps(const ResampleAxis *axis, ResampleFilter filter);

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

/* The same with rows of `out` that are `out_stride` bytes apart. */
bool resample_strided(Resampler *resampler, uint8_t *out, size_t out_stride, const ImagePart *in,
                      const ResampleAxis *rows, const ResampleAxis *columns, ResampleFilter filter);

#endif
