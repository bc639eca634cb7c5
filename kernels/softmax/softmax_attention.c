/* Softmax attention without an N x N matrix, one (image, head) at a time.
 *   forward   s = q k^T / sqrt D + bias,  p = exp(s - m),  l = sum_j p,  y = p v / l,  lse = m + log l;  over blocks of
 *             keys m is the maximum so far, and l and y are scaled by exp(m_old - m) when it grows
 *   backward  p = exp(s - lse),  delta = dy.y,  ds = p (dy v^T - delta),
 *             dv = p^T dy,  dk = ds^T q / sqrt D,  dq = ds k / sqrt D,  dbias = ds
 *   saves     lse.   Source: Dao et al. 2022 (FlashAttention); the backward's order of loops is Dao 2023's.
 *
 * The factor 1 / sqrt D is folded into q.  Right-hand operands are copied once: k^T and v^T in panels [D,PANEL] that
 * are read front to back, the others [rows,Dp] with Dp = D rounded up to whole vectors and zeros in the padding. */
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "core/integers.h"
#include "kernels/softmax/softmax_pairs.h"
#include "kernels/softmax/softmax_tiles.h"
#include "kernels/tokens/grid.h"
#include "kernels/softmax/attention_shape.h"
#include "kernels/softmax/softmax_attention.h"


/* == What a query sees ============================================================================================ */

/* Child et al. 2019's sets, in both directions; t, u are tokens. */
typedef enum {
    SET_ALL,
    SET_NEAR,   /* |t - u| <= stride */
    SET_COLUMN, /* t = u modulo stride */
    SET_BLOCK,  /* t / stride = u / stride */
    SET_SUMMARY /* u is among the last `summary` of its block of `stride` */
} SoftmaxSet;

typedef struct {
    int N;
    SoftmaxSet set;
    int stride, summary;
    bool rest;                /* continue from the results of the first set, without its pairs */
    const RelativeBias *bias; /* NULL: none */
    const float *table;       /* the head's [2Hg-1,2Wg-1] */
} Scope;

/* A head's tokens in an order that brings together tokens that attend to each other, and the data for masks and
 * biases. */
typedef struct {
    int *order;     /* [N] token at each position, NULL for SET_ALL */
    int *token;     /* [N + PANEL] the same with padding */
    int *group;     /* [N + PANEL] its column or block */
    int summaries;  /* SET_SUMMARY: the number of leading positions to which all queries attend */
    float *strips;  /* bias [places][lengths][places]: the biases of a query are one range in the strip of its place */
} Sight;

/* The subject of a strip is the place of a query in its line of tokens, or for clips in its frame; 2 Hg - 1 or 2 T - 1
 * of these give the biases of a query in any line or frame with all keys. */
static int strip_places(const RelativeBias *b) {
    return b->grid.frames > 1 ? b->grid.rows * b->grid.columns : b->grid.columns;
}
static int strip_lengths(const RelativeBias *b) {
    return 2 * (b->grid.frames > 1 ? b->grid.frames : b->grid.rows) - 1;
}

/* The table's numbers for line `line` of part `part` of the strip of a place. */
static size_t strip_entry(const RelativeBias *b, int place, int part, int line) {
    int Hg = b->grid.rows, Wg = b->grid.columns;
    int row = b->grid.frames > 1 ? part * (2 * Hg - 1) + line - place / Wg + Hg - 1 : part;
    return (size_t)row * (2 * Wg - 1) + Wg - 1 - place % Wg;
}

static size_t strips_floats(const RelativeBias *b) {
    return (size_t)strip_places(b) * strip_lengths(b) * strip_places(b);
}

static size_t sight_floats(const Scope *c) {
    size_t lists = c->set == SET_ALL ? 0 : 2 * workspace_line_up((size_t)c->N + PANEL);
    return lists + (c->bias ? workspace_line_up(strips_floats(c->bias)) : 0);
}

/* Columns one after the other, or summaries before the others, both in the order of tokens; otherwise the order of
 * tokens. */
static int fill_order(int *order, const Scope *c) {
    int at = 0, first = c->set == SET_SUMMARY ? c->stride - c->summary : 0;
    if (c->set == SET_COLUMN) {
        for (int column = 0; column < c->stride; column++)
            for (int t = column; t < c->N; t += c->stride) order[at++] = t;
        return 0;
    }
    for (int t = 0; t < c->N; t++)
        if (t % c->stride >= first) order[at++] = t;
    int summaries = at;
    for (int t = 0; t < c->N && first > 0; t++)
        if (t % c->stride < first) order[at++] = t;
    return summaries;
}

static Sight sight_take(float **next, const Scope *c) {
    Sight s = {0};
    if (c->set != SET_ALL) {
        s.token = s.order = (int *)workspace_take(next, (size_t)c->N + PANEL);
        s.group = (int *)workspace_take(next, (size_t)c->N + PANEL);
        s.summaries = fill_order(s.order, c);
        for (int i = 0; i < c->N; i++)
            s.group[i] = c->set == SET_COLUMN ? s.token[i] % c->stride : s.token[i] / c->stride;
        for (int i = c->N; i < c->N + PANEL; i++) s.token[i] = s.group[i] = -1;
    }
    if (c->bias) {
        int Wg = c->bias->grid.columns, places = strip_places(c->bias);
        float *to = s.strips = workspace_take(next, strips_floats(c->bias));
        for (int place = 0; place < places; place++)
            for (int part = 0; part < strip_lengths(c->bias); part++)
                for (int line = 0; line < places / Wg; line++, to += Wg)
                    memcpy(to, c->table + strip_entry(c->bias, place, part, line), Wg * sizeof(float));
    }
    return s;
}

typedef struct {
    int first, last; /* positions first .. last-1 */
} SoftmaxRange;

/* Keys to which any query of positions i .. i+rows-1 attends, as a range of positions that begins at a whole panel. */
static SoftmaxRange keys_seen(const Scope *c, const Sight *s, int i, int rows) {
    SoftmaxRange r = {0, c->N};
    int end = i + rows - 1;
    if (c->set == SET_NEAR) r = (SoftmaxRange){larger(0, i - c->stride), smaller(c->N, end + c->stride + 1)};
    if (c->set == SET_BLOCK)
        r = (SoftmaxRange){i / c->stride * c->stride, smaller(c->N, (end / c->stride + 1) * c->stride)};
    if (c->set == SET_SUMMARY) r = (SoftmaxRange){0, s->summaries};
    if (c->set == SET_COLUMN) { /* group g begins at g whole columns and as many longer ones as there are before it */
        int whole = c->N / c->stride, longer = c->N % c->stride, g = s->group[i], h = s->group[end] + 1;
        r = (SoftmaxRange){g * whole + smaller(g, longer), h * whole + smaller(h, longer)};
    }
    r.first = r.first / PANEL * PANEL;
    return r;
}

/* Scores of pairs outside the set become minus infinity; positions i.. by j... */
static void mask_scores(float *scores, const Scope *c, const Sight *s, int i, int rows, int j, int keys) {
    for (int row = 0; row < rows; row++)
        for (int col = 0; col < keys; col += TILE) {
            ivec away = *(const ivec *)(s->token + j + col) - s->token[i + row];
            ivec together = *(const ivec *)(s->group + j + col) == s->group[i + row];
            ivec near = (away <= c->stride) & (away >= -c->stride);
            ivec seen = c->set == SET_NEAR ? near : c->set == SET_SUMMARY ? ~(ivec){0} : together;
            if (c->rest) seen &= c->set == SET_COLUMN ? ~near : ~together;
            float *p = scores + row * KEYS + col;
            vec_store(p, vec_select(seen, vec_load(p), vec_set(-INFINITY)));
        }
}

/* The address of the biases of a query and keys j.. in the strips, and the first of these keys with a bias; NULL:
 * none. */
static float *strip_of(float *strips, const RelativeBias *b, int query, int *j) {
    int places = strip_places(b), lengths = strip_lengths(b), n = query - b->prefix;
    if (n < 0) return NULL;
    *j = larger(*j, b->prefix);
    return strips + ((size_t)(n % places) * lengths + lengths / 2 - n / places) * places + *j - b->prefix;
}

static void add_bias(float *scores, const Scope *c, const Sight *s, int i, int rows, int j, int keys) {
    for (int row = 0; row < rows; row++) {
        int first = j;
        const float *from = strip_of(s->strips, c->bias, i + row, &first);
        float *to = scores + row * KEYS + first - j;
        int n = from ? j + keys - first : 0;
        for (int k = 0; k < n; k += TILE)
            vec_store_part(to + k, vec_load_part(to + k, n - k) + vec_load_part(from + k, n - k), n - k);
    }
}

/* The reverse: dstrips += ds. */
static void add_bias_backward(float *dstrips, const float *ds, const Scope *c, int i, int rows, int j, int keys) {
    for (int row = 0; row < rows; row++) {
        int first = j;
        float *to = strip_of(dstrips, c->bias, i + row, &first);
        const float *from = ds + row * KEYS + first - j;
        int n = to ? j + keys - first : 0;
        for (int k = 0; k < n; k += TILE)
            vec_store_part(to + k, vec_load_part(to + k, n - k) + vec_load_part(from + k, n - k), n - k);
    }
}

/* == Forward ====================================================================================================== */

static size_t forward_floats(const Scope *c, int D) {
    int Dp = tile_round_up(D);
    return sight_floats(c) + workspace_line_up(panels_floats(c->N, D)) + (size_t)c->N * Dp +
           QUERIES * (2 * (size_t)Dp + KEYS + 2);
}

/* Computes positions i.. of a head, given the first token's y and lse; `rest`: these are the state to continue from. */
static void forward_rows(real *y, float *lse, size_t y_stride, const Scope *c, const Sight *sight, const float *qs,
                         const float *kt, const float *v, float *ys, float *s, float *m, float *l, int i, int rows,
                         int D) {
    int Dp = tile_round_up(D);
    SoftmaxRange r = keys_seen(c, sight, i, rows);
    if (c->rest) gather(ys, y, y_stride, sight->order, i, 1, rows, D, Dp);
    else memset(ys, 0, QUERIES * (size_t)Dp * sizeof *ys);
    for (int row = 0; row < rows; row++) {
        m[row] = c->rest ? lse[position(sight->order, i + row)] : -INFINITY;
        l[row] = c->rest;
    }
    for (int j = r.first, keys; j < r.last; j += keys) {
        keys = keys_next(j, r.last);
        scores(s, qs, kt + (size_t)j * D, rows, keys, D, Dp);
        if (c->bias) add_bias(s, c, sight, i, rows, j, keys);
        if (c->set != SET_ALL) mask_scores(s, c, sight, i, rows, j, keys);
        softmax_step(s, m, l, ys, rows, keys, Dp);
        tile_gemm(ys, Dp, s, KEYS, 1, v + (size_t)j * Dp, Dp, rows, Dp, keys, 1);
    }
    for (int row = 0; row < rows; row++) {
        scatter(y, y_stride, sight->order, i + row, ys + (size_t)row * Dp, 1 / l[row], false, 1, D, Dp);
        lse[position(sight->order, i + row)] = m[row] + logf(l[row]);
    }
}

/* Queries first .. last-1, first a multiple of QUERIES. */
static void forward_head(real *y, float *lse, const real *q, size_t M, int D, const Scope *c, int first, int last) {
    int N = c->N, Dp = tile_round_up(D);
    size_t stride = 3 * M;
    float *next = kernels_workspace(forward_floats(c, D));
    Sight sight = sight_take(&next, c);
    float *kt = workspace_take(&next, panels_floats(N, D)), *v = workspace_take(&next, (size_t)N * Dp);
    float *qs = workspace_take(&next, QUERIES * (size_t)Dp), *ys = workspace_take(&next, QUERIES * (size_t)Dp);
    float *s = workspace_take(&next, QUERIES * KEYS);
    float *m = workspace_take(&next, QUERIES), *l = workspace_take(&next, QUERIES);
    gather_panels(kt, q + M, stride, sight.order, 0, N, D);
    gather(v, q + 2 * M, stride, sight.order, 0, 1, N, D, Dp);
    for (int i = first; i < last; i += QUERIES) {
        int rows = smaller(QUERIES, last - i);
        gather(qs, q, stride, sight.order, i, 1 / sqrtf((float)D), rows, D, Dp);
        forward_rows(y, lse, M, c, &sight, qs, kt, v, ys, s, m, l, i, rows, D);
    }
}

/* == Backward ===================================================================================================== */

static size_t backward_floats(const Scope *c, int D) {
    size_t N = c->N, Dp = tile_round_up(D);
    return sight_floats(c) + (c->bias ? workspace_line_up(strips_floats(c->bias)) : 0) + 3 * N * Dp +
           2 * workspace_line_up(N) + 2 * workspace_line_up(panels_floats(KEYS, D)) + 3 * KEYS * Dp +
           2 * QUERIES * KEYS;
}

/* dtable += each offset's sum over the places of the query. */
static void join_strips(float *dtable, const float *dstrips, const RelativeBias *b) {
    int Wg = b->grid.columns, places = strip_places(b);
    for (int place = 0; place < places; place++)
        for (int part = 0; part < strip_lengths(b); part++)
            for (int line = 0; line < places / Wg; line++, dstrips += Wg) {
                float *to = dtable + strip_entry(b, place, part, line);
                for (int m = 0; m < Wg; m++) to[m] += dstrips[m];
            }
}

/* The outer loop is over blocks of keys, so that only q, dy and dq are streamed if N is large.  `next` is the rest of
 * the thread's slice. */
static void backward_head(real *dq, float *dtable, const real *dy, const real *y, const float *lse, const real *q,
                          size_t M, int D, const Scope *c, float *next) {
    int N = c->N, Dp = tile_round_up(D);
    size_t stride = 3 * M, third = M, all = (size_t)N * Dp, some = (size_t)KEYS * Dp;
    float scale = 1 / sqrtf((float)D), *dstrips = NULL;
    Sight sight = sight_take(&next, c);
    if (c->bias) {
        dstrips = workspace_take(&next, strips_floats(c->bias));
        memset(dstrips, 0, strips_floats(c->bias) * sizeof *dstrips);
    }
    float *qs = workspace_take(&next, all), *dys = workspace_take(&next, all), *dqs = workspace_take(&next, all);
    float *delta = workspace_take(&next, N), *shift = workspace_take(&next, N);
    float *kt = workspace_take(&next, panels_floats(KEYS, D)), *vt = workspace_take(&next, panels_floats(KEYS, D));
    float *k = workspace_take(&next, some), *dk = workspace_take(&next, some), *dv = workspace_take(&next, some);
    float *s = workspace_take(&next, QUERIES * KEYS), *t = workspace_take(&next, QUERIES * KEYS);
    gather(qs, q, stride, sight.order, 0, scale, N, D, Dp);
    gather(dys, dy, M, sight.order, 0, 1, N, D, Dp);
    memset(dqs, 0, all * sizeof *dqs);
    for (int i = 0; i < N; i++) {
        size_t token = position(sight.order, i);
        delta[i] = row_dot(y + token * M, dys + (size_t)i * Dp, D);
        shift[i] = lse[token];
    }
    for (int j = 0, block; j < N; j += block) {
        block = keys_next(j, N);
        gather_panels(kt, q + third, stride, sight.order, j, block, D);
        gather_panels(vt, q + 2 * third, stride, sight.order, j, block, D);
        gather(k, q + third, stride, sight.order, j, 1, block, D, Dp);
        memset(dk, 0, some * sizeof *dk);
        memset(dv, 0, some * sizeof *dv);
        for (int i = 0; i < N; i += QUERIES) {
            int rows = smaller(QUERIES, N - i);
            SoftmaxRange r = keys_seen(c, &sight, i, rows);
            int first = larger(r.first - j, 0), keys = smaller(r.last - j, block) - first;
            if (keys <= 0) continue;
            const float *qi = qs + (size_t)i * Dp, *dyi = dys + (size_t)i * Dp;
            size_t at = (size_t)first * Dp;
            scores(s, qi, kt + (size_t)first * D, rows, keys, D, Dp);
            scores(t, dyi, vt + (size_t)first * D, rows, keys, D, Dp);
            if (c->bias) add_bias(s, c, &sight, i, rows, j + first, keys);
            if (c->set != SET_ALL) mask_scores(s, c, &sight, i, rows, j + first, keys);
            scores_backward(s, t, shift + i, delta + i, rows, keys);
            if (c->bias) add_bias_backward(dstrips, t, c, i, rows, j + first, keys);
            tile_gemm(dv + at, Dp, s, 1, KEYS, dyi, Dp, keys, Dp, rows, 1);
            tile_gemm(dk + at, Dp, t, 1, KEYS, qi, Dp, keys, Dp, rows, 1);
            tile_gemm(dqs + (size_t)i * Dp, Dp, t, KEYS, 1, k + at, Dp, rows, Dp, keys, 1);
        }
        scatter(dq + third, stride, sight.order, j, dk, 1, c->rest, block, D, Dp);
        scatter(dq + 2 * third, stride, sight.order, j, dv, 1, c->rest, block, D, Dp);
    }
    scatter(dq, stride, sight.order, 0, dqs, scale, c->rest, N, D, Dp);
    if (c->bias) join_strips(dtable, dstrips, c->bias);
}

/* == All keys ===================================================================================================== */

/* The offsets of (image, head) in y, lse and qkv. */
typedef struct {
    size_t y, lse, qkv;
} SoftmaxPlace;

static SoftmaxPlace place_of(int b, int h, int N, int H, int D) {
    size_t M = (size_t)H * D, hd = (size_t)h * D;
    return (SoftmaxPlace){(size_t)b * N * M + hd, ((size_t)b * H + h) * N, (size_t)b * N * 3 * M + hd};
}

static size_t workspace_for(const Scope *c, int D, size_t beside) {
    size_t forward = forward_floats(c, D), backward = beside + backward_floats(c, D);
    return workspace_bytes(forward > backward ? forward : backward);
}

/* A pass with products of pairs if these exist and are faster, otherwise with products of floats. */
static void forward_part(real *y, float *lse, const real *qkv, size_t M, int D, const Scope *c, int first, int last) {
#ifdef VIT_PAIRS
    Pairs kind = pairs_kind();
    if (kind != PAIRS_SLOW) {
        softmax_pairs_forward(kind, y, lse, qkv, M, c->N, D, first, last,
                              kernels_workspace(softmax_pairs_forward_floats(c->N, D)));
        return;
    }
#endif
    forward_head(y, lse, qkv, M, D, c, first, last);
}

static void backward_whole(real *dqkv, const real *dy, const real *y, const float *lse, const real *qkv, size_t M, int D,
                           const Scope *c) {
#ifdef VIT_PAIRS
    Pairs kind = pairs_kind();
    if (kind != PAIRS_SLOW) {
        softmax_pairs_backward(kind, dqkv, dy, y, lse, qkv, M, c->N, D,
                               kernels_workspace(softmax_pairs_backward_floats(c->N, D)));
        return;
    }
#endif
    backward_head(dqkv, NULL, dy, y, lse, qkv, M, D, c, kernels_workspace(backward_floats(c, D)));
}

size_t softmax_attention_workspace(int N, int D) {
    size_t widened = workspace_for(&(Scope){.N = N}, D, 0);
#ifdef VIT_PAIRS
    size_t forward = softmax_pairs_forward_floats(N, D), backward = softmax_pairs_backward_floats(N, D);
    if (pairs_kind() != PAIRS_SLOW) return workspace_bytes(forward > backward ? forward : backward);
#endif
    return widened;
}

/* The number of a head's blocks of queries that a thread processes at a time.  Each time it copies the keys and values,
 * which takes about as long as a quarter of the queries, but with whole heads threads may be idle. */
static int blocks_at_once(int heads, int blocks) {
    int threads = omp_get_max_threads(), best = blocks, least = INT_MAX;
    for (int each = blocks; each >= 1; each--) {
        int parts = (blocks + each - 1) / each, rounds = (heads * parts + threads - 1) / threads;
        int time = rounds * (blocks + 4 * each);
        if (time < least) {
            least = time;
            best = each;
        }
    }
    return best;
}

void softmax_attention_forward(real *y, float *lse, const real *qkv, const AttentionShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D;
    int each = QUERIES * blocks_at_once(B * H, (N + QUERIES - 1) / QUERIES);
    Scope c = {.N = N};
#pragma omp parallel for collapse(3) schedule(static)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++)
            for (int i = 0; i < N; i += each) {
                SoftmaxPlace at = place_of(b, h, N, H, D);
                forward_part(y + at.y, lse + at.lse, qkv + at.qkv, (size_t)H * D, D, &c, i, smaller(N, i + each));
            }
}

void softmax_attention_backward(real *dqkv, const real *dy, const real *y, const float *lse, const real *qkv,
                                const AttentionShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D;
    Scope c = {.N = N};
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++) {
            SoftmaxPlace at = place_of(b, h, N, H, D);
            backward_whole(dqkv + at.qkv, dy + at.y, y + at.y, lse + at.lse, qkv + at.qkv, (size_t)H * D, D, &c);
        }
}

/* == With a relative position bias ================================================================================ */

static size_t table_floats(const RelativeBias *b) { return grid_tokens(grid_offsets(b->grid)); }
static int bias_tokens(const RelativeBias *b) { return grid_tokens(b->grid) + b->prefix; }
static Scope biased(const RelativeBias *b) { return (Scope){.N = bias_tokens(b), .bias = b}; }

/* The head's table. */
static size_t table_at(const RelativeBias *b, int h) { return b->tables > 1 ? (size_t)h * table_floats(b) : 0; }

size_t biased_attention_workspace(const RelativeBias *bias, int D) {
    Scope c = biased(bias);
    return workspace_for(&c, D, workspace_line_up(bias->tables * table_floats(bias)));
}

void biased_attention_forward(real *y, float *lse, const real *qkv, const float *table, const RelativeBias *bias,
                              const AttentionShape *shape) {
    int B = shape->B, H = shape->H, D = shape->D;
    int N = bias_tokens(bias);
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++) {
            SoftmaxPlace at = place_of(b, h, N, H, D);
            Scope c = biased(bias);
            c.table = table + table_at(bias, h);
            forward_head(y + at.y, lse + at.lse, qkv + at.qkv, (size_t)H * D, D, &c, 0, N);
        }
}

/* Each thread sums its heads' and images' share of dtable, and the shares are added in the order of the threads. */
void biased_attention_backward(real *dqkv, float *dtable, const real *dy, const real *y, const float *lse,
                               const real *qkv, const float *table, const RelativeBias *bias,
                               const AttentionShape *shape) {
    int B = shape->B, H = shape->H, D = shape->D;
    Scope any = biased(bias);
    size_t size = bias->tables * table_floats(bias), slice = workspace_line_up(size) + backward_floats(&any, D);
    int N = bias_tokens(bias);
#pragma omp parallel
    {
        float *next = kernels_workspace(slice), *share = workspace_take(&next, size);
        memset(share, 0, size * sizeof *share);
#pragma omp for collapse(2) schedule(static)
        for (int b = 0; b < B; b++)
            for (int h = 0; h < H; h++) {
                SoftmaxPlace at = place_of(b, h, N, H, D);
                Scope c = any;
                c.table = table + table_at(bias, h);
                backward_head(dqkv + at.qkv, share + table_at(bias, h), dy + at.y, y + at.y, lse + at.lse, qkv + at.qkv,
                              (size_t)H * D, D, &c, next);
            }
        int threads = omp_get_num_threads();
#pragma omp for schedule(static)
        for (size_t i = 0; i < size; i++)
            for (int t = 0; t < threads; t++) dtable[i] += workspace_of(t, slice)[i];
    }
}

/* == Sparse ======================================================================================================= */

/* The first or the second set of the pattern. */
static Scope sparse(const SparsePattern *p, int N, bool second) {
    SoftmaxSet set = p->fixed ? second ? SET_SUMMARY : SET_BLOCK : second ? SET_COLUMN : SET_NEAR;
    return (Scope){.N = N, .set = set, .stride = p->stride, .summary = p->summary};
}

/* Sets in which head h takes part; the second follows the first if the head uses both. */
static int sets_of(Scope sets[2], const SparsePattern *p, int h, int N, int H) {
    int count = 0;
    if (h < p->first) sets[count++] = sparse(p, N, false);
    if (h >= H - p->second) {
        sets[count] = sparse(p, N, true);
        sets[count].rest = count > 0;
        count++;
    }
    return count;
}

size_t sparse_attention_workspace(const SparsePattern *pattern, int N, int D) {
    Scope c = sparse(pattern, N, false);
    return workspace_for(&c, D, 0);
}

void sparse_attention_forward(real *y, float *lse, const real *qkv, const SparsePattern *pattern,
                              const AttentionShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++) {
            SoftmaxPlace at = place_of(b, h, N, H, D);
            Scope sets[2];
            int count = sets_of(sets, pattern, h, N, H);
            for (int i = 0; i < count; i++)
                forward_head(y + at.y, lse + at.lse, qkv + at.qkv, (size_t)H * D, D, &sets[i], 0, N);
        }
}

void sparse_attention_backward(real *dqkv, const real *dy, const real *y, const float *lse, const real *qkv,
                               const SparsePattern *pattern, const AttentionShape *shape) {
    int B = shape->B, N = shape->N, H = shape->H, D = shape->D;
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++) {
            SoftmaxPlace at = place_of(b, h, N, H, D);
            Scope sets[2];
            int count = sets_of(sets, pattern, h, N, H);
            for (int i = 0; i < count; i++)
                backward_head(dqkv + at.qkv, NULL, dy + at.y, y + at.y, lse + at.lse, qkv + at.qkv, (size_t)H * D, D,
                              &sets[i], kernels_workspace(backward_floats(&sets[i], D)));
        }
}
