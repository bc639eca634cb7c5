/* LiSA and SA over all pairs of tokens, for ROWS heads (of any images) at a time and query by query; t = t(i,j).
 *   forward   1. Ga[c,e] = sum_j k^[j,c] wa[t,c,e],  S[e] = sum_c q^[i,c] Ga[c,e]
 *             2. P[j] = sum_e S[e] wb[t,e]           3. y = sum_j P[j] v_j + sum_e S[e] b_e
 *   backward  3. T[j] = dy.v_j,  dv_j += P[j] dy,  db_e += S[e] dy
 *             2. dS[e] = dy.b_e + sum_j T[j] wb[t,e],  dwb[t,e] += T[j] S[e]
 *             1. dGa[c,e] = q^[i,c] dS[e],  dq^[i,c] = sum_e dS[e] Ga[c,e],
 *                dk^[j,c] += sum_e dGa[c,e] wa[t,c,e],  dwa[t,c,e] += k^[j,c] dGa[c,e]
 *   saves     S.   Source: the paper's equations 10 and 11.
 *
 * The sums over j are matrix products of ROWS rows with a window of the table (offset_runs.h), patterns along the
 * vector; the ones over e have the transposed table's keys along it.  Sums over tokens are formed BLOCK at a time and
 * then joined, so that the rounding error does not grow with N. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/offsets/offset_runs.h"
#include "kernels/device/workspace.h"
#include "kernels/kernels.h"

enum { ROWS = 8, BLOCK = 64 };

typedef struct {
    const Offsets *offsets;
    int N, H, D, E, Dp, Ep;
    int channels;  /* of wa: D or 1 */
    int T, U;      /* entries of a table, and of its copy for offset_runs.h */
    size_t ldu, ldn; /* rows of the transposed tables, of what has a number for every key: room for a vector beyond */
    size_t qk_row, qkv_row, y_row;
} Shape;

static Shape shape_of(const Patterns *p) {
    const Offsets *o = &p->offsets;
    int H = p->H, D = p->D;
    Shape s = {.offsets = o, .N = grid_tokens(o->grid), .H = H, .D = D, .E = p->E, .channels = p->per_channel ? D : 1};
    s.Dp = tile_round_up(D);
    s.Ep = tile_round_up(s.E);
    s.T = offsets_count(o);
    s.U = offset_runs_entries(o);
    s.ldu = (size_t)tile_round_up(s.U) + TILE;
    s.ldn = (size_t)tile_round_up(s.N) + TILE;
    s.qk_row = (size_t)2 * H * D;
    s.qkv_row = (size_t)3 * H * D;
    s.y_row = (size_t)H * D;
    return s;
}

/* == Buffers ====================================================================================================== */

/* Shared by the threads: the tables as offset_runs.h reads them, and b, each also transposed. */
typedef struct {
    float *wa, *wat; /* [channels,U,Ep], [channels,E,ldu] */
    float *wb, *wbt; /* [U,Ep], [E,ldu] */
    float *b, *bt;   /* [D,Ep], [E,Dp] */
} Tables;

static Tables tables_take(const Shape *s, float *base, size_t *floats) {
    float *next = base;
    Tables t;
    t.wa = workspace_take(&next, (size_t)s->channels * s->U * s->Ep);
    t.wat = workspace_take(&next, (size_t)s->channels * s->E * s->ldu);
    t.wb = workspace_take(&next, (size_t)s->U * s->Ep);
    t.wbt = workspace_take(&next, (size_t)s->E * s->ldu);
    t.b = workspace_take(&next, (size_t)s->D * s->Ep);
    t.bt = workspace_take(&next, (size_t)s->E * s->Dp);
    *floats = (size_t)(next - base);
    return t;
}

/* Sums over queries: dk^ [ROWS,D,ldn], dv [ROWS,N,Dp], and the tables as Tables has them, b [D,Ep]. */
typedef struct {
    float *keys, *values, *wa, *wb, *b;
} Sums;

typedef struct {
    float *kt, *vt;           /* [ROWS,D,ldn] */
    float *v;                 /* [ROWS,N,Dp] */
    float *p, *t, *keys;      /* [ROWS,ldn] */
    float *s, *ds, *ga, *dga; /* [ROWS,Ep] */
    float *y, *product;       /* [ROWS,Dp], [ROWS,Ep or Dp] */
    Sums part, total;         /* of a block of queries; of all */
} Work;

/* A head's gradients first, then the parameters'. */
static size_t head_sums_floats(const Shape *s) {
    return workspace_line_up(ROWS * s->D * s->ldn) + workspace_line_up((size_t)ROWS * s->N * s->Dp);
}

static Sums sums_take(const Shape *s, float **next) {
    Sums g;
    g.keys = workspace_take(next, ROWS * s->D * s->ldn);
    g.values = workspace_take(next, (size_t)ROWS * s->N * s->Dp);
    g.wa = workspace_take(next, (size_t)s->channels * s->U * s->Ep);
    g.wb = workspace_take(next, (size_t)s->U * s->Ep);
    g.b = workspace_take(next, (size_t)s->D * s->Ep);
    return g;
}

static size_t sums_floats(const Shape *s) {
    return head_sums_floats(s) + workspace_line_up((size_t)s->channels * s->U * s->Ep) +
           workspace_line_up((size_t)s->U * s->Ep) + workspace_line_up((size_t)s->D * s->Ep);
}

static Work work_take(const Shape *s, float *base, size_t *floats) {
    float *next = base;
    Work w;
    float **narrow[] = {&w.s, &w.ds, &w.ga, &w.dga}, **wide[] = {&w.p, &w.t, &w.keys};
    w.kt = workspace_take(&next, ROWS * s->D * s->ldn);
    w.vt = workspace_take(&next, ROWS * s->D * s->ldn);
    w.v = workspace_take(&next, (size_t)ROWS * s->N * s->Dp);
    for (int i = 0; i < 3; i++) *wide[i] = workspace_take(&next, ROWS * s->ldn);
    for (int i = 0; i < 4; i++) *narrow[i] = workspace_take(&next, (size_t)ROWS * s->Ep);
    w.y = workspace_take(&next, (size_t)ROWS * s->Dp);
    w.product = workspace_take(&next, (size_t)ROWS * (s->Dp > s->Ep ? s->Dp : s->Ep));
    w.part = sums_take(s, &next);
    w.total = sums_take(s, &next);
    *floats = (size_t)(next - base);
    return w;
}

/* Adds the sums of a block of queries to the total. */
static void sums_join(Work w, const Shape *s) {
    size_t n = sums_floats(s);
    for (size_t i = 0; i < n; i += TILE)
        vec_store(w.total.keys + i, vec_load(w.total.keys + i) + vec_load(w.part.keys + i));
    memset(w.part.keys, 0, n * sizeof(float));
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

size_t lisa_dense_workspace(const Patterns *patterns, int B) {
    (void)B;
    Shape s = shape_of(patterns);
    return workspace_bytes_behind(tables_floats(&s), work_floats(&s));
}

static Work work_of(const Shape *s, int thread) {
    size_t floats = work_floats(s);
    return work_take(s, workspace_behind(tables_floats(s), thread, floats), &floats);
}

/* to [U,Ep] and tot [E,ldu] from column c of w [T,channels,E]. */
static void turn_table(float *to, float *tot, const float *w, int c, int channels, const Shape *s) {
    for (int u = 0; u < s->U; u++) {
        const float *from = w + ((size_t)offset_runs_entry(s->offsets, u) * channels + c) * s->E;
        for (int e = 0; e < s->Ep; e++) to[(size_t)u * s->Ep + e] = e < s->E ? from[e] : 0;
        for (int e = 0; e < s->E; e++) tot[e * s->ldu + u] = from[e];
    }
    for (int e = 0; e < s->E; e++) memset(tot + e * s->ldu + s->U, 0, (s->ldu - s->U) * sizeof(float));
}

static Tables tables_make(const float *wa, const float *wb, const float *b, const Shape *s) {
    size_t floats;
    Tables t = tables_take(s, workspace_shared(), &floats);
#pragma omp parallel for schedule(static)
    for (int c = 0; c < s->channels; c++)
        turn_table(t.wa + (size_t)c * s->U * s->Ep, t.wat + c * s->E * s->ldu, wa, c, s->channels, s);
    turn_table(t.wb, t.wbt, wb, 0, 1, s);
    memset(t.b, 0, (size_t)s->D * s->Ep * sizeof(float));
    memset(t.bt, 0, (size_t)s->E * s->Dp * sizeof(float));
    for (int c = 0; c < s->D; c++)
        for (int e = 0; e < s->E; e++)
            t.b[(size_t)c * s->Ep + e] = t.bt[(size_t)e * s->Dp + c] = b[(size_t)c * s->E + e];
    return t;
}

/* == ROWS heads =================================================================================================== */

/* The heads of one chunk. */
typedef struct {
    int count;
    size_t qk[ROWS], v[ROWS], y[ROWS], s[ROWS]; /* where the first token stands in each tensor */
} Chunk;

static Chunk chunk_at(size_t first, size_t heads, const Shape *s) {
    Chunk c = {.count = heads - first < ROWS ? (int)(heads - first) : ROWS};
    for (int r = 0; r < c.count; r++) {
        size_t head = first + r, token = head / s->H * s->N, h = head % s->H;
        c.qk[r] = token * s->qk_row + h * s->D;
        c.v[r] = token * s->qkv_row + 2 * s->y_row + h * s->D;
        c.y[r] = token * s->y_row + h * s->D;
        c.s[r] = head * s->E * s->N;
    }
    return c;
}

/* to [D,ldn] = from [N,D] transposed, zeros beyond N. */
static void gather_transposed(float *to, const real *from, size_t row, const Shape *s) {
    for (int c = 0; c < s->D; c++) {
        for (int j = 0; j < s->N; j++) to[c * s->ldn + j] = real_get(from[j * row + c]);
        memset(to + c * s->ldn + s->N, 0, (s->ldn - s->N) * sizeof(float));
    }
}

static void gather_chunk(Work w, const Chunk *chunk, const real *qk, const real *qkv, const Shape *s) {
    for (int r = 0; r < chunk->count; r++) {
        gather_transposed(w.kt + r * s->D * s->ldn, qk + chunk->qk[r] + s->y_row, s->qk_row, s);
        for (int j = 0; j < s->N; j++)
            for (int c = 0; c < s->Dp; c++)
                w.v[((size_t)r * s->N + j) * s->Dp + c] =
                    c < s->D ? real_get(qkv[chunk->v[r] + j * s->qkv_row + c]) : 0;
    }
}

/* out [rows,n] += x [rows,k] y [k,n], n a multiple of TILE; both dense but x, whose rows lie ldx apart. */
static void add_product(float *out, float *product, const float *x, size_t ldx, const float *y, int rows, int n,
                        int k) {
    for (int first = 0; first < k; first += BLOCK) {
        tile_gemm(product, n, x + first, ldx, 1, y + (size_t)first * n, n, rows, n,
                  k - first < BLOCK ? k - first : BLOCK, 0);
        for (int i = 0; i < rows * n; i += TILE) vec_store(out + i, vec_load(out + i) + vec_load(product + i));
    }
}

/* out [rows,Ep] = x [rows,keys] times the table's window, over all runs of query i; x's rows lie ldx apart. */
static void times_window(float *out, Work w, const float *x, size_t ldx, const float *table, int i, int rows,
                         const Shape *s) {
    memset(out, 0, (size_t)rows * s->Ep * sizeof(float));
    for (OffsetRun run = {0}; offset_runs_next(s->offsets, i, &run);)
        add_product(out, w.product, x + run.j0, ldx, table + (size_t)run.u * s->Ep, rows, s->Ep, run.count);
}

/* out [rows,ldn] = x [rows,Ep] times the transposed window, run by run: a run's last vector may reach into the next
 * run, which is written after it. */
static void times_window_transposed(float *out, const float *x, const float *table, int i, int rows, const Shape *s) {
    for (OffsetRun run = {0}; offset_runs_next(s->offsets, i, &run);)
        tile_gemm(out + run.j0, s->ldn, x, s->Ep, 1, table + run.u, s->ldu, rows, tile_round_up(run.count), s->E, 0);
}

/* The table's window += x^T y: x [rows,keys], y [rows,Ep]. */
static void add_to_window(float *table, const float *x, size_t ldx, const float *y, int i, int rows, const Shape *s) {
    for (OffsetRun run = {0}; offset_runs_next(s->offsets, i, &run);)
        tile_gemm(table + (size_t)run.u * s->Ep, s->Ep, x + run.j0, 1, ldx, y, s->Ep, run.count, s->Ep, rows, 1);
}

static const float *channel(const float *table, size_t size, int c, const Shape *s) {
    return table + (s->channels > 1 ? c * size : 0);
}

/* Ga of query i and channel c. */
static void patterns_of_channel(Work w, Tables t, int i, int c, int rows, const Shape *s) {
    times_window(w.ga, w, w.kt + c * s->ldn, s->D * s->ldn, channel(t.wa, (size_t)s->U * s->Ep, c, s), i, rows, s);
}

/* == Forward ====================================================================================================== */

static void forward_query(real *y, real *patterns, const real *qk, Tables t, Work w, const Chunk *chunk, int i,
                          const Shape *s) {
    int rows = chunk->count;
    memset(w.s, 0, (size_t)rows * s->Ep * sizeof(float));
    for (int c = 0; c < s->D; c++) {
        patterns_of_channel(w, t, i, c, rows, s);
        for (int r = 0; r < rows; r++)
            for (int e = 0; e < s->Ep; e++)
                w.s[r * s->Ep + e] += real_get(qk[chunk->qk[r] + i * s->qk_row + c]) * w.ga[r * s->Ep + e];
    }
    for (int n = 0; n < rows * s->Ep; n++) w.s[n] = real_rounded(w.s[n]); /* y comes from the S that backward reads */
    times_window_transposed(w.p, w.s, t.wbt, i, rows, s);
    tile_gemm(w.y, s->Dp, w.s, s->Ep, 1, t.bt, s->Dp, rows, s->Dp, s->E, 0);
    for (int r = 0; r < rows; r++) {
        for (OffsetRun run = {0}; offset_runs_next(s->offsets, i, &run);)
            add_product(w.y + r * s->Dp, w.product, w.p + r * s->ldn + run.j0, s->ldn,
                        w.v + ((size_t)r * s->N + run.j0) * s->Dp, 1, s->Dp, run.count);
        for (int c = 0; c < s->D; c++) y[chunk->y[r] + i * s->y_row + c] = real_of(w.y[r * s->Dp + c]);
        for (int e = 0; e < s->E; e++) patterns[chunk->s[r] + (size_t)e * s->N + i] = real_of(w.s[r * s->Ep + e]);
    }
}

LISA_FORWARD(lisa_dense_forward) {
    Shape shape = shape_of(&lisa->patterns);
    Tables tables = tables_make(lisa->wa, lisa->wb, lisa->b, &shape);
    size_t heads = (size_t)B * shape.H;
#pragma omp parallel for schedule(static)
    for (size_t first = 0; first < heads; first += ROWS) {
        Work w = work_of(&shape, omp_get_thread_num());
        Chunk chunk = chunk_at(first, heads, &shape);
        gather_chunk(w, &chunk, qk, qkv, &shape);
        for (int i = 0; i < shape.N; i++) forward_query(y, s, qk, tables, w, &chunk, i, &shape);
    }
}

/* == Backward ===================================================================================================== */

/* Step 1 of the backward pass for query i and channel c. */
static void channel_backward(real *dqk, const real *qk, Tables t, Work w, const Chunk *chunk, int i, int c,
                             const Shape *s) {
    int rows = chunk->count;
    size_t table = (size_t)s->U * s->Ep;
    patterns_of_channel(w, t, i, c, rows, s);
    for (int r = 0; r < rows; r++) {
        float q = real_get(qk[chunk->qk[r] + i * s->qk_row + c]), sum = 0;
        for (int e = 0; e < s->Ep; e++) {
            sum += w.ds[r * s->Ep + e] * w.ga[r * s->Ep + e];
            w.dga[r * s->Ep + e] = q * w.ds[r * s->Ep + e];
        }
        dqk[chunk->qk[r] + i * s->qk_row + c] = real_of(sum);
    }
    times_window_transposed(w.keys, w.dga, channel(t.wat, s->E * s->ldu, c, s), i, rows, s);
    for (int r = 0; r < rows; r++)
        for (OffsetRun run = {0}; offset_runs_next(s->offsets, i, &run);)
            for (int j = run.j0; j < run.j0 + run.count; j++)
                w.part.keys[(r * s->D + c) * s->ldn + j] += w.keys[r * s->ldn + j];
    add_to_window(w.part.wa + (s->channels > 1 ? c * table : 0), w.kt + c * s->ldn, s->D * s->ldn, w.dga, i, rows, s);
}

static void backward_query(real *dqk, const real *dy, const real *patterns, const real *qk, Tables t, Work w,
                           const Chunk *chunk, int i, const Shape *s) {
    int rows = chunk->count;
    for (int r = 0; r < rows; r++)
        for (int e = 0; e < s->Ep; e++)
            w.s[r * s->Ep + e] = e < s->E ? real_get(patterns[chunk->s[r] + (size_t)e * s->N + i]) : 0;
    times_window_transposed(w.p, w.s, t.wbt, i, rows, s);
    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < s->Dp; c++)
            w.y[r * s->Dp + c] = c < s->D ? real_get(dy[chunk->y[r] + i * s->y_row + c]) : 0;
        const float *row = w.y + r * s->Dp;
        tile_gemm(w.t + r * s->ldn, s->ldn, row, s->Dp, 1, w.vt + r * s->D * s->ldn, s->ldn, 1, tile_round_up(s->N),
                  s->D, 0);
        for (OffsetRun run = {0}; offset_runs_next(s->offsets, i, &run);)
            tile_gemm(w.part.values + ((size_t)r * s->N + run.j0) * s->Dp, s->Dp, w.p + r * s->ldn + run.j0, 1, s->ldn,
                      row, s->Dp, run.count, s->Dp, 1, 1);
    }
    times_window(w.ds, w, w.t, s->ldn, t.wb, i, rows, s);
    tile_gemm(w.ds, s->Ep, w.y, s->Dp, 1, t.b, s->Ep, rows, s->Ep, s->D, 1);
    tile_gemm(w.part.b, s->Ep, w.y, 1, s->Dp, w.s, s->Ep, s->D, s->Ep, rows, 1);
    add_to_window(w.part.wb, w.t, s->ldn, w.s, i, rows, s);
    for (int c = 0; c < s->D; c++) channel_backward(dqk, qk, t, w, chunk, i, c, s);
}

static void backward_chunk(real *dqkv, real *dqk, const real *dy, const real *patterns, const real *qk, const real *qkv,
                           Tables t, Work w, const Chunk *chunk, const Shape *s) {
    gather_chunk(w, chunk, qk, qkv, s);
    for (int r = 0; r < chunk->count; r++)
        gather_transposed(w.vt + r * s->D * s->ldn, qkv + chunk->v[r], s->qkv_row, s);
    memset(w.total.keys, 0, head_sums_floats(s) * sizeof(float));
    for (int i = 0; i < s->N; i++) {
        backward_query(dqk, dy, patterns, qk, t, w, chunk, i, s);
        if (i % BLOCK == BLOCK - 1 || i == s->N - 1) sums_join(w, s);
    }
    for (int r = 0; r < chunk->count; r++)
        for (int j = 0; j < s->N; j++)
            for (int c = 0; c < s->D; c++) {
                float dk = w.total.keys[(r * s->D + c) * s->ldn + j];
                float dv = w.total.values[((size_t)r * s->N + j) * s->Dp + c];
                dqk[chunk->qk[r] + s->y_row + j * s->qk_row + c] = real_of(dk);
                dqkv[chunk->v[r] + j * s->qkv_row + c] = real_of(dv);
            }
}

/* dw [T,channels,E] += the threads' turned tables [channels,U,Ep]. */
static void add_turned(float *dw, float *(*table)(Work), int channels, int threads, const Shape *s) {
#pragma omp parallel for schedule(static)
    for (int c = 0; c < channels; c++)
        for (int u = 0; u < s->U; u++)
            for (int t = 0; t < threads; t++) {
                const float *from = table(work_of(s, t)) + ((size_t)c * s->U + u) * s->Ep;
                float *to = dw + ((size_t)offset_runs_entry(s->offsets, u) * channels + c) * s->E;
                for (int e = 0; e < s->E; e++) to[e] += from[e];
            }
}

static float *table_a(Work w) { return w.total.wa; }
static float *table_b(Work w) { return w.total.wb; }

LISA_BACKWARD(lisa_dense_backward) {
    Shape shape = shape_of(&lisa->patterns);
    Tables tables = tables_make(lisa->wa, lisa->wb, lisa->b, &shape);
    size_t heads = (size_t)B * shape.H;
    int threads = omp_get_max_threads();
#pragma omp parallel for schedule(static)
    for (int t = 0; t < threads; t++) memset(work_of(&shape, t).part.keys, 0, 2 * sums_floats(&shape) * sizeof(float));
#pragma omp parallel for schedule(static)
    for (size_t first = 0; first < heads; first += ROWS) {
        Chunk chunk = chunk_at(first, heads, &shape);
        backward_chunk(dqkv, dqk, dy, s, qk, qkv, tables, work_of(&shape, omp_get_thread_num()), &chunk, &shape);
    }
    add_turned(d->wa, table_a, shape.channels, threads, &shape);
    add_turned(d->wb, table_b, 1, threads, &shape);
    for (int t = 0; t < threads; t++)
        for (int c = 0; c < shape.D; c++)
            for (int e = 0; e < shape.E; e++)
                d->b[(size_t)c * shape.E + e] += work_of(&shape, t).total.b[(size_t)c * shape.Ep + e];
}

/* == Cost ======================================================================================================== */

/* From tests/bench/bench_lisa.c on one core of an EPYC 9005, in nanoseconds: a pair of tokens, channel and pattern, and the
 * start of a run of keys for each channel. */
double lisa_dense_cost(const Patterns *patterns) {
    const double multiply_add = 0.075, start = 16;
    Shape s = shape_of(patterns);
    double pairs = 0;
    size_t runs = 0;
    int step = s.N > 1 << 15 ? s.N >> 10 | 1 : 1; /* of so many queries, a thousand stand for all */
    for (int i = 0; i < s.N; i += step)
        for (OffsetRun run = {0}; offset_runs_next(s.offsets, i, &run); runs++) pairs += run.count;
    return 1e-9 * s.D * step * (multiply_add * s.Ep * pairs + start * (double)runs);
}
