/* Ripple attention as in the paper's formulas: for every query, over the tokens of every ring.  It is the reference for
 * the other three algorithms, and sums in double.
 *
 *   forward   num_n = sum_r alpha_r(n) sum_{m in ring r of n} a_nm v_m,  den_n = the same without v, + 1e-6,
 *             a_nm = phi(q_n).phi(k_m),  y_n = num_n / den_n
 *   backward  dnum_n = dy_n / den_n,  dden_n = -(dy_n.y_n) / den_n,  t_nm = dnum_n.v_m + dden_n,
 *             w_nm = alpha_r(n) with m in ring r of n,
 *             dphi(q_n) = sum_m w t phi(k_m),  dphi(k_m) = sum_n w t phi(q_n),  dv_m = sum_n w a dnum_n,
 *             dalpha_r(n) = sum_{m in ring r of n} a t
 * Source: "Ripple Attention for Visual Perception with Sub-quadratic Complexity" (ICML 2022), eq. 4, Appendix B. */
#include "kernels/ripple/ripple_cpu.h"

#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/device/workspace.h"

/* A square ring around a query, of a clip a cube's, clipped to the grid: boxes of outer and inner radius, the inner one
 * excluded. */
typedef struct {
    const RippleRings *rings;
    GridPlace centre, first, end;
    int inner;
} Ring;

static int clip(int i, int low, int high) { return i < low ? low : i > high ? high : i; }

static Ring ring_around(const RippleRings *rings, int n, int r) {
    Grid g = rings->grid;
    GridPlace c = grid_place(g, n);
    bool last = r + 1 >= rings->G;
    int outer = last ? ripple_extent(rings) : rings->bound[r + 1] - 1;
    int frames = last || !rings->ring_time ? g.frames : outer / rings->ring_time;
    return (Ring){.rings = rings,
                  .centre = c,
                  .first = {clip(c.t - frames, 0, c.t), clip(c.y - outer, 0, c.y), clip(c.x - outer, 0, c.x)},
                  .end = {clip(c.t + frames, c.t, g.frames - 1) + 1, clip(c.y + outer, c.y, g.rows - 1) + 1,
                          clip(c.x + outer, c.x, g.columns - 1) + 1},
                  .inner = rings->bound[r]};
}

/* The place before the ring's first one, and the step to the next; false after the last. */
static GridPlace ring_start(const Ring *r) { return (GridPlace){r->first.t, r->first.y, r->first.x - 1}; }
static bool ring_next(const Ring *r, GridPlace *p) {
    do {
        if (++p->x >= r->end.x) p->x = r->first.x, p->y++;
        if (p->y >= r->end.y) p->y = r->first.y, p->t++;
        if (p->t >= r->end.t) return false;
    } while (ripple_distance(r->rings, r->centre, *p) < r->inner);
    return true;
}

static size_t token_at(Grid g, GridPlace p) { return ((size_t)p.t * g.rows + p.y) * g.columns + p.x; }

static double dot(const real *a, const real *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)real_get(a[i]) * real_get(b[i]);
    return sum;
}

static size_t workspace_floats(int N, int D, int F) {
    size_t doubles = (size_t)(N + 1) * (D + F);
    return doubles * (sizeof(double) / sizeof(float));
}

size_t ripple_naive_workspace(const RippleRings *rings, int D, int F) {
    return workspace_bytes(workspace_floats(grid_tokens(rings->grid), D, F));
}

RIPPLE_FORWARD(naive) {
    const float *alpha = in->alpha;
    const real *phi = in->phi, *qkv = in->qkv;
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D, F = shape->F, G = rings->G;
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++) {
            RippleHead o = ripple_head(b, h, N, H, D, F, G);
            double *num = (double *)kernels_workspace(workspace_floats(N, D, F)); /* [D] */
            for (int n = 0; n < N; n++) {
                const real *q = phi + o.q + n * o.phi_row;
                double total = RIPPLE_EPSILON;
                memset(num, 0, D * sizeof *num);
                for (int r = 0; r < G; r++) {
                    Ring ring = ring_around(rings, n, r);
                    double weight = alpha[o.alpha + n * o.alpha_row + r];
                    for (GridPlace p = ring_start(&ring); ring_next(&ring, &p);) {
                        size_t m = token_at(rings->grid, p);
                        const real *v = qkv + o.v + m * o.qkv_row;
                        double wa = weight * dot(q, phi + o.k + m * o.phi_row, F);
                        total += wa;
                        for (int d = 0; d < D; d++) num[d] += wa * real_get(v[d]);
                    }
                }
                for (int d = 0; d < D; d++) y[o.y + n * o.y_row + d] = real_of((float)(num[d] / total));
                den[o.den + n * o.den_row] = (float)total;
            }
        }
}

RIPPLE_BACKWARD(naive) {
    const float *alpha = in->alpha;
    const real *phi = in->phi, *qkv = in->qkv;
    real *dqkv = din->qkv, *dphi = din->phi;
    float *dalpha = din->alpha;
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D, F = shape->F, G = rings->G;
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++) {
            RippleHead o = ripple_head(b, h, N, H, D, F, G);
            double *dk = (double *)kernels_workspace(workspace_floats(N, D, F)); /* [N,F] */
            double *dv = dk + (size_t)N * F, *dq = dv + (size_t)N * D, *dnum = dq + F; /* [N,D], [F], [D] */
            memset(dk, 0, (size_t)N * (F + D) * sizeof *dk);
            for (int n = 0; n < N; n++) {
                const real *q = phi + o.q + n * o.phi_row, *gradient = dy + o.y + n * o.y_row;
                double scale = 1.0 / den[o.den + n * o.den_row];
                double dden = -dot(gradient, y + o.y + n * o.y_row, D) * scale;
                for (int d = 0; d < D; d++) dnum[d] = real_get(gradient[d]) * scale;
                memset(dq, 0, F * sizeof *dq);
                for (int r = 0; r < G; r++) {
                    Ring ring = ring_around(rings, n, r);
                    double weight = alpha[o.alpha + n * o.alpha_row + r], sum = 0;
                    for (GridPlace p = ring_start(&ring); ring_next(&ring, &p);) {
                        size_t m = token_at(rings->grid, p);
                        const real *k = phi + o.k + m * o.phi_row, *v = qkv + o.v + m * o.qkv_row;
                        double a = dot(q, k, F), t = dden;
                        for (int d = 0; d < D; d++) t += dnum[d] * real_get(v[d]);
                        sum += a * t;
                        for (int f = 0; f < F; f++) dq[f] += weight * t * real_get(k[f]);
                        for (int f = 0; f < F; f++) dk[m * F + f] += weight * t * real_get(q[f]);
                        for (int d = 0; d < D; d++) dv[m * D + d] += weight * a * dnum[d];
                    }
                    dalpha[o.alpha + n * o.alpha_row + r] = (float)sum;
                }
                for (int f = 0; f < F; f++) dphi[o.q + n * o.phi_row + f] = real_of((float)dq[f]);
            }
            for (int m = 0; m < N; m++) {
                for (int f = 0; f < F; f++) dphi[o.k + m * o.phi_row + f] = real_of((float)dk[(size_t)m * F + f]);
                for (int d = 0; d < D; d++) dqkv[o.v + m * o.qkv_row + d] = real_of((float)dv[(size_t)m * D + d]);
            }
        }
}

/* Every pair once, in scalar double, and the tokens of inner rings stepped over. */
double ripple_naive_cost(const RippleRings *rings, int D, int F) {
    double N = grid_tokens(rings->grid);
    return 1e-9 * N * N * (0.6 * (D + F) + 1.2 * rings->G);
}
