/* Sums over keys that are weighted by relative position: LiSA's, RSA's and lambda attention's. */
#ifndef VIT_KERNELS_OFFSETS_PATTERNS_H
#define VIT_KERNELS_OFFSETS_PATTERNS_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/offsets/offsets.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* E patterns, each with a weight for every relative position t(i,j), of which there are T = offsets_count; for H heads
 * of D channels. */
typedef struct {
    Offsets offsets;
    int E, H, D;
    bool per_channel; /* wa has a weight for each channel, otherwise one for all */
} Patterns;

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

/* Estimated seconds on this device of collecting, spreading and their gradients for one image and one head, with
 * constants measured by tests/bench/bench_lisa.c. */
double patterns_cost(const Patterns *patterns);

#ifdef __cplusplus
}
#endif

#endif
