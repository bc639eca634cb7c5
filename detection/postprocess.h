/* From the last layer's logits and boxes to detections, as SMCA-DETR's code does it. */
#ifndef VIT_DETECTION_POSTPROCESS_H
#define VIT_DETECTION_POSTPROCESS_H

#include "detection/coco_results.h"

/* The `most` best of the Q x C pairs of a query and a class of one image, by sigmoid score; of equal scores the one
 * that comes first in logits.  No threshold, no suppression; a query may occur with several classes.  logits [Q,C],
 * boxes [Q,4] (cx, cy, w, h in 0 .. 1); width and height are the original image's, in pixels; category_id is the
 * column. SMCA: most = Q.  Writes min(most, Q C) detections, best first, and returns how many. */
int postprocess(CocoDetection *detections, int most, const float *logits, const float *boxes, int queries, int columns,
                int64_t image_id, int width, int height);

#endif
