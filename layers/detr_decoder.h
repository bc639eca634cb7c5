/* The detector's decoder, spatially modulated co-attention (Gao et al. 2021), and its heads. */
#ifndef VIT_LAYERS_DETR_DECODER_H
#define VIT_LAYERS_DETR_DECODER_H

#include "layers/detr_encoder.h"

/* nn.MultiheadAttention's projections: rows q, k, v of one tensor. */
typedef struct {
    Projection in, out;
} MultiHead;

enum { MLP_LAYERS = 3 };

/* Linear layers with ReLU between them. */
typedef struct {
    Projection layers[MLP_LAYERS];
    real *hidden[MLP_LAYERS - 1], *dhidden[MLP_LAYERS - 1]; /* kept; scratch */
} PerceptronHead;

typedef struct {
    MultiHead self, cross;
    FeedForward ffn;
    PostNorm norm1, norm2, norm3;
    float *norm4_w, *norm4_dw, *norm4_b, *norm4_db; /* [M] */
    Projection point2, point3;    /* offsets of the centres; scales */
    char prefix[PARAM_NAME_SIZE]; /* "transformer.decoder.layers.3." */
    size_t begin;
    real *te, *o;             /* [B,Q,M] kept: t + E, and its norm */
    float *mean4, *rstd4;     /* [B,Q] kept */
    float *centre;            /* [B,Q,H,2] kept */
    real *z;                  /* [B,Q,H*scales] kept */
    real *qkv, *self_mix;     /* [B,Q,3,M], [B,Q,M] kept */
    real *q, *kv, *cross_mix; /* [B,Q,M], [B,N,2,M], [B,Q,M] kept */
    float *self_lse, *cross_lse; /* [B,H,Q] kept */
    float *out_mean, *out_rstd;  /* [B,Q] kept: of decoder.norm */
} DetrDecoderLayer;

typedef struct {
    int depth, M, H, Q, scale_type, first_site;
    DetrDecoderLayer *layers; /* [depth] */
    float *queries, *dqueries;                      /* E [Q,M] */
    float *norm_w, *norm_dw, *norm_b, *norm_db;     /* [M] */
    PerceptronHead point1;                          /* layer 0's */
    real *t, *other;  /* [B,Q,M] zero at first; inference: the stream's second place */
    real *raw;        /* [B,Q,2] kept: the reference point before its sigmoid */
    float *reference; /* [B,Q,2] kept: in cells */
    real *out;        /* [L,B,Q,M] kept; inference: the last layer's alone */
    real *memory_pos; /* [B,N,M] kept: the encoder's output with positions */
    real *te2, *offset, *f; /* scratch */
    real *dte, *doffset, *dz, *df, *dmix, *dqkv, *dq, *dkv, *do_, *dt, *part, *dmemory_part, *draw;
    float *dcentre, *dreference; /* scratch */
} DetrDecoder;

typedef struct {
    Projection class_embed;
    PerceptronHead box;
    real *logits;   /* [L,B,Q,C] kept */
    real *u;        /* [L,B,Q,4] scratch */
    float *boxes;   /* [L,B,Q,4] kept */
    real *dlogits;  /* [L,B,Q,C] kept: the caller's */
    float *dboxes;  /* [L,B,Q,4] kept: the caller's */
    real *du;       /* [L,B,Q,4] scratch */
    real *dout;     /* [L,B,Q,M] scratch */
    real *dpart;    /* [L,B,Q,M] scratch */
    float *draw;    /* [B,Q,2] scratch */
} DetrHeads;

#endif
