/* The detector's decoder: spatially modulated co-attention (Gao et al. 2021). */
#ifndef VIT_LAYERS_DETR_DECODER_H
#define VIT_LAYERS_DETR_DECODER_H

#include "layers/detr_encoder.h"
#include "layers/perceptron.h"

/* nn.MultiheadAttention's projections: `in` has the rows of q, k, v, in this order. */
typedef struct {
    Projection in, out;
} MultiHead;

typedef struct {
    MultiHead self, cross;
    FeedForward ffn;
    PostNorm norm1, norm2, norm3, norm4; /* norm4: of t + E, no stream */
    Projection point2, point3;           /* offsets of the centres; scales */
    char prefix[40];                     /* "transformer.decoder.layers.3." */
    size_t begin;                        /* where its tensors begin in the parameter arena */
    float *centre;                       /* [B,Q,H,2] kept: in cells */
    real *z;                             /* [B,Q,H,scales] kept */
    real *qkv, *self_mix;                /* [B,Q,3,M], [B,Q,M] kept */
    real *q, *kv, *cross_mix;            /* [B,Q,M], [B,N,2,M], [B,Q,M] kept */
    float *self_lse, *cross_lse;         /* [B,H,Q] kept */
    float *out_mean, *out_rstd;          /* [B,Q] kept: of decoder.norm */
} DetrDecoderLayer;

typedef struct {
    int depth, M, H, Q, scale_type;
    int first_site; /* of its dropouts */
    size_t begin;   /* where its tensors begin in the parameter arena */
    DetrDecoderLayer *layers; /* [depth] */
    Perceptron point1;        /* layer 0's: the reference point */
    float *queries, *dqueries;                  /* E [Q,M] */
    NormPair norm;                             /* decoder.norm */
    real *t, *other;   /* [B,Q,M] the stream at first; inference: its two places */
    real *raw;         /* [B,Q,2] kept: the reference point before its sigmoid */
    float *reference;  /* [B,Q,2] kept: in cells */
    real *out;         /* [L,B,Q,M] kept: decoder.norm of each layer's t; inference: of the last one's alone */
    real *memory_pos;  /* [B,N,M] kept: the encoder's output with positions */
    real *te, *o, *f;  /* [B,Q,M] scratch: t + E, its norm in inference, what a branch adds */
    real *offset;      /* [B,Q,H,2] scratch */
    real *dt, *dsum, *df, *dmix, *dte, *dq, *dpoint; /* [B,Q,M] scratch */
    real *dqkv, *dkv, *dmemory_part;                 /* [B,Q,3,M], [B,N,2,M], [B,N,M] scratch */
    real *doffset, *dz, *draw;                       /* [B,Q,H,2], [B,Q,H,scales], [B,Q,2] scratch */
    float *dcentre, *dreference;                     /* [B,Q,H,2], [B,Q,2] scratch */
} DetrDecoder;

void detr_decoder_create(DetrDecoder *d, int depth, int M, int H, int hidden, int queries, int scale_type,
                         int first_site, Params *params);
void detr_decoder_plan(DetrDecoder *d, Plan *plan, int B, Grid grid);
/* memory [B,N,M] -> out;  sizes device [B,2]: own height and width in pixels.  all: decoder.norm behind every layer. */
void detr_decoder_forward(DetrDecoder *d, const real *memory, const TokenBatch *batch, const int *sizes,
                          const Dropout *dropout, bool all);
/* dmemory (=) from dout [L,B,Q,M] and draw_boxes [B,Q,2], the boxes' part of raw's gradient. */
void detr_decoder_backward(DetrDecoder *d, real *dmemory, const real *dout, const float *draw_boxes, const real *memory,
                           const TokenBatch *batch, const int *sizes, const Dropout *dropout, FinalGradients *final);
size_t detr_decoder_macs(const DetrDecoder *d, size_t N);
void detr_decoder_destroy(DetrDecoder *d);

#endif
