/* Results of semantic segmentation: for every class, over all pixels of an evaluation whose label is not 255,
 *   I = pixels of this class for which it was predicted,  P = pixels predicted as it,  L = pixels labelled as it
 *   IoU = I / U,  U = P + L - I;   mIoU: mean of IoU over the classes with U > 0
 *   accuracy = I / L;              mAcc: mean of it over the classes with L > 0;   aAcc = sum I / sum L
 * as in mmsegmentation (mmseg/evaluation/metrics/iou_metric.py).  Counts are whole numbers of 64 bits. */
#ifndef VIT_CORE_RESULTS_SEGMENTATION_H
#define VIT_CORE_RESULTS_SEGMENTATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"

/* The label of a pixel that does not count.  Classes are 0 .. classes - 1, and there are at most 255 of them. */
enum { SEGMENTATION_IGNORED = 255, SEGMENTATION_MOST_CLASSES = 255 };

typedef struct {
    int classes;
    uint64_t *pairs; /* [256,256]: pixels with this label and this prediction */
} SegmentationCounts;

void segmentation_counts_open(SegmentationCounts *counts, int classes);
void segmentation_counts_close(SegmentationCounts *counts);

/* Counts one picture: predicted and labels [height,width], rows `predicted_stride` and `label_stride` bytes apart.
 * Predictions are less than `classes`; a label that is 255 or no class leaves its pixel out. */
void segmentation_counts_add(SegmentationCounts *counts, const uint8_t *predicted, size_t predicted_stride,
                             const uint8_t *labels, size_t label_stride, int height, int width);

/* Sums the counts over all ranks; every rank gets the sums. */
void segmentation_counts_sum(SegmentationCounts *counts);

typedef struct {
    uint64_t both, predicted, labelled; /* I, P and L */
} ClassPixels;

ClassPixels segmentation_pixels_of(const SegmentationCounts *counts, int class);

/* NaN if the divisor is 0. */
double segmentation_iou(ClassPixels pixels);
double segmentation_accuracy(ClassPixels pixels);

typedef struct {
    double miou, macc, aacc; /* 0 to 1; 0 where no pixel counted */
    int present;             /* classes with U > 0 */
    uint64_t pixels;         /* labelled ones */
} SegmentationScores;

SegmentationScores segmentation_scores(const SegmentationCounts *counts);

/* Prints a line for every class with its IoU, accuracy and share of the labelled pixels in percent.  names [classes];
 * NULL: classes are written as numbers. */
void segmentation_counts_print(const SegmentationCounts *counts, const char *const *names);

/* Writes the same as CSV: class,name,pixels,iou,accuracy; the last two in percent, and empty where the divisor is zero.
 * On failure returns false and sets `error`, without the file's name. */
bool segmentation_counts_write(const SegmentationCounts *counts, const char *path, const char *const *names,
                               Error *error);

#endif
