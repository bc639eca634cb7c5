/* Ripple attention as in the paper's formulas, for any size: each thread computes a few columns for one query or key,
 * over the tokens of every ring, with sums in double.  The formulas are those of kernels/ripple/ripple_naive.c; the
 * gradients of keys and values use that n is in ring r of m exactly when m is in ring r of n.  Dense and window use
 * these kernels for heads and features wider than their tiles. */
#include "kernels/ripple/ripple.cuh"
#include "kernels/cuda/rows.cuh"

/* A thread sums COLUMNS columns of a result in registers; wider results use several threads. */
enum { COLUMNS = 16, THREADS = 128 };

struct Shape {
    RippleRings rings;
    int N, H, D, F;
};

/* The square ring r around token n, of a clip a cube's, clipped to the grid: a box without the tokens closer than
 * `inner`. */
struct Ring {
    GridPlace centre;
    int inner, t0, t1, y0, y1, x0, x1;
};

DEVICE int clip(int i, int low, int high) { return i < low ? low : i > high ? high : i; }

DEVICE Ring ring_around(const RippleRings &rings, int n, int r) {
    int T = rings.grid.frames, Hg = rings.grid.rows, Wg = rings.grid.columns;
    GridPlace c = grid_place(rings.grid, n);
    bool last = r + 1 >= rings.G;
    int outer = last ? Hg + Wg : clip(rings.bound[r + 1] - 1, 0, Hg + Wg);
    int frames = last || !rings.ring_time ? T : clip((rings.bound[r + 1] - 1) / rings.ring_time, 0, T);
    int t0 = clip(c.t - frames, 0, c.t), t1 = clip(c.t + frames, c.t, T - 1);
    int y0 = clip(c.y - outer, 0, c.y), y1 = clip(c.y + outer, c.y, Hg - 1);
    int x0 = clip(c.x - outer, 0, c.x), x1 = clip(c.x + outer, c.x, Wg - 1);
    return {c, rings.bound[r], t0, t1, y0, y1, x0, x1};
}

/* Calls visit(m) for the tokens of ring r around n, row by row. */
template <typename Visit>
DEVICE void for_ring(const RippleRings &rings, int n, int r, Visit visit) {
    Ring ring = ring_around(rings, n, r);
    for (int t = ring.t0; t <= ring.t1; t++)
        for (int i = ring.y0; i <= ring.y1; i++)
            for (int j = ring.x0; j <= ring.x1; j++)
                if (ripple_distance(&rings, ring.centre, {t, i, j}) >= ring.inner)
                    visit(((size_t)t * rings.grid.rows + i) * rings.grid.columns + j);
}

DEVICE double dot(const real *a, const real *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)to_float(a[i]) * to_float(b[i]);
    return sum;
}

/* sum += scale x for at most COLUMNS of n columns. */
DEVICE void add_row(double (&sum)[COLUMNS], double scale, const real *x, int n) {
#pragma unroll
    for (int i = 0; i < COLUMNS; i++)
        if (i < n) sum[i] += scale * to_float(x[i]);
}

DEVICE void put_row(real *y, const double (&sum)[COLUMNS], double scale, int n) {
#pragma unroll
    for (int i = 0; i < COLUMNS; i++)
        if (i < n) y[i] = to_real((float)(scale * sum[i]));
}

/* This thread's head, slice of columns and token; false when there is none. */
DEVICE bool find_work(int *head, int *slice, int *n, const Shape &s, int slices, size_t count) {
    size_t at = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (at >= count) return false;
    *n = (int)(at % s.N);
    *slice = (int)(at / s.N % slices);
    *head = (int)(at / s.N / slices);
    return true;
}

__global__ void __launch_bounds__(THREADS)
    ripple_naive_forward_kernel(real *y, float *den, const float *alpha, const real *phi, const real *qkv, Shape s,
                                int slices, size_t count) {
    int head, slice, n;
    if (!find_work(&head, &slice, &n, s, slices, count)) return;
    RippleHead o = ripple_head(head, s.N, s.H, s.D, s.F, s.rings.G);
    const real *q = phi + o.q + n * o.phi_row;
    int first = slice * COLUMNS, columns = s.D - first;
    double num[COLUMNS] = {}, total = RIPPLE_EPSILON;
    for (int r = 0; r < s.rings.G; r++) {
        double weight = alpha[o.alpha + n * o.alpha_row + r];
        for_ring(s.rings, n, r, [&](size_t m) {
            double wa = weight * dot(q, phi + o.k + m * o.phi_row, s.F);
            total += wa;
            add_row(num, wa, qkv + o.v + m * o.qkv_row + first, columns);
        });
    }
    put_row(y + o.y + n * o.y_row + first, num, 1 / total, columns);
    if (slice == 0) den[o.den + n * o.den_row] = (float)total;
}

/* dphi(q) by slices of F; the first slice also takes dalpha. */
__global__ void __launch_bounds__(THREADS)
    ripple_naive_queries_kernel(real *dphi, float *dalpha, const real *dy, const real *y, const float *den,
                                const float *alpha, const real *phi, const real *qkv, Shape s, int slices,
                                size_t count) {
    int head, slice, n;
    if (!find_work(&head, &slice, &n, s, slices, count)) return;
    RippleHead o = ripple_head(head, s.N, s.H, s.D, s.F, s.rings.G);
    const real *q = phi + o.q + n * o.phi_row, *gradient = dy + o.y + n * o.y_row;
    int first = slice * COLUMNS, columns = s.F - first;
    double inverse = 1.0 / den[o.den + n * o.den_row], delta = dot(gradient, y + o.y + n * o.y_row, s.D);
    double dq[COLUMNS] = {};
    for (int r = 0; r < s.rings.G; r++) {
        size_t at = o.alpha + n * o.alpha_row + r;
        double weight = alpha[at], sum = 0;
        for_ring(s.rings, n, r, [&](size_t m) {
            const real *k = phi + o.k + m * o.phi_row;
            double t = dot(gradient, qkv + o.v + m * o.qkv_row, s.D) - delta;
            add_row(dq, weight * t, k + first, columns);
            if (slice == 0) sum += dot(q, k, s.F) * t;
        });
        if (slice == 0) dalpha[at] = (float)(sum * inverse);
    }
    put_row(dphi + o.q + n * o.phi_row + first, dq, inverse, columns);
}

/* dphi(k) by slices of F, then dv by slices of D. */
__global__ void __launch_bounds__(THREADS)
    ripple_naive_keys_kernel(real *dqkv, real *dphi, const real *dy, const real *y, const float *den,
                             const float *alpha, const real *phi, const real *qkv, Shape s, int feature_slices,
                             int slices, size_t count) {
    int head, slice, m;
    if (!find_work(&head, &slice, &m, s, slices, count)) return;
    RippleHead o = ripple_head(head, s.N, s.H, s.D, s.F, s.rings.G);
    const real *k = phi + o.k + m * o.phi_row, *v = qkv + o.v + m * o.qkv_row;
    bool features = slice < feature_slices;
    int first = (features ? slice : slice - feature_slices) * COLUMNS, columns = (features ? s.F : s.D) - first;
    double sum[COLUMNS] = {};
    for (int r = 0; r < s.rings.G; r++)
        for_ring(s.rings, m, r, [&](size_t n) {
            const real *q = phi + o.q + n * o.phi_row, *gradient = dy + o.y + n * o.y_row;
            double weight = (double)alpha[o.alpha + n * o.alpha_row + r] / den[o.den + n * o.den_row];
            if (features)
                add_row(sum, weight * (dot(gradient, v, s.D) - dot(gradient, y + o.y + n * o.y_row, s.D)), q + first,
                        columns);
            else add_row(sum, weight * dot(q, k, s.F), gradient + first, columns);
        });
    put_row(features ? dphi + o.k + m * o.phi_row + first : dqkv + o.v + m * o.qkv_row + first, sum, 1, columns);
}

/* == Launches ===================================================================================================== */

size_t ripple_naive_workspace(const RippleRings *, int, int) { return 0; }

static Shape shape_of(const RippleRings *rings, int H, int D, int F) {
    return {*rings, grid_tokens(rings->grid), H, D, F};
}

static unsigned blocks_of(size_t count) { return (unsigned)ceil_div(count, THREADS); }

RIPPLE_FORWARD(naive) {
    int B = shape->B, H = shape->H, D = shape->D;
    Shape s = shape_of(rings, H, D, shape->F);
    int slices = (int)ceil_div(D, COLUMNS);
    size_t count = (size_t)B * H * slices * s.N;
    LAUNCH(ripple_naive_forward_kernel, blocks_of(count), THREADS, 0, y, den, in->alpha, in->phi, in->qkv, s, slices,
           count);
}

RIPPLE_BACKWARD(naive) {
    const float *alpha = in->alpha;
    const real *phi = in->phi, *qkv = in->qkv;
    int B = shape->B, H = shape->H, D = shape->D, F = shape->F;
    Shape s = shape_of(rings, H, D, F);
    int features = (int)ceil_div(F, COLUMNS), slices = features + (int)ceil_div(D, COLUMNS);
    size_t tokens = (size_t)B * H * s.N;
    LAUNCH(ripple_naive_queries_kernel, blocks_of(tokens * features), THREADS, 0, din->phi, din->alpha, dy, y, den,
           alpha, phi, qkv, s, features, tokens * features);
    LAUNCH(ripple_naive_keys_kernel, blocks_of(tokens * slices), THREADS, 0, din->qkv, din->phi, dy, y, den, alpha, phi,
           qkv, s, features, slices, tokens * slices);
}

/* Predicted, not measured: every slice forms its own dot products, in double, at a tenth of the 64 multiply-adds a
 * clock that a multiprocessor has: the loads are not coalesced. */
double ripple_naive_cost(const RippleRings *rings, int D, int F) {
    double N = grid_tokens(rings->grid);
    double by_D = (double)ceil_div(D, COLUMNS), by_F = (double)ceil_div(F, COLUMNS);
    double products = by_D * (F + COLUMNS) + by_F * (D + COLUMNS) + F + by_F * (2 * D + COLUMNS) + by_D * (F + COLUMNS);
    return N * N * products / (6.4 * RIPPLE_CLOCKS);
}
