/* score = 1 / (1 + e^-x);  box: corners of (cx, cy, w, h), times the image's size, then x, y, w, h.  Everything is
 * float, in this order and without fused multiply-adds (see the Makefile), and converted to double at the end, so that
 * the results are those of the published code. */
#include "detection/postprocess.h"

#include <math.h>
#include <stdlib.h>

#include "core/die.h"
#include "detection/best_keys.h"
#include "detection/boxes.h"

int postprocess(CocoDetection *detections, int most, const float *logits, const float *boxes, int queries, int columns,
                int64_t image_id, int width, int height) {
    int all = queries * columns;
    BestKeys best = {.keys = xcalloc((size_t)most + 1, sizeof *best.keys, "detections"), .most = most};
    for (int i = 0; i < all; i++) best_keys_offer(&best, score_key(1 / (1 + expf(-logits[i])), (uint32_t)i));
    best_keys_sort(&best);
    for (int k = 0; k < best.count; k++) {
        CocoDetection *d = &detections[k];
        int at = (int)key_index(best.keys[k]);
        float corner[4], w = (float)width, h = (float)height;
        box_corners(corner, boxes + (size_t)(at / columns) * 4);
        float x0 = corner[0] * w, y0 = corner[1] * h, x1 = corner[2] * w, y1 = corner[3] * h;
        *d = (CocoDetection){.image_id = image_id, .category_id = at % columns, .score = 1 / (1 + expf(-logits[at]))};
        d->box[0] = x0;
        d->box[1] = y0;
        d->box[2] = x1 - x0;
        d->box[3] = y1 - y0;
    }
    free(best.keys);
    return best.count;
}
