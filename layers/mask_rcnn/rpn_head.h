/* The head of a region proposal network (Ren et al. 2015), with the same weights on every level of a pyramid:
 *   h = relu(3 x 3 convolution of p);  logits, deltas: 1 x 1 convolutions of h
 * Names as in torchvision: rpn.head.conv.0.0, rpn.head.cls_logits, rpn.head.bbox_pred. */
#ifndef VIT_LAYERS_MASK_RCNN_RPN_HEAD_H
#define VIT_LAYERS_MASK_RCNN_RPN_HEAD_H

#include "detection/regions/anchors.h"
#include "layers/pyramid/fpn.h"

typedef struct {
    ConvLayer conv, cls, box;
    real *h[FPN_LEVELS];      /* [B,h_i,w_i,channels] kept */
    real *logits[FPN_LEVELS]; /* [B,h_i,w_i,3] */
    real *deltas[FPN_LEVELS]; /* [B,h_i,w_i,3,4] */
    real *dlogits, *ddeltas, *dh; /* scratch for the gradients of one level, the first two written by the caller */
} RpnHead;

void rpn_head_declare(RpnHead *head, ConvLayers *convs, Params *params, int channels);

/* Plans for up to B images of up to H x W; scratch is shared with everything that is planned afterwards. */
void rpn_head_plan(RpnHead *head, Plan *plan, int B, int H, int W);

/* The map of level i, p [B,h_i,w_i,channels] -> logits[i], deltas[i]. */
void rpn_head_forward(const RpnHead *head, int i, const real *p, int B, int H, int W);
/* head->dlogits and ddeltas of level i -> dp (=) and the gradients of parameters (+=). */
void rpn_head_backward(const RpnHead *head, int i, real *dp, const real *p, int B, int H, int W);

/* Multiply-adds of an image. */
size_t rpn_head_macs(const RpnHead *head, int H, int W);

#endif
