/* Sums over keys by relative position, collected into patterns and spread from them; t = t(i,j).  Both are derivatives of
 *   F = sum_i sum_e z[i,e] sum_c x[i,c] (base[c,e] + sum_j w[t,c,e] k[j,c])
 * with respect to z (collect) and x (spread), and so are their gradients:
 *   collect   forward Fz at x = q;  backward Fx, Fk, Fw, Fbase at z = ds
 *   spread    forward Fx at z = s;  backward Fz, Fk, Fw, Fbase at x = dy
 * w the same for all channels: with T[i,j] = x_i.k_j and P[i,j] = sum_e z[i,e] w[t,e]
 *   Fz[i,e] = sum_j T[i,j] w[t,e],  Fx_i = sum_j P[i,j] k_j,  Fk_j = sum_i P[i,j] x_i,  Fw[t,e] = sum_ij T[i,j] z[i,e]
 * w for each channel: with A[e] = sum_j w[t,c,e] k[j,c] for one query i and channel c, and dA[e] = x[i,c] z[i,e]
 *   Fz[i,e] = sum_c x[i,c] A[e],  Fx[i,c] = sum_e z[i,e] A[e],  Fk[j,c] = sum_e dA[e] w[t,c,e],  Fw[t,c,e] = k[j,c] dA[e]
 *
 * HEADS (image, head)s go together: for one query they read the same window of the table (offset_runs.h), so that sums over
 * j and over e are matrix products with that window, and sums over channels are products of QUERIES queries of one head. */
#include <assert.h>
#include <string.h>

#include "kernels/cpu/offset_runs.h"
#include "kernels/cpu/vecmath.h"
#include "kernels/cpu/workspace.h"
#include "kernels/kernels.h"

enum { HEADS = 8, QUERIES = 8 };

typedef struct {
    const Offsets *offsets;
    int N, H, D, E, Dp, Ep;
    int channels;    /* of w: D or 1 */
    int U;           /* entries of a turned table */
    size_t ldu, ldn; /* rows along entries, along keys: room for a vector beyond */
    PatternRows rows;
} Shape;

static Shape shape_of(const Patterns *p, const PatternRows *rows, int H, int D) {
    const Offsets *o = &p->offsets;
    Shape s = {.offsets = o, .N = o->Hg * o->Wg, .H = H, .D = D, .E = p->E, .channels = p->per_channel ? D : 1};
    s.Dp = tile_round_up(D);
    s.Ep = tile_round_up(s.E);
    s.U = offset_runs_entries(o);
    s.ldu = (size_t)tile_round_up(s.U) + TILE;
    s.ldn = (size_t)tile_round_up(s.N) + TILE;
    if (rows) s.rows = *rows;
    return s;
}

/* x, z and k, and what is asked for: the derivatives that are not NULL. */
typedef struct {
    const real *x, *z, *k;
    real *fx, *fz, *fk;
    const real *add; /* to fk, or NULL */
    float *fw, *fbase;
} Form;

/* == Buffers ====================================================================================================== */

/* Shared by the threads: the table turned round, both ways, and base, both ways (zeros where there is none). */
typedef struct {
    float *w, *wt;       /* [channels,U,Ep], [channels,E,ldu] */
    float *base, *baset; /* [D,Ep], [E,Dp] */
} Tables;

static Tables tables_take(const Shape *s, float *memory, size_t *floats) {
    float *next = memory;
    Tables t;
    t.w = workspace_take(&next, (size_t)s->channels * s->U * s->Ep);
    t.wt = workspace_take(&next, (size_t)s->channels * s->E * s->ldu);
    t.base = workspace_take(&next, (size_t)s->D * s->Ep);
    t.baset = workspace_take(&next, (size_t)s->E * s->Dp);
    *floats = (size_t)(next - memory);
    return t;
}

typedef struct {
    float *x, *fx;     /* [HEADS,N,Dp] */
    float *z, *fz;     /* [N,HEADS,Ep] */
    float *k, *fk;     /* [HEADS,N,Dp] */
    float *kt, *fkt;   /* [HEADS,D,ldn] */
    float *pairs;      /* [HEADS,QUERIES,ldn]: T, then P */
    float *a, *da;     /* [HEADS,Ep] */
    float *fw, *fbase; /* this thread's sums, as in Tables */
} Work;

static Work work_take(const Shape *s, float *memory, size_t *floats) {
    float *next = memory;
    size_t rows = (size_t)HEADS * s->N, keys = HEADS * s->D * s->ldn;
    Work w;
    float **by_channel[] = {&w.x, &w.fx, &w.k, &w.fk};
    for (int i = 0; i < 4; i++) *by_channel[i] = workspace_take(&next, rows * s->Dp);
    w.z = workspace_take(&next, rows * s->Ep);
    w.fz = workspace_take(&next, rows * s->Ep);
    w.kt = workspace_take(&next, keys);
    w.fkt = workspace_take(&next, keys);
    w.pairs = workspace_take(&next, HEADS * QUERIES * s->ldn);
    w.a = workspace_take(&next, (size_t)HEADS * s->Ep);
    w.da = workspace_take(&next, (size_t)HEADS * s->Ep);
    w.fw = workspace_take(&next, (size_t)s->channels * s->U * s->Ep);
    w.fbase = workspace_take(&next, (size_t)s->D * s->Ep);
    *floats = (size_t)(next - memory);
    return w;
}

static size_t tables_floats(const Shape *s) {
    size_t floats;
    tables_take(s, NULL, &floats);
    return floats;
}

static size_t work_floats(const Shape *s) {
    size_t floats;
    work_take(s, NULL, &floats);
    return floats;
}

size_t patterns_workspace(const Patterns *patterns, int B, int H, int D) {
    (void)B;
    Shape s = shape_of(patterns, NULL, H, D);
    return workspace_bytes(work_floats(&s)) + tables_floats(&s) * sizeof(float);
}

static Work work_of(const Shape *s, int thread) {
    size_t floats = work_floats(s), first = tables_floats(s) + thread * workspace_line_up(floats);
    assert((first + floats) * sizeof(float) <= kernels_workspace_bytes);
    return work_take(s, (float *)kernels_workspace_base + first, &floats);
}

static Tables tables_make(const float *w, const float *base, const Shape *s) {
    size_t floats;
    Tables t = tables_take(s, (float *)kernels_workspace_base, &floats);
    memset(t.w, 0, floats * sizeof(float));
#pragma omp parallel for schedule(static)
    for (int c = 0; c < s->channels; c++)
        for (int u = 0; u < s->U; u++) {
            const float *from = w + ((size_t)offset_runs_entry(s->offsets, u) * s->channels + c) * s->E;
            for (int e = 0; e < s->E; e++) {
                t.w[((size_t)c * s->U + u) * s->Ep + e] = from[e];
                t.wt[((size_t)c * s->E + e) * s->ldu + u] = from[e];
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

static size_t head_at(const Chunk *chunk, int r, int row, int width, const Shape *s) {
    size_t head = chunk->first + r;
    return head / s->H * s->N * row + head % s->H * width;
}

/* to [count,N,Dp] with zeros in the padding. */
static void gather(float *to, const real *from, int row, const Chunk *chunk, const Shape *s) {
    for (int r = 0; r < chunk->count; r++) {
        const real *head = from + head_at(chunk, r, row, s->D, s);
        for (int i = 0; i < s->N; i++, to += s->Dp)
            for (int j = 0; j < s->D; j += TILE) vec_store(to + j, vec_load_part(head + (size_t)i * row + j, s->D - j));
    }
}

/* to = add + from, without the padding. */
static void scatter(real *to, const real *add, const float *from, int row, const Chunk *chunk, const Shape *s) {
    for (int r = 0; r < chunk->count; r++) {
        size_t at = head_at(chunk, r, row, s->D, s);
        for (int i = 0; i < s->N; i++, from += s->Dp, at += row)
            for (int j = 0; j < s->D; j += TILE) {
                vec v = vec_load(from + j);
                if (add) v += vec_load_part(add + at + j, s->D - j);
                vec_store_part(to + at + j, v, s->D - j);
            }
    }
}

/* to [N,HEADS,Ep], and back. */
static void gather_patterns(float *to, const real *from, const Chunk *chunk, const Shape *s) {
    for (int r = 0; r < chunk->count; r++) {
        const real *head = from + head_at(chunk, r, s->rows.z, s->E, s);
        for (int i = 0; i < s->N; i++)
            for (int e = 0; e < s->E; e += TILE)
                vec_store(to + ((size_t)i * HEADS + r) * s->Ep + e, vec_load_part(head + (size_t)i * s->rows.z + e, s->E - e));
    }
}
static void scatter_patterns(real *to, const float *from, const Chunk *chunk, const Shape *s) {
    for (int r = 0; r < chunk->count; r++) {
        real *head = to + head_at(chunk, r, s->rows.z, s->E, s);
        for (int i = 0; i < s->N; i++)
            for (int e = 0; e < s->E; e += TILE)
                vec_store_part(head + (size_t)i * s->rows.z + e, vec_load(from + ((size_t)i * HEADS + r) * s->Ep + e), s->E - e);
    }
}

/* to [count,D,ldn] = from [count,N,Dp] head by head transposed, zeros beyond N; and back. */
static void transpose(float *to, const float *from, int count, const Shape *s) {
    memset(to, 0, count * s->D * s->ldn * sizeof *to);
    for (int r = 0; r < count; r++)
        for (int i = 0; i < s->N; i++)
            for (int c = 0; c < s->D; c++) to[((size_t)r * s->D + c) * s->ldn + i] = from[((size_t)r * s->N + i) * s->Dp + c];
}
static void transpose_back(float *to, const float *from, int count, const Shape *s) {
    for (int r = 0; r < count; r++)
        for (int i = 0; i < s->N; i++)
            for (int c = 0; c < s->D; c++) to[((size_t)r * s->N + i) * s->Dp + c] = from[((size_t)r * s->D + c) * s->ldn + i];
}

/* == One query and its window of the table ======================================================================== */

/* out [heads,Ep] += x [heads,keys] times the window; x's rows lie ldx apart. */
static void collect_window(float *out, const float *x, size_t ldx, const float *table, int i, int heads, const Shape *s) {
    for (OffsetRun run = {0}; offset_runs_next(s->offsets, i, &run);)
        tile_gemm(out, s->Ep, x + run.j0, ldx, 1, table + (size_t)run.u * s->Ep, s->Ep, heads, s->Ep, run.count, 1);
}

/* out [heads,keys] = z [heads,E] times the transposed window, or += that.  A run's last vector reaches into the next run,
 * which comes later, or behind the last key. */
static void spread_window(float *out, size_t ldo, const float *z, const float *table, int i, int heads, const Shape *s) {
    for (OffsetRun run = {0}; offset_runs_next(s->offsets, i, &run);)
        tile_gemm(out + run.j0, ldo, z, s->Ep, 1, table + run.u, s->ldu, heads, tile_round_up(run.count), s->E, 0);
}

/* The window += x^T z. */
static void add_to_window(float *table, const float *x, size_t ldx, const float *z, int i, int heads, const Shape *s) {
    for (OffsetRun run = {0}; offset_runs_next(s->offsets, i, &run);)
        tile_gemm(table + (size_t)run.u * s->Ep, s->Ep, x + run.j0, 1, ldx, z, s->Ep, run.count, s->Ep, heads, 1);
}

/* == The same table for all channels ============================================================================== */

/* Queries first .. first + queries-1: T and what comes of it, then P. */
static void shared_queries(const Form *f, Work w, Tables t, int first, int queries, int heads, const Shape *s) {
    size_t row = QUERIES * s->ldn, zs = (size_t)HEADS * s->Ep;
    if (f->fz || f->fw) {
        for (int r = 0; r < heads; r++)
            tile_gemm(w.pairs + r * row, s->ldn, w.x + ((size_t)r * s->N + first) * s->Dp, s->Dp, 1, w.kt + r * s->D * s->ldn,
                      s->ldn, queries, tile_round_up(s->N), s->D, 0);
        for (int q = 0; q < queries; q++) {
            const float *x = w.pairs + q * s->ldn;
            if (f->fz) collect_window(w.fz + (first + q) * zs, x, row, t.w, first + q, heads, s);
            if (f->fw) add_to_window(w.fw, x, row, w.z + (first + q) * zs, first + q, heads, s);
        }
    }
    if (!f->fx && !f->fk) return;
    for (int q = 0; q < queries; q++)
        spread_window(w.pairs + q * s->ldn, row, w.z + (first + q) * zs, t.wt, first + q, heads, s);
    for (int r = 0; r < heads; r++) {
        const float *p = w.pairs + r * row;
        size_t queries_at = ((size_t)r * s->N + first) * s->Dp, keys_at = (size_t)r * s->N * s->Dp;
        if (f->fx) tile_gemm(w.fx + queries_at, s->Dp, p, s->ldn, 1, w.k + keys_at, s->Dp, queries, s->Dp, s->N, 1);
        if (f->fk) tile_gemm(w.fk + keys_at, s->Dp, p, 1, s->ldn, w.x + queries_at, s->Dp, s->N, s->Dp, queries, 1);
    }
}

/* == A table for each channel ===================================================================================== */

static void channel_query(const Form *f, Work w, Tables t, int i, int c, int heads, const Shape *s) {
    size_t lines = s->D * s->ldn, table = (size_t)c * s->U * s->Ep, zs = (size_t)i * HEADS * s->Ep;
    const float *k = w.kt + c * s->ldn, *z = w.z + zs;
    if (f->fz || f->fx) {
        memset(w.a, 0, (size_t)heads * s->Ep * sizeof *w.a);
        collect_window(w.a, k, lines, t.w + table, i, heads, s);
    }
    for (int r = 0; r < heads; r++) {
        size_t at = ((size_t)r * s->N + i) * s->Dp + c;
        vec sum = {0};
        for (int e = 0; e < s->Ep; e += TILE) {
            float *fz = w.fz + zs + r * s->Ep + e, *a = w.a + r * s->Ep + e;
            if (f->fz) vec_store(fz, vec_load(fz) + w.x[at] * vec_load(a));
            if (f->fx) sum += vec_load(z + r * s->Ep + e) * vec_load(a);
            if (f->fk) vec_store(w.da + r * s->Ep + e, w.x[at] * vec_load(z + r * s->Ep + e));
        }
        if (f->fx) w.fx[at] += vec_sum(sum);
    }
    if (!f->fk) return;
    spread_window(w.pairs, s->ldn, w.da, t.wt + c * s->E * s->ldu, i, heads, s);
    for (int r = 0; r < heads; r++) {
        float *to = w.fkt + r * lines + c * s->ldn;
        for (int j = 0; j < s->N; j += TILE) vec_store(to + j, vec_load(to + j) + vec_load(w.pairs + r * s->ldn + j));
    }
    add_to_window(w.fw + table, k, lines, w.da, i, heads, s);
}

/* == All of it ==================================================================================================== */

static void chunk_form(const Form *f, Work w, Tables t, const Chunk *chunk, const Shape *s) {
    int heads = chunk->count;
    size_t by_channel = (size_t)HEADS * s->N * s->Dp, by_pattern = (size_t)HEADS * s->N * s->Ep;
    if (f->x) gather(w.x, f->x, s->rows.x, chunk, s);
    if (f->z) gather_patterns(w.z, f->z, chunk, s);
    gather(w.k, f->k, s->rows.k, chunk, s);
    transpose(w.kt, w.k, heads, s);
    if (f->fx) memset(w.fx, 0, by_channel * sizeof *w.fx);
    if (f->fz) memset(w.fz, 0, by_pattern * sizeof *w.fz);
    if (f->fk) memset(w.fk, 0, by_channel * sizeof *w.fk);
    if (f->fk) memset(w.fkt, 0, HEADS * s->D * s->ldn * sizeof *w.fkt);
    for (int i = 0; s->channels == 1 && i < s->N; i += QUERIES)
        shared_queries(f, w, t, i, s->N - i < QUERIES ? s->N - i : QUERIES, heads, s);
    for (int c = 0; s->channels > 1 && c < s->D; c++)
        for (int i = 0; i < s->N; i++) channel_query(f, w, t, i, c, heads, s);
    if (s->channels > 1 && f->fk) transpose_back(w.fk, w.fkt, heads, s);
    for (int i = 0; i < s->N; i++) {
        size_t zs = (size_t)i * HEADS * s->Ep, xs = (size_t)i * s->Dp, head = (size_t)s->N * s->Dp;
        if (f->fz) tile_gemm(w.fz + zs, s->Ep, w.x + xs, head, 1, t.base, s->Ep, heads, s->Ep, s->D, 1);
        if (f->fx) tile_gemm(w.fx + xs, head, w.z + zs, s->Ep, 1, t.baset, s->Dp, heads, s->Dp, s->E, 1);
        if (f->fbase) tile_gemm(w.fbase, s->Ep, w.x + xs, 1, head, w.z + zs, s->Ep, s->D, s->Ep, heads, 1);
    }
    if (f->fx) scatter(f->fx, NULL, w.fx, s->rows.x, chunk, s);
    if (f->fz) scatter_patterns(f->fz, w.fz, chunk, s);
    if (f->fk) scatter(f->fk, f->add, w.fk, s->rows.k, chunk, s);
}

/* The threads' sums join the gradients in the order of the threads. */
static void join(const Form *f, int threads, const Shape *s) {
#pragma omp parallel for schedule(static)
    for (int c = 0; c < s->channels; c++)
        for (int u = 0; u < s->U; u++)
            for (int t = 0; t < threads; t++) {
                const float *from = work_of(s, t).fw + ((size_t)c * s->U + u) * s->Ep;
                float *to = f->fw + ((size_t)offset_runs_entry(s->offsets, u) * s->channels + c) * s->E;
                for (int e = 0; e < s->E; e++) to[e] += from[e];
            }
    for (int t = 0; f->fbase && t < threads; t++)
        for (int c = 0; c < s->D; c++)
            for (int e = 0; e < s->E; e++) f->fbase[(size_t)c * s->E + e] += work_of(s, t).fbase[(size_t)c * s->Ep + e];
}

static void compute(const Form *f, const float *w, const float *base, const Shape *s, int B) {
    Tables tables = tables_make(w, base, s);
    size_t heads = (size_t)B * s->H;
    int threads = omp_get_max_threads();
#pragma omp parallel for schedule(static)
    for (int t = 0; t < threads; t++) {
        Work work = work_of(s, t);
        if (f->fw) memset(work.fw, 0, (size_t)s->channels * s->U * s->Ep * sizeof(float));
        memset(work.fbase, 0, (size_t)s->D * s->Ep * sizeof(float));
    }
#pragma omp parallel for schedule(static)
    for (size_t first = 0; first < heads; first += HEADS) {
        Chunk chunk = {first, heads - first < HEADS ? (int)(heads - first) : HEADS};
        chunk_form(f, work_of(s, omp_get_thread_num()), tables, &chunk, s);
    }
    if (f->fw) join(f, threads, s);
}

void patterns_collect_forward(real *s, const real *q, const real *k, const float *w, const float *base,
                              const Patterns *patterns, const PatternRows *rows, int B, int H, int D) {
    Shape shape = shape_of(patterns, rows, H, D);
    compute(&(Form){.x = q, .k = k, .fz = s}, w, base, &shape, B);
}

void patterns_collect_backward(real *dq, real *dk, const real *add, float *dw, float *dbase, const real *ds, const real *q,
                               const real *k, const float *w, const float *base, const Patterns *patterns,
                               const PatternRows *rows, int B, int H, int D) {
    Shape shape = shape_of(patterns, rows, H, D);
    Form form = {.x = q, .z = ds, .k = k, .fx = dq, .fk = dk, .add = add, .fw = dw, .fbase = dbase};
    compute(&form, w, base, &shape, B);
}

void patterns_spread_forward(real *y, const real *s, const real *v, const float *w, const float *base,
                             const Patterns *patterns, const PatternRows *rows, int B, int H, int D) {
    Shape shape = shape_of(patterns, rows, H, D);
    compute(&(Form){.z = s, .k = v, .fx = y}, w, base, &shape, B);
}

void patterns_spread_backward(real *ds, real *dv, const real *add, float *dw, float *dbase, const real *dy, const real *s,
                              const real *v, const float *w, const float *base, const Patterns *patterns,
                              const PatternRows *rows, int B, int H, int D) {
    Shape shape = shape_of(patterns, rows, H, D);
    Form form = {.x = dy, .z = s, .k = v, .fz = ds, .fk = dv, .add = add, .fw = dw, .fbase = dbase};
    compute(&form, w, base, &shape, B);
}
