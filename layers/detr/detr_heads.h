/* The prediction heads of the detector: class logits and a box for each query, for the outputs of L decoder layers at
 * once, with the same weights for all layers. */
#ifndef VIT_LAYERS_DETR_DETR_HEADS_H
#define VIT_LAYERS_DETR_DETR_HEADS_H

#include "layers/detr/perceptron.h"

typedef struct {
    Projection class_embed;
    Perceptron box;
    size_t begin;
    real *logits;  /* [L,B,Q,C] kept */
    float *boxes;  /* [L,B,Q,4] kept */
    real *u;       /* [L,B,Q,4] scratch */
    real *dlogits; /* [L,B,Q,C] scratch: input of backward, which the caller fills */
    float *dboxes; /* [L,B,Q,4] scratch: likewise */
    real *du;      /* [L,B,Q,4] scratch */
    real *dout, *dbox; /* [L,B,Q,M] scratch */
    float *draw;   /* [B,Q,2] scratch */
} DetrHeads;

void detr_heads_create(DetrHeads *heads, int M, int columns, Params *params);
/* Plans for L layers of n queries each, those of all images together. */
void detr_heads_plan(DetrHeads *heads, Plan *plan, int L, size_t n);
/* out [L,n,M] and raw [n,2] -> logits, boxes. */
void detr_heads_forward(DetrHeads *heads, const real *out, const real *raw, int L, size_t n);
/* dlogits, dboxes -> dout, draw. */
void detr_heads_backward(DetrHeads *heads, const real *out, int L, size_t n);
size_t detr_heads_macs(const DetrHeads *heads, int L, int Q);

#endif
