/* A box relative to another (Girshick et al. 2014): dx = wx (gx - px) / pw and dw = ww ln(gw / pw) of centres and sides,
 * y and height alike.  Boxes are x0, y0, x1, y1. */
#ifndef VIT_DETECTION_REGIONS_BOX_CODER_H
#define VIT_DETECTION_REGIONS_BOX_CODER_H

#include <math.h>

/* wx, wy, ww, wh: for proposals from anchors, and for boxes from proposals. */
static const float proposal_weights[4] = {1, 1, 1, 1}, region_weights[4] = {10, 10, 5, 5};

/* delta (=) of `box` relative to `from`; both have sides larger than 0. */
static inline void box_encode(float delta[4], const float from[4], const float box[4], const float weights[4]) {
    float pw = from[2] - from[0], ph = from[3] - from[1], gw = box[2] - box[0], gh = box[3] - box[1];
    delta[0] = weights[0] * ((box[0] + 0.5f * gw) - (from[0] + 0.5f * pw)) / pw;
    delta[1] = weights[1] * ((box[1] + 0.5f * gh) - (from[1] + 0.5f * ph)) / ph;
    delta[2] = weights[2] * logf(gw / pw);
    delta[3] = weights[3] * logf(gh / ph);
}

/* The inverse, with dw / ww limited to ln(1000 / 16). */
static inline void box_decode(float box[4], const float from[4], const float delta[4], const float weights[4]) {
    const float most = 4.135166556742356f;
    float pw = from[2] - from[0], ph = from[3] - from[1];
    float x = delta[0] / weights[0] * pw + (from[0] + 0.5f * pw), y = delta[1] / weights[1] * ph + (from[1] + 0.5f * ph);
    float dw = delta[2] / weights[2], dh = delta[3] / weights[3];
    float w = expf(dw < most ? dw : most) * pw, h = expf(dh < most ? dh : most) * ph;
    box[0] = x - 0.5f * w;
    box[1] = y - 0.5f * h;
    box[2] = x + 0.5f * w;
    box[3] = y + 0.5f * h;
}

/* Clips a box to an image of h x w. */
static inline void box_cut(float box[4], int h, int w) {
    for (int i = 0; i < 4; i++) {
        float most = (float)(i % 2 ? h : w);
        box[i] = box[i] < 0 ? 0 : box[i] > most ? most : box[i];
    }
}

/* Intersection over union; 0 for boxes that do not overlap. */
static inline float box_iou(const float a[4], const float b[4]) {
    float x0 = a[0] > b[0] ? a[0] : b[0], y0 = a[1] > b[1] ? a[1] : b[1];
    float x1 = a[2] < b[2] ? a[2] : b[2], y1 = a[3] < b[3] ? a[3] : b[3];
    float w = x1 > x0 ? x1 - x0 : 0, h = y1 > y0 ? y1 - y0 : 0, both = w * h;
    float all = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both;
    return both > 0 ? both / all : 0;
}

#endif
