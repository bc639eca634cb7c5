/* A stage: the pre-norm blocks that share one token grid and one width.
 * An isotropic vision transformer is one of them. */
#ifndef VIT_LAYERS_STAGE_H
#define VIT_LAYERS_STAGE_H

#include "layers/attention/attention.h"
#include "layers/depthwise.h"
#include "layers/final_gradients.h"
#include "layers/layer_norm.h"
#include "layers/mlp.h"

/* The residual stream x at one of a stage's 2*depth + 1 stations, and its norm h, which the next half-block reads.
 * With a convolutional position embedding a block begins with x = in + conv(in). */
typedef struct {
    int N;        /* tokens here: one more from the class token on */
    size_t begin; /* of its parameters in the arena; the next half-block's follow */
    bool convolves;
    DepthwiseLayer conv;
    NormPair norm;
    real *in;           /* [B,N,M], where there is a convolution */
    real *x, *h;        /* [B,N,M] */
    float *mean, *rstd; /* [B,N] */
} Station;

typedef struct {
    Attention attention;
    Mlp mlp;
    char prefix[PARAM_NAME_SIZE]; /* "blocks.3.", "stages.1.blocks.3." */
} Block;

/* What all stages of a model share: scratch [B,N,M] of the largest, and what the drop path draws. */
typedef struct {
    real *f;             /* what a half-block adds to the stream */
    real *sum;           /* the stream before a class token that joins late */
    real *dx, *dh, *df;  /* gradients of the stream, of a half-block's input and of its output */
    float *keep;         /* [2*blocks,B] drop path: 0 or 1/(1 - rate) */
} Stream;

typedef struct {
    int dim, depth, heads;
    float mlp_ratio;
    const AttentionOp *attn;
} StageConfig;

/* The first members are set before stage_declare. */
typedef struct {
    StageConfig config;
    const Config *settings; /* the operator's, and whatever else the model has */
    Grid grid;
    int first;                       /* blocks in the stages before */
    char prefix[PARAM_NAME_SIZE / 2]; /* "", "stages.1." */
    bool class_token, position_conv, mlp_conv;
    bool drops;        /* there is a drop path */
    bool recompute;    /* the backward pass makes a block's activations again from its input */
    bool last;         /* of the model */
    float residual_gain; /* of the first values of the weights that write to the stream */
    Stream *stream;

    int N; /* tokens at the end */
    float *cls, *dcls; /* [M]; the model declares it */
    Block *blocks;     /* [depth] */
    Station *stations; /* [2*depth + 1]: 2i before block i's attention, 2i+1 before its MLP, the last at the end */
} Stage;

void stage_declare(Stage *stage, Params *params);
void stage_plan(Stage *stage, Plan *plan, int B);

/* Where the embedding puts the stream [B,N of the first station,M]. */
real *stage_input(const Stage *stage);
/* The norm of the stream at the end [B,N,M]. */
const real *stage_output(const Stage *stage);

void stage_forward(Stage *stage, int B, bool drop);

/* stream->dh, the gradient of the output -> stream->dx, the gradient of the input; parameters (+=).
 * Overwrites dh and df. */
void stage_backward(Stage *stage, int B, bool drop, FinalGradients *final);

/* Multiply-adds of one image; at a station, those of its convolution. */
size_t stage_macs(const Stage *stage);
static inline size_t station_macs(const Station *s) { return s->convolves ? depthwise_macs(&s->conv.shape) : 0; }

void stage_destroy(Stage *stage);

#endif
