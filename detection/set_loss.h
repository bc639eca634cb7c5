/* DETR's set loss.  In every decoder layer each target is assigned to a query so that the total cost is smallest.  The
 * loss is a focal loss on the class logits of all queries, and L1 and generalised IoU on the boxes of queries with a
 * target.
 *
 * Letters: L layers, B images, Q queries, C class logits, T targets of an image.  Everything is computed on the host:
 * matching needs the logits there anyway (6 x 16 x 300 x 92 floats are 11 MB), and the rest is cheap.  One Zen 5 thread
 * takes 0.02 ms for each image and layer without targets, 0.055 ms with 7 targets and 0.35 ms with 100, so that a batch
 * of 16 images with six layers takes 5 ms, divided among all threads. */
#ifndef VIT_DETECTION_SET_LOSS_H
#define VIT_DETECTION_SET_LOSS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    int layers, images, queries, columns;
    int most_targets; /* of one image */
} SetLossSize;

typedef struct {
    float cost_class, cost_l1, cost_giou; /* weights in the cost of the assignment */
    float focal, l1, giou;                /* weights in the loss */
    float alpha;                          /* of the focal loss; its gamma is 2 */
} SetLossWeights;

/* SMCA's weights: 2, 5, 2 in the cost and in the loss; alpha 0.25. */
extern const SetLossWeights set_loss_weights;

/* The targets of a batch; those of image b are first[b] .. first[b + 1] - 1. */
typedef struct {
    const float *boxes; /* [targets,4]: cx, cy, w, h as fractions of the image without padding; w, h > 0 */
    const int *labels;  /* [targets]: 0 .. C-1 */
    const int *first;   /* [B+1] */
} SetTargets;

typedef struct {
    double total;           /* the loss: weighted, summed over layers */
    double focal, l1, giou; /* of the last layer, not weighted */
    double wrong;           /* share of the last layer's targets whose query has its largest logit for another class */
} SetLoss;

typedef struct {
    SetLossSize size;
    SetLossWeights weights;
    int threads;
    size_t room;    /* bytes of one thread's memory */
    char *memory;   /* [threads,room] */
    double *parts;  /* [L,B,5]: sums before normalisation, and the number of wrong ones */
    int *query;     /* [L,B,most_targets]: the query that set_loss assigned to each target, -1 for none */
} SetLossWork;

void set_loss_open(SetLossWork *work, SetLossSize size, SetLossWeights weights);
void set_loss_close(SetLossWork *work);

/* dlogits (=) [L,B,Q,C], dboxes (=) [L,B,Q,4]: derivatives of loss->total, from logits [L,B,Q,C] and boxes [L,B,Q,4]:
 * cx, cy, w, h in 0 .. 1 (after their sigmoid).  images <= work->size.images and T <= most_targets.
 * box_count: the number by which all sums are divided: max(targets of all ranks / ranks, 1) if gradients are averaged
 * over ranks, max(targets of all ranks, ranks) if they are summed.
 * Uses OpenMP over (layer, image), with the same bits for any number of threads up to that at set_loss_open.  Allocates
 * nothing.  Returns false if a cost is not finite, with its *layer and *image; the outputs are then undefined. */
bool set_loss(SetLoss *loss, float *dlogits, float *dboxes, SetLossWork *work, const float *logits, const float *boxes,
              const SetTargets *targets, int images, double box_count, int *layer, int *image);

#endif
