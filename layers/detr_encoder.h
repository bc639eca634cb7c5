/* The detector's encoder: post-norm layers over the grid of C5, any attention operator that takes a mask. */
#ifndef VIT_LAYERS_DETR_ENCODER_H
#define VIT_LAYERS_DETR_ENCODER_H

#include "layers/attention/attention.h"
#include "layers/feed_forward.h"
#include "layers/final_gradients.h"
#include "layers/post_norm.h"

typedef struct {
    Attention attention;
    DetectorFrame frame; /* the attention's: where the batch's tokens lie */
    PostNorm norm1, norm2;
    FeedForward ffn;
    char prefix[PARAM_NAME_SIZE]; /* "transformer.encoder.layers.3." */
    size_t begin;                 /* where its tensors begin in the parameter arena */
} DetrEncoderLayer;

typedef struct {
    int depth, M;
    DetrEncoderLayer *layers; /* [depth] */
    real *other;              /* [B,N,M] inference: the stream's second place */
    real *f, *df, *dsum;      /* [B,N,M] scratch: what a half-layer adds, its gradient, and that of the sum */
} DetrEncoder;

/* Where the tokens of a batch lie: B images on a grid, of which image b has the first cells[b][0] rows and the first
 * cells[b][1] columns; the others are padding. */
typedef struct {
    int B;
    Grid grid;
    const int *cells; /* device [B,2] */
    const real *pos;  /* [B,N,M] */
} TokenBatch;

/* per_head: every head has a feature map and a projection of ripple's sticks of its own. */
void detr_encoder_create(DetrEncoder *e, const Config *settings, const AttentionOp *attn, int depth, int M, int heads,
                         int hidden, bool per_head, Params *params);
/* Dropouts of the encoder: the next free site. */
int detr_encoder_sites(const DetrEncoder *e);
/* For grids of up to this one, upright or on its side; *x [B,N,M] is the stream that comes in, overwritten in
 * inference. */
void detr_encoder_plan(DetrEncoder *e, Plan *plan, int B, Grid grid, real **x);
/* The stream behind the last layer. */
const real *detr_encoder_forward(DetrEncoder *e, const real *x, const TokenBatch *batch, const Dropout *dropout);
/* dx: the gradient of what forward gave on entry, of x on return; parameters (+=). */
void detr_encoder_backward(DetrEncoder *e, real *dx, const real *x, const TokenBatch *batch, const Dropout *dropout,
                           FinalGradients *final);
size_t detr_encoder_macs(DetrEncoder *e, Grid grid);
void detr_encoder_destroy(DetrEncoder *e);

#endif
