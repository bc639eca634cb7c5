/* The five losses of Mask R-CNN, on the host: the choice of the anchors and regions that count, their targets, and the
 * gradients of the model's outputs.  Every loss is a mean over the sample of an image, and these means are averaged
 * over the images of the global batch, so that results do not depend on micro-batches and ranks.
 *
 *   objectness   binary cross entropy of the sampled anchors
 *   rpn_box      L1 of the four deltas of positive anchors, divided by the size of the sample
 *   class        cross entropy over K classes of the sampled regions
 *   box          L1 of the true class's four deltas in positive regions, divided by the number of sampled regions
 *   mask         binary cross entropy of the true class's 28 x 28 cells of positive regions, a mean over both */
#ifndef VIT_LAYERS_MASK_RCNN_LOSS_H
#define VIT_LAYERS_MASK_RCNN_LOSS_H

#include "data/masks/object_mask.h"
#include "layers/mask_rcnn/mask_rcnn.h"

enum { LOSS_OBJECTNESS, LOSS_RPN_BOX, LOSS_CLASS, LOSS_BOX, LOSS_MASK, LOSS_TERMS };

typedef struct {
    double term[LOSS_TERMS];
    double regions, right; /* sampled regions, and those of them whose largest logit is for their class */
} MaskRcnnLoss;
double mask_rcnn_loss_total(const MaskRcnnLoss *loss);

/* The targets of a batch of B images. */
typedef struct {
    const int *size;         /* [B,2]: height and width of each image without padding */
    const float (*boxes)[4]; /* [first[B]]: x0, y0, x1, y1 in pixels of the batch's images */
    const int *labels;       /* [first[B]]: 1 .. K-1 */
    const ObjectMask *masks; /* [first[B]] */
    const int *first;        /* [B + 1] */
    const float (*proposals)[4]; /* NULL: those of the RPN; or [first_proposal[B]] */
    const int *first_proposal;   /* [B + 1] */
} Truth;

/* The numbers on which the samples of a step depend, and the number of images by which losses are divided. */
typedef struct {
    uint64_t seed;
    uint32_t step, first; /* index of the first image in the global batch */
    int batch;            /* images in the global batch */
} LossDraw;

/* Memory for a micro-batch, allocated for a model and the most true boxes of an image. */
typedef struct {
    int most_truth;
    int *to, *chosen;        /* [candidates], [sample] */
    float *iou;              /* [candidates + most_truth] */
    uint8_t *valid;          /* [candidates] */
    uint64_t *keys;          /* [sample] */
    float (*candidates)[4];  /* [most_truth + proposals of an image] */
    int candidate_room;
    ProposalScratch proposals;
    MaskScratch masks;
    uint8_t *cells;          /* [28,28] */
    int *first, *first_mask; /* [B + 1]: the regions of each image in m->regions and in m->masks */
    int *match;              /* [regions]: the true box of each, an index into Truth, or -1 */
    int *mask_match;         /* [masks] */
} LossWork;

/* given: the largest number of proposals of an image in Truth, or 0. */
void loss_work_open(LossWork *work, const MaskRcnn *m, int most_truth, int given);
void loss_work_close(LossWork *work);

/* After mask_rcnn_forward: samples regions from the true boxes and the proposals into m->regions, and copies the
 * positive ones to m->masks. */
void choose_regions(MaskRcnn *m, LossWork *work, const Truth *truth, const LossDraw *draw);

/* After mask_rcnn_forward_masks: adds the losses to *sum, and with `gradients` fills in the gradients for
 * mask_rcnn_backward. */
void mask_rcnn_loss(MaskRcnn *m, LossWork *work, const Truth *truth, const LossDraw *draw, bool gradients,
                    MaskRcnnLoss *sum);

#endif
