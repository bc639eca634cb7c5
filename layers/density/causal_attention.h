/* The causal attention of one block.  x [B,N,M] -> y [B,N,M], projections included; queries and keys may be narrower
 * than values.  What a token sees is dense or one of the sets of kernels/softmax/causal_attention.h. */
#ifndef VIT_LAYERS_DENSITY_CAUSAL_ATTENTION_H
#define VIT_LAYERS_DENSITY_CAUSAL_ATTENTION_H

#include "core/config.h"
#include "training/plan.h"
#include "layers/projection.h"

/* == Settings ===================================================================================================== */

typedef enum { ATTEND_SOFTMAX, ATTEND_STRIDED, ATTEND_FIXED } Attend;
typedef enum { SCHEME_INTERLEAVED, SCHEME_MERGED, SCHEME_SPLIT } SetScheme;

typedef struct {
    Attend attn;
} CausalSettings;

/* Adds the settings, `attn` first. */
void causal_add_settings(Config *config);
/* Marks those that count with the chosen attn. */
void causal_use_settings(Config *config);
/* "softmax", "sparse-strided" or "sparse-fixed". */
const char *causal_attn_name(const Config *config);

/* Rejects what sequences of n tokens, a stride (which l is called in messages) and so many heads do not allow. */
void causal_check_settings(const Config *config, int n, int stride, int heads);

/* Which keys the heads of a block see.  The settings must have passed the check. */
CausalPattern causal_pattern(const Config *config, int block, int stride, int heads);

/* "window", "window and column": the sets of a pattern's heads. */
const char *causal_pattern_name(const CausalPattern *pattern, int heads, char text[32]);

/* == The layer ==================================================================================================== */

typedef struct {
    CausalPattern pattern;
    CausalShape shape; /* of the plan; B is that of a call */
    int M;
    Projection qkv, proj;         /* qkv: [2 H Dk + M,M], the rows of q first, then k's and v's */
    char prefix[PARAM_NAME_SIZE]; /* "blocks.3.attn." */
    real *act;                    /* [B,N,2 H Dk + M] kept: q, k and v */
    real *mix;                    /* [B,N,M] kept: the mixed values, input of proj */
    float *lse;                   /* [B,H,N] kept */
    real *dact, *dmix;            /* scratch */
    CausalCache cache;            /* while sampling */
} CausalLayer;

/* The caller sets pattern, shape (all but B and strides), M and prefix. */
void causal_layer_declare(CausalLayer *a, Params *params);
void causal_layer_plan(CausalLayer *a, Plan *plan, int B);
void causal_layer_forward(const CausalLayer *a, real *y, const real *x, int B);
/* dx (=), parameters (+=).  dx may be dy. */
void causal_layer_backward(const CausalLayer *a, real *dx, const real *dy, const real *x, int B);

/* Bytes of a cache for B sequences, and the cache in that memory; while it is there, a row of x is token i of each
 * sequence, and y what causal_layer_forward would give for it. */
size_t causal_layer_cache_bytes(const CausalLayer *a, int n, int B);
void causal_layer_set_cache(CausalLayer *a, char *memory, int n, int B);
void causal_layer_step(const CausalLayer *a, real *y, const real *x, int i, int n, int B);
/* Tokens 0 .. count-1 of sequences first .. first+B-1 at once: x, y [B,count,M].  The cache is left as steps leave it. */
void causal_layer_fill(const CausalLayer *a, real *y, const real *x, int count, int n, int first, int B);

/* Multiply-adds of the projections, and of one pass over the pairs of all heads, for a sequence of n tokens.  A
 * backward pass has causal_pair_macs_backward, its scores computed again among them. */
size_t causal_layer_macs(const CausalLayer *a, int n);
double causal_pair_macs(const CausalLayer *a, int n);
double causal_pair_macs_backward(const CausalLayer *a, int n);
/* The share of dense attention's pairs. */
double causal_share(const CausalLayer *a, int n);

#endif
