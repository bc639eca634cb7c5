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
 * y [B,N,H,D] real;  s [B,H,E,N] real (saved);  qk [B,N,2,H,D]: q^ and k^;  qkv [B,N,3,H,D], only v read.
 * Backward: dqkv (=) in its v third, q and k left as they are;  dqk [B,N,2,H,D] (=).
 * Two algorithms compute the same function:
 *   dense   over all pairs of tokens: S with the table, then a few rows at a time of the matrix
 *           P[i,j] = sum_e S[i,e] wb[t(i,j),e];
 *   fft     only with per_channel, for circles and tori: the sums over j are circular convolutions, computed as
 *           products of discrete Fourier transforms. */
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

/* Estimated seconds of forward and backward for one image and one head on this device, with constants measured by
 * tests/bench/bench_lisa.c.  Infinite if the algorithm cannot be used: fft for offsets other than circles and tori, or for
 * more tokens than its tables have room for. */
double lisa_dense_cost(const Patterns *patterns);
double lisa_fft_cost(const Patterns *patterns);

/* An entry of a table of algorithms: LISA_ALGORITHM(fft). */
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
 * The work grows with N^2, but no N x N matrix is stored.  Local offsets are not supported.  Head h of token n begins
 * at element n x_row + h D of q and y, n s_row + h E of s, and n k_row + h D of k and v; gradients are laid out like
 * their tensors. */
typedef struct {
    Patterns patterns;
    int x_row, s_row, k_row;
    const float *w, *base; /* [T,D,E], or [T,E] unless per_channel;  [D,E], or NULL for zero */
} PatternSums;
typedef struct {
    float *w, *base; /* (+=);  base may be NULL */
} PatternSumsGradients;
void patterns_collect_forward(real *s, const real *q, const real *k, const PatternSums *sums, int B);
/* dq (=);  dk (=) the gradient plus add;  add: NULL, or laid out like dk, and then it may be dk. */
void patterns_collect_backward(real *dq, real *dk, const real *add, const PatternSumsGradients *d, const real *ds,
                               const real *q, const real *k, const PatternSums *sums, int B);
void patterns_spread_forward(real *y, const real *s, const real *v, const PatternSums *sums, int B);
/* ds (=);  dv (=) the gradient plus add, as above. */
void patterns_spread_backward(real *ds, real *dv, const real *add, const PatternSumsGradients *d, const real *dy,
                              const real *s, const real *v, const PatternSums *sums, int B);
size_t patterns_workspace(const Patterns *patterns, int B);

#ifdef __cplusplus
}
#endif

#endif
