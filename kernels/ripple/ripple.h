/* Ripple attention (Zheng et al. 2021): vicinal groups, their spatial weights, and the algorithms. */
#ifndef VIT_KERNELS_RIPPLE_RIPPLE_H
#define VIT_KERNELS_RIPPLE_RIPPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/softmax/attention_shape.h"
#include "kernels/tokens/grid.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { RIPPLE_MAX_GROUPS = 256 };

/* Vicinal groups: token m belongs to group r of query n if bound[r] <= distance < bound[r+1], where the distance is
 * max(|xn - xm|, |yn - ym|, ring_time |tn - tm|).  bound[0] is 0, and the last group has no upper bound.  For example,
 * r_max 4 gives G = 5 and bound = 0 1 2 3 4. */
typedef struct {
    Grid grid; /* N = frames*rows*columns */
    int G;
    int bound[RIPPLE_MAX_GROUPS];
    int ring_time; /* of clips; 0: time is ignored */
} RippleRings;

GRID_INLINE int ripple_distance(const RippleRings *rings, GridPlace a, GridPlace b) {
    int dt = (a.t < b.t ? b.t - a.t : a.t - b.t) * rings->ring_time, dy = a.y < b.y ? b.y - a.y : a.y - b.y;
    int dx = a.x < b.x ? b.x - a.x : a.x - b.x, within = dy > dx ? dy : dx;
    return dt > within ? dt : within;
}

/* The projection and the sticks that give R logits for every token and head: o_r = <sticks[h,r], wp v + bp>.
 * wp [D,D];  bp [D];  sticks [H,R,D]. */
typedef struct {
    int R;
    bool per_head; /* a projection for each head: wp [H,D,D], bp [H,D] */
    const float *wp, *bp, *sticks;
} RippleSticks;
/* Their gradients, (+=), in the same shapes. */
typedef struct {
    float *wp, *bp, *sticks;
} RippleSticksGradients;

/* Spatial weights by stick breaking (equation 5 of the paper, with sticks counted from 0).  For every token and head
 *   s_r = 1/(1 + (R - r) exp(-o_r)),
 *   alpha_r = s_r prod_{r'<r} (1 - s_r') for r < R,  alpha_R = prod_{r'<R} (1 - s_r').
 * tau > 0: let r^ be the first group with 1 - sum_{r<=r^} alpha_r < tau; the groups r^ .. R then all get the mean of
 * their weights.
 * truncate: alpha_R is set to 0 afterwards. */
typedef struct {
    float tau;
    bool truncate;
} StickBreaking;
/* alpha [B,N,H,R+1] float;  o [B,N,H,R] float (saved);  qkv [B,N,3,H,D], only v read. */
void stick_breaking_forward(float *alpha, float *o, const real *qkv, const RippleSticks *sticks,
                            const StickBreaking *rule, const AttentionShape *shape);
/* dqkv [B,N,3,H,D] (+=) in its v third: adds to the gradient that the attention's backward pass wrote, so it must run
 * after that.  dalpha [B,N,H,R+1].  r^ is treated as a constant. */
void stick_breaking_backward(real *dqkv, const RippleSticksGradients *d, const float *dalpha, const float *alpha,
                             const float *o, const real *qkv, const RippleSticks *sticks, const StickBreaking *rule,
                             const AttentionShape *shape);
/* Spatial weights as a softmax over the logits, one logit for each group (R = G).  alpha [B,N,H,G] float (saved). */
void softmax_weights_forward(float *alpha, const real *qkv, const RippleSticks *sticks, const AttentionShape *shape);
/* Like stick_breaking_backward. */
void softmax_weights_backward(real *dqkv, const RippleSticksGradients *d, const float *dalpha, const float *alpha,
                              const real *qkv, const RippleSticks *sticks, const AttentionShape *shape);
/* The same weights for every token and head: alpha[row] = weights.  alpha [rows,G] float;  weights host [G]. */
void fixed_weights(float *alpha, const float *weights, size_t rows, int G);
size_t ripple_weights_workspace(int H, int D, int G);

/* Statistics of the spatial weights for the log.  Adds for every token and head, in units of RIPPLE_UNIT, to the sums
 *   [0]  the Jensen-Shannon divergence, in nats, between alpha / sum alpha and weights that halve from ring to ring
 *   [1]  1 if tau ended stick breaking, and
 *   [2]  1 if it did so after the first stick, so that all groups get the same weight.
 * Without o, where no sticks are broken, [1] and [2] stay as they are.  The sums are integers, so that the order of
 * addition does not change them.  They are spread over `parts` places, which the reader adds up.
 * sums [parts,3] (+=);  alpha [rows,G];  o [rows,G-1] or NULL. */
#define RIPPLE_UNIT (1.0 / (1 << 20))
void ripple_weights_measure(uint64_t *sums, int parts, const float *alpha, const float *o, float tau, size_t rows,
                            int G);

/* The inputs of ripple attention, and their gradients. */
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
/* y_n = sum_m a_nm v_m / den_n,  den_n = sum_m a_nm + 1e-6,  a_nm = alpha[n,g(n,m)] phi(q_n).phi(k_m), where g(n,m) is
 * the group of m around n.  y [B,N,H,D] real;  den [B,N,H] float (saved).
 * Three algorithms compute the same function:
 *   dense   all pairs of tokens, in tiles, with the weight looked up by distance;
 *   window  linear attention with the last group's weight for all tokens, plus a correction for the tokens near the
 *           query that belong to other groups;
 *   sat     Algorithm 1 of the paper: summed-area tables of phi(k) v^T and phi(k), for clips of volumes.
 * Only sat supports clips. */
#define RIPPLE_FORWARD(algorithm)                                                                                    \
    void ripple_##algorithm##_forward(real *y, float *den, const RippleInputs *in, const RippleRings *rings,         \
                                      const FeatureShape *shape)
#define RIPPLE_BACKWARD(algorithm)                                                                                   \
    void ripple_##algorithm##_backward(const RippleGradients *din, const real *dy, const real *y, const float *den,  \
                                       const RippleInputs *in, const RippleRings *rings, const FeatureShape *shape)
RIPPLE_FORWARD(dense);
RIPPLE_BACKWARD(dense);
size_t ripple_dense_workspace(const RippleRings *rings, int D, int F);
RIPPLE_FORWARD(window);
RIPPLE_BACKWARD(window);
size_t ripple_window_workspace(const RippleRings *rings, int D, int F);
RIPPLE_FORWARD(sat);
RIPPLE_BACKWARD(sat);
size_t ripple_sat_workspace(const RippleRings *rings, int D, int F);

/* Appendix A of the paper: a softmax inside each vicinal group, and a sum over groups weighted by alpha,
 * y_n = sum_r alpha_r(n) sum_{m: g(n,m)=r} exp(q_n.k_m / sqrt D - lse_r(n)) v_m, where a group without tokens adds 0.
 * A reference for small N; the work grows with N^2.
 * y [B,N,H,D] real;  lse [B,N,H,G] float: log-sum-exp of each group's scaled scores (saved);  alpha [B,N,H,G]. */
void ripple_explicit_forward(real *y, float *lse, const float *alpha, const real *qkv, const RippleRings *rings,
                             const AttentionShape *shape);
/* dqkv [B,N,3,H,D] (=);  dalpha [B,N,H,G] (=). */
void ripple_explicit_backward(real *dqkv, float *dalpha, const real *dy, const float *lse, const float *alpha,
                              const real *qkv, const RippleRings *rings, const AttentionShape *shape);
size_t ripple_explicit_workspace(const RippleRings *rings, int D);

/* Estimated seconds of forward and backward for one image and one head on this device, from which --ripple-algo auto
 * chooses.  The constants were measured with tests/bench/bench_ripple.c; docs/notebook/a-step.md has the table. */
double ripple_dense_cost(const RippleRings *rings, int D, int F);
double ripple_window_cost(const RippleRings *rings, int D, int F);
double ripple_sat_cost(const RippleRings *rings, int D, int F);

/* Whether an algorithm supports clips. */
enum { ripple_dense_clips = 0, ripple_window_clips = 0, ripple_sat_clips = 1 };

/* An entry of a table of algorithms: RIPPLE_ALGORITHM(dense). */
typedef struct {
    const char *name;
    bool clips;
    __typeof__(ripple_dense_forward) *forward;
    __typeof__(ripple_dense_backward) *backward;
    __typeof__(ripple_dense_workspace) *workspace;
    __typeof__(ripple_dense_cost) *cost;
} RippleAlgorithm;
#define RIPPLE_ALGORITHM(name)                                                                                       \
    {                                                                                                                \
        #name, ripple_##name##_clips, ripple_##name##_forward, ripple_##name##_backward, ripple_##name##_workspace,    \
            ripple_##name##_cost                                                                                     \
    }

#ifdef __cplusplus
}
#endif

#endif
