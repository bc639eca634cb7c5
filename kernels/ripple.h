/* Ripple attention: vicinal groups, their weights, and the algorithms. */
#ifndef VIT_KERNELS_RIPPLE_H
#define VIT_KERNELS_RIPPLE_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/attention_shape.h"
#include "kernels/grid.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { RIPPLE_MAX_GROUPS = 256 };

/* Vicinal groups: token m belongs to group r of query n when bound[r] <= max(|xn - xm|, |yn - ym|) < bound[r+1].
 * bound[0] = 0; the last group has no upper bound.  `ripple` with r_max 4 is G = 5, bound = 0 1 2 3 4. */
typedef struct {
    Grid grid; /* N = rows*columns */
    int G;
    int bound[RIPPLE_MAX_GROUPS];
} RippleRings;

/* What the spatial weights are made from: R logits for every token and head, o_r = <sticks[h,r], wp v + bp>.
 * wp [D,D];  bp [D];  sticks [H,R,D]. */
typedef struct {
    int R;
    bool per_head; /* a projection for each head: wp [H,D,D], bp [H,D] */
    const float *wp, *bp, *sticks;
} RippleSticks;
/* (+=), in the shapes of the weights. */
typedef struct {
    float *wp, *bp, *sticks;
} RippleSticksGradients;

/* Spatial weights by stick breaking (the paper's equation 5 with zero-based sticks).  For every token and head
 *   s_r = 1/(1 + (R - r) exp(-o_r)),
 *   alpha_r = s_r prod_{r'<r} (1 - s_r') for r < R, alpha_R = prod (1 - s_r).
 * tau > 0: from the first r^ with 1 - sum_{r<=r^} alpha_r < tau on, the groups r^..R share what is left equally.
 * truncate: alpha_R = 0 after that. */
typedef struct {
    float tau;
    bool truncate;
} StickBreaking;
/* alpha [B,N,H,R+1] float;  o [B,N,H,R] float (saved);  qkv [B,N,3,H,D], only v read. */
void stick_breaking_forward(float *alpha, float *o, const real *qkv, const RippleSticks *sticks,
                            const StickBreaking *rule, const AttentionShape *shape);
/* dqkv [B,N,3,H,D] (+=) in its v third: v's second gradient, so this runs after the attention's backward;
 * dalpha [B,N,H,R+1].  r^ counts as a constant. */
void stick_breaking_backward(real *dqkv, const RippleSticksGradients *d, const float *dalpha, const float *alpha,
                             const float *o, const real *qkv, const RippleSticks *sticks, const StickBreaking *rule,
                             const AttentionShape *shape);
/* Weights as a plain softmax over the logits, one for each group: R = G.  alpha [B,N,H,G] float (saved). */
void softmax_weights_forward(float *alpha, const real *qkv, const RippleSticks *sticks, const AttentionShape *shape);
/* As stick_breaking_backward. */
void softmax_weights_backward(real *dqkv, const RippleSticksGradients *d, const float *dalpha, const float *alpha,
                              const real *qkv, const RippleSticks *sticks, const AttentionShape *shape);
/* alpha[row] = weights for every row.  alpha [rows,G] float;  weights host [G]. */
void fixed_weights(float *alpha, const float *weights, size_t rows, int G);
size_t ripple_weights_workspace(int H, int D, int G);

/* What ripple attention reads, and the gradients of it. */
typedef struct {
    const float *alpha; /* [B,N,H,G] */
    const real *phi;    /* [B,N,2,H,F] */
    const real *qkv;    /* [B,N,3,H,D], only v read */
} RippleInputs;
typedef struct {
    float *alpha; /* (=) */
    real *phi;    /* (=) */
    real *qkv;    /* (=) in its v third only */
} RippleGradients;
/* y_n = sum_m alpha_g(n,m)(n) (phi(q_n).phi(k_m)) v_m / den_n, den_n = sum_m alpha_g(n,m)(n) phi(q_n).phi(k_m) + 1e-6.
 * y [B,N,H,D] real;  den [B,N,H] float (saved).
 * Four algorithms, the same numbers:
 *   naive   group by group, query by query: the reference;
 *   dense   every pair once, tile by tile, the weight looked up by distance;
 *   window  the last group's weight on everything (linear attention) plus a correction inside the window;
 *   sat     the paper's Algorithm 1: summed-area tables of phi(k) v^T and phi(k). */
#define RIPPLE_FORWARD(algorithm)                                                                                    \
    void ripple_##algorithm##_forward(real *y, float *den, const RippleInputs *in, const RippleRings *rings,         \
                                      const FeatureShape *shape)
#define RIPPLE_BACKWARD(algorithm)                                                                                   \
    void ripple_##algorithm##_backward(const RippleGradients *din, const real *dy, const real *y, const float *den,  \
                                       const RippleInputs *in, const RippleRings *rings, const FeatureShape *shape)
RIPPLE_FORWARD(naive);
RIPPLE_BACKWARD(naive);
size_t ripple_naive_workspace(const RippleRings *rings, int D, int F);
RIPPLE_FORWARD(dense);
RIPPLE_BACKWARD(dense);
size_t ripple_dense_workspace(const RippleRings *rings, int D, int F);
RIPPLE_FORWARD(window);
RIPPLE_BACKWARD(window);
size_t ripple_window_workspace(const RippleRings *rings, int D, int F);
RIPPLE_FORWARD(sat);
RIPPLE_BACKWARD(sat);
size_t ripple_sat_workspace(const RippleRings *rings, int D, int F);

/* The paper's Appendix A: softmax inside each vicinal group, the groups mixed.  A reference for small N: N^2 work.
 * y_n = sum_r alpha_r(n) sum_{m: g(n,m)=r} exp(q_n.k_m / sqrt D - lse_r(n)) v_m; a group without tokens adds nothing.
 * y [B,N,H,D] real;  lse [B,N,H,G] float: log-sum-exp of a group's scaled scores (saved);  alpha [B,N,H,G]. */
void ripple_explicit_forward(real *y, float *lse, const float *alpha, const real *qkv, const RippleRings *rings,
                             const AttentionShape *shape);
/* dqkv [B,N,3,H,D] (=);  dalpha [B,N,H,G] (=). */
void ripple_explicit_backward(real *dqkv, float *dalpha, const real *dy, const float *lse, const float *alpha,
                              const real *qkv, const RippleRings *rings, const AttentionShape *shape);
size_t ripple_explicit_workspace(const RippleRings *rings, int D);

/* Estimated seconds of forward and backward for one image and one head on this device: what `auto` compares.
 * The constants come from tests/bench_ripple.c; docs/performance.md has the table. */
double ripple_naive_cost(const RippleRings *rings, int D, int F);
double ripple_dense_cost(const RippleRings *rings, int D, int F);
double ripple_window_cost(const RippleRings *rings, int D, int F);
double ripple_sat_cost(const RippleRings *rings, int D, int F);

/* For tables of them: RIPPLE_ALGORITHM(dense). */
typedef struct {
    const char *name;
    __typeof__(ripple_dense_forward) *forward;
    __typeof__(ripple_dense_backward) *backward;
    __typeof__(ripple_dense_workspace) *workspace;
    __typeof__(ripple_dense_cost) *cost;
} RippleAlgorithm;
#define RIPPLE_ALGORITHM(name)                                                                                       \
    { #name, ripple_##name##_forward, ripple_##name##_backward, ripple_##name##_workspace, ripple_##name##_cost }

#ifdef __cplusplus
}
#endif

#endif
