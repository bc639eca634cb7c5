/* Detections, and COCO's file format for them: [{"image_id": 42, "category_id": 18, "bbox": [x, y, w, h], "score":
 * 0.236}, ...], with masks also "segmentation" for each: {"size": [height, width], "counts": "..."}
 * (https://cocodataset.org/#format-results). */
#ifndef VIT_DETECTION_COCO_RESULTS_H
#define VIT_DETECTION_COCO_RESULTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"
#include "data/masks/rle.h"

typedef struct {
    int64_t image_id, category_id;
    double box[4]; /* x, y of the upper left corner, width, height, in pixels of the original image */
    double score;
} CocoDetection;

typedef struct {
    CocoDetection *detections; /* [count], in the order of the file */
    size_t count, room;
    RleTexts masks; /* of each detection, or of none */
} CocoResults;

void coco_results_add(CocoResults *results, CocoDetection detection);
void coco_results_add_mask(CocoResults *results, const Rle *mask); /* of the detection that was added last */
void coco_results_free(CocoResults *results);

/* Writes a file, replacing an existing one only when complete.  Numbers must be finite and are written with enough
 * digits to read back the same values (except -0, which becomes 0).  To compute mask AP with pycocotools, remove each
 * "bbox", as detectron2 and mmdetection do; otherwise pycocotools takes a detection's area from it. */
bool coco_results_write(const char *path, const CocoResults *results, Error *error);

#endif
