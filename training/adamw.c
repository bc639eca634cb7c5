#include "training/adamw.h"

#include "kernels/kernels.h"

#define F(KIND, field) CONFIG_FIELD(KIND, AdamWSettings, field)
static const ConfigEntry entries[] = {
    {F(FLOAT, weight_decay), "0.05", .section = "training", .min = 0, .max = 10,
     .help = "Decoupled weight decay of AdamW"},
    {F(CHOICE, weight_decay_of), "matrices", CONFIG_CHOICES([DECAY_OF_MATRICES] = "matrices", [DECAY_OF_ALL] = "all"),
     .help = "Parameters that decay: the matrices of a vision transformer, but not its biases, norms and embeddings; or "
             "all of them, as in a detector and in Compact Transformers"},
    {F(FLOAT, beta1), "0.9", .min = 0, .max = 0.9999999, .help = "Decay of AdamW's first moment"},
    {F(FLOAT, beta2), "0.999", .min = 0, .max = 0.9999999, .help = "Decay of AdamW's second moment"},
    {F(FLOAT, eps), "1e-8", .min = 0, .max = 1, .help = "AdamW's epsilon"},
    {F(FLOAT, clip_grad), "0", .min = 0, .max = 1e8,
     .help = "Norm to which larger gradients are clipped (0: no clipping)"},
    {F(FLOAT, ema_decay), "0", .min = 0, .max = 0.9999999,
     .help = "Decay of an exponential moving average of the parameters, which is evaluated in their place (0: off; "
             "DeiT: 0.99996)"},
};
#undef F
const ConfigGroup adamw_settings = {CONFIG_GROUP(AdamWSettings, entries), .change = CHANGE_FREELY};

void adamw_start(const AdamWSettings *s, Params *params, float lr, int t) {
    step_measure(params->step_stats, params->grads, params->total, s->clip_grad);
    AdamWStep step = {
        .lr = lr,
        .beta1 = s->beta1,
        .beta2 = s->beta2,
        .eps = s->eps,
        .weight_decay = s->weight_decay,
        .stats = params->step_stats,
        .ema_decay = s->ema_decay,
        .t = t,
        .rate_count = params->rate_count,
        .rates = params->rates,
    };
    adamw_update(params->values, params->exp_avg, params->exp_avg_sq, params->ema, params->grads, params->kinds,
                 params->total, &step);
}
