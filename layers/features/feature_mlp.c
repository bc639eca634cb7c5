/* The deterministic adaptive feature map of the ripple attention paper (equation 13), shared by the heads.  z: a row of
 * q or k
 * forward   1. u = W1 z'   2. f = [sin u; cos u]   3. phi = relu(W2 f + b2)
 * backward  3. dp = dphi [phi > 0], dW2 += dp f^T, db2 += dp   2. du = cos u df_sin - sin u df_cos
 *           1. dW1 += du z'^T, dz = D^-1/4 W1^T du
 * saves     phi [B,N,2,H,F]; u and f are computed again.
 * W1 is initialised with standard normal numbers, like the random features that it generalises, and is trained without
 * weight decay.  With mlp-random-w1 it is not trained but sampled anew in every step. */
#include "core/rng.h"
#include "layers/features/feature_map.h"
#include "layers/papers.h"

/* The tensors have H as an additional first dimension if every head has its own map. */
static void declare_matrix(FeatureMap *map, const Attention *a, Params *params, float **value, float **grad,
                           const char *name, ParamInit init, bool decay, int rows, int columns) {
    params_declare(params, (Param){.value = value, .grad = grad, .named = {a->prefix, name}, .init = init,
                                   .decay = decay, .shape = {map->per_head ? a->H : 0, rows, columns}});
}

static void declare_layer(FeatureMap *map, const Attention *a, Params *params) {
    declare_matrix(map, a, params, &map->w2, &map->dw2, "feature.w2", INIT_XAVIER_UNIFORM, true, map->F, 2 * a->D);
    params_declare(params, (Param){.value = &map->b, .grad = &map->db, .named = {a->prefix, "feature.b2"},
                                   .init = INIT_ZEROS, .shape = {map->per_head ? a->H : 0, map->F}});
}

static void mlp_declare(FeatureMap *map, const Attention *a, Params *params) {
    declare_matrix(map, a, params, &map->w1, &map->dw1, "feature.w1", INIT_NORMAL, false, a->D, a->D);
    declare_layer(map, a, params);
}

static void random_declare(FeatureMap *map, const Attention *a, Params *params) {
    params_declare(params, (Param){.value = &map->w1, .named = {a->prefix, "feature.w1"}, .init = INIT_NORMAL,
                                   .frozen = true, .host = &map->host, .shape = {a->D, a->D}});
    declare_layer(map, a, params);
}

static void random_draw(const FeatureMap *map, const Attention *a, uint64_t seed, uint32_t step) {
    size_t n = (size_t)a->D * (size_t)a->D;
    rng_normals(map->host, n, seed, RNG_FEATURES, step, (uint32_t)a->place.block);
    device_upload(map->w1, map->host, n * sizeof *map->host);
}

static size_t mlp_workspace(const FeatureMap *map, const Attention *a) {
    return feature_mlp_workspace(a->D, a->D, map->F);
}

static FeatureMlp mlp_of(const FeatureMap *map, const Attention *a) {
    return (FeatureMlp){a->D, map->per_head, map->w1, map->w2, map->b};
}

static void mlp_forward(const FeatureMap *map, const Attention *a, const real *qkv, int B) {
    FeatureMlp mlp = mlp_of(map, a);
    feature_mlp_forward(map->phi, qkv, &mlp, &(FeatureShape){B, a->N, a->H, a->D, map->F});
}

static void mlp_backward(const FeatureMap *map, const Attention *a, real *dqkv, const real *qkv, int B) {
    FeatureMlp mlp = mlp_of(map, a);
    FeatureMlpGradients d = {map->dw1, map->dw2, map->db};
    feature_mlp_backward(dqkv, &d, map->dphi, map->phi, qkv, &mlp, &(FeatureShape){B, a->N, a->H, a->D, map->F});
}

static size_t mlp_row_macs(size_t D, size_t F) { return D * D + 2 * D * F; }

#define MLP_MAP(id, label, text, declare_function, draw_function, heads) \
    const FeatureMapKind id = {                                          \
        .name = label,                                                   \
        .summary = text,                                                 \
        .paper = PAPER_RIPPLE,                                           \
        .multiple = 1,                                                   \
        .per_head = heads,                                               \
        .declare = declare_function,                                     \
        .draw = draw_function,                                           \
        .workspace = mlp_workspace,                                      \
        .forward = mlp_forward,                                          \
        .backward = mlp_backward,                                        \
        .row_macs = mlp_row_macs,                                        \
    }

MLP_MAP(feature_map_mlp, "mlp", "sines and cosines of a learned projection, then a layer (ripple paper)",
        mlp_declare, NULL, true);
MLP_MAP(feature_map_mlp_random_w1, "mlp-random-w1", "mlp with a random projection, sampled anew in every step",
        random_declare, random_draw, false);
