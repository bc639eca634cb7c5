/* The positions of RoIAlign's samples along one side of a RoI.  Both backends use the same arithmetic, in float as
 * torchvision, because rounding decides about the number of samples. */
#ifndef VIT_KERNELS_REGIONS_ROI_SAMPLES_H
#define VIT_KERNELS_REGIONS_ROI_SAMPLES_H

#include <math.h>
#include <stdbool.h>

#include "kernels/tokens/grid.h"

/* More than any picture needs; it limits the time for an invalid box. */
#define ROI_SAMPLES_MOST 65536.0f

typedef struct {
    float start, bin; /* where the first bin begins, and how wide each is, in cells of the map */
    int samples;      /* of a bin */
} RoiSide;

GRID_INLINE RoiSide roi_side(float from, float to, float scale, int P) {
    float start = from * scale - 0.5f, bin = (to * scale - 0.5f - start) / (float)P;
    float samples = bin > 0 ? ceilf(bin) : 0;
    RoiSide side = {start, bin, (int)(samples < ROI_SAMPLES_MOST ? samples : ROI_SAMPLES_MOST)};
    return side;
}

GRID_INLINE float roi_sample_at(const RoiSide *side, int bin, int sample) {
    return side->start + (float)bin * side->bin + ((float)sample + 0.5f) * side->bin / (float)side->samples;
}

/* A sample lies between cells `low` and low + 1, with the weights 1 - fraction and fraction; at the last cell fraction
 * is 0.  Returns false for a sample outside of the map. */
GRID_INLINE bool roi_sample(int *low, float *fraction, float at, int cells) {
    if (!(at >= -1.0f && at <= (float)cells)) return false;
    at = at > 0 ? at : 0;
    bool last = at >= (float)(cells - 1);
    *low = last ? cells - 1 : (int)at;
    *fraction = last ? 0 : at - (float)*low;
    return true;
}

/* The cells that a bin reads: `count` from `first` on. */
typedef struct {
    int first, count;
} RoiBin;

/* The positions of samples increase from bin to bin, so that neighbouring bins share at most two cells.  The weights of
 * all bins therefore fit into one array without overlap, where the weight of a cell for bin i is at cell + ROI_SHARED
 * i. */
enum { ROI_SHARED = 2 };

/* w[cell] = the weight of each cell that bin i reads: the sum over its samples, divided by their number. */
GRID_INLINE RoiBin roi_bin_fill(float *w, const RoiSide *side, int i, int cells) {
    RoiBin bin = {0, 0};
    float share = 1 / (float)side->samples, fraction;
    for (int s = 0, low; s < side->samples; s++) {
        if (!roi_sample(&low, &fraction, roi_sample_at(side, i, s), cells)) continue;
        if (!bin.count) bin.first = low;
        int high = low + 1 < cells ? low + 1 : low;
        for (; bin.first + bin.count <= high; bin.count++) w[bin.first + bin.count] = 0;
        w[low] += share * (1 - fraction);
        w[high] += share * fraction;
    }
    return bin;
}

/* Whether samples may lie within one cell of first .. last; true if in doubt. */
GRID_INLINE bool roi_side_reaches(const RoiSide *side, int P, int first, int last) {
    return side->samples > 0 && side->start <= (float)last + 1.01f &&
           side->start + (float)P * side->bin >= (float)first - 1.01f;
}

#endif
