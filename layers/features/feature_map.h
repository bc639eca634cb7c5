/* Feature maps phi, which replace the exponential of softmax: exp(q.k / sqrt D) ~ phi(q).phi(k).  A new map needs a
 * file that ends in a const FeatureMapKind, a line in feature_map.c, and a fixture. */
#ifndef VIT_LAYERS_FEATURES_FEATURE_MAP_H
#define VIT_LAYERS_FEATURES_FEATURE_MAP_H

#include "layers/attention.h"

typedef struct FeatureMap FeatureMap;

typedef struct FeatureMapKind {
    const char *name, *summary, *paper; /* begins like ConfigChoice */
    bool per_head; /* supports separate weights for each head (DetectorFrame.per_head) */
    bool negative; /* features may be negative: linear attention uses DENOMINATOR_CLAMP, ripple attention rejects it */
    int multiple; /* F = multiple D */
    void (*declare)(FeatureMap *map, const Attention *a, Params *params); /* NULL: there is nothing to declare */
    size_t (*workspace)(const FeatureMap *map, const Attention *a);       /* NULL: none */
    /* Draws the random features of a training step, the same for all its micro-batches.  NULL: there are none. */
    void (*draw)(const FeatureMap *map, const Attention *a, uint64_t seed, uint32_t step);
    void (*forward)(const FeatureMap *map, const Attention *a, const real *qkv, int B);
    void (*backward)(const FeatureMap *map, const Attention *a, real *dqkv, const real *qkv, int B);
    size_t (*row_macs)(size_t D, size_t F); /* multiply-adds for one head of one token's q or k */
} FeatureMapKind;

struct FeatureMap {
    const FeatureMapKind *kind;
    int F;
    bool per_head;   /* w1, w2 and b have H as an additional first dimension */
    float *w1, *dw1; /* mlp [D,D], t2r [F,D];  rfa and performer [H,D,D], a buffer, as mlp-random-w1's [D,D] */
    float *w2, *dw2; /* mlp [F,2D] */
    float *b, *db;   /* mlp, t2r [F] */
    float *host;     /* host copy of w1 if that is a buffer */
    real *phi;       /* [B,N,2,H,F] kept: features of q, then of k */
    real *dphi;      /* [B,N,2,H,F] scratch */
};

/* All feature maps, NULL-terminated, and the setting that chooses one. */
extern const FeatureMapKind *const feature_maps[];
typedef struct {
    const FeatureMapKind *feature_map;
} FeatureMapSettings;
extern const ConfigGroup feature_map_settings;

void feature_map_declare(FeatureMap *map, const Attention *a, Params *params);
/* dphi is valid until the caller's plan_release. */
void feature_map_plan(FeatureMap *map, const Attention *a, Plan *plan, int B);
void feature_map_draw(const FeatureMap *map, const Attention *a, uint64_t seed, uint32_t step);
void feature_map_forward(const FeatureMap *map, const Attention *a, const real *qkv, int B);
/* dphi -> the q and k thirds of dqkv (=), parameters (+=). */
void feature_map_backward(const FeatureMap *map, const Attention *a, real *dqkv, const real *qkv, int B);
/* scores[m] = phi(q_query).phi(k_m) for one image and head after a forward pass.  Host scores [N];  phi [B,N,2,H,F] as
 * the attention read it, that is after relative positions. */
void feature_map_scores(const real *phi, int F, const Attention *a, float *scores, int b, int head, int query);
size_t feature_map_macs(const FeatureMap *map, const Attention *a);

#endif
