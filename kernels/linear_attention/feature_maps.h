/* The feature maps phi of linear attention: learned, deterministic and random. */
#ifndef VIT_KERNELS_LINEAR_ATTENTION_FEATURE_MAPS_H
#define VIT_KERNELS_LINEAR_ATTENTION_FEATURE_MAPS_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/softmax/attention_shape.h"
#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* phi(z) = relu(w2 [sin(w1 z'); cos(w1 z')] + b2), z' = D^-1/4 z, for z = q and z = k of every head (equation 13 of the
 * ripple attention paper).  w1 [E,D];  w2 [F,2E];  b2 [F]. */
typedef struct {
    int E;
    bool per_head; /* a map for each head: w1 [H,E,D], w2 [H,F,2E], b2 [H,F] */
    const float *w1, *w2, *b2;
} FeatureMlp;
/* Gradients of the weights, (+=), in the same shapes;  w1 may be NULL if it is not trained. */
typedef struct {
    float *w1, *w2, *b2;
} FeatureMlpGradients;
/* phi [B,N,2,H,F] real: the features of q, then those of k (an input of backward);  qkv [B,N,3,H,D], v not read. */
void feature_mlp_forward(real *phi, const real *qkv, const FeatureMlp *map, const FeatureShape *shape);
/* dqkv [B,N,3,H,D] (=) in its q and k thirds, v left as it is;  dphi, phi [B,N,2,H,F]. */
void feature_mlp_backward(real *dqkv, const FeatureMlpGradients *d, const real *dphi, const real *phi, const real *qkv,
                          const FeatureMlp *map, const FeatureShape *shape);
size_t feature_mlp_workspace(int D, int E, int F);

/* The maps below have the same phi, qkv, dqkv and dphi, and the same scaling z' = D^-1/4 z. */

/* phi(z) = relu(w z' + b).  w [F,D];  b [F]. */
void feature_relu_forward(real *phi, const real *qkv, const float *w, const float *b, const FeatureShape *shape);
/* dw, db (+=). */
void feature_relu_backward(real *dqkv, float *dw, float *db, const real *dphi, const real *phi, const real *qkv,
                           const float *w, const FeatureShape *shape);
size_t feature_relu_workspace(int D, int F);

/* phi(z)_i = u_i u_(i-1), u = relu([z'; -z']), indices modulo F = 2D: DPFP of Schlag et al. 2021 with nu = 1. */
void feature_dpfp_forward(real *phi, const real *qkv, const FeatureShape *shape);
void feature_dpfp_backward(real *dqkv, const real *dphi, const real *qkv, const FeatureShape *shape);

/* Random features, with a matrix for each head, w [H,E,D].
 *   rfa        phi(z) = exp(|z'|^2/2 - c) / sqrt E [sin(w z'); cos(w z')], F = 2E (Peng et al. 2021);  c is the
 *              maximum of |z'|^2/2 over the tokens of an image and head, one for the queries and one for the keys
 *   performer  phi(z) = (exp(w z' - |z'|^2/2 - c) + 1e-4) / sqrt E, F = E (Choromanski et al. 2020);  c is the maximum
 *              of w z' over the E features of one query, or over the features of all keys of an image and head
 * Backward treats c as a constant. */
void feature_rfa_forward(real *phi, const real *qkv, const float *w, const FeatureShape *shape);
void feature_rfa_backward(real *dqkv, const real *dphi, const real *phi, const real *qkv, const float *w,
                          const FeatureShape *shape);
void feature_performer_forward(real *phi, const real *qkv, const float *w, const FeatureShape *shape);
void feature_performer_backward(real *dqkv, const real *dphi, const real *phi, const real *qkv, const float *w,
                                const FeatureShape *shape);
size_t feature_random_workspace(int D, int E);

#ifdef __cplusplus
}
#endif

#endif
