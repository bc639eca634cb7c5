/* The formulas of softmax_attention.c with queries beside each other in a vector, keys below: s = k q^T, so that maxima,
 * sums and lse are vectors and a block of p is an operand as it is computed:
 *   forward   y^T = v^T p                    p in pairs of keys
 *   backward  dv = p dy, dk = ds q           p, ds as left operands, dy and q in pairs of queries
 *             dq^T = k^T ds                  ds in pairs of keys
 * Products' operands are rounded to bfloat16 (p and ds; q, k, v, dy are bfloat16 in memory), everything else is float. */
#include "kernels/cpu/softmax_pairs.h"

#ifdef VIT_PAIRS

#include "kernels/cpu/workspace.h"

/* Vectors of 16 queries in a block of QUERIES; the scores of KEYS keys at a time, which stay in the second-level cache. */
enum { QUERIES = PAIR_BLOCK, LANES = QUERIES / TILE, KEYS = 256 };

static int smaller(int a, int b) { return a < b ? a : b; }

/* == Numbers ====================================================================================================== */

#define LOG2_E 1.44269504f
#define LN_2 0.693147181f

/* 2^x within 2e-7 of itself, 0 far below: 2^floor(x) times a polynomial of the rest. */
static inline vec power_of_two(vec x) {
    vec r = (vec)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF);
    vec p = 0.00187757669f * r + 0.00898934063f;
    p = p * r + 0.0558263175f;
    p = p * r + 0.240153611f;
    p = p * r + 0.693153083f;
    p = p * r + 0.99999994f;
    return (vec)_mm512_scalef_ps((__m512)p, (__m512)x);
}

/* Rounded to bfloat16, in the upper halves; ties away from zero.  A NaN that came from a bfloat16 stays one. */
static inline uvec upper_halves(vec x) { return ((uvec)x + 0x8000) & 0xffff0000u; }

/* == Layouts ====================================================================================================== */

/* to [padded,Dp] = rows of from, `stride` apart, with zeros around. */
static void copy_rows(real *to, const real *from, size_t stride, int rows, int padded, int D, int Dp) {
    __mmask32 last = ~0u >> (Dp - D);
    for (int i = 0; i < rows; i++, to += Dp, from += stride) {
        for (int j = 0; j < Dp - 32; j += 32) _mm512_storeu_si512(to + j, _mm512_loadu_si512(from + j));
        _mm512_storeu_si512(to + Dp - 32, _mm512_maskz_loadu_epi16(last, from + Dp - 32));
    }
    memset(to, 0, (size_t)(padded - rows) * Dp * sizeof *to);
}

/* to [Dp/2][rows][2], ldt pairs from one to the next, = the transpose of from [rows,Dp]: pairs are moved as floats. */
static void turn_pairs(real *to, size_t ldt, const real *from, int rows, int Dp) {
    for (int i = 0; i < rows; i += TILE)
        for (int p = 0; p < Dp / 2; p += TILE)
            tile_transpose((float *)to + p * ldt + i, ldt, (const float *)from + (size_t)i * Dp / 2 + p, Dp / 2);
}

/* to [Dp,ldt] = the transpose of from [rows,Dp]; room for rows * Dp numbers. */
static void turn_rows(real *to, size_t ldt, const real *from, real *room, int rows, int Dp) {
    turn_pairs(room, rows, from, rows, Dp);
    for (int p = 0; p < Dp / 2; p++)
        for (int i = 0; i < rows; i += TILE) {
            __m512i both = _mm512_loadu_si512((const float *)room + (size_t)p * rows + i);
            halfvec *even = (halfvec *)(to + 2 * p * ldt + i), *odd = (halfvec *)(to + (2 * p + 1) * ldt + i);
            *even = (halfvec)_mm512_cvtepi32_epi16(both);
            *odd = (halfvec)_mm512_cvtepi32_epi16(_mm512_srli_epi32(both, 16));
        }
}

/* The numbers of a and b alternate. */
static inline __m512i alternate(halfvec a, halfvec b) {
    __m512i low = _mm512_cvtepu16_epi32((__m256i)a), high = _mm512_cvtepu16_epi32((__m256i)b);
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}

/* to [rows/2][Dp][2] = from [rows,Dp]. */
static void pair_rows(real *to, const real *from, int rows, int Dp) {
    for (int i = 0; i < rows; i += 2, to += 2 * Dp, from += 2 * Dp)
        for (int j = 0; j < Dp; j += TILE)
            _mm512_storeu_si512(to + 2 * j, alternate(*(const halfvec *)(from + j), *(const halfvec *)(from + Dp + j)));
}

/* Rows of y, `stride` apart, = scale times the columns of from [Dp,QUERIES]. */
static void put_columns(real *y, size_t stride, const float *from, float scale, int rows, int D) {
    float turned[TILE * TILE];
    for (int i = 0; i < rows; i += TILE)
        for (int j = 0; j < D; j += TILE) {
            tile_transpose(turned, TILE, from + (size_t)j * QUERIES + i, QUERIES);
            for (int r = 0; r < TILE && i + r < rows; r++)
                real_store_part(y + (i + r) * stride + j, scale * vec_load(turned + r * TILE), D - j);
        }
}

static size_t floats_of(size_t reals) { return workspace_line_up((reals + 1) / 2); }
static real *take_reals(float **next, size_t n) { return (real *)workspace_take(next, (n + 1) / 2); }

/* == Forward ====================================================================================================== */

size_t softmax_pairs_forward_floats(int N, int D) {
    size_t Np = pairs_round_up(N), Dp = pairs_round_up(D);
    return 2 * floats_of(Np * Dp) + 3 * floats_of(PAIR_BLOCK * Dp) + QUERIES * (size_t)(KEYS + Dp) +
           floats_of(KEYS * QUERIES);
}

/* The running state of a block of queries: the largest score, the sum of p, and that of p as rounded for the product,
 * by which y is divided. */
typedef struct {
    vec largest[LANES], sum[LANES], rounded[LANES];
} Running;

/* Takes the larger scores into account; the factors for what was summed before. */
static void raise_maximum(vec shrink[LANES], Running *r, const float *s, float scale, int keys) {
    vec largest[LANES];
    for (int v = 0; v < LANES; v++) largest[v] = vec_load(s + v * TILE);
    for (int j = 1; j < keys; j++)
        for (int v = 0; v < LANES; v++) largest[v] = vec_max(vec_load(s + j * QUERIES + v * TILE), largest[v]);
    for (int v = 0; v < LANES; v++) {
        largest[v] = vec_max(scale * largest[v], r->largest[v]);
        shrink[v] = power_of_two(r->largest[v] - largest[v]);
        r->largest[v] = largest[v];
    }
}

/* A block of scores s [keys,QUERIES], of which scale times is the exponent of two, becomes p in pairs of keys,
 * [padded/2][QUERIES][2]; y^T [Dp,QUERIES] and the state take the new keys into account. */
static void softmax_step(real *p, Running *r, float *yt, const float *s, float scale, int keys, int padded, int Dp) {
    vec shrink[LANES], sum[LANES] = {{0}}, rounded[LANES] = {{0}};
    raise_maximum(shrink, r, s, scale, keys);
    for (int j = 0; j + 2 <= keys; j += 2)
        for (int v = 0; v < LANES; v++) {
            const float *at = s + j * QUERIES + v * TILE;
            vec even = power_of_two(scale * vec_load(at) - r->largest[v]);
            vec odd = power_of_two(scale * vec_load(at + QUERIES) - r->largest[v]);
            uvec low = upper_halves(even), high = upper_halves(odd);
            sum[v] += even + odd;
            rounded[v] += (vec)low + (vec)high;
            *(uvec *)(p + j * QUERIES + 2 * v * TILE) = low >> 16 | high;
        }
    memset(p + keys / 2 * 2 * QUERIES, 0, (padded - keys / 2 * 2) * QUERIES * sizeof *p);
    for (int v = 0; v < LANES; v++) {
        if (keys % 2) {
            vec last = power_of_two(scale * vec_load(s + (keys - 1) * QUERIES + v * TILE) - r->largest[v]);
            sum[v] += last;
            rounded[v] += (vec)upper_halves(last);
            *(uvec *)(p + (keys - 1) * QUERIES + 2 * v * TILE) = upper_halves(last) >> 16;
        }
        r->sum[v] = r->sum[v] * shrink[v] + sum[v];
        r->rounded[v] = r->rounded[v] * shrink[v] + rounded[v];
        for (int d = 0; d < Dp; d++) {
            float *at = yt + d * QUERIES + v * TILE;
            vec_store(at, shrink[v] * vec_load(at));
        }
    }
}

/* yt [Dp,QUERIES] is divided by the sums; the log-sum-exps of `rows` queries. */
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
    copy_rows(k, qkv + M, 3 * M, N, Np, D, Dp);
    for (int j = 0; j < Np; j += PAIR_BLOCK) {
        copy_rows(rows, qkv + 2 * M + j * 3 * M, 3 * M, smaller(PAIR_BLOCK, N - j), PAIR_BLOCK, D, Dp);
        turn_rows(vt + j, Np, rows, room, PAIR_BLOCK, Dp);
    }
    for (int i = first; i < last; i += QUERIES) {
        Running r = {.largest = {vec_set(-INFINITY), vec_set(-INFINITY)}};
        int queries = smaller(QUERIES, last - i);
        copy_rows(rows, qkv + i * 3 * M, 3 * M, queries, QUERIES, D, Dp);
        turn_pairs(qt, QUERIES, rows, QUERIES, Dp);
        memset(yt, 0, QUERIES * (size_t)Dp * sizeof *yt);
        for (int j = 0; j < Np; j += KEYS) {
            int keys = smaller(KEYS, N - j), padded = smaller(KEYS, Np - j);
            pairs_gemm(kind, s, QUERIES, k + (size_t)j * Dp, Dp, qt, QUERIES, padded, QUERIES, Dp, false);
            softmax_step(p, &r, yt, s, scale, keys, padded, Dp);
            pairs_gemm(kind, yt, QUERIES, vt + j, Np, p, QUERIES, Dp, QUERIES, padded, true);
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

/* Of a block of QUERIES as right operands: [Dp/2][QUERIES][2] and [QUERIES/2][Dp][2]; room for QUERIES * Dp numbers. */
static void pack_queries(real *turned, real *paired, real *room, const real *from, size_t stride, int rows, int D,
                         int Dp) {
    copy_rows(room, from, stride, rows, QUERIES, D, Dp);
    turn_pairs(turned, QUERIES, room, QUERIES, Dp);
    pair_rows(paired, room, QUERIES, Dp);
}

/* Of a block of scores s = k q^T and t = v dy^T [keys,QUERIES]: p = 2^(scale s - lse) and ds = p (t - delta), both
 * [padded,QUERIES], and ds in pairs of keys. */
static void scores_backward(real *p, real *ds, real *ds_pairs, const float *s, const float *t, const float *lse,
                            const float *delta, float scale, int keys, int padded) {
    for (int v = 0; v < LANES; v++) {
        vec shift = vec_load(lse + v * TILE), mean = vec_load(delta + v * TILE);
        for (int j = 0; j < padded; j += 2) {
            uvec weights[2] = {{0}}, slopes[2] = {{0}};
#pragma GCC unroll 2
            for (int odd = 0; odd < 2; odd++) {
                size_t at = (size_t)(j + odd) * QUERIES + v * TILE;
                if (j + odd >= keys) continue;
                vec weight = power_of_two(scale * vec_load(s + at) - shift);
                weights[odd] = upper_halves(weight);
                slopes[odd] = upper_halves(weight * (vec_load(t + at) - mean));
            }
#pragma GCC unroll 2
            for (int odd = 0; odd < 2; odd++) {
                size_t at = (size_t)(j + odd) * QUERIES + v * TILE;
                *(halfvec *)(p + at) = (halfvec)_mm512_cvtepi32_epi16((__m512i)(weights[odd] >> 16));
                *(halfvec *)(ds + at) = (halfvec)_mm512_cvtepi32_epi16((__m512i)(slopes[odd] >> 16));
            }
            *(uvec *)(ds_pairs + j * QUERIES + 2 * v * TILE) = slopes[0] >> 16 | slopes[1];
        }
    }
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

static void put_rows(real *to, size_t stride, const float *from, float scale, int rows, int D, int Dp) {
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < D; j += TILE)
            real_store_part(to + i * stride + j, scale * vec_load(from + (size_t)i * Dp + j), D - j);
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
        pack_queries(qt + at, qp + at, room, qkv + i * 3 * M, 3 * M, rows, D, Dp);
        pack_queries(dyt + at, dyp + at, room, dy + i * M, M, rows, D, Dp);
    }
    statistics(delta, shift, dy, y, lse, M, N, Np, D);
    for (int j = 0; j < Np; j += KEYS) {
        int keys = smaller(KEYS, N - j), padded = smaller(KEYS, Np - j);
        copy_rows(k, qkv + M + j * 3 * M, 3 * M, keys, padded, D, Dp);
        copy_rows(v, qkv + 2 * M + j * 3 * M, 3 * M, keys, padded, D, Dp);
        for (int c = 0; c < padded; c += PAIR_BLOCK) turn_rows(kt + c, KEYS, k + (size_t)c * Dp, room, PAIR_BLOCK, Dp);
        for (int i = 0; i < Np; i += QUERIES) {
            size_t at = (size_t)i * Dp;
            pairs_gemm(kind, s, QUERIES, k, Dp, qt + at, QUERIES, padded, QUERIES, Dp, false);
            pairs_gemm(kind, t, QUERIES, v, Dp, dyt + at, QUERIES, padded, QUERIES, Dp, false);
            scores_backward(p, ds, ds_pairs, s, t, shift + i, delta + i, LOG2_E * scale, keys, padded);
            pairs_gemm(kind, dv, Dp, p, QUERIES, dyp + at, Dp, padded, Dp, QUERIES, i > 0);
            pairs_gemm(kind, dk, Dp, ds, QUERIES, qp + at, Dp, padded, Dp, QUERIES, i > 0);
            pairs_gemm(kind, dqt + at, QUERIES, kt, KEYS, ds_pairs, QUERIES, Dp, QUERIES, padded, j > 0);
        }
        put_rows(dqkv + M + j * 3 * M, 3 * M, dk, scale, keys, D, Dp);
        put_rows(dqkv + 2 * M + j * 3 * M, 3 * M, dv, 1, keys, D, Dp);
    }
    for (int i = 0; i < N; i += QUERIES)
        put_columns(dqkv + i * 3 * M, 3 * M, dqt + (size_t)i * Dp, scale, smaller(QUERIES, N - i), D);
    pairs_end(kind);
}

#endif
