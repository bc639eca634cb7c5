/* Attention operators.  One maps [B,N,M] to [B,N,M], projections included, so that convolutional mixers fit too.
 * Adding one: docs/design.md, "Adding an operator". */
#ifndef VIT_LAYERS_ATTENTION_H
#define VIT_LAYERS_ATTENTION_H

#include <stdbool.h>

#include "core/config.h"
#include "core/params.h"
#include "core/plan.h"
#include "kernels/kernels.h"

typedef struct Attention Attention;
typedef struct AttentionOp AttentionOp;

struct AttentionOp {
    const char *name, *summary;
    /* The groups of settings that the operator reads, NULL-terminated; NULL: none.  Operators may share a group.  Those
     * of grid_settings need a grid that is the same for every batch: a detector has none of them. */
    const ConfigGroup *const *settings, *const *grid_settings;
    bool needs_grid;     /* every token has a place on the grid: no class token */
    bool no_qkv_bias;    /* in none of its blocks, given away or not */
    bool needs_positive; /* feature maps that can be negative will not do */
    bool takes_mask;     /* padding, and a grid that changes from batch to batch: the detector's encoder */
    size_t state_size;
    /* An operator that gives its place to another one in some blocks says here to which; itself where it does not. */
    const AttentionOp *(*in_block)(const Config *settings, int block);
    /* The class token joins in front of the others before this block, and has no position embedding.  NULL: before the
     * first block, and it has one. */
    int (*class_block)(const Config *settings);
    /* Rejects, with config_reject, settings that this block's width, heads or grid cannot have; before declare.  NULL:
     * none. */
    void (*check)(const Attention *a);
    void (*declare)(Attention *a, Params *params);
    void (*plan)(Attention *a, Plan *plan, int B);
    /* Draws the buffers that are new in every training step, the same for all its micro-batches, and uploads them to
     * the parameters in view.  NULL: there are none. */
    void (*draw)(const Attention *a, uint64_t seed, uint32_t step);
    /* y [B,N,M], x [B,N,M]: x is kept by the caller until backward. */
    void (*forward)(const Attention *a, real *y, const real *x, int B);
    /* dx (=), may be dy; parameters (+=). */
    void (*backward)(const Attention *a, real *dx, const real *dy, const real *x, int B);
    size_t (*macs)(const Attention *a); /* multiply-adds of one image, forward */
    /* The part of macs that Fourier transforms and the mixing of their results take, which many papers leave out.  NULL:
     * none. */
    size_t (*transform_macs)(const Attention *a);
    const char *(*path)(const Attention *a); /* the algorithm taken, for --describe; NULL: there is only one */
    /* Row `query` of the [N,N] matrix that head `head` applied to the values of image b in the last forward pass:
     * host weights [N], for pictures.  NULL: the operator has no such matrix. */
    void (*weights)(const Attention *a, float *weights, int b, int head, int query);
    /* The part of that row that is due to the distance alone: the weight of every token before q and k had a say, or
     * what a convolution of v adds to the row.  NULL: position has no weights of its own. */
    void (*spatial)(const Attention *a, float *weights, int b, int head, int query);
    /* How far the spatial weights of the last forward pass are from weights that halve from ring to ring: the mean
     * Jensen-Shannon divergence over B images, tokens and heads, in nats (the ripple paper's Figure 3).  NULL: none. */
    double (*divergence)(const Attention *a, int B);
};

/* For AttentionOp.settings. */
#define ATTENTION_SETTINGS(...) (const ConfigGroup *const[]){__VA_ARGS__, NULL}

/* What a detector's encoder gives to the operator of a layer, before each forward and backward pass. */
typedef struct {
    bool per_head;     /* every head has a feature map and a projection of ripple's sticks of its own */
    const real *pos;   /* [B,N,M] q and k are made from x + pos, v from x */
    const int *cells;  /* [B,2] of MaskedAttention: which tokens are no padding */
    Dropout dropout;   /* of softmax's weights */
} DetectorFrame;

struct Attention {
    const AttentionOp *op;
    const Config *settings; /* outlives the model: what a user can say, the same for all blocks */
    char prefix[PARAM_NAME_SIZE]; /* "blocks.3.attn." */
    int block;                    /* 3; in a hierarchy all stages' blocks are counted */
    int N, M, H, D;               /* tokens, width, heads, head width */
    Grid grid;                    /* of the tokens; one more with a class token */
    bool qkv_bias;
    void *state;
    const DetectorFrame *detector; /* in a detector's encoder; elsewhere NULL */
};

/* The table, NULL-terminated. */
extern const AttentionOp *const attention_operators[];
extern const AttentionOp conv_op, sepconv_op; /* of stages that convolve */

/* Adds the setting groups of all operators to a program's config, which has the setting `attn`; of a detector those of
 * the operators that take a mask. */
void attention_add_settings(Config *config, bool detector);
/* The groups of this operator count in this run. */
void attention_use_settings(Config *config, const AttentionOp *op);

/* The block before which a class token joins the others. */
int attention_class_block(const AttentionOp *op, const Config *settings);

/* Prepares one block of the operator, whose names begin with `prefix` ("blocks.3."); rejects settings that the operator
 * cannot work with. */
void attention_create(Attention *a, const AttentionOp *op, const Config *settings, const char *prefix, int block, Grid grid,
                      bool class_token, int M, int heads);
/* The same for a layer of a detector's encoder; the grid comes with attention_set_grid, before op->plan (the largest
 * one) and before each batch (its own). */
void attention_create_detector(Attention *a, const AttentionOp *op, const Config *settings, const DetectorFrame *frame,
                               int layer, int M, int heads);
void attention_set_grid(Attention *a, Grid grid);
void attention_destroy(Attention *a);

#endif
