/* A stage: consecutive pre-norm blocks with the same tokens and width, whatever their attention.  A plain vision
 * transformer and a density model have one stage, a hierarchical vision transformer has several. */
#ifndef VIT_LAYERS_STAGE_H
#define VIT_LAYERS_STAGE_H

#include "layers/attention.h"
#include "kernels/tokens/tokens.h"
#include "layers/depthwise.h"
#include "layers/final_gradients.h"
#include "layers/layer_norm.h"
#include "layers/mlp.h"

/* A half-block is the attention or the MLP of a block.  A station is a point before a half-block or after the last one:
 * the residual stream x there, and its norm h, the input of the next half-block.  A stage has 2*depth + 1 stations.
 * With a convolutional position embedding a block begins with x = in + conv(in).  The last station of a stage may have
 * no norm. */
typedef struct {
    int N;        /* tokens: more after those in front of the grid were added */
    size_t begin; /* index of its first parameter in the arena; the next half-block's parameters follow */
    bool convolves;
    DepthwiseLayer conv;
    bool bare; /* no norm: the stream itself is the stage's output */
    NormLayer norm;
    real *in;    /* [B,N,M], if there is a convolution */
    real *x, *h; /* [B,N,M] */
} Station;

typedef struct {
    Attention attention;
    Mlp mlp;
    char prefix[PARAM_NAME_SIZE]; /* "blocks.3.", "stages.1.blocks.3." */
} Block;

/* Memory that all stages of a model share: scratch [B,N,M] of the largest stage, and the factors of drop path. */
typedef struct {
    real *f;             /* output of a half-block */
    real *sum;           /* the stream before the class token, if that is added in a later block */
    real *dx, *dh, *df;  /* gradients of the stream, of a half-block's input and of its output */
    float *keep;         /* [2*blocks,B] factor of each half-block and image: 0 or 1/(1 - rate) */
    Dropout dropout;     /* of this step, with site SITE_TOKENS; rate 0: none */
    Dropout weights;     /* dropout of attention's weights in this step, with the site of the first block */
} Stream;

/* Plans the scratch: `bytes` for a tensor of the largest stage.  `sum`: a later block adds the class token; `scales`: a
 * half-block's gradient differs from that of the stream, through drop path or dropout. */
void stream_plan(Stream *stream, Plan *plan, size_t bytes, bool sum, bool scales);

/* Dropout.site: SITE_TOKENS is that of the first stage's input.  The following ones are those of the blocks, counted
 * over all stages: each has one for its attention's output, one for the MLP's hidden layer if that has dropout, and one
 * for the MLP's output. */
enum { SITE_TOKENS, SITES_OF_BLOCK = 3 };

/* The site of the input of stage i > 0, in a model with `depth` blocks whose hidden layers have dropout. */
static inline int later_tokens_site(int depth, int i) { return SITES_OF_BLOCK * depth + i; }

/* The site of the attention weights of a block, counted over all of a model's `stages` stages and `depth` blocks. */
static inline int weights_site(int depth, int stages, int block) { return later_tokens_site(depth, stages) + block; }

typedef struct {
    int dim, depth, heads;
    float mlp_ratio;
    const AttentionOp *attn;
} StageConfig;

/* The caller sets the members up to `stream` before stage_declare. */
typedef struct {
    StageConfig config;
    const Config *settings; /* all settings of the program, with those of the operator */
    Grid grid;                       /* of its tokens; a sequence is one row */
    int index, stages;               /* index of this stage, and number of stages */
    int first;                       /* number of blocks in the previous stages */
    char prefix[PARAM_NAME_SIZE / 2];      /* "", "stages.1." */
    char norm_prefix[PARAM_NAME_SIZE / 2]; /* of the last station's norm, */
    const char *norm_name;                 /* and its name; NULL: "norm" */
    bool bare_end;                         /* the last station has no norm */
    bool norm_beside;                      /* the next stage reads the stream; the norm is only an output */
    float norm_eps, end_eps;               /* eps of the norms of its blocks, and of the last station */
    int time_kernel, conv_time_kernel;     /* size in time of convolutions: 1 for images */
    FrontTokens front; /* the class token, which some operators add in a later block; the model declares it */
    bool position_conv, mlp_conv, mlp_relu, mlp_sigmoid;
    bool drops_weights;    /* dropout acts on attention's weights */
    bool without_qkv_bias; /* attention has no biases of queries, keys and values */
    bool normed_mlp;   /* the norm before an MLP replaces the stream, and the MLP adds to it */
    bool drops;        /* drop path is used */
    bool drops_hidden; /* dropout acts on the MLPs' hidden layers, too */
    bool recompute;    /* the backward pass computes a block's activations again from its input */
    bool last;         /* this is the model's last stage */
    bool norm_unused;  /* the last station's norm is declared, but the stage's output is the stream */
    float residual_gain; /* factor on the initial weights of the last layer of each half-block */
    const struct CausalFrame *causal; /* shared data of the attentions of a density model, otherwise NULL */
    Stream *stream;

    int N; /* tokens at the last station */
    Block *blocks;     /* [depth] */
    Station *stations; /* [2*depth + 1]: 2i before block i's attention, 2i+1 before its MLP, the last at the end */
} Stage;

void stage_declare(Stage *stage, Params *params);
void stage_plan(Stage *stage, Plan *plan, int B);

/* From now on every station has N tokens.  B N must not exceed the planned number: a plan for a few long sequences is
 * also enough for many short ones. */
void stage_set_tokens(Stage *stage, int N);

/* From now on the tokens are on this grid, which the attention must support (attention_set_grid); parameters do not
 * change.  Before stage_plan it is called with the largest grid. */
void stage_set_grid(Stage *stage, Grid grid);

/* The stage's input [B,N of the first station,M], which the caller writes. */
real *stage_input(const Stage *stage);
/* The stage's output [B,N,M]: the stream at the last station, or its norm; and the input of the next stage, which is
 * the same unless norm_beside is set. */
const real *stage_output(const Stage *stage);
const real *stage_stream(const Stage *stage);

/* Makes `slot` a second pointer to the output. */
void stage_output_alias(const Stage *stage, Plan *plan, void *slot);

/* `drop`: with drop path and dropout. */
void stage_forward(Stage *stage, int B, bool drop);

/* Goes from stream->dh, the gradient of the output, and with norm_beside stream->dx, that of what the next stage
 * reads, to stream->dx, the gradient of the input;  parameters (+=).  Overwrites stream->dh and stream->df. */
void stage_backward(Stage *stage, int B, bool drop, FinalGradients *final);

/* Multiply-adds of one image's forward pass: of the whole stage, and of a station's convolution. */
size_t stage_macs(const Stage *stage);
static inline size_t station_macs(const Station *s) { return s->convolves ? depthwise_macs(&s->conv.shape) : 0; }

void stage_destroy(Stage *stage);

#endif
