/* Attention with multiplicative position weights in place of the softmax, QUERIES queries of one head at a time; r is
 * short for r[t(i,j),h].
 *   forward   a = q^ k^T,  y = (a r) v
 *   backward  t = dy v^T,  dv = (a r)^T dy,  dr += a t,  da = t r,  dq^ = da k^,  dk^ = da^T q^
 *   Source: equation 9 of the LiSA paper. */
#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/offsets/offset_runs.h"
#include "kernels/device/workspace.h"
#include "kernels/offsets/offsets.h"
#include "kernels/offsets/weighted_attention.h"
#include "kernels/tokens/grid.h"

enum { QUERIES = 16 };

typedef struct {
    const Offsets *offsets;
    int N, H, D, Dp, tables, U;
    size_t ldn, ldu; /* rows with a number for every key, and rows of a transposed table, with room for one more
                      * vector */
    size_t qk_row, qkv_row, y_row;
} WeightedShape;

static WeightedShape shape_of(const WeightedAttention *a) {
    const Offsets *o = &a->offsets;
    int H = a->H, D = a->D;
    WeightedShape s = {.offsets = o, .H = H, .D = D, .Dp = tile_round_up(D), .tables = a->tables};
    s.N = grid_tokens(o->grid);
    s.U = offset_runs_entries(o);
    s.ldn = (size_t)tile_round_up(s.N) + TILE;
    s.ldu = (size_t)tile_round_up(s.U) + TILE;
    s.qk_row = (size_t)2 * H * D;
    s.qkv_row = (size_t)3 * H * D;
    s.y_row = (size_t)H * D;
    return s;
}

typedef struct {
    float *kt, *vt;              /* [D,ldn] */
    float *q, *k, *v;            /* [N,Dp] */
    float *dk, *dv;              /* [N,Dp] */
    float *a, *t;                /* [QUERIES,ldn] */
    float *dy, *y;               /* [QUERIES,Dp] */
    float *dr;                   /* [tables,ldu] */
} WeightedWork;

static WeightedWork work_take(const WeightedShape *s, float *base, size_t *floats) {
    float *next = base;
    WeightedWork w;
    float **tokens[] = {&w.q, &w.k, &w.v, &w.dk, &w.dv};
    w.kt = workspace_take(&next, s->D * s->ldn);
    w.vt = workspace_take(&next, s->D * s->ldn);
    for (int i = 0; i < 5; i++) *tokens[i] = workspace_take(&next, (size_t)s->N * s->Dp);
    w.a = workspace_take(&next, QUERIES * s->ldn);
    w.t = workspace_take(&next, QUERIES * s->ldn);
    w.dy = workspace_take(&next, (size_t)QUERIES * s->Dp);
    w.y = workspace_take(&next, (size_t)QUERIES * s->Dp);
    w.dr = workspace_take(&next, s->tables * s->ldu);
    *floats = (size_t)(next - base);
    return w;
}

static size_t work_floats(const WeightedShape *s) {
    size_t floats;
    work_take(s, NULL, &floats);
    return floats;
}

/* The transposed tables come first: [tables,ldu]. */
static size_t table_floats(const WeightedShape *s) { return workspace_line_up(s->tables * s->ldu); }

size_t weighted_attention_workspace(const WeightedAttention *shape, int B) {
    (void)B;
    WeightedShape s = shape_of(shape);
    return workspace_bytes_behind(table_floats(&s), work_floats(&s));
}

static WeightedWork work_of(const WeightedShape *s, int thread) {
    size_t floats = work_floats(s);
    return work_take(s, workspace_behind(table_floats(s), thread, floats), &floats);
}

static float *transpose_tables(const float *r, const WeightedShape *s) {
    float *transposed = workspace_shared();
    memset(transposed, 0, table_floats(s) * sizeof *transposed);
    for (int h = 0; h < s->tables; h++)
        for (int u = 0; u < s->U; u++)
            transposed[h * s->ldu + u] = r[(size_t)offset_runs_entry(s->offsets, u) * s->tables + h];
    return transposed;
}

static int rows_from(int first, const WeightedShape *s) { return s->N - first < QUERIES ? s->N - first : QUERIES; }

/* == Forward ====================================================================================================== */

static void forward_head(real *y, const real *q, const real *v, const float *r, WeightedWork w,
                         const WeightedShape *s) {
    rows_gather(w.q, s->Dp, q, s->qk_row, 1, s->N, s->D);
    rows_gather(w.k, s->Dp, q + s->y_row, s->qk_row, 1, s->N, s->D);
    rows_gather(w.v, s->Dp, v, s->qkv_row, 1, s->N, s->D);
    transpose_padded(w.kt, s->ldn, w.k, s->Dp, s->N, s->D);
    for (int first = 0; first < s->N; first += QUERIES) {
        int rows = rows_from(first, s);
        tile_gemm(w.a, s->ldn, w.q + (size_t)first * s->Dp, s->Dp, 1, w.kt, s->ldn, rows, tile_round_up(s->N), s->D, 0);
        for (int i = 0; i < rows; i++)
            for (OffsetRun run = {0}; offset_runs_next(s->offsets, first + i, &run);)
                for (int n = 0; n < run.count; n++) w.a[i * s->ldn + run.j0 + n] *= r[run.u + n];
        tile_gemm(w.y, s->Dp, w.a, s->ldn, 1, w.v, s->Dp, rows, s->Dp, s->N, 0);
        rows_scatter(y + first * s->y_row, s->y_row, w.y, s->Dp, 1, rows, s->D);
    }
}

/* The head's table. */
static const float *table_of(const float *transposed, int h, const WeightedShape *s) {
    return transposed + (s->tables > 1 ? h * s->ldu : 0);
}

void weighted_attention_forward(real *y, const real *qk, const real *qkv, const float *r,
                                const WeightedAttention *shape, int B) {
    WeightedShape s = shape_of(shape);
    int H = shape->H, D = shape->D;
    const float *transposed = transpose_tables(r, &s);
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++) {
            size_t token = (size_t)b * s.N, at = (size_t)h * D;
            forward_head(y + token * s.y_row + at, qk + token * s.qk_row + at,
                         qkv + token * s.qkv_row + 2 * s.y_row + at, table_of(transposed, h, &s),
                         work_of(&s, omp_get_thread_num()), &s);
        }
}

/* == Backward ===================================================================================================== */

/* a, t and the table's window: dr += a t, then a and t are multiplied by r. */
static void weights_backward(float *dr, float *a, float *t, const float *r, int i, const WeightedShape *s) {
    for (OffsetRun run = {0}; offset_runs_next(s->offsets, i, &run);)
        for (int n = 0; n < run.count; n++) {
            int j = run.j0 + n, u = run.u + n;
            dr[u] += a[j] * t[j];
            a[j] *= r[u];
            t[j] *= r[u];
        }
}

static void backward_head(real *dv, real *dq, const real *dy, const real *q, const real *v, const float *r, float *dr,
                          WeightedWork w, const WeightedShape *s) {
    size_t tokens = (size_t)s->N * s->Dp;
    rows_gather(w.q, s->Dp, q, s->qk_row, 1, s->N, s->D);
    rows_gather(w.k, s->Dp, q + s->y_row, s->qk_row, 1, s->N, s->D);
    rows_gather(w.v, s->Dp, v, s->qkv_row, 1, s->N, s->D);
    transpose_padded(w.kt, s->ldn, w.k, s->Dp, s->N, s->D);
    transpose_padded(w.vt, s->ldn, w.v, s->Dp, s->N, s->D);
    memset(w.dk, 0, tokens * sizeof(float));
    memset(w.dv, 0, tokens * sizeof(float));
    for (int first = 0; first < s->N; first += QUERIES) {
        int rows = rows_from(first, s), padded = tile_round_up(s->N);
        const float *q_rows = w.q + (size_t)first * s->Dp;
        rows_gather(w.dy, s->Dp, dy + first * s->y_row, s->y_row, 1, rows, s->D);
        tile_gemm(w.a, s->ldn, q_rows, s->Dp, 1, w.kt, s->ldn, rows, padded, s->D, 0);
        tile_gemm(w.t, s->ldn, w.dy, s->Dp, 1, w.vt, s->ldn, rows, padded, s->D, 0);
        for (int i = 0; i < rows; i++) weights_backward(dr, w.a + i * s->ldn, w.t + i * s->ldn, r, first + i, s);
        tile_gemm(w.dv, s->Dp, w.a, 1, s->ldn, w.dy, s->Dp, s->N, s->Dp, rows, 1);
        tile_gemm(w.dk, s->Dp, w.t, 1, s->ldn, q_rows, s->Dp, s->N, s->Dp, rows, 1);
        tile_gemm(w.y, s->Dp, w.t, s->ldn, 1, w.k, s->Dp, rows, s->Dp, s->N, 0);
        rows_scatter(dq + first * s->qk_row, s->qk_row, w.y, s->Dp, 1, rows, s->D);
    }
    rows_scatter(dq + s->y_row, s->qk_row, w.dk, s->Dp, 1, s->N, s->D);
    rows_scatter(dv, s->qkv_row, w.dv, s->Dp, 1, s->N, s->D);
}

void weighted_attention_backward(real *dqkv, real *dqk, float *dr, const real *dy, const real *qk, const real *qkv,
                                 const float *r, const WeightedAttention *shape, int B) {
    WeightedShape s = shape_of(shape);
    int H = shape->H, D = shape->D;
    const float *transposed = transpose_tables(r, &s);
    int threads = omp_get_max_threads();
    for (int t = 0; t < threads; t++) memset(work_of(&s, t).dr, 0, s.tables * s.ldu * sizeof(float));
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++) {
            WeightedWork w = work_of(&s, omp_get_thread_num());
            size_t token = (size_t)b * s.N, at = (size_t)h * D, at_qk = token * s.qk_row + at,
                   at_v = token * s.qkv_row + 2 * s.y_row + at;
            backward_head(dqkv + at_v, dqk + at_qk, dy + token * s.y_row + at, qk + at_qk, qkv + at_v,
                          table_of(transposed, h, &s), w.dr + (s.tables > 1 ? h * s.ldu : 0), w, &s);
        }
    for (int t = 0; t < threads; t++)
        for (int h = 0; h < s.tables; h++)
            for (int u = 0; u < s.U; u++)
                dr[(size_t)offset_runs_entry(s.offsets, u) * s.tables + h] += work_of(&s, t).dr[h * s.ldu + u];
}
