/* The table of feature maps, and their common code. */
#include "layers/features/feature_map.h"

#include <stdlib.h>

#include "core/die.h"

#define FEATURE_MAPS(X) X(mlp) X(rfa) X(performer) X(dpfp) X(t2r) X(mlp_random_w1) X(mlp_no_fc)

#define DECLARATION(name) extern const FeatureMapKind feature_map_##name;
#define ROW(name) &feature_map_##name,

FEATURE_MAPS(DECLARATION)

const FeatureMapKind *const feature_maps[] = {FEATURE_MAPS(ROW) NULL};

static const ConfigEntry entries[] = {
    {CONFIG_FIELD(ITEM, FeatureMapSettings, feature_map), "mlp", .section = "attention",
     .table = (const void *const *)feature_maps, .noun = "map",
     .list = "Feature maps of linear and ripple attention", .help = "Feature map of linear and ripple attention"},
};

const ConfigGroup feature_map_settings = {CONFIG_GROUP(FeatureMapSettings, entries), .change = CHANGE_NEVER};

void feature_map_declare(FeatureMap *map, const Attention *a, Params *params) {
    map->kind = ((const FeatureMapSettings *)config_settings(a->settings, &feature_map_settings))->feature_map;
    map->per_head = a->detector && a->detector->per_head;
    if (map->per_head && !map->kind->per_head)
        config_reject(a->settings, "feature_map", "{feature_map} has no weights for each head, which {share_heads} asks "
                      "for: use mlp, or share_heads true");
    map->F = map->kind->multiple * a->D;
    if (map->kind->declare) map->kind->declare(map, a, params);
}

void feature_map_plan(FeatureMap *map, const Attention *a, Plan *plan, int B) {
    size_t bytes = attention_tokens(a, B) * 2 * (size_t)a->H * (size_t)map->F * sizeof(real);
    plan_pair(plan, a->prefix, "phi", &map->phi, &map->dphi, bytes);
    if (map->kind->workspace) plan_workspace(plan, map->kind->workspace(map, a));
}

void feature_map_draw(const FeatureMap *map, const Attention *a, uint64_t seed, uint32_t step) {
    if (map->kind->draw) map->kind->draw(map, a, seed, step);
}

void feature_map_forward(const FeatureMap *map, const Attention *a, const real *qkv, int B) {
    map->kind->forward(map, a, qkv, B);
    if (a->detector) mask_features(map->phi, a->detector->cells, B, a->grid, a->H, map->F);
}

void feature_map_backward(const FeatureMap *map, const Attention *a, real *dqkv, const real *qkv, int B) {
    if (a->detector) mask_features(map->dphi, a->detector->cells, B, a->grid, a->H, map->F);
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
