/* Softmax attention within windows, QUERIES queries of one head and window at a time.
 *   forward   s = q k^T / sqrt D + bias,  lse = log sum_j exp s,  y = exp(s - lse) v
 *   backward  p = exp(s - lse),  delta = dy.y,  ds = p (dy v^T - delta),
 *             dv = p^T dy,  dk = ds^T q / sqrt D,  dq = ds k / sqrt D,  dbias = ds
 *   saves     lse.   Source: Liu et al. 2021 (Swin Transformer).
 *
 * The keys of a window are all its places; its queries are the places with a token, one after the other. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/device/workspace.h"
#include "kernels/softmax/attention_shape.h"
#include "kernels/softmax/softmax_attention.h"
#include "kernels/tokens/grid.h"
#include "kernels/tokens/windows.h"

enum { QUERIES = 16 };

typedef struct {
    WindowShape windows;
    int count;                  /* windows of an image */
    int n, np, D, Dp;           /* places of a window; rounded up; D likewise */
    int H;
    size_t M, row, y_row, table; /* H*D; numbers from one token to the next; entries of a head's table */
    int outer, inner;           /* a window's rows and their places, or of clips its frames and their places */
    int offsets;                /* entries of the table for each offset between two of the outer ones */
} WindowAttentionShape;

static WindowAttentionShape shape_of(const WindowShape *w, const AttentionShape *shape) {
    Grid sides = window_sides(w);
    bool flat = sides.frames == 1;
    int n = grid_tokens(sides), across = 2 * w->ww - 1;
    size_t M = (size_t)shape->H * shape->D, table = grid_tokens(grid_offsets(sides));
    return (WindowAttentionShape){*w,
                                  grid_tokens(window_counts(w)),
                                  n,
                                  tile_round_up(n),
                                  shape->D,
                                  tile_round_up(shape->D),
                                  shape->H,
                                  M,
                                  3 * M,
                                  M,
                                  table,
                                  flat ? w->wh : sides.frames,
                                  flat ? w->ww : w->wh * w->ww,
                                  flat ? across : (2 * w->wh - 1) * across};
}

typedef struct {
    int *token, *region;             /* of each place: [n], [np] with -1 beyond n */
    int *query;                      /* [n] the places with a token */
    float *strips, *dstrips;         /* bias [inner][2 outer-1][inner] by the query's place among the inner ones: all
                                        keys of one query are a stretch */
    float *q, *k, *v, *dy, *dk, *dv; /* [np,Dp], q times 1 / sqrt D */
    float *kt, *vt;                  /* [Dp,np] */
    float *p, *t, *sum;              /* [QUERIES,np] twice, [QUERIES,Dp] */
} WindowAttentionWork;

static size_t strips_floats(const WindowAttentionShape *s) { return (size_t)s->inner * (2 * s->outer - 1) * s->inner; }

static size_t work_floats(const WindowAttentionShape *s) {
    size_t lists = 3 * workspace_line_up(s->np), strips = 2 * workspace_line_up(strips_floats(s));
    return lists + strips + 8 * (size_t)s->np * s->Dp + QUERIES * (2 * (size_t)s->np + s->Dp);
}

static WindowAttentionWork work_of(float *next, const WindowAttentionShape *s) {
    size_t places = (size_t)s->np * s->Dp, scores = (size_t)QUERIES * s->np;
    WindowAttentionWork w;
    w.token = (int *)workspace_take(&next, s->np);
    w.region = (int *)workspace_take(&next, s->np);
    w.query = (int *)workspace_take(&next, s->np);
    w.strips = workspace_take(&next, strips_floats(s));
    w.dstrips = workspace_take(&next, strips_floats(s));
    w.q = workspace_take(&next, places);
    w.k = workspace_take(&next, places);
    w.v = workspace_take(&next, places);
    w.dy = workspace_take(&next, places);
    w.dk = workspace_take(&next, places);
    w.dv = workspace_take(&next, places);
    w.kt = workspace_take(&next, places);
    w.vt = workspace_take(&next, places);
    w.p = workspace_take(&next, scores);
    w.t = workspace_take(&next, scores);
    w.sum = workspace_take(&next, (size_t)QUERIES * s->Dp);
    return w;
}

/* == Biases ======================================================================================================= */

/* The index in row r of strip x of the table's entry for key m, both places among the inner ones. */
static size_t table_at(int x, int r, int m, int h, const WindowAttentionShape *s) {
    int ww = s->windows.ww, inside = (x / ww - m / ww) * (2 * ww - 1) + x % ww - m % ww + (s->offsets - 1) / 2;
    return ((size_t)(2 * s->outer - 2 - r) * s->offsets + inside) * s->H + h;
}

static void fill_strips(float *strips, const float *table, int h, const WindowAttentionShape *s) {
    int rows = 2 * s->outer - 1;
    for (int x = 0; x < s->inner; x++)
        for (int r = 0; r < rows; r++)
            for (int m = 0; m < s->inner; m++) *strips++ = table[table_at(x, r, m, h, s)];
}

static void join_strips(float *dtable, const float *dstrips, int h, const WindowAttentionShape *s) {
    int rows = 2 * s->outer - 1;
    for (int x = 0; x < s->inner; x++)
        for (int r = 0; r < rows; r++)
            for (int m = 0; m < s->inner; m++) dtable[table_at(x, r, m, h, s)] += *dstrips++;
}

/* The query's part of a strip: [n], by place of the key. */
static float *stretch_of(float *strips, int query, const WindowAttentionShape *s) {
    int inner = s->inner, outer = s->outer;
    return strips + ((size_t)(query % inner) * (2 * outer - 1) + outer - 1 - query / inner) * inner;
}

/* == A window ===================================================================================================== */

/* A place without a token has the learned key and value, or zeros where pad is NULL. */
static void copy_pad(float *to, const float *pad, const WindowAttentionShape *s) {
    if (!pad) memset(to, 0, s->Dp * sizeof *to);
    else
        for (int c = 0; c < s->D; c += TILE) vec_store(to + c, vec_load_part(pad + c, s->D - c));
}

/* Rows of places beyond the last one are zero. */
static void clear_rest(float *rows, const WindowAttentionShape *s) {
    memset(rows + (size_t)s->n * s->Dp, 0, (size_t)(s->np - s->n) * s->Dp * sizeof *rows);
}

/* Copies q, k and v of a head and returns the number of queries.  qkv and pad begin with the head's q. */
static int gather(WindowAttentionWork *w, const real *qkv, const float *pad, int window,
                  const WindowAttentionShape *s) {
    int queries = 0;
    float scale = 1 / sqrtf((float)s->D);
    for (int i = 0; i < s->np; i++) w->region[i] = -1;
    for (int i = 0; i < s->n; i++) {
        WindowPlace place = window_place(&s->windows, window, i);
        w->token[i] = place.token;
        w->region[i] = place.region;
        if (place.token < 0) {
            copy_pad(w->k + (size_t)i * s->Dp, pad ? pad + s->M : NULL, s);
            copy_pad(w->v + (size_t)i * s->Dp, pad ? pad + 2 * s->M : NULL, s);
            continue;
        }
        const real *from = qkv + place.token * s->row;
        rows_gather(w->k + (size_t)i * s->Dp, s->Dp, from + s->M, s->row, 1, 1, s->D);
        rows_gather(w->v + (size_t)i * s->Dp, s->Dp, from + 2 * s->M, s->row, 1, 1, s->D);
        rows_gather(w->q + (size_t)queries * s->Dp, s->Dp, from, s->row, scale, 1, s->D);
        w->query[queries++] = i;
    }
    clear_rest(w->k, s);
    tiles_transpose(w->kt, s->np, w->k, s->Dp, s->np, s->Dp);
    return queries;
}

/* Scores of queries first.., minus infinity beyond the window's places. */
static void scores(const WindowAttentionWork *w, int first, int rows, const WindowAttentionShape *s) {
    tile_gemm(w->p, s->np, w->q + (size_t)first * s->Dp, s->Dp, 1, w->kt, s->np, rows, s->np, s->D, 0);
    for (int i = 0; i < rows; i++) {
        int query = w->query[first + i], region = w->region[query];
        const float *bias = stretch_of(w->strips, query, s);
        float *x = w->p + (size_t)i * s->np;
        for (int j = 0; j < s->n; j += TILE) {
            ivec regions = *(const ivec *)(w->region + j);
            vec biased = vec_load(x + j) + vec_load_part(bias + j, s->n - j);
            biased -= vec_select(regions == region, vec_set(0), vec_set(WINDOW_APART));
            vec_store(x + j, vec_select(regions == -1, vec_set(-INFINITY), biased));
        }
    }
}

/* x becomes softmax x; returns the log of the sum of its exponentials. */
static float softmax(float *x, int padded) {
    vec largest = vec_load(x), sum = {0};
    for (int j = TILE; j < padded; j += TILE) largest = vec_max(vec_load(x + j), largest);
    float shift = vec_largest(largest);
    for (int j = 0; j < padded; j += TILE) {
        vec p = vec_exp_floored(vec_load(x + j) - shift);
        sum += p;
        vec_store(x + j, p);
    }
    float total = vec_sum(sum), inverse = 1 / total;
    for (int j = 0; j < padded; j += TILE) vec_store(x + j, inverse * vec_load(x + j));
    return shift + logf(total);
}

static void forward_window(real *y, float *lse, const real *qkv, const float *pad, int window, WindowAttentionWork w,
                           const WindowAttentionShape *s) {
    int queries = gather(&w, qkv, pad, window, s);
    for (int first = 0; first < queries; first += QUERIES) {
        int rows = queries - first < QUERIES ? queries - first : QUERIES;
        scores(&w, first, rows, s);
        for (int i = 0; i < rows; i++)
            lse[w.token[w.query[first + i]]] = softmax(w.p + (size_t)i * s->np, s->np);
        tile_gemm(w.sum, s->Dp, w.p, s->np, 1, w.v, s->Dp, rows, s->Dp, s->n, 0);
        for (int i = 0; i < rows; i++)
            rows_scatter(y + w.token[w.query[first + i]] * s->y_row, s->y_row, w.sum + (size_t)i * s->Dp, s->Dp, 1, 1,
                         s->D);
    }
}

/* x and t become p and ds, dbias += ds. */
static void row_backward(float *x, float *t, float *dbias, float lse, float delta, const WindowAttentionShape *s) {
    for (int j = 0; j < s->n; j += TILE) {
        vec p = vec_exp_floored(vec_load(x + j) - lse), ds = p * (vec_load(t + j) - delta);
        vec_store(x + j, p);
        vec_store(t + j, ds);
        vec_store_part(dbias + j, vec_load_part(dbias + j, s->n - j) + ds, s->n - j);
    }
}

/* to [D] += from. */
static void add_row(float *to, const float *from, const WindowAttentionShape *s) {
    for (int c = 0; c < s->D; c += TILE)
        vec_store_part(to + c, vec_load_part(to + c, s->D - c) + vec_load(from + c), s->D - c);
}

static void backward_window(real *dqkv, float *dpad, const real *dy, const real *y, const float *lse, const real *qkv,
                            const float *pad, int window, WindowAttentionWork w, const WindowAttentionShape *s) {
    size_t bytes = (size_t)s->np * s->Dp * sizeof(float);
    float scale = 1 / sqrtf((float)s->D);
    int queries = gather(&w, qkv, pad, window, s);
    clear_rest(w.v, s);
    tiles_transpose(w.vt, s->np, w.v, s->Dp, s->np, s->Dp);
    for (int i = 0; i < queries; i++)
        rows_gather(w.dy + (size_t)i * s->Dp, s->Dp, dy + w.token[w.query[i]] * s->y_row, s->y_row, 1, 1,
                    s->D);
    memset(w.dk, 0, bytes);
    memset(w.dv, 0, bytes);
    for (int first = 0; first < queries; first += QUERIES) {
        int rows = queries - first < QUERIES ? queries - first : QUERIES;
        const float *dy_rows = w.dy + (size_t)first * s->Dp;
        scores(&w, first, rows, s);
        tile_gemm(w.t, s->np, dy_rows, s->Dp, 1, w.vt, s->np, rows, s->np, s->D, 0);
        for (int i = 0; i < rows; i++) {
            int query = w.query[first + i], token = w.token[query];
            float delta = row_dot(y + token * s->y_row, dy_rows + (size_t)i * s->Dp, s->D);
            row_backward(w.p + (size_t)i * s->np, w.t + (size_t)i * s->np, stretch_of(w.dstrips, query, s), lse[token],
                         delta, s);
        }
        tile_gemm(w.dv, s->Dp, w.p, 1, s->np, dy_rows, s->Dp, s->n, s->Dp, rows, 1);
        tile_gemm(w.dk, s->Dp, w.t, 1, s->np, w.q + (size_t)first * s->Dp, s->Dp, s->n, s->Dp, rows, 1);
        tile_gemm(w.sum, s->Dp, w.t, s->np, 1, w.k, s->Dp, rows, s->Dp, s->n, 0);
        for (int i = 0; i < rows; i++)
            rows_scatter(dqkv + w.token[w.query[first + i]] * s->row, s->row, w.sum + (size_t)i * s->Dp, s->Dp, scale,
                         1, s->D);
    }
    for (int i = 0; i < s->n; i++) {
        const float *dk = w.dk + (size_t)i * s->Dp, *dv = w.dv + (size_t)i * s->Dp;
        if (w.token[i] >= 0) {
            rows_scatter(dqkv + w.token[i] * s->row + s->M, s->row, dk, s->Dp, 1, 1, s->D);
            rows_scatter(dqkv + w.token[i] * s->row + 2 * s->M, s->row, dv, s->Dp, 1, 1, s->D);
        } else {
            add_row(dpad + s->M, dk, s);
            add_row(dpad + 2 * s->M, dv, s);
        }
    }
}

/* == All windows ================================================================================================== */

/* A thread's share of dtable and dpad comes before its work memory. */
static size_t share_floats(const WindowAttentionShape *s) { return s->table * s->H + 3 * s->M; }
static size_t slice_floats(const WindowAttentionShape *s) {
    return workspace_line_up(share_floats(s)) + work_floats(s);
}

size_t window_attention_workspace(const WindowShape *windows, const AttentionShape *shape) {
    WindowAttentionShape s = shape_of(windows, shape);
    return workspace_bytes(slice_floats(&s));
}

void window_attention_forward(real *y, float *lse, const real *qkv, const WindowParameters *learned,
                              const WindowShape *windows, const AttentionShape *shape) {
    const float *pad = learned->pad;
    int B = shape->B, N = shape->N, H = shape->H;
    WindowAttentionShape s = shape_of(windows, shape);
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++) {
            size_t token = (size_t)b * N, at = (size_t)h * s.D;
            WindowAttentionWork w = work_of(kernels_workspace(work_floats(&s)), &s);
            fill_strips(w.strips, learned->table, h, &s);
            for (int window = 0; window < s.count; window++)
                forward_window(y + token * s.y_row + at, lse + ((size_t)b * H + h) * N, qkv + token * s.row + at,
                               pad ? pad + at : NULL, window, w, &s);
        }
}

/* Each thread sums its heads' and images' share of dtable and dpad, and the shares are added in the order of the
 * threads. */
void window_attention_backward(real *dqkv, const WindowGradients *gradients, const real *dy, const real *y,
                               const float *lse, const real *qkv, const WindowParameters *learned,
                               const WindowShape *windows, const AttentionShape *shape) {
    const float *pad = learned->pad;
    float *dpad = gradients->dpad, *dtable = gradients->dtable;
    int B = shape->B, N = shape->N, H = shape->H;
    WindowAttentionShape s = shape_of(windows, shape);
    size_t entries = s.table * H, size = entries + (dpad ? 3 * s.M : 0), slice = slice_floats(&s);
#pragma omp parallel
    {
        float *next = kernels_workspace(slice), *share = workspace_take(&next, share_floats(&s));
        WindowAttentionWork w = work_of(next, &s);
        memset(share, 0, share_floats(&s) * sizeof *share);
#pragma omp for collapse(2) schedule(static)
        for (int b = 0; b < B; b++)
            for (int h = 0; h < H; h++) {
                size_t token = (size_t)b * N, at = (size_t)h * s.D;
                fill_strips(w.strips, learned->table, h, &s);
                memset(w.dstrips, 0, strips_floats(&s) * sizeof(float));
                for (int window = 0; window < s.count; window++)
                    backward_window(dqkv + token * s.row + at, share + entries + at, dy + token * s.y_row + at,
                                    y + token * s.y_row + at, lse + ((size_t)b * H + h) * N, qkv + token * s.row + at,
                                    pad ? pad + at : NULL, window, w, &s);
                join_strips(share, w.dstrips, h, &s);
            }
        int threads = omp_get_num_threads();
#pragma omp for schedule(static)
        for (size_t i = 0; i < size; i++)
            for (int t = 0; t < threads; t++)
                *(i < entries ? dtable + i : dpad + (i - entries)) += workspace_of(t, slice)[i];
    }
}
