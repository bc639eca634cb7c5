/* T2R's feature map (Kasai et al. 2021), shared by heads.  z: a row of q or k
 * forward   phi = relu(W z' + b)
 * backward  dp = dphi [phi > 0], dW += dp z'^T, db += dp, dz = D^-1/4 W^T dp
 * saves     phi [B,N,2,H,F].
 * According to the ripple attention paper, its map without the fully connected layer is this one; mlp-no-fc is the name
 * for that ablation.  In the code of T2R's authors each head has a W and b of its own, which begin as in PyTorch, and
 * D^-1/2 scales q alone. */
#include "layers/features/feature_map.h"

#include "layers/papers.h"

static void relu_declare(FeatureMap *map, const Attention *a, Params *params) {
    params_declare(params, (Param){.value = &map->w1, .grad = &map->dw1, .named = {a->prefix, "feature.weight"},
                                   .init = INIT_XAVIER_UNIFORM, .decay = true, .shape = {map->F, a->D}});
    params_declare(params, (Param){.value = &map->b, .grad = &map->db, .named = {a->prefix, "feature.bias"},
                                   .init = INIT_ZEROS, .shape = {map->F}});
}

static size_t relu_workspace(const FeatureMap *map, const Attention *a) { return feature_relu_workspace(a->D, map->F); }

static void relu_forward(const FeatureMap *map, const Attention *a, const real *qkv, int B) {
    feature_relu_forward(map->phi, qkv, map->w1, map->b, &(FeatureShape){B, a->N, a->H, a->D, map->F});
}

static void relu_backward(const FeatureMap *map, const Attention *a, real *dqkv, const real *qkv, int B) {
    feature_relu_backward(dqkv, map->dw1, map->db, map->dphi, map->phi, qkv, map->w1,
                          &(FeatureShape){B, a->N, a->H, a->D, map->F});
}

static size_t relu_row_macs(size_t D, size_t F) { return D * F; }

#define RELU_MAP(id, label, text, cited) \
    const FeatureMapKind id = {          \
        .name = label,                   \
        .summary = text,                 \
        .paper = cited,                  \
        .multiple = 1,                   \
        .declare = relu_declare,         \
        .workspace = relu_workspace,     \
        .forward = relu_forward,         \
        .backward = relu_backward,       \
        .row_macs = relu_row_macs,       \
    }

RELU_MAP(feature_map_t2r, "t2r", "relu of a learned layer (Kasai et al. 2021)", PAPER_T2R);
RELU_MAP(feature_map_mlp_no_fc, "mlp-no-fc", "the same as t2r: the ripple attention paper's mlp without its layer",
         PAPER_RIPPLE);
