/* Random features, sampled anew in every training step; evaluation uses those of the last step, which are in the
 * checkpoint.
 * u = w z', s = |z'|^2/2, w [H,D,D]: rows standard normal (rfa), or orthogonal with the norms of such rows (performer)
 *   rfa        phi = exp(s - c) / sqrt D [sin u; cos u], c = max of s over tokens; F = 2D      (Peng et al. 2021)
 *   performer  phi = (exp(u - s - c) + 1e-4) / sqrt D, c = max of u over features, for keys over tokens too; F = D
 *              (FAVOR+, Choromanski et al. 2020)
 * backward  c is a constant; w has no gradient
 * saves     phi [B,N,2,H,F].
 *
 * In the code of RFA's authors, q and k have unit length, so that exp(s - c) is 1, w is multiplied by a learned factor
 * for each channel and chosen from 500 fixed matrices; this is the formula of their paper for vectors of any length.  In
 * that of FAVOR+ all heads of a layer share w. */
#include <math.h>

#include "core/rng.h"
#include "layers/features/feature_map.h"
#include "layers/papers.h"

static void random_declare(FeatureMap *map, const Attention *a, Params *params) {
    params_declare(params, (Param){.value = &map->w1, .named = {a->prefix, "feature.weight"}, .init = INIT_NORMAL,
                                   .frozen = true, .host = &map->host, .shape = {a->H, a->D, a->D}});
}

static size_t random_workspace(const FeatureMap *map, const Attention *a) {
    (void)map;
    return feature_random_workspace(a->D, a->D);
}

/* == RFA ========================================================================================================== */

static void rfa_forward(const FeatureMap *map, const Attention *a, const real *qkv, int B) {
    feature_rfa_forward(map->phi, qkv, map->w1, &(FeatureShape){B, a->N, a->H, a->D, map->F});
}

static void rfa_backward(const FeatureMap *map, const Attention *a, real *dqkv, const real *qkv, int B) {
    feature_rfa_backward(dqkv, map->dphi, map->phi, qkv, map->w1, &(FeatureShape){B, a->N, a->H, a->D, map->F});
}

/* == Performer ==================================================================================================== */

static double dot(const float *x, const float *y, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)x[i] * (double)y[i];
    return sum;
}

/* Makes the rows of w [n,n] orthogonal by Gram-Schmidt, done twice for each row because of rounding, and restores their
 * norms.  These are distributed as the paper requires, since the norm of a normal vector is independent of its
 * direction. */
static void orthogonalize(float *w, int n) {
    for (int i = 0; i < n; i++) {
        float *row = w + (size_t)i * (size_t)n;
        double length = sqrt(dot(row, row, n));
        for (int j = 0; j < 2 * i; j++) {
            const float *other = w + (size_t)(j % i) * (size_t)n;
            double share = dot(row, other, n) / dot(other, other, n);
            for (int d = 0; d < n; d++) row[d] -= (float)(share * (double)other[d]);
        }
        double scale = length / sqrt(dot(row, row, n));
        for (int d = 0; d < n; d++) row[d] = (float)(scale * (double)row[d]);
    }
}

static void performer_forward(const FeatureMap *map, const Attention *a, const real *qkv, int B) {
    feature_performer_forward(map->phi, qkv, map->w1, &(FeatureShape){B, a->N, a->H, a->D, map->F});
}

static void performer_backward(const FeatureMap *map, const Attention *a, real *dqkv, const real *qkv, int B) {
    feature_performer_backward(dqkv, map->dphi, map->phi, qkv, map->w1, &(FeatureShape){B, a->N, a->H, a->D, map->F});
}

/* == The maps ===================================================================================================== */

extern const FeatureMapKind feature_map_performer;

static void random_draw(const FeatureMap *map, const Attention *a, uint64_t seed, uint32_t step) {
    size_t square = (size_t)a->D * (size_t)a->D, n = (size_t)a->H * square;
    rng_normals(map->host, n, seed, RNG_FEATURES, step, (uint32_t)a->place.block);
    for (int h = 0; h < a->H && map->kind == &feature_map_performer; h++)
        orthogonalize(map->host + (size_t)h * square, a->D);
    device_upload(map->w1, map->host, n * sizeof *map->host);
}

static size_t random_row_macs(size_t D, size_t F) {
    (void)F;
    return D * D;
}

#define RANDOM_MAP(id, label, text, cited, prefix, count, signs) \
    const FeatureMapKind id = {                                  \
        .name = label,                                           \
        .summary = text,                                         \
        .paper = cited,                                          \
        .negative = signs,                                       \
        .multiple = count,                                       \
        .declare = random_declare,                               \
        .draw = random_draw,                                     \
        .workspace = random_workspace,                           \
        .forward = prefix##_forward,                             \
        .backward = prefix##_backward,                           \
        .row_macs = random_row_macs,                             \
    }

RANDOM_MAP(feature_map_rfa, "rfa", "random sines and cosines, sampled anew in every step (Peng et al. 2021)",
           PAPER_RFA, rfa, 2, true);
RANDOM_MAP(feature_map_performer, "performer",
           "random exponentials, sampled anew in every step (Choromanski et al. 2020)", PAPER_PERFORMER, performer,
           1, false);
