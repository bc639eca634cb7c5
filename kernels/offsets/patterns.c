/* Sums over keys, weighted by relative position, to patterns (collect) and from patterns (spread); t = t(i,j).  Both
 * are derivatives of
 *   F = sum_i sum_e z[i,e] sum_c x[i,c] (base[c,e] + sum_j w[t,c,e] k[j,c])
 * with respect to z (collect) and x (spread), and so are their gradients:
 *   collect   forward Fz at x = q;  backward Fx, Fk, Fw, Fbase at z = ds
 *   spread    forward Fx at z = s;  backward Fz, Fk, Fw, Fbase at x = dy
 * w the same for all channels: with T[i,j] = x_i.k_j and P[i,j] = sum_e z[i,e] w[t,e]
 *   Fz[i,e] = sum_j T[i,j] w[t,e],  Fx_i = sum_j P[i,j] k_j,  Fk_j = sum_i P[i,j] x_i,  Fw[t,e] = sum_ij T[i,j] z[i,e]
 * w for each channel: with p_ij[c] = x[i,c] k[j,c] and g_ij[c] = sum_e z[i,e] w[t,c,e]
 *   Fz[i,e] = sum_j sum_c p_ij[c] w[t,c,e],  Fx[i,c] = sum_j g_ij[c] k[j,c],  Fk[j,c] = sum_i g_ij[c] x[i,c],
 *   Fw[t,c,e] = sum_ij p_ij[c] z[i,e]
 *
 * With one table for all channels, HEADS (image, head) pairs are processed together.  For one query they read the same
 * window of the table (offset_runs.h), so that sums over j and over e are matrix products with that window, and sums
 * over channels are products of QUERIES queries of one head.  With a table for each channel, all pairs of one entry, up
 * to N of them, are the rows of products with that entry.
 *
 * Sums over tokens or entries are computed in blocks of BLOCK terms, so that the rounding error does not grow with
 * N. */
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/offsets/offset_runs.h"
#include "kernels/device/workspace.h"
#include "kernels/offsets/offsets.h"
#include "kernels/offsets/patterns.h"
#include "kernels/tokens/grid.h"

enum { HEADS = 8, QUERIES = 8, PAIRS = 8, BLOCK = 64 };

typedef struct {
    const Offsets *offsets;
    int N, H, D, E, Dp, Ep;
    bool per_channel;
    int U;           /* entries of a reversed table, or of the table if it has channels */
    size_t ldu, ldn; /* rows along entries, along keys, with room for one more vector */
    size_t z_token,
        z_head; /* in PatternWork's z and fz: heads that share a window are interleaved, others follow each other */
    int x_row, z_row, k_row; /* from one token of x, z and k to the next */
} PatternShape;

static PatternShape shape_of(const Patterns *p) {
    const Offsets *o = &p->offsets;
    int H = p->H, D = p->D;
    PatternShape s =
        {.offsets = o, .N = grid_tokens(o->grid), .H = H, .D = D, .E = p->E, .per_channel = p->per_channel};
    s.Dp = tile_round_up(D);
    s.Ep = tile_round_up(s.E);
    s.U = p->per_channel ? offsets_count(o) : offset_runs_entries(o);
    s.ldu = (size_t)tile_round_up(s.U) + TILE;
    s.ldn = (size_t)tile_round_up(s.N) + TILE;
    s.z_token = (size_t)s.Ep * (p->per_channel ? 1 : HEADS);
    s.z_head = (size_t)s.Ep * (p->per_channel ? s.N : 1);
    return s;
}

/* x, z and k, and the requested derivatives, which are those that are not NULL. */
typedef struct {
    const real *x, *k;
    const void *z; /* real, or float if float_z */
    real *fx, *fk;
    void *fz; /* real, or float if float_fz */
    bool float_z, float_fz;
    const real *add; /* to fk, or NULL */
    float *fw, *fbase;
} Form;

/* == Buffers ====================================================================================================== */

/* Shared by the threads: the table as offset_runs.h reads it, and base (zeros if it is NULL), each also transposed. */
typedef struct {
    float *w, *wt;       /* [U,Ep], [E,ldu]; for each channel [U,D,Ep], [U,E,Dp] */
    float *base, *baset; /* [D,Ep], [E,Dp] */
} Tables;

static size_t table_floats(const PatternShape *s) { return (size_t)s->U * (s->per_channel ? s->D : 1) * s->Ep; }

static Tables tables_take(const PatternShape *s, float *memory, size_t *floats) {
    float *next = memory;
    Tables t;
    t.w = workspace_take(&next, table_floats(s));
    t.wt = workspace_take(&next, s->per_channel ? (size_t)s->U * s->E * s->Dp : s->E * s->ldu);
    t.base = workspace_take(&next, (size_t)s->D * s->Ep);
    t.baset = workspace_take(&next, (size_t)s->E * s->Dp);
    *floats = (size_t)(next - memory);
    return t;
}

typedef struct {
    float *x, *fx;     /* [HEADS,N,Dp] */
    float *z, *fz;     /* [N,HEADS,Ep], or [HEADS,N,Ep] */
    float *k, *fk;     /* [HEADS,N,Dp] */
    float *kt;         /* [HEADS,D,ldn] */
    float *pairs;      /* [HEADS,QUERIES,ldn]: T, then P */
    float *p, *g;      /* [pairs,Dp], of one entry: up to N pairs, and zeros up to a multiple of PAIRS */
    float *zp, *fzp;   /* [pairs,Ep]: their z, and their share of Fz */
    float *fw, *fbase; /* this thread's sums, as in Tables */
    float *part_x, *part_z;     /* sums of BLOCK terms: one head's fx and fz */
    float *part_k, *part_w, *part_base; /* fk, fw and fbase */
    float *product;                           /* [HEADS or D,Ep], [QUERIES,Dp]: the terms of add_product */
} PatternWork;

static PatternWork work_take(const PatternShape *s, float *memory, size_t *floats) {
    float *next = memory;
    size_t rows = (size_t)HEADS * s->N, pairs = (size_t)s->N + PAIRS;
    PatternWork w;
    float **by_channel[] = {&w.x, &w.fx, &w.k, &w.fk};
    for (int i = 0; i < 4; i++) *by_channel[i] = workspace_take(&next, rows * s->Dp);
    w.z = workspace_take(&next, rows * s->Ep);
    w.fz = workspace_take(&next, rows * s->Ep);
    w.kt = workspace_take(&next, HEADS * s->D * s->ldn);
    w.pairs = workspace_take(&next, HEADS * QUERIES * s->ldn);
    w.p = workspace_take(&next, pairs * s->Dp);
    w.g = workspace_take(&next, pairs * s->Dp);
    w.zp = workspace_take(&next, pairs * s->Ep);
    w.fzp = workspace_take(&next, pairs * s->Ep);
    w.fw = workspace_take(&next, table_floats(s));
    w.fbase = workspace_take(&next, (size_t)s->D * s->Ep);
    w.part_x = workspace_take(&next, (size_t)s->N * s->Dp);
    w.part_z = workspace_take(&next, (size_t)s->N * s->Ep);
    w.part_k = workspace_take(&next, rows * s->Dp);
    w.part_w = workspace_take(&next, s->per_channel ? 0 : table_floats(s));
    w.part_base = workspace_take(&next, (size_t)s->D * s->Ep);
    w.product = workspace_take(&next, (size_t)(s->D > HEADS ? s->D : HEADS) * (s->Dp > s->Ep ? s->Dp : s->Ep));
    *floats = (size_t)(next - memory);
    return w;
}

static size_t tables_floats(const PatternShape *s) {
    size_t floats;
    tables_take(s, NULL, &floats);
    return floats;
}

static size_t work_floats(const PatternShape *s) {
    size_t floats;
    work_take(s, NULL, &floats);
    return floats;
}

size_t patterns_workspace(const Patterns *patterns, int B) {
    (void)B;
    PatternShape s = shape_of(patterns);
    return workspace_bytes_behind(tables_floats(&s), work_floats(&s));
}

static PatternWork work_of(const PatternShape *s, int thread) {
    size_t floats = work_floats(s);
    return work_take(s, workspace_behind(tables_floats(s), thread, floats), &floats);
}

/* The index in the user's table of entry u in the workspaces. */
static size_t entry_at(const PatternShape *s, int u) {
    return s->per_channel ? (size_t)u * s->D * s->E : (size_t)offset_runs_entry(s->offsets, u) * s->E;
}

static Tables tables_make(const float *w, const float *base, const PatternShape *s) {
    size_t floats;
    Tables t = tables_take(s, workspace_shared(), &floats);
    memset(t.w, 0, floats * sizeof(float));
#pragma omp parallel for schedule(static)
    for (int u = 0; u < s->U; u++) {
        const float *from = w + entry_at(s, u);
        for (int c = 0; c < (s->per_channel ? s->D : 1); c++)
            for (int e = 0; e < s->E; e++) {
                float value = from[(size_t)c * s->E + e];
                if (s->per_channel) {
                    t.w[((size_t)u * s->D + c) * s->Ep + e] = value;
                    t.wt[((size_t)u * s->E + e) * s->Dp + c] = value;
                } else {
                    t.w[(size_t)u * s->Ep + e] = value;
                    t.wt[e * s->ldu + u] = value;
                }
            }
    }
    for (int c = 0; base && c < s->D; c++)
        for (int e = 0; e < s->E; e++)
            t.base[(size_t)c * s->Ep + e] = t.baset[(size_t)e * s->Dp + c] = base[(size_t)c * s->E + e];
    return t;
}

/* == HEADS heads in and out ======================================================================================= */

/* Heads first .. first + count-1 of all images, `row` numbers from token to token and `width` from head to head. */
typedef struct {
    size_t first;
    int count;
} Chunk;

static size_t head_at(const Chunk *chunk, int r, int row, int width, const PatternShape *s) {
    size_t head = chunk->first + r;
    return head / s->H * s->N * row + head % s->H * width;
}

/* to [count,N,Dp] with zeros in the padding. */
static void gather(float *to, const real *from, int row, const Chunk *chunk, const PatternShape *s) {
    for (int r = 0; r < chunk->count; r++, to += s->N * s->Dp)
        rows_gather(to, s->Dp, from + head_at(chunk, r, row, s->D, s), (size_t)row, 1, s->N, s->D);
}

/* to = add + from, without the padding. */
static void scatter(real *to, const real *add, const float *from, int row, const Chunk *chunk, const PatternShape *s) {
    for (int r = 0; r < chunk->count; r++) {
        size_t at = head_at(chunk, r, row, s->D, s);
        for (int i = 0; i < s->N; i++, from += s->Dp, at += row)
            for (int j = 0; j < s->D; j += TILE) {
                vec v = vec_load(from + j);
                if (add) v += real_load_part(add + at + j, s->D - j);
                real_store_part(to + at + j, v, s->D - j);
            }
    }
}

/* Copies to PatternWork's z, and back. */
static void gather_patterns(float *to, const Form *f, const Chunk *chunk, const PatternShape *s) {
    for (int r = 0; r < chunk->count; r++) {
        size_t head = head_at(chunk, r, s->z_row, s->E, s);
        for (int i = 0; i < s->N; i++)
            for (int e = 0; e < s->E; e += TILE) {
                size_t at = head + (size_t)i * s->z_row + e;
                vec z = f->float_z ? vec_load_part((const float *)f->z + at, s->E - e)
                                   : real_load_part((const real *)f->z + at, s->E - e);
                vec_store(to + i * s->z_token + r * s->z_head + e, z);
            }
    }
}
static void scatter_patterns(const Form *f, const float *from, const Chunk *chunk, const PatternShape *s) {
    for (int r = 0; r < chunk->count; r++) {
        size_t head = head_at(chunk, r, s->z_row, s->E, s);
        for (int i = 0; i < s->N; i++)
            for (int e = 0; e < s->E; e += TILE) {
                size_t at = head + (size_t)i * s->z_row + e;
                vec z = vec_load(from + i * s->z_token + r * s->z_head + e);
                if (f->float_fz) vec_store_part((float *)f->fz + at, z, s->E - e);
                else real_store_part((real *)f->fz + at, z, s->E - e);
            }
    }
}

/* == Sums of sums ================================================================================================= */

/* c [m,n] += a b over BLOCK of the k terms at a time; c is dense, n a multiple of TILE, a's element (i,p) at
 * i a_row + p a_col, and b [k,n] is dense. */
static void add_product(float *c, float *product, const float *a, size_t a_row, size_t a_col, const float *b, int m, int n,
                        int k) {
    for (int p = 0; p < k; p += BLOCK) {
        int terms = k - p < BLOCK ? k - p : BLOCK;
        tile_gemm(product, n, a + p * a_col, a_row, a_col, b + (size_t)p * n, n, m, n, terms, 0);
        for (int i = 0; i < m * n; i += TILE) vec_store(c + i, vec_load(c + i) + vec_load(product + i));
    }
}

/* == One query and its window of the table ======================================================================== */

/* out [heads,Ep] += x [heads,keys] times the window; x's rows are ldx apart. */
static void collect_window(float *out, float *product, const float *x, size_t ldx, const float *table, int i, int heads,
                           const PatternShape *s) {
    for (OffsetRun run = {0}; offset_runs_next(s->offsets, i, &run);)
        add_product(out, product, x + run.j0, ldx, 1, table + (size_t)run.u * s->Ep, heads, s->Ep, run.count);
}

static void zero_keys(float *out, size_t ldo, int first, int end, int heads) {
    for (int r = 0; r < heads && end > first; r++) memset(out + r * ldo + first, 0, (size_t)(end - first) * sizeof *out);
}

/* out [heads,keys] = z [heads,E] times the transposed window, and zeros for the others of `keys`.  A run's last vector
 * reaches into the next run, which is computed later, or beyond the last key. */
static void spread_window(float *out, size_t ldo, const float *z, const float *table, int i, OffsetSpan keys, int heads,
                          const PatternShape *s) {
    int end = keys.first;
    for (OffsetRun run = {0}; offset_runs_next(s->offsets, i, &run); end = run.j0 + run.count) {
        zero_keys(out, ldo, end, run.j0, heads);
        tile_gemm(out + run.j0, ldo, z, s->Ep, 1, table + run.u, s->ldu, heads, tile_round_up(run.count), s->E, 0);
    }
    zero_keys(out, ldo, end, keys.first + keys.count, heads);
}

/* The window += x^T z. */
static void add_to_window(float *table, const float *x, size_t ldx, const float *z, int i, int heads,
                          const PatternShape *s) {
    for (OffsetRun run = {0}; offset_runs_next(s->offsets, i, &run);)
        tile_gemm(table + (size_t)run.u * s->Ep, s->Ep, x + run.j0, 1, ldx, z, s->Ep, run.count, s->Ep, heads, 1);
}

/* == The same table for all channels ============================================================================== */

/* The keys from the first to the last one of any of the queries. */
static OffsetSpan keys_of(int first, int queries, const PatternShape *s) {
    if (s->offsets->kind != OFFSETS_LOCAL) return (OffsetSpan){0, s->N};
    int begin = s->N, end = 0;
    for (int i = first; i < first + queries; i++)
        for (OffsetRun run = {0}; offset_runs_next(s->offsets, i, &run);) {
            if (run.j0 < begin) begin = run.j0;
            if (run.j0 + run.count > end) end = run.j0 + run.count;
        }
    return (OffsetSpan){begin, end - begin};
}

/* Queries first .. first + queries-1: T and its results, then P. */
static void shared_queries(const Form *f, PatternWork w, Tables t, int first, int queries, int heads,
                           const PatternShape *s) {
    size_t row = QUERIES * s->ldn, zs = (size_t)HEADS * s->Ep;
    OffsetSpan keys = keys_of(first, queries, s);
    if (f->fz || f->fw) {
        for (int r = 0; r < heads; r++)
            tile_gemm(w.pairs + r * row + keys.first, s->ldn, w.x + ((size_t)r * s->N + first) * s->Dp, s->Dp, 1,
                      w.kt + r * s->D * s->ldn + keys.first, s->ldn, queries, tile_round_up(keys.count), s->D, 0);
        for (int q = 0; q < queries; q++) {
            const float *x = w.pairs + q * s->ldn;
            if (f->fz) collect_window(w.fz + (first + q) * zs, w.product, x, row, t.w, first + q, heads, s);
            if (f->fw) add_to_window(w.part_w, x, row, w.z + (first + q) * zs, first + q, heads, s);
        }
    }
    if (!f->fx && !f->fk) return;
    for (int q = 0; q < queries; q++)
        spread_window(w.pairs + q * s->ldn, row, w.z + (first + q) * zs, t.wt, first + q, keys, heads, s);
    for (int r = 0; r < heads; r++) {
        const float *p = w.pairs + r * row + keys.first;
        size_t queries_at = ((size_t)r * s->N + first) * s->Dp, keys_at = ((size_t)r * s->N + keys.first) * s->Dp;
        if (f->fx)
            add_product(w.fx + queries_at, w.product, p, s->ldn, 1, w.k + keys_at, queries, s->Dp, keys.count);
        if (f->fk)
            tile_gemm(w.part_k + keys_at, s->Dp, p, 1, s->ldn, w.x + queries_at, s->Dp, keys.count, s->Dp, queries, 1);
    }
}

/* == A table for each channel ===================================================================================== */

/* Computes the pairs of one entry: p, and z if it is needed.  Returns their number, including the zeros that follow. */
TILE_INLINE int gather_pairs(float *p, float *zp, const float *x, const float *k, const float *z, int t,
                             const PatternShape *s, size_t Dp, size_t Ep) {
    int rows = 0;
    for (OffsetLine line = {0}; offset_lines_next(s->offsets, t, &line);) {
        const float *xi = x + line.i0 * Dp, *kj = k + line.j0 * Dp;
        for (size_t c = 0; c < line.count * Dp; c += TILE, p += TILE) vec_store(p, vec_load(xi + c) * vec_load(kj + c));
        if (z) memcpy(zp, z + line.i0 * Ep, line.count * Ep * sizeof *zp);
        zp += line.count * Ep;
        rows += line.count;
    }
    for (; rows % PAIRS; rows++, p += Dp, zp += Ep) {
        for (size_t c = 0; c < Dp; c += TILE) vec_store(p + c, vec_set(0));
        for (size_t e = 0; e < Ep; e += TILE) vec_store(zp + e, vec_set(0));
    }
    return rows;
}

TILE_INLINE void scatter_to_patterns(float *fz, const float *from, int t, const PatternShape *s, size_t Ep) {
    for (OffsetLine line = {0}; offset_lines_next(s->offsets, t, &line);) {
        float *to = fz + line.i0 * Ep;
        for (size_t e = 0; e < line.count * Ep; e += TILE, from += TILE)
            vec_store(to + e, vec_load(to + e) + vec_load(from));
    }
}

/* Fx += g k,  Fk += g x. */
TILE_INLINE void scatter_to_channels(float *fx, float *fk, const float *g, const float *x, const float *k, int t,
                                     const PatternShape *s, size_t Dp) {
    for (OffsetLine line = {0}; offset_lines_next(s->offsets, t, &line);) {
        size_t i = line.i0 * Dp, j = line.j0 * Dp, end = i + line.count * Dp;
        for (; i < end; i += TILE, j += TILE, g += TILE) {
            vec v = vec_load(g);
            if (fx) vec_store(fx + i, vec_load(fx + i) + v * vec_load(k + j));
            if (fk) vec_store(fk + j, vec_load(fk + j) + v * vec_load(x + i));
        }
    }
}

/* Entry t of head r; Dp and Ep are literals where they are TILE. */
TILE_INLINE void channels_entry(const Form *f, PatternWork w, Tables tables, int t, int r, const PatternShape *s,
                                size_t Dp, size_t Ep) {
    size_t at = (size_t)r * s->N * Dp, patterns = r * s->z_head;
    const float *x = w.x + at, *k = w.k + at;
    int rows = gather_pairs(w.p, w.zp, x, k, f->z ? w.z + patterns : NULL, t, s, Dp, Ep);
    if (f->fz) {
        tile_gemm(w.fzp, Ep, w.p, Dp, 1, tables.w + (size_t)t * s->D * Ep, Ep, rows, Ep, s->D, 0);
        scatter_to_patterns(w.part_z, w.fzp, t, s, Ep);
    }
    if (f->fx || f->fk) {
        tile_gemm(w.g, Dp, w.zp, Ep, 1, tables.wt + (size_t)t * s->E * Dp, Dp, rows, Dp, s->E, 0);
        scatter_to_channels(f->fx ? w.part_x : NULL, f->fk ? w.part_k : NULL, w.g, x, k, t, s, Dp);
    }
    if (f->fw) add_product(w.fw + (size_t)t * s->D * Ep, w.product, w.p, 1, Dp, w.zp, s->D, Ep, rows);
}

static void channels_head(const Form *f, PatternWork w, Tables tables, int r, const PatternShape *s) {
    size_t channels = (size_t)r * s->N * s->Dp;
    for (int t = 0; t < s->U; t++) {
        if (s->Dp == TILE && s->Ep == TILE) channels_entry(f, w, tables, t, r, s, TILE, TILE);
        else channels_entry(f, w, tables, t, r, s, s->Dp, s->Ep);
        if (t % BLOCK != BLOCK - 1 && t != s->U - 1) continue;
        if (f->fx) sums_join(w.fx + channels, w.part_x, (size_t)s->N * s->Dp);
        if (f->fk) sums_join(w.fk + channels, w.part_k, (size_t)s->N * s->Dp);
        if (f->fz) sums_join(w.fz + r * s->z_head, w.part_z, (size_t)s->N * s->Ep);
    }
}

/* == All of it ==================================================================================================== */

static void chunk_form(const Form *f, PatternWork w, Tables t, const Chunk *chunk, const PatternShape *s) {
    int heads = chunk->count;
    size_t by_channel = (size_t)HEADS * s->N * s->Dp, by_pattern = (size_t)HEADS * s->N * s->Ep;
    if (f->x) gather(w.x, f->x, s->x_row, chunk, s);
    if (f->z) gather_patterns(w.z, f, chunk, s);
    gather(w.k, f->k, s->k_row, chunk, s);
    for (int r = 0; !s->per_channel && r < heads; r++)
        transpose_padded(w.kt + r * s->D * s->ldn, s->ldn, w.k + (size_t)r * s->N * s->Dp, s->Dp, s->N, s->D);
    if (f->fx) memset(w.fx, 0, by_channel * sizeof *w.fx);
    if (f->fz) memset(w.fz, 0, by_pattern * sizeof *w.fz);
    if (f->fk) memset(w.fk, 0, by_channel * sizeof *w.fk);
    for (int i = 0; !s->per_channel && i < s->N; i += QUERIES) {
        shared_queries(f, w, t, i, s->N - i < QUERIES ? s->N - i : QUERIES, heads, s);
        if (i % BLOCK != BLOCK - QUERIES && i + QUERIES < s->N) continue;
        if (f->fk) sums_join(w.fk, w.part_k, (size_t)heads * s->N * s->Dp);
        if (f->fw) sums_join(w.fw, w.part_w, table_floats(s));
    }
    for (int r = 0; s->per_channel && r < heads; r++) channels_head(f, w, t, r, s);
    for (int i = 0; i < s->N; i++) {
        size_t zs = i * s->z_token, zh = s->z_head, xs = (size_t)i * s->Dp, xh = (size_t)s->N * s->Dp;
        if (f->fz) tile_gemm(w.fz + zs, zh, w.x + xs, xh, 1, t.base, s->Ep, heads, s->Ep, s->D, 1);
        if (f->fx) tile_gemm(w.fx + xs, xh, w.z + zs, zh, 1, t.baset, s->Dp, heads, s->Dp, s->E, 1);
        if (!f->fbase) continue;
        tile_gemm(w.part_base, s->Ep, w.x + xs, 1, xh, w.z + zs, zh, s->D, s->Ep, heads, 1);
        if (i % BLOCK == BLOCK - 1 || i == s->N - 1) sums_join(w.fbase, w.part_base, (size_t)s->D * s->Ep);
    }
    if (f->fx) scatter(f->fx, NULL, w.fx, s->x_row, chunk, s);
    if (f->fz) scatter_patterns(f, w.fz, chunk, s);
    if (f->fk) scatter(f->fk, f->add, w.fk, s->k_row, chunk, s);
}

/* Adds the threads' sums to the gradients, in the order of the threads.  A shared table that wraps around has each of
 * its entries twice in workspaces, so one thread adds them all. */
static void join(const Form *f, int threads, const PatternShape *s) {
    int channels = s->per_channel ? s->D : 1;
#pragma omp parallel for schedule(static) if (s->per_channel)
    for (int u = 0; u < s->U; u++)
        for (int t = 0; t < threads; t++) {
            const float *from = work_of(s, t).fw + (size_t)u * channels * s->Ep;
            float *to = f->fw + entry_at(s, u);
            for (int c = 0; c < channels; c++)
                for (int e = 0; e < s->E; e++) to[(size_t)c * s->E + e] += from[(size_t)c * s->Ep + e];
        }
    for (int t = 0; f->fbase && t < threads; t++)
        for (int c = 0; c < s->D; c++)
            for (int e = 0; e < s->E; e++) f->fbase[(size_t)c * s->E + e] += work_of(s, t).fbase[(size_t)c * s->Ep + e];
}

static void compute(const Form *f, const PatternSums *sums, int B) {
    PatternShape shape = shape_of(&sums->patterns), *s = &shape;
    s->x_row = sums->x_row;
    s->z_row = sums->s_row;
    s->k_row = sums->k_row;
    Tables tables = tables_make(sums->w, sums->base, s);
    size_t heads = (size_t)B * s->H;
    int threads = omp_get_max_threads();
#pragma omp parallel for schedule(static)
    for (int t = 0; t < threads; t++) {
        PatternWork work = work_of(s, t);
        if (f->fw) memset(work.fw, 0, table_floats(s) * sizeof(float));
        memset(work.fbase, 0, (size_t)s->D * s->Ep * sizeof(float));
        memset(work.part_x, 0, (size_t)(work.product - work.part_x) * sizeof(float)); /* all parts together */
    }
#pragma omp parallel for schedule(static)
    for (size_t first = 0; first < heads; first += HEADS) {
        Chunk chunk = {first, heads - first < HEADS ? (int)(heads - first) : HEADS};
        chunk_form(f, work_of(s, omp_get_thread_num()), tables, &chunk, s);
    }
    if (f->fw) join(f, threads, s);
}

void patterns_collect_forward(real *s, const real *q, const real *k, const PatternSums *sums, int B) {
    compute(&(Form){.x = q, .k = k, .fz = s}, sums, B);
}

void patterns_collect_backward(real *dq, real *dk, const real *add, const PatternSumsGradients *d, const void *ds,
                               const real *q, const real *k, const PatternSums *sums, int B) {
    Form form = {.x = q, .z = ds, .k = k, .fx = dq, .fk = dk, .add = add, .fw = d->w, .fbase = d->base,
                 .float_z = sums->float_ds};
    compute(&form, sums, B);
}

void patterns_spread_forward(real *y, const real *s, const real *v, const PatternSums *sums, int B) {
    compute(&(Form){.z = s, .k = v, .fx = y}, sums, B);
}

void patterns_spread_backward(void *ds, real *dv, const real *add, const PatternSumsGradients *d, const real *dy,
                              const real *s, const real *v, const PatternSums *sums, int B) {
    Form form = {.x = dy, .z = s, .k = v, .fz = ds, .fk = dv, .add = add, .fw = d->w, .fbase = d->base,
                 .float_fz = sums->float_ds};
    compute(&form, sums, B);
}

/* == Cost ======================================================================================================== */

/* The constants are from tests/bench/bench_lisa.c on one core of an EPYC 9005, in nanoseconds: a pair of tokens,
 * channel and pattern, and the start of a run of keys for each channel. */
double patterns_cost(const Patterns *patterns) {
    const double multiply_add = 0.064, start = 3;
    PatternShape s = shape_of(patterns);
    double pairs = 0;
    size_t runs = 0;
    int step = s.N > 1 << 15 ? s.N >> 10 | 1 : 1; /* a sample of a thousand queries is enough */
    for (int i = 0; i < s.N; i += step)
        for (OffsetRun run = {0}; offset_runs_next(s.offsets, i, &run); runs++) pairs += run.count;
    return 1e-9 * s.D * step * (multiply_add * s.Ep * pairs + start * (double)runs);
}
