/* Relative positions for linear attention: rotary, permutations, stochastic encoding. */
#ifndef VIT_KERNELS_RELATIVE_POSITIONS_H
#define VIT_KERNELS_RELATIVE_POSITIONS_H

#include <stddef.h>

#include "kernels/attention_shape.h"
#include "kernels/grid.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rotary embedding: feature pairs (2p, 2p+1) of token n turn by an angle.  turns [N,F/2,2] float: cosine and sine.
 *   no grid (NULL)  one axis: angle n theta_p, theta_p = 10000^(-2p/F)
 *   a grid          two axes: of F/4 pairs each, by row and then by column of the grid, theta_p = 10000^(-4p/F);
 *                   pairs and tokens beyond (the first N - rows*columns: a class token) stay. */
void rope_table(float *turns, int N, int F, const Grid *grid);
/* y = phi turned, backward turned back: the transpose.  y, phi [B,N,2,H,F] real;  an odd last feature is copied. */
void rope_forward(real *y, const real *phi, const float *turns, const FeatureShape *shape);
void rope_backward(real *dphi, const real *dy, const float *turns, const FeatureShape *shape);

/* order [H,N,F]: where token n's feature f comes from, the n-fold composition of the head's permutation with itself,
 * order_0 = f, order_(n+1)(f) = permutation(order_n(f)).  permutation [H,F] float: 0 .. F-1, each once. */
void permute_table(int *order, const float *permutation, int N, int H, int F);
/* y_f = phi_order(f) for q and k alike.  y, phi [B,N,2,H,F] real. */
void permute_forward(real *y, const real *phi, const int *order, const FeatureShape *shape);
void permute_backward(real *dphi, const real *dy, const int *order, const FeatureShape *shape);

/* Stochastic positional encoding (Liutkus et al. 2021): coded q'_r = sum_d q_d C_(n,h,d,r) and k' likewise, with codes
 * that all images share, as many realisations r as there are columns d, and a gate g = sigmoid(gate) [H,D]:
 *   C = D^-1/2 (sqrt(1 - g) c + sqrt(g) e),  e [H,D,D], the same for q and k and every token.
 *   sine   c_(n,d,r) = (2K)^-1/2 sum_k softplus(gains)_k (cos(a_k) z_(d,k,r) + sin(a_k) z_(d,K+k,r)),
 *          a_k = 2 pi n sigmoid(freqs)_k / 2, for q plus offsets_k;  freqs, offsets, gains [H,D,K];  z [H,D,2K,D]
 *   conv   c_(n,d,r) = sum_j w_(d,j) x_(d,n+j,r), w = wq or wk [H,D,K];  x [H,D,N+K-1,D]
 * z, x and e are standard normal numbers.  No tensor is as large as a code for every image. */
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
/* coded, qkv [B,N,3,H,D] real: q and k thirds, v neither read nor written. */
void spe_sine_forward(real *coded, const real *qkv, const SpeSine *spe, const AttentionShape *shape);
void spe_conv_forward(real *coded, const real *qkv, const SpeConv *spe, const AttentionShape *shape);
/* dqkv (=) in its q and k thirds;  the gradients of parameters (+=). */
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
