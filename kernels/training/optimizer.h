/* The loss and the optimizer. */
#ifndef VIT_KERNELS_TRAINING_OPTIMIZER_H
#define VIT_KERNELS_TRAINING_OPTIMIZER_H

#include <stddef.h>
#include <stdint.h>

#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* loss[b] = -sum_c target_c log softmax(logits)_c, and `scale` times its gradient.
 * loss [B] float;  dlogits [B,C] (=), or NULL;  logits [B,C] real;  targets [B,C] float, each row summing to one. */
void cross_entropy(float *loss, real *dlogits, const real *logits, const float *targets, float scale, int B, int C);
/* Weights of images in the loss: loss [B] float and dlogits [B,C] real times weights [B] float, in place. */
void weigh_losses(float *loss, real *dlogits, const float *weights, int B, int C);

/* == Optimizer ==================================================================================================== */

/* Sums over a step, on the device, where the update reads them; the host reads them later. */
typedef struct {
    double loss, squares; /* the sum of the losses so far; that of the squares of all gradients */
    float scale;          /* of the gradients in the update; NaN: there is no update */
} StepStats;

/* stats->loss += sum_b loss[b].  loss [B];  stats: device. */
void step_add_losses(StepStats *stats, const float *loss, int B);

/* stats->squares = sum_i g_i^2, and stats->scale = min(1, clip / (norm + 1e-6)) with the norm's square that is, as
 * PyTorch's clip_grad_norm_; 1 where clip is 0; NaN if the norm or stats->loss is not finite.  g [n];  stats:
 * device. */
void step_measure(StepStats *stats, const float *g, size_t n, float clip);

/* Returns sum_i x_i^2, computed in double in a fixed order.  x [n]. */
double sum_of_squares(const float *x, size_t n);

/* One AdamW step (Loshchilov and Hutter 2019, with decoupled weight decay as in PyTorch) over all parameters of an
 * arena:
 *   g' = scale g, m = b1 m + (1-b1) g', v = b2 v + (1-b2) g'^2,
 *   w = w - lr wd w - lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps), ema = d ema + (1-d) w,
 * where lr is step->lr times the factor that the piece's byte chooses.  Changes nothing if stats->scale is NaN.
 * w, m, v, ema [n] (updated), ema may be NULL;  g [n];
 * kinds [ceil(n / ARENA_PIECE)]: how each piece of ARENA_PIECE elements is updated, one of the PIECE_ values plus
 * PIECE_KINDS times the index of its factor in step->rates. */
enum { ARENA_PIECE = 16 };
enum {
    PIECE_PLAIN,   /* without weight decay */
    PIECE_DECAYED, /* with weight decay */
    PIECE_FROZEN,  /* w, m and v are unchanged, and ema = w */
    PIECE_KINDS = 4,
    PIECE_RATES = 256 / PIECE_KINDS /* the most factors of the learning rate in one arena */
};
typedef struct {
    float lr, beta1, beta2, eps, weight_decay, scale, ema_decay;
    const StepStats *stats; /* device, or NULL: has the scale in place of `scale` */
    int t;              /* index of the step, from 1 */
    int rate_count;     /* at most PIECE_RATES */
    const float *rates; /* host [rate_count]: factors of lr */
} AdamWStep;
void adamw_update(float *w, float *m, float *v, float *ema, const float *g, const uint8_t *kinds, size_t n,
                  const AdamWStep *step);

#ifdef __cplusplus
}
#endif

#endif
