/* The anchors of a region proposal network (Ren et al. 2015; Lin et al. 2017, as in mmdetection): three boxes at every
 * cell of every level of a pyramid.  Cell (i, j) of a level with stride s has its centre at (j s, i s); its boxes have
 * the area (size s)^2 and height / width of 1/2, 1 and 2.  Nothing is rounded. */
#ifndef VIT_DETECTION_REGIONS_ANCHORS_H
#define VIT_DETECTION_REGIONS_ANCHORS_H

#include <stddef.h>
#include <stdint.h>

enum { ANCHOR_LEVELS = 5, ANCHOR_RATIOS = 3 };

typedef struct {
    int levels, stride[ANCHOR_LEVELS];
    float size; /* of an anchor's side, in strides: 8 in Mask R-CNN */
} AnchorRule;

/* All anchors of a padded image of H x W, in the order level, row, column, ratio. */
typedef struct {
    AnchorRule rule;
    int H, W, rows[ANCHOR_LEVELS], columns[ANCHOR_LEVELS];
    size_t first[ANCHOR_LEVELS + 1]; /* index of each level's first anchor */
    float (*boxes)[4];               /* [count]: x0, y0, x1, y1 in pixels */
    uint32_t *elements;              /* [count]: level, row, column and ratio in one number, in ascending order, which
                                      * does not depend on H and W */
    size_t count, room, elements_room;
} Anchors;

/* Makes the anchors of that size, in memory that grows when a larger size comes.  A level has ceil(H / stride) rows.
 * A zeroed Anchors is empty. */
void anchors_make(Anchors *anchors, const AnchorRule *rule, int H, int W);
void anchors_free(Anchors *anchors);

/* The rows (columns) of a level in which an image of `own` rows (columns) has anchors, where a batch may be padded to
 * more: those of the image padded to a multiple of 32. */
int anchors_own_cells(const Anchors *anchors, int level, int own, int cells);

/* valid [count] (=): 1 for the anchors whose cell belongs to an image of own_h x own_w. */
void anchors_valid(uint8_t *valid, const Anchors *anchors, int own_h, int own_w);

#endif
