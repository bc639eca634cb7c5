/* The assignment of true boxes to anchors or proposals (mmdetection's MaxIoUAssigner). */
#ifndef VIT_DETECTION_REGIONS_ASSIGN_H
#define VIT_DETECTION_REGIONS_ASSIGN_H

#include <stddef.h>
#include <stdint.h>

enum { ASSIGN_NONE = -1, ASSIGN_IGNORED = -2 };

/* With m the largest IoU of a box with any truth: if m < negative, the box has no truth; if m >= positive, it has the
 * first truth with IoU m.  Then each truth, in ascending order, whose largest IoU with any box is at least `least` is
 * assigned to all boxes with this IoU. */
typedef struct {
    float negative, positive, least; /* anchors: 0.3, 0.7, 0.3; proposals: 0.5, 0.5, 0.5 */
} AssignRule;

extern const AssignRule assign_anchors, assign_proposals;

/* to [n] (=): the index of a truth, ASSIGN_NONE or ASSIGN_IGNORED.  scratch [n + truths].  Boxes with valid[i] = 0 are
 * ignored and do not count for a truth's largest IoU; valid may be NULL.  Without truths all valid boxes have
 * ASSIGN_NONE. */
void assign_boxes(int *to, float *scratch, const float (*truth)[4], int truths, const float (*boxes)[4],
                  const uint8_t *valid, size_t n, const AssignRule *rule);

#endif
