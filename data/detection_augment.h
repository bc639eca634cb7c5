/* DETR's transforms of a picture and its boxes: what is drawn, and what it does to boxes.  Pixels are moved by whoever
 * holds them: mirror, then for each step resize and crop.  Draws are a pure function of (seed, epoch, sample index).
 *
 *   training    mirror with probability 1/2; then, with probability 1/2 each,
 *               A  resize: the short side to one of `scale`, the long one to at most max_size
 *               B  resize: the short side to one of `crop_scale`; crop with sides uniform in crop_min .. crop_max, or
 *                  to the picture's side where that is shorter; then A
 *   evaluation  resize */
#ifndef VIT_DATA_DETECTION_AUGMENT_H
#define VIT_DATA_DETECTION_AUGMENT_H

#include <stdbool.h>
#include <stdint.h>

enum { DETECTION_SCALES = 16 };

typedef struct {
    bool flip, crop;
    int scale[DETECTION_SCALES], scales, max_size; /* max_size 0: no limit */
    int crop_scale[DETECTION_SCALES], crop_scales, crop_min, crop_max;
} DetectionAugment;

/* Resize to width x height, then keep crop_width x crop_height from (left, top) on. */
typedef struct {
    int width, height, left, top, crop_width, crop_height;
} DetectionStep;

typedef struct {
    int from_width, from_height;
    bool mirror; /* first of all */
    int steps;   /* 1: resize; 2: resize and crop, resize */
    DetectionStep step[2];
    int width, height; /* of the result: the last step's crop */
} DetectionDraw;

DetectionDraw detection_draw(const DetectionAugment *augment, int width, int height, uint64_t seed, uint32_t epoch,
                             uint32_t index);

/* The transform of evaluation: short side `scale`, long side at most max_size (0: no limit). */
DetectionDraw detection_resize(int width, int height, int scale, int max_size);

/* Boxes of the original picture, box [count,4] x0, y0, x1, y1 within it, become those of the result, cx, cy, w, h
 * relative to its size; those that a crop leaves nothing of are dropped, whatever is left of the others keeps its
 * label.  In place; returns how many are left. */
int detection_boxes(float (*box)[4], int *label, int count, const DetectionDraw *draw);

#endif
