/* Softmax attention without its small weights, QUERIES queries of one head at a time;
 * c is 1 where p > threshold, else 0.
 *   forward   s = q k^T / sqrt D,  lse = log sum_j exp s,  p = exp(s - lse),  y += (c p) v
 *   backward  t = dy v^T,  delta = sum_j c p t,  ds = p (c t - delta),
 *             dv += (c p)^T dy,  dk += ds^T q / sqrt D,  dq += ds k / sqrt D
 *   saves     lse.  c is a constant of the backward pass.   Source: You et al. 2023 (Castling-ViT), its code. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/activations.h"
#include "kernels/device/workspace.h"
#include "kernels/softmax/attention_shape.h"
#include "kernels/softmax/softmax_attention.h"

enum { QUERIES = 16 };

typedef struct {
    int N, D, Np, Dp;
    size_t row, y_row; /* numbers from one token to the next */
    float threshold;
} ThresholdedShape;

static ThresholdedShape shape_of(float threshold, int N, int H, int D) {
    size_t M = (size_t)H * D;
    return (ThresholdedShape){N, D, tile_round_up(N), tile_round_up(D), 3 * M, M, threshold};
}

typedef struct {
    float *q, *k, *v, *dy, *dk, *dv; /* [Np,Dp], q times 1 / sqrt D */
    float *kt, *vt;                  /* [Dp,Np] */
    float *p, *t, *sum;              /* [QUERIES,Np] twice, [QUERIES,Dp] */
} ThresholdedWork;

static size_t work_floats(int N, int D) {
    size_t Np = tile_round_up(N), Dp = tile_round_up(D);
    return 8 * Np * Dp + QUERIES * (2 * Np + Dp);
}

size_t thresholded_attention_workspace(int N, int D) { return workspace_bytes(work_floats(N, D)); }

static ThresholdedWork work_of(const ThresholdedShape *s) {
    size_t tokens = (size_t)s->Np * s->Dp, scores = (size_t)QUERIES * s->Np;
    float *next = kernels_workspace(work_floats(s->N, s->D));
    ThresholdedWork w;
    w.q = workspace_take(&next, tokens);
    w.k = workspace_take(&next, tokens);
    w.v = workspace_take(&next, tokens);
    w.dy = workspace_take(&next, tokens);
    w.dk = workspace_take(&next, tokens);
    w.dv = workspace_take(&next, tokens);
    w.kt = workspace_take(&next, tokens);
    w.vt = workspace_take(&next, tokens);
    w.p = workspace_take(&next, scores);
    w.t = workspace_take(&next, scores);
    w.sum = workspace_take(&next, (size_t)QUERIES * s->Dp);
    return w;
}

/* to's rows += scale times from. */
static void scatter_add(real *to, size_t row, const float *from, float scale, int rows, const ThresholdedShape *s) {
    for (int i = 0; i < rows; i++)
        for (int c = 0; c < s->D; c += TILE) {
            real *p = to + i * row + c;
            real_store_part(p, real_load_part(p, s->D - c) + scale * vec_load(from + (size_t)i * s->Dp + c), s->D - c);
        }
}

static void gather_all(ThresholdedWork *w, const real *q, const ThresholdedShape *s) {
    rows_gather_padded(w->q, s->Dp, q, s->row, 1 / sqrtf((float)s->D), s->N, s->Np, s->D);
    rows_gather_padded(w->k, s->Dp, q + s->y_row, s->row, 1, s->N, s->Np, s->D);
    rows_gather_padded(w->v, s->Dp, q + 2 * s->y_row, s->row, 1, s->N, s->Np, s->D);
    tiles_transpose(w->kt, s->Np, w->k, s->Dp, s->Np, s->Dp);
}

/* Scores of queries first.., minus infinity beyond the last key. */
static void scores(const ThresholdedWork *w, int first, int rows, const ThresholdedShape *s) {
    tile_gemm(w->p, s->Np, w->q + (size_t)first * s->Dp, s->Dp, 1, w->kt, s->Np, rows, s->Np, s->D, 0);
    for (int i = 0; i < rows; i++)
        for (int j = s->N; j < s->Np; j++) w->p[(size_t)i * s->Np + j] = -INFINITY;
}

static float log_sum_exp(const float *x, int padded) {
    vec largest = vec_load(x), sum = {0};
    for (int j = TILE; j < padded; j += TILE) largest = vec_max(vec_load(x + j), largest);
    float shift = vec_largest(largest);
    for (int j = 0; j < padded; j += TILE) sum += vec_exp_floored(vec_load(x + j) - shift);
    return shift + logf(vec_sum(sum));
}

/* p if it is above the threshold, otherwise 0; *p is the weight itself. */
TILE_INLINE vec counted(vec *p, const float *x, float lse, float threshold) {
    *p = vec_exp_floored(vec_load(x) - lse);
    return vec_select(*p > threshold, *p, vec_set(0));
}

static void forward_head(real *y, float *lse, const real *q, ThresholdedWork w, const ThresholdedShape *s) {
    gather_all(&w, q, s);
    for (int first = 0; first < s->N; first += QUERIES) {
        int rows = s->N - first < QUERIES ? s->N - first : QUERIES;
        scores(&w, first, rows, s);
        for (int i = 0; i < rows; i++) {
            float *x = w.p + (size_t)i * s->Np;
            lse[first + i] = log_sum_exp(x, s->Np);
            for (int j = 0; j < s->Np; j += TILE) {
                vec p;
                vec_store(x + j, counted(&p, x + j, lse[first + i], s->threshold));
            }
        }
        tile_gemm(w.sum, s->Dp, w.p, s->Np, 1, w.v, s->Dp, rows, s->Dp, s->N, 0);
        scatter_add(y + first * s->y_row, s->y_row, w.sum, 1, rows, s);
    }
}

/* x, t become c p and ds; returns delta. */
static float row_backward(float *x, float *t, float lse, const ThresholdedShape *s) {
    vec p, sum = {0};
    for (int j = 0; j < s->Np; j += TILE) sum += counted(&p, x + j, lse, s->threshold) * vec_load(t + j);
    float delta = vec_sum(sum);
    for (int j = 0; j < s->Np; j += TILE) {
        vec cp = counted(&p, x + j, lse, s->threshold);
        vec_store(t + j, cp * vec_load(t + j) - p * delta);
        vec_store(x + j, cp);
    }
    return delta;
}

static void backward_head(real *dq, float *delta, const real *dy, const float *lse, const real *q, ThresholdedWork w,
                          const ThresholdedShape *s) {
    size_t bytes = (size_t)s->Np * s->Dp * sizeof(float);
    float scale = 1 / sqrtf((float)s->D);
    gather_all(&w, q, s);
    rows_gather_padded(w.dy, s->Dp, dy, s->y_row, 1, s->N, s->Np, s->D);
    tiles_transpose(w.vt, s->Np, w.v, s->Dp, s->Np, s->Dp);
    memset(w.dk, 0, bytes);
    memset(w.dv, 0, bytes);
    for (int first = 0; first < s->N; first += QUERIES) {
        int rows = s->N - first < QUERIES ? s->N - first : QUERIES;
        const float *dy_rows = w.dy + (size_t)first * s->Dp;
        scores(&w, first, rows, s);
        tile_gemm(w.t, s->Np, dy_rows, s->Dp, 1, w.vt, s->Np, rows, s->Np, s->D, 0);
        for (int i = 0; i < rows; i++)
            delta[first + i] = row_backward(w.p + (size_t)i * s->Np, w.t + (size_t)i * s->Np, lse[first + i], s);
        tile_gemm(w.dv, s->Dp, w.p, 1, s->Np, dy_rows, s->Dp, s->N, s->Dp, rows, 1);
        tile_gemm(w.dk, s->Dp, w.t, 1, s->Np, w.q + (size_t)first * s->Dp, s->Dp, s->N, s->Dp, rows, 1);
        tile_gemm(w.sum, s->Dp, w.t, s->Np, 1, w.k, s->Dp, rows, s->Dp, s->N, 0);
        scatter_add(dq + first * s->row, s->row, w.sum, scale, rows, s);
    }
    scatter_add(dq + s->y_row, s->row, w.dk, 1, s->N, s);
    scatter_add(dq + 2 * s->y_row, s->row, w.dv, 1, s->N, s);
}

void thresholded_attention_forward(real *y, float *lse, const real *qkv, float threshold,
                                   const AttentionShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D;
    ThresholdedShape s = shape_of(threshold, N, H, D);
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++) {
            size_t token = (size_t)b * N, at = (size_t)h * D;
            forward_head(y + token * s.y_row + at, lse + ((size_t)b * H + h) * N, qkv + token * s.row + at, work_of(&s),
                         &s);
        }
}

void thresholded_attention_backward(real *dqkv, float *delta, const real *dy, const float *lse, const real *qkv,
                                    float threshold, const AttentionShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D;
    ThresholdedShape s = shape_of(threshold, N, H, D);
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++) {
            size_t token = (size_t)b * N, at = (size_t)h * D, row = ((size_t)b * H + h) * N;
            backward_head(dqkv + token * s.row + at, delta + row, dy + token * s.y_row + at, lse + row,
                          qkv + token * s.row + at, work_of(&s), &s);
        }
}
