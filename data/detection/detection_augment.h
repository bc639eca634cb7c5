/* DETR's transforms of a picture and its boxes: the random draws, and their effect on the boxes.  The pixels are
 * transformed by detection_set.h: mirror, then for each step resize and crop.  Draws are a pure function of
 * (seed, epoch, sample index).
 *
 *   training    mirror with probability 1/2; then, with probability 1/2 each,
 *               A  resize: the short side to one of `scale`, the long side limited to max_size
 *               B  resize: the short side to one of `crop_scale`; crop with sides uniform in crop_min .. crop_max, or
 *                  to the picture's side where that is shorter; then A
 *   evaluation  resize */
#ifndef VIT_DATA_DETECTION_DETECTION_AUGMENT_H
#define VIT_DATA_DETECTION_DETECTION_AUGMENT_H

#include "core/config/config.h"

enum { DETECTION_SCALES = 16 };

/* How the sides of a resized picture are rounded, with `scale` for the short side and max_size for the long one.
 *   DETR          the short side is exact, and the long one truncated; where max_size decides, the short side is
 *                 rounded half to even and the long one is what follows from it
 *   mmdetection   both sides times min(max_size / long, scale / short), rounded half up */
typedef enum { DETECTION_DETR, DETECTION_MMDETECTION } DetectionRule;

typedef struct {
    bool flip, crop;
    int scale_min, scale_max, scale_step, max_size;
    int crop_scale_min, crop_scale_max, crop_scale_step, crop_min, crop_max;
    int eval_scale;
} DetectionAugmentSettings;

extern const ConfigGroup detection_augment_settings;

typedef struct {
    DetectionRule rule; /* not a setting: the program's choice */
    bool flip, crop;
    int scale[DETECTION_SCALES], scales, max_size; /* max_size 0: no limit */
    int crop_scale[DETECTION_SCALES], crop_scales, crop_min, crop_max;
} DetectionAugment;

/* The settings must have been checked already. */
DetectionAugment detection_augment_of(const DetectionAugmentSettings *s, bool train);

/* Resize to width x height, then crop the crop_width x crop_height rectangle whose top left corner is (left, top). */
typedef struct {
    int width, height, left, top, crop_width, crop_height;
} DetectionStep;

typedef struct {
    int from_width, from_height;
    bool mirror; /* done before the steps */
    int steps;   /* 1: resize; 2: resize and crop, resize */
    DetectionStep step[2];
    int width, height; /* of the result, equal to the last step's crop */
} DetectionDraw;

DetectionDraw detection_draw(const DetectionAugment *augment, int width, int height, uint64_t seed, uint32_t epoch,
                             uint32_t index);

/* The transform for evaluation: resizes the short side to `scale`, the long side limited to max_size (0: no limit). */
DetectionDraw detection_resize(DetectionRule rule, int width, int height, int scale, int max_size);

/* Transforms boxes in place, from box [count,4] as x0, y0, x1, y1 in pixels of the original picture to the same in
 * pixels of the result.  Boxes are clipped to each crop; those with nothing left are dropped, together with their
 * labels and places (NULL: none).  Returns how many remain. */
int detection_corners(float (*box)[4], int *label, size_t *place, int count, const DetectionDraw *draw);

/* Converts boxes from there to cx, cy, w, h relative to the size of the result. */
void detection_relative(float (*box)[4], int count, const DetectionDraw *draw);

/* The coordinates of the result are scale x + shift of those in the original picture, x before y. */
void detection_map(double scale[2], double shift[2], const DetectionDraw *draw);

#endif
