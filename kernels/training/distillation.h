/* Losses of a student against a teacher's logits (Hinton et al. 2015; Touvron et al. 2021, section 4). */
#ifndef VIT_KERNELS_TRAINING_DISTILLATION_H
#define VIT_KERNELS_TRAINING_DISTILLATION_H

#include <stdbool.h>
#include <stddef.h>

#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y = (a + b) / 2, the logits of two classifiers.  y, a, b [n] real; y may be a or b. */
void logits_mean(real *y, const real *a, const real *b, size_t n);

/* q[b] = lam s(t[i]) + (1 - lam) s(t[j]) with (i,j) = pairs[b], or s(t[b]) where pairs is NULL.  s(t) is softmax(t/tau),
 * or with tau 0 one for the largest logit, the first of equals, and zero for the others.
 * q [B,C] float (=);  logits t [count,C] real;  pairs [B,2] below count, or NULL.  Sums in double on the CPU. */
void teacher_targets(float *q, const real *logits, const int *pairs, float lam, float tau, int B, int C);

/* D = tau^2 sum_c q_c (log q_c - log softmax(x/tau)_c), so that dD/dx = tau (softmax(x/tau) - q), tau > 0;
 * loss[b] = (1 - alpha) loss[b] + alpha D[b], and `scale` alpha times the gradient of D.
 * loss [B] float (in and out);  dlogits [B,C] (=), or with `adds` (+=);  logits x [B,C] real;  targets q [B,C]. */
void distillation_loss(float *loss, real *dlogits, const real *logits, const float *targets, float alpha, float tau,
                       bool adds, float scale, int B, int C);

#ifdef __cplusplus
}
#endif

#endif
