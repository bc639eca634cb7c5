/* The plan of a discrete Fourier transform over the N = T Hg Wg tokens of an image or clip, the same for every device:
 * over the tokens as one sequence, or over the frames, rows and columns of the grid.
 *
 * The transform works in place with mixed radices.  Forward is a decimation in frequency: a stage of radix r turns each
 * block of L elements into r blocks of m = L/r,
 *     u_q[j] = W_L^(jq) sum_k x[j + k m] W_r^(kq),  W_n = exp(-2 pi i / n),
 * with u_q[j] stored at j + q m, and the next stage works on the blocks of m.  The inverse runs the same stages in
 * reverse with conjugate roots.  The result is not reordered: frequency f is at a permuted index, which FftPair
 * gives.
 *
 * Two real sequences are transformed at once as z = x1 + i x2.  With f' = -f,
 *     X1[f] = (Z[f] + conj Z[f']) / 2,  X2[f] = (Z[f] - conj Z[f']) / 2i,  and X[f'] = conj X[f],
 * so that one of f and f' is enough: a half spectrum, [pairs]. */
#ifndef VIT_KERNELS_LISA_FFT_PLAN_H
#define VIT_KERNELS_LISA_FFT_PLAN_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#include "kernels/tokens/grid.h"

#ifdef __CUDACC__
#define FFT_INLINE static inline __host__ __device__
#else
#define FFT_INLINE static inline
#endif

enum { FFT_MAX_STAGES = 32, FFT_LARGEST_RADIX = 8 };

/* The sequences along one axis.  Each has n elements, `stride` apart.  `beside` sequences start at adjacent elements,
 * and this group is repeated `places` times, `step` elements apart. */
typedef struct {
    int n, stride, beside, places, step, stages;
    int radix[FFT_MAX_STAGES];
    int roots; /* index of the first stage's roots in FftPlan.roots; each stage has fft_turns complex numbers */
} FftAxis;

/* The indices a of frequency f and b of f' in the transformed tensor, a = b if f = f'.  f itself is column fx of row
 * fy, of Hg rows for each frequency in time; fy = 0 for one sequence. */
typedef struct {
    int a, b, fy, fx;
} FftPair;

typedef struct {
    Grid tokens;
    int N, axes, pairs, root_count;
    bool grid;   /* over its axes; the axis of frames is left out if there is one frame */
    int largest; /* largest prime factor of a side, or 1 if none is above 7 */
    FftAxis axis[3];
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

/* FftPair.fy of -f. */
FFT_INLINE int fft_opposite_row(const FftPlan *plan, int row) {
    int T = plan->grid ? plan->tokens.frames : 1, h = plan->grid ? plan->tokens.rows : 1, t = row / h;
    return (T - t) % T * h + (h - (row - t * h)) % h;
}

/* roots and pair are host memory from the caller's `allocate`. */
static inline FftPlan fft_plan_make(Grid tokens, bool grid,
                                    void *(*allocate)(size_t count, size_t size, const char *what)) {
    FftPlan plan = {};
    int N = grid_tokens(tokens), T = grid ? tokens.frames : 1, h = grid ? tokens.rows : 1, w = N / (T * h);
    int *at = (int *)allocate((size_t)h + w + T, sizeof *at, "transform plan"), *at_y = at, *at_x = at + h;
    int *at_t = at_x + w;
    FftPair *pair = (FftPair *)allocate(N, sizeof *pair, "transform plan");
    plan.tokens = tokens, plan.N = N, plan.grid = grid, plan.largest = 1;
    plan.axes = !grid ? 1 : T > 1 ? 3 : 2;
    FftAxis *rows = &plan.axis[plan.axes - 1];
    rows->n = w, rows->stride = 1, rows->beside = 1, rows->places = T * h, rows->step = w;
    if (grid) {
        FftAxis *columns = &plan.axis[plan.axes - 2], *frames = &plan.axis[0];
        if (T > 1) {
            frames->n = T, frames->stride = h * w, frames->beside = h * w, frames->places = 1;
            fft_axis_start(&plan, frames, at_t);
        }
        columns->n = h, columns->stride = w, columns->beside = w, columns->places = T, columns->step = h * w;
        fft_axis_start(&plan, columns, at_y);
    }
    fft_axis_start(&plan, rows, at_x);
    float *roots = (float *)allocate(2 * (size_t)plan.root_count + 1, sizeof *roots, "transform plan"), *next = roots;
    for (int i = 0; i < plan.axes; i++) next = fft_axis_roots(&plan.axis[i], next);
    for (int x = 0; x <= w / 2; x++)
        for (int row = 0; row < T * h; row++) {
            int row2 = fft_opposite_row(&plan, row), x2 = (w - x) % w;
            if (x == x2 && row > row2) continue;
            FftPair p = {(at_t[row / h] * h + at_y[row % h]) * w + at_x[x],
                         (at_t[row2 / h] * h + at_y[row2 % h]) * w + at_x[x2], row, x};
            pair[plan.pairs++] = p;
        }
    free(at);
    plan.roots = roots;
    plan.pair = pair;
    return plan;
}

/* Bytes of a plan's tables. */
static inline size_t fft_plan_bytes(const FftPlan *plan) {
    return 2 * (size_t)plan->root_count * sizeof *plan->roots + (size_t)plan->N * sizeof *plan->pair;
}

/* Whether to keep a plan, where plan 0 is the one used last; `bytes` is the size of its tables and those of all plans
 * used since.  A model whose grid does not change has only a few, whatever their size; pictures of many sizes have
 * thousands. */
static inline bool fft_plan_kept(int plan, size_t bytes) {
    const int few = 32, most = 512;
    return plan < few || (plan < most && bytes <= (size_t)64 << 20);
}

/* True if the plan is for this transform. */
static inline bool fft_plan_is(const FftPlan *plan, Grid tokens, bool grid) {
    if (!grid) return !plan->grid && plan->N == grid_tokens(tokens);
    return plan->grid && plan->tokens.frames == tokens.frames && plan->tokens.rows == tokens.rows &&
           plan->tokens.columns == tokens.columns;
}

/* A list of plans, the most recently used one first. */
typedef struct FftKnown {
    FftPlan plan;
    size_t bytes; /* of its tables */
    struct FftKnown *next;
} FftKnown;

/* The plan for this transform, which becomes the first one; NULL: there is none. */
static inline FftKnown *fft_known_find(FftKnown **known, Grid tokens, bool grid) {
    for (FftKnown **k = known; *k; k = &(*k)->next)
        if (fft_plan_is(&(*k)->plan, tokens, grid)) {
            FftKnown *found = *k;
            *k = found->next;
            found->next = *known;
            return *known = found;
        }
    return NULL;
}

/* Makes `made` the first plan, and frees those that are not to be kept. */
static inline void fft_known_add(FftKnown **known, FftKnown *made, void (*plan_free)(FftKnown *)) {
    size_t bytes = 0;
    int count = 0;
    made->next = *known;
    *known = made;
    for (FftKnown **k = known; *k;) {
        FftKnown *old = *k;
        bytes += old->bytes;
        if (fft_plan_kept(count++, bytes)) {
            k = &old->next;
            continue;
        }
        *k = old->next;
        bytes -= old->bytes;
        plan_free(old);
    }
}

static inline void fft_known_free(FftKnown **known, void (*plan_free)(FftKnown *)) {
    while (*known) {
        FftKnown *next = (*known)->next;
        plan_free(*known);
        *known = next;
    }
}

#endif
