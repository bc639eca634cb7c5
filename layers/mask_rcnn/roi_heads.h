/* The two heads of Mask R-CNN (He et al. 2017), whose inputs are regions.
 *   box    the region's 7 x 7 features, flattened, through two linear layers with ReLU, to class logits and, for each
 *          class, the four deltas of a box
 *   mask   the region's 14 x 14 features through four 3 x 3 convolutions with ReLU, a transposed convolution of 2 x 2
 *          windows with ReLU and a 1 x 1 convolution, to 28 x 28 logits a class
 * Names and shapes as in torchvision: class 0 is the background, which has deltas and a mask as well, and fc6 reads the
 * features in the order channel, row, column.
 *
 * Letters: R regions, C channels of the pyramid, K classes with the background. */
#ifndef VIT_LAYERS_MASK_RCNN_ROI_HEADS_H
#define VIT_LAYERS_MASK_RCNN_ROI_HEADS_H

#include "layers/pyramid/conv_layer.h"
#include "layers/projection.h"

enum { BOX_SIDE = 7, MASK_SIDE = 14, MASK_CONVS = 4, MASK_OUT = 2 * MASK_SIDE };

/* == Boxes ======================================================================================================== */

typedef struct {
    int C, K;
    Projection fc6, fc7, cls, box;
    real *x;                /* [R,7,7,C], from the caller; not kept */
    real *columns, *h6, *h7; /* [R,C*49], [R,D], [R,D] kept */
    real *logits, *deltas;  /* [R,K], [R,K,4] */
    real *dlogits, *ddeltas; /* scratch, written by the caller */
    real *dh, *dh6;         /* scratch */
    real *dcolumns;         /* scratch [R,C*49] */
    real *dx;               /* [R,7,7,C] of the caller, for the result of the backward pass */
} BoxHead;

void box_head_declare(BoxHead *head, Params *params, int C, int width, int classes);
/* For up to R regions. */
void box_head_plan(BoxHead *head, Plan *plan, size_t R);
void box_head_forward(const BoxHead *head, int R);
/* dlogits, ddeltas -> dx (=), parameters (+=). */
void box_head_backward(const BoxHead *head, int R);
size_t box_head_macs(const BoxHead *head, size_t R);

/* == Masks ======================================================================================================== */

typedef struct {
    int C, K, width;
    ConvLayer convs[MASK_CONVS], logit;
    float *w, *dw, *b, *db; /* conv5_mask: [in,out,2,2] and [out] */
    real *x;                /* [R,14,14,C], from the caller; kept */
    real *h[MASK_CONVS];    /* [R,14,14,width] kept */
    real *four;             /* scratch [R*14*14, width*4] */
    real *up;               /* [R,28,28,width] kept */
    real *logits;           /* [R,28,28,K] */
    real *dlogits;          /* scratch, written by the caller */
    real *dup, *dh[2];      /* scratch */
    real *dx;               /* [R,14,14,C] of the caller, for the result of the backward pass */
} MaskHead;

void mask_head_declare(MaskHead *head, ConvLayers *convs, Params *params, int C, int width, int classes);
void mask_head_plan(MaskHead *head, Plan *plan, size_t R);
void mask_head_forward(const MaskHead *head, int R);
void mask_head_backward(const MaskHead *head, int R);
size_t mask_head_macs(const MaskHead *head, size_t R);

/* A convolution is prepared for each number R of regions, so R is rounded up to one of a few numbers. */
static inline int mask_head_rows(int R) { return (R + 15) / 16 * 16; }

#endif
