/* Ripple attention over pairs of tokens, in tiles: `dense` computes all pairs, `window` only those closer than the last
 * bound, and the last group's contribution by linear attention.
 *
 *   forward   num_n = sum_r alpha_r(n) sum_{m in ring r of n} a_nm v_m,  den_n = the same without v, + 1e-6,
 *             a_nm = phi(q_n).phi(k_m),  y_n = num_n / den_n
 *   backward  dnum_n = dy_n / den_n,  dden_n = -(dy_n.y_n) / den_n,  t_nm = dnum_n.v_m + dden_n,
 *             w_nm = alpha_r(n) with m in ring r of n,
 *             dphi(q_n) = sum_m w t phi(k_m),  dphi(k_m) = sum_n w t phi(q_n),  dv_m = sum_n w a dnum_n,
 *             dalpha_r(n) = sum_{m in ring r of n} a t
 * Source: "Ripple Attention for Visual Perception with Sub-quadratic Complexity" (ICML 2022), eq. 4, Appendix B.
 *
 *   window    num_n = base_n phi(q_n)^T S + sum_{dist < bound[G-1]} (alpha_g - base_n) a_nm v_m,  den_n likewise,
 *             base_n = alpha_{G-1}(n),  S = sum_m phi(k_m) v_m^T,  z = sum_m phi(k_m)
 *   backward  U_n = S dnum_n + z dden_n;  the far part adds base_n U_n to dphi(q_n), phi(q_n).U_n to dalpha_{G-1}(n);
 *             dS = sum_n base_n phi(q_n) dnum_n^T,  dz = sum_n base_n dden_n phi(q_n);
 *             dphi(k_m) += dS v_m + dz,  dv_m += dS^T phi(k_m)
 *             A query whose window covers the grid has no far part: base_n = 0, dalpha_{G-1}(n) = 0.
 *
 * A block of QUERIES consecutive queries is combined with runs of at most KEYS consecutive keys.  Products of the block
 * with the run are small matrix products (tile.h) with keys along the vector.  A pair's weight needs no distance: since
 * max(|dy|,|dx|) is in group max(g(|dy|), g(|dx|)), row g(|dy|) of a query's table [G][column] holds the weights of a
 * key row, and dalpha is first summed into a table of the same shape.
 *
 * With bfloat16 and dot products (kernels/softmax/pairs.h), products of a block with a run take bfloat16: phi, v and dy
 * are exact, because the division of dy by den is applied afterwards; weighted scores and their gradients are
 * rounded. */
#include "kernels/ripple/ripple_cpu.h"

#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/softmax/pairs.h"
#include "kernels/device/workspace.h"
#include "kernels/ripple/ripple.h"
#include "kernels/softmax/attention_shape.h"

/* Among 8, 16 and 32 queries and 64, 128 and 256 keys, 16 x 128 is the fastest or within the noise of it from 14x14 to
 * 48x48: four tiles of that size fit in an L1 cache of 48 KB. */
enum {
    QUERIES = 16,
    KEYS = 128,
    SCORES = KEYS + TILE, /* row of a score tile: the vector of the last key may reach beyond the run */
    FLUSH = 256           /* tokens per partial sum of a long sum */
};

typedef struct {
    const RippleRings *rings;
    int Hg, Wg, N, D, F, G, Dp, Fp; /* Dp, Fp, columns: rounded up to whole vectors */
    int columns;
    int queries; /* in a block, at most QUERIES */
    bool narrow; /* each block stays within one grid row and visits only the columns within reach */
    int reach; /* the largest distance handled pair by pair; for dense, all distances */
    bool far;  /* window: the last group is linear attention */
    bool dots; /* products of bfloat16: runs begin and end with whole pairs of keys */
    size_t ldn; /* row of the transposed copies: an odd number of cache lines, against set conflicts */
} RipplePairsShape;

#ifdef VIT_PAIRS
static bool takes_dots(const RipplePairsShape *s) {
    bool whole = !s->narrow && s->Wg % 2 == 0 && s->D % PAIR_BLOCK == 0 && s->F % PAIR_BLOCK == 0;
    return whole && pairs_kind() == PAIRS_DOTS;
}
#else
static bool takes_dots(const RipplePairsShape *s) { return (void)s, false; }
#endif

static RipplePairsShape shape_of(const RippleRings *rings, int D, int F, bool window) {
    int Hg = rings->grid.rows, Wg = rings->grid.columns;
    RipplePairsShape s = {.rings = rings, .Hg = Hg, .Wg = Wg, .N = Hg * Wg, .D = D, .F = F};
    s.G = rings->G;
    s.Dp = tile_round_up(D);
    s.Fp = tile_round_up(F);
    s.columns = tile_round_up(s.Wg);
    s.reach = window ? rings->bound[s.G - 1] - 1 : ripple_extent(rings);
    s.far = window && s.reach < ripple_extent(rings) - 1;
    int eight = s.reach < s.Wg ? tile_round_up(8 + 2 * s.reach) : s.Wg;
    int sixteen = s.reach < s.Wg ? tile_round_up(QUERIES + 2 * s.reach) : s.Wg;
    s.narrow = eight < s.Wg || sixteen < s.Wg;
    s.queries = s.narrow && eight < sixteen ? 8 : QUERIES;
    s.ldn = (size_t)((tile_round_up(s.N) / TILE + 1) | 1) * TILE;
    s.dots = takes_dots(&s);
    return s;
}

/* == Buffers of one thread ======================================================================================== */

typedef struct {
    float *keys, *keys_t, *values, *values_t; /* [N,Fp] [F,ldn] [N,Dp] [D,ldn], padded with zeros */
    float *dkeys, *dvalues;                   /* [N,Fp] [N,Dp] */
    float *q, *dq, *num;                      /* [QUERIES,Fp] [QUERIES,Fp] [QUERIES,Dp] */
    float *a, *t, *wa, *wt;                   /* [QUERIES,SCORES] */
    float *weight, *sums;                     /* [QUERIES,G,columns] */
    float *S, *St, *dS, *dSt, *part;          /* [F,Dp] [D,Fp] [F,Dp] [D,Fp] [F,Dp] */
    float *z, *dz, *zpart;                    /* [Fp] */
    float *qbase;                             /* [QUERIES,Fp]: base_n phi(q_n) */
    float *group;                             /* int [extent] */
    /* With dots: numbers of bfloat16, `paired` interleaves two rows, `transposed` two columns */
    float *rows;                              /* [N + 2 TILE, largest of D and F] */
    float *keys_paired, *values_paired;       /* [N/2,F,2] [N/2,D,2] */
    float *keys_turned, *values_turned;       /* [F/2,ldn,2] [D/2,ldn,2] */
    float *queries, *outputs;                 /* [QUERIES,F] [QUERIES,D] of dy, each followed by its pairs of rows */
    float *wa_half, *wt_half;                 /* [QUERIES,SCORES], each followed by its pairs of rows */
} RipplePairsBuffers;

/* Computes how many floats the buffers take and, unless `base` is NULL, points them into it. */
static size_t buffers_of(const RipplePairsShape *s, RipplePairsBuffers *w, float *base, bool backward) {
    size_t N = (size_t)s->N, block = QUERIES, tables = block * s->G * s->columns, FD = (size_t)s->F * s->Dp,
           DF = (size_t)s->D * s->Fp, none = 0;
#define IF_BACKWARD(n) (backward ? (n) : none)
#define IF_FAR(n) (s->far ? (n) : none)
#define IF_DOTS(n) (s->dots ? (n) / 2 : none)
    size_t widest = (size_t)(s->D > s->F ? s->D : s->F);
    struct {
        float **at;
        size_t n;
    } list[] = {{&w->keys_t, s->F * s->ldn},
                {&w->values, N * s->Dp},
                {&w->q, block * s->Fp},
                {&w->num, block * s->Dp},
                {&w->a, block * SCORES},
                {&w->wa, block * SCORES},
                {&w->weight, tables},
                {&w->group, (size_t)ripple_extent(s->rings)},
                {&w->S, IF_FAR(FD)},
                {&w->part, IF_FAR(FD)},
                {&w->z, IF_FAR((size_t)s->Fp)},
                {&w->keys, IF_BACKWARD(N * s->Fp)},
                {&w->values_t, IF_BACKWARD(s->D * s->ldn)},
                {&w->dkeys, IF_BACKWARD(N * s->Fp)},
                {&w->dvalues, IF_BACKWARD(N * s->Dp)},
                {&w->dq, IF_BACKWARD(block * s->Fp)},
                {&w->t, IF_BACKWARD(block * SCORES)},
                {&w->wt, IF_BACKWARD(block * SCORES)},
                {&w->sums, IF_BACKWARD(tables)},
                {&w->St, IF_BACKWARD(IF_FAR(DF))},
                {&w->dS, IF_BACKWARD(IF_FAR(FD))},
                {&w->dSt, IF_BACKWARD(IF_FAR(DF))},
                {&w->dz, IF_BACKWARD(IF_FAR((size_t)s->Fp))},
                {&w->zpart, IF_BACKWARD(IF_FAR((size_t)s->Fp))},
                {&w->qbase, IF_BACKWARD(IF_FAR(block * s->Fp))},
                {&w->rows, IF_DOTS((N + 2 * TILE) * widest)},
                {&w->keys_paired, IF_DOTS(N * s->F)},
                {&w->values_paired, IF_DOTS(N * s->D)},
                {&w->keys_turned, IF_DOTS(s->F * s->ldn)},
                {&w->values_turned, IF_BACKWARD(IF_DOTS(s->D * s->ldn))},
                {&w->queries, IF_DOTS(2 * block * s->F)},
                {&w->outputs, IF_BACKWARD(IF_DOTS(2 * block * s->D))},
                {&w->wa_half, IF_DOTS(2 * block * SCORES)},
                {&w->wt_half, IF_BACKWARD(IF_DOTS(2 * block * SCORES))}};
#undef IF_BACKWARD
#undef IF_FAR
#undef IF_DOTS
    size_t total = 0;
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        if (base) *list[i].at = base + total;
        total += workspace_line_up(list[i].n);
    }
    return total;
}

static size_t workspace_floats(const RipplePairsShape *s, bool backward) {
    RipplePairsBuffers unused;
    return buffers_of(s, &unused, NULL, backward);
}

static size_t pairs_workspace(const RippleRings *rings, int D, int F, bool window) {
    RipplePairsShape s = shape_of(rings, D, F, window);
    size_t floats = workspace_floats(&s, true);
    /* A smaller grid may have an even number of columns, and then multiplies pairs. */
    s.Wg += s.Wg % 2;
    s.narrow = false;
    s.dots = takes_dots(&s);
    s.Wg = rings->grid.columns;
    size_t pairs = workspace_floats(&s, true);
    return workspace_bytes(pairs > floats ? pairs : floats);
}

size_t ripple_dense_workspace(const RippleRings *rings, int D, int F) { return pairs_workspace(rings, D, F, false); }
size_t ripple_window_workspace(const RippleRings *rings, int D, int F) { return pairs_workspace(rings, D, F, true); }

static void zero(float *x, size_t n) { memset(x, 0, n * sizeof *x); }

/* x [n,width] -> to [n,padded], padded with zeros. */
static void gather(float *to, int padded, const real *x, size_t row, int n, int width) {
    for (int i = 0; i < n; i++, to += padded, x += row) {
        int j = 0;
        for (; j + TILE <= width; j += TILE) vec_store(to + j, real_load(x + j));
        for (; j < padded; j++) to[j] = j < width ? real_get(x[j]) : 0;
    }
}

/* x [n,width] -> to [width,ldn], padded with zeros. */
static void gather_transposed(float *to, size_t ldn, const real *x, size_t row, int n, int width) {
    float part[TILE * TILE], transposed[TILE * TILE];
    for (size_t first = 0; first < ldn; first += TILE)
        for (int j = 0; j < width; j += TILE) {
            for (size_t i = 0; i < TILE; i++) {
                vec own = {0};
                if (first + i < (size_t)n) own = real_load_part(x + (first + i) * row + j, (size_t)(width - j));
                vec_store(part + i * TILE, own);
            }
            tile_transpose(transposed, TILE, part, TILE);
            for (int i = 0; i < TILE && j + i < width; i++)
                vec_store(to + (size_t)(j + i) * ldn + first, vec_load(transposed + i * TILE));
        }
}

/* == Blocks of queries, runs of keys ============================================================================== */

/* Queries first .. first+m-1 and the box of all keys whose weight for any of them depends on distance. */
typedef struct {
    int first, m;
    int y0, y1, x0, x1; /* half open */
} RipplePairsBlock;

/* Keys of the rows y0 .. y1-1, columns x0 .. x1-1, that are consecutive tokens: one row, or several whole ones. */
typedef struct {
    int y0, y1, x0, x1;
    size_t first;
    int count;
} RipplePairsRun;

static RipplePairsBlock block_from(const RipplePairsShape *s, int first) {
    int y = first / s->Wg, x = first % s->Wg;
    int end = s->narrow ? (y + 1) * s->Wg : s->N;
    RipplePairsBlock b = {.first = first, .m = end - first < s->queries ? end - first : s->queries};
    int last = (first + b.m - 1) / s->Wg;
    b.y0 = y > s->reach ? y - s->reach : 0;
    b.y1 = last + s->reach < s->Hg ? last + s->reach + 1 : s->Hg;
    b.x0 = s->narrow && x > s->reach ? x - s->reach : 0;
    b.x1 = s->narrow && x + b.m + s->reach < s->Wg ? x + b.m + s->reach : s->Wg;
    return b;
}

/* Advances `r` to the next run in the block's box, from {0} to the first one; false at the end. */
static bool next_run(const RipplePairsShape *s, const RipplePairsBlock *b, RipplePairsRun *r) {
    if (!r->count) {
        r->y0 = b->y0;
        r->x0 = b->x0;
    } else if (r->x1 < b->x1) {
        r->x0 = r->x1;
    } else {
        r->y0 = r->y1;
        r->x0 = b->x0;
    }
    if (r->y0 >= b->y1) return false;
    int width = b->x1 - b->x0;
    int rows = width == s->Wg && width < KEYS ? KEYS / width : 1;
    r->y1 = r->y0 + rows < b->y1 ? r->y0 + rows : b->y1;
    r->x1 = r->x0 + KEYS < b->x1 ? r->x0 + KEYS : b->x1;
    r->first = (size_t)r->y0 * s->Wg + r->x0;
    r->count = (r->y1 - r->y0 - 1) * s->Wg + r->x1 - r->x0;
    return true;
}

/* |column - x| for the TILE columns from c on. */
TILE_INLINE ivec column_distance(int c, int x) {
    ivec d = vec_lanes() + (c - x);
    return (d ^ (d >> 31)) - (d >> 31);
}

/* Whether any token lies outside the window of n. */
static bool has_far(const RipplePairsShape *s, int n) {
    int y = n / s->Wg, x = n % s->Wg, reach = s->reach;
    return s->far && (y > reach || s->Hg - 1 - y > reach || x > reach || s->Wg - 1 - x > reach);
}

/* weight[g][c] = alpha of group max(g, group of |x0 + c - x|) minus base, zero right of the box. */
static void fill_weights(const RipplePairsShape *s, const RipplePairsBlock *b, float *weight, const float *alpha,
                         float base, int n) {
    int x = n % s->Wg;
    for (int c = 0; c < b->x1 - b->x0; c += TILE) {
        ivec distance = column_distance(b->x0 + c, x), inside = vec_lanes() + c < b->x1 - b->x0;
        vec w = vec_set(0);
        for (int g = s->G - 1; g >= 0; g--) {
            vec own = vec_set(g == s->G - 1 && s->far ? 0 : alpha[g] - base);
            w = g == s->G - 1 ? own : vec_select(distance < s->rings->bound[g + 1], own, w);
            vec_store(weight + g * s->columns + c, (vec)((ivec)w & inside));
        }
    }
}

static int row_distance(int y, int yq) { return y > yq ? y - yq : yq - y; }

/* wa = w a over a run for query i; returns the sum as lanes.  A row's last vector overwrites part of the next row,
 * hence the order: vectors of a row from the right, rows from the top, and wa is separate from a. */
static vec weigh_scores(const RipplePairsShape *s, const RipplePairsBuffers *w, const RipplePairsBlock *b,
                        const RipplePairsRun *r, int i) {
    const int *group = (const int *)w->group;
    int yq = (b->first + i) / s->Wg, y1 = r->y1, Wg = s->Wg, columns = s->columns;
    const float *weight = w->weight + (size_t)i * s->G * columns + (r->x0 - b->x0);
    vec total = vec_set(0);
    for (int c = (r->x1 - r->x0 - 1) / TILE * TILE; c >= 0; c -= TILE) {
        const float *a = w->a + i * SCORES + c;
        float *wa = w->wa + i * SCORES + c;
        for (int y = r->y0; y < y1; y++, a += Wg, wa += Wg) {
            vec product = vec_load(a) * vec_load(weight + group[row_distance(y, yq)] * columns + c);
            vec_store(wa, product);
            total += product;
        }
    }
    return total;
}

/* Like weigh_scores, with t = factor t + dden, wt = w t and sums[g] += a t. */
static void weigh_gradients(const RipplePairsShape *s, const RipplePairsBuffers *w, const RipplePairsBlock *b,
                            const RipplePairsRun *r, int i, float factor, float dden) {
    const int *group = (const int *)w->group;
    int yq = (b->first + i) / s->Wg, y1 = r->y1, Wg = s->Wg, columns = s->columns;
    size_t table = (size_t)i * s->G * columns + (r->x0 - b->x0);
    for (int c = (r->x1 - r->x0 - 1) / TILE * TILE; c >= 0; c -= TILE) {
        const float *a = w->a + i * SCORES + c, *t = w->t + i * SCORES + c;
        float *wa = w->wa + i * SCORES + c, *wt = w->wt + i * SCORES + c;
        for (int y = r->y0; y < y1;) {
            int g = group[row_distance(y, yq)];
            float *sums = w->sums + table + g * columns + c;
            vec weight = vec_load(w->weight + table + g * columns + c), sum = vec_load(sums);
            do {
                vec score = vec_load(a), gradient = factor * vec_load(t) + dden;
                sum += score * gradient;
                vec_store(wa, weight * score);
                vec_store(wt, weight * gradient);
                a += Wg, t += Wg, wa += Wg, wt += Wg;
            } while (++y < y1 && group[row_distance(y, yq)] == g);
            vec_store(sums, sum);
        }
    }
}

/* dalpha_r = sum of a t over the columns and row groups whose larger group is r. */
static void sum_groups(const RipplePairsShape *s, const RipplePairsBlock *b, float *sums, float *dalpha, int n) {
    int x = n % s->Wg, near = s->far ? s->G - 1 : s->G;
    for (int c = 0; c < b->x1 - b->x0; c += TILE) {
        ivec distance = column_distance(b->x0 + c, x), inside = vec_lanes() + c < b->x1 - b->x0;
        vec closer = vec_set(0); /* sums of the row groups below r */
        for (int r = 0; r < near; r++) {
            float *at = sums + r * s->columns + c;
            vec own = vec_load(at);
            int end = r + 1 < s->G ? s->rings->bound[r + 1] : ripple_extent(s->rings);
            ivec upto = (distance < end) & inside, same = upto & (distance >= s->rings->bound[r]);
            vec_store(at, (vec)((ivec)own & upto) + (vec)((ivec)closer & same));
            closer += own;
        }
    }
    for (int r = 0; r < near; r++) {
        vec total = vec_load(sums + r * s->columns);
        for (int c = TILE; c < b->x1 - b->x0; c += TILE) total += vec_load(sums + r * s->columns + c);
        dalpha[r] = vec_sum(total);
    }
}

/* == Products of bfloat16 ======================================================================================== */

#ifdef VIT_PAIRS

#define REALS(floats) ((real *)(floats))

/* Keys or values x [N,width] in pairs of rows and, unless `transposed` is NULL, of columns. */
static void arrange(const RipplePairsShape *s, const RipplePairsBuffers *w, float *paired, float *transposed,
                    const real *x, size_t row, int width) {
    real *rows = REALS(w->rows);
    int padded = tile_round_up(s->N) + TILE;
    for (int i = 0; i < s->N; i++) memcpy(rows + (size_t)i * width, x + i * row, (size_t)width * sizeof *rows);
    memset(rows + (size_t)s->N * width, 0, (size_t)(padded - s->N) * width * sizeof *rows);
    pair_rows(REALS(paired), rows, s->N, width);
    if (transposed) transpose_pairs(REALS(transposed), s->ldn, rows, padded, width);
}

/* The block's rows of x, followed by their pairs; the number of rows is even, because N is even. */
static void take_block(float *to, const real *x, size_t row, int m, int width) {
    real *rows = REALS(to);
    for (int i = 0; i < m; i++) memcpy(rows + (size_t)i * width, x + i * row, (size_t)width * sizeof *rows);
    pair_rows(rows + (size_t)QUERIES * width, rows, m, width);
}

/* x [m,SCORES], times a factor for each row unless it is NULL, rounded, as rows followed by pairs of rows. */
static void round_scores(float *to, const float *x, const float *factor, int m, int count) {
    real *rows = REALS(to), *pairs = rows + QUERIES * SCORES;
    for (int i = 0; i < m; i += 2, rows += 2 * SCORES, pairs += 2 * SCORES, x += 2 * SCORES) {
        float first = factor ? factor[i] : 1, second = factor ? factor[i + 1] : 1;
        for (int j = 0; j < count; j += TILE) {
            halfvec even = halfvec_round(first * vec_load(x + j));
            halfvec odd = halfvec_round(second * vec_load(x + SCORES + j));
            *(halfvec *)(rows + j) = even;
            *(halfvec *)(rows + SCORES + j) = odd;
            _mm512_storeu_si512(pairs + 2 * j, pairs_of(even, odd));
        }
    }
}

/* scores [m,SCORES] = x [m,width] times the run's keys or values. */
static void dot_scores(const RipplePairsShape *s, float *scores, const float *x, const float *transposed,
                       const RipplePairsRun *r, int m, int width) {
    pairs_dots(scores, SCORES, (PairRows){REALS(x), (size_t)width / 2, 1}, REALS(transposed) + 2 * r->first, s->ldn, m,
               tile_round_up(r->count), width, false);
}

/* sum [m,width] += x [m,SCORES] times the run's keys or values. */
static void dot_rows(float *sum, const float *x, const float *paired, const RipplePairsRun *r, int m, int width) {
    pairs_dots(sum, (size_t)width, (PairRows){REALS(x), SCORES / 2, 1}, REALS(paired) + r->first * (size_t)width,
               (size_t)width, m, width, r->count, true);
}

/* sum [keys of the run,width] += the transpose of x [m,SCORES] times a block of queries or outputs. */
static void dot_keys(float *sum, const float *x, const float *block, const RipplePairsRun *r, int m, int width) {
    pairs_dots(sum + r->first * (size_t)width, (size_t)width, (PairRows){REALS(x) + QUERIES * SCORES, 1, SCORES},
               REALS(block) + (size_t)QUERIES * width, (size_t)width, r->count, width, m, true);
}

#endif

/* == Forward ====================================================================================================== */

/* part = the sum of phi(k_m) v_m^T over the k tokens from n on; their sum of phi(k_m) is added to z. */
static void far_part(const RipplePairsShape *s, const RipplePairsBuffers *w, int n, int k) {
#ifdef VIT_PAIRS
    if (s->dots) {
        const real *keys = REALS(w->keys_paired) + (size_t)n * s->F;
        const __m512bh ones = (__m512bh)_mm512_set1_epi32(0x3f803f80);
        const real *values = REALS(w->values_paired) + (size_t)n * s->D;
        pairs_dots(w->part, s->D, (PairRows){keys, 1, s->F}, values, s->D, s->F, s->D, k, false);
        for (int f = 0; f < s->F; f += TILE) {
            __m512 sum = _mm512_setzero_ps();
            for (int m = 0; m < k; m += 2)
                sum = _mm512_dpbf16_ps(sum, ones, (__m512bh)_mm512_loadu_si512(keys + (size_t)m * s->F + 2 * f));
            vec_store(w->z + f, vec_load(w->z + f) + (vec)sum);
        }
        return;
    }
#endif
    tile_gemm(w->part, s->Dp, w->keys_t + n, s->ldn, 1, w->values + (size_t)n * s->Dp, s->Dp, s->F, s->Dp, k, 0);
    for (int f = 0; f < s->F; f++) {
        vec total = vec_set(0);
        for (int m = n; m < n + k; m += TILE) total += vec_load(w->keys_t + f * s->ldn + m);
        w->z[f] += vec_sum(total);
    }
}

/* S = sum_m phi(k_m) v_m^T and z, in groups of FLUSH tokens, so that long sums keep their digits. */
static void sum_far(const RipplePairsShape *s, const RipplePairsBuffers *w) {
    size_t FD = (size_t)s->F * s->Dp;
    zero(w->S, FD);
    zero(w->z, s->Fp);
    for (int n = 0; n < s->N; n += FLUSH) {
        far_part(s, w, n, s->N - n < FLUSH ? s->N - n : FLUSH);
        for (size_t i = 0; i < FD; i++) w->S[i] += w->part[i];
    }
}

static void clear_scores(const RipplePairsBuffers *w, bool backward) {
    zero(w->a, QUERIES * SCORES);
    if (backward) zero(w->t, QUERIES * SCORES);
}

/* Products process groups of four queries; rows after the last query are zero. */
static int whole_rows(int m) { return (m + 3) / 4 * 4; }

static void gather_queries(const RipplePairsShape *s, const RipplePairsBuffers *w, const real *q, size_t row, int m) {
    gather(w->q, s->Fp, q, row, m, s->F);
    zero(w->q + m * s->Fp, (size_t)(QUERIES - m) * s->Fp);
}

static void forward_head(const RipplePairsShape *s, const RipplePairsBuffers *w, RippleHead o, real *y, float *den,
                         const float *alpha, const real *phi, const real *qkv) {
#ifdef VIT_PAIRS
    if (s->dots) {
        arrange(s, w, w->keys_paired, w->keys_turned, phi + o.k, o.phi_row, s->F);
        arrange(s, w, w->values_paired, NULL, qkv + o.v, o.qkv_row, s->D);
    }
#endif
    if (!s->dots) {
        gather_transposed(w->keys_t, s->ldn, phi + o.k, o.phi_row, s->N, s->F);
        gather(w->values, s->Dp, qkv + o.v, o.qkv_row, s->N, s->D);
    }
    if (s->far) sum_far(s, w);
    clear_scores(w, false);
    for (int n = 0; n < s->N;) {
        RipplePairsBlock b = block_from(s, n);
        int rows = whole_rows(b.m);
        vec total[QUERIES];
        gather_queries(s, w, phi + o.q + n * o.phi_row, o.phi_row, b.m);
        if (s->far)
            tile_gemm(w->num, s->Dp, w->q, s->Fp, 1, w->S, s->Dp, rows, s->Dp, s->F, 0);
        else
            zero(w->num, (size_t)QUERIES * s->Dp);
        for (int i = 0; i < b.m; i++) {
            const float *own = alpha + o.alpha + (n + i) * o.alpha_row;
            float base = has_far(s, n + i) ? own[s->G - 1] : 0;
            fill_weights(s, &b, w->weight + (size_t)i * s->G * s->columns, own, base, n + i);
            total[i] = vec_set(0);
            if (!s->far) continue;
            const float *q = w->q + i * s->Fp;
            for (int f = 0; f < s->Fp; f += TILE) total[i] += base * vec_load(q + f) * vec_load(w->z + f);
            for (int d = 0; d < s->Dp; d++) w->num[i * s->Dp + d] *= base;
        }
#ifdef VIT_PAIRS
        if (s->dots) take_block(w->queries, phi + o.q + n * o.phi_row, o.phi_row, b.m, s->F);
        for (RipplePairsRun r = {0}; s->dots && next_run(s, &b, &r);) {
            dot_scores(s, w->a, w->queries, w->keys_turned, &r, b.m, s->F);
            for (int i = 0; i < b.m; i++) total[i] += weigh_scores(s, w, &b, &r, i);
            round_scores(w->wa_half, w->wa, NULL, b.m, r.count);
            dot_rows(w->num, w->wa_half, w->values_paired, &r, b.m, s->D);
        }
#endif
        for (RipplePairsRun r = {0}; !s->dots && next_run(s, &b, &r);) {
            tile_gemm(w->a, SCORES, w->q, s->Fp, 1, w->keys_t + r.first, s->ldn, rows, tile_round_up(r.count), s->F, 0);
            for (int i = 0; i < b.m; i++) total[i] += weigh_scores(s, w, &b, &r, i);
            tile_gemm(w->num, s->Dp, w->wa, SCORES, 1, w->values + r.first * s->Dp, s->Dp, rows, s->Dp, r.count, 1);
        }
        for (int i = 0; i < b.m; i++) {
            float sum = vec_sum(total[i]) + RIPPLE_EPSILON, inverse = 1 / sum;
            real *out = y + o.y + (n + i) * o.y_row;
            for (int d = 0; d < s->D; d++) out[d] = real_of(w->num[i * s->Dp + d] * inverse);
            den[o.den + (n + i) * o.den_row] = sum;
        }
        n += b.m;
    }
}

static void pairs_forward(real *y, float *den, const RippleInputs *in, const RippleRings *rings,
                          const FeatureShape *shape, bool window) {
    int B = shape->B, H = shape->H, D = shape->D, F = shape->F;
    RipplePairsShape s = shape_of(rings, D, F, window);
    size_t floats = workspace_floats(&s, false);
#pragma omp parallel
    {
        RipplePairsBuffers w;
        buffers_of(&s, &w, kernels_workspace(floats), false);
        ripple_groups((int *)w.group, rings);
#pragma omp for collapse(2) schedule(dynamic)
        for (int b = 0; b < B; b++)
            for (int h = 0; h < H; h++)
                forward_head(&s, &w, ripple_head(b, h, s.N, H, D, F, s.G), y, den, in->alpha, in->phi, in->qkv);
    }
}

RIPPLE_FORWARD(dense) { pairs_forward(y, den, in, rings, shape, false); }
RIPPLE_FORWARD(window) { pairs_forward(y, den, in, rings, shape, true); }

/* == Backward ===================================================================================================== */

static void add(float *to, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] += x[i];
}

/* dphi(k_m) += dS v_m + dz,  dv_m += dS^T phi(k_m). */
static void spread_far(const RipplePairsShape *s, const RipplePairsBuffers *w) {
    transpose_padded(w->dSt, s->Fp, w->dS, s->Dp, s->F, s->D);
    tile_gemm(w->dkeys, s->Fp, w->values, s->Dp, 1, w->dSt, s->Fp, s->N, s->Fp, s->D, 1);
    tile_gemm(w->dvalues, s->Dp, w->keys, s->Fp, 1, w->dS, s->Dp, s->N, s->Dp, s->F, 1);
    for (int m = 0; m < s->N; m++) add(w->dkeys + (size_t)m * s->Fp, w->dz, s->Fp);
}

/* The far part of a block whose dnum is in num: dq = base U, dlast = phi(q).U, and its contribution to dS and dz. */
static void far_block(const RipplePairsShape *s, const RipplePairsBuffers *w, const RipplePairsBlock *b,
                      const float *base, const float *dden, float *dlast) {
    float scale[QUERIES];
    tile_gemm(w->dq, s->Fp, w->num, s->Dp, 1, w->St, s->Fp, whole_rows(b->m), s->Fp, s->D, 0);
    for (int i = 0; i < b->m; i++) {
        vec total = vec_set(0);
        for (int f = 0; f < s->Fp; f += TILE) {
            float *dq = w->dq + i * s->Fp + f;
            vec q = vec_load(w->q + i * s->Fp + f), u = vec_load(dq) + dden[i] * vec_load(w->z + f);
            total += q * u;
            vec_store(dq, base[i] * u);
            vec_store(w->qbase + i * s->Fp + f, base[i] * q);
        }
        dlast[i] = vec_sum(total);
        scale[i] = base[i] * dden[i];
    }
    tile_gemm(w->part, s->Dp, w->qbase, 1, s->Fp, w->num, s->Dp, s->F, s->Dp, b->m, 1);
    tile_gemm(w->zpart, s->Fp, scale, 0, 1, w->q, s->Fp, 1, s->Fp, b->m, 1);
}

/* Ends a group of queries: dS += part, dz += zpart, both parts = 0. */
static void flush_far(const RipplePairsShape *s, const RipplePairsBuffers *w) {
    sums_join(w->dS, w->part, (size_t)s->F * s->Dp);
    sums_join(w->dz, w->zpart, s->Fp);
}

static void start_far(const RipplePairsShape *s, const RipplePairsBuffers *w) {
    sum_far(s, w);
    transpose_padded(w->St, s->Fp, w->S, s->Dp, s->F, s->D);
    zero(w->dS, (size_t)s->F * s->Dp);
    zero(w->dz, s->Fp);
    zero(w->part, (size_t)s->F * s->Dp);
    zero(w->zpart, s->Fp);
}

/* num = dnum = dy / den and dden = -(dy.y) / den of a block. */
static void gather_gradients(const RipplePairsShape *s, const RipplePairsBuffers *w, const RipplePairsBlock *b,
                             RippleHead o, float *dden, const real *dy, const real *y, const float *den) {
    zero(w->num, (size_t)QUERIES * s->Dp);
    for (int i = 0; i < b->m; i++) {
        size_t row = o.y + (b->first + i) * o.y_row;
        float inverse = 1 / den[o.den + (b->first + i) * o.den_row], sum = 0;
        for (int d = 0; d < s->D; d++) {
            float gradient = real_get(dy[row + d]);
            w->num[i * s->Dp + d] = gradient * inverse;
            sum += gradient * real_get(y[row + d]);
        }
        dden[i] = -sum * inverse;
    }
}

static void backward_head(const RipplePairsShape *s, const RipplePairsBuffers *w, RippleHead o, real *dqkv, real *dphi,
                          float *dalpha, const real *dy, const real *y, const float *den, const float *alpha,
                          const real *phi, const real *qkv) {
    size_t table = (size_t)s->G * s->columns;
    if (s->far || !s->dots) {
        gather(w->keys, s->Fp, phi + o.k, o.phi_row, s->N, s->F);
        gather(w->values, s->Dp, qkv + o.v, o.qkv_row, s->N, s->D);
    }
#ifdef VIT_PAIRS
    if (s->dots) {
        arrange(s, w, w->keys_paired, w->keys_turned, phi + o.k, o.phi_row, s->F);
        arrange(s, w, w->values_paired, w->values_turned, qkv + o.v, o.qkv_row, s->D);
    }
#endif
    if (!s->dots) gather_transposed(w->keys_t, s->ldn, phi + o.k, o.phi_row, s->N, s->F);
    if (!s->dots) gather_transposed(w->values_t, s->ldn, qkv + o.v, o.qkv_row, s->N, s->D);
    zero(w->dkeys, (size_t)s->N * s->Fp);
    zero(w->dvalues, (size_t)s->N * s->Dp);
    if (s->far) start_far(s, w);
    clear_scores(w, true);
    int since = 0;
    for (int n = 0; n < s->N;) {
        RipplePairsBlock b = block_from(s, n);
        int rows = whole_rows(b.m);
        float base[QUERIES], dden[QUERIES], dlast[QUERIES];
        gather_queries(s, w, phi + o.q + n * o.phi_row, o.phi_row, b.m);
        gather_gradients(s, w, &b, o, dden, dy, y, den);
        for (int i = 0; i < b.m; i++) {
            const float *own = alpha + o.alpha + (n + i) * o.alpha_row;
            base[i] = has_far(s, n + i) ? own[s->G - 1] : 0;
            fill_weights(s, &b, w->weight + i * table, own, base[i], n + i);
        }
        zero(w->sums, b.m * table);
        if (s->far)
            far_block(s, w, &b, base, dden, dlast);
        else
            zero(w->dq, (size_t)QUERIES * s->Fp);
#ifdef VIT_PAIRS
        if (s->dots) {
            take_block(w->queries, phi + o.q + n * o.phi_row, o.phi_row, b.m, s->F);
            take_block(w->outputs, dy + o.y + n * o.y_row, o.y_row, b.m, s->D);
        }
        for (RipplePairsRun r = {0}; s->dots && next_run(s, &b, &r);) {
            float inverse[QUERIES];
            for (int i = 0; i < b.m; i++) inverse[i] = 1 / den[o.den + (n + i) * o.den_row];
            dot_scores(s, w->a, w->queries, w->keys_turned, &r, b.m, s->F);
            dot_scores(s, w->t, w->outputs, w->values_turned, &r, b.m, s->D);
            for (int i = 0; i < b.m; i++) weigh_gradients(s, w, &b, &r, i, inverse[i], dden[i]);
            round_scores(w->wa_half, w->wa, inverse, b.m, r.count);
            round_scores(w->wt_half, w->wt, NULL, b.m, r.count);
            dot_rows(w->dq, w->wt_half, w->keys_paired, &r, b.m, s->F);
            dot_keys(w->dkeys, w->wt_half, w->queries, &r, b.m, s->F);
            dot_keys(w->dvalues, w->wa_half, w->outputs, &r, b.m, s->D);
        }
#endif
        for (RipplePairsRun r = {0}; !s->dots && next_run(s, &b, &r);) {
            int columns = tile_round_up(r.count);
            const float *keys = w->keys + r.first * s->Fp;
            tile_gemm(w->a, SCORES, w->q, s->Fp, 1, w->keys_t + r.first, s->ldn, rows, columns, s->F, 0);
            tile_gemm(w->t, SCORES, w->num, s->Dp, 1, w->values_t + r.first, s->ldn, rows, columns, s->D, 0);
            for (int i = 0; i < b.m; i++) weigh_gradients(s, w, &b, &r, i, 1, dden[i]);
            tile_gemm(w->dq, s->Fp, w->wt, SCORES, 1, keys, s->Fp, rows, s->Fp, r.count, 1);
            tile_gemm(w->dkeys + r.first * s->Fp, s->Fp, w->wt, 1, SCORES, w->q, s->Fp, r.count, s->Fp, b.m, 1);
            tile_gemm(w->dvalues + r.first * s->Dp, s->Dp, w->wa, 1, SCORES, w->num, s->Dp, r.count, s->Dp, b.m, 1);
        }
        for (int i = 0; i < b.m; i++) {
            float *out = dalpha + o.alpha + (n + i) * o.alpha_row;
            reals_round(dphi + o.q + (n + i) * o.phi_row, w->dq + i * s->Fp, s->F);
            sum_groups(s, &b, w->sums + i * table, out, n + i);
            if (!s->far) continue;
            float last = has_far(s, n + i) ? dlast[i] : 0;
            for (int r = 0; r < s->G - 1 && has_far(s, n + i); r++) last -= out[r];
            out[s->G - 1] = last;
        }
        n += b.m;
        since += b.m;
        if (s->far && (since >= FLUSH || n == s->N)) {
            flush_far(s, w);
            since = 0;
        }
    }
    if (s->far) spread_far(s, w);
    for (int m = 0; m < s->N; m++) {
        reals_round(dphi + o.k + m * o.phi_row, w->dkeys + (size_t)m * s->Fp, s->F);
        reals_round(dqkv + o.v + m * o.qkv_row, w->dvalues + (size_t)m * s->Dp, s->D);
    }
}

static void pairs_backward(const RippleGradients *din, const real *dy, const real *y, const float *den,
                           const RippleInputs *in, const RippleRings *rings, const FeatureShape *shape, bool window) {
    int B = shape->B, H = shape->H, D = shape->D, F = shape->F;
    RipplePairsShape s = shape_of(rings, D, F, window);
    size_t floats = workspace_floats(&s, true);
#pragma omp parallel
    {
        RipplePairsBuffers w;
        buffers_of(&s, &w, kernels_workspace(floats), true);
        ripple_groups((int *)w.group, rings);
#pragma omp for collapse(2) schedule(dynamic)
        for (int b = 0; b < B; b++)
            for (int h = 0; h < H; h++)
                backward_head(&s, &w, ripple_head(b, h, s.N, H, D, F, s.G), din->qkv, din->phi, din->alpha, dy, y, den,
                              in->alpha, in->phi, in->qkv);
    }
}

RIPPLE_BACKWARD(dense) { pairs_backward(din, dy, y, den, in, rings, shape, false); }
RIPPLE_BACKWARD(window) { pairs_backward(din, dy, y, den, in, rings, shape, true); }

/* == Cost ========================================================================================================= */

/* Forward and backward: seven products a pair (two and five) and seven for the far part; then, in nanoseconds, the
 * other work for a pair, a run of keys, a query, and an entry of its weight table. */
static double pairs_cost(const RippleRings *rings, int D, int F, bool window) {
    const double multiply_add = 0.0082, pair = 0.3, run = 200, query = 45, entry = 0.7;
    RipplePairsShape s = shape_of(rings, D, F, window);
    double near = s.dots ? multiply_add / 2 : multiply_add;
    double pairs = 0, tables = (double)s.N * s.G, width = 0;
    size_t runs = 0;
    for (int n = 0; n < s.N;) {
        RipplePairsBlock b = block_from(&s, n);
        for (RipplePairsRun r = {0}; next_run(&s, &b, &r); runs++)
            pairs += (double)whole_rows(b.m) * tile_round_up(r.count);
        width += (double)b.m * tile_round_up(b.x1 - b.x0) / s.N;
        n += b.m;
    }
    double far = s.far ? 7.0 * s.N * s.Dp * s.Fp : 0;
    double nanoseconds = near * pairs * (4.0 * s.Fp + 3.0 * s.Dp) + multiply_add * far + pair * pairs +
                         run * (double)runs + query * s.N + entry * tables * width;
    return 1e-9 * nanoseconds;
}

double ripple_dense_cost(const RippleRings *rings, int D, int F) { return pairs_cost(rings, D, F, false); }
double ripple_window_cost(const RippleRings *rings, int D, int F) { return pairs_cost(rings, D, F, true); }
