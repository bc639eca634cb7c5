#include "data/segmentation/sliding_windows.h"

#include "core/integers.h"

/* The number of windows along a side. */
static int along(int side, int crop, int stride) { return larger(side - crop + stride - 1, 0) / stride + 1; }

int sliding_count(int height, int width, int crop, int stride) {
    return along(height, crop, stride) * along(width, crop, stride);
}

static int begin(int side, int crop, int stride, int i) {
    return larger(smaller(i * stride + crop, side) - crop, 0);
}

SlidingWindow sliding_window(int height, int width, int crop, int stride, int i) {
    int columns = along(width, crop, stride);
    return (SlidingWindow){begin(height, crop, stride, i / columns), begin(width, crop, stride, i % columns),
                           smaller(crop, height), smaller(crop, width)};
}
