/* Feature maps of linear attention: learned, deterministic and random. */
#ifndef VIT_KERNELS_FEATURE_MAPS_H
#define VIT_KERNELS_FEATURE_MAPS_H

#include <stddef.h>

#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* phi(z) = relu(w2 [sin(w1 z'); cos(w1 z')] + b2), z' = D^-1/4 z, for q and k of every head: the paper's equation 13.
 * phi [B,N,2,H,F] real, q's features then k's;  qkv [B,N,3,H,D], v not read;  w1 [E,D];  w2 [F,2E];
 * b2 [F];  n = B*N. */
void feature_mlp_forward(real *phi, const real *qkv, const float *w1, const float *w2, const float *b2, size_t n, int H,
                         int D, int E, int F);
/* dqkv [B,N,3,H,D] (=) in its q and k thirds, v untouched;  dw1, dw2, db2 (+=), dw1 may be NULL;
 * dphi, phi [B,N,2,H,F]. */
void feature_mlp_backward(real *dqkv, float *dw1, float *dw2, float *db2, const real *dphi, const real *phi,
                          const real *qkv, const float *w1, const float *w2, const float *b2, size_t n, int H, int D,
                          int E, int F);
size_t feature_mlp_workspace(int D, int E, int F);
/* The same with a map for each head: w1 [H,E,D];  w2 [H,F,2E];  b2 [H,F], and their gradients. */
void feature_mlp_heads_forward(real *phi, const real *qkv, const float *w1, const float *w2, const float *b2, size_t n,
                               int H, int D, int E, int F);
void feature_mlp_heads_backward(real *dqkv, float *dw1, float *dw2, float *db2, const real *dphi, const real *phi,
                                const real *qkv, const float *w1, const float *w2, const float *b2, size_t n, int H,
                                int D, int E, int F);

/* The maps below read and write the same tensors, and scale alike: z' = D^-1/4 z. */

/* phi(z) = relu(w z' + b).  w [F,D];  b [F]. */
void feature_relu_forward(real *phi, const real *qkv, const float *w, const float *b, size_t n, int H, int D, int F);
/* dw, db (+=). */
void feature_relu_backward(real *dqkv, float *dw, float *db, const real *dphi, const real *phi, const real *qkv,
                           const float *w, size_t n, int H, int D, int F);
size_t feature_relu_workspace(int D, int F);

/* phi(z)_i = u_i u_(i-1), u = relu([z'; -z']), indices modulo F = 2D (Schlag et al. 2021, with nu = 1). */
void feature_dpfp_forward(real *phi, const real *qkv, size_t n, int H, int D);
void feature_dpfp_backward(real *dqkv, const real *dphi, const real *qkv, size_t n, int H, int D);

/* Random features with a matrix for each head, w [H,E,D].
 *   rfa        phi(z) = exp(|z'|^2/2 - c) / sqrt E [sin(w z'); cos(w z')], c = max |z'|^2/2 over the tokens of q or k
 *              of an image and head; F = 2E (Peng et al. 2021)
 *   performer  phi(z) = (exp(w z' - |z'|^2/2 - c) + 1e-4) / sqrt E, c = max of w z' over a query's features, or over
 *              all keys' of an image and head; F = E (Choromanski et al. 2020)
 * c is a constant of the backward pass. */
void feature_rfa_forward(real *phi, const real *qkv, const float *w, int B, int N, int H, int D, int E);
void feature_rfa_backward(real *dqkv, const real *dphi, const real *phi, const real *qkv, const float *w, int B, int N,
                          int H, int D, int E);
void feature_performer_forward(real *phi, const real *qkv, const float *w, int B, int N, int H, int D, int E);
void feature_performer_backward(real *dqkv, const real *dphi, const real *phi, const real *qkv, const float *w, int B,
                                int N, int H, int D, int E);
size_t feature_random_workspace(int D, int E);

#ifdef __cplusplus
}
#endif

#endif
