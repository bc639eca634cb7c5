/* Causal softmax attention of the Sparse Transformer (Child et al. 2019), over all keys up to the query or over a
 * sparse set of them, forward, backward, and one step of sampling with a cache of keys and values. */
#ifndef VIT_KERNELS_SOFTMAX_CAUSAL_ATTENTION_H
#define VIT_KERNELS_SOFTMAX_CAUSAL_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/tokens/grid.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* == Who sees whom ================================================================================================ */

/* The keys j <= i of query i; l is the stride, o = i mod l, w the window, c the summaries of a block, and v the head's
 * sub-block, which is the head modulo `subblocks`.
 *   dense     all of them
 *   window    i - w < j
 *   column    (i - j) mod l = 0
 *   strided   column, or i - l < j, whatever w is
 *   block     j div l = i div l
 *   summary   l - c (v+1) <= j mod l < l - c v, or j = i: without j = i the first tokens would have no key
 *   fixed     block, or a summary */
typedef enum {
    CAUSAL_DENSE,
    CAUSAL_WINDOW,
    CAUSAL_COLUMN,
    CAUSAL_STRIDED,
    CAUSAL_BLOCK,
    CAUSAL_SUMMARY,
    CAUSAL_FIXED,
    CAUSAL_SETS
} CausalSet;

/* Heads 0 .. split-1 have the set `first`, the others `second`.  Requires window, stride, summary, subblocks >= 1 and
 * summary * subblocks <= stride where the sets in use read them; the stride may be larger than N. */
typedef struct {
    CausalSet first, second;
    int split; /* at least H: all heads have the first set */
    int window, stride, summary, subblocks;
} CausalPattern;

GRID_INLINE CausalSet causal_set(const CausalPattern *p, int h) { return h < p->split ? p->first : p->second; }

/* The first of the summaries in a block, and the first token after them, where the next sub-block begins. */
GRID_INLINE int causal_summary_end(const CausalPattern *p, int h) {
    return p->stride - p->summary * (h % p->subblocks);
}
GRID_INLINE int causal_summary_first(const CausalPattern *p, int h) { return causal_summary_end(p, h) - p->summary; }

GRID_INLINE bool causal_is_summary(const CausalPattern *p, int h, int i) {
    int o = i % p->stride;
    return o >= causal_summary_first(p, h) && o < causal_summary_end(p, h);
}

/* How many summaries there are among the tokens before i. */
GRID_INLINE int causal_summaries(const CausalPattern *p, int h, int i) {
    int o = i % p->stride - causal_summary_first(p, h);
    return i / p->stride * p->summary + (o < 0 ? 0 : o < p->summary ? o : p->summary);
}

GRID_INLINE bool causal_sees(const CausalPattern *p, int h, int i, int j) {
    CausalSet set = causal_set(p, h);
    int l = p->stride;
    if (j > i) return false;
    if (set == CAUSAL_DENSE) return true;
    if (set == CAUSAL_WINDOW) return i - j < p->window;
    if (set == CAUSAL_COLUMN) return (i - j) % l == 0;
    if (set == CAUSAL_STRIDED) return i - j < l || (i - j) % l == 0;
    if (set == CAUSAL_BLOCK) return j / l == i / l;
    if (set == CAUSAL_SUMMARY) return j == i || causal_is_summary(p, h, j);
    return j / l == i / l || causal_is_summary(p, h, j);
}

/* The number of keys of query i. */
GRID_INLINE int causal_keys(const CausalPattern *p, int h, int i) {
    CausalSet set = causal_set(p, h);
    int l = p->stride;
    if (set == CAUSAL_DENSE) return i + 1;
    if (set == CAUSAL_WINDOW) return i < p->window ? i + 1 : p->window;
    if (set == CAUSAL_COLUMN) return i / l + 1;
    if (set == CAUSAL_STRIDED) return (i < l ? i + 1 : l) + i / l;
    if (set == CAUSAL_BLOCK) return i % l + 1;
    if (set == CAUSAL_SUMMARY) return causal_summaries(p, h, i) + 1;
    return i % l + 1 + i / l * p->summary;
}

/* The number of pairs of a query and a key among N tokens, to which the cost of an operator on this head is
 * proportional. */
GRID_INLINE double causal_pairs(const CausalPattern *p, int h, int N) {
    double pairs = 0;
    for (int i = 0; i < N; i++) pairs += causal_keys(p, h, i);
    return pairs;
}

/* == Whole sequences ============================================================================================== */

/* Queries and keys may be narrower or wider than values.  The row strides are those of q, k and v, which may be parts
 * of one tensor; those of gradients are the same. */
typedef struct {
    int B, N, H;
    int Dk, Dv; /* of a head: of q and k, of v and y */
    int q_row, k_row, v_row;
} CausalShape;

typedef struct {
    const real *q, *k, *v; /* q, k [B,N,H,Dk], v [B,N,H,Dv], with their row strides */
} CausalInputs;
typedef struct {
    real *q, *k, *v; /* (=), laid out like the inputs */
} CausalGradients;

/* y_i = sum_j softmax_j(q_i.k_j / sqrt Dk) v_j over the keys of query i in head h, without an N x N matrix.  Only tiles
 * with a pair in the set take time.  Tokens after i do not change a bit of y_i.
 * y [B,N,H,Dv] real;  lse [B,H,N] float: log-sum-exp of each query's scaled scores (saved). */
void causal_attention_forward(real *y, float *lse, const CausalInputs *in, const CausalPattern *pattern,
                              const CausalShape *shape);
/* dy, y [B,N,H,Dv]. */
void causal_attention_backward(const CausalGradients *d, const real *dy, const real *y, const float *lse,
                               const CausalInputs *in, const CausalPattern *pattern, const CausalShape *shape);
/* The workspace is enough for both directions and grows linearly with N. */
size_t causal_attention_workspace(const CausalPattern *pattern, const CausalShape *shape);

/* == One token after the other ==================================================================================== */

/* The cache of a head, with the tokens that later ones can attend to: `rows` rows of k and of v.
 *   dense     row j is token j
 *   window    a ring: row j mod w
 *   column    column after column: token k of column o in row o m + k, with m = N/l, rounded up
 *   strided   the columns, followed by a ring of l
 *   block     row j mod l
 *   summary   summary s in row s; the token's own key has no row and is read from the input
 *   fixed     the block, followed by the summaries */
GRID_INLINE int causal_cache_rows(const CausalPattern *p, int h, int N) {
    CausalSet set = causal_set(p, h);
    int l = p->stride, m = set == CAUSAL_DENSE || set == CAUSAL_WINDOW ? 0 : (N + l - 1) / l;
    if (set == CAUSAL_DENSE) return N;
    if (set == CAUSAL_WINDOW) return p->window < N ? p->window : N;
    if (set == CAUSAL_COLUMN) return l * m;
    if (set == CAUSAL_STRIDED) return l * m + l;
    if (set == CAUSAL_BLOCK) return l;
    if (set == CAUSAL_SUMMARY) return m * p->summary;
    return l + m * p->summary;
}

/* The first row of head h, after the rows of the heads before it; h = H: the number of rows of all heads. */
GRID_INLINE size_t causal_cache_first(const CausalPattern *p, int h, int N) {
    size_t rows = 0;
    for (int i = 0; i < h; i++) rows += (size_t)causal_cache_rows(p, i, N);
    return rows;
}

/* The rows to which token i's k and v are written; returns their number, 0 to 2. */
GRID_INLINE int causal_cache_slots(int rows[2], const CausalPattern *p, int h, int i, int N) {
    CausalSet set = causal_set(p, h);
    int l = p->stride, m = (N + l - 1) / l, count = 0;
    bool summary = set == CAUSAL_SUMMARY || set == CAUSAL_FIXED;
    if (set == CAUSAL_DENSE) rows[count++] = i;
    if (set == CAUSAL_WINDOW) rows[count++] = i % causal_cache_rows(p, h, N);
    if (set == CAUSAL_COLUMN || set == CAUSAL_STRIDED) rows[count++] = i % l * m + i / l;
    if (set == CAUSAL_STRIDED) rows[count++] = l * m + i % l;
    if (set == CAUSAL_BLOCK || set == CAUSAL_FIXED) rows[count++] = i % l;
    if (summary && causal_is_summary(p, h, i))
        rows[count++] = (set == CAUSAL_FIXED ? l : 0) + causal_summaries(p, h, i);
    return count;
}

/* The runs of rows with the keys of token i, after it was written; returns their number, 1 or 2. */
typedef struct {
    int first, count;
} CausalRows;
GRID_INLINE int causal_cache_runs(CausalRows runs[2], const CausalPattern *p, int h, int i, int N) {
    CausalSet set = causal_set(p, h);
    int l = p->stride, m = (N + l - 1) / l, w = p->window < N ? p->window : N;
    runs[0].first = runs[1].first = runs[1].count = 0;
    runs[0].count = i + 1;
    if (set == CAUSAL_WINDOW) runs[0].count = i < w ? i + 1 : w;
    if (set == CAUSAL_BLOCK || set == CAUSAL_FIXED) runs[0].count = i % l + 1;
    if (set == CAUSAL_SUMMARY) runs[0].count = causal_summaries(p, h, i + 1);
    if (set == CAUSAL_COLUMN) runs[0].first = i % l * m;
    if (set == CAUSAL_COLUMN) runs[0].count = i / l + 1;
    if (set == CAUSAL_STRIDED) { /* the ring, and the column without its last entry */
        runs[0].first = l * m;
        runs[0].count = i < l ? i + 1 : l;
        runs[1].first = i % l * m;
        runs[1].count = i / l;
    }
    if (set == CAUSAL_FIXED) {
        runs[1].first = l;
        runs[1].count = i / l * p->summary;
    }
    return set == CAUSAL_STRIDED || set == CAUSAL_FIXED ? 2 : 1;
}

/* Is token i's own key read from the input, because no row of the cache has it? */
GRID_INLINE bool causal_reads_own(const CausalPattern *p, int h, int i) {
    return causal_set(p, h) == CAUSAL_SUMMARY && !causal_is_summary(p, h, i);
}

typedef struct {
    real *k, *v; /* [B,R,Dk], [B,R,Dv] with R = causal_cache_first(pattern, H, N) */
} CausalCache;

/* Token i's y, as causal_attention_forward would compute it, after k and v of token i were written to the cache, which
 * has those of the tokens before it.  N is the largest number of tokens of a sequence, 0 <= i < N.
 * y [B,H,Dv] real;  q, k [B,H,Dk], v [B,H,Dv] of this token, with their row strides from sequence to sequence. */
void causal_attention_step(real *y, const CausalCache *cache, const CausalInputs *in, const CausalPattern *pattern,
                           const CausalShape *shape, int i);
/* Fills the cache with tokens 0 .. count-1, as the steps 0 .. count-1 would.  Reads in's k and v [B,count,H,.], which
 * begin a sequence of at most N tokens. */
void causal_cache_fill(const CausalCache *cache, const CausalInputs *in, const CausalPattern *pattern,
                       const CausalShape *shape, int count);

#ifdef __cplusplus
}
#endif

#endif
