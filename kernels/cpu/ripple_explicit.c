/* Ripple attention with explicit softmax scores, query by query: the reference that Appendix A of the paper describes.
 *   forward   s_m = q_n.k_m / sqrt D,  lse_r = log sum_{m in r} exp s_m,  p_m = exp(s_m - lse_g(m)),
 *             y_n = sum_m alpha_g(m) p_m v_m
 *   backward  t_m = dy_n.v_m,  dalpha_r = sum_{m in r} p_m t_m,  ds_m = alpha_g(m) p_m (t_m - dalpha_g(m)),
 *             dv_m += alpha_g(m) p_m dy_n,  dq_n = sum_m ds_m k_m / sqrt D,  dk_m += ds_m q_n / sqrt D
 *   saves     lse [B,N,H,G]. */
#include <stdlib.h>

#include "kernels/cpu/vecmath.h"
#include "kernels/cpu/workspace.h"
#include "kernels/kernels.h"

typedef struct {
    int N, H, D, G;
    size_t row;  /* floats from one token to the next in qkv */
    float scale; /* D^-1/2 */
    const RippleRings *rings;
} Shape;

static Shape shape_of(const RippleRings *rings, int H, int D) {
    int N = rings->grid.rows * rings->grid.columns;
    return (Shape){N, H, D, rings->G, (size_t)3 * H * D, 1 / sqrtf((float)D), rings};
}

/* p and t of one query. */
size_t ripple_explicit_workspace(const RippleRings *rings, int D) {
    (void)D;
    return workspace_bytes(workspace_line_up((size_t)rings->grid.rows * rings->grid.columns) * 2);
}

static int group_of(const RippleRings *rings, int n, int m) {
    int columns = rings->grid.columns, dy = abs(n / columns - m / columns), dx = abs(n % columns - m % columns);
    int distance = dx > dy ? dx : dy, r = rings->G - 1;
    while (rings->bound[r] > distance) r--;
    return r;
}

static void scores(float *s, const real *q, const real *k, Shape shape) {
    for (int m = 0; m < shape.N; m++) s[m] = shape.scale * vec_dot(q, k + m * shape.row, shape.D);
}

/* Of every group; minus infinity where it has no tokens. */
static void log_sums(float *lse, const float *s, int n, Shape shape) {
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

/* y += a x. */
static void add_scaled(real *y, float a, const real *x, int n) {
    for (int j = 0; j < n; j += TILE)
        vec_store_part(y + j, vec_load_part(y + j, n - j) + a * vec_load_part(x + j, n - j), n - j);
}

static void forward_query(real *y, float *lse, const float *alpha, const real *q, const real *k, const real *v, int n,
                          Shape shape) {
    float *s = kernels_workspace(workspace_line_up(shape.N) * 2);
    scores(s, q, k, shape);
    log_sums(lse, s, n, shape);
    memset(y, 0, (size_t)shape.D * sizeof *y);
    for (int m = 0; m < shape.N; m++) {
        int r = group_of(shape.rings, n, m);
        add_scaled(y, alpha[r] * expf(s[m] - lse[r]), v + m * shape.row, shape.D);
    }
}

void ripple_explicit_forward(real *y, float *lse, const float *alpha, const real *qkv, const RippleRings *rings,
                             const AttentionShape *shape) {
    int B = shape->B, H = shape->H, D = shape->D;
    Shape s = shape_of(rings, H, D);
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

/* dq of the query; its share of dk and dv is added to theirs. */
static void backward_query(real *dq, real *dk, real *dv, float *dalpha, const real *dy, const float *lse,
                           const float *alpha, const real *q, const real *k, const real *v, int n, Shape shape) {
    float *p = kernels_workspace(workspace_line_up(shape.N) * 2), *t = p + workspace_line_up(shape.N);
    scores(p, q, k, shape);
    for (int r = 0; r < shape.G; r++) dalpha[r] = 0;
    for (int m = 0; m < shape.N; m++) {
        int r = group_of(shape.rings, n, m);
        p[m] = expf(p[m] - lse[r]);
        t[m] = vec_dot(dy, v + m * shape.row, shape.D);
        dalpha[r] += p[m] * t[m];
    }
    memset(dq, 0, (size_t)shape.D * sizeof *dq);
    for (int m = 0; m < shape.N; m++) {
        int r = group_of(shape.rings, n, m);
        float weight = alpha[r] * p[m], ds = shape.scale * weight * (t[m] - dalpha[r]);
        add_scaled(dv + m * shape.row, weight, dy, shape.D);
        add_scaled(dq, ds, k + m * shape.row, shape.D);
        add_scaled(dk + m * shape.row, ds, q, shape.D);
    }
}

void ripple_explicit_backward(real *dqkv, float *dalpha, const real *dy, const float *lse, const float *alpha,
                              const real *qkv, const RippleRings *rings, const AttentionShape *shape) {
    int B = shape->B, H = shape->H, D = shape->D;
    Shape s = shape_of(rings, H, D);
    size_t N = s.N, M = (size_t)H * D;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++) {
            size_t at = b * N * s.row + (size_t)h * D;
            for (size_t n = 0; n < N; n++)
                for (int part = 1; part < 3; part++)
                    memset(dqkv + at + n * s.row + part * M, 0, (size_t)D * sizeof *dqkv);
            for (size_t n = 0; n < N; n++) {
                size_t row = (b * N + n) * H + h, own = at + n * s.row;
                backward_query(dqkv + own, dqkv + at + M, dqkv + at + 2 * M, dalpha + row * s.G, dy + row * D,
                               lse + row * s.G, alpha + row * s.G, qkv + own, qkv + at + M, qkv + at + 2 * M,
                               (int)n, s);
            }
        }
}
