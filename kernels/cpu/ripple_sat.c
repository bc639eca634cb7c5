/* Ripple attention by summed-area tables: the paper's Algorithm 1, and Appendix B for the gradient.
 *
 * With W_r(n) the sum over the square of tokens closer than bound[r+1], ring r is W_r - W_{r-1}, and a square costs four
 * table entries whatever its size.  The table of feature f holds phi(k_m)[f] [v_m, 1], so that a row ends with the
 * denominator's share; the features go one after the other, and a table of N rows stays in the cache instead of N F.
 *
 *   forward   [num_n, den_n] = sum_f phi(q_n)[f] sum_r c_r(n) W_r(n),   c_r = alpha_r - alpha_{r+1},  c_{G-1} = alpha_{G-1}
 *   backward  e_n = [dnum_n, dden_n],  p_r = e_n.W_r(n):
 *             dalpha_r(n) = sum_f phi(q_n)[f] (p_r - p_{r-1}),  dphi(q_n)[f] = sum_r c_r p_r;
 *             m is in ring r of n exactly when n is in ring r of m, so with tables of c_r(n) phi(q_n)[f] e_n
 *             X_m = sum_r square_r(m),  dphi(k_m)[f] = X_m.[v_m, 1],  dv_m = sum_f phi(k_m)[f] X_m without its last entry
 * Tables are double: a prefix sum over 10^4 tokens minus another leaves a ring of eight. */
#include "kernels/cpu/ripple.h"

#include <string.h>

#include "kernels/cpu/workspace.h"

enum { LINE = 8 }; /* doubles in a vector and a cache line */

typedef double dvec __attribute__((vector_size(8 * LINE), aligned(8), may_alias));

typedef struct {
    const RippleRings *rings;
    int Hg, Wg, N, G, D, F;
    int L; /* length of a table row: D + 1 rounded up */
} Shape;

static Shape shape_of(const RippleRings *rings, int D, int F) {
    return (Shape){.rings = rings, .Hg = rings->Hg, .Wg = rings->Wg, .N = rings->Hg * rings->Wg, .G = rings->G, .D = D,
                   .F = F, .L = (D + 1 + LINE - 1) / LINE * LINE};
}

typedef struct {
    double *table; /* [Hg+1,Wg+1,L], row and column 0 are zero */
    double *v, *e; /* [N,L]: [v_m, 1] and [dnum_n, dden_n] */
    double *sum;   /* [N,L]: num and den forward, dv backward */
    double *x;     /* [N,L]: X of one feature */
    double *c;     /* [N,G] */
    double *dweight; /* [N,G] */
} Buffers;

static size_t buffers_of(const Shape *s, Buffers *w, float *base) {
    size_t rows = (size_t)s->N * s->L, weights = (size_t)s->N * s->G;
    struct {
        double **at;
        size_t n;
    } list[] = {{&w->table, (size_t)(s->Hg + 1) * (s->Wg + 1) * s->L}, {&w->v, rows}, {&w->e, rows}, {&w->sum, rows},
                {&w->x, rows}, {&w->c, weights}, {&w->dweight, weights}};
    size_t total = 0;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        if (base) *list[i].at = (double *)(void *)(base + total);
        total += workspace_line_up(list[i].n * (sizeof(double) / sizeof(float)));
    }
    return total;
}

static size_t workspace_floats(const Shape *s) {
    Buffers unused;
    return buffers_of(s, &unused, NULL);
}

size_t ripple_sat_workspace(const RippleRings *rings, int D, int F) {
    Shape s = shape_of(rings, D, F);
    return workspace_bytes(workspace_floats(&s));
}

/* table[y+1][x+1] = sum of scale_m rows[m] over the tokens m up to row y and column x. */
static void build_table(const Shape *s, double *restrict table, const double *restrict rows, const double *scale,
                        const real *feature, size_t feature_row) {
    int L = s->L, width = (s->Wg + 1) * L;
    memset(table, 0, width * sizeof *table);
    for (int y = 0; y < s->Hg; y++) {
        double *restrict above = table + (size_t)y * width, *restrict here = above + width;
        memset(here, 0, L * sizeof *here);
        for (int l = 0; l < L; l += LINE) {
            dvec running = {0};
            for (int x = 0; x < s->Wg; x++) {
                size_t m = (size_t)y * s->Wg + x;
                double weight = feature[m * feature_row] * (scale ? scale[m * s->G] : 1);
                running += weight * *(const dvec *)(rows + m * L + l);
                *(dvec *)(here + (x + 1) * L + l) = running + *(dvec *)(above + (x + 1) * L + l);
            }
        }
    }
}

/* The four table rows whose signed sum is the square of group r around (y, x), clipped to the grid. */
typedef struct {
    const double *plus[2], *minus[2];
} Square;

static Square square_at(const Shape *s, const double *table, int y, int x, int r) {
    int reach = r + 1 < s->G ? s->rings->bound[r + 1] - 1 : s->Hg + s->Wg;
    int y0 = y > reach ? y - reach : 0, y1 = y + reach < s->Hg ? y + reach + 1 : s->Hg;
    int x0 = x > reach ? x - reach : 0, x1 = x + reach < s->Wg ? x + reach + 1 : s->Wg;
    size_t width = (size_t)(s->Wg + 1) * s->L;
    const double *low = table + y0 * width, *high = table + y1 * width;
    return (Square){{high + (size_t)x1 * s->L, low + (size_t)x0 * s->L}, {low + (size_t)x1 * s->L, high + (size_t)x0 * s->L}};
}

static inline dvec square_sum(const Square *q, int l) {
    return (*(const dvec *)(q->plus[0] + l) - *(const dvec *)(q->minus[0] + l)) -
           (*(const dvec *)(q->minus[1] + l) - *(const dvec *)(q->plus[1] + l));
}

static double lane_sum(dvec x) {
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

/* v_m and its 1, the weights c, and an empty sum. */
static void gather_head(const Shape *s, const Buffers *w, RippleHead o, const float *alpha, const real *qkv) {
    memset(w->v, 0, (size_t)s->N * s->L * sizeof *w->v);
    memset(w->sum, 0, (size_t)s->N * s->L * sizeof *w->sum);
    for (int n = 0; n < s->N; n++) {
        const float *own = alpha + o.alpha + n * o.alpha_row;
        for (int d = 0; d < s->D; d++) w->v[(size_t)n * s->L + d] = qkv[o.v + n * o.qkv_row + d];
        w->v[(size_t)n * s->L + s->D] = 1;
        for (int r = 0; r < s->G; r++)
            w->c[(size_t)n * s->G + r] = own[r] - (r + 1 < s->G ? (double)own[r + 1] : 0);
    }
}

static void forward_head(const Shape *s, const Buffers *w, RippleHead o, real *y, float *den, const float *alpha,
                         const real *phi, const real *qkv) {
    gather_head(s, w, o, alpha, qkv);
    for (int f = 0; f < s->F; f++) {
        build_table(s, w->table, w->v, NULL, phi + o.k + f, o.phi_row);
        for (int n = 0; n < s->N; n++) {
            double q = phi[o.q + n * o.phi_row + f];
            for (int r = 0; r < s->G; r++) {
                Square square = square_at(s, w->table, n / s->Wg, n % s->Wg, r);
                double weight = q * w->c[(size_t)n * s->G + r], *sum = w->sum + (size_t)n * s->L;
                for (int l = 0; l < s->L; l += LINE) *(dvec *)(sum + l) += weight * square_sum(&square, l);
            }
        }
    }
    for (int n = 0; n < s->N; n++) {
        const double *sum = w->sum + (size_t)n * s->L;
        double total = sum[s->D] + RIPPLE_EPSILON;
        for (int d = 0; d < s->D; d++) y[o.y + n * o.y_row + d] = (real)(sum[d] / total);
        den[o.den + n * o.den_row] = (float)total;
    }
}

RIPPLE_FORWARD(sat) {
    Shape s = shape_of(rings, D, F);
    size_t floats = workspace_floats(&s);
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++) {
            Buffers w;
            buffers_of(&s, &w, kernels_workspace(floats));
            forward_head(&s, &w, ripple_head(b, h, s.N, H, D, F, s.G), y, den, alpha, phi, qkv);
        }
}

static void gather_gradients(const Shape *s, const Buffers *w, RippleHead o, const real *dy, const real *y,
                             const float *den) {
    memset(w->e, 0, (size_t)s->N * s->L * sizeof *w->e);
    memset(w->dweight, 0, (size_t)s->N * s->G * sizeof *w->dweight);
    for (int n = 0; n < s->N; n++) {
        double *e = w->e + (size_t)n * s->L, inverse = 1.0 / den[o.den + n * o.den_row], sum = 0;
        for (int d = 0; d < s->D; d++) {
            double gradient = dy[o.y + n * o.y_row + d];
            e[d] = gradient * inverse;
            sum += gradient * y[o.y + n * o.y_row + d];
        }
        e[s->D] = -sum * inverse;
    }
}

/* dphi(q)[f] and the share of feature f in dalpha. */
static void backward_queries(const Shape *s, const Buffers *w, RippleHead o, real *dphi, const real *phi, int f) {
    build_table(s, w->table, w->v, NULL, phi + o.k + f, o.phi_row);
    for (int n = 0; n < s->N; n++) {
        double q = phi[o.q + n * o.phi_row + f], dq = 0, smaller = 0;
        const double *e = w->e + (size_t)n * s->L;
        for (int r = 0; r < s->G; r++) {
            Square square = square_at(s, w->table, n / s->Wg, n % s->Wg, r);
            dvec products = {0};
            for (int l = 0; l < s->L; l += LINE) products += *(const dvec *)(e + l) * square_sum(&square, l);
            double p = lane_sum(products);
            w->dweight[(size_t)n * s->G + r] += q * (p - smaller);
            dq += w->c[(size_t)n * s->G + r] * p;
            smaller = p;
        }
        dphi[o.q + n * o.phi_row + f] = (real)dq;
    }
}

/* dphi(k)[f] and the share of feature f in dv. */
static void backward_keys(const Shape *s, const Buffers *w, RippleHead o, real *dphi, const real *phi, int f) {
    memset(w->x, 0, (size_t)s->N * s->L * sizeof *w->x);
    for (int r = 0; r < s->G; r++) {
        build_table(s, w->table, w->e, w->c + r, phi + o.q + f, o.phi_row);
        for (int m = 0; m < s->N; m++) {
            Square square = square_at(s, w->table, m / s->Wg, m % s->Wg, r);
            double *x = w->x + (size_t)m * s->L;
            for (int l = 0; l < s->L; l += LINE) *(dvec *)(x + l) += square_sum(&square, l);
        }
    }
    for (int m = 0; m < s->N; m++) {
        const double *x = w->x + (size_t)m * s->L, *v = w->v + (size_t)m * s->L;
        double k = phi[o.k + m * o.phi_row + f], *sum = w->sum + (size_t)m * s->L;
        dvec products = {0};
        for (int l = 0; l < s->L; l += LINE) {
            products += *(const dvec *)(x + l) * *(const dvec *)(v + l);
            *(dvec *)(sum + l) += k * *(const dvec *)(x + l);
        }
        dphi[o.k + m * o.phi_row + f] = (real)lane_sum(products);
    }
}

RIPPLE_BACKWARD(sat) {
    Shape s = shape_of(rings, D, F);
    size_t floats = workspace_floats(&s);
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++) {
            Buffers w;
            RippleHead o = ripple_head(b, h, s.N, H, D, F, s.G);
            buffers_of(&s, &w, kernels_workspace(floats));
            gather_head(&s, &w, o, alpha, qkv);
            gather_gradients(&s, &w, o, dy, y, den);
            for (int f = 0; f < F; f++) {
                backward_queries(&s, &w, o, dphi, phi, f);
                backward_keys(&s, &w, o, dphi, phi, f);
            }
            for (int n = 0; n < s.N; n++) {
                for (int r = 0; r < s.G; r++)
                    dalpha[o.alpha + n * o.alpha_row + r] = (float)w.dweight[(size_t)n * s.G + r];
                for (int d = 0; d < D; d++) dqkv[o.v + n * o.qkv_row + d] = (real)w.sum[(size_t)n * s.L + d];
            }
        }
}

double ripple_sat_cost(const RippleRings *rings, int D, int F) { return 1e-9*rings->G*D*F; }
