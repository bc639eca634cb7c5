/* The table of feature maps, and what they share. */
#include "layers/attention/feature_map.h"

#include <stdlib.h>
#include <string.h>

#include "core/die.h"

extern const FeatureMapKind feature_map_mlp, feature_map_rfa, feature_map_performer, feature_map_dpfp, feature_map_t2r,
    feature_map_mlp_random_w1, feature_map_mlp_no_fc;

const FeatureMapKind *const feature_maps[] = {
    &feature_map_mlp,
    &feature_map_rfa,
    &feature_map_performer,
    &feature_map_dpfp,
    &feature_map_t2r,
    &feature_map_mlp_random_w1,
    &feature_map_mlp_no_fc,
    NULL,
};

enum { MAPS = sizeof feature_maps / sizeof *feature_maps - 1 };

const char *const *feature_map_names(int *count) {
    static const char *names[MAPS];
    for (int i = 0; i < MAPS; i++) names[i] = feature_maps[i]->name;
    *count = MAPS;
    return names;
}

const FeatureMapKind *feature_map_find(const char *name) {
    for (int i = 0; i < MAPS; i++)
        if (!strcmp(feature_maps[i]->name, name)) return feature_maps[i];
    return NULL;
}

void feature_map_declare(FeatureMap *map, const Attention *a, Params *params) {
    map->kind = feature_map_find(a->config.feature_map);
    if (!map->kind) die_usage("feature_map: unknown map '%s'", a->config.feature_map);
    if (a->config.per_head && !map->kind->per_head)
        die_usage("feature_map %s has no weights for each head: use mlp", map->kind->name);
    map->per_head = a->config.per_head;
    map->F = map->kind->features(a->D);
    map->kind->declare(map, a, params);
}

void feature_map_plan(FeatureMap *map, const Attention *a, Plan *plan, int B) {
    size_t bytes = (size_t)B * (size_t)a->N * 2 * (size_t)a->H * (size_t)map->F * sizeof(real);
    plan_keep(plan, a->prefix, "phi", &map->phi, bytes);
    if (plan->training) plan_borrow(plan, a->prefix, "dphi", &map->dphi, bytes);
    plan_workspace(plan, map->kind->workspace(map, a));
}

void feature_map_draw(const FeatureMap *map, const Attention *a, uint64_t seed, uint32_t step) {
    if (map->kind->draw) map->kind->draw(map, a, seed, step);
}

void feature_map_forward(const FeatureMap *map, const Attention *a, const real *qkv, int B) {
    map->kind->forward(map, a, qkv, B);
    if (a->cells) mask_features(map->phi, a->cells, B, a->grid, a->H, map->F);
}

void feature_map_backward(const FeatureMap *map, const Attention *a, real *dqkv, const real *qkv, int B) {
    if (a->cells) mask_features(map->dphi, a->cells, B, a->grid, a->H, map->F);
    map->kind->backward(map, a, dqkv, qkv, B);
}

void feature_map_scores(const real *phi, int F, const Attention *a, float *scores, int b, int head, int query) {
    size_t row = 2 * (size_t)a->H * (size_t)F;
    float *host = xcalloc((size_t)a->N, row * sizeof *host, "attention picture");
    real_download(host, phi + (size_t)b * (size_t)a->N * row, (size_t)a->N * row);
    const float *q = host + (size_t)query * row + (size_t)head * (size_t)F;
    for (int m = 0; m < a->N; m++) {
        const float *k = host + (size_t)m * row + (size_t)(a->H + head) * (size_t)F;
        scores[m] = 0;
        for (int f = 0; f < F; f++) scores[m] += q[f] * k[f];
    }
    free(host);
}

size_t feature_map_macs(const FeatureMap *map, const Attention *a) {
    return 2 * (size_t)a->N * (size_t)a->H * map->kind->row_macs((size_t)a->D, (size_t)map->F);
}
