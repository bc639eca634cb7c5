/* Deterministic parameter-free projection (Schlag et al. 2021) with nu = 1.  z: a row of q or k, F = 2D
 * forward   u = relu([z'; -z']), phi_i = u_i u_(i-1), indices modulo F
 * backward  du_i = dphi_i u_(i-1) + dphi_(i+1) u_(i+1), dz = D^-1/4 (du_i [z > 0] - du_(D+i) [z < 0])
 * saves     phi [B,N,2,H,F]. */
#include "layers/features/feature_map.h"

#include "layers/papers.h"

static void dpfp_forward(const FeatureMap *map, const Attention *a, const real *qkv, int B) {
    feature_dpfp_forward(map->phi, qkv, &(FeatureShape){B, a->N, a->H, a->D, map->F});
}

static void dpfp_backward(const FeatureMap *map, const Attention *a, real *dqkv, const real *qkv, int B) {
    feature_dpfp_backward(dqkv, map->dphi, qkv, &(FeatureShape){B, a->N, a->H, a->D, map->F});
}

static size_t dpfp_row_macs(size_t D, size_t F) {
    (void)D;
    return F;
}

const FeatureMapKind feature_map_dpfp = {
    .name = "dpfp",
    .summary = "products of neighbouring channels, no parameters (Schlag et al. 2021)",
    .paper = PAPER_DPFP,
    .multiple = 2,
    .forward = dpfp_forward,
    .backward = dpfp_backward,
    .row_macs = dpfp_row_macs,
};
