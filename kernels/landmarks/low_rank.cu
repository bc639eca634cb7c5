/* Low-rank attention through landmarks; the formulas are in kernels/landmarks/low_rank.c.  A block computes all steps
 * of one head after another, with its matrices in a slice of the workspace.  There are only as many blocks as keep the
 * device busy, so that the slices remain in the cache if possible.  Products use tiles of 64 x 64, with 4 x 4 elements
 * for each thread. */
#include "kernels/cuda/fragments.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/landmarks/landmarks.h"

enum { STEPS = 6, THREADS = 256, WARPS = THREADS / WARP, TILE = 64, SLAB = 16, EACH = 4 };
/* Two blocks for each multiprocessor of an H200, and fewer if a long sequence needs large slices. */
static const size_t MOST_BLOCKS = 264, MOST_FLOATS = (size_t)1 << 28;

struct LowRankShape {
    int N, L, D, H;
    bool gaussian;
    float q_scale, a_scale;
    size_t token, landmark, y; /* numbers from one row to the next */
    int v;                     /* offset of v in the row of a token */
    size_t heads, floats;      /* heads of all images; floats of a slice */
};

/* A slice, or at first the workspace: the same members as on the CPU, without padding. */
struct LowRankWork {
    float *q, *k, *v, *dy, *dq, *dk, *dv;                       /* [N,D] */
    float *a, *b, *da, *db, *t, *u, *dt, *du;                   /* [L,D] */
    float *a1, *a2, *a3, *slope;                                /* [N,L], [L,L], [L,N], the largest of them */
    float *step_v[STEPS], *step_w[STEPS], *step_c1[STEPS], *step_c2[STEPS], *step_c3[STEPS], *z; /* [L,L] */
    float *g, *dw, *n2, *n3, *da2t;                             /* [L,L] */
    float *sums;                                                /* [N or L] */
};

/* == Slices ======================================================================================================= */

static float *take(float *slice, size_t *floats, size_t n) {
    float *taken = slice ? slice + *floats : NULL;
    *floats += (n + 31) / 32 * 32;
    return taken;
}

static LowRankWork slice_at(float *slice, const LowRankShape *s, bool backward, size_t *floats) {
    size_t tokens = (size_t)s->N * s->D, landmarks = (size_t)s->L * s->D, square = (size_t)s->L * s->L;
    LowRankWork w = {};
    *floats = 0;
#define TAKE(field, n) w.field = take(slice, floats, n)
    TAKE(q, tokens);
    w.k = s->gaussian ? w.q : take(slice, floats, tokens);
    TAKE(v, tokens);
    TAKE(a, landmarks);
    w.b = s->gaussian ? w.a : take(slice, floats, landmarks);
    TAKE(t, landmarks);
    TAKE(u, landmarks);
    TAKE(a1, (size_t)s->N * s->L);
    TAKE(a2, square);
    TAKE(a3, (size_t)s->N * s->L);
    TAKE(z, square);
    TAKE(sums, s->N > s->L ? s->N : s->L);
    for (int i = 0; i < STEPS; i++) {
        bool own = backward || i == 0;
        w.step_v[i] = backward || i < 2 ? take(slice, floats, square) : w.step_v[i - 2];
        w.step_w[i] = own ? take(slice, floats, square) : w.step_w[0];
        w.step_c1[i] = own ? take(slice, floats, square) : w.step_c1[0];
        w.step_c2[i] = own ? take(slice, floats, square) : w.step_c2[0];
        w.step_c3[i] = own ? take(slice, floats, square) : w.step_c3[0];
    }
    if (!backward) return w;
    TAKE(dy, tokens);
    TAKE(dq, tokens);
    w.dk = s->gaussian ? w.dq : take(slice, floats, tokens);
    TAKE(dv, tokens);
    TAKE(da, landmarks);
    w.db = s->gaussian ? w.da : take(slice, floats, landmarks);
    TAKE(dt, landmarks);
    TAKE(du, landmarks);
    TAKE(slope, (size_t)s->L * (s->N > s->L ? s->N : s->L));
    TAKE(g, square);
    TAKE(dw, square);
    TAKE(n2, square);
    TAKE(n3, square);
    TAKE(da2t, square);
#undef TAKE
    return w;
}

/* This block's slice; members without memory are not used. */
DEVICE LowRankWork slice_of_block(LowRankWork w, const LowRankShape &s) {
    float **p = reinterpret_cast<float **>(&w);
#pragma unroll
    for (int i = 0; i < (int)(sizeof w / sizeof *p); i++) p[i] += blockIdx.x * s.floats;
    return w;
}

/* == Products ===================================================================================================== */

/* A factor and its strides: (columns, 1) reads a matrix, (1, columns) its transpose. */
struct Factor {
    const float *p;
    int row, column;
};

DEVICE Factor plain(const float *p, int columns) { return {p, columns, 1}; }
DEVICE Factor transposed(const float *p, int columns) { return {p, 1, columns}; }

/* c [m,n] (= or +=) a [m,k] b [k,n]; slab [2,SLAB,TILE] shared. */
DEVICE void product(float *c, Factor a, Factor b, int m, int n, int k, bool add, float *slab) {
    float *left = slab, *right = slab + SLAB * TILE;
    int x = (int)threadIdx.x % (TILE / EACH) * EACH, y = (int)threadIdx.x / (TILE / EACH) * EACH;
    for (int i0 = 0; i0 < m; i0 += TILE)
        for (int j0 = 0; j0 < n; j0 += TILE) {
            float sum[EACH][EACH] = {};
            for (int k0 = 0; k0 < k; k0 += SLAB) {
                for (int at = threadIdx.x; at < SLAB * TILE; at += THREADS) {
                    int i = i0 + at % TILE, j = j0 + at % TILE, l = k0 + at / TILE;
                    left[at] = i < m && l < k ? a.p[(size_t)i * a.row + (size_t)l * a.column] : 0;
                    right[at] = j < n && l < k ? b.p[(size_t)l * b.row + (size_t)j * b.column] : 0;
                }
                block_sync();
#pragma unroll 4
                for (int l = 0; l < SLAB; l++)
#pragma unroll
                    for (int i = 0; i < EACH; i++)
#pragma unroll
                        for (int j = 0; j < EACH; j++) sum[i][j] += left[l * TILE + y + i] * right[l * TILE + x + j];
                block_sync();
            }
#pragma unroll
            for (int i = 0; i < EACH; i++)
#pragma unroll
                for (int j = 0; j < EACH; j++)
                    if (i0 + y + i < m && j0 + x + j < n) {
                        float *to = c + (size_t)(i0 + y + i) * n + j0 + x + j;
                        *to = add ? *to + sum[i][j] : sum[i][j];
                    }
        }
    block_sync();
}

/* Calls body(i) for every i < n, divided among the threads, followed by a barrier. */
template <typename Body>
DEVICE void each(size_t n, Body body) {
    for (size_t i = threadIdx.x; i < n; i += THREADS) body(i);
    block_sync();
}

/* to [rows,D] = scale times from's rows. */
DEVICE void gather(float *to, const real *from, size_t row, float scale, int rows, const LowRankShape &s) {
    each((size_t)rows * s.D, [&](size_t i) { to[i] = scale * to_float(from[i / s.D * row + i % s.D]); });
}

DEVICE void scatter(real *to, size_t row, const float *from, float scale, int rows, const LowRankShape &s) {
    each((size_t)rows * s.D, [&](size_t i) { to[i / s.D * row + i % s.D] = to_real(scale * from[i]); });
}

/* == Similarities ================================================================================================= */

DEVICE float half_square(const float *x, int D) {
    float sum = 0;
    for (int c = 0; c < D; c++) sum += x[c] * x[c];
    return sum / 2;
}

/* p [rows,columns] = A(x, z). */
DEVICE void similarity(float *p, const float *x, const float *z, int rows, int columns, const LowRankWork &w,
                       const LowRankShape &s, float *slab) {
    product(p, plain(x, s.D), transposed(z, s.D), rows, columns, s.D, false, slab);
    if (s.gaussian) {
        each(columns, [&](size_t j) { w.sums[j] = half_square(z + j * s.D, s.D); });
        each((size_t)rows * columns, [&](size_t i) {
            p[i] = expf(p[i] - half_square(x + i / columns * s.D, s.D) - w.sums[i % columns]);
        });
        return;
    }
    for (int i = warp_id(); i < rows; i += WARPS) {
        float *row = p + (size_t)i * columns, largest = -INFINITY, sum = 0;
        for (int j = lane_id(); j < columns; j += WARP) largest = fmaxf(largest, row[j]);
        largest = warp_max(largest);
        for (int j = lane_id(); j < columns; j += WARP) sum += row[j] = expf(row[j] - largest);
        sum = warp_sum(sum);
        for (int j = lane_id(); j < columns; j += WARP) row[j] /= sum;
    }
    block_sync();
}

/* dx, dz (+=) from dp [rows,columns], which becomes dS. */
DEVICE void similarity_backward(float *dx, float *dz, float *dp, const float *p, const float *x, const float *z,
                                int rows, int columns, const LowRankWork &w, const LowRankShape &s, float *slab) {
    for (int i = warp_id(); i < rows; i += WARPS) {
        size_t first = (size_t)i * columns;
        float total = 0;
        for (int j = lane_id(); j < columns; j += WARP) total += p[first + j] * dp[first + j];
        total = warp_sum(total);
        for (int j = lane_id(); j < columns; j += WARP)
            dp[first + j] = p[first + j] * (dp[first + j] - (s.gaussian ? 0 : total));
        for (int c = lane_id(); c < s.D && s.gaussian; c += WARP) dx[i * s.D + c] -= total * x[i * s.D + c];
    }
    block_sync();
    product(dx, plain(dp, columns), plain(z, s.D), rows, s.D, columns, true, slab);
    product(dz, transposed(dp, columns), plain(x, s.D), columns, s.D, rows, true, slab);
    if (!s.gaussian) return;
    each(columns, [&](size_t j) {
        w.sums[j] = 0;
        for (int i = 0; i < rows; i++) w.sums[j] += dp[(size_t)i * columns + j];
    });
    each((size_t)columns * s.D, [&](size_t i) { dz[i] -= w.sums[i / s.D] * z[i]; });
}

/* == Pseudo-inverse =============================================================================================== */

DEVICE void multiply(float *c, const float *a, const float *b, bool add, const LowRankShape &s, float *slab) {
    product(c, plain(a, s.L), plain(b, s.L), s.L, s.L, s.L, add, slab);
}

/* p = diagonal on the diagonal, plus factor times from; may be in place. */
DEVICE void shift(float *to, const float *from, float factor, float diagonal, const LowRankShape &s) {
    each((size_t)s.L * s.L, [&](size_t i) { to[i] = factor * from[i] + (i / s.L == i % s.L ? diagonal : 0); });
}

struct Largest {
    float sum, scale; /* largest sum of a column of A2; the factor of A2^T in the initial V */
    int column;
};

DEVICE Largest largest_column(const float *a2, float *sums, const LowRankShape &s) {
    each(s.L, [&](size_t j) {
        sums[j] = 0;
        for (int i = 0; i < s.L; i++) sums[j] += a2[(size_t)i * s.L + j];
    });
    int column = 0;
    for (int j = 1; j < s.L; j++)
        if (sums[j] > sums[column]) column = j;
    float sum = sums[column];
    block_sync();
    return {sum, s.gaussian ? 1 / (sum * sum) : 1 / sum, column};
}

DEVICE void inverse(const LowRankWork &w, const LowRankShape &s, float *slab) {
    float scale = largest_column(w.a2, w.sums, s).scale;
    each((size_t)s.L * s.L, [&](size_t i) { w.step_v[0][i] = scale * w.a2[i % s.L * s.L + i / s.L]; });
    for (int i = 0; i < STEPS; i++) {
        multiply(w.step_w[i], w.a2, w.step_v[i], false, s, slab);
        shift(w.step_c1[i], w.step_w[i], -1, 7, s);
        multiply(w.step_c2[i], w.step_w[i], w.step_c1[i], false, s, slab);
        shift(w.step_c2[i], w.step_c2[i], -1, 15, s);
        multiply(w.step_c3[i], w.step_w[i], w.step_c2[i], false, s, slab);
        shift(w.step_c3[i], w.step_c3[i], -0.25f, 3.25f, s);
        multiply(i + 1 < STEPS ? w.step_v[i + 1] : w.z, w.step_v[i], w.step_c3[i], false, s, slab);
    }
}

/* da2 [L,L] (=) from w.g = dZ^T.  The gradient alternates between g and n3. */
DEVICE void inverse_backward(float *da2, const LowRankWork &w, const LowRankShape &s, float *slab) {
    size_t square = (size_t)s.L * s.L;
    float *g = w.g, *n3 = w.n3;
    each(square, [&](size_t i) { w.da2t[i] = 0; });
    for (int i = STEPS - 1; i >= 0; i--) {
        multiply(n3, g, w.step_v[i], false, s, slab);
        shift(n3, n3, -0.25f, 0, s);
        multiply(w.dw, w.step_c2[i], n3, false, s, slab);
        multiply(w.n2, n3, w.step_w[i], false, s, slab);
        shift(w.n2, w.n2, -1, 0, s);
        multiply(w.dw, w.step_c1[i], w.n2, true, s, slab);
        multiply(n3, w.n2, w.step_w[i], false, s, slab);
        each(square, [&](size_t j) { w.dw[j] -= n3[j]; });
        multiply(n3, w.step_c3[i], g, false, s, slab);
        multiply(n3, w.dw, w.a2, true, s, slab);
        multiply(w.da2t, w.step_v[i], w.dw, true, s, slab);
        float *swapped = g;
        g = n3;
        n3 = swapped;
    }
    Largest m = largest_column(w.a2, w.sums, s);
    float dscale = 0;
    for (size_t i = threadIdx.x; i < square; i += THREADS) dscale += g[i] * w.a2[i];
    dscale = block_sum(dscale, slab);
    float dsum = -dscale * m.scale / m.sum * (s.gaussian ? 2 : 1);
    each(square, [&](size_t i) {
        int column = (int)(i % s.L);
        da2[i] = w.da2t[(size_t)column * s.L + i / s.L] + m.scale * g[i] + (column == m.column ? dsum : 0);
    });
}

/* == Heads ======================================================================================================== */

/* The offsets of a head. */
struct LowRankHead {
    size_t token, landmark, y;
};

DEVICE LowRankHead head_at(size_t head, const LowRankShape &s) {
    size_t image = head / s.H, c = head % s.H * s.D;
    return {image * s.N * s.token + c, image * s.L * s.landmark + c, image * s.N * s.y + c};
}

DEVICE void middle(const LowRankWork &w, const real *tokens, const real *landmarks, const LowRankShape &s,
                   float *slab) {
    gather(w.q, tokens, s.token, s.q_scale, s.N, s);
    gather(w.v, tokens + s.v, s.token, 1, s.N, s);
    gather(w.a, landmarks, s.landmark, s.a_scale, s.L, s);
    if (!s.gaussian) {
        gather(w.k, tokens + s.y, s.token, 1, s.N, s);
        gather(w.b, landmarks + s.y, s.landmark, 1, s.L, s);
    }
    similarity(w.a1, w.q, w.b, s.N, s.L, w, s, slab);
    similarity(w.a2, w.a, w.b, s.L, s.L, w, s, slab);
    similarity(w.a3, w.a, w.k, s.L, s.N, w, s, slab);
    inverse(w, s, slab);
    product(w.t, plain(w.a3, s.N), plain(w.v, s.D), s.L, s.D, s.N, false, slab);
    product(w.u, plain(w.z, s.L), plain(w.t, s.D), s.L, s.D, s.L, false, slab);
}

__global__ void __launch_bounds__(THREADS)
    low_rank_forward_kernel(real *y, const real *tokens, const real *landmarks, LowRankWork first, LowRankShape s) {
    SHARED(float, slab); /* [2,SLAB,TILE] */
    LowRankWork w = slice_of_block(first, s);
    for (size_t head = blockIdx.x; head < s.heads; head += gridDim.x) {
        LowRankHead at = head_at(head, s);
        middle(w, tokens + at.token, landmarks + at.landmark, s, slab);
        product(w.q, plain(w.a1, s.L), plain(w.u, s.D), s.N, s.D, s.L, false, slab);
        scatter(y + at.y, s.y, w.q, 1, s.N, s);
    }
}

__global__ void __launch_bounds__(THREADS)
    low_rank_backward_kernel(real *dtokens, real *dlandmarks, const real *dy, const real *tokens, const real *landmarks,
                             LowRankWork first, LowRankShape s) {
    SHARED(float, slab); /* [2,SLAB,TILE] */
    LowRankWork w = slice_of_block(first, s);
    for (size_t head = blockIdx.x; head < s.heads; head += gridDim.x) {
        LowRankHead at = head_at(head, s);
        middle(w, tokens + at.token, landmarks + at.landmark, s, slab);
        gather(w.dy, dy + at.y, s.y, 1, s.N, s);
        each((size_t)s.N * s.D, [&](size_t i) { w.dq[i] = w.dk[i] = 0; });
        each((size_t)s.L * s.D, [&](size_t i) { w.da[i] = w.db[i] = 0; });
        product(w.du, transposed(w.a1, s.L), plain(w.dy, s.D), s.L, s.D, s.N, false, slab);
        product(w.slope, plain(w.dy, s.D), transposed(w.u, s.D), s.N, s.L, s.D, false, slab);
        similarity_backward(w.dq, w.db, w.slope, w.a1, w.q, w.b, s.N, s.L, w, s, slab);

        product(w.g, plain(w.t, s.D), transposed(w.du, s.D), s.L, s.L, s.D, false, slab);
        inverse_backward(w.slope, w, s, slab);
        similarity_backward(w.da, w.db, w.slope, w.a2, w.a, w.b, s.L, s.L, w, s, slab);

        product(w.dt, transposed(w.z, s.L), plain(w.du, s.D), s.L, s.D, s.L, false, slab);
        product(w.dv, transposed(w.a3, s.N), plain(w.dt, s.D), s.N, s.D, s.L, false, slab);
        product(w.slope, plain(w.dt, s.D), transposed(w.v, s.D), s.L, s.N, s.D, false, slab);
        similarity_backward(w.da, w.dk, w.slope, w.a3, w.a, w.k, s.L, s.N, w, s, slab);

        scatter(dtokens + at.token, s.token, w.dq, s.q_scale, s.N, s);
        scatter(dtokens + at.token + s.v, s.token, w.dv, 1, s.N, s);
        scatter(dlandmarks + at.landmark, s.landmark, w.da, s.a_scale, s.L, s);
        if (s.gaussian) continue;
        scatter(dtokens + at.token + s.y, s.token, w.dk, 1, s.N, s);
        scatter(dlandmarks + at.landmark + s.y, s.landmark, w.db, 1, s.L, s);
    }
}

/* == Launches ===================================================================================================== */

static LowRankShape shape_of(const LowRank *r, int B) {
    int M = r->H * r->D, parts = r->gaussian ? 2 : 3;
    float scale = powf((float)r->D, r->gaussian ? -0.25f : -0.5f);
    return {r->N, r->L, r->D, r->H, r->gaussian, scale, r->gaussian ? 1 : scale, (size_t)parts * M,
            (size_t)(parts - 1) * M, (size_t)M, (parts - 1) * M, (size_t)B * r->H, 0};
}

static unsigned blocks_of(const LowRankShape &s, size_t floats) {
    size_t most = floats / s.floats < MOST_BLOCKS ? floats / s.floats : MOST_BLOCKS;
    return (unsigned)(s.heads < most ? s.heads : most < 1 ? 1 : most);
}

/* The floats of backward's slices. */
static size_t most_floats(LowRankShape s) {
    slice_at(NULL, &s, true, &s.floats);
    return blocks_of(s, MOST_FLOATS) * s.floats;
}

size_t low_rank_workspace(const LowRank *shape, int B) { return most_floats(shape_of(shape, B)) * sizeof(float); }

/* The first block's slice; s->floats; the number of blocks.  Forward has as many blocks as backward's memory has room
 * for, because its slices are shorter. */
static LowRankWork slices(LowRankShape *s, bool backward, unsigned *blocks) {
    slice_at(NULL, s, backward, &s->floats);
    *blocks = blocks_of(*s, most_floats(*s));
    float *workspace = (float *)kernels_workspace(*blocks * s->floats * sizeof(float));
    return slice_at(workspace, s, backward, &s->floats);
}

void low_rank_forward(real *y, const real *tokens, const real *landmarks, const LowRank *shape, int B) {
    LowRankShape s = shape_of(shape, B);
    unsigned blocks;
    LowRankWork w = slices(&s, false, &blocks);
    LAUNCH(low_rank_forward_kernel, blocks, THREADS, 2 * SLAB * TILE * sizeof(float), y, tokens, landmarks, w, s);
}

void low_rank_backward(real *dtokens, real *dlandmarks, const real *dy, const real *tokens, const real *landmarks,
                       const LowRank *shape, int B) {
    LowRankShape s = shape_of(shape, B);
    unsigned blocks;
    LowRankWork w = slices(&s, true, &blocks);
    LAUNCH(low_rank_backward_kernel, blocks, THREADS, 2 * SLAB * TILE * sizeof(float), dtokens, dlandmarks, dy, tokens,
           landmarks, w, s);
}
