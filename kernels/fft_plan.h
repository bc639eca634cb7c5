/* The plan of a discrete Fourier transform over the N = Hg Wg tokens of an image, the same for every device: over the
 * tokens as one sequence (1d), or over the rows and the columns of the grid (2d).
 *
 * The transform works in place with mixed radices.  Forward is a decimation in frequency: a stage of radix r turns each
 * block of L elements into r blocks of m = L/r,
 *     u_q[j] = W_L^(jq) sum_k x[j + k m] W_r^(kq),  W_n = exp(-2 pi i / n),
 * with u_q[j] stored at j + q m, and the next stage works on the blocks of m.  The inverse runs the same stages in
 * reverse with conjugate roots.  The result is not reordered: frequency f stands at a permuted index, which FftPair
 * gives.
 *
 * Two real sequences are transformed at once as z = x1 + i x2.  With f' = -f,
 *     X1[f] = (Z[f] + conj Z[f']) / 2,  X2[f] = (Z[f] - conj Z[f']) / 2i,  and X[f'] = conj X[f],
 * so that one of f and f' is enough: a half spectrum, [pairs]. */
#ifndef VIT_KERNELS_FFT_PLAN_H
#define VIT_KERNELS_FFT_PLAN_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#include "kernels/grid.h"

#ifdef __CUDACC__
#define FFT_INLINE static inline __host__ __device__
#else
#define FFT_INLINE static inline
#endif

enum { FFT_MAX_STAGES = 32, FFT_LARGEST_RADIX = 8 };

/* The sequences along one axis.  Each has n elements, `stride` apart.  `beside` sequences start at neighbouring
 * elements, and this group is repeated `places` times, `step` elements apart. */
typedef struct {
    int n, stride, beside, places, step, stages;
    int radix[FFT_MAX_STAGES];
    int roots; /* index of the first stage's roots in FftPlan.roots; each stage has fft_turns complex numbers */
} FftAxis;

/* The indices a of frequency f and b of f' in the transformed tensor, a = b if f = f'.  (fy, fx) is f itself, with
 * fy = 0 in 1d. */
typedef struct {
    int a, b, fy, fx;
} FftPair;

typedef struct {
    Grid tokens;
    int N, axes, pairs, root_count;
    bool grid;   /* 2d */
    int largest; /* largest prime factor of a side, or 1 if none is above 7 */
    FftAxis axis[2];
    const float *roots;  /* [root_count,2] */
    const FftPair *pair; /* [pairs] */
} FftPlan;

/* How many complex roots one stage needs: W_L^(jq) for j < L/r and 0 < q < r, and also W_r^k for a radix that has no
 * butterfly of its own. */
FFT_INLINE int fft_turns(int r, int L) { return L / r * (r - 1) + (r > FFT_LARGEST_RADIX ? r : 0); }

/* The radix of the next stage.  Large ones come first: the first stages work on the largest blocks and miss the cache
 * most. */
static inline int fft_radix(int n) {
    const int radices[] = {8, 7, 5, 4, 3, 2};
    if (n % 16 == 0 && n % 32) return 4; /* 16 = 4 x 4, not 8 x 2 */
    for (int i = 0; i < 6; i++)
        if (n % radices[i] == 0) return radices[i];
    int p = 11;
    while (n % p) p += 2;
    return p;
}

static inline float *fft_put_root(float *w, int n, long long k) {
    double angle = -2 * 3.14159265358979323846 * (double)(k % n) / n;
    w[0] = (float)cos(angle);
    w[1] = (float)sin(angle);
    return w + 2;
}

/* Fills in the axis's stages, and at [n]: the index of each frequency f in the transformed sequence. */
static inline void fft_axis_start(FftPlan *plan, FftAxis *axis, int *at) {
    axis->roots = plan->root_count;
    for (int L = axis->n; L > 1; axis->stages++) {
        int r = axis->radix[axis->stages] = fft_radix(L);
        plan->root_count += fft_turns(r, L);
        if (r > FFT_LARGEST_RADIX && r > plan->largest) plan->largest = r;
        L /= r;
    }
    for (int f = 0; f < axis->n; f++) {
        int left = f, L = axis->n;
        at[f] = 0;
        for (int s = 0; s < axis->stages; s++) {
            L /= axis->radix[s];
            at[f] += left % axis->radix[s] * L;
            left /= axis->radix[s];
        }
    }
}

static inline float *fft_axis_roots(const FftAxis *axis, float *w) {
    for (int s = 0, L = axis->n; s < axis->stages; L /= axis->radix[s++]) {
        int r = axis->radix[s];
        for (int j = 0; j < L / r; j++)
            for (int q = 1; q < r; q++) w = fft_put_root(w, L, (long long)j * q);
        for (int k = 0; r > FFT_LARGEST_RADIX && k < r; k++) w = fft_put_root(w, r, k);
    }
    return w;
}

/* roots and pair are host memory from the caller's `allocate`. */
static inline FftPlan fft_plan_make(Grid tokens, bool grid,
                                    void *(*allocate)(size_t count, size_t size, const char *what)) {
    FftPlan plan = {};
    int N = grid_tokens(tokens), h = grid ? tokens.rows : 1, w = grid ? tokens.columns : N;
    int *at = (int *)allocate((size_t)h + w, sizeof *at, "transform plan"), *at_y = at, *at_x = at + h;
    FftPair *pair = (FftPair *)allocate(N, sizeof *pair, "transform plan");
    plan.tokens = tokens, plan.N = N, plan.grid = grid, plan.largest = 1, plan.axes = grid ? 2 : 1;
    FftAxis *rows = &plan.axis[plan.axes - 1];
    rows->n = w, rows->stride = 1, rows->beside = 1, rows->places = h, rows->step = w;
    if (grid) {
        FftAxis *columns = &plan.axis[0];
        columns->n = h, columns->stride = w, columns->beside = w, columns->places = 1;
        fft_axis_start(&plan, columns, at_y);
    }
    fft_axis_start(&plan, rows, at_x);
    float *roots = (float *)allocate(2 * (size_t)plan.root_count + 1, sizeof *roots, "transform plan"), *next = roots;
    for (int i = 0; i < plan.axes; i++) next = fft_axis_roots(&plan.axis[i], next);
    for (int x = 0; x <= w / 2; x++)
        for (int y = 0; y < h; y++) {
            int y2 = (h - y) % h, x2 = (w - x) % w;
            if (x == x2 && y > y2) continue;
            FftPair p = {at_y[y] * w + at_x[x], at_y[y2] * w + at_x[x2], y, x};
            pair[plan.pairs++] = p;
        }
    free(at);
    plan.roots = roots;
    plan.pair = pair;
    return plan;
}

/* True if the plan serves this transform. */
static inline bool fft_plan_is(const FftPlan *plan, Grid tokens, bool grid) {
    if (!grid) return !plan->grid && plan->N == grid_tokens(tokens);
    return plan->grid && plan->tokens.rows == tokens.rows && plan->tokens.columns == tokens.columns;
}

#endif
