/* Attention through L landmarks, one (image, head) at a time: q, k of the tokens, a, b those of the landmarks.
 *   forward   A1 = A(q, b) [N,L],  A2 = A(a, b) [L,L],  A3 = A(a, k) [L,N],  Z = A2's pseudo-inverse,
 *             T = A3 v,  U = Z T,  y = A1 U
 *   backward  dU = A1^T dy,  dA1 = dy U^T,  dZ = dU T^T,  dT = Z^T dU,  dA3 = dT v^T,  dv = A3^T dT
 *   A(x, z)   S = x z^T;  softmax   A = softmax of S's rows,             dS = A (dA - rowsum(A dA))
 *                         gaussian  A = exp(S - |x|^2/2 - |z|^2/2),      dS = A dA
 *             dx = dS z,  dz = dS^T x,  gaussian  dx -= x rowsum(dS),  dz -= z colsum(dS)
 *   Z         V = A2^T / m^p, m the largest sum of a column of A2, p 1 for softmax and 2 for gaussian; then STEPS times
 *             W = A2 V,  C1 = 7 - W,  C2 = 15 - W C1,  C3 = (13 - W C2)/4,  V' = V C3
 *   backward, transposed so that no right factor has to be: G = dV'^T,  N3 = -G V/4,  N2 = -N3 W,
 *             dW^T = C2 N3 + C1 N2 - N2 W,  dV^T = C3 G + dW^T A2,  dA2^T += V dW^T
 *   Source: Xiong et al. 2021 (Nystromformer; the scheme is Razavi et al. 2014's), Lu et al. 2021 (SOFT).
 *
 * Nothing is saved: the V of all steps would need more memory than q, k, v and y together, and would save the backward
 * pass only 6 of its 72 products of L x L matrices.  Copies have rows of whole vectors, and whole tiles of rows, so
 * that they can be transposed; padding is zero. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "core/integers.h"
#include "kernels/cpu/activations.h"
#include "kernels/device/workspace.h"
#include "kernels/landmarks/landmarks.h"

enum { STEPS = 6 };

typedef struct {
    int N, L, D, Np, Lp, Dp;
    bool gaussian;
    float q_scale, k_scale;
    size_t token, landmark, y; /* row strides, in floats */
    int v;                     /* offset of v within a token's row */
} LowRankShape;

static LowRankShape shape_of(const LowRank *r) {
    int M = r->H * r->D, parts = r->gaussian ? 2 : 3;
    return (LowRankShape){.N = r->N,
                          .L = r->L,
                          .D = r->D,
                          .Np = tile_round_up(r->N),
                          .Lp = tile_round_up(r->L),
                          .Dp = tile_round_up(r->D),
                          .gaussian = r->gaussian,
                          .q_scale = powf((float)r->D, r->gaussian ? -0.25f : -0.5f),
                          .k_scale = 1,
                          .token = (size_t)parts * M,
                          .landmark = (size_t)(parts - 1) * M,
                          .y = (size_t)M,
                          .v = (parts - 1) * M};
}

/* One step's matrices [L,Lp]. */
typedef struct {
    float *v, *w, *c1, *c2, *c3;
} Step;

typedef struct {
    float *q, *k, *v, *dy, *dq, *dk, *dv;        /* [Np,Dp]; gaussian: k is q, dk is dq */
    float *a, *b, *da, *db, *t, *u, *dt, *du;    /* [Lp,Dp]; gaussian: b is a, db is da */
    float *transposed;                           /* [Dp,Np or Lp] a right factor's transpose */
    float *a1, *a2, *a3, *slope;                 /* [N,Lp], [L,Lp], [L,Np]; the gradient of one of them */
    Step step[STEPS];
    float *z;                                    /* [L,Lp] */
    float *g, *dw, *n2, *n3, *da2t;              /* [L,Lp] */
    float *sums;                                 /* [Np or Lp] */
} LowRankWork;

/* *floats counts the floats taken; `next` may be NULL to count only. */
static float *take(float **next, size_t *floats, size_t n) {
    *floats += workspace_line_up(n);
    return *next ? workspace_take(next, n) : NULL;
}

static LowRankWork work_take(const LowRankShape *s, bool backward, float *next, size_t *floats) {
    size_t tokens = (size_t)s->Np * s->Dp, landmarks = (size_t)s->Lp * s->Dp, square = (size_t)s->L * s->Lp;
    size_t most = larger_size((size_t)s->Np, (size_t)s->Lp);
    LowRankWork w = {0};
    *floats = 0;
#define TAKE(field, n) w.field = take(&next, floats, n)
    TAKE(q, tokens);
    if (!s->gaussian) TAKE(k, tokens);
    TAKE(v, tokens);
    TAKE(a, landmarks);
    if (!s->gaussian) TAKE(b, landmarks);
    TAKE(t, landmarks);
    TAKE(u, landmarks);
    TAKE(transposed, most * s->Dp);
    TAKE(a1, (size_t)s->N * s->Lp);
    TAKE(a2, square);
    TAKE(a3, (size_t)s->L * s->Np);
    TAKE(z, square);
    TAKE(sums, most);
    for (int i = 0; i < STEPS; i++) {
        if (i > 1) w.step[i].v = w.step[i - 2].v; /* forward needs only the current V and the previous one */
        if (i > 0) w.step[i] = (Step){w.step[i].v, w.step[0].w, w.step[0].c1, w.step[0].c2, w.step[0].c3};
        if (backward || i < 2) TAKE(step[i].v, square);
        if (!backward && i > 0) continue;
        TAKE(step[i].w, square);
        TAKE(step[i].c1, square);
        TAKE(step[i].c2, square);
        TAKE(step[i].c3, square);
    }
    if (backward) {
        TAKE(dy, tokens);
        TAKE(dq, tokens);
        if (!s->gaussian) TAKE(dk, tokens);
        TAKE(dv, tokens);
        TAKE(da, landmarks);
        if (!s->gaussian) TAKE(db, landmarks);
        TAKE(dt, landmarks);
        TAKE(du, landmarks);
        TAKE(slope, larger_size((size_t)s->N * s->Lp, (size_t)s->L * s->Np));
        TAKE(g, square);
        TAKE(dw, square);
        TAKE(n2, square);
        TAKE(n3, square);
        TAKE(da2t, square);
    }
#undef TAKE
    if (s->gaussian) {
        w.k = w.q;
        w.b = w.a;
        w.dk = w.dq;
        w.db = w.da;
    }
    return w;
}

static size_t work_floats(const LowRankShape *s, bool backward) {
    size_t floats;
    work_take(s, backward, NULL, &floats);
    return floats;
}

size_t low_rank_workspace(const LowRank *shape, int B) {
    (void)B;
    LowRankShape s = shape_of(shape);
    return workspace_bytes(work_floats(&s, true));
}

/* to [Dp,padded] = from [padded,Dp] transposed. */
static const float *transpose(float *to, const float *from, int padded, const LowRankShape *s) {
    tiles_transpose(to, (size_t)padded, from, (size_t)s->Dp, padded, s->Dp);
    return to;
}

/* == Similarities ================================================================================================= */

static float half_square(const float *x, const LowRankShape *s) { return vec_dot(x, x, s->Dp) / 2; }

static void softmax_row(float *p, int columns, int padded) {
    for (int j = columns; j < padded; j++) p[j] = -INFINITY;
    vec largest = vec_load(p), sum = {0};
    for (int j = TILE; j < padded; j += TILE) largest = vec_max(vec_load(p + j), largest);
    float shift = vec_largest(largest);
    for (int j = 0; j < padded; j += TILE) {
        vec e = vec_exp_floored(vec_load(p + j) - shift);
        vec_store(p + j, e);
        sum += e;
    }
    vec share = vec_set(1 / vec_sum(sum));
    for (int j = 0; j < padded; j += TILE) vec_store(p + j, share * vec_load(p + j));
    for (int j = columns; j < padded; j++) p[j] = 0;
}

/* p [rows,padded] = A(x, z). */
static void similarity(float *p, const float *x, const float *z, int rows, int columns, int padded,
                       const LowRankWork *w, const LowRankShape *s) {
    tile_gemm(p, padded, x, s->Dp, 1, transpose(w->transposed, z, padded, s), padded, rows, padded, s->D, 0);
    if (s->gaussian)
        for (int j = 0; j < columns; j++) w->sums[j] = half_square(z + (size_t)j * s->Dp, s);
    for (int i = 0; i < rows; i++) {
        float *row = p + (size_t)i * padded;
        if (!s->gaussian) {
            softmax_row(row, columns, padded);
            continue;
        }
        vec own = vec_set(half_square(x + (size_t)i * s->Dp, s));
        for (int j = 0; j < columns; j += TILE)
            vec_store(row + j, vec_exp_floored(vec_load(row + j) - own - vec_load(w->sums + j)));
        for (int j = columns; j < padded; j++) row[j] = 0;
    }
}

/* dx, dz (+=) from dp [rows,padded], which becomes dS. */
static void similarity_backward(float *dx, float *dz, float *dp, const float *p, const float *x, const float *z,
                                int rows, int columns, int padded, const LowRankWork *w, const LowRankShape *s) {
    memset(w->sums, 0, padded * sizeof *w->sums);
    for (int i = 0; i < rows; i++) {
        float *slope = dp + (size_t)i * padded;
        const float *row = p + (size_t)i * padded;
        vec sum = {0};
        for (int j = 0; j < padded; j += TILE) sum += vec_load(row + j) * vec_load(slope + j);
        float total = vec_sum(sum);
        for (int j = 0; j < padded; j += TILE) {
            vec ds = vec_load(row + j) * (vec_load(slope + j) - (s->gaussian ? 0 : total));
            vec_store(slope + j, ds);
            vec_store(w->sums + j, vec_load(w->sums + j) + ds);
        }
        for (int c = 0; c < s->Dp && s->gaussian; c += TILE) {
            size_t at = (size_t)i * s->Dp + c;
            vec_store(dx + at, vec_load(dx + at) - total * vec_load(x + at));
        }
    }
    tile_gemm(dx, s->Dp, dp, padded, 1, z, s->Dp, rows, s->Dp, columns, 1);
    tile_gemm(dz, s->Dp, dp, 1, padded, x, s->Dp, columns, s->Dp, rows, 1);
    for (size_t at = 0; at < (size_t)columns * s->Dp && s->gaussian; at += TILE)
        vec_store(dz + at, vec_load(dz + at) - w->sums[at / s->Dp] * vec_load(z + at));
}

/* == Pseudo-inverse =============================================================================================== */

/* c [L,Lp] = a b, or c += a b. */
static void multiply(float *c, const float *a, const float *b, int accumulate, const LowRankShape *s) {
    tile_gemm(c, s->Lp, a, s->Lp, 1, b, s->Lp, s->L, s->Lp, s->L, accumulate);
}

/* to = diagonal on the diagonal, plus factor times from; may be in place. */
static void shift(float *to, const float *from, float factor, float diagonal, const LowRankShape *s) {
    for (size_t i = 0; i < (size_t)s->L * s->Lp; i += TILE) vec_store(to + i, factor * vec_load(from + i));
    for (int i = 0; i < s->L; i++) to[(size_t)i * s->Lp + i] += diagonal;
}

static void transpose_square(float *to, const float *from, float scale, const LowRankShape *s) {
    for (int i = 0; i < s->L; i++)
        for (int j = 0; j < s->Lp; j++)
            to[(size_t)i * s->Lp + j] = j < s->L ? scale * from[(size_t)j * s->Lp + i] : 0;
}

/* Returns the largest column sum of A2; *most is that column. */
static float largest_column(const float *a2, int *most, float *sums, const LowRankShape *s) {
    memset(sums, 0, s->Lp * sizeof *sums);
    for (int i = 0; i < s->L; i++)
        for (int j = 0; j < s->Lp; j += TILE)
            vec_store(sums + j, vec_load(sums + j) + vec_load(a2 + (size_t)i * s->Lp + j));
    *most = 0;
    for (int j = 1; j < s->L; j++)
        if (sums[j] > sums[*most]) *most = j;
    return sums[*most];
}

/* The factor of A2^T in the initial V. */
static float start_scale(float sum, const LowRankShape *s) { return s->gaussian ? 1 / (sum * sum) : 1 / sum; }

static void inverse(const LowRankWork *w, const LowRankShape *s) {
    int most;
    transpose_square(w->step[0].v, w->a2, start_scale(largest_column(w->a2, &most, w->sums, s), s), s);
    for (int i = 0; i < STEPS; i++) {
        const Step *t = &w->step[i];
        multiply(t->w, w->a2, t->v, 0, s);
        shift(t->c1, t->w, -1, 7, s);
        multiply(t->c2, t->w, t->c1, 0, s);
        shift(t->c2, t->c2, -1, 15, s);
        multiply(t->c3, t->w, t->c2, 0, s);
        shift(t->c3, t->c3, -0.25f, 3.25f, s);
        multiply(i + 1 < STEPS ? w->step[i + 1].v : w->z, t->v, t->c3, 0, s);
    }
}

/* da2 [L,Lp] (=) from w->g = dZ^T.  The gradient alternates between g and n3. */
static void inverse_backward(float *da2, const LowRankWork *w, const LowRankShape *s) {
    size_t square = (size_t)s->L * s->Lp;
    float *g = w->g, *n3 = w->n3;
    memset(w->da2t, 0, square * sizeof *w->da2t);
    for (int i = STEPS - 1; i >= 0; i--) {
        const Step *t = &w->step[i];
        multiply(n3, g, t->v, 0, s);
        shift(n3, n3, -0.25f, 0, s);
        multiply(w->dw, t->c2, n3, 0, s);
        multiply(w->n2, n3, t->w, 0, s);
        shift(w->n2, w->n2, -1, 0, s);
        multiply(w->dw, t->c1, w->n2, 1, s);
        multiply(n3, w->n2, t->w, 0, s);
        for (size_t j = 0; j < square; j += TILE) vec_store(w->dw + j, vec_load(w->dw + j) - vec_load(n3 + j));
        multiply(n3, t->c3, g, 0, s);
        multiply(n3, w->dw, w->a2, 1, s);
        multiply(w->da2t, t->v, w->dw, 1, s);
        float *swapped = g;
        g = n3;
        n3 = swapped;
    }
    int most;
    float sum = largest_column(w->a2, &most, w->sums, s), scale = start_scale(sum, s);
    float dscale = vec_dot(g, w->a2, (int)square), dsum = -dscale * scale / sum * (s->gaussian ? 2 : 1);
    transpose_square(da2, w->da2t, 1, s);
    for (int i = 0; i < s->L; i++) {
        float *row = da2 + (size_t)i * s->Lp, *transposed = g + (size_t)i * s->Lp;
        for (int j = 0; j < s->Lp; j += TILE) vec_store(row + j, vec_load(row + j) + scale * vec_load(transposed + j));
        row[most] += dsum;
    }
}

/* == Heads ======================================================================================================== */

static void middle(const LowRankWork *w, const real *tokens, const real *landmarks, const LowRankShape *s) {
    rows_gather_padded(w->q, s->Dp, tokens, s->token, s->q_scale, s->N, s->Np, s->D);
    rows_gather_padded(w->v, s->Dp, tokens + s->v, s->token, 1, s->N, s->Np, s->D);
    rows_gather_padded(w->a, s->Dp, landmarks, s->landmark, s->gaussian ? 1 : s->q_scale, s->L, s->Lp, s->D);
    if (!s->gaussian) {
        rows_gather_padded(w->k, s->Dp, tokens + s->y, s->token, 1, s->N, s->Np, s->D);
        rows_gather_padded(w->b, s->Dp, landmarks + s->y, s->landmark, 1, s->L, s->Lp, s->D);
    }
    similarity(w->a1, w->q, w->b, s->N, s->L, s->Lp, w, s);
    similarity(w->a2, w->a, w->b, s->L, s->L, s->Lp, w, s);
    similarity(w->a3, w->a, w->k, s->L, s->N, s->Np, w, s);
    inverse(w, s);
    memset(w->t, 0, (size_t)s->Lp * s->Dp * sizeof *w->t);
    memset(w->u, 0, (size_t)s->Lp * s->Dp * sizeof *w->u);
    tile_gemm(w->t, s->Dp, w->a3, s->Np, 1, w->v, s->Dp, s->L, s->Dp, s->N, 0);
    tile_gemm(w->u, s->Dp, w->z, s->Lp, 1, w->t, s->Dp, s->L, s->Dp, s->L, 0);
}

void low_rank_forward(real *y, const real *tokens, const real *landmarks, const LowRank *shape, int B) {
    LowRankShape s = shape_of(shape);
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < shape->H; h++) {
            size_t floats = work_floats(&s, false), at = (size_t)h * s.D;
            LowRankWork w = work_take(&s, false, kernels_workspace(floats), &floats);
            middle(&w, tokens + (size_t)b * s.N * s.token + at, landmarks + (size_t)b * s.L * s.landmark + at, &s);
            tile_gemm(w.q, s.Dp, w.a1, s.Lp, 1, w.u, s.Dp, s.N, s.Dp, s.L, 0);
            rows_scatter(y + (size_t)b * s.N * s.y + at, s.y, w.q, s.Dp, 1, s.N, s.D);
        }
}

static void zero(float *x, int rows, const LowRankShape *s) { memset(x, 0, (size_t)rows * s->Dp * sizeof *x); }

static void backward_head(real *dtokens, real *dlandmarks, const real *dy, const LowRankWork *w,
                          const LowRankShape *s) {
    rows_gather_padded(w->dy, s->Dp, dy, s->y, 1, s->N, s->Np, s->D);
    zero(w->dq, s->Np, s);
    zero(w->dk, s->Np, s);
    zero(w->da, s->Lp, s);
    zero(w->db, s->Lp, s);
    zero(w->du, s->Lp, s);
    tile_gemm(w->du, s->Dp, w->a1, 1, s->Lp, w->dy, s->Dp, s->L, s->Dp, s->N, 1);
    tile_gemm(w->slope, s->Lp, w->dy, s->Dp, 1, transpose(w->transposed, w->u, s->Lp, s), s->Lp, s->N, s->Lp, s->D, 0);
    similarity_backward(w->dq, w->db, w->slope, w->a1, w->q, w->b, s->N, s->L, s->Lp, w, s);

    tile_gemm(w->g, s->Lp, w->t, s->Dp, 1, transpose(w->transposed, w->du, s->Lp, s), s->Lp, s->L, s->Lp, s->D, 0);
    inverse_backward(w->slope, w, s);
    similarity_backward(w->da, w->db, w->slope, w->a2, w->a, w->b, s->L, s->L, s->Lp, w, s);

    tile_gemm(w->dt, s->Dp, w->z, 1, s->Lp, w->du, s->Dp, s->L, s->Dp, s->L, 0);
    tile_gemm(w->dv, s->Dp, w->a3, 1, s->Np, w->dt, s->Dp, s->N, s->Dp, s->L, 0);
    tile_gemm(w->slope, s->Np, w->dt, s->Dp, 1, transpose(w->transposed, w->v, s->Np, s), s->Np, s->L, s->Np, s->D, 0);
    similarity_backward(w->da, w->dk, w->slope, w->a3, w->a, w->k, s->L, s->N, s->Np, w, s);

    rows_scatter(dtokens, s->token, w->dq, s->Dp, s->q_scale, s->N, s->D);
    rows_scatter(dtokens + s->v, s->token, w->dv, s->Dp, 1, s->N, s->D);
    rows_scatter(dlandmarks, s->landmark, w->da, s->Dp, s->gaussian ? 1 : s->q_scale, s->L, s->D);
    if (s->gaussian) return;
    rows_scatter(dtokens + s->y, s->token, w->dk, s->Dp, 1, s->N, s->D);
    rows_scatter(dlandmarks + s->y, s->landmark, w->db, s->Dp, 1, s->L, s->D);
}

/* Gradients of gaussian similarities are often denormal, and such numbers are many times slower than others: the
 * backward pass treats them as zero.  Returns the argument for keep_denormals. */
static unsigned drop_denormals(void) {
#ifdef __AVX__
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | _MM_FLUSH_ZERO_ON | 0x40); /* 0x40: denormal operands, too */
    return before;
#else
    return 0;
#endif
}

static void keep_denormals(unsigned before) {
#ifdef __AVX__
    _mm_setcsr(before);
#else
    (void)before;
#endif
}

void low_rank_backward(real *dtokens, real *dlandmarks, const real *dy, const real *tokens, const real *landmarks,
                       const LowRank *shape, int B) {
    LowRankShape s = shape_of(shape);
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < shape->H; h++) {
            size_t floats = work_floats(&s, true), at = (size_t)h * s.D;
            size_t first = (size_t)b * s.N * s.token + at, landmark = (size_t)b * s.L * s.landmark + at;
            LowRankWork w = work_take(&s, true, kernels_workspace(floats), &floats);
            unsigned before = drop_denormals();
            middle(&w, tokens + first, landmarks + landmark, &s);
            backward_head(dtokens + first, dlandmarks + landmark, dy + (size_t)b * s.N * s.y + at, &w, &s);
            keep_denormals(before);
        }
}
