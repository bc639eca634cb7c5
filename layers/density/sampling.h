/* Drawing from a density model, token by token, with caches of keys and values. */
#ifndef VIT_LAYERS_DENSITY_SAMPLING_H
#define VIT_LAYERS_DENSITY_SAMPLING_H

#include "layers/density/sequence_model.h"

typedef struct {
    float temperature; /* logits are divided by it; 0: always the likeliest token */
    int top_k;         /* only the k most likely tokens; 0: all */
    float top_p;       /* of those, the fewest likeliest that have this share of their probability */
} SamplingSettings;

extern const ConfigGroup sampling_settings;

/* A token from host logits [V], V <= 256, by one uniform number u in [0, 1).  Of equally likely tokens, the lower one
 * counts as likelier. */
int sampling_draw(const SamplingSettings *s, const float *logits, int V, float u);

/* Called after every token that has been computed. */
typedef void SamplingPassed(size_t done, size_t end);

typedef struct {
    int B;         /* sequences */
    size_t given;  /* tokens that are there already: at least one where the model does not begin with a vector */
    size_t end;    /* tokens to have at the end */
    uint64_t seed;
    size_t first;  /* the draws of sequence b are those of first + b, */
    size_t offset; /* and of its token i those of offset + i */
    const char *weights; /* the file that they are from, which a message names where logits are not finite; NULL: none */
} SamplingRun;

/* Samples tokens given .. end-1 of host tokens [B,row_bytes], with a model that was planned to sample that many sequences
 * and sees that many tokens.  The samples do not depend on how many sequences there are, or on threads.  `passed`
 * may be NULL. */
void sampling_run(SequenceModel *m, uint8_t *tokens, const SamplingSettings *s, const SamplingRun *run,
                  SamplingPassed *passed);

/* Samples any number of sequences and tokens [B,end], as many sequences at a time as the model was planned for.
 * Where the model sees no further, it goes on from the last half of what it sees. */
void sampling_long(SequenceModel *m, uint8_t *tokens, const SamplingSettings *s, const SamplingRun *run,
                   SamplingPassed *passed);

/* The most rows that sampling_long reads at once where `given` of `end` tokens are there: what the model is planned
 * with. */
int sampling_prompt(const SequenceShape *shape, size_t given, size_t end);

/* How many sequences fit into a GiB of caches: 1 to 64. */
int sampling_at_once(const Config *config, const SequenceShape *shape);

#endif
