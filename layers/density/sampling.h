/* Sampling from a density model, token by token, with caches of keys and values. */
#ifndef VIT_LAYERS_DENSITY_SAMPLING_H
#define VIT_LAYERS_DENSITY_SAMPLING_H

#include "layers/density/sequence_model.h"

typedef struct {
    float temperature; /* logits are divided by it; 0: always the most likely token */
    int top_k;         /* only the k most likely tokens; 0: all */
    float top_p;       /* of those, only the smallest set of most likely tokens that has this share of their
                        * probability */
} SamplingSettings;

extern const ConfigGroup sampling_settings;

/* A token from host logits [V], V <= 256, by one uniform number u in [0, 1).  Among equally likely tokens, the smaller
 * one counts as more likely. */
int sampling_draw(const SamplingSettings *s, const float *logits, int V, float u);

/* Called after every token that has been computed, with its number among those of all sequences. */
typedef void SamplingPassed(size_t done, size_t end);

typedef struct {
    int B;         /* sequences */
    size_t given;  /* tokens that are given: at least one if the model has no start vector */
    size_t end;    /* number of tokens at the end */
    uint64_t seed;
    size_t first;  /* the random numbers of sequence b are those of first + b, */
    size_t offset; /* and of its token i those of offset + i */
    const char *weights; /* the file of the weights, for a message if logits are not finite; NULL: none */
    size_t before, all;  /* tokens of other sequences before these, and tokens of all; 0: offset + end */
} SamplingRun;

/* Samples tokens given .. end-1 of host tokens [B,row_bytes], with a model that was planned to sample that many
 * sequences and has that many tokens.  The samples depend on the number of sequences and that of threads only where the rounding of a
 * matrix product does, which seldom changes a token (docs/guide/density.md).  `passed` may be NULL. */
void sampling_run(SequenceModel *m, uint8_t *tokens, const SamplingSettings *s, const SamplingRun *run,
                  SamplingPassed *passed);

/* Samples any number of sequences and tokens [B,end], as many sequences at a time as the model was planned for. Beyond
 * the model's number of tokens, sampling continues from the last half of the tokens that it has seen. */
void sampling_long(SequenceModel *m, uint8_t *tokens, const SamplingSettings *s, const SamplingRun *run,
                   SamplingPassed *passed);

/* The largest number of rows that sampling_long processes at once if `given` of `end` tokens are given, for the plan of
 * the model. */
int sampling_prompt(const SequenceShape *shape, size_t given, size_t end);

/* How many sequences fit into a GiB of caches: 1 to 64. */
int sampling_at_once(const Config *config, const SequenceShape *shape);

#endif
