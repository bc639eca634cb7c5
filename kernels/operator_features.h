/* Features of other operators, and Hydra attention. */
#ifndef VIT_KERNELS_OPERATOR_FEATURES_H
#define VIT_KERNELS_OPERATOR_FEATURES_H

#include <stddef.h>

#include "kernels/attention_shape.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What linear attention takes in place of a feature map; phi as there, [B,N,2,M] where heads do not matter. */

/* Focused linear attention's: r = relu(z) + 1e-6, u = r / softplus(scale), phi = |u| u^p / |u^p|, norms over a token,
 * for z = q, and for z = k + pos; k's are then divided by N, so that sums over keys are means.
 * phi [B,N,2,M] real;  qkv [B,N,3,M], v not read;  pos [N,M];  scale [M];  p >= 1. */
void focused_features_forward(real *phi, const real *qkv, const float *pos, const float *scale, int p,
                              const AttentionShape *shape);
/* dqkv (=) in its q and k thirds, v untouched;  dpos, dscale (+=). */
void focused_features_backward(real *dqkv, float *dpos, float *dscale, const real *dphi, const real *qkv,
                               const float *pos, const float *scale, int p, const AttentionShape *shape);
size_t focused_features_workspace(int M);

/* Efficient attention's: softmax of q over the D channels of a head, of k over the N tokens of an image.
 * phi [B,N,2,H,D] real;  qkv [B,N,3,H,D], v not read. */
void efficient_features_forward(real *phi, const real *qkv, const AttentionShape *shape);
/* dqkv (=) in its q and k thirds, v untouched. */
void efficient_features_backward(real *dqkv, const real *dphi, const real *phi, const AttentionShape *shape);

/* Castling-ViT's: phi(z) = [z / (|z| sqrt pi); 1 / sqrt 2] for q and k of every head; |z| is taken as 1e-6 at least.
 * phi [B,N,2,H,D+1] real;  qkv [B,N,3,H,D], v not read. */
void angular_features_forward(real *phi, const real *qkv, const AttentionShape *shape);
/* dqkv (=) in its q and k thirds, v untouched. */
void angular_features_backward(real *dqkv, const real *dphi, const real *qkv, const AttentionShape *shape);

/* relu of q and k.  phi [B,N,2,M] real;  qkv [B,N,3,M], v not read. */
void relu_features_forward(real *phi, const real *qkv, const AttentionShape *shape);
/* dqkv (=) in its q and k thirds, v untouched. */
void relu_features_backward(real *dqkv, const real *dphi, const real *phi, const AttentionShape *shape);

/* EfficientViT's two scales beside each other, the second after a matrix for each head of q, k and v:
 * all[n,part,h] = qkv[n,part,h], all[n,part,H+h] = w[part,h] wide[n,part,h].
 * all [B,N,3,2*H,D] real;  qkv, wide [B,N,3,H,D];  w [3,H,D,D]. */
void multiscale_forward(real *all, const real *qkv, const real *wide, const float *w, const AttentionShape *shape);
/* dqkv, dwide [B,N,3,H,D] (=);  dw (+=). */
void multiscale_backward(real *dqkv, real *dwide, float *dw, const real *dall, const real *wide, const float *w,
                         const AttentionShape *shape);
size_t multiscale_workspace(int H, int D);

/* == Hydra attention ============================================================================================== */

/* y_n = q^_n * sum_m k^_m * v_m channel by channel, q^ = q / |q| and k^ = k / |k| over the whole token, lengths taken
 * as 1e-6 at least.  y [B,N,M] real;  inverse [B,N,2] float: 1/|q|, 1/|k|, kv [B,M] float: the sum (both saved);
 * qkv [B,N,3,M]. */
void hydra_attention_forward(real *y, float *inverse, float *kv, const real *qkv, const AttentionShape *shape);
/* dqkv (=);  dkv [B,M] float (=), the sum's gradient. */
void hydra_attention_backward(real *dqkv, float *dkv, const real *dy, const float *inverse, const float *kv,
                              const real *qkv, const AttentionShape *shape);

#ifdef __cplusplus
}
#endif

#endif
