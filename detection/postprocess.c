/* score = 1 / (1 + e^-x);  box: corners of (cx, cy, w, h), times the image's size, then x, y, w, h.  Everything is
 * float, in this order and without fused multiply-adds (see the Makefile), and converted to double at the end, so that
 * the results are those of the published code. */
#include "detection/postprocess.h"

#include <math.h>

#include "detection/boxes.h"

/* While the best are collected, category_id temporarily holds the index into logits. */
static bool better(const CocoDetection *a, const CocoDetection *b) {
    return a->score != b->score ? a->score > b->score : a->category_id < b->category_id;
}

static void swap(CocoDetection *a, CocoDetection *b) {
    CocoDetection kept = *a;
    *a = *b;
    *b = kept;
}

/* A heap [n] with the worst at its root: entry i is better than (i - 1) / 2. */
static void rise(CocoDetection *heap, int i) {
    for (; i > 0 && better(&heap[(i - 1) / 2], &heap[i]); i = (i - 1) / 2) swap(&heap[(i - 1) / 2], &heap[i]);
}

static void sink(CocoDetection *heap, int n) {
    for (int i = 0, child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && better(&heap[child], &heap[child + 1])) child++;
        if (!better(&heap[i], &heap[child])) break;
        swap(&heap[i], &heap[child]);
    }
}

int postprocess(CocoDetection *detections, int most, const float *logits, const float *boxes, int queries, int columns,
                int64_t image_id, int width, int height) {
    int kept = 0, all = queries * columns;
    for (int i = 0; i < all && most > 0; i++) {
        CocoDetection d = {.image_id = image_id, .category_id = i, .score = 1 / (1 + expf(-logits[i]))};
        if (kept < most) {
            detections[kept] = d;
            rise(detections, kept++);
        } else if (better(&d, &detections[0])) {
            detections[0] = d;
            sink(detections, kept);
        }
    }
    for (int n = kept - 1; n > 0; n--) { /* the worst goes last */
        swap(&detections[0], &detections[n]);
        sink(detections, n);
    }
    for (int k = 0; k < kept; k++) {
        CocoDetection *d = &detections[k];
        float corner[4], w = (float)width, h = (float)height;
        box_corners(corner, boxes + (size_t)d->category_id / (size_t)columns * 4);
        float x0 = corner[0] * w, y0 = corner[1] * h, x1 = corner[2] * w, y1 = corner[3] * h;
        d->category_id %= columns;
        d->box[0] = x0;
        d->box[1] = y0;
        d->box[2] = x1 - x0;
        d->box[3] = y1 - y0;
    }
    return kept;
}
