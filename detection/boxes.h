/* Boxes of four floats: by corners x0, y0, x1, y1 or by centre cx, cy, w, h. */
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

static inline void box_centre(float out[4], const float box[4]) {
    float x0 = box[0], y0 = box[1], x1 = box[2], y1 = box[3];
    out[0] = (x0 + x1) / 2;
    out[1] = (y0 + y1) / 2;
    out[2] = x1 - x0;
    out[3] = y1 - y0;
}

/* Intersection i, union u and the smallest box around both, a, of two boxes by corners, x0 <= x1 and y0 <= y1; each
 * also by its sides.  Selections instead of fminf, so that loops of it stay in vectors. */
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
 * A box without area against one with area is fine; two without area at one place give NaN. */
static inline float box_giou(const float a[4], const float b[4]) {
    BoxOverlap o = box_overlap(a, b);
    return o.i / o.u - (o.a - o.u) / o.a;
}

/* The same, and its derivative by the corners of a: da (=).  Where a corner of a and one of b coincide, half of the
 * derivative is a's, as in PyTorch. */
float box_giou_backward(float da[4], const float a[4], const float b[4]);

#endif
