#include "core/adamw.h"

#include <math.h>

#include "kernels/kernels.h"

float adamw_step(const AdamW *adamw, Params *params, float lr, int t) {
    float norm = (float)sqrt(sum_of_squares(params->grads, params->total));
    if (!isfinite(norm)) return norm;
    float scale = adamw->clip_grad > 0 && norm > adamw->clip_grad ? adamw->clip_grad / norm : 1;

    /* Neighbours with the same decay go in one call; the padding between tensors is zero and stays so. */
    for (int first = 0, next; first < params->count; first = next) {
        const Param *p = &params->items[first];
        for (next = first + 1; next < params->count && params->items[next].decay == p->decay; next++) continue;
        size_t end = next < params->count ? params->items[next].offset : params->total;
        adamw_update(params->values + p->offset, params->exp_avg + p->offset, params->exp_avg_sq + p->offset,
                     params->grads + p->offset, end - p->offset, lr, adamw->beta1, adamw->beta2, adamw->eps,
                     p->decay ? adamw->weight_decay : 0, scale, t);
    }
    if (params->ema) ema_update(params->ema, params->values, params->total, adamw->ema_decay);
    return norm;
}
