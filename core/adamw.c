#include "core/adamw.h"

#include <math.h>

#include "kernels/kernels.h"

float adamw_step(const AdamW *adamw, Params *params, float lr, int t) {
    float norm = (float)sqrt(sum_of_squares(params->grads, params->total));
    float scale = adamw->clip_grad / (norm + 1e-6f); /* PyTorch's clip_grad_norm_ */
    if (!isfinite(norm)) return norm;
    AdamWStep step = {
        .lr = lr,
        .slow = adamw->slow,
        .beta1 = adamw->beta1,
        .beta2 = adamw->beta2,
        .eps = adamw->eps,
        .weight_decay = adamw->weight_decay,
        .scale = adamw->clip_grad > 0 && scale < 1 ? scale : 1,
        .ema_decay = adamw->ema_decay,
        .t = t,
    };
    adamw_update(params->values, params->exp_avg, params->exp_avg_sq, params->ema, params->grads, params->kinds,
                 params->total, &step);
    return norm;
}
