/* Features of q and k that other operators give to linear attention in place of a feature map
 * (kernels/linear_attention/feature_maps.h), and Hydra attention. */
#ifndef VIT_KERNELS_LINEAR_ATTENTION_OPERATOR_FEATURES_H
#define VIT_KERNELS_LINEAR_ATTENTION_OPERATOR_FEATURES_H

#include <stddef.h>

#include "kernels/softmax/attention_shape.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Queries or keys, and their features: rows of M elements; the strides are from one token's row to the next. */
typedef struct {
    int B, N, M;
    int x_row, phi_row;
} FocusedRows;

/* Focused linear attention (Han et al. 2023): for z = x, queries, if pos is NULL, and for z = x + pos, keys,
 *   r = relu(z) + 1e-6,  u = r / softplus(scale),  phi = |u| u^p / |u^p|,
 * with norms over all M channels of a token.  The features of keys are then divided by N: sums over them become means.
 * phi, x [B,N,M] real;  pos [N,M];  scale [M];  p >= 1. */
void focused_features_forward(real *phi, const real *x, const float *pos, const float *scale, int p,
                              const FocusedRows *rows);
/* dx (=), its rows as far apart as x's;  dpos, NULL if pos is, and dscale (+=);  dphi's rows are as far apart as
 * phi's. */
void focused_features_backward(real *dx, float *dpos, float *dscale, const real *dphi, const real *x, const float *pos,
                               const float *scale, int p, const FocusedRows *rows);
size_t focused_features_workspace(int M);

/* Efficient attention (Shen et al. 2021): softmax of q over the D channels of a head, and of k over the N tokens of an
 * image.
 * phi [B,N,2,H,D] real;  qkv [B,N,3,H,D], v not read. */
void efficient_features_forward(real *phi, const real *qkv, const AttentionShape *shape);
/* dqkv (=) in its q and k thirds, v left as it is. */
void efficient_features_backward(real *dqkv, const real *dphi, const real *phi, const AttentionShape *shape);

/* Castling-ViT (You et al. 2023): phi(z) = [z / (|z| sqrt pi); 1 / sqrt 2] for q and k of every head, with
 * max(|z|, 1e-6) for |z|.
 * phi [B,N,2,H,D+1] real;  qkv [B,N,3,H,D], v not read. */
void angular_features_forward(real *phi, const real *qkv, const AttentionShape *shape);
/* dqkv (=) in its q and k thirds, v left as it is. */
void angular_features_backward(real *dqkv, const real *dphi, const real *qkv, const AttentionShape *shape);

/* phi = relu(q) and relu(k).  phi [B,N,2,M] real;  qkv [B,N,3,M], v not read. */
void relu_features_forward(real *phi, const real *qkv, const AttentionShape *shape);
/* dqkv (=) in its q and k thirds, v left as it is. */
void relu_features_backward(real *dqkv, const real *dphi, const real *phi, const AttentionShape *shape);

/* The two scales of EfficientViT (Cai et al. 2023) as 2*H heads: the first H heads are qkv, the others are the output
 * `wide` of its depthwise convolution, multiplied by a matrix for each head of q, k and v:
 * all[n,part,h] = qkv[n,part,h],  all[n,part,H+h] = w[part,h] wide[n,part,h].
 * all [B,N,3,2*H,D] real;  qkv, wide [B,N,3,H,D];  w [3,H,D,D]. */
void multiscale_forward(real *all, const real *qkv, const real *wide, const float *w, const AttentionShape *shape);
/* dqkv, dwide [B,N,3,H,D] (=);  dw (+=). */
void multiscale_backward(real *dqkv, real *dwide, float *dw, const real *dall, const real *wide, const float *w,
                         const AttentionShape *shape);
size_t multiscale_workspace(int H, int D);

/* == Hydra attention ============================================================================================== */

/* y_n = q^_n * sum_m k^_m * v_m for each channel, with q^ = q / max(|q|, 1e-6) and k^ likewise, norms over all M
 * channels of a token (Bolya et al. 2022).
 * y [B,N,M] real;  inverse [B,N,2] float: 1/|q|, 1/|k|, and kv [B,M] float: the sum over m (both saved);
 * qkv [B,N,3,M]. */
void hydra_attention_forward(real *y, float *inverse, float *kv, const real *qkv, const AttentionShape *shape);
/* dqkv [B,N,3,M] (=);  dkv [B,M] float (=): the gradient of kv. */
void hydra_attention_backward(real *dqkv, float *dkv, const real *dy, const float *inverse, const float *kv,
                              const real *qkv, const AttentionShape *shape);

#ifdef __cplusplus
}
#endif

#endif
