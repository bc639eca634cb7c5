/* The map phi that replaces the exponential of softmax: exp(q.k) ~ phi(q).phi(k).  One map for q and k and all heads. */
#ifndef VIT_LAYERS_FEATURE_MAP_H
#define VIT_LAYERS_FEATURE_MAP_H

#include "layers/attention/attention.h"

typedef struct {
    int F;                 /* features */
    float *w1, *dw1;       /* [D,D] */
    float *w2, *dw2;       /* [F,2D] */
    float *b2, *db2;       /* [F] */
    real *phi;             /* [B,N,2,H,F] kept: q's features, then k's */
    real *dphi;            /* [B,N,2,H,F] scratch */
} FeatureMap;

/* The names `feature_map` can take, count in *count. */
const char *const *feature_map_names(int *count);

void feature_map_declare(FeatureMap *map, const Attention *a, Params *params);
/* dphi lives until the caller's plan_release. */
void feature_map_plan(FeatureMap *map, const Attention *a, Plan *plan, int B);
void feature_map_forward(const FeatureMap *map, const Attention *a, const real *qkv, int B);
/* dphi -> the q and k thirds of dqkv (=), parameters (+=). */
void feature_map_backward(const FeatureMap *map, const Attention *a, real *dqkv, const real *qkv, int B);
/* scores[m] = phi(q_query).phi(k_m) of one image and head after a forward pass; host scores [N]. */
void feature_map_scores(const FeatureMap *map, const Attention *a, float *scores, int b, int head, int query);
size_t feature_map_macs(const FeatureMap *map, const Attention *a);

#endif
