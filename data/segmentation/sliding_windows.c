#include "data/segmentation/sliding_windows.h"

#include "core/integers.h"

/* How many windows lie along a side. */
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

void sliding_add(float *sum, int width, const float *logits, SlidingWindow window, int channels) {
    size_t row = (size_t)window.width * (size_t)channels;
#pragma omp parallel for
    for (int y = 0; y < window.height; y++) {
        size_t at = (size_t)(window.top + y) * (size_t)width + (size_t)window.left;
        float *to = sum + at * (size_t)channels;
        const float *from = logits + (size_t)y * row;
        for (size_t i = 0; i < row; i++) to[i] += from[i];
    }
}

/* How many windows of a side hold position x: the grid is a product, and so are the counts. */
static int holding(int side, int crop, int stride, int x) {
    int count = 0;
    for (int i = 0; i < along(side, crop, stride); i++) {
        int first = begin(side, crop, stride, i);
        count += x >= first && x < first + crop;
    }
    return count;
}

void sliding_divide(float *sum, int height, int width, int crop, int stride, int channels) {
#pragma omp parallel for
    for (int y = 0; y < height; y++) {
        int rows = holding(height, crop, stride, y);
        float *at = sum + (size_t)y * (size_t)width * (size_t)channels;
        for (int x = 0; x < width; x++, at += channels) {
            float count = (float)(rows * holding(width, crop, stride, x));
            for (int c = 0; c < channels && count > 1; c++) at[c] /= count;
        }
    }
}
