/* Ripple attention with explicit softmax scores, query by query: the reference that Appendix A of the paper describes.
 *   forward   s_m = q_n.k_m / sqrt D,  lse_r = log sum_{m in r} exp s_m,  p_m = exp(s_m - lse_g(m)),
 *             y_n = sum_m alpha_g(m) p_m v_m
 *   backward  t_m = dy_n.v_m,  dalpha_r = sum_{m in r} p_m t_m,  ds_m = alpha_g(m) p_m (t_m - dalpha_g(m)),
 *             dv_m += alpha_g(m) p_m dy_n,  dq_n = sum_m ds_m k_m / sqrt D,  dk_m += ds_m q_n / sqrt D
 *   saves     lse [B,N,H,G]. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/device/workspace.h"
#include "kernels/ripple/ripple.h"
#include "kernels/softmax/attention_shape.h"
#include "kernels/tokens/grid.h"

typedef struct {
    int N, H, D, G;
    size_t row;  /* numbers from one token to the next in qkv */
    float scale; /* D^-1/2 */
    const RippleRings *rings;
} ExplicitShape;

static ExplicitShape shape_of(const RippleRings *rings, int H, int D) {
    int N = grid_tokens(rings->grid);
    return (ExplicitShape){N, H, D, rings->G, (size_t)3 * H * D, 1 / sqrtf((float)D), rings};
}

/* Sums, which are rounded once: p, t [N] and y or dq [D] of one query, and dk and dv [N,D] of a head. */
typedef struct {
    float *p, *t, *sum, *dk, *dv;
} ExplicitWork;

static size_t work_floats(size_t N, size_t D) {
    return 2 * workspace_line_up(N) + workspace_line_up(D) + 2 * workspace_line_up(N * D);
}

static ExplicitWork work_take(ExplicitShape s) {
    size_t N = s.N, D = s.D;
    float *next = kernels_workspace(work_floats(N, D));
    ExplicitWork w;
    w.p = workspace_take(&next, N);
    w.t = workspace_take(&next, N);
    w.sum = workspace_take(&next, D);
    w.dk = workspace_take(&next, N * D);
    w.dv = workspace_take(&next, N * D);
    return w;
}

size_t ripple_explicit_workspace(const RippleRings *rings, int D) {
    return workspace_bytes(work_floats((size_t)grid_tokens(rings->grid), D));
}

static int group_of(const RippleRings *rings, int n, int m) {
    int distance = ripple_distance(rings, grid_place(rings->grid, n), grid_place(rings->grid, m)), r = rings->G - 1;
    while (rings->bound[r] > distance) r--;
    return r;
}

static void scores(float *s, const real *q, const real *k, ExplicitShape shape) {
    for (int m = 0; m < shape.N; m++) s[m] = shape.scale * reals_dot(q, k + m * shape.row, shape.D);
}

/* Computes the log-sum-exp of every group; it is minus infinity where the group has no tokens. */
static void log_sums(float *lse, const float *s, int n, ExplicitShape shape) {
    float most[RIPPLE_MAX_GROUPS], sum[RIPPLE_MAX_GROUPS];
    for (int r = 0; r < shape.G; r++) most[r] = -INFINITY, sum[r] = 0;
    for (int m = 0; m < shape.N; m++) {
        int r = group_of(shape.rings, n, m);
        if (!(s[m] <= most[r])) most[r] = s[m];
    }
    for (int m = 0; m < shape.N; m++) {
        int r = group_of(shape.rings, n, m);
        sum[r] += expf(s[m] - most[r]);
    }
    for (int r = 0; r < shape.G; r++) lse[r] = sum[r] == 0 ? -INFINITY : most[r] + logf(sum[r]);
}

static void forward_query(real *y, float *lse, const float *alpha, const real *q, const real *k, const real *v, int n,
                          ExplicitShape shape) {
    ExplicitWork w = work_take(shape);
    float *s = w.p;
    scores(s, q, k, shape);
    log_sums(lse, s, n, shape);
    memset(w.sum, 0, (size_t)shape.D * sizeof *w.sum);
    for (int m = 0; m < shape.N; m++) {
        int r = group_of(shape.rings, n, m);
        reals_add(w.sum, alpha[r] * expf(s[m] - lse[r]), v + m * shape.row, shape.D);
    }
    reals_round(y, w.sum, (size_t)shape.D);
}

void ripple_explicit_forward(real *y, float *lse, const float *alpha, const real *qkv, const RippleRings *rings,
                             const AttentionShape *shape) {
    int B = shape->B, H = shape->H, D = shape->D;
    ExplicitShape s = shape_of(rings, H, D);
    size_t N = s.N, M = (size_t)H * D;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++) {
            const real *q = qkv + b * N * s.row + (size_t)h * D;
            for (size_t n = 0; n < N; n++) {
                size_t row = (b * N + n) * H + h;
                forward_query(y + row * D, lse + row * s.G, alpha + row * s.G, q + n * s.row, q + M,
                              q + 2 * M, (int)n, s);
            }
        }
}

/* dq of one query; its contributions to dk and dv are added up in the workspace. */
static void backward_query(real *dq, float *dalpha, const real *dy, const float *lse, const float *alpha, const real *q,
                           const real *k, const real *v, ExplicitWork w, int n, ExplicitShape shape) {
    float *p = w.p, *t = w.t;
    scores(p, q, k, shape);
    for (int r = 0; r < shape.G; r++) dalpha[r] = 0;
    for (int m = 0; m < shape.N; m++) {
        int r = group_of(shape.rings, n, m);
        p[m] = expf(p[m] - lse[r]);
        t[m] = reals_dot(dy, v + m * shape.row, shape.D);
        dalpha[r] += p[m] * t[m];
    }
    memset(w.sum, 0, (size_t)shape.D * sizeof *w.sum);
    for (int m = 0; m < shape.N; m++) {
        int r = group_of(shape.rings, n, m);
        float weight = alpha[r] * p[m], ds = shape.scale * weight * (t[m] - dalpha[r]);
        reals_add(w.dv + (size_t)m * shape.D, weight, dy, shape.D);
        reals_add(w.sum, ds, k + m * shape.row, shape.D);
        reals_add(w.dk + (size_t)m * shape.D, ds, q, shape.D);
    }
    reals_round(dq, w.sum, (size_t)shape.D);
}

void ripple_explicit_backward(real *dqkv, float *dalpha, const real *dy, const float *lse, const float *alpha,
                              const real *qkv, const RippleRings *rings, const AttentionShape *shape) {
    int B = shape->B, H = shape->H, D = shape->D;
    ExplicitShape s = shape_of(rings, H, D);
    size_t N = s.N, M = (size_t)H * D;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++) {
            size_t at = b * N * s.row + (size_t)h * D;
            ExplicitWork w = work_take(s);
            memset(w.dk, 0, N * D * sizeof *w.dk);
            memset(w.dv, 0, N * D * sizeof *w.dv);
            for (size_t n = 0; n < N; n++) {
                size_t row = (b * N + n) * H + h, own = at + n * s.row;
                backward_query(dqkv + own, dalpha + row * s.G, dy + row * D, lse + row * s.G, alpha + row * s.G,
                               qkv + own, qkv + at + M, qkv + at + 2 * M, w, (int)n, s);
            }
            for (size_t n = 0; n < N; n++) {
                reals_round(dqkv + at + n * s.row + M, w.dk + n * D, (size_t)D);
                reals_round(dqkv + at + n * s.row + 2 * M, w.dv + n * D, (size_t)D);
            }
        }
}
