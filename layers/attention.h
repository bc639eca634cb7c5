/* Attention operators.  An operator maps [B,N,M] to [B,N,M] and includes its projections, so that convolutional mixers
 * are operators too.
 * Adding one: docs/developers/adding.md. */
#ifndef VIT_LAYERS_ATTENTION_H
#define VIT_LAYERS_ATTENTION_H

#include <stdbool.h>
#include <stdint.h>

#include "core/config/config.h"
#include "training/params.h"
#include "training/plan.h"
#include "layers/projection.h"

typedef struct Attention Attention;
typedef struct AttentionOp AttentionOp;

/* Columns of log.csv for statistics of an operator in training: each is the mean over the images of the epoch so far,
 * over their tokens and heads, and over the blocks that have the column. */
enum { ATTENTION_COLUMNS = 3, ATTENTION_PARTS = 64 };
typedef struct {
    const char *names[ATTENTION_COLUMNS + 1]; /* NULL-terminated */
    double unit;
    /* Adds the sums of the columns' values over B images, tokens and heads, in multiples of `unit`, to a->sums.  Called
     * once for each micro-batch of a step, while everything that the forward pass keeps is in memory. */
    void (*measure)(const Attention *a, int B);
} AttentionColumns;

struct AttentionOp {
    const char *name, *summary, *paper; /* begins like ConfigChoice */
    /* The groups of settings that the operator reads, NULL-terminated, or NULL for none.  Operators may share a group.
     * The groups in grid_settings need a grid that is the same for every batch and are not offered in a detector. */
    const ConfigGroup *const *settings, *const *grid_settings;
    bool off_grid;       /* supports tokens that are not on the grid, such as a class token, for which other operators
                          * need class_block */
    bool no_qkv_bias;    /* no block has biases of q, k and v, not even a block for which in_block chooses another
                          * operator */
    bool needs_positive; /* cannot use a feature map with negative features */
    bool images_only;    /* rejects a grid of several frames (clips) */
    bool takes_mask;     /* supports padding and a grid that changes from batch to batch (the detector's encoder) */
    bool any_grid;       /* supports a grid of images that changes from batch to batch (attention_set_grid); its parameters
                          * stay as they are, those that have a value for every token on the model's own grid */
    bool drops_weights;  /* its weights can have dropout (attn_dropout) */
    size_t state_size;   /* bytes of Attention.state */
    /* Width of a head's queries and keys in qkv.  NULL: that of its values. */
    int (*key_width)(const Attention *a);
    /* The operator of this block, where another one is used in some blocks.  NULL: it is the same in all. */
    const AttentionOp *(*in_block)(const Config *settings, int block);
    /* The block before which the class token is added in front of the others, without a position embedding.  NULL: it
     * is added before the first block, with a position embedding. */
    int (*class_block)(const Config *settings);
    /* Rejects, with config_reject, settings that are impossible with this block's width, heads or grid.  Called before
     * declare.  NULL: there are none. */
    void (*check)(const Attention *a);
    /* The parameters and the activations, besides those of Attention.frame.  NULL: there are none.  Scratch is valid
     * until plan returns. */
    void (*declare)(Attention *a, Params *params);
    /* Declares frame.qkv and frame.proj if the operator's are special.  NULL: they are the usual ones. */
    void (*declare_qkv)(Attention *a, Params *params);
    void (*plan)(Attention *a, Plan *plan, int B);
    /* The name of a setting whose value requires tables for one grid; NULL: there is none.  For operators with
     * any_grid; NULL: none of their settings does. */
    const char *(*bound_to_grid)(const Attention *a);
    /* Updates everything that depends on Attention.grid after a change of the grid.  Called after declare, before plan
     * and between batches.  NULL: nothing else depends on the grid. */
    void (*follow_grid)(Attention *a);
    /* Draws the random buffers of a training step, the same for all its micro-batches, and uploads them to the
     * parameters.  NULL: there are none. */
    void (*draw)(const Attention *a, uint64_t seed, uint32_t step);
    /* An operator on queries, keys and values has the first two of these functions, which come between the projections
     * of Attention.frame: mix from qkv_act, then dqkv (=) from dmix.  Any other operator has the last two, which
     * include its projections: y, x [B,N,M]; dx (=), which may be dy.  Both kinds add to the parameters' gradients
     * (+=). */
    void (*mix_forward)(const Attention *a, int B);
    void (*mix_backward)(const Attention *a, int B);
    void (*forward)(const Attention *a, real *y, const real *x, int B);
    void (*backward)(const Attention *a, real *dx, const real *dy, const real *x, int B);
    size_t (*macs)(const Attention *a); /* multiply-adds of one image, forward, without the projections of the frame */
    /* The part of macs for Fourier transforms and for mixing their results, which many papers leave out. NULL: none. */
    size_t (*transform_macs)(const Attention *a);
    const char *(*path)(const Attention *a); /* name of the chosen algorithm, for --describe; NULL: there is only one */
    /* Row `query` of the matrix [N,N] that head `head` applied to the values of image b in the last forward pass, for
     * pictures: host weights [N].  NULL: the operator has no such matrix. */
    void (*weights)(const Attention *a, float *weights, int b, int head, int query);
    /* The part of that row that depends on the tokens' positions but not on q.k: spatial weights, or the kernel of a
     * convolution of v.  NULL: there is none. */
    void (*spatial)(const Attention *a, float *weights, int b, int head, int query);
    /* The columns of log.csv that this block measures.  NULL: there are none. */
    const AttentionColumns *(*columns)(const Attention *a);
};

/* Makes a list for AttentionOp.settings. */
#define ATTENTION_SETTINGS(...) (const ConfigGroup *const[]){__VA_ARGS__, NULL}

/* Further inputs of an operator in a detector's encoder, set before each forward and backward pass. */
typedef struct {
    bool per_head;     /* each head has its own feature map and its own projection for ripple's sticks */
    const real *pos;   /* [B,N,M] position embedding: q and k are projections of x + pos, v of x */
    const int *cells;  /* [B,2] rows and columns of the grid without padding, as in MaskedAttention */
    Dropout dropout;   /* of the weights of softmax attention */
} DetectorFrame;

/* The projections before and after an operator on queries, keys and values.
 *   x [B,N,M] -> qkv [B,N,3,H,D] -> (the operator) -> mix [B,N,H,D] -> y [B,N,M]
 * With key_width, q and k have that width in place of D. In a detector q and k are projections of x + pos.  pos is not
 * a parameter, so that only the gradients of the weights of q and k depend on it. */
typedef struct {
    Projection qkv, proj;
    real *qkv_act, *mix;   /* kept */
    real *dqkv, *dmix;     /* scratch */
    real *with_pos;        /* [B,N,M] scratch: x + pos, in a detector */
} QkvFrame;

/* The place of a block in a model. */
typedef struct {
    int block;                         /* its index, counted over all stages */
    int stage, stages, block_in_stage; /* index of the stage, how many stages there are, the block's index in its own */
    int time_kernel, conv_time_kernel; /* size in time of convolutions and windows; 1 where there is one frame */
} BlockPlace;

struct Attention {
    const AttentionOp *op;
    const Config *settings; /* the program's settings, which outlive the model */
    char prefix[PARAM_NAME_SIZE]; /* "blocks.3.attn." */
    BlockPlace place;
    int N, M, H, D;               /* tokens, width, heads, head width */
    Grid grid;                    /* of the tokens other than a class token */
    bool changes;                 /* it changes from batch to batch: attention_set_grid has been called */
    bool qkv_bias;
    bool drops;                   /* its weights have dropout in training */
    QkvFrame frame;               /* unless the operator has projections of its own */
    void *state;
    Projection *last;             /* the layer whose output is y and whose backward pass reads dy, or NULL */
    uint64_t *sums; /* device [ATTENTION_PARTS,ATTENTION_COLUMNS]: the sums of the columns, spread over the parts, which
                       are added up by the reader; NULL: nothing is measured */
    Dropout dropout; /* of the weights, for the current pass: rate 0 unless the operator drops_weights */
    const DetectorFrame *detector; /* NULL unless in a detector's encoder */
    const struct CausalFrame *causal; /* NULL unless in a density model (layers/density/causal_attention.h) */
};

/* All operators, NULL-terminated. */
extern const AttentionOp *const attention_operators[];
extern const AttentionOp conv_op, sepconv_op; /* VitSettings.conv_block */

/* Adds the settings of all operators to a program's config, which must have the setting `attn`; for a detector's encoder
 * only those of operators with takes_mask, for pictures of any size those of operators with any_grid. */
typedef enum { ATTENTION_ONE_GRID, ATTENTION_DETECTOR, ATTENTION_ANY_GRID, ATTENTION_USES } AttentionUse;
void attention_add_settings(Config *config, AttentionUse use);
/* Marks the settings of this operator as used in this run. */
void attention_use_settings(Config *config, const AttentionOp *op);

/* The block before which the class token is added. */
int attention_class_block(const AttentionOp *op, const Config *settings);

/* The value of setting `name`, a list with one number for each stage or one for all, for this block's stage; rejects
 * lists of other lengths. */
int attention_stage_number(const Attention *a, const char *name, const ConfigInts *list);

/* Creates the operator for one block, whose tensors have names that begin with `prefix` ("blocks.3."), and which has
 * `front` tokens in front of the grid.  Rejects settings that the operator does not support. */
void attention_create(Attention *a, const AttentionOp *op, const Config *settings, const char *prefix, BlockPlace place,
                      Grid grid, int front, int M, int heads);
/* Creates the attention of a layer of a detector's encoder, whose grid changes. */
void attention_create_detector(Attention *a, const AttentionOp *op, const Config *settings, const DetectorFrame *frame,
                               int layer, int M, int heads);
void attention_destroy(Attention *a);
/* Rejects an attention whose grid cannot change: an operator without any_grid, settings that ask for tables of one grid,
 * a class token, clips. */
void attention_check_any_grid(const Attention *a);
/* Changes the grid, for operators with any_grid and in a detector's encoder: once after attention_declare, to the
 * largest grid, for which attention_plan then plans, and before each batch to the batch's grid.  That may be any grid
 * whose rows and columns, or columns and rows, do not exceed those of the largest.  There is no class token then, and
 * one frame. */
void attention_set_grid(Attention *a, Grid grid);

/* `a` must not be moved after this call: parameters and plan point into it. */
void attention_declare(Attention *a, Params *params);
void attention_plan(Attention *a, Plan *plan, int B);
/* y, x [B,N,M].  The caller keeps x until backward. */
void attention_forward(const Attention *a, real *y, const real *x, int B);
/* Writes dx (=), which may be dy, and adds to the parameters' gradients (+=). */
void attention_backward(const Attention *a, real *dx, const real *dy, const real *x, int B);
size_t attention_macs(const Attention *a); /* multiply-adds of one image, forward */

/* Computes a row of softmax attention for a picture: host weights [L] (=) = softmax over l of q.k_l / sqrt D, where on
 * the device q is [D] and k_l are the D numbers from k + l row on. */
void attention_softmax(float *weights, const real *q, const real *k, int L, size_t row, int D);

/* Row `query` of softmax(q k^T / sqrt D) of qkv [B,N,3,H,D]: host weights [N], for AttentionOp.weights. */
void attention_qkv_row(const real *qkv, const Attention *a, float *weights, int b, int head, int query);

/* Sizes for B images: the number of tokens; the bytes of a tensor [B,N,M] and of floats [B,H,N], such as lse; the
 * kernels' description of queries, keys and values. */
static inline size_t attention_tokens(const Attention *a, int B) { return (size_t)B * (size_t)a->N; }
static inline size_t attention_bytes(const Attention *a, int B) {
    return attention_tokens(a, B) * (size_t)a->M * sizeof(real);
}
static inline size_t attention_head_floats(const Attention *a, int B) {
    return attention_tokens(a, B) * (size_t)a->H * sizeof(float);
}
static inline AttentionShape attention_shape(const Attention *a, int B) {
    return (AttentionShape){B, a->N, a->H, a->D};
}
/* Multiply-adds over all pairs of tokens, for scores and weighted sums.  For AttentionOp.macs. */
size_t attention_pair_macs(const Attention *a);

#endif
