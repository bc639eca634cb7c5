/* The ripple paper's deterministic adaptive feature map (its equation 13).  z: a row q or k of one head, z' = D^-1/4 z
 * forward   1. u = W1 z'   2. f = [sin u; cos u]   3. phi = relu(W2 f + b2)
 * backward  3. dp = dphi [phi > 0], dW2 += dp f^T, db2 += dp   2. du = cos u df_sin - sin u df_cos
 *           1. dW1 += du z'^T, dz = D^-1/4 W1^T du
 * saves     phi [B,N,2,H,F]; u and f are formed again.
 * W1 starts standard normal, as the random features that it generalises, and is learned without decay. */
#include "layers/attention/feature_map.h"

#include <stdlib.h>

#include "core/die.h"

const char *const *feature_map_names(int *count) {
    static const char *const names[] = {"mlp"};
    *count = sizeof names / sizeof *names;
    return names;
}

void feature_map_declare(FeatureMap *map, const Attention *a, Params *params) {
    int D = a->D;
    map->F = D;
    params_declare(params, &map->w1, &map->dw1, a->prefix, "feature.w1", INIT_NORMAL, false, 2, (int[]){D, D});
    params_declare(params, &map->w2, &map->dw2, a->prefix, "feature.w2", INIT_XAVIER_UNIFORM, true, 2,
                   (int[]){map->F, 2 * D});
    params_declare(params, &map->b2, &map->db2, a->prefix, "feature.b2", INIT_ZEROS, false, 1, (int[]){map->F});
}

void feature_map_plan(FeatureMap *map, const Attention *a, Plan *plan, int B) {
    size_t bytes = (size_t)B * (size_t)a->N * 2 * (size_t)a->H * (size_t)map->F * sizeof(real);
    plan_keep(plan, a->prefix, "phi", &map->phi, bytes);
    if (plan->training) plan_borrow(plan, a->prefix, "dphi", &map->dphi, bytes);
    plan_workspace(plan, feature_mlp_workspace(a->D, a->D, map->F));
}

void feature_map_forward(const FeatureMap *map, const Attention *a, const real *qkv, int B) {
    feature_mlp_forward(map->phi, qkv, map->w1, map->w2, map->b2, (size_t)B * (size_t)a->N, a->H, a->D, a->D, map->F);
}

void feature_map_backward(const FeatureMap *map, const Attention *a, real *dqkv, const real *qkv, int B) {
    feature_mlp_backward(dqkv, map->dw1, map->dw2, map->db2, map->dphi, map->phi, qkv, map->w1, map->w2, map->b2,
                         (size_t)B * (size_t)a->N, a->H, a->D, a->D, map->F);
}

void feature_map_scores(const FeatureMap *map, const Attention *a, float *scores, int b, int head, int query) {
    size_t F = (size_t)map->F, row = 2 * (size_t)a->H * F;
    float *phi = xcalloc((size_t)a->N, row * sizeof *phi, "attention picture");
    real_download(phi, map->phi + (size_t)b * (size_t)a->N * row, (size_t)a->N * row);
    const float *q = phi + (size_t)query * row + (size_t)head * F;
    for (int m = 0; m < a->N; m++) {
        const float *k = phi + (size_t)m * row + (size_t)(a->H + head) * F;
        scores[m] = 0;
        for (size_t f = 0; f < F; f++) scores[m] += q[f] * k[f];
    }
    free(phi);
}

size_t feature_map_macs(const FeatureMap *map, const Attention *a) {
    size_t rows = 2 * (size_t)a->N * (size_t)a->H, D = (size_t)a->D;
    return rows * (D * D + 2 * D * (size_t)map->F);
}
