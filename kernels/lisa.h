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

/* x^ = x / max(|x|, 1e-6) for x = q and k, or q, k and v: parts 2 or 3, head by head.
 * unit [n,parts,H,D] real;  inverse [n,parts,H] float: what x was multiplied by (saved);  qkv [n,3,H,D]. */
void l2_normalize_forward(real *unit, float *inverse, const real *qkv, size_t n, int parts, int H, int D);
/* dqkv [n,3,H,D] (=) in its first parts, the others untouched;  dunit, unit [n,parts,H,D].  dqkv may be dunit where
 * there are three parts. */
void l2_normalize_backward(real *dqkv, const real *dunit, const real *unit, const float *inverse, size_t n, int parts,
                           int H, int D);

/* E patterns for each of the T = offsets_count relative positions t(i,j); per_channel: wa has one for every channel. */
typedef struct {
    Offsets offsets;
    int E;
    bool per_channel;
} Patterns;

/* S[i,e] = sum_j sum_c wa[t(i,j),c,e] q^[i,c] k^[j,c],  y[i,c] = sum_e S[i,e] (b[c,e] + sum_j wb[t(i,j),e] v[j,c]).
 * y [B,N,H,D] real;  s [B,H,E,N] real (saved);  qk [B,N,2,H,D];  qkv [B,N,3,H,D], only v read;
 * wa [T,D,E], or [T,E] unless per_channel;  wb [T,E];  b [D,E].
 * Backward: dqkv (=) in its v third only;  dqk [B,N,2,H,D] (=);  dwa, dwb, db (+=).
 * Two algorithms, the same numbers:
 *   dense   every pair of tokens: S by table, then the matrix P[i,j] = sum_e S[i,e] wb[t(i,j),e] a few rows at a time;
 *   fft     circles and tori only, and per_channel: the sums over j are products of discrete Fourier transforms. */
#define LISA_FORWARD(name)                                                                                           \
    void name(real *y, real *s, const real *qk, const real *qkv, const float *wa, const float *wb, const float *b,   \
              const Patterns *patterns, int B, int H, int D)
#define LISA_BACKWARD(name)                                                                                          \
    void name(real *dqkv, real *dqk, float *dwa, float *dwb, float *db, const real *dy, const real *s,               \
              const real *qk, const real *qkv, const float *wa, const float *wb, const float *b,                     \
              const Patterns *patterns, int B, int H, int D)
LISA_FORWARD(lisa_dense_forward);
LISA_BACKWARD(lisa_dense_backward);
size_t lisa_dense_workspace(const Patterns *patterns, int B, int H, int D);
LISA_FORWARD(lisa_fft_forward);
LISA_BACKWARD(lisa_fft_backward);
size_t lisa_fft_workspace(const Patterns *patterns, int B, int H, int D);

/* Estimated seconds of forward and backward for one image and one head on this device (tests/bench_lisa.c). Infinite
 * where the algorithm has no answer: fft for other offsets than circles and tori,
 * or for more tokens than it has room for. */
double lisa_dense_cost(const Patterns *patterns, int D);
double lisa_fft_cost(const Patterns *patterns, int D);

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

/* y_i = sum_j (q^_i.k^_j) r[t(i,j),h] v_j: multiplicative position weights in place of the softmax.
 * y [B,N,H,D] real;  r [T,tables], tables = 1 (shared by the heads) or H. */
void weighted_attention_forward(real *y, const real *qk, const real *qkv, const float *r, const Offsets *offsets,
                                int tables, int B, int H, int D);
/* dqkv (=) in its v third only;  dqk [B,N,2,H,D] (=);  dr [T,tables] (+=). */
void weighted_attention_backward(real *dqkv, real *dqk, float *dr, const real *dy, const real *qk, const real *qkv,
                                 const float *r, const Offsets *offsets, int tables, int B, int H, int D);
size_t weighted_attention_workspace(const Offsets *offsets, int tables, int B, int H, int D);

/* Sums over keys by relative position t(i,j), collected into E patterns and spread from them, head by head; D channels:
 *   collect   s[i,e] = sum_c q[i,c] (base[c,e] + sum_j w[t(i,j),c,e] k[j,c])
 *   spread    y[i,c] = sum_e s[i,e] (base[c,e] + sum_j w[t(i,j),c,e] v[j,c])
 * N^2 work, but no N x N in memory.  w [T,D,E], or [T,E] for all channels unless per_channel;  base [D,E], or NULL:
 * zero;  any offsets but local ones. */
typedef struct {
    int x, z, k; /* from one token to the next: of q, y and their gradients; of s; of k and v */
} PatternRows;
/* Token n of head h begins at n rows.x + h D in q and y, at n rows.z + h E in s, at n rows.k + h D in k and v. */
void patterns_collect_forward(real *s, const real *q, const real *k, const float *w, const float *base,
                              const Patterns *patterns, const PatternRows *rows, int B, int H, int D);
/* dq (=);  dk (=) add + the gradient, add like dk, may be dk, or NULL;  dw (+=);  dbase (+=) or NULL. */
void patterns_collect_backward(real *dq, real *dk, const real *add, float *dw, float *dbase, const real *ds,
                               const real *q, const real *k, const float *w, const float *base,
                               const Patterns *patterns, const PatternRows *rows, int B, int H, int D);
void patterns_spread_forward(real *y, const real *s, const real *v, const float *w, const float *base,
                             const Patterns *patterns, const PatternRows *rows, int B, int H, int D);
/* ds (=);  dv (=) add + the gradient, as above;  dw (+=);  dbase (+=) or NULL. */
void patterns_spread_backward(real *ds, real *dv, const real *add, float *dw, float *dbase, const real *dy,
                              const real *s, const real *v, const float *w, const float *base,
                              const Patterns *patterns, const PatternRows *rows, int B, int H, int D);
size_t patterns_workspace(const Patterns *patterns, int B, int H, int D);

#ifdef __cplusplus
}
#endif

#endif
