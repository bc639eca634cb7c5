/* The head of Semantic FPN (Kirillov et al. 2019; mmsegmentation's FPNHead): it joins the pyramid's four levels to one
 * map at stride 4 and computes the logits of classes from that.
 *   branch i = 0 .. 3 of P_(2+i)   max(1, i) blocks, each followed by bilinear upsampling x 2 unless i is 0
 *   total     the sum of the four,  dropped channels of it,  logits = classifier(total), a 1 x 1 convolution
 * Letters: B images of H x W, multiples of 32; C channels of the head, K classes. */
#ifndef VIT_LAYERS_SEMANTIC_FPN_SEMANTIC_HEAD_H
#define VIT_LAYERS_SEMANTIC_FPN_SEMANTIC_HEAD_H

#include "layers/projection.h"
#include "layers/semantic_fpn/conv_norm.h"

enum { HEAD_BRANCHES = 4, HEAD_BLOCKS = 3 };

typedef struct {
    ConvNorm block;
    char prefix[64]; /* of its tensors: "decode_head.scale_heads.2.0." */
    real *u;         /* [B,2h,2w,C] the next block's input; NULL for the last one of a branch */
} HeadBlock;

typedef struct {
    int in, C, K;
    float dropout; /* rate, of whole channels, in training */
    HeadBlock blocks[HEAD_BRANCHES][HEAD_BLOCKS];
    Projection classifier;
    size_t begin;         /* index of the head's first parameter */
    real *total, *logits; /* [B,H/4,W/4,C], [B,H/4,W/4,K] */
    real *dlogits;        /* scratch, which the caller fills in */
    real *dtotal, *y, *dy, *du, *z; /* scratch; y, dy, du at stride 8; z in inference */
} SemanticHead;

/* Declares the tensors, with mmsegmentation's names. */
void semantic_head_declare(SemanticHead *head, ConvLayers *convs, Params *params, int in, int channels, int classes,
                           SegNorm norm);

/* Plans activations for up to B images of up to H x W or W x H; total, logits and dlogits are valid until the caller's
 * plan_release. */
void semantic_head_plan(SemanticHead *head, Plan *plan, int B, int H, int W);

/* levels [B,H/4..H/32,W/4..W/32,in] -> head->logits.  dropout: NULL in inference. */
void semantic_head_forward(SemanticHead *head, const real *const levels[HEAD_BRANCHES], const Dropout *dropout, int B,
                           int H, int W);
/* head->dlogits -> dlevels (=) and the gradients of parameters (+=). */
void semantic_head_backward(SemanticHead *head, real *const dlevels[HEAD_BRANCHES],
                            const real *const levels[HEAD_BRANCHES], const Dropout *dropout, int B, int H, int W);

/* Multiply-adds of an image. */
size_t semantic_head_macs(const SemanticHead *head, int H, int W);

#endif
