/* DETR's set loss: in every decoder layer each target is given to one query, the cheapest assignment of all; the loss
 * is focal on the class logits of all queries, L1 and generalised IoU on the boxes of those that have a target.
 *
 * Letters: L layers, B images, Q queries, C columns (classes), T targets of an image.  All memory is the host's:
 * matching needs the logits here anyway (6 x 16 x 300 x 92 floats are 11 MB), and the rest is cheap.  One Zen 5 thread
 * takes 0.02 ms an image and layer without targets, 0.055 ms with 7 and 0.35 ms with 100: a batch of 16 images with six
 * layers 5 ms, shared by all threads. */
#ifndef VIT_DETECTION_SET_LOSS_H
#define VIT_DETECTION_SET_LOSS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct {
    int layers, images, queries, columns;
    int most_targets; /* of one image */
} SetLossSize;

typedef struct {
    float cost_class, cost_l1, cost_giou; /* in the assignment */
    float focal, l1, giou;                /* in the loss */
    float alpha;                          /* of the focal loss; its gamma is 2 */
} SetLossWeights;

/* SMCA's: 2, 5, 2 in both; alpha 0.25. */
extern const SetLossWeights set_loss_weights;

/* The targets of a batch; those of image b are first[b] .. first[b + 1] - 1. */
typedef struct {
    const float *boxes; /* [targets,4]: cx, cy, w, h, relative to the image's own size; w, h > 0 */
    const int *labels;  /* [targets]: 0 .. C-1 */
    const int *first;   /* [B+1] */
} SetTargets;

typedef struct {
    double total;           /* weighted, summed over layers: what is differentiated */
    double focal, l1, giou; /* of the last layer, not weighted */
    double wrong;           /* of the last layer's targets, the share whose query has its largest logit elsewhere */
} SetLoss;

typedef struct {
    SetLossSize size;
    SetLossWeights weights;
    int threads;
    size_t room;    /* bytes of one thread's memory */
    char *memory;   /* [threads,room] */
    double *parts;  /* [L,B,5]: sums before normalisation, and the number of wrong ones */
    int *query;     /* [L,B,most_targets]: each target's query, -1 for none; what set_loss found */
} SetLossWork;

void set_loss_open(SetLossWork *work, SetLossSize size, SetLossWeights weights);
void set_loss_close(SetLossWork *work);

/* dlogits (=) [L,B,Q,C], dboxes (=) [L,B,Q,4]: derivatives of loss->total, from logits [L,B,Q,C] and boxes [L,B,Q,4]:
 * cx, cy, w, h in 0 .. 1 (behind their sigmoid).  images <= work->size.images of them, T <= most_targets.
 * box_count: the targets by which everything is divided, max(targets of all ranks / ranks, 1) where gradients are
 * averaged over ranks, max(targets of all ranks, ranks) where they are summed.
 * OpenMP over (layer, image); same bits for any number of threads up to that at set_loss_open; allocates nothing.
 * Where a cost is not finite: *layer, *image say where, and false; the outputs are of no use then. */
bool set_loss(SetLoss *loss, float *dlogits, float *dboxes, SetLossWork *work, const float *logits, const float *boxes,
              const SetTargets *targets, int images, double box_count, int *layer, int *image);

#endif
