/* Resampling along one axis, as Pillow does it: antialiased, with a filter that widens when the axis shrinks.
 *   scale = length / out,  s = max(scale, 1),  centre_j = start + (j + 1/2) scale
 *   out_j = sum_i w_ij in_i / sum_i w_ij,   w_ij = k((i + 1/2 - centre_j) / s)
 *   bilinear  k(x) = 1 - |x|  for |x| < 1
 *   bicubic   k(x) = (a+2)|x|^3 - (a+3)|x|^2 + 1  for |x| < 1,   a|x|^3 - 5a|x|^2 + 8a|x| - 4a  for |x| < 2,   a = -1/2
 *   box       k(x) = 1  for -1/2 < x <= 1/2
 * Source: Keys 1981.  a, the range of i for each j and the order of operations are those of Pillow's
 * src/libImaging/Resample.c, so that results agree to the bit. */
#ifndef VIT_CORE_RESAMPLING_H
#define VIT_CORE_RESAMPLING_H

#include <stdbool.h>

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

/* Sets range = [low, high), the inputs on which the computed outputs depend. */
void resample_range(const ResampleAxis *axis, ResampleFilter filter, int range[2]);

/* Writes the weights of output `j`, which sum to 1, and in *first the first input that they belong to.  Returns their
 * number; `weights` must have room for resample_taps. */
int resample_weights(double *weights, int *first, const ResampleAxis *axis, ResampleFilter filter, int j);

/* The largest number of inputs of any output. */
int resample_taps(const ResampleAxis *axis, ResampleFilter filter);

/* The weights of output `j` of `out` without antialiasing, as in torch.nn.functional.interpolate(mode="bilinear"): those
 * of the two inputs next to its centre, from *first on, or of one at the far edge.  Returns their number. */
int interpolation_weights(double weights[2], int *first, int in, int out, int j);

#endif
