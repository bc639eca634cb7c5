/* The detector's encoder: post-norm layers over the grid of C5, with any attention operator that supports padding. */
#ifndef VIT_LAYERS_DETR_DETR_ENCODER_H
#define VIT_LAYERS_DETR_DETR_ENCODER_H

#include "layers/attention.h"
#include "layers/detr/feed_forward.h"
#include "layers/final_gradients.h"
#include "layers/detr/post_norm.h"

typedef struct {
    Attention attention;
    DetectorFrame frame; /* the inputs of the attention that change from batch to batch */
    PostNorm norm1, norm2;
    FeedForward ffn;
    char prefix[PARAM_NAME_SIZE]; /* "transformer.encoder.layers.3." */
    size_t begin;                 /* where its tensors begin in the parameter arena */
} DetrEncoderLayer;

typedef struct {
    int depth, M;
    DetrEncoderLayer *layers; /* [depth] */
    real *other;              /* [B,N,M] second buffer of the residual stream in inference */
    real *f, *df, *dsum;      /* [B,N,M] scratch: output of a residual branch, its gradient, gradient of the sum */
} DetrEncoder;

/* The token grid of a batch of B images.  Image b has its first cells[b][0] rows and first cells[b][1] columns; the
 * rest is padding. */
typedef struct {
    int B;
    Grid grid;
    const int *cells; /* device [B,2] */
    const real *pos;  /* [B,N,M] position embedding */
} TokenBatch;

/* per_head: each head has its own feature map and its own projection for ripple's sticks. */
void detr_encoder_create(DetrEncoder *e, const Config *settings, const AttentionOp *attn, int depth, int M, int heads,
                         int hidden, bool per_head, Params *params);
/* The number of dropouts in the encoder, which is also the first Dropout.site that the decoder can use. */
int detr_encoder_sites(const DetrEncoder *e);
/* Plans for all grids that fit into this one or into its transpose.  *x [B,N,M] is the input, which inference
 * overwrites. */
void detr_encoder_plan(DetrEncoder *e, Plan *plan, int B, Grid grid, real **x);
/* Returns the output [B,N,M] of the last layer. */
const real *detr_encoder_forward(DetrEncoder *e, const real *x, const TokenBatch *batch, const Dropout *dropout);
/* dx [B,N,M] (updated): the gradient of forward's output on entry, of x on return;  parameters (+=). */
void detr_encoder_backward(DetrEncoder *e, real *dx, const real *x, const TokenBatch *batch, const Dropout *dropout,
                           FinalGradients *final);
size_t detr_encoder_macs(DetrEncoder *e, Grid grid);
void detr_encoder_destroy(DetrEncoder *e);

#endif
