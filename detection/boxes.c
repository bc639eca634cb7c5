/* Generalised IoU and its derivatives:  G = I/U - 1 + U/A,   I = iw ih,  U = Sa + Sb - I,  A = aw ah
 *   iw = max(min(x1, X1) - max(x0, X0), 0),   aw = max(x1, X1) - min(x0, X0);   capitals: the other box
 *   dG/dI = 1/U + I/U^2 - 1/A,   dG/dSa = 1/A - I/U^2,   dG/dA = -U/A^2     (through U where it occurs) */
#include "detection/boxes.h"

/* The derivative of min(x, other) by x: 1, 0, or 1/2 if they are equal. */
static float below(float x, float other) { return x < other ? 1 : x == other ? 0.5f : 0; }

/* One axis: a's ends low, high against b's; derivatives by the intersection's, the hull's and a's own length. */
static void axis_backward(float *dlow, float *dhigh, float low, float high, float other_low, float other_high,
                          float dintersection, float dhull, float dlength) {
    /* boxes that just touch count as overlapping: clamp in the PyTorch of DETR's time */
    float meets = box_smaller(high, other_high) >= box_larger(low, other_low) ? dintersection : 0;
    *dlow = -meets * below(other_low, low) - dhull * below(low, other_low) - dlength;
    *dhigh = meets * below(high, other_high) + dhull * below(other_high, high) + dlength;
}

float box_giou_backward(float da[4], const float a[4], const float b[4]) {
    BoxOverlap o = box_overlap(a, b);
    float over_u = 1 / o.u, over_a = 1 / o.a;
    float di = over_u + o.i * over_u * over_u - over_a, ds = over_a - o.i * over_u * over_u,
          dhull = -o.u * over_a * over_a;
    float w = a[2] - a[0], h = a[3] - a[1];
    axis_backward(&da[0], &da[2], a[0], a[2], b[0], b[2], di * o.ih, dhull * o.ah, ds * h);
    axis_backward(&da[1], &da[3], a[1], a[3], b[1], b[3], di * o.iw, dhull * o.aw, ds * w);
    return o.i / o.u - (o.a - o.u) / o.a;
}
