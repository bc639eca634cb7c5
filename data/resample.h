/* Resizing as Pillow does it, bit for bit: bilinear or bicubic, antialiased (the filter widens when it shrinks), rows
 * first, 8 bits between the passes. */
#ifndef VIT_DATA_RESAMPLE_H
#define VIT_DATA_RESAMPLE_H

#include "data/image.h"

typedef enum { RESAMPLE_BICUBIC, RESAMPLE_BILINEAR } ResampleFilter;

/* One direction.  `out` samples are laid over [start, start + length) of `in` samples, and `count` of them from `first`
 * on are wanted.  Filters end at the ends of the `in` samples. */
typedef struct {
    int in;
    double start, length;
    int out, first, count;
    bool mirror; /* the wanted ones come out last first */
} ResampleAxis;

/* All of `in` samples to all of `out`. */
ResampleAxis resample_whole(int in, int out);

/* range = [low, high): the inputs that the wanted outputs are made of. */
void resample_range(const ResampleAxis *axis, ResampleFilter filter, int range[2]);

/* The weights of output `j` and of its `count` inputs from *first on, which the caller has room for: they sum to 1. */
int resample_weights(double *weights, int *first, const ResampleAxis *axis, ResampleFilter filter, int j);

/* The most inputs an output has. */
int resample_taps(const ResampleAxis *axis, ResampleFilter filter);

/* Tables and rows between the passes; one for each thread, grown as pictures need it.  Starts as {0}. */
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

/* The same with rows of `out` so many bytes apart. */
bool resample_strided(Resampler *resampler, uint8_t *out, size_t out_stride, const ImagePart *in,
                      const ResampleAxis *rows, const ResampleAxis *columns, ResampleFilter filter);

#endif
