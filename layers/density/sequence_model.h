/* The Sparse Transformer as an autoregressive density model (Child et al. 2019): it maps tokens, each one of
 * `vocabulary` values, to the logits of every token given the earlier ones.  Pre-norm blocks of causal attention and an
 * MLP, learned embeddings of positions, and a linear layer of logits that is initialised to zero (except with
 * start_values gpt2). */
#ifndef VIT_LAYERS_DENSITY_SEQUENCE_MODEL_H
#define VIT_LAYERS_DENSITY_SEQUENCE_MODEL_H

#include <stdint.h>
#include <stdio.h>

#include "layers/density/causal_attention.h"
#include "layers/model.h"
#include "layers/stage.h"

typedef enum { EMBEDDING_AUTO, EMBEDDING_DATA, EMBEDDING_ATTENTION } PositionTables;
typedef enum { START_CODE, START_PAPER, START_GPT2 } StartValues;

/* The settings of the model; causal_attention.h has those of its attention. */
typedef struct {
    int vocabulary, dim, depth, heads, stride;
    float qk_ratio, mlp_ratio;
    PositionTables embedding;
    float dropout, embedding_dropout;
    bool recompute;
    StartValues start_values;
} SequenceModelSettings;
extern const ConfigGroup sequence_model_settings;

/* The shape of a sequence.  Token i of an image is channel i mod C of pixel i div C, pixels row by row. */
typedef struct {
    int n;                       /* tokens that are predicted */
    int height, width, channels; /* of an image, n = H W C; 0: not an image */
    bool starts;                 /* a learned vector precedes the first token, which is predicted, too; else the
                                    first of n + 1 tokens is given */
} SequenceShape;

/* Adds the settings of the model and of its attention. */
SequenceModelSettings *sequence_model_add_settings(Config *config);
/* Marks the settings that count with the chosen attn. */
void sequence_model_use_settings(Config *config);
/* Rejects settings that contradict each other or do not fit such sequences.  sequence_model_create calls it, too. */
void sequence_model_check(const Config *config, const SequenceShape *shape);
/* The stride in use: the setting, or if that is 0 an image's row of bytes, else 128. */
int sequence_model_stride(const SequenceModelSettings *s, const SequenceShape *shape);

/* TRAIN and EVALUATE work on whole sequences, SAMPLE on one token of each at a time. */
typedef enum { SEQUENCE_TRAIN, SEQUENCE_EVALUATE, SEQUENCE_SAMPLE } SequencePurpose;

typedef struct {
    SequenceModelSettings settings;
    SequenceShape shape;
    int prompt;     /* while sampling: the most rows that sequence_model_fill takes, */
    int prompts;    /* and the number of sequences at a time; 0: the model does not sample */
    int row_bytes;  /* bytes of a sequence: n, or n + 1 if the first is given */
    Model model;

    ByteEmbedding positions; /* description of the tables; B, first and N change with each call */
    float *bytes, *dbytes, *table[BYTE_TABLES], *dtable[BYTE_TABLES], *start, *dstart;
    Stage stage; /* its N is the rows of a sequence that are computed at a time: n, or while sampling 1 or a prompt's */
    Stream stream;
    CausalFrame frame;
    Projection head;

    uint8_t *tokens; /* [B,row_bytes] */
    real *logits;    /* [B,N,V]; sequence_model_loss replaces them by their gradients */
    float *loss;     /* [B,N] in nats */
    float *sums;     /* [B] */
    char *cache;     /* of all blocks, while sampling */
} SequenceModel;

/* Checks the settings and declares every parameter; allocates no device memory yet. */
void sequence_model_create(SequenceModel *m, const Config *config, const SequenceShape *shape);
/* Dies if the weights in the file `path` are of a model with another vocabulary, width, depth, length or start.
 * `heads` is the number of heads with which they were trained, which their shapes do not show; 0 if unknown. */
void sequence_model_check_weights(const SequenceModel *m, const Config *config, const char *path, int heads);
/* Plans activations for up to `batch` sequences.  Allocates nothing. */
void sequence_model_plan(SequenceModel *m, int batch, SequencePurpose purpose);
/* Plans SEQUENCE_SAMPLE with prompts, of which sequence_model_fill takes up to `prompt` rows, 1 or more. */
void sequence_model_plan_sampling(SequenceModel *m, int batch, int prompt);
/* Allocates what was planned, for SEQUENCE_SAMPLE also the caches. */
void sequence_model_allocate(SequenceModel *m);

/* Makes `m`, which is empty, a model that samples with the parameters of `of`, their EMA if there is one, and in its
 * memory: up to `most` sequences at a time, fewer if its memory is too small.  The results of `of` are lost. False:
 * there is no room for one.  Until sequence_model_return, `of` must not be used. */
bool sequence_model_borrow(SequenceModel *m, const SequenceModel *of, const Config *config, int most);
void sequence_model_return(SequenceModel *m);

/* Uploads host tokens [B,row_bytes], each below the vocabulary. */
void sequence_model_load(SequenceModel *m, const uint8_t *tokens, int B);
/* Sets the random numbers of this step's dropout for sequences first .. first+B-1 of the global batch. */
void sequence_model_draw_drops(SequenceModel *m, uint64_t seed, uint32_t step, size_t first);

/* tokens -> logits [B,n,V].  `drop`: with dropout. */
void sequence_model_forward(SequenceModel *m, int B, bool drop);
/* The losses [B,n] of the logits, in nats.  In the training plan the logits become `scale` times their gradients:
 * 1 / (n global batch) makes their sum over micro-batches and ranks the gradient of the mean loss. */
void sequence_model_loss(SequenceModel *m, int B, float scale);
/* Downloads the losses [B,n], or their sums over each sequence [B].  Both wait for the device. */
void sequence_model_losses(const SequenceModel *m, float *losses, int B);
void sequence_model_loss_sums(SequenceModel *m, float *sums, int B);
/* Computes every parameter's gradient (+=), after a forward pass and its loss under the training plan with the same B
 * and drop.  `final` is that of vit_backward. */
void sequence_model_backward(SequenceModel *m, int B, bool drop, GradientsListener final);

/* While sampling, computes the logits [B,V] of row i from the loaded tokens.  Rows must be computed in order, from 0 on
 * or, after sequence_model_fill, from `count` on. */
void sequence_model_step(SequenceModel *m, int i, int B);
/* Processes rows 0 .. count-1, count <= prompt, at once, without logits. */
void sequence_model_fill(SequenceModel *m, int count, int B);

/* Multiply-adds of a sequence's forward pass, and of its forward and backward pass. */
double sequence_model_macs(const SequenceModel *m);
double sequence_model_training_macs(const SequenceModel *m);
/* Bytes of the caches of B sequences. */
size_t sequence_model_cache_bytes(const SequenceModel *m, int B);

/* Prints a table of the layers with their parameters, multiply-adds and bytes, then lines `key: value`.  `averages`:
 * the optimizer also keeps an average of the weights. */
void sequence_model_describe(const SequenceModel *m, bool averages, FILE *out);

void sequence_model_destroy(SequenceModel *m);

#endif
