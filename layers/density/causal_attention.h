/* Causal attention, the operator of a density model.  x [B,N,M] -> y [B,N,M], projections included; queries and keys
 * may be narrower than values.  The tokens that a token attends to are all earlier ones or one of the sets of
 * kernels/softmax/causal_attention.h. */
#ifndef VIT_LAYERS_DENSITY_CAUSAL_ATTENTION_H
#define VIT_LAYERS_DENSITY_CAUSAL_ATTENTION_H

#include "layers/attention.h"

/* == Settings ===================================================================================================== */

typedef enum { ATTEND_SOFTMAX, ATTEND_STRIDED, ATTEND_FIXED } Attend;
typedef enum { SCHEME_INTERLEAVED, SCHEME_MERGED, SCHEME_SPLIT } SetScheme;

typedef struct {
    Attend attn;
} CausalSettings;

/* Adds the settings, `attn` first. */
void causal_add_settings(Config *config);
/* Marks the settings that count with the chosen attn. */
void causal_use_settings(Config *config);
/* "softmax", "sparse-strided" or "sparse-fixed". */
const char *causal_attn_name(const Config *config);

/* Rejects settings that sequences of n tokens, this stride (l in messages) and number of heads do not allow. */
void causal_check_settings(const Config *config, int n, int stride, int heads);

/* "window", "window and column": the sets of a pattern's heads. */
const char *causal_pattern_name(const CausalPattern *pattern, int heads, char text[32]);

/* == The operator ================================================================================================= */

/* The values that the attentions of a density model share.  The model sets n, stride and Dk before they are declared,
 * the other members before a forward pass. */
typedef struct CausalFrame {
    int n;      /* tokens of a whole sequence */
    int stride; /* of the patterns */
    int Dk;     /* width of a head's queries and keys */
    bool cached;    /* the tokens of a call are token `row` of each sequence, or its first N ones; keys and values go */
    int row, first; /* through the cache, in which the first of the call's sequences is number `first` */
} CausalFrame;

/* Attention.state of causal_op. */
typedef struct {
    CausalPattern pattern;
    CausalShape shape;    /* B and N are those of a call */
    float *lse;           /* [B,H,N] kept */
    CausalCache cache;
} CausalLayer;

/* The attention of a density model's blocks, whose Attention.causal is set.  No table of operators has it. */
extern const AttentionOp causal_op;

/* Bytes of a cache for B sequences, and the cache in that memory.  With it, tokens that are processed one by one have
 * the same results as in a pass over whole sequences. */
size_t causal_cache_bytes(const Attention *a, int B);
void causal_set_cache(const Attention *a, char *memory, int B);

/* Multiply-adds of one sequence's scores.  attention_macs counts them once, and a backward pass computes them again. */
double causal_score_macs(const Attention *a);
/* The share of dense attention's pairs. */
double causal_share(const Attention *a);

#endif
