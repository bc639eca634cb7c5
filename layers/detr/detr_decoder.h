/* The detector's decoder: spatially modulated co-attention (Gao et al. 2021). */
#ifndef VIT_LAYERS_DETR_DETR_DECODER_H
#define VIT_LAYERS_DETR_DETR_DECODER_H

#include "layers/detr/detr_encoder.h"
#include "layers/detr/perceptron.h"

/* The projections of PyTorch's nn.MultiheadAttention: the rows of `in` are those of q, k and v, in this order. */
typedef struct {
    Projection in, out;
} MultiHead;

typedef struct {
    MultiHead self, cross;
    FeedForward ffn;
    PostNorm norm1, norm2, norm3, norm4; /* norm4 normalises t + E, without a residual connection */
    Projection point2, point3;           /* to the offsets of the centres, and to their scales */
    char prefix[40];                     /* "transformer.decoder.layers.3." */
    size_t begin;                        /* where its tensors begin in the parameter arena */
    float *centre;                       /* [B,Q,H,2] kept: x, y in cells */
    real *z;                             /* [B,Q,H,scales] kept */
    real *qkv, *self_mix;                /* [B,Q,3,M], [B,Q,M] kept */
    real *q, *kv, *cross_mix;            /* [B,Q,M], [B,N,2,M], [B,Q,M] kept */
    float *self_lse, *cross_lse;         /* [B,H,Q] kept */
    float *out_mean, *out_rstd;          /* [B,Q] kept: of decoder.norm */
} DetrDecoderLayer;

typedef struct {
    int depth, M, H, Q, scale_type;
    int first_site; /* Dropout.site of its first dropout */
    size_t begin;   /* where its tensors begin in the parameter arena */
    DetrDecoderLayer *layers; /* [depth] */
    Perceptron point1;        /* computes the reference points, in layer 0 */
    float *queries, *dqueries;                  /* E [Q,M] */
    NormPair norm;                             /* decoder.norm */
    real *t, *other;   /* [B,Q,M] the state before layer 0; in inference the two buffers that the state alternates in */
    real *raw;         /* [B,Q,2] kept: the reference point before its sigmoid */
    float *reference;  /* [B,Q,2] kept: x, y in cells */
    real *out;         /* [L,B,Q,M] kept: decoder.norm of each layer's t; in inference only of the last one's */
    real *memory_pos;  /* [B,N,M] kept: the encoder's output plus the position embedding */
    real *te, *o, *f;  /* [B,Q,M] scratch: t + E, its norm in inference, output of a residual branch */
    real *offset;      /* [B,Q,H,2] scratch */
    real *dt, *dsum, *df, *dmix, *dte, *dq, *dpoint; /* [B,Q,M] scratch */
    real *dqkv, *dkv, *dmemory_part;                 /* [B,Q,3,M], [B,N,2,M], [B,N,M] scratch */
    real *doffset, *dz, *draw;                       /* [B,Q,H,2], [B,Q,H,scales], [B,Q,2] scratch */
    float *dcentre, *dreference;                     /* [B,Q,H,2], [B,Q,2] scratch */
} DetrDecoder;

void detr_decoder_create(DetrDecoder *d, int depth, int M, int H, int hidden, int queries, int scale_type,
                         int first_site, Params *params);
void detr_decoder_plan(DetrDecoder *d, Plan *plan, int B, Grid grid);
/* memory [B,N,M] -> out;  sizes device [B,2]: height and width of each image in pixels.  all: apply decoder.norm after
 * every layer, not only after the last. */
void detr_decoder_forward(DetrDecoder *d, const real *memory, const TokenBatch *batch, const int *sizes,
                          const Dropout *dropout, bool all);
/* dmemory [B,N,M] (=), from dout [L,B,Q,M] and from draw_boxes [B,Q,2], the gradient of raw through the boxes. */
void detr_decoder_backward(DetrDecoder *d, real *dmemory, const real *dout, const float *draw_boxes, const real *memory,
                           const TokenBatch *batch, const int *sizes, const Dropout *dropout, FinalGradients *final);
size_t detr_decoder_macs(const DetrDecoder *d, size_t N);
void detr_decoder_destroy(DetrDecoder *d);

#endif
