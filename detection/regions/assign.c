#include "detection/regions/assign.h"

#include "detection/regions/box_coder.h"

const AssignRule assign_anchors = {0.3f, 0.7f, 0.3f}, assign_proposals = {0.5f, 0.5f, 0.5f};

/* Updates each box's largest IoU with that of truth i; returns the truth's own largest IoU. */
static float meet(int *to, float *best, const float truth[4], int i, const float (*boxes)[4], const uint8_t *valid,
                  size_t n) {
    float own = 0;
    for (size_t j = 0; j < n; j++) {
        float iou = box_iou(truth, boxes[j]);
        if (valid && !valid[j]) continue;
        if (iou > best[j]) {
            best[j] = iou;
            to[j] = i;
        }
        if (iou > own) own = iou;
    }
    return own;
}

void assign_boxes(int *to, float *scratch, const float (*truth)[4], int truths, const float (*boxes)[4],
                  const uint8_t *valid, size_t n, const AssignRule *rule) {
    float *best = scratch, *own = scratch + n; /* of each box, and of each truth */
    for (size_t j = 0; j < n; j++) {
        best[j] = -1; /* below every IoU, so that the first truth of equals is taken */
        to[j] = ASSIGN_NONE;
    }
    for (int i = 0; i < truths; i++) own[i] = meet(to, best, truth[i], i, boxes, valid, n);
    for (size_t j = 0; j < n; j++) {
        if (valid && !valid[j]) to[j] = ASSIGN_IGNORED;
        else if (best[j] < rule->negative) to[j] = ASSIGN_NONE;
        else if (best[j] < rule->positive) to[j] = ASSIGN_IGNORED;
    }
    for (int i = 0; i < truths; i++) {
        if (own[i] < rule->least) continue;
        for (size_t j = 0; j < n; j++)
            if (box_iou(truth[i], boxes[j]) == own[i] && !(valid && !valid[j])) to[j] = i;
    }
}
