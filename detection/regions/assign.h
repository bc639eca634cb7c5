/* Which true box each anchor or proposal is to find (mmdetection's MaxIoUAssigner). */
#ifndef VIT_DETECTION_REGIONS_ASSIGN_H
#define VIT_DETECTION_REGIONS_ASSIGN_H

#include <stddef.h>
#include <stdint.h>

enum { ASSIGN_NONE = -1, ASSIGN_IGNORED = -2 };

/* With m the largest IoU of a box with any truth: m < negative: none; m >= positive: the first truth that has m.  Then,
 * in ascending order, each truth whose own largest IoU is at least `least` takes every box that has it. */
typedef struct {
    float negative, positive, least; /* anchors: 0.3, 0.7, 0.3; proposals: 0.5, 0.5, 0.5 */
} AssignRule;

extern const AssignRule assign_anchors, assign_proposals;

/* to [n] (=): the index of a truth, ASSIGN_NONE or ASSIGN_IGNORED.  scratch [n + truths].  Boxes with valid[i] = 0 are
 * ignored and nobody's best; valid may be NULL.  Without truths every valid box has none. */
void assign_boxes(int *to, float *scratch, const float (*truth)[4], int truths, const float (*boxes)[4],
                  const uint8_t *valid, size_t n, const AssignRule *rule);

#endif
