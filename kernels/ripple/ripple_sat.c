/* Ripple attention by summed-area tables: the paper's Algorithm 1, and Appendix B for the gradient.
 *
 * With W_r(n) the sum over the square of tokens closer than bound[r+1], ring r is W_r - W_{r-1}, and a square of any
 * size needs four table entries; in a clip it is a box, which needs eight.  The table of feature f holds
 * phi(k_m)[f] [v_m, 1], whose last element is for the denominator.  Features are processed one after the other, so that
 * the table has N entries instead of N F.
 *
 *   forward   [num_n, den_n] = sum_f phi(q_n)[f] sum_r c_r(n) W_r(n),  c_r = alpha_r - alpha_{r+1},
 *             c_{G-1} = alpha_{G-1}
 *   backward  e_n = [dnum_n, dden_n],  p_r = e_n.W_r(n):
 *             dalpha_r(n) = sum_f phi(q_n)[f] (p_r - p_{r-1}),  dphi(q_n)[f] = sum_r c_r p_r;
 *             m is in ring r of n exactly when n is in ring r of m, so with tables of c_r(n) phi(q_n)[f] e_n
 *             X_m = sum_r square_r(m),  dphi(k_m)[f] = X_m.[v_m, 1],  dv_m = sum_f phi(k_m)[f] X_m less its last entry
 * Tables are double, because the sum over a ring of eight tokens can be the difference of two sums over 10^4 tokens. */
#include "kernels/ripple/ripple_cpu.h"

#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/device/workspace.h"
#include "kernels/ripple/ripple.h"
#include "kernels/tokens/grid.h"

enum { LINE = 8 }; /* doubles in a vector and a cache line */

typedef double dvec __attribute__((vector_size(8 * LINE), aligned(8), may_alias));

typedef struct {
    const RippleRings *rings;
    int Tg, Hg, Wg, N, G, D, F;
    int L; /* length of a table row: D + 1 rounded up */
} SatShape;

static SatShape shape_of(const RippleRings *rings, int D, int F) {
    Grid grid = rings->grid;
    return (SatShape){.rings = rings,
                      .Tg = grid.frames,
                      .Hg = grid.rows,
                      .Wg = grid.columns,
                      .N = grid_tokens(grid),
                      .G = rings->G,
                      .D = D,
                      .F = F,
                      .L = (D + 1 + LINE - 1) / LINE * LINE};
}

/* The offsets in the table of a side's two ends, for a square or box. */
typedef struct {
    size_t low, high;
} Span;

typedef struct {
    double *table; /* [Tg,Hg+1,Wg+1,L], row and column 0 are zero */
    double *v, *e; /* [N,L]: [v_m, 1] and [dnum_n, dden_n] */
    double *sum;   /* [N,L]: num and den forward, dv backward */
    double *x;     /* [N,L]: X of one feature */
    double *band;  /* [Wg+1,L] */
    double *p;     /* [Wg,G] */
    double *c;     /* [N,G] */
    double *dweight; /* [N,G] */
    Span *frames, *rows, *columns; /* [Tg,G] [Hg,G] [Wg,G] */
} SatBuffers;

/* Numbers in the table of a frame. */
static size_t plane_of(const SatShape *s) { return (size_t)(s->Hg + 1) * (s->Wg + 1) * s->L; }

static size_t buffers_of(const SatShape *s, SatBuffers *w, float *base) {
    size_t rows = (size_t)s->N * s->L * sizeof(double), weights = (size_t)s->N * s->G * sizeof(double);
    struct {
        void *at;
        size_t bytes;
    } list[] = {{&w->table, s->Tg * plane_of(s) * sizeof(double)},
                {&w->v, rows},
                {&w->e, rows},
                {&w->sum, rows},
                {&w->x, rows},
                {&w->band, (size_t)(s->Wg + 1) * s->L * sizeof(double)},
                {&w->p, (size_t)s->Wg * s->G * sizeof(double)},
                {&w->c, weights},
                {&w->dweight, weights},
                {&w->frames, (size_t)s->Tg * s->G * sizeof(Span)},
                {&w->rows, (size_t)s->Hg * s->G * sizeof(Span)},
                {&w->columns, (size_t)s->Wg * s->G * sizeof(Span)}};
    size_t total = 0;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        if (base) memcpy(list[i].at, &(void *){base + total}, sizeof(void *));
        total += workspace_line_up(list[i].bytes / sizeof(float));
    }
    return total;
}

static size_t workspace_floats(const SatShape *s) {
    SatBuffers unused;
    return buffers_of(s, &unused, NULL);
}

size_t ripple_sat_workspace(const RippleRings *rings, int D, int F) {
    SatShape s = shape_of(rings, D, F);
    return workspace_bytes(workspace_floats(&s));
}

/* table[y+1][x+1] = sum of scale_m rows[m] over the tokens m of a frame up to row y and column x. */
static void build_plane(const SatShape *s, double *restrict table, const double *restrict rows, const double *scale,
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
                double weight = real_get(feature[m * feature_row]) * (scale ? scale[m * s->G] : 1);
                running += weight * *(const dvec *)(rows + m * L + l);
                *(dvec *)(here + (x + 1) * L + l) = running + *(dvec *)(above + (x + 1) * L + l);
            }
        }
    }
}

/* table[t][y+1][x+1]: the same over the tokens of frame t and those before it. */
static void build_table(const SatShape *s, double *restrict table, const double *restrict rows, const double *scale,
                        const real *feature, size_t feature_row) {
    size_t plane = plane_of(s), area = (size_t)s->Hg * s->Wg;
    for (int t = 0; t < s->Tg; t++) {
        double *here = table + t * plane;
        build_plane(s, here, rows + t * area * s->L, scale ? scale + t * area * s->G : NULL,
                    feature + t * area * feature_row, feature_row);
        for (size_t i = 0; t && i < plane; i++) here[i] += here[i - plane];
    }
}

/* The first and last positions in the table of the squares around every row and column, clipped to the grid, and of the
 * boxes around every frame, which are one position later.  scale: the distance of neighbours, 0: none. */
static void clip_squares(const SatShape *s, Span *spans, int positions, size_t step, int scale) {
    for (int i = 0; i < positions; i++)
        for (int r = 0; r < s->G; r++) {
            int reach = r + 1 < s->G && scale ? (s->rings->bound[r + 1] - 1) / scale : positions;
            int low = i > reach ? i - reach : 0, high = i + reach < positions ? i + reach + 1 : positions;
            spans[i * s->G + r] = (Span){low * step, high * step};
        }
}

/* The difference of two table rows: prefix sums along x, in all frames, over the rows within reach of row `line`, so
 * that a square is the difference of two entries and the table is read once for all queries of a row.  In a clip, the
 * same sum in the frames before those within reach is subtracted. */
static void take_band(const SatShape *s, const SatBuffers *w, int line, int r) {
    int t = line / s->Hg;
    Span row = w->rows[(line - t * s->Hg) * s->G + r], frame = w->frames[t * s->G + r];
    size_t plane = plane_of(s);
    const double *last = w->table + frame.high - plane, *before = w->table + frame.low - (frame.low ? plane : 0);
    const double *restrict low = last + row.low, *restrict high = last + row.high;
    const double *restrict low_before = before + row.low, *restrict high_before = before + row.high;
    double *restrict band = w->band;
    for (int i = 0; i < (s->Wg + 1) * s->L; i++) band[i] = high[i] - low[i];
    for (int i = 0; frame.low && i < (s->Wg + 1) * s->L; i++) band[i] -= high_before[i] - low_before[i];
}

/* to += weight (high - low), a square of the band whose ends these are. */
static inline void add_square(double *restrict to, const double *restrict high, const double *restrict low,
                              double weight, int L) {
    for (int l = 0; l < L; l += LINE)
        *(dvec *)(to + l) += weight * (*(const dvec *)(high + l) - *(const dvec *)(low + l));
}

static double lane_sum(dvec x) {
    return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
}

/* Prepares the squares, v_m and its 1, the weights c, and a sum of zero. */
static void gather_head(const SatShape *s, const SatBuffers *w, RippleHead o, const float *alpha, const real *qkv) {
    clip_squares(s, w->frames, s->Tg, plane_of(s), s->rings->ring_time);
    clip_squares(s, w->rows, s->Hg, (size_t)(s->Wg + 1) * s->L, 1);
    clip_squares(s, w->columns, s->Wg, s->L, 1);
    memset(w->v, 0, (size_t)s->N * s->L * sizeof *w->v);
    memset(w->sum, 0, (size_t)s->N * s->L * sizeof *w->sum);
    for (int n = 0; n < s->N; n++) {
        const float *own = alpha + o.alpha + n * o.alpha_row;
        for (int d = 0; d < s->D; d++) w->v[(size_t)n * s->L + d] = real_get(qkv[o.v + n * o.qkv_row + d]);
        w->v[(size_t)n * s->L + s->D] = 1;
        for (int r = 0; r < s->G; r++)
            w->c[(size_t)n * s->G + r] = own[r] - (r + 1 < s->G ? (double)own[r + 1] : 0);
    }
}

static void forward_head(const SatShape *s, const SatBuffers *w, RippleHead o, real *y, float *den, const float *alpha,
                         const real *phi, const real *qkv) {
    gather_head(s, w, o, alpha, qkv);
    for (int f = 0; f < s->F; f++) {
        build_table(s, w->table, w->v, NULL, phi + o.k + f, o.phi_row);
        for (int row = 0; row < s->Tg * s->Hg; row++)
            for (int r = 0; r < s->G; r++) {
                take_band(s, w, row, r);
                for (int x = 0; x < s->Wg; x++) {
                    size_t n = (size_t)row * s->Wg + x;
                    double weight = real_get(phi[o.q + n * o.phi_row + f]) * w->c[n * s->G + r];
                    double *sum = w->sum + n * s->L;
                    Span column = w->columns[x * s->G + r];
                    add_square(sum, w->band + column.high, w->band + column.low, weight, s->L);
                }
            }
    }
    for (int n = 0; n < s->N; n++) {
        const double *sum = w->sum + (size_t)n * s->L;
        double total = sum[s->D] + RIPPLE_EPSILON;
        for (int d = 0; d < s->D; d++) y[o.y + n * o.y_row + d] = real_of((float)(sum[d] / total));
        den[o.den + n * o.den_row] = (float)total;
    }
}

RIPPLE_FORWARD(sat) {
    int B = shape->B, H = shape->H, D = shape->D, F = shape->F;
    SatShape s = shape_of(rings, D, F);
    size_t floats = workspace_floats(&s);
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++) {
            SatBuffers w;
            buffers_of(&s, &w, kernels_workspace(floats));
            forward_head(&s, &w, ripple_head(b, h, s.N, H, D, F, s.G), y, den, in->alpha, in->phi, in->qkv);
        }
}

static void gather_gradients(const SatShape *s, const SatBuffers *w, RippleHead o, const real *dy, const real *y,
                             const float *den) {
    memset(w->e, 0, (size_t)s->N * s->L * sizeof *w->e);
    memset(w->dweight, 0, (size_t)s->N * s->G * sizeof *w->dweight);
    for (int n = 0; n < s->N; n++) {
        double *e = w->e + (size_t)n * s->L, inverse = 1.0 / den[o.den + n * o.den_row], sum = 0;
        for (int d = 0; d < s->D; d++) {
            double gradient = real_get(dy[o.y + n * o.y_row + d]);
            e[d] = gradient * inverse;
            sum += gradient * real_get(y[o.y + n * o.y_row + d]);
        }
        e[s->D] = -sum * inverse;
    }
}

/* dphi(q)[f] and the share of feature f in dalpha. */
static void backward_queries(const SatShape *s, const SatBuffers *w, RippleHead o, real *dphi, const real *phi, int f) {
    build_table(s, w->table, w->v, NULL, phi + o.k + f, o.phi_row);
    for (int row = 0; row < s->Tg * s->Hg; row++) {
        for (int r = 0; r < s->G; r++) {
            take_band(s, w, row, r);
            for (int x = 0; x < s->Wg; x++) {
                Span column = w->columns[x * s->G + r];
                const double *e = w->e + ((size_t)row * s->Wg + x) * s->L;
                const double *high = w->band + column.high, *low = w->band + column.low;
                dvec products = {0};
                for (int l = 0; l < s->L; l += LINE)
                    products += *(const dvec *)(e + l) * (*(const dvec *)(high + l) - *(const dvec *)(low + l));
                w->p[x * s->G + r] = lane_sum(products);
            }
        }
        for (int x = 0; x < s->Wg; x++) {
            size_t n = (size_t)row * s->Wg + x;
            const double *p = w->p + x * s->G;
            double q = real_get(phi[o.q + n * o.phi_row + f]), dq = 0;
            for (int r = 0; r < s->G; r++) {
                w->dweight[n * s->G + r] += q * (p[r] - (r ? p[r - 1] : 0));
                dq += w->c[n * s->G + r] * p[r];
            }
            dphi[o.q + n * o.phi_row + f] = real_of((float)dq);
        }
    }
}

/* dphi(k)[f] and the share of feature f in dv. */
static void backward_keys(const SatShape *s, const SatBuffers *w, RippleHead o, real *dphi, const real *phi, int f) {
    memset(w->x, 0, (size_t)s->N * s->L * sizeof *w->x);
    for (int r = 0; r < s->G; r++) {
        build_table(s, w->table, w->e, w->c + r, phi + o.q + f, o.phi_row);
        double *sum = w->x;
        for (int row = 0; row < s->Tg * s->Hg; row++) {
            take_band(s, w, row, r);
            for (int x = 0; x < s->Wg; x++, sum += s->L) {
                Span column = w->columns[x * s->G + r];
                add_square(sum, w->band + column.high, w->band + column.low, 1, s->L);
            }
        }
    }
    for (int m = 0; m < s->N; m++) {
        const double *x = w->x + (size_t)m * s->L, *v = w->v + (size_t)m * s->L;
        double k = real_get(phi[o.k + m * o.phi_row + f]), *sum = w->sum + (size_t)m * s->L;
        dvec products = {0};
        for (int l = 0, L = s->L; l < L; l += LINE) {
            products += *(const dvec *)(x + l) * *(const dvec *)(v + l);
            *(dvec *)(sum + l) += k * *(const dvec *)(x + l);
        }
        dphi[o.k + m * o.phi_row + f] = real_of((float)lane_sum(products));
    }
}

RIPPLE_BACKWARD(sat) {
    const real *phi = in->phi;
    real *dqkv = din->qkv, *dphi = din->phi;
    float *dalpha = din->alpha;
    int B = shape->B, H = shape->H, D = shape->D, F = shape->F;
    SatShape s = shape_of(rings, D, F);
    size_t floats = workspace_floats(&s);
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++) {
            SatBuffers w;
            RippleHead o = ripple_head(b, h, s.N, H, D, F, s.G);
            buffers_of(&s, &w, kernels_workspace(floats));
            gather_head(&s, &w, o, in->alpha, in->qkv);
            gather_gradients(&s, &w, o, dy, y, den);
            for (int f = 0; f < F; f++) {
                backward_queries(&s, &w, o, dphi, phi, f);
                backward_keys(&s, &w, o, dphi, phi, f);
            }
            for (int n = 0; n < s.N; n++) {
                for (int r = 0; r < s.G; r++)
                    dalpha[o.alpha + n * o.alpha_row + r] = (float)w.dweight[(size_t)n * s.G + r];
                for (int d = 0; d < D; d++) dqkv[o.v + n * o.qkv_row + d] = real_of((float)w.sum[(size_t)n * s.L + d]);
            }
        }
}

/* Counts the accesses to vectors of table rows, for each feature and group; a table that exceeds the second-level cache
 * costs more.  A clip's bands need four rows instead of two, and a token's box still two entries of a band: seven
 * accesses instead of five. */
double ripple_sat_cost(const RippleRings *rings, int D, int F) {
    SatShape s = shape_of(rings, D, F);
    double vectors = (double)s.N * (s.L / LINE) * F, bytes = 4.0 * s.N * s.L * sizeof(double);
    return 1e-9 * (s.Tg > 1 ? 1.4 : 1) * vectors * (3 + (bytes < 1 << 20 ? 5.8 : 7.5) * s.G);
}
