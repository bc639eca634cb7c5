/* Softmax attention without an N x N matrix, one (image, head) at a time.
 *   forward   s = q k^T / sqrt D,  p = exp(s - m),  l = sum_j p,  y = p v / l,  lse = m + log l;  over blocks of keys
 *             m is the maximum so far, and l and y are scaled by exp(m_old - m) when it grows
 *   backward  p = exp(s - lse),  delta = dy.y,  ds = p (dy v^T - delta),
 *             dv = p^T dy,  dk = ds^T q / sqrt D,  dq = ds k / sqrt D
 *   saves     lse.   Source: Dao et al. 2022 (FlashAttention); the backward's order of loops is Dao 2023's.
 *
 * The factor 1 / sqrt D is folded into q.  Right-hand operands are copied once: k^T and v^T in panels [D,PANEL] that
 * are read front to back, the others [rows,Dp] with Dp = D rounded up to whole vectors and zeros in the padding. */
#include "kernels/cpu/vecmath.h"
#include "kernels/cpu/workspace.h"
#include "kernels/kernels.h"

/* One block of scores, QUERIES x KEYS floats, stays in the first-level cache. */
enum { QUERIES = 32, KEYS = 256, PANEL = 2 * TILE };

static int smaller(int a, int b) { return a < b ? a : b; }
static size_t panels_floats(int keys, int D) { return (size_t)(keys + PANEL - 1) / PANEL * PANEL * D; }

static size_t forward_floats(int N, int D) {
    int Dp = tile_round_up(D);
    return workspace_line_up(panels_floats(N, D)) + (size_t)N * Dp + QUERIES * (2 * (size_t)Dp + KEYS + 2);
}

static size_t backward_floats(int N, int D) {
    size_t Dp = tile_round_up(D);
    return 3 * N * Dp + workspace_line_up(N) + 2 * workspace_line_up(panels_floats(KEYS, D)) + 3 * KEYS * Dp +
           2 * QUERIES * KEYS;
}

size_t softmax_attention_workspace(int N, int D) {
    size_t forward = forward_floats(N, D), backward = backward_floats(N, D);
    return workspace_bytes(forward > backward ? forward : backward);
}

/* to [rows,Dp] = scale times from [rows,D] with `stride` floats between rows. */
static void gather(float *to, const real *from, size_t stride, float scale, int rows, int D, int Dp) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < D; j += TILE)
            vec_store(to + (size_t)i * Dp + j, scale * vec_load_part(from + i * stride + j, D - j));
}

/* [rows,Dp] to [rows,D] with `stride` floats between rows, times scale. */
static void scatter(real *to, size_t stride, const float *from, float scale, int rows, int D, int Dp) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < D; j += TILE)
            vec_store_part(to + i * stride + j, scale * vec_load(from + (size_t)i * Dp + j), D - j);
}

/* Panels of the transpose of from [keys,D]; the last panel is filled up with zeros. */
static void gather_panels(float *to, const real *from, size_t stride, int keys, int D) {
    for (int first = 0; first < keys; first += PANEL, to += PANEL * D)
        for (int j = 0; j < PANEL; j++)
            for (int d = 0; d < D; d++) to[d * PANEL + j] = first + j < keys ? from[(first + j) * stride + d] : 0;
}

/* s [rows,KEYS] = a [rows,Dp] times panels for `keys` keys, rounded up to whole panels. */
static void scores(float *s, const float *a, const float *panels, int rows, int keys, int D, int Dp) {
    for (int j = 0; j < keys; j += PANEL)
        tile_gemm(s + j, KEYS, a, Dp, 1, panels + (size_t)j * D, PANEL, rows, PANEL, D, 0);
}

/* Raises m to the new scores' maximum and scales l and y [rows,Dp] to it. */
static void raise_maximum(const float *s, float *m, float *l, float *y, int rows, int padded, int Dp) {
    for (int i = 0; i < rows; i++) {
        vec largest = vec_load(s + i * KEYS);
        for (int j = TILE; j < padded; j += TILE) largest = vec_max(vec_load(s + i * KEYS + j), largest);
        float seen = vec_largest(largest);
        if (!(seen > m[i])) continue;
        float shrink = l[i] > 0 ? expf(m[i] - seen) : 1;
        m[i] = seen;
        if (shrink == 1) continue;
        l[i] *= shrink;
        for (int j = 0; j < Dp; j += TILE) vec_store(y + (size_t)i * Dp + j, shrink * vec_load(y + (size_t)i * Dp + j));
    }
}

/* One step of the running softmax: s becomes p, and m, l and y take the new keys into account. The maximum is a pass of
 * its own over all rows: inside the other one its latency would stand between every two rows. */
static void softmax_step(float *s, float *m, float *l, float *y, int rows, int keys, int Dp) {
    int padded = tile_round_up(keys);
    for (int i = 0; i < rows; i++)
        for (int j = keys; j < padded; j++) s[i * KEYS + j] = -INFINITY;
    raise_maximum(s, m, l, y, rows, padded, Dp);
    for (int i = 0; i < rows; i++) {
        vec sum = {0}, shift = vec_set(m[i]);
        for (int j = 0; j < padded; j += TILE) {
            vec p = vec_exp_floored(vec_load(s + i * KEYS + j) - shift);
            vec_store(s + i * KEYS + j, p);
            sum += p;
        }
        l[i] += vec_sum(sum);
    }
}

static void forward_head(real *y, float *lse, const real *q, int N, size_t stride, size_t y_stride, size_t third,
                         int D) {
    int Dp = tile_round_up(D);
    float *next = kernels_workspace(forward_floats(N, D));
    float *kt = workspace_take(&next, panels_floats(N, D)), *v = workspace_take(&next, (size_t)N * Dp);
    float *qs = workspace_take(&next, QUERIES * (size_t)Dp), *ys = workspace_take(&next, QUERIES * (size_t)Dp);
    float *s = workspace_take(&next, QUERIES * KEYS);
    float *m = workspace_take(&next, QUERIES), *l = workspace_take(&next, QUERIES);
    gather_panels(kt, q + third, stride, N, D);
    gather(v, q + 2 * third, stride, 1, N, D, Dp);
    for (int i = 0; i < N; i += QUERIES) {
        int rows = smaller(QUERIES, N - i);
        gather(qs, q + i * stride, stride, 1 / sqrtf((float)D), rows, D, Dp);
        memset(ys, 0, QUERIES * (size_t)Dp * sizeof *ys);
        for (int r = 0; r < rows; r++) m[r] = -INFINITY, l[r] = 0;
        for (int j = 0; j < N; j += KEYS) {
            int keys = smaller(KEYS, N - j);
            scores(s, qs, kt + (size_t)j * D, rows, keys, D, Dp);
            softmax_step(s, m, l, ys, rows, keys, Dp);
            tile_gemm(ys, Dp, s, KEYS, 1, v + (size_t)j * Dp, Dp, rows, Dp, keys, 1);
        }
        for (int r = 0; r < rows; r++) {
            scatter(y + (i + r) * y_stride, y_stride, ys + (size_t)r * Dp, 1 / l[r], 1, D, Dp);
            lse[i + r] = m[r] + logf(l[r]);
        }
    }
}

void softmax_attention_forward(real *y, float *lse, const real *qkv, int B, int N, int H, int D) {
    size_t M = (size_t)H * D;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++)
            forward_head(y + b * N * M + (size_t)h * D, lse + ((size_t)b * H + h) * N,
                         qkv + b * N * 3 * M + (size_t)h * D, N, 3 * M, M, M, D);
}

/* s becomes p = exp(s - lse), t = dy v^T becomes ds / (1/sqrt D) = p (t - delta). */
static void scores_backward(float *s, float *t, const float *lse, const float *delta, int rows, int keys) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < keys; j += TILE) {
            vec p = vec_exp_floored(vec_load(s + i * KEYS + j) - lse[i]);
            vec_store(s + i * KEYS + j, p);
            vec_store(t + i * KEYS + j, p * (vec_load(t + i * KEYS + j) - delta[i]));
        }
}

/* Blocks of keys outside, so that only q, dy and dq stream past them when N is large. */
static void backward_head(real *dq, const real *dy, const real *y, const float *lse, const real *q, int N, size_t M,
                          int D) {
    int Dp = tile_round_up(D);
    size_t stride = 3 * M, third = M, all = (size_t)N * Dp, some = (size_t)KEYS * Dp;
    float scale = 1 / sqrtf((float)D);
    float *next = kernels_workspace(backward_floats(N, D));
    float *qs = workspace_take(&next, all), *dys = workspace_take(&next, all), *dqs = workspace_take(&next, all);
    float *delta = workspace_take(&next, N);
    float *kt = workspace_take(&next, panels_floats(KEYS, D)), *vt = workspace_take(&next, panels_floats(KEYS, D));
    float *k = workspace_take(&next, some), *dk = workspace_take(&next, some), *dv = workspace_take(&next, some);
    float *s = workspace_take(&next, QUERIES * KEYS), *t = workspace_take(&next, QUERIES * KEYS);
    gather(qs, q, stride, scale, N, D, Dp);
    gather(dys, dy, M, 1, N, D, Dp);
    memset(dqs, 0, all * sizeof *dqs);
    for (int i = 0; i < N; i++) {
        vec sum = {0};
        for (int j = 0; j < D; j += TILE)
            sum += vec_load(dys + (size_t)i * Dp + j) * vec_load_part(y + i * M + j, D - j);
        delta[i] = vec_sum(sum);
    }
    for (int j = 0; j < N; j += KEYS) {
        int keys = smaller(KEYS, N - j);
        gather_panels(kt, q + third + j * stride, stride, keys, D);
        gather_panels(vt, q + 2 * third + j * stride, stride, keys, D);
        gather(k, q + third + j * stride, stride, 1, keys, D, Dp);
        memset(dk, 0, some * sizeof *dk);
        memset(dv, 0, some * sizeof *dv);
        for (int i = 0; i < N; i += QUERIES) {
            int rows = smaller(QUERIES, N - i);
            const float *qi = qs + (size_t)i * Dp, *dyi = dys + (size_t)i * Dp;
            scores(s, qi, kt, rows, keys, D, Dp);
            scores(t, dyi, vt, rows, keys, D, Dp);
            scores_backward(s, t, lse + i, delta + i, rows, keys);
            tile_gemm(dv, Dp, s, 1, KEYS, dyi, Dp, keys, Dp, rows, 1);
            tile_gemm(dk, Dp, t, 1, KEYS, qi, Dp, keys, Dp, rows, 1);
            tile_gemm(dqs + (size_t)i * Dp, Dp, t, KEYS, 1, k, Dp, rows, Dp, keys, 1);
        }
        scatter(dq + third + j * stride, stride, dk, 1, keys, D, Dp);
        scatter(dq + 2 * third + j * stride, stride, dv, 1, keys, D, Dp);
    }
    scatter(dq, stride, dqs, scale, N, D, Dp);
}

void softmax_attention_backward(real *dqkv, const real *dy, const real *y, const float *lse, const real *qkv, int B,
                                int N, int H, int D) {
    size_t M = (size_t)H * D;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++) {
            size_t at = b * N * M + (size_t)h * D, at_qkv = b * N * 3 * M + (size_t)h * D;
            backward_head(dqkv + at_qkv, dy + at, y + at, lse + ((size_t)b * H + h) * N, qkv + at_qkv, N, M, D);
        }
}
