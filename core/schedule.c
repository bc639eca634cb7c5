/* t epochs done, T in all, W of warm-up
 *   t < W   lr_warmup + (lr - lr_warmup) t / W
 *   else    lr_min + (lr - lr_min) (1 + cos(pi t / T)) / 2
 * The cosine does not start at W but at 0: timm's warmup_prefix is off in DeiT's recipe. */
#include "core/schedule.h"

#include <math.h>

float schedule_lr(const Schedule *s, double done) {
    double t = s->per_epoch ? floor(done) : done;
    if (t < s->warmup_epochs) return s->lr_warmup + (s->lr - s->lr_warmup) * (float)(t / s->warmup_epochs);
    if (t >= s->epochs) return s->lr_min;
    return s->lr_min + (s->lr - s->lr_min) * (float)(0.5 * (1 + cos(M_PI * t / s->epochs)));
}

float schedule_drop(float lr, int drop, int epoch) { return (float)(lr * pow(0.1, drop ? epoch / drop : 0)); }
