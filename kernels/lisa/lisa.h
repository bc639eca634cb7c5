/* Structure-aware attention: LiSA, and the RSA and multiplicative position weights that it is compared with. */
#ifndef VIT_KERNELS_LISA_LISA_H
#define VIT_KERNELS_LISA_LISA_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/offsets/offsets.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    size_t n;  /* tokens */
    int parts; /* 2: q and k, or 3: q, k and v */
    int H, D;
} UnitLengths;

/* x^ = x / max(|x|, 1e-6) for every head of q and k, or of q, k and v.
 * unit [n,parts,H,D] real: x^ (also read by backward);  inverse [n,parts,H] float: 1 / max(|x|, 1e-6) (saved);
 * qkv [n,3,H,D]. */
void l2_normalize_forward(real *unit, float *inverse, const real *qkv, const UnitLengths *shape);
/* dqkv [n,3,H,D] (=) in its first `parts` thirds, the rest left as it is;  dunit, unit [n,parts,H,D].  With three parts
 * dqkv may be dunit. */
void l2_normalize_backward(real *dqkv, const real *dunit, const real *unit, const float *inverse,
                           const UnitLengths *shape);

/* E patterns, each with a weight for every relative position t(i,j), of which there are T = offsets_count; for H heads
 * of D channels. */
typedef struct {
    Offsets offsets;
    int E, H, D;
    bool per_channel; /* wa has a weight for every channel, otherwise one for all */
} Patterns;
typedef struct {
    Patterns patterns;
    const float *wa, *wb, *b; /* [T,D,E], or [T,E] unless per_channel;  [T,E];  [D,E] */
} LisaTables;
typedef struct {
    float *wa, *wb, *b; /* (+=) */
} LisaGradients;

/* S[i,e] = sum_j sum_c wa[t(i,j),c,e] q^[i,c] k^[j,c],  y[i,c] = sum_e S[i,e] (b[c,e] + sum_j wb[t(i,j),e] v[j,c]).
 * y [B,N,H,D] real;  s real (saved), in the algorithm's own layout;  qk [B,N,2,H,D]: q^ and k^;  qkv [B,N,3,H,D], only
 * v read.
 * Backward: dqkv (=) in its v third, q and k left as they are;  dqk [B,N,2,H,D] (=);  ds [B,N,H,E], memory for the
 * gradient of S, which only dense needs.
 * Two algorithms compute the same function:
 *   dense   over all pairs of tokens: collects S, then spreads it (patterns_*);  s [B,N,H,E];
 *   fft     only with per_channel, for circles and tori: the sums over j are circular convolutions, computed as
 *           products of discrete Fourier transforms;  s [B,H,E,N]. */
#define LISA_FORWARD(name) void name(real *y, real *s, const real *qk, const real *qkv, const LisaTables *lisa, int B)
#define LISA_BACKWARD(name)                                                                                          \
    void name(real *dqkv, real *dqk, float *ds, const LisaGradients *d, const real *dy, const real *s,               \
              const real *qk, const real *qkv, const LisaTables *lisa, int B)
LISA_FORWARD(lisa_fft_forward);
LISA_BACKWARD(lisa_fft_backward);
size_t lisa_fft_workspace(const Patterns *patterns, int B);

/* Estimated seconds of forward and backward for one image and one head on this device, with constants measured by
 * tests/bench/bench_lisa.c.  Infinite if the algorithm cannot be used: fft for offsets other than circles and tori, or for
 * more tokens than its tables have room for. */
double lisa_dense_cost(const Patterns *patterns);
double lisa_fft_cost(const Patterns *patterns);

typedef struct {
    Offsets offsets;
    int tables; /* H: a table for each head; 1: all heads share one */
    int H, D;
} WeightedAttention;
/* y_i = sum_j (q^_i.k^_j) r[t(i,j),h] v_j: multiplicative position weights in place of the softmax.
 * y [B,N,H,D] real;  qk [B,N,2,H,D]: q^ and k^;  qkv [B,N,3,H,D], only v read;  r [T,tables]. */
void weighted_attention_forward(real *y, const real *qk, const real *qkv, const float *r,
                                const WeightedAttention *shape, int B);
/* dqkv (=) in its v third, q and k left as they are;  dqk [B,N,2,H,D] (=);  dr [T,tables] (+=). */
void weighted_attention_backward(real *dqkv, real *dqk, float *dr, const real *dy, const real *qk, const real *qkv,
                                 const float *r, const WeightedAttention *shape, int B);
size_t weighted_attention_workspace(const WeightedAttention *shape, int B);

/* Sums over keys, weighted by relative position t(i,j), from D channels to E patterns (collect) and from E patterns to
 * D channels (spread), in each head:
 *   collect   s[i,e] = sum_c q[i,c] (base[c,e] + sum_j w[t(i,j),c,e] k[j,c])
 *   spread    y[i,c] = sum_e s[i,e] (base[c,e] + sum_j w[t(i,j),c,e] v[j,c])
 * The work grows with N^2, of local offsets with N; no N x N matrix is stored.  Head h of token n begins
 * at element n x_row + h D of q and y, n s_row + h E of s, and n k_row + h D of k and v; gradients are laid out like
 * their tensors. */
typedef struct {
    Patterns patterns;
    int x_row, s_row, k_row;
    const float *w, *base; /* [T,D,E], or [T,E] unless per_channel;  [D,E], or NULL for zero */
    bool float_ds;         /* the backward functions' ds is float, not real */
} PatternSums;
typedef struct {
    float *w, *base; /* (+=);  base may be NULL */
} PatternSumsGradients;
void patterns_collect_forward(real *s, const real *q, const real *k, const PatternSums *sums, int B);
/* dq (=);  dk (=) the gradient plus add;  add: NULL, or laid out like dk, and then it may be dk. */
void patterns_collect_backward(real *dq, real *dk, const real *add, const PatternSumsGradients *d, const void *ds,
                               const real *q, const real *k, const PatternSums *sums, int B);
void patterns_spread_forward(real *y, const real *s, const real *v, const PatternSums *sums, int B);
/* ds (=);  dv (=) the gradient plus add, as above. */
void patterns_spread_backward(void *ds, real *dv, const real *add, const PatternSumsGradients *d, const real *dy,
                              const real *s, const real *v, const PatternSums *sums, int B);
size_t patterns_workspace(const Patterns *patterns, int B);

/* == Dense LiSA: collect, then spread ============================================================================== */

static inline PatternSums lisa_collected(const LisaTables *lisa) {
    const Patterns *p = &lisa->patterns;
    PatternSums sums = {*p, 2 * p->H * p->D, p->H * p->E, 2 * p->H * p->D, lisa->wa, NULL, true};
    return sums;
}

static inline PatternSums lisa_spread(const LisaTables *lisa) {
    const Patterns *p = &lisa->patterns;
    PatternSums sums = {*p, p->H * p->D, p->H * p->E, 3 * p->H * p->D, lisa->wb, lisa->b, true};
    sums.patterns.per_channel = false;
    return sums;
}

static inline LISA_FORWARD(lisa_dense_forward) {
    PatternSums collected = lisa_collected(lisa), spread = lisa_spread(lisa);
    int M = lisa->patterns.H * lisa->patterns.D;
    patterns_collect_forward(s, qk, qk + M, &collected, B);
    patterns_spread_forward(y, s, qkv + 2 * M, &spread, B);
}

static inline LISA_BACKWARD(lisa_dense_backward) {
    PatternSums collected = lisa_collected(lisa), spread = lisa_spread(lisa);
    PatternSumsGradients of_wa = {d->wa, NULL}, of_wb = {d->wb, d->b};
    int M = lisa->patterns.H * lisa->patterns.D;
    patterns_spread_backward(ds, dqkv + 2 * M, NULL, &of_wb, dy, s, qkv + 2 * M, &spread, B);
    patterns_collect_backward(dqk, dqk + M, NULL, &of_wa, ds, qk, qk + M, &collected, B);
}

static inline size_t lisa_dense_workspace(const Patterns *patterns, int B) {
    Patterns shared = *patterns;
    shared.per_channel = false;
    size_t collecting = patterns_workspace(patterns, B), spreading = patterns_workspace(&shared, B);
    return collecting > spreading ? collecting : spreading;
}

enum { lisa_dense_by_token = 1, lisa_fft_by_token = 0 };

/* An entry of a table of algorithms: LISA_ALGORITHM(fft). */
typedef struct {
    const char *name;
    LISA_FORWARD((*forward));
    LISA_BACKWARD((*backward));
    __typeof__(lisa_fft_workspace) *workspace;
    __typeof__(lisa_fft_cost) *cost;
    bool s_by_token; /* s is [B,N,H,E], not [B,H,E,N] */
} LisaAlgorithm;
#define LISA_ALGORITHM(name)                                                                                         \
    { #name, lisa_##name##_forward, lisa_##name##_backward, lisa_##name##_workspace, lisa_##name##_cost, lisa_##name##_by_token }

#ifdef __cplusplus
}
#endif

#endif
