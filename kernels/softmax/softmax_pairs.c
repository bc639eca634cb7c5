/* The formulas of softmax_attention.c with a query in each lane of a vector and a key in each row: s = k q^T, so that
 * maxima, sums and lse are vectors and a block of p is already in the layout of an operand:
 *   forward   y^T = v^T p                    p in pairs of keys
 *   backward  dv = p dy, dk = ds q           p, ds as left operands, dy and q in pairs of queries
 *             dq^T = k^T ds                  ds in pairs of keys
 * Operands of products are rounded to bfloat16 (p and ds; q, k, v, dy are bfloat16 in memory), everything else is
 * float. */
#include "kernels/softmax/softmax_pairs.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#ifdef VIT_PAIRS

#include "kernels/softmax/pair_tiles.h"

/* Dot products have blocks of eight keys, 16 queries and one pair, while AMX has 32 of each: with a class token or 197
 * tokens they need less padding. */
static int padded_keys(Pairs kind, int keys) { return kind == PAIRS_DOTS ? (keys + 7) / 8 * 8 : pairs_round_up(keys); }
static int lanes_of(Pairs kind, int queries) { return kind == PAIRS_DOTS && queries <= TILE ? 1 : LANES; }

/* == Forward ====================================================================================================== */

size_t softmax_pairs_forward_floats(int N, int D) {
    size_t Np = pairs_round_up(N), Dp = pairs_round_up(D);
    return 2 * floats_of(Np * Dp) + 3 * floats_of(PAIR_BLOCK * Dp) + QUERIES * (size_t)(KEYS + Dp) +
           floats_of(KEYS * QUERIES);
}

/* Rows of y, `stride` apart, = scale times the columns of from [Dp,QUERIES]. */
static void put_columns(real *y, size_t stride, const float *from, float scale, int rows, int D) {
    float transposed[TILE * TILE];
    for (int i = 0; i < rows; i += TILE)
        for (int j = 0; j < D; j += TILE) {
            tile_transpose(transposed, TILE, from + (size_t)j * QUERIES + i, QUERIES);
            for (int r = 0; r < TILE && i + r < rows; r++)
                real_store_part(y + (i + r) * stride + j, scale * vec_load(transposed + r * TILE), D - j);
        }
}

/* Divides yt [Dp,QUERIES] by the sums, and computes the log-sum-exps of `rows` queries. */
static void finish(float *yt, float *lse, const Running *r, int rows, int Dp) {
    float largest[QUERIES], sum[QUERIES];
    for (int v = 0; v < LANES; v++) {
        vec inverse = 1.0f / r->rounded[v];
        for (int d = 0; d < Dp; d++) {
            float *at = yt + d * QUERIES + v * TILE;
            vec_store(at, inverse * vec_load(at));
        }
        vec_store(largest + v * TILE, LN_2 * r->largest[v]);
        vec_store(sum + v * TILE, r->sum[v]);
    }
    for (int i = 0; i < rows; i++) lse[i] = largest[i] + logf(sum[i]);
}

void softmax_pairs_forward(Pairs kind, real *y, float *lse, const real *qkv, size_t M, int N, int D, int first, int last,
                           float *slice) {
    int Np = pairs_round_up(N), Dp = pairs_round_up(D);
    float scale = LOG2_E / sqrtf((float)D);
    real *k = take_reals(&slice, (size_t)Np * Dp), *vt = take_reals(&slice, (size_t)Np * Dp);
    real *rows = take_reals(&slice, PAIR_BLOCK * (size_t)Dp), *room = take_reals(&slice, PAIR_BLOCK * (size_t)Dp);
    real *qt = take_reals(&slice, QUERIES * (size_t)Dp), *p = take_reals(&slice, KEYS * QUERIES);
    float *s = workspace_take(&slice, KEYS * QUERIES), *yt = workspace_take(&slice, QUERIES * (size_t)Dp);
    pairs_begin(kind);
    copy_rows(k, qkv + M, 3 * M, NULL, 0, N, Np, D, Dp);
    for (int j = 0; j < Np; j += PAIR_BLOCK) {
        copy_rows(rows, qkv + 2 * M, 3 * M, NULL, j, smaller(PAIR_BLOCK, N - j), PAIR_BLOCK, D, Dp);
        transpose_rows(vt + j, Np, rows, room, PAIR_BLOCK, Dp);
    }
    for (int i = first; i < last; i += QUERIES) {
        Running r = {.largest = {vec_set(-INFINITY), vec_set(-INFINITY)}};
        int queries = smaller(QUERIES, last - i), lanes = lanes_of(kind, queries), wide = lanes * TILE;
        copy_rows(rows, qkv, 3 * M, NULL, i, queries, QUERIES, D, Dp);
        transpose_pairs(qt, QUERIES, rows, QUERIES, Dp);
        memset(yt, 0, QUERIES * (size_t)Dp * sizeof *yt);
        for (int j = 0, keys; j < N; j += keys) {
            keys = keys_next(j, N);
            int padded = padded_keys(kind, keys);
            pairs_gemm(kind, s, QUERIES, k + (size_t)j * Dp, Dp, qt, QUERIES, padded, wide, Dp, false);
            if (lanes == LANES) pairs_softmax_step(LANES, p, &r, yt, s, scale, keys, padded, Dp);
            else pairs_softmax_step(1, p, &r, yt, s, scale, keys, padded, Dp);
            pairs_gemm(kind, yt, QUERIES, vt + j, Np, p, QUERIES, Dp, wide, padded, true);
        }
        finish(yt, lse + i, &r, queries, Dp);
        put_columns(y + i * M, M, yt, 1, queries, D);
    }
    pairs_end(kind);
}

/* == Backward ===================================================================================================== */

size_t softmax_pairs_backward_floats(int N, int D) {
    size_t Np = pairs_round_up(N), Dp = pairs_round_up(D), head = Np * Dp, block = KEYS * Dp;
    return 4 * floats_of(head) + workspace_line_up(head) + 2 * workspace_line_up(Np) + 3 * floats_of(block) +
           floats_of(PAIR_BLOCK * Dp) + 2 * workspace_line_up(block) + 2 * KEYS * QUERIES +
           3 * floats_of(KEYS * QUERIES);
}

/* delta = dy.y and lse / ln 2 of all queries, zero beyond the last. */
static void statistics(float *delta, float *shift, const real *dy, const real *y, const float *lse, size_t M, int N,
                       int Np, int D) {
    for (int i = 0; i < N; i++) {
        delta[i] = reals_dot(dy + i * M, y + i * M, D);
        shift[i] = LOG2_E * lse[i];
    }
    memset(delta + N, 0, (Np - N) * sizeof *delta);
    memset(shift + N, 0, (Np - N) * sizeof *shift);
}

void softmax_pairs_backward(Pairs kind, real *dqkv, const real *dy, const real *y, const float *lse, const real *qkv,
                            size_t M, int N, int D, float *slice) {
    int Np = pairs_round_up(N), Dp = pairs_round_up(D);
    size_t head = (size_t)Np * Dp, block = (size_t)KEYS * Dp;
    float scale = 1 / sqrtf((float)D);
    real *qt = take_reals(&slice, head), *qp = take_reals(&slice, head);
    real *dyt = take_reals(&slice, head), *dyp = take_reals(&slice, head);
    float *dqt = workspace_take(&slice, head);
    float *delta = workspace_take(&slice, Np), *shift = workspace_take(&slice, Np);
    real *k = take_reals(&slice, block), *kt = take_reals(&slice, block), *v = take_reals(&slice, block);
    real *room = take_reals(&slice, PAIR_BLOCK * (size_t)Dp);
    float *dk = workspace_take(&slice, block), *dv = workspace_take(&slice, block);
    float *s = workspace_take(&slice, KEYS * QUERIES), *t = workspace_take(&slice, KEYS * QUERIES);
    real *p = take_reals(&slice, KEYS * QUERIES), *ds = take_reals(&slice, KEYS * QUERIES);
    real *ds_pairs = take_reals(&slice, KEYS * QUERIES);
    pairs_begin(kind);
    for (int i = 0; i < N; i += QUERIES) {
        size_t at = (size_t)i * Dp;
        int rows = smaller(QUERIES, N - i);
        pack_queries(qt + at, qp + at, room, qkv, 3 * M, NULL, i, rows, D, Dp);
        pack_queries(dyt + at, dyp + at, room, dy, M, NULL, i, rows, D, Dp);
    }
    statistics(delta, shift, dy, y, lse, M, N, Np, D);
    for (int j = 0, keys; j < N; j += keys) {
        keys = keys_next(j, N);
        int padded = padded_keys(kind, keys), whole = pairs_round_up(keys);
        copy_rows(k, qkv + M, 3 * M, NULL, j, keys, whole, D, Dp);
        copy_rows(v, qkv + 2 * M, 3 * M, NULL, j, keys, whole, D, Dp);
        for (int c = 0; c < whole; c += PAIR_BLOCK)
            transpose_rows(kt + c, KEYS, k + (size_t)c * Dp, room, PAIR_BLOCK, Dp);
        for (int i = 0; i < N; i += QUERIES) {
            size_t at = (size_t)i * Dp;
            int queries = smaller(QUERIES, N - i), lanes = lanes_of(kind, queries), wide = lanes * TILE;
            int inner = kind == PAIRS_DOTS ? queries + queries % 2 : QUERIES;
            pairs_gemm(kind, s, QUERIES, k, Dp, qt + at, QUERIES, padded, wide, Dp, false);
            pairs_gemm(kind, t, QUERIES, v, Dp, dyt + at, QUERIES, padded, wide, Dp, false);
            if (lanes == LANES)
                pairs_scores_backward(LANES, p, ds, ds_pairs, s, t, shift + i, delta + i, LOG2_E * scale, keys, padded);
            else
                pairs_scores_backward(1, p, ds, ds_pairs, s, t, shift + i, delta + i, LOG2_E * scale, keys, padded);
            pairs_gemm(kind, dv, Dp, p, QUERIES, dyp + at, Dp, padded, Dp, inner, i > 0);
            pairs_gemm(kind, dk, Dp, ds, QUERIES, qp + at, Dp, padded, Dp, inner, i > 0);
            pairs_gemm(kind, dqt + at, QUERIES, kt, KEYS, ds_pairs, QUERIES, Dp, wide, padded, j > 0);
        }
        rows_scatter(dqkv + M + j * 3 * M, 3 * M, dk, Dp, scale, keys, D);
        rows_scatter(dqkv + 2 * M + j * 3 * M, 3 * M, dv, Dp, 1, keys, D);
    }
    for (int i = 0; i < N; i += QUERIES)
        put_columns(dqkv + i * 3 * M, 3 * M, dqt + (size_t)i * Dp, scale, smaller(QUERIES, N - i), D);
    pairs_end(kind);
}

#endif
