/* Softmax attention with padded keys, dropout of its weights and SMCA's modulation, one (image, head) at a time.
 *   forward   s = q k^T / sqrt D + G,  p = softmax(s),  p' = drop(p),  y = p' v
 *   backward  p = exp(s - lse),  delta = dy.y,  dp = drop(dy v^T),  ds = p (dp - delta),
 *             dv = p'^T dy,  dk = ds^T q / sqrt D,  dq = ds k / sqrt D
 *   map       G = -(ax dx^2 + ay dy^2 + aw dx^2 dy^2) / 8, a = z^2; with u = (gx, gy) - centre and sums over keys
 *             dcentre_x = ax/4 sum ds ux + aw/4 sum ds ux uy^2,  dz_x = -z_x/4 sum ds ux^2,  the same for y,
 *             dz_w = -z_w/4 sum ds ux^2 uy^2:  at most seven moments a row, of ds and of p, summed together with ds
 *             A row of ds sums to 0 except for rounding, mostly of delta, and far from the centre this error would be
 *             multiplied by the squared distance.  So e = sum ds is removed: sum (ds - e p) ux = sum ds ux - e sum p
 *             ux, and likewise for the other moments
 *   saves     lse.   Sources: Gao et al. 2021 for G; softmax_attention.c for the loops.
 *
 * Only the keys without padding are copied, so that padding takes no time. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/linear/dropout_cpu.h"
#include "kernels/softmax/softmax_tiles.h"
#include "kernels/tokens/grid.h"
#include "kernels/softmax/masked_attention.h"

enum { MOMENTS = 7, SUMS = 2 * MOMENTS + 1 }; /* moments of ds, moments of p, sum of ds */

/* One head of one image, and its keys without padding. */
typedef struct {
    const MaskedAttention *shape;
    const Modulation *m;
    int b, h;
    int keys;    /* number of keys without padding */
    int *order;  /* [N + PANEL] indices of these keys */
    float *x, *y; /* [N + PANEL] columns and rows of their cells */
    DropoutDraw draw;
} View;

static size_t keys_room(const MaskedAttention *a) { return (size_t)grid_tokens(a->grid) + PANEL; }
static size_t view_floats(const MaskedAttention *a) { return 3 * workspace_line_up(keys_room(a)); }

static View view_take(float **next, const MaskedAttention *a, const Modulation *m, int b, int h) {
    View v = {.shape = a, .m = m, .b = b, .h = h, .draw = dropout_draw(&a->dropout, b)};
    int rows = a->cells ? a->cells[2 * b] : a->grid.rows,
        columns = a->cells ? a->cells[2 * b + 1] : a->grid.columns;
    v.order = (int *)workspace_take(next, keys_room(a));
    v.x = workspace_take(next, keys_room(a));
    v.y = workspace_take(next, keys_room(a));
    for (int y = 0; y < rows; y++)
        for (int x = 0; x < columns; x++, v.keys++) {
            v.order[v.keys] = y * a->grid.columns + x;
            v.x[v.keys] = x;
            v.y[v.keys] = y;
        }
    for (int j = v.keys; j < v.keys + PANEL; j++) v.x[j] = v.y[j] = 0;
    return v;
}

/* A query's modulation: G = -(weight[0] dx^2 + weight[1] dy^2 + weight[2] dx^2 dy^2). */
typedef struct {
    float x, y, weight[3], z[3];
} Blob;

static Blob blob_of(const View *v, int query) {
    const MaskedAttention *a = v->shape;
    int scales = modulation_scales(a->scale_type);
    size_t row = ((size_t)v->b * a->Q + query) * a->H + v->h;
    Blob blob = {v->m->centre[2 * row], v->m->centre[2 * row + 1], {0}, {1, 1, 0}};
    for (int i = 0; i < scales; i++) blob.z[i] = real_get(v->m->z[row * scales + i]);
    if (scales == 1) blob.z[1] = blob.z[0];
    for (int i = 0; i < 3; i++) blob.weight[i] = blob.z[i] * blob.z[i] / 8;
    return blob;
}

static void modulate(float *s, const View *v, int i, int rows, int j, int keys) {
    for (int row = 0; row < rows; row++) {
        Blob blob = blob_of(v, i + row);
        for (int col = 0; col < keys; col += TILE) {
            vec dx = blob.x - vec_load(v->x + j + col), dy = blob.y - vec_load(v->y + j + col);
            vec xx = dx * dx, yy = dy * dy;
            float *p = s + row * KEYS + col;
            vec_store(p, vec_load(p) - (blob.weight[0] * xx + (blob.weight[2] * xx + blob.weight[1]) * yy));
        }
    }
}

/* The 128 elements of dropout from that of query i and key j on; j is a multiple of STEP. */
static uint64_t dropout_group_of(const View *v, int i, int j) {
    const MaskedAttention *a = v->shape;
    size_t groups = ((size_t)grid_tokens(a->grid) + DROPOUT_GROUP - 1) / DROPOUT_GROUP;
    return ((size_t)v->h * a->Q + i) * groups + (size_t)j / DROPOUT_GROUP;
}

static const real *head_of(const real *x, const View *v, int tokens, size_t row) {
    return x + (size_t)v->b * tokens * row + (size_t)v->h * v->shape->D;
}

/* == Forward ====================================================================================================== */

static size_t forward_floats(const MaskedAttention *a) {
    int N = grid_tokens(a->grid), Dp = tile_round_up(a->D);
    return view_floats(a) + workspace_line_up(panels_floats(N, a->D)) + (size_t)N * Dp +
           QUERIES * (2 * (size_t)Dp + KEYS + 2);
}

static void forward_head(real *y, float *lse, const MaskedInputs *in, const Modulation *m, const MaskedAttention *a,
                         int b, int h) {
    int N = grid_tokens(a->grid), D = a->D, Dp = tile_round_up(D), M = a->H * D;
    float *next = kernels_workspace(forward_floats(a));
    View view = view_take(&next, a, m, b, h);
    float *kt = workspace_take(&next, panels_floats(N, D)), *v = workspace_take(&next, (size_t)N * Dp);
    float *qs = workspace_take(&next, QUERIES * (size_t)Dp), *ys = workspace_take(&next, QUERIES * (size_t)Dp);
    float *s = workspace_take(&next, QUERIES * KEYS);
    float *largest = workspace_take(&next, QUERIES), *l = workspace_take(&next, QUERIES);
    const real *from = head_of(in->q, &view, a->Q, a->q_row);
    real *to = (real *)head_of(y, &view, a->Q, M);
    gather_panels(kt, head_of(in->k, &view, N, a->kv_row), a->kv_row, view.order, 0, view.keys, D);
    gather(v, head_of(in->v, &view, N, a->kv_row), a->kv_row, view.order, 0, 1, view.keys, D, Dp);
    for (int i = 0; i < a->Q; i += QUERIES) {
        int rows = smaller(QUERIES, a->Q - i);
        gather(qs, from, a->q_row, NULL, i, 1 / sqrtf((float)D), rows, D, Dp);
        memset(ys, 0, QUERIES * (size_t)Dp * sizeof *ys);
        for (int row = 0; row < rows; row++) {
            largest[row] = -INFINITY;
            l[row] = 0;
        }
        for (int j = 0, keys; j < view.keys; j += keys) {
            keys = keys_next(j, view.keys);
            scores(s, qs, kt + (size_t)j * D, rows, keys, D, Dp);
            if (m) modulate(s, &view, i, rows, j, keys);
            softmax_step(s, largest, l, ys, rows, keys, Dp);
            for (int row = 0; row < rows && a->dropout.rate > 0; row++)
                for (int col = 0; col < keys; col += DROPOUT_GROUP)
                    dropout_group(s + row * KEYS + col, s + row * KEYS + col, &view.draw,
                                  dropout_group_of(&view, i + row, j + col), smaller(DROPOUT_GROUP, keys - col), false);
            tile_gemm(ys, Dp, s, KEYS, 1, v + (size_t)j * Dp, Dp, rows, Dp, keys, 1);
        }
        for (int row = 0; row < rows; row++) {
            scatter(to, M, NULL, i + row, ys + (size_t)row * Dp, 1 / l[row], false, 1, D, Dp);
            lse[((size_t)b * a->H + h) * a->Q + i + row] = largest[row] + logf(l[row]);
        }
    }
}

/* == Backward ===================================================================================================== */

static size_t backward_floats(const MaskedAttention *a) {
    size_t Q = a->Q, Dp = tile_round_up(a->D);
    return view_floats(a) + 3 * Q * Dp + 2 * workspace_line_up(Q) + workspace_line_up(SUMS * Q) +
           2 * workspace_line_up(panels_floats(KEYS, a->D)) + 3 * KEYS * Dp + 3 * QUERIES * KEYS;
}

/* weights = p, s becomes p' = drop(p), t = dy v^T becomes ds; `group`: the first of the row's elements of dropout. */
TILE_INLINE void score_row_backward(float *weights, float *s, float *t, float lse, float delta, const View *v,
                                    uint64_t group, int keys, bool drop) {
    DropoutWords word;
    for (int first = 0; first < keys; first += DROPOUT_GROUP) {
        if (drop) dropout_words(&word, &v->draw, group + first / DROPOUT_GROUP);
#pragma GCC unroll 8
        for (int part = 0; part < DROPOUT_VECTORS; part++) {
            int col = first + part * TILE;
            if (col >= keys) break;
            vec kept = vec_set(1);
            if (drop) kept = vec_select(dropout_kept(&word, &v->draw, part), vec_set(v->draw.scale), vec_set(0));
            vec p = vec_exp_floored(vec_load(s + col) - lse);
            vec_store(weights + col, p);
            vec_store(s + col, p * kept);
            vec_store(t + col, p * (vec_load(t + col) * kept - delta));
        }
    }
}

static void scores_backward_dropped(float *p, float *s, float *t, const float *lse, const float *delta, const View *v,
                                    int i, int rows, int j, int keys) {
    bool drop = v->shape->dropout.rate > 0;
    for (int row = 0; row < rows; row++) {
        float *pr = p + row * KEYS, *sr = s + row * KEYS, *tr = t + row * KEYS;
        for (int col = keys; col < tile_round_up(keys); col++) sr[col] = -INFINITY;
        if (drop) score_row_backward(pr, sr, tr, lse[row], delta[row], v, dropout_group_of(v, i + row, j), keys, true);
        else score_row_backward(pr, sr, tr, lse[row], delta[row], v, 0, keys, false);
    }
}

/* Weights w of keys at (ux, uy): sums of w ux, w uy, w ux^2, w uy^2, w ux uy^2, w ux^2 uy, w ux^2 uy^2. */
TILE_INLINE void add_moment(vec *sum, vec w, vec ux, vec uy, bool mixed) {
    vec x = w * ux, y = w * uy, xx = x * ux, yy = y * uy;
    sum[0] += x;
    sum[1] += y;
    sum[2] += xx;
    sum[3] += yy;
    if (!mixed) return;
    sum[4] += yy * ux;
    sum[5] += xx * uy;
    sum[6] += xx * (uy * uy);
}

/* Adds a block's SUMS. */
static void add_moments(float *sums, const float *p, const float *ds, const View *v, int i, int rows, int j, int keys) {
    bool mixed = v->shape->scale_type == 4;
    for (int row = 0; row < rows; row++, sums += SUMS) {
        Blob blob = blob_of(v, i + row);
        vec sum[SUMS] = {{0}};
        for (int col = 0; col < keys; col += TILE) {
            vec ux = vec_load(v->x + j + col) - blob.x, uy = vec_load(v->y + j + col) - blob.y;
            vec d = vec_load(ds + row * KEYS + col);
            add_moment(sum, d, ux, uy, mixed);
            add_moment(sum + MOMENTS, vec_load(p + row * KEYS + col), ux, uy, mixed);
            sum[2 * MOMENTS] += d;
        }
        for (int n = 0; n < SUMS; n++) sums[n] += vec_sum(sum[n]);
    }
}

static void modulation_backward(const ModulationGradients *dm, const float *sums, const View *v) {
    int scales = modulation_scales(v->shape->scale_type), H = v->shape->H;
    for (int i = 0; i < v->shape->Q; i++, sums += SUMS) {
        Blob blob = blob_of(v, i);
        size_t row = ((size_t)v->b * v->shape->Q + i) * H + v->h;
        float moments[MOMENTS];
        for (int n = 0; n < MOMENTS; n++) moments[n] = sums[n] - sums[2 * MOMENTS] * sums[MOMENTS + n];
        dm->centre[2 * row] = 2 * (blob.weight[0] * moments[0] + blob.weight[2] * moments[4]);
        dm->centre[2 * row + 1] = 2 * (blob.weight[1] * moments[1] + blob.weight[2] * moments[5]);
        float dz[3] = {-blob.z[0] / 4 * moments[2], -blob.z[1] / 4 * moments[3], -blob.z[2] / 4 * moments[6]};
        if (scales == 1) dz[0] += dz[1];
        for (int n = 0; n < scales; n++) dm->z[row * scales + n] = real_of(dz[n]);
    }
}

static void clear_padding(real *dk, real *dv, const MaskedAttention *a, int b) {
    int N = grid_tokens(a->grid), columns = a->grid.columns;
    for (int n = 0; a->cells && n < N; n++)
        if (n / columns >= a->cells[2 * b] || n % columns >= a->cells[2 * b + 1])
            for (int d = 0; d < a->D; d++) dk[(size_t)n * a->kv_row + d] = dv[(size_t)n * a->kv_row + d] = real_of(0);
}

/* The outer loop is over blocks of keys, so that only q, dy and dq are streamed. */
static void backward_head(const MaskedGradients *grads, const ModulationGradients *dm, const real *dy, const real *y,
                          const float *lse, const MaskedInputs *in, const Modulation *m, const MaskedAttention *a,
                          int b, int h) {
    int N = grid_tokens(a->grid), Q = a->Q, D = a->D, Dp = tile_round_up(D), M = a->H * D, row_kv = a->kv_row;
    size_t all = (size_t)Q * Dp, some = (size_t)KEYS * Dp;
    float scale = 1 / sqrtf((float)D), *next = kernels_workspace(backward_floats(a));
    View view = view_take(&next, a, m, b, h);
    float *qs = workspace_take(&next, all), *dys = workspace_take(&next, all), *dqs = workspace_take(&next, all);
    float *delta = workspace_take(&next, Q), *sums = workspace_take(&next, SUMS * (size_t)Q);
    float *kt = workspace_take(&next, panels_floats(KEYS, D)), *vt = workspace_take(&next, panels_floats(KEYS, D));
    float *ks = workspace_take(&next, some), *dks = workspace_take(&next, some), *dvs = workspace_take(&next, some);
    float *p = workspace_take(&next, QUERIES * KEYS), *s = workspace_take(&next, QUERIES * KEYS),
          *t = workspace_take(&next, QUERIES * KEYS);
    const real *k_head = head_of(in->k, &view, N, row_kv), *v_head = head_of(in->v, &view, N, row_kv),
               *y_head = head_of(y, &view, Q, M);
    real *dk_head = (real *)head_of(grads->k, &view, N, row_kv), *dv_head = (real *)head_of(grads->v, &view, N, row_kv);
    lse += ((size_t)b * a->H + h) * Q;
    gather(qs, head_of(in->q, &view, Q, a->q_row), a->q_row, NULL, 0, scale, Q, D, Dp);
    gather(dys, head_of(dy, &view, Q, M), M, NULL, 0, 1, Q, D, Dp);
    memset(dqs, 0, all * sizeof *dqs);
    memset(sums, 0, SUMS * (size_t)Q * sizeof *sums);
    for (int i = 0; i < Q; i++) delta[i] = row_dot(y_head + (size_t)i * M, dys + (size_t)i * Dp, D);
    for (int j = 0, keys; j < view.keys; j += keys) {
        keys = keys_next(j, view.keys);
        gather_panels(kt, k_head, row_kv, view.order, j, keys, D);
        gather_panels(vt, v_head, row_kv, view.order, j, keys, D);
        gather(ks, k_head, row_kv, view.order, j, 1, keys, D, Dp);
        memset(dks, 0, some * sizeof *dks);
        memset(dvs, 0, some * sizeof *dvs);
        for (int i = 0; i < Q; i += QUERIES) {
            int rows = smaller(QUERIES, Q - i);
            const float *qi = qs + (size_t)i * Dp, *dyi = dys + (size_t)i * Dp;
            scores(s, qi, kt, rows, keys, D, Dp);
            scores(t, dyi, vt, rows, keys, D, Dp);
            if (m) modulate(s, &view, i, rows, j, keys);
            scores_backward_dropped(p, s, t, lse + i, delta + i, &view, i, rows, j, keys);
            if (m) add_moments(sums + SUMS * (size_t)i, p, t, &view, i, rows, j, keys);
            tile_gemm(dvs, Dp, s, 1, KEYS, dyi, Dp, keys, Dp, rows, 1);
            tile_gemm(dks, Dp, t, 1, KEYS, qi, Dp, keys, Dp, rows, 1);
            tile_gemm(dqs + (size_t)i * Dp, Dp, t, KEYS, 1, ks, Dp, rows, Dp, keys, 1);
        }
        scatter(dk_head, row_kv, view.order, j, dks, 1, false, keys, D, Dp);
        scatter(dv_head, row_kv, view.order, j, dvs, 1, false, keys, D, Dp);
    }
    scatter((real *)head_of(grads->q, &view, Q, a->q_row), a->q_row, NULL, 0, dqs, scale, false, Q, D, Dp);
    clear_padding(dk_head, dv_head, a, b);
    if (m) modulation_backward(dm, sums, &view);
}

/* == All heads ==================================================================================================== */

size_t masked_attention_workspace(const MaskedAttention *shape) {
    size_t forward = forward_floats(shape), backward = backward_floats(shape);
    return workspace_bytes(forward > backward ? forward : backward);
}

void masked_attention_forward(real *y, float *lse, const MaskedInputs *in, const Modulation *m,
                              const MaskedAttention *shape) {
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < shape->B; b++)
        for (int h = 0; h < shape->H; h++) forward_head(y, lse, in, m, shape, b, h);
}

void masked_attention_backward(const MaskedGradients *d, const ModulationGradients *dm, const real *dy, const real *y,
                               const float *lse, const MaskedInputs *in, const Modulation *m,
                               const MaskedAttention *shape) {
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < shape->B; b++)
        for (int h = 0; h < shape->H; h++) backward_head(d, dm, dy, y, lse, in, m, shape, b, h);
}
