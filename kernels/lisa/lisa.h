/* LiSA: lightweight structure-aware attention. */
#ifndef VIT_KERNELS_LISA_LISA_H
#define VIT_KERNELS_LISA_LISA_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/offsets/patterns.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

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
/* `most`: enough for any grid with at most as many tokens.  A GPU has no such bound: where grids change, the caller
 * reserves (kernels_reserve) the workspace for each batch's grid. */
size_t lisa_fft_workspace(const Patterns *patterns, int B, bool most);

/* Estimated seconds of forward and backward for one image and one head on this device, with constants measured by
 * tests/bench/bench_lisa.c.  Infinite for offsets other than circles and tori, and for more tokens than the tables of
 * transforms support. */
double lisa_fft_cost(const Patterns *patterns);

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

static inline size_t lisa_dense_workspace(const Patterns *patterns, int B, bool most) {
    (void)most;
    Patterns shared = *patterns;
    shared.per_channel = false;
    size_t collecting = patterns_workspace(patterns, B), spreading = patterns_workspace(&shared, B);
    return collecting > spreading ? collecting : spreading;
}

static inline double lisa_dense_cost(const Patterns *patterns) { return patterns_cost(patterns); }

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
    {                                                                                                                \
        #name, lisa_##name##_forward, lisa_##name##_backward, lisa_##name##_workspace, lisa_##name##_cost,           \
            lisa_##name##_by_token                                                                                   \
    }

#ifdef __cplusplus
}
#endif

#endif
