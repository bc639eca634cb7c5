/* Ripple attention with explicit softmax scores, a reference; kernels/ripple/ripple_explicit.c has the formulas.  A
 * warp processes one query or, in backward for dk and dv, one key: scores are computed again wherever they are needed,
 * and no N x N matrix is stored.  dk and dv use that n is in ring r of m exactly when m is in ring r of n. */
#include <math.h>

#include "kernels/cuda/fragments.cuh"
#include "kernels/ripple/ripple.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/ripple/ripple.h"
#include "kernels/softmax/attention_shape.h"
#include "kernels/tokens/grid.h"

enum { THREADS = 128, WARPS = THREADS / WARP };

typedef struct {
    RippleRings rings;
    int N, H, D;
    size_t rows; /* queries of all images and heads */
    float scale; /* D^-1/2 */
} ExplicitShape;

size_t ripple_explicit_workspace(const RippleRings *, int) { return 0; }

DEVICE int group_of(const RippleRings &rings, int n, int m) {
    int distance = ripple_distance(&rings, grid_place(rings.grid, n), grid_place(rings.grid, m)), r = rings.G - 1;
    while (rings.bound[r] > distance) r--;
    return r;
}

/* The warp's row of [B,N,H]; warps beyond the last row repeat it and write nothing. */
typedef struct {
    size_t row, q, image, M, stride; /* q: the token's head in qkv; image: token 0's */
    int n;
    bool valid;
} ExplicitPlace;

DEVICE ExplicitPlace place_of(const ExplicitShape &s) {
    ExplicitPlace at = {};
    at.row = (size_t)blockIdx.x * WARPS + warp_id();
    at.valid = at.row < s.rows;
    if (!at.valid) at.row = s.rows - 1;
    size_t token = at.row / s.H, h = at.row % s.H;
    at.n = (int)(token % s.N);
    at.M = (size_t)s.H * s.D;
    at.stride = 3 * at.M;
    at.q = token * at.stride + h * s.D;
    at.image = at.q - at.n * at.stride;
    return at;
}

DEVICE float dot(const real *a, const real *b, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += to_float(a[i]) * to_float(b[i]);
    return sum;
}

/* lse of every group, with lanes over keys; the groups one after the other, without scratch. */
__global__ void __launch_bounds__(THREADS)
    ripple_explicit_forward_kernel(real *y, float *lse, const float *alpha, const real *qkv, ExplicitShape s) {
    ExplicitPlace at = place_of(s);
    const real *q = qkv + at.q, *k = qkv + at.image + at.M, *v = k + at.M;
    alpha += at.row * s.rings.G;
    lse += at.row * s.rings.G;
    for (int r = 0; r < s.rings.G; r++) {
        float most = -INFINITY, sum = 0;
        for (int m = lane_id(); m < s.N; m += WARP)
            if (group_of(s.rings, at.n, m) == r) most = fmaxf(most, s.scale * dot(q, k + m * at.stride, s.D));
        most = warp_max(most);
        for (int m = lane_id(); m < s.N; m += WARP)
            if (group_of(s.rings, at.n, m) == r) sum += expf(s.scale * dot(q, k + m * at.stride, s.D) - most);
        sum = warp_sum(sum);
        if (lane_id() == 0 && at.valid) lse[r] = sum == 0 ? -INFINITY : most + logf(sum);
    }
    warp_sync();
    for (int d = 0; d < s.D; d++) {
        float sum = 0;
        for (int m = lane_id(); m < s.N; m += WARP) {
            int r = group_of(s.rings, at.n, m);
            float p = expf(s.scale * dot(q, k + m * at.stride, s.D) - lse[r]);
            sum += alpha[r] * p * to_float(v[m * at.stride + d]);
        }
        sum = warp_sum(sum);
        if (lane_id() == 0 && at.valid) y[at.row * s.D + d] = to_real(sum);
    }
}

/* dalpha and dq of a query. */
__global__ void __launch_bounds__(THREADS)
    ripple_explicit_backward_queries_kernel(real *dqkv, float *dalpha, const real *dy, const float *lse,
                                            const float *alpha, const real *qkv, ExplicitShape s) {
    ExplicitPlace at = place_of(s);
    const real *q = qkv + at.q, *k = qkv + at.image + at.M, *v = k + at.M;
    alpha += at.row * s.rings.G;
    lse += at.row * s.rings.G;
    dalpha += at.row * s.rings.G;
    dy += at.row * s.D;
    for (int r = 0; r < s.rings.G; r++) {
        float sum = 0;
        for (int m = lane_id(); m < s.N; m += WARP)
            if (group_of(s.rings, at.n, m) == r)
                sum += expf(s.scale * dot(q, k + m * at.stride, s.D) - lse[r]) * dot(dy, v + m * at.stride, s.D);
        sum = warp_sum(sum);
        if (lane_id() == 0 && at.valid) dalpha[r] = sum;
    }
    warp_sync();
    for (int d = 0; d < s.D; d++) {
        float sum = 0;
        for (int m = lane_id(); m < s.N; m += WARP) {
            int r = group_of(s.rings, at.n, m);
            float p = expf(s.scale * dot(q, k + m * at.stride, s.D) - lse[r]);
            sum += alpha[r] * p * (dot(dy, v + m * at.stride, s.D) - dalpha[r]) * to_float(k[m * at.stride + d]);
        }
        sum = warp_sum(sum);
        if (lane_id() == 0 && at.valid) dqkv[at.q + d] = to_real(s.scale * sum);
    }
}

/* dk and dv of a key: the warp's row is the key's. */
__global__ void __launch_bounds__(THREADS)
    ripple_explicit_backward_keys_kernel(real *dqkv, const float *dalpha, const real *dy, const float *lse,
                                         const float *alpha, const real *qkv, ExplicitShape s) {
    ExplicitPlace at = place_of(s);
    const real *q = qkv + at.image, *k = qkv + at.q + at.M, *v = k + at.M;
    size_t first = at.row - (size_t)at.n * s.H; /* the row of token 0 */
    for (int d = 0; d < s.D; d++) {
        float dk = 0, dv = 0;
        for (int n = lane_id(); n < s.N; n += WARP) {
            int r = group_of(s.rings, n, at.n);
            size_t row = first + (size_t)n * s.H, own = row * s.rings.G + r;
            float weight = alpha[own] * expf(s.scale * dot(q + n * at.stride, k, s.D) - lse[own]);
            dv += weight * to_float(dy[row * s.D + d]);
            dk += weight * (dot(dy + row * s.D, v, s.D) - dalpha[own]) * to_float(q[n * at.stride + d]);
        }
        dk = warp_sum(dk);
        dv = warp_sum(dv);
        if (lane_id() == 0 && at.valid) {
            dqkv[at.q + at.M + d] = to_real(s.scale * dk);
            dqkv[at.q + 2 * at.M + d] = to_real(dv);
        }
    }
}

static ExplicitShape shape_of(const RippleRings *rings, int B, int H, int D) {
    ExplicitShape s = {};
    s.rings = *rings;
    s.N = grid_tokens(rings->grid);
    s.H = H;
    s.D = D;
    s.rows = (size_t)B * s.N * H;
    s.scale = 1 / sqrtf((float)D);
    return s;
}

void ripple_explicit_forward(real *y, float *lse, const float *alpha, const real *qkv, const RippleRings *rings,
                             const AttentionShape *shape) {
    int B = shape->B, H = shape->H, D = shape->D;
    ExplicitShape s = shape_of(rings, B, H, D);
    LAUNCH(ripple_explicit_forward_kernel, (unsigned)ceil_div(s.rows, WARPS), THREADS, 0, y, lse, alpha, qkv, s);
}

void ripple_explicit_backward(real *dqkv, float *dalpha, const real *dy, const float *lse, const float *alpha,
                              const real *qkv, const RippleRings *rings, const AttentionShape *shape) {
    int B = shape->B, H = shape->H, D = shape->D;
    ExplicitShape s = shape_of(rings, B, H, D);
    unsigned blocks = (unsigned)ceil_div(s.rows, WARPS);
    LAUNCH(ripple_explicit_backward_queries_kernel, blocks, THREADS, 0, dqkv, dalpha, dy, lse, alpha, qkv, s);
    LAUNCH(ripple_explicit_backward_keys_kernel, blocks, THREADS, 0, dqkv, dalpha, dy, lse, alpha, qkv, s);
}
