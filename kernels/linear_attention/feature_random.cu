/* Random features; kernels/linear_attention/feature_random.c has the formulas.  A block processes q or k of one image
 * and head: one pass over the tokens computes the maximum, if it is over tokens, and another one the features.
 * Exponents are float. */
#include <math.h>

#include "kernels/cuda/plain.cuh"
#include "kernels/linear_attention/feature_maps.h"
#include "kernels/softmax/attention_shape.h"

enum { THREADS = 128, WARPS = THREADS / WARP };

typedef struct {
    int N, H, D, E, F, tile;
    int copied;         /* floats of w in shared memory, or 0 */
    float scale, ratio; /* D^-1/4, E^-1/2 */
} RandomFeatureShape;

static RandomFeatureShape shape_of(int N, int H, int D, int E, int F) {
    return {N, H, D, E, F, plain_rows(D + E + 1), plain_weights((size_t)E * D), 1 / sqrtf(sqrtf((float)D)),
            1 / sqrtf((float)E)};
}

static size_t shared_bytes(RandomFeatureShape s) {
    return ((size_t)s.copied + (size_t)s.tile * (s.D + s.E + 1) + WARPS) * sizeof(float);
}

size_t feature_random_workspace(int, int) { return 0; }

/* This block's rows, and its shared memory. */
typedef struct {
    size_t qkv, phi, qkv_row, phi_row;
    bool keys;
    const float *w;      /* [E,D] of the head */
    float *copy;         /* [D,E] transposed, or [E,D], or nothing */
    float *z, *u, *ds;   /* [tile,D], [tile,E], [tile] */
    float *scratch;      /* [WARPS] */
} RandomFeaturePlace;

DEVICE RandomFeaturePlace place_of(const float *w, float *shared, RandomFeatureShape s) {
    size_t b = blockIdx.x / (2 * s.H), row = blockIdx.x % (2 * s.H);
    RandomFeaturePlace at = {};
    at.qkv_row = (size_t)3 * s.H * s.D;
    at.phi_row = (size_t)2 * s.H * s.F;
    at.qkv = b * s.N * at.qkv_row + row * s.D;
    at.phi = b * s.N * at.phi_row + row * s.F;
    at.keys = row >= (size_t)s.H;
    at.w = w + row % s.H * s.E * s.D;
    at.copy = shared;
    at.z = shared + s.copied;
    at.u = at.z + s.tile * s.D;
    at.ds = at.u + s.tile * s.E;
    at.scratch = at.ds + s.tile;
    return at;
}

/* z of the tile at token `first`, and ds = |z'|^2/2. */
DEVICE int load_rows(const RandomFeaturePlace &at, const real *qkv, int first, RandomFeatureShape s) {
    int rows = s.N - first < s.tile ? s.N - first : s.tile;
    const real *from = qkv + at.qkv + first * at.qkv_row;
    block_sync();
    plain_load(at.z, rows, s.D, [&](int i) { return from + i * at.qkv_row; });
    block_sync();
    for (int i = warp_id(); i < rows; i += WARPS) {
        float square = plain_dot(at.z + i * s.D, at.z + i * s.D, s.D);
        if (lane_id() == 0) at.ds[i] = 0.5f * s.scale * s.scale * square;
    }
    block_sync();
    return rows;
}

/* u = w z' of the tile. */
DEVICE void project(const RandomFeaturePlace &at, int rows, RandomFeatureShape s) {
    for (int i = (int)threadIdx.x; i < rows * s.E; i += THREADS) {
        const float *z = at.z + i / s.E * s.D;
        int e = i % s.E;
        float sum = 0;
        for (int d = 0; d < s.D; d++) sum += (s.copied ? at.copy[d * s.E + e] : at.w[(size_t)e * s.D + d]) * z[d];
        at.u[i] = s.scale * sum;
    }
    block_sync();
}

DEVICE float block_max(float x, float *scratch) {
    x = warp_max(x);
    if (lane_id() == 0) scratch[warp_id()] = x;
    block_sync();
    float most = scratch[0];
    for (int w = 1; w < WARPS; w++) most = fmaxf(most, scratch[w]);
    block_sync();
    return most;
}

/* == Forward ====================================================================================================== */

__global__ void __launch_bounds__(THREADS)
    feature_rfa_forward_kernel(real *phi, const real *qkv, const float *w, RandomFeatureShape s) {
    SHARED(float, shared);
    RandomFeaturePlace at = place_of(w, shared, s);
    float most = 0;
    if (s.copied) plain_copy(at.copy, at.w, s.E, s.D, true);
    for (int first = 0; first < s.N; first += s.tile) {
        int rows = load_rows(at, qkv, first, s);
        for (int i = (int)threadIdx.x; i < rows; i += THREADS) most = fmaxf(most, at.ds[i]);
    }
    most = block_max(most, at.scratch);
    for (int first = 0; first < s.N; first += s.tile) {
        int rows = load_rows(at, qkv, first, s);
        project(at, rows, s);
        for (int i = (int)threadIdx.x; i < rows * s.E; i += THREADS) {
            float sine, cosine, height = s.ratio * expf(at.ds[i / s.E] - most);
            real *to = phi + at.phi + (first + i / s.E) * at.phi_row + i % s.E;
            fast_sincos(at.u[i], &sine, &cosine);
            to[0] = to_real(height * sine);
            to[s.E] = to_real(height * cosine);
        }
    }
}

static const float PERFORMER_EPSILON = 1e-4f;

__global__ void __launch_bounds__(THREADS)
    feature_performer_forward_kernel(real *phi, const real *qkv, const float *w, float epsilon, RandomFeatureShape s) {
    SHARED(float, shared);
    RandomFeaturePlace at = place_of(w, shared, s);
    float most = -INFINITY;
    if (s.copied) plain_copy(at.copy, at.w, s.E, s.D, true);
    for (int first = 0; at.keys && first < s.N; first += s.tile) {
        int rows = load_rows(at, qkv, first, s);
        project(at, rows, s);
        for (int i = (int)threadIdx.x; i < rows * s.E; i += THREADS) most = fmaxf(most, at.u[i]);
    }
    most = block_max(most, at.scratch);
    for (int first = 0; first < s.N; first += s.tile) {
        int rows = load_rows(at, qkv, first, s);
        project(at, rows, s);
        for (int i = warp_id(); i < rows; i += WARPS) {
            const float *u = at.u + i * s.E;
            real *to = phi + at.phi + (first + i) * at.phi_row;
            float own = -INFINITY;
            for (int e = lane_id(); e < s.E; e += WARP) own = fmaxf(own, u[e]);
            own = warp_max(own);
            float shift = at.ds[i] + (at.keys ? most : own);
            for (int e = lane_id(); e < s.E; e += WARP) to[e] = to_real(s.ratio * (expf(u[e] - shift) + epsilon));
        }
    }
}

/* == Backward ===================================================================================================== */

/* dz = D^-1/4 (w^T du + ds z') of the tile; du in u. */
DEVICE void put_gradient(real *dqkv, const RandomFeaturePlace &at, int first, int rows, RandomFeatureShape s) {
    const float *w = s.copied ? at.copy : at.w;
    for (int i = (int)threadIdx.x; i < rows * s.D; i += THREADS) {
        int row = i / s.D, d = i % s.D;
        float sum = 0;
        for (int e = 0; e < s.E; e++) sum += w[(size_t)e * s.D + d] * at.u[row * s.E + e];
        dqkv[at.qkv + (first + row) * at.qkv_row + d] = to_real(s.scale * (sum + s.scale * at.ds[row] * at.z[i]));
    }
}

/* slope(phi, dphi, e, ds) gives du_e of a row and adds to ds. */
template <typename Slope>
DEVICE void backward_rows(real *dqkv, const real *dphi, const real *phi, const real *qkv, const RandomFeaturePlace &at,
                          RandomFeatureShape s, Slope slope) {
    if (s.copied) plain_copy(at.copy, at.w, s.E, s.D, false);
    for (int first = 0; first < s.N; first += s.tile) {
        int rows = load_rows(at, qkv, first, s);
        for (int i = warp_id(); i < rows; i += WARPS) {
            size_t row = at.phi + (first + i) * at.phi_row;
            float ds = 0;
            for (int e = lane_id(); e < s.E; e += WARP) at.u[i * s.E + e] = slope(phi + row, dphi + row, e, ds);
            ds = warp_sum(ds);
            if (lane_id() == 0) at.ds[i] = ds;
        }
        block_sync();
        put_gradient(dqkv, at, first, rows, s);
    }
}

__global__ void __launch_bounds__(THREADS)
    feature_rfa_backward_kernel(real *dqkv, const real *dphi, const real *phi, const real *qkv, const float *w,
                                RandomFeatureShape s) {
    SHARED(float, shared);
    RandomFeaturePlace at = place_of(w, shared, s);
    backward_rows(dqkv, dphi, phi, qkv, at, s, [=](const real *value, const real *slope, int e, float &ds) {
        float sine = to_float(value[e]), cosine = to_float(value[s.E + e]);
        float dsine = to_float(slope[e]), dcosine = to_float(slope[s.E + e]);
        ds += dsine * sine + dcosine * cosine;
        return dsine * cosine - dcosine * sine;
    });
}

__global__ void __launch_bounds__(THREADS)
    feature_performer_backward_kernel(real *dqkv, const real *dphi, const real *phi, const real *qkv, const float *w,
                                      float epsilon, RandomFeatureShape s) {
    SHARED(float, shared);
    RandomFeaturePlace at = place_of(w, shared, s);
    backward_rows(dqkv, dphi, phi, qkv, at, s, [=](const real *value, const real *slope, int e, float &ds) {
        float du = to_float(slope[e]) * (to_float(value[e]) - s.ratio * epsilon);
        ds -= du;
        return du;
    });
}

/* == Launches ===================================================================================================== */

void feature_rfa_forward(real *phi, const real *qkv, const float *w, const FeatureShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D, E = shape->F / 2;
    RandomFeatureShape s = shape_of(N, H, D, E, 2 * E);
    LAUNCH(feature_rfa_forward_kernel, (unsigned)B * 2 * H, THREADS, shared_bytes(s), phi, qkv, w, s);
}

void feature_rfa_backward(real *dqkv, const real *dphi, const real *phi, const real *qkv, const float *w,
                          const FeatureShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D, E = shape->F / 2;
    RandomFeatureShape s = shape_of(N, H, D, E, 2 * E);
    LAUNCH(feature_rfa_backward_kernel, (unsigned)B * 2 * H, THREADS, shared_bytes(s), dqkv, dphi, phi, qkv, w, s);
}

void feature_performer_forward(real *phi, const real *qkv, const float *w, const FeatureShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D, E = shape->F;
    RandomFeatureShape s = shape_of(N, H, D, E, E);
    LAUNCH(feature_performer_forward_kernel, (unsigned)B * 2 * H, THREADS, shared_bytes(s), phi, qkv, w,
           PERFORMER_EPSILON, s);
}

void feature_performer_backward(real *dqkv, const real *dphi, const real *phi, const real *qkv, const float *w,
                                const FeatureShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D, E = shape->F;
    RandomFeatureShape s = shape_of(N, H, D, E, E);
    LAUNCH(feature_performer_backward_kernel, (unsigned)B * 2 * H, THREADS, shared_bytes(s), dqkv, dphi, phi, qkv, w,
           PERFORMER_EPSILON, s);
}
