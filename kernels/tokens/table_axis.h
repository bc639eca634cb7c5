/* The weights of table_resampling.h along one axis, the same for every device. */
#ifndef VIT_KERNELS_TOKENS_TABLE_AXIS_H
#define VIT_KERNELS_TOKENS_TABLE_AXIS_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "core/resampling.h"
#ifdef __cplusplus
}
#endif

/* Output j is the sum of the inputs from first[j] to below end[j] with the weights from weights + j * taps on; input i
 * contributes to the outputs from low[i] to below high[i], or to none. */
typedef struct {
    bool bilinear;
    int in, out, taps;
    double *weights;
    int *first, *end, *low, *high;
} TableAxis;

#ifdef __CUDACC__
#define TABLE_INLINE static inline __host__ __device__
#else
#define TABLE_INLINE static inline
#endif

TABLE_INLINE double table_weight(const TableAxis *axis, int i, int j) {
    return axis->weights[j * axis->taps + i - axis->first[j]];
}

/* Bytes for any axis from `in` to at most `out`: a filter has 5 taps where the axis grows, and where it shrinks at most
 * 4 in/out + 3. */
static inline size_t table_axis_bytes(int in, int out) {
    return (4 * (size_t)in + 5 * (size_t)out) * sizeof(double) + 2 * ((size_t)in + (size_t)out) * sizeof(int);
}

/* An axis with its arrays at `memory`, which has table_axis_bytes and may be memory of another device. */
static inline TableAxis table_axis_at(void *memory, int in, int out, bool bilinear) {
    ResampleAxis whole = resample_whole(in, out);
    int taps = bilinear ? 2 : resample_taps(&whole, RESAMPLE_BICUBIC);
    TableAxis axis = {bilinear, in, out, taps, (double *)memory, NULL, NULL, NULL, NULL};
    axis.first = (int *)(axis.weights + (size_t)out * (size_t)axis.taps);
    axis.end = axis.first + out;
    axis.low = axis.end + out;
    axis.high = axis.low + in;
    return axis;
}

static inline void table_axis_fill(const TableAxis *axis) {
    ResampleAxis whole = resample_whole(axis->in, axis->out);
    for (int i = 0; i < axis->in; i++) {
        axis->low[i] = axis->out;
        axis->high[i] = 0;
    }
    for (int j = 0; j < axis->out; j++) {
        double *weights = axis->weights + j * axis->taps;
        int first, count = axis->bilinear ? interpolation_weights(weights, &first, axis->in, axis->out, j)
                                          : resample_weights(weights, &first, &whole, RESAMPLE_BICUBIC, j);
        axis->first[j] = first;
        axis->end[j] = first + count;
        for (int i = first; i < first + count; i++) {
            if (j < axis->low[i]) axis->low[i] = j;
            axis->high[i] = j + 1;
        }
    }
}

#endif
