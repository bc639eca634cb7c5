/* Structure-aware attention: LiSA and what it comes from. */
#ifndef VIT_KERNELS_LISA_H
#define VIT_KERNELS_LISA_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/offsets.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    size_t n;  /* tokens */
    int parts; /* 2: q and k, or 3: q, k and v */
    int H, D;
} UnitLengths;

/* x^ = x / max(|x|, 1e-6) for x = q and k, or q, k and v, head by head.
 * unit [n,parts,H,D] real;  inverse [n,parts,H] float: what x was multiplied by (saved);  qkv [n,3,H,D]. */
void l2_normalize_forward(real *unit, float *inverse, const real *qkv, const UnitLengths *shape);
/* dqkv [n,3,H,D] (=) in its first parts, the others untouched;  dunit, unit [n,parts,H,D].  dqkv may be dunit where
 * there are three parts. */
void l2_normalize_backward(real *dqkv, const real *dunit, const real *unit, const float *inverse,
                           const UnitLengths *shape);

/* E patterns for each of the T = offsets_count relative positions t(i,j), for H heads of D channels; per_channel: wa
 * has one for every channel. */
typedef struct {
    Offsets offsets;
    int E, H, D;
    bool per_channel;
} Patterns;
typedef struct {
    Patterns patterns;
    const float *wa, *wb, *b; /* [T,D,E], or [T,E] unless per_channel;  [T,E];  [D,E] */
} LisaTables;
typedef struct {
    float *wa, *wb, *b; /* (+=) */
} LisaGradients;

/* S[i,e] = sum_j sum_c wa[t(i,j),c,e] q^[i,c] k^[j,c],  y[i,c] = sum_e S[i,e] (b[c,e] + sum_j wb[t(i,j),e] v[j,c]).
 * y [B,N,H,D] real;  s [B,H,E,N] real (saved);  qk [B,N,2,H,D];  qkv [B,N,3,H,D], only v read.
 * Backward: dqkv (=) in its v third only;  dqk [B,N,2,H,D] (=).
 * Two algorithms, the same numbers:
 *   dense   every pair of tokens: S by table, then the matrix P[i,j] = sum_e S[i,e] wb[t(i,j),e] a few rows at a time;
 *   fft     circles and tori only, and per_channel: the sums over j are products of discrete Fourier transforms. */
#define LISA_FORWARD(name) void name(real *y, real *s, const real *qk, const real *qkv, const LisaTables *lisa, int B)
#define LISA_BACKWARD(name)                                                                                          \
    void name(real *dqkv, real *dqk, const LisaGradients *d, const real *dy, const real *s, const real *qk,          \
              const real *qkv, const LisaTables *lisa, int B)
LISA_FORWARD(lisa_dense_forward);
LISA_BACKWARD(lisa_dense_backward);
size_t lisa_dense_workspace(const Patterns *patterns, int B);
LISA_FORWARD(lisa_fft_forward);
LISA_BACKWARD(lisa_fft_backward);
size_t lisa_fft_workspace(const Patterns *patterns, int B);

/* Estimated seconds of forward and backward for one image and one head on this device (tests/bench_lisa.c). Infinite
 * where the algorithm has no answer: fft for other offsets than circles and tori,
 * or for more tokens than it has room for. */
double lisa_dense_cost(const Patterns *patterns);
double lisa_fft_cost(const Patterns *patterns);

/* For tables of them: LISA_ALGORITHM(fft). */
typedef struct {
    const char *name;
    LISA_FORWARD((*forward));
    LISA_BACKWARD((*backward));
    __typeof__(lisa_fft_workspace) *workspace;
    __typeof__(lisa_fft_cost) *cost;
} LisaAlgorithm;
#define LISA_ALGORITHM(name)                                                                                         \
    { #name, lisa_##name##_forward, lisa_##name##_backward, lisa_##name##_workspace, lisa_##name##_cost }

typedef struct {
    Offsets offsets;
    int tables; /* H, or 1 that the heads share */
    int H, D;
} WeightedAttention;
/* y_i = sum_j (q^_i.k^_j) r[t(i,j),h] v_j: multiplicative position weights in place of the softmax.
 * y [B,N,H,D] real;  r [T,tables]. */
void weighted_attention_forward(real *y, const real *qk, const real *qkv, const float *r,
                                const WeightedAttention *shape, int B);
/* dqkv (=) in its v third only;  dqk [B,N,2,H,D] (=);  dr [T,tables] (+=). */
void weighted_attention_backward(real *dqkv, real *dqk, float *dr, const real *dy, const real *qk, const real *qkv,
                                 const float *r, const WeightedAttention *shape, int B);
size_t weighted_attention_workspace(const WeightedAttention *shape, int B);

/* Sums over keys by relative position t(i,j), collected into E patterns and spread from them, head by head; D channels:
 *   collect   s[i,e] = sum_c q[i,c] (base[c,e] + sum_j w[t(i,j),c,e] k[j,c])
 *   spread    y[i,c] = sum_e s[i,e] (base[c,e] + sum_j w[t(i,j),c,e] v[j,c])
 * N^2 work, but no N x N in memory.  Any offsets but local ones.  Token n of head h begins at n x_row + h D in q and y,
 * at n s_row + h E in s, at n k_row + h D in k and v, and in their gradients alike. */
typedef struct {
    Patterns patterns;
    int x_row, s_row, k_row;
    const float *w, *base; /* [T,D,E], or [T,E] for all channels unless per_channel;  [D,E], or NULL: zero */
} PatternSums;
typedef struct {
    float *w, *base; /* (+=), base or NULL */
} PatternSumsGradients;
void patterns_collect_forward(real *s, const real *q, const real *k, const PatternSums *sums, int B);
/* dq (=);  dk (=) add + the gradient, add like dk, may be dk, or NULL. */
void patterns_collect_backward(real *dq, real *dk, const real *add, const PatternSumsGradients *d, const real *ds,
                               const real *q, const real *k, const PatternSums *sums, int B);
void patterns_spread_forward(real *y, const real *s, const real *v, const PatternSums *sums, int B);
/* ds (=);  dv (=) add + the gradient, as above. */
void patterns_spread_backward(real *ds, real *dv, const real *add, const PatternSumsGradients *d, const real *dy,
                              const real *s, const real *v, const PatternSums *sums, int B);
size_t patterns_workspace(const Patterns *patterns, int B);

#ifdef __cplusplus
}
#endif

#endif
