/* The trunk of a vision transformer, which is everything except the classifier: patch embeddings and stages, preceded
 * by a stem if the settings have one.  images [B,3,Hi,Wi], or clips [B,frames,3,Hi,Wi] -> the output of every stage,
 * [B,N,M] of its own N and M.  A classifier reads the last one; a model for dense prediction reads all of them, and its
 * images can have many sizes. */
#ifndef VIT_LAYERS_VIT_TRUNK_H
#define VIT_LAYERS_VIT_TRUNK_H

#include "layers/attention/grid_table.h"
#include "layers/model.h"
#include "layers/vit/embedding.h"
#include "layers/vit/vit_settings.h"

/* The norm at the end of a stage where the settings have none (stage_norm false). */
typedef enum {
    ENDS_OF_CLASSIFIER, /* the last stage has one, and no other */
    ENDS_BESIDE,        /* every output has one, which is not part of the next stage's input: norm0, norm1, ... */
    ENDS_BARE           /* none */
} TrunkEnds;

typedef struct {
    const char *prefix; /* of all tensor names, at most 24 characters: "" */
    bool dense;         /* images are [B,Hi,Wi,3], and their size may change after planning (trunk_set_size) */
    TrunkEnds ends;
} TrunkUse;

typedef struct {
    VitSettings settings;
    TrunkUse use;
    Grid grid; /* of the first stage's tokens */
    int N;     /* number of tokens of the first stage, the tokens in front of the grid included */
    int depth; /* number of blocks in all stages */
    HybridStem stem; /* for settings.stem: its output is the input of the first embedding */
    Embedding embeddings[VIT_MAX_STAGES];
    Stage stages[VIT_MAX_STAGES];
    GridTable positions[VIT_MAX_STAGES]; /* [N of the first station,M] added to each stage's tokens; w NULL: none */
    Stream stream;
    float *keep_host; /* host [2*depth,B] */
} Trunk;

/* Declares every parameter; the settings are complete and checked (vit_check_settings), and both they and the config
 * outlive the trunk. */
void trunk_create(Trunk *t, const VitSettings *s, const TrunkUse *use, const Config *config, Params *params);

/* Plans activations for up to B images, the scratch of all stages first.  For a dense trunk, trunk_set_size has set the
 * largest size; the plan also supports it with height and width exchanged. */
void trunk_plan_scratch(Trunk *t, Plan *plan, int B);
void trunk_plan(Trunk *t, Plan *plan, int B);
/* Allocates host memory, and device memory that does not depend on the batch. */
void trunk_allocate(Trunk *t, int B);

/* For a dense trunk: from now on images have H x W pixels, multiples of the last stage's stride.  Parameters on a grid
 * keep the grid of img_size, and are resampled in every pass. */
void trunk_set_size(Trunk *t, int H, int W);

/* Draws the drop path of this step for images first .. first+B-1 of the global batch, and sets the random numbers of
 * their dropout. */
void trunk_draw_drops(Trunk *t, uint64_t seed, uint32_t step, size_t first, int B);
/* Draws the operators' random features and codes, if they have any. */
void trunk_draw_buffers(const Trunk *t, uint64_t seed, uint32_t step);

/* images -> the outputs of all stages.  `drop`: with drop path and dropout. */
void trunk_forward(Trunk *t, const real *images, int B, bool drop);
/* Computes the gradients of parameters (+=) from that of the last stage's output in stream.dh or, with `dense`, from
 * dout [stages], those of every stage's output. */
void trunk_backward(Trunk *t, const real *images, real *const *dout, int B, bool drop, FinalGradients *final);

Stage *trunk_last(const Trunk *t);
/* Block i, counted over all stages. */
Block *trunk_block(const Trunk *t, int i);
bool trunk_has_stem(const Trunk *t);
bool trunk_has_tokenizer(const Trunk *t);
int trunk_front(const Trunk *t); /* tokens in front of the last stage's grid */

/* Multiply-adds of one image's forward pass, and the part of them for Fourier transforms and for mixing their
 * results. */
size_t trunk_macs(const Trunk *t);
size_t trunk_transform_macs(const Trunk *t);

/* "14 x 14", of clips "4 x 14 x 14", with `by` between the numbers. */
enum { VIT_GRID_SIZE = 48 };
const char *vit_grid_text(char text[VIT_GRID_SIZE], Grid grid, const char *by);

/* Rows of model_describe_row for every layer. */
void trunk_describe(const Trunk *t, const Model *model, FILE *out);

void trunk_destroy(Trunk *t);

#endif
