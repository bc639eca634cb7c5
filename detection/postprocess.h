/* Makes detections from the last layer's logits and boxes, as SMCA-DETR's code does. */
#ifndef VIT_DETECTION_POSTPROCESS_H
#define VIT_DETECTION_POSTPROCESS_H

#include "detection/coco_results.h"

/* The `most` best of the Q x C pairs of a query and a class of one image, by sigmoid score, and of equal scores those
 * that come first in logits.  There is no threshold and no non-maximum suppression, and a query may occur with several
 * classes.  logits [Q,C];  boxes [Q,4]: cx, cy, w, h in 0 .. 1;  width and height of the original image in pixels.
 * category_id becomes the class's column.  SMCA uses most = Q.  Writes min(most, Q C) detections, best first, and
 * returns their number. */
int postprocess(CocoDetection *detections, int most, const float *logits, const float *boxes, int queries, int columns,
                int64_t image_id, int width, int height);

#endif
