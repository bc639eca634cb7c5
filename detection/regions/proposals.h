/* The proposals of an image, which are the inputs of the heads: computed from the logits and deltas of its anchors. */
#ifndef VIT_DETECTION_REGIONS_PROPOSALS_H
#define VIT_DETECTION_REGIONS_PROPOSALS_H

#include "detection/regions/anchors.h"

typedef struct {
    int of_level; /* the best of each level before suppression: 2000 in training, 1000 otherwise */
    int most;     /* the best of all levels after it: 1000 */
    float nms;    /* IoU threshold within a level: 0.7 */
} ProposalRule;

/* Memory for one image at a time, allocated for a rule.  A zeroed one is empty. */
typedef struct {
    uint64_t *level_keys, *keys;        /* [of_level], [most] */
    float (*boxes)[4], (*kept_boxes)[4]; /* [of_level], [levels of_level] */
    float *scores;                       /* [of_level] */
    int *keep;                           /* [of_level] */
} ProposalScratch;
void proposal_scratch_open(ProposalScratch *scratch, const ProposalRule *rule, int levels);
void proposal_scratch_close(ProposalScratch *scratch);

/* proposals (=) [rule->most]: boxes x0, y0, x1, y1, best first; returns their number.  logits[l]
 * [rows,columns,ANCHOR_RATIOS] and deltas[l] [rows,columns,ANCHOR_RATIOS,4] of each level, in host memory.  Only cells
 * of the image's own own_h x own_w count (anchors_own_cells); boxes are clipped to it, and those with a side of 0 are
 * dropped. Equal scores are taken in the order of the anchors. */
int proposals_find(float (*proposals)[4], const float *const *logits, const float *const *deltas, const Anchors *anchors,
                   int own_h, int own_w, const ProposalRule *rule, ProposalScratch *scratch);

/* The level of the pyramid, 0 to levels - 1, from whose map the features of a box are taken: 2 for a box of
 * `canonical`^2 pixels (224^2), one more for each doubling of its side. */
int region_level(const float box[4], float canonical, int levels);

#endif
