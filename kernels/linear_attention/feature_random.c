/* Random features, one (image, q or k, head) at a time.  u = w z', s = |z'|^2/2, z' = D^-1/4 z
 *   rfa        forward   phi = exp(s - c) / sqrt E [sin u; cos u],  c = max_n s
 *              backward  du = dphi_sin phi_cos - dphi_cos phi_sin,  ds = dphi.phi
 *   performer  forward   phi = (exp(u - s - c) + 1e-4) / sqrt E,  c = max u, a query's or all keys'
 *              backward  du = dphi (phi - 1e-4 / sqrt E),  ds = -sum du
 *   both       dz = D^-1/4 (w^T du + ds z')
 *   saves      phi.
 * Sources: Peng et al. 2021, section 3; Choromanski et al. 2020, Lemma 1 and its code's stabilisers. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/device/workspace.h"
#include "kernels/linear_attention/feature_maps.h"
#include "kernels/softmax/attention_shape.h"

enum { ROWS = 32 };

static const float PERFORMER_EPSILON = 1e-4f;

typedef struct {
    int N, H, D, E, F, Dp, Ep;
    size_t qkv_row, phi_row; /* floats from one token to the next */
    float scale, ratio;      /* D^-1/4, E^-1/2 */
} RandomFeatureSizes;

static RandomFeatureSizes sizes_of(int N, int H, int D, int E, int F) {
    return (RandomFeatureSizes){N,
                                H,
                                D,
                                E,
                                F,
                                tile_round_up(D),
                                tile_round_up(E),
                                (size_t)3 * H * D,
                                (size_t)2 * H * F,
                                1 / sqrtf(sqrtf((float)D)),
                                1 / sqrtf((float)E)};
}

typedef struct {
    float *wt, *w; /* [D,Ep], [E,Dp]: one head's, scaled */
    float *z, *u;  /* [ROWS,Dp], [ROWS,Ep]; z: tokens, or their gradients */
    float *f;      /* [ROWS,2Ep]: sines, cosines */
} RandomFeatureWork;

static size_t work_floats(RandomFeatureSizes s) {
    return (size_t)s.D * s.Ep + (size_t)s.E * s.Dp + (size_t)ROWS * (s.Dp + 3 * s.Ep);
}

size_t feature_random_workspace(int D, int E) { return workspace_bytes(work_floats(sizes_of(1, 1, D, E, E))); }

static RandomFeatureWork work_take(const float *w, RandomFeatureSizes s) {
    float *next = kernels_workspace(work_floats(s));
    RandomFeatureWork own;
    own.wt = workspace_take(&next, (size_t)s.D * s.Ep);
    own.w = workspace_take(&next, (size_t)s.E * s.Dp);
    own.z = workspace_take(&next, (size_t)ROWS * s.Dp);
    own.u = workspace_take(&next, (size_t)ROWS * s.Ep);
    own.f = workspace_take(&next, (size_t)ROWS * 2 * s.Ep);
    memset(own.wt, 0, (size_t)s.D * s.Ep * sizeof(float));
    memset(own.w, 0, (size_t)s.E * s.Dp * sizeof(float));
    for (int e = 0; e < s.E; e++)
        for (int d = 0; d < s.D; d++)
            own.wt[(size_t)d * s.Ep + e] = own.w[(size_t)e * s.Dp + d] = s.scale * w[(size_t)e * s.D + d];
    return own;
}

static int rows_from(int first, int N) { return N - first < ROWS ? N - first : ROWS; }

/* |z'|^2/2 */
static float half_square(const real *z, RandomFeatureSizes s) {
    return 0.5f * s.scale * s.scale * reals_dot(z, z, s.D);
}

/* u of the rows at z. */
static void project(const RandomFeatureWork *w, const real *z, int rows, RandomFeatureSizes s) {
    FloatRows from = reals_as_floats(w->z, s.Dp, z, s.qkv_row, rows, s.D);
    tile_gemm(w->u, s.Ep, from.at, from.row, 1, w->wt, s.Ep, rows, s.Ep, s.D, 0);
}

/* The same, with minus infinity in the padding beyond E. */
static void project_bounded(const RandomFeatureWork *w, const real *z, int rows, RandomFeatureSizes s) {
    project(w, z, rows, s);
    for (int i = 0; i < rows; i++)
        for (int j = s.E; j < s.Ep; j++) w->u[i * s.Ep + j] = -INFINITY;
}

/* dz = D^-1/4 (w^T du + ds z'), du in w->u. */
static void put_gradient(real *dz, const RandomFeatureWork *w, const real *z, const float *ds, int rows,
                         RandomFeatureSizes s) {
    tile_gemm(w->z, s.Dp, w->u, s.Ep, 1, w->w, s.Dp, rows, s.Dp, s.E, 0);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < s.D; j += TILE) {
            vec x = real_load_part(z + i * s.qkv_row + j, s.D - j), own = vec_load(w->z + i * s.Dp + j);
            real_store_part(dz + i * s.qkv_row + j, own + ds[i] * s.scale * s.scale * x, s.D - j);
        }
}

/* == RFA ========================================================================================================== */

static void rfa_forward(real *phi, const real *z, const RandomFeatureWork *w, RandomFeatureSizes s) {
    float most = 0;
    for (int n = 0; n < s.N; n++) {
        float square = half_square(z + n * s.qkv_row, s);
        if (!(square <= most)) most = square;
    }
    for (int first = 0; first < s.N; first += ROWS) {
        int rows = rows_from(first, s.N);
        project(w, z + first * s.qkv_row, rows, s);
        sincos_tile(w->f, w->f + s.Ep, 2 * s.Ep, w->u, s.Ep, rows, s.Ep);
        for (int i = 0; i < rows; i++) {
            const float *f = w->f + i * 2 * s.Ep;
            float height = s.ratio * expf(half_square(z + (first + i) * s.qkv_row, s) - most);
            real *to = phi + (first + i) * s.phi_row;
            for (int j = 0; j < s.E; j += TILE) {
                real_store_part(to + j, height * vec_load(f + j), s.E - j);
                real_store_part(to + s.E + j, height * vec_load(f + s.Ep + j), s.E - j);
            }
        }
    }
}

static void rfa_backward(real *dz, const real *dphi, const real *phi, const real *z, const RandomFeatureWork *w,
                         RandomFeatureSizes s) {
    for (int first = 0; first < s.N; first += ROWS) {
        int rows = rows_from(first, s.N);
        float ds[ROWS];
        for (int i = 0; i < rows; i++) {
            const real *value = phi + (first + i) * s.phi_row, *slope = dphi + (first + i) * s.phi_row;
            vec sum = {0};
            for (int j = 0; j < s.E; j += TILE) {
                vec sine = real_load_part(value + j, s.E - j), cosine = real_load_part(value + s.E + j, s.E - j);
                vec dsine = real_load_part(slope + j, s.E - j), dcosine = real_load_part(slope + s.E + j, s.E - j);
                vec_store(w->u + i * s.Ep + j, dsine * cosine - dcosine * sine);
                sum += dsine * sine + dcosine * cosine;
            }
            ds[i] = vec_sum(sum);
        }
        put_gradient(dz + first * s.qkv_row, w, z + first * s.qkv_row, ds, rows, s);
    }
}

/* == Performer ==================================================================================================== */

static float row_maximum(const float *u, RandomFeatureSizes s) {
    vec most = vec_load(u);
    for (int j = TILE; j < s.Ep; j += TILE) most = vec_max(vec_load(u + j), most);
    return vec_largest(most);
}

static void performer_forward(real *phi, const real *z, const RandomFeatureWork *w, bool keys, RandomFeatureSizes s) {
    float most = -INFINITY;
    for (int first = 0; keys && first < s.N; first += ROWS) {
        int rows = rows_from(first, s.N);
        project_bounded(w, z + first * s.qkv_row, rows, s);
        for (int i = 0; i < rows; i++) most = fmaxf(most, row_maximum(w->u + i * s.Ep, s));
    }
    for (int first = 0; first < s.N; first += ROWS) {
        int rows = rows_from(first, s.N);
        project_bounded(w, z + first * s.qkv_row, rows, s);
        for (int i = 0; i < rows; i++) {
            const float *u = w->u + i * s.Ep;
            float shift = half_square(z + (first + i) * s.qkv_row, s) + (keys ? most : row_maximum(u, s));
            for (int j = 0; j < s.E; j += TILE)
                real_store_part(phi + (first + i) * s.phi_row + j,
                                s.ratio * (vec_exp(vec_load(u + j) - shift) + PERFORMER_EPSILON), s.E - j);
        }
    }
}

static void performer_backward(real *dz, const real *dphi, const real *phi, const real *z, const RandomFeatureWork *w,
                               RandomFeatureSizes s) {
    for (int first = 0; first < s.N; first += ROWS) {
        int rows = rows_from(first, s.N);
        float ds[ROWS];
        for (int i = 0; i < rows; i++) {
            const real *value = phi + (first + i) * s.phi_row, *slope = dphi + (first + i) * s.phi_row;
            vec sum = {0};
            for (int j = 0; j < s.E; j += TILE) {
                vec power = real_load_part(value + j, s.E - j) - s.ratio * PERFORMER_EPSILON;
                vec du = real_load_part(slope + j, s.E - j) * power;
                vec_store(w->u + i * s.Ep + j, du);
                sum += du;
            }
            ds[i] = -vec_sum(sum);
        }
        put_gradient(dz + first * s.qkv_row, w, z + first * s.qkv_row, ds, rows, s);
    }
}

/* == All heads ==================================================================================================== */

/* The first row of head number i of B images, q and k, and H heads. */
typedef struct {
    size_t z, phi;
    int part, h;
} RandomFeaturePlace;

static RandomFeaturePlace place_of(size_t i, RandomFeatureSizes s) {
    size_t b = i / (2 * (size_t)s.H), row = i % (2 * (size_t)s.H);
    size_t token = b * s.N;
    return (RandomFeaturePlace){token * s.qkv_row + row * s.D, token * s.phi_row + row * s.F, (int)(row / s.H),
                                (int)(row % s.H)};
}

void feature_rfa_forward(real *phi, const real *qkv, const float *w, const FeatureShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D, E = shape->F / 2;
    RandomFeatureSizes s = sizes_of(N, H, D, E, 2 * E);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < (size_t)B * 2 * H; i++) {
        RandomFeaturePlace at = place_of(i, s);
        RandomFeatureWork own = work_take(w + (size_t)at.h * E * D, s);
        rfa_forward(phi + at.phi, qkv + at.z, &own, s);
    }
}

void feature_rfa_backward(real *dqkv, const real *dphi, const real *phi, const real *qkv, const float *w,
                          const FeatureShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D, E = shape->F / 2;
    RandomFeatureSizes s = sizes_of(N, H, D, E, 2 * E);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < (size_t)B * 2 * H; i++) {
        RandomFeaturePlace at = place_of(i, s);
        RandomFeatureWork own = work_take(w + (size_t)at.h * E * D, s);
        rfa_backward(dqkv + at.z, dphi + at.phi, phi + at.phi, qkv + at.z, &own, s);
    }
}

void feature_performer_forward(real *phi, const real *qkv, const float *w, const FeatureShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D, E = shape->F;
    RandomFeatureSizes s = sizes_of(N, H, D, E, E);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < (size_t)B * 2 * H; i++) {
        RandomFeaturePlace at = place_of(i, s);
        RandomFeatureWork own = work_take(w + (size_t)at.h * E * D, s);
        performer_forward(phi + at.phi, qkv + at.z, &own, at.part == 1, s);
    }
}

void feature_performer_backward(real *dqkv, const real *dphi, const real *phi, const real *qkv, const float *w,
                                const FeatureShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D, E = shape->F;
    RandomFeatureSizes s = sizes_of(N, H, D, E, E);
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < (size_t)B * 2 * H; i++) {
        RandomFeaturePlace at = place_of(i, s);
        RandomFeatureWork own = work_take(w + (size_t)at.h * E * D, s);
        performer_backward(dqkv + at.z, dphi + at.phi, phi + at.phi, qkv + at.z, &own, s);
    }
}
