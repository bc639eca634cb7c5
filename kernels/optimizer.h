/* The loss and the optimizer. */
#ifndef VIT_KERNELS_OPTIMIZER_H
#define VIT_KERNELS_OPTIMIZER_H

#include <stddef.h>
#include <stdint.h>

#include "real.h"

#ifdef __cplusplus
extern "C" {
#endif

/* loss[b] = -sum_c target_c log softmax(logits)_c and its gradient times `scale`.
 * loss [B] float;  dlogits [B,C] (=), or NULL;  logits [B,C] real;  targets [B,C] float, each row summing to one. */
void cross_entropy(float *loss, real *dlogits, const real *logits, const float *targets, float scale, int B, int C);

/* == Optimizer: loops over flat float32 memory ==================================================================== */

/* sum_i x_i^2 in double, in a fixed order; host result. */
double sum_of_squares(const float *x, size_t n);

/* One AdamW step (Loshchilov and Hutter 2019, decoupled decay as in PyTorch) over a whole arena, in one pass:
 *   g' = scale g, m = b1 m + (1-b1) g', v = b2 v + (1-b2) g'^2,
 *   w = w - lr wd w - lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps), ema = d ema + (1-d) w,
 * with lr slow in place of lr where a piece is slow.
 * w, m, v, ema [n] updated, ema may be NULL;  g [n] is left as it is;
 * kinds [ceil(n / ARENA_PIECE)]: what happens to each piece of the arena. */
enum { ARENA_PIECE = 16 };
enum {
    PIECE_PLAIN,   /* no weight decay */
    PIECE_DECAYED,
    PIECE_FROZEN,  /* w, m and v stay, and ema = w */
    PIECE_SLOW = 4 /* added to one of these: the second learning rate */
};
typedef struct {
    float lr, slow, beta1, beta2, eps, weight_decay, scale, ema_decay;
    int t; /* the step's number, from 1 */
} AdamWStep;
void adamw_update(float *w, float *m, float *v, float *ema, const float *g, const uint8_t *kinds, size_t n,
                  const AdamWStep *step);

#ifdef __cplusplus
}
#endif

#endif
