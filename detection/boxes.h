/* Boxes of four floats: corners x0, y0, x1, y1, or centre and size cx, cy, w, h. */
#ifndef VIT_DETECTION_BOXES_H
#define VIT_DETECTION_BOXES_H

/* out may be box. */
static inline void box_corners(float out[4], const float box[4]) {
    float cx = box[0], cy = box[1], w = box[2] / 2, h = box[3] / 2;
    out[0] = cx - w;
    out[1] = cy - h;
    out[2] = cx + w;
    out[3] = cy + h;
}

/* The areas of the intersection i, the union u and the smallest enclosing box a of two boxes given by corners with
 * x0 <= x1 and y0 <= y1, and the sides of i and a.  Written with ?: instead of fminf, so that loops are vectorised. */
typedef struct {
    float iw, ih, aw, ah;
    float i, u, a;
} BoxOverlap;

static inline float box_smaller(float a, float b) { return a < b ? a : b; }
static inline float box_larger(float a, float b) { return a > b ? a : b; }

static inline BoxOverlap box_overlap(const float a[4], const float b[4]) {
    BoxOverlap o;
    o.iw = box_larger(box_smaller(a[2], b[2]) - box_larger(a[0], b[0]), 0);
    o.ih = box_larger(box_smaller(a[3], b[3]) - box_larger(a[1], b[1]), 0);
    o.aw = box_larger(a[2], b[2]) - box_smaller(a[0], b[0]);
    o.ah = box_larger(a[3], b[3]) - box_smaller(a[1], b[1]);
    o.i = o.iw * o.ih;
    o.u = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - o.i;
    o.a = o.aw * o.ah;
    return o;
}

/* Generalised IoU (Rezatofighi et al. 2019), -1 to 1:  i / u - (a - u) / a.
 * One of the boxes may have no area; two boxes without area at the same point give NaN. */
static inline float box_giou(const float a[4], const float b[4]) {
    BoxOverlap o = box_overlap(a, b);
    return o.i / o.u - (o.a - o.u) / o.a;
}

/* Generalised IoU and its derivative by the corners of a: da (=).  If a coordinate of a equals that of b, a gets half
 * of the derivative, as in PyTorch. */
float box_giou_backward(float da[4], const float a[4], const float b[4]);

#endif
