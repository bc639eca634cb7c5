/* Attention operators.  One maps [B,N,M] to [B,N,M], projections included, so that convolutional mixers fit too.
 * Adding one is a file that ends in a const AttentionOp, a line in operators.c, and a fixture. */
#ifndef VIT_LAYERS_ATTENTION_H
#define VIT_LAYERS_ATTENTION_H

#include <stdbool.h>

#include "core/params.h"
#include "core/plan.h"
#include "layers/projection.h"

/* What a user can say about attention: the same for all blocks. */
typedef struct {
    const char *attn; /* operator's name */
    int heads;
    const char *feature_map;
    const char *relative;
    int r_max;
    float tau;
    int ripple_layers;
    const char *ripple_algo;
    int convit_local_layers;
    int focused_p;
    int landmarks; /* to a side of nystrom's and soft's grid of them */
    float castling_mask; /* in training: the smallest weight of its softmax branch; 0: no branch */
    const char *rpe;          /* none (or NULL), shared, heads */
    const char *sparse_heads; /* alternate, union, split */
    int sparse_stride, sparse_c;
    int lisa_patterns, lisa_kernel; /* E; the side of a local window, 0: global */
    const char *lisa_fft, *lisa_algo;
    int inception_heads; /* that attend; 0: half of them */
    bool per_head; /* every head has a feature map and a projection of ripple's sticks of its own */
} AttentionConfig;

typedef struct Attention Attention;

typedef struct {
    const char *name, *summary;
    bool needs_grid;     /* every token has a place on the grid: no class token */
    bool no_qkv_bias;    /* in none of its blocks, given away or not */
    bool needs_positive; /* feature maps that can be negative will not do */
    bool takes_relative; /* relative positions other than `none` */
    bool takes_rpe;      /* relative position bias */
    bool takes_mask;     /* padding, and a grid that changes from batch to batch: the detector's encoder */
    size_t state_size;
    /* An operator that gives its place to another one in some blocks says here to which. */
    const char *(*in_block)(const AttentionConfig *config, int block);
    /* The class token joins in front of the others before this block, and has no position embedding.  NULL: before the
     * first block, and it has one. */
    int (*class_block)(const AttentionConfig *config);
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
} AttentionOp;

struct Attention {
    const AttentionOp *op;
    AttentionConfig config;
    char prefix[PARAM_NAME_SIZE]; /* "blocks.3.attn." */
    int block;                    /* 3; in a hierarchy all stages' blocks are counted */
    int N, M, H, D;               /* tokens, width, heads, head width */
    Grid grid;                    /* of the tokens; one more with a class token */
    bool qkv_bias;
    void *state;
    /* In a detector's encoder, whoever calls says before each forward and backward pass what the batch is. */
    bool detector;     /* nn.MultiheadAttention's names, positions in q and k */
    const real *pos;   /* [B,N,M] q and k are made from x + pos, v from x */
    const int *cells;  /* [B,2] of MaskedAttention: which tokens are no padding */
    Dropout dropout;   /* of softmax's weights */
};

/* The table, NULL-terminated, and a look-up that returns NULL for an unknown name. */
extern const AttentionOp *const attention_operators[];
const AttentionOp *attention_find(const char *name);
const char *const *attention_names(int *count);

/* Prepares the operator of one block, whose names begin with `prefix` ("blocks.3."); dies (usage) on settings the
 * operator cannot work with. */
void attention_create(Attention *a, const AttentionConfig *config, const char *prefix, int block, Grid grid,
                      bool class_token, int M);
/* The same for a layer of a detector's encoder; the grid comes with attention_set_grid, before op->plan (the largest
 * one) and before each batch (its own). */
void attention_create_detector(Attention *a, const AttentionConfig *config, int layer, int M);
void attention_set_grid(Attention *a, Grid grid);
void attention_destroy(Attention *a);

/* == What the operators on queries, keys and values share ======================================================== */

/* x -> qkv [B,N,3,H,D] -> (the operator) -> mix [B,N,H,D] -> y.  In a detector q and k are made from x + pos; since pos
 * is no parameter, dx is the same, and the weights of q and k alone see x + pos. */
typedef struct {
    Projection qkv, proj;
    real *qkv_act, *mix;   /* kept */
    real *dqkv, *dmix;     /* scratch */
    real *with_pos;        /* [B,N,M] scratch: x + pos, in a detector */
} QkvFrame;

void qkv_declare(QkvFrame *f, const Attention *a, Params *params);
/* Scratch lives until the caller's plan_release. */
void qkv_plan(QkvFrame *f, const Attention *a, Plan *plan, int B);
void qkv_forward_in(const QkvFrame *f, const Attention *a, const real *x, int B);
void qkv_forward_out(const QkvFrame *f, const Attention *a, real *y, int B);
/* Fills dmix from dy; then the operator fills dqkv; then qkv_backward_in gives dx. */
void qkv_backward_out(const QkvFrame *f, const Attention *a, const real *dy, int B);
void qkv_backward_in(const QkvFrame *f, const Attention *a, real *dx, const real *x, int B);
size_t qkv_macs(const QkvFrame *f, const Attention *a);
/* Row `query` of softmax(q k^T / sqrt D) as the last forward pass had it: host weights [N], for AttentionOp.weights. */
void qkv_softmax_row(const QkvFrame *f, const Attention *a, float *weights, int b, int head, int query);

#endif
