/* Relative positions for linear attention: rotary embedding, permutations, and stochastic positional encoding. */
#ifndef VIT_KERNELS_LINEAR_ATTENTION_RELATIVE_POSITIONS_H
#define VIT_KERNELS_LINEAR_ATTENTION_RELATIVE_POSITIONS_H

#include <stddef.h>

#include "kernels/softmax/attention_shape.h"
#include "kernels/tokens/grid.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rotary position embedding (Su et al. 2021): features 2p and 2p+1 of token n are rotated by an angle.
 * turns [N,F/2,2] float: its cosine and sine.
 *   grid NULL   one axis: angle n theta_p, theta_p = 10000^(-2p/F)
 *   grid given  two axes: the first F/4 pairs rotate by row theta_p, the next F/4 by column theta_p, with
 *               theta_p = 10000^(-4p/F) and p counted from 0 for each axis.  A pair left over is not rotated, nor are
 *               the first N - frames*rows*columns tokens (a class token).  Of clips it is three axes: F/6 pairs rotate
 *               by frame theta_p, then F/6 by row and F/6 by column, with theta_p = 10000^(-6p/F). */
void rope_table(float *turns, int N, int F, const Grid *grid);
/* y = phi, rotated.  Backward rotates dy by the opposite angles.  y, phi [B,N,2,H,F] real, for q and k alike;  if F is
 * odd, the last feature is copied. */
void rope_forward(real *y, const real *phi, const float *turns, const FeatureShape *shape);
void rope_backward(real *dphi, const real *dy, const float *turns, const FeatureShape *shape);

/* PermuteFormer (Chen 2021): the features of token n are permuted by the n-th power of the head's permutation.
 * order [H,N,F]: order_0(f) = f, order_(n+1)(f) = permutation(order_n(f)).  permutation [H,F] float: 0 .. F-1, each
 * once. */
void permute_table(int *order, const float *permutation, int N, int H, int F);
/* y[n,f] = phi[n,order_n(f)], for q and k alike.  y, phi [B,N,2,H,F] real. */
void permute_forward(real *y, const real *phi, const int *order, const FeatureShape *shape);
void permute_backward(real *dphi, const real *dy, const int *order, const FeatureShape *shape);

/* Stochastic positional encoding (Liutkus et al. 2021): q and k of token n in head h are multiplied by a random D x D
 * code that all images share, q'_r = sum_d q_d C_(n,h,d,r) and k' likewise.  With a gate g = sigmoid(gate) [H,D],
 *   C = D^-1/2 (sqrt(1 - g) c + sqrt(g) e),  e [H,D,D] the same for q and k and every token,
 * and c differs between q and k:
 *   sine   c_(n,d,r) = (2K)^-1/2 sum_k softplus(gains)_k (cos(a_k) z_(d,k,r) + sin(a_k) z_(d,K+k,r)),
 *          a_k = pi n sigmoid(freqs)_k, plus offsets_k for q;  freqs, offsets, gains [H,D,K];  z [H,D,2K,D]
 *   conv   c_(n,d,r) = sum_j w_(d,j) x_(d,n+j,r), w = wq for q and wk for k, [H,D,K];  x [H,D,N+K-1,D]
 * z, x and e are standard normal numbers that the caller draws. */
typedef struct {
    int K;
    const float *freqs, *offsets, *gains, *gate, *z, *e;
} SpeSine;
typedef struct {
    float *freqs, *offsets, *gains, *gate;
} SpeSineGradients;
typedef struct {
    int K;
    const float *wq, *wk, *gate, *x, *e;
} SpeConv;
typedef struct {
    float *wq, *wk, *gate;
} SpeConvGradients;
/* coded [B,N,3,H,D] real: q' and k' in its q and k thirds, v left as it is;  qkv [B,N,3,H,D], v not read. */
void spe_sine_forward(real *coded, const real *qkv, const SpeSine *spe, const AttentionShape *shape);
void spe_conv_forward(real *coded, const real *qkv, const SpeConv *spe, const AttentionShape *shape);
/* dqkv (=) in its q and k thirds, v left as it is;  the members of d (+=), in the shapes of the parameters. */
void spe_sine_backward(real *dqkv, const SpeSineGradients *d, const real *dcoded, const real *qkv, const SpeSine *spe,
                       const AttentionShape *shape);
void spe_conv_backward(real *dqkv, const SpeConvGradients *d, const real *dcoded, const real *qkv, const SpeConv *spe,
                       const AttentionShape *shape);
size_t spe_sine_workspace(int N, int H, int D, int K);
size_t spe_conv_workspace(int N, int H, int D, int K);

#ifdef __cplusplus
}
#endif

#endif
