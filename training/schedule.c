/* The learning rate after t of T epochs, W of them warm-up:
 *   t < W   lr_warmup + (peak - lr_warmup) t / W,  or with a reciprocal warm-up peak / (W - t)
 *   else    lr_min + (peak - lr_min) (1 + cos(pi t / T)) / 2,  or from the warm-up on with (t - W) / (T - W)
 * In DeiT's recipe the cosine starts at t = 0, not at W, because timm's warmup_prefix is off there; in that of Compact
 * Transformers it starts at W, after a reciprocal warm-up.  With lr_schedule = epoch, epoch e (from 0) has the rate of t =
 * e, as in timm's train.py; DeiT's own program trains its first two epochs at that of t = 0, and is one behind from
 * then on. */
#include "training/schedule.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/distributed.h"

/* Were both settings given on the command line, or both in the same file? */
static bool given_together(const Config *config, const char *a, const char *b, bool in_file) {
    const char *origin = config_origin(config, a), *other = config_origin(config, b);
    if (!origin || !other) return false;
    if (!strncmp(origin, "--", 2)) return !strncmp(other, "--", 2);
    const char *line = strrchr(origin, ':');
    return in_file && line && !strncmp(origin, other, (size_t)(line - origin) + 1);
}

static void tell_shortened(const Config *config, const char *name, double given, double most, const char *unit,
                           double fits) {
    if (distributed_rank() == 0)
        printf("%s: %g (%s) is more than the %.0f %s of the run: shortened to %g (a tenth of them, rounded down)\n",
               name, given, config_origin(config, name), most, unit, fits);
}

/* == Warm-up and cosine =========================================================================================== */

#define F(KIND, field) CONFIG_FIELD(KIND, CosineSettings, field)
static const ConfigEntry cosine_entries[] = {
    {F(FLOAT, lr), "5e-4", .section = "training", .min = 0, .max = 100,
     .help = "Peak learning rate of AdamW, reached after the warm-up"},
    {F(INT, lr_base_batch), "0", .min = 0, .max = 1e6,
     .help = "Batch size that lr is meant for; lr is scaled linearly to batch_size (0: not scaled)"},
    {F(FLOAT, lr_min), "1e-5", .min = 0, .max = 100, .help = "Learning rate at the end of the cosine"},
    {F(FLOAT, lr_warmup), "1e-6", .min = 0, .max = 100, .help = "Learning rate at the start of the warm-up"},
    {F(FLOAT, warmup_epochs), "5", .min = 0, .max = 1e6,
     .help = "Epochs of warm-up (if not given, at most a tenth of epochs; a number above epochs becomes a tenth of them, or "
             "is refused if both were given together)"},
    {F(CHOICE, warmup_curve), "linear",
     CONFIG_CHOICES([WARMUP_LINEAR] = "linear", [WARMUP_RECIPROCAL] = "reciprocal"),
     .help = "Learning rate in the warm-up: linear, from lr_warmup on; or reciprocal, lr divided by the number of "
             "warm-up epochs that are left, as in Compact Transformers"},
    {F(CHOICE, cosine_from), "start",
     CONFIG_CHOICES([COSINE_FROM_START] = "start", [COSINE_FROM_WARMUP] = "warmup"),
     .help = "Where the half cosine begins: at the start of the run, as in DeiT's recipe, or at the end of the warm-up"},
    {F(CHOICE, lr_schedule), "epoch",
     CONFIG_CHOICES([LR_EVERY_EPOCH] = "epoch", [LR_EVERY_STEP] = "step"),
     .help = "Change the learning rate once per epoch, as timm does, or with every step"},
};
#undef F
const ConfigGroup cosine_settings = {CONFIG_GROUP(CosineSettings, cosine_entries), .change = CHANGE_FREELY};

void cosine_fit(const Config *config, CosineSettings *s, int epochs) {
    float given = s->warmup_epochs, fits = fminf(given, (float)(epochs / 10)); /* whole epochs */
    bool chosen = config_origin(config, "warmup_epochs");
    if (chosen && given <= (float)epochs) return;
    if (chosen && given_together(config, "warmup_epochs", "epochs", true))
        config_reject(config, "warmup_epochs", "{warmup_epochs} is more than {epochs}");
    if (chosen) tell_shortened(config, "warmup_epochs", (double)given, epochs, "epochs", (double)fits);
    s->warmup_epochs = fits;
}

float cosine_peak(const CosineSettings *s, int batch_size) {
    return s->lr * (s->lr_base_batch ? (float)batch_size / (float)s->lr_base_batch : 1);
}

void cosine_announce(const CosineSettings *s, float peak) {
    if (peak > 0 && peak < s->lr_min)
        printf("lr: the peak of %g%s is below lr_min %g, to which the learning rate rises\n", (double)peak,
               s->lr_base_batch ? ", scaled by lr_base_batch," : "", (double)s->lr_min);
}

float cosine_lr(const CosineSettings *s, float peak, int epochs, double done) {
    double t = s->lr_schedule == LR_EVERY_EPOCH ? floor(done) : done;
    double W = s->warmup_epochs, T = epochs, from = s->cosine_from == COSINE_FROM_WARMUP ? W : 0;
    if (t < W && s->warmup_curve == WARMUP_RECIPROCAL) return peak / (float)fmax(W - t, 1);
    if (t < W) return s->lr_warmup + (peak - s->lr_warmup) * (float)(t / W);
    if (t >= T) return s->lr_min;
    return s->lr_min + (peak - s->lr_min) * (float)(0.5 * (1 + cos(M_PI * (t - from) / (T - from))));
}

/* == Warm-up and cosine by steps ================================================================================== */

#define F(KIND, field) CONFIG_FIELD(KIND, StepCosineSettings, field)
static const ConfigEntry step_cosine_entries[] = {
    {F(FLOAT, lr), "1e-3", .section = "training", .min = 0, .max = 100,
     .help = "Peak learning rate of AdamW, reached at the end of the warm-up; from there half a cosine leads to 0"},
    {F(INT, warmup_steps), "5000", .min = 0, .max = 1e9,
     .help = "Steps of linear warm-up (if not given, at most a tenth of all steps; a number that a config file gives for "
             "a longer run is shortened likewise)"},
};
#undef F
const ConfigGroup step_cosine_settings = {CONFIG_GROUP(StepCosineSettings, step_cosine_entries),
                                          .change = CHANGE_FREELY};

/* Adapts a warm-up to the run: the default, and a longer one that was not given together with `epochs`, are
 * shortened. */
static int fit_steps(const Config *config, int warmup, uint64_t steps) {
    uint64_t given = (uint64_t)warmup, fits = given < steps / 10 ? given : steps / 10;
    bool chosen = config_origin(config, "warmup_steps");
    if (chosen && given <= steps) return warmup;
    if (chosen && given_together(config, "warmup_steps", "epochs", false))
        config_reject(config, "warmup_steps", "{warmup_steps} is more than the %llu steps of {epochs}",
                      (unsigned long long)steps);
    if (chosen) tell_shortened(config, "warmup_steps", (double)given, (double)steps, "steps", (double)fits);
    return (int)fits;
}

void step_cosine_fit(const Config *config, StepCosineSettings *s, uint64_t steps) {
    s->warmup_steps = fit_steps(config, s->warmup_steps, steps);
}

float step_cosine_lr(const StepCosineSettings *s, uint64_t step, uint64_t steps) {
    double W = s->warmup_steps, t = (double)step;
    if (t < W) return (float)((double)s->lr * t / W);
    if (step >= steps) return 0;
    return (float)((double)s->lr / 2 * (1 + cos(M_PI * (t - W) / ((double)steps - W))));
}

/* == Steps ======================================================================================================== */

#define F(KIND, field) CONFIG_FIELD(KIND, DropSettings, field)
static const ConfigEntry drop_entries[] = {
    {F(FLOAT, lr), "1e-4", .section = "training", .min = 0, .max = 100, .help = "Initial learning rate of AdamW"},
    {F(INT, lr_drop), "40", .min = 0, .max = 1e6,
     .help = "Epochs after which the learning rate falls to a tenth; it falls again after twice as many (0: never)"},
};
#undef F
const ConfigGroup drop_settings = {CONFIG_GROUP(DropSettings, drop_entries), .change = CHANGE_FREELY};

float drop_lr(const DropSettings *s, double done) {
    int epoch = (int)done;
    return (float)(s->lr * pow(0.1, s->lr_drop ? epoch / s->lr_drop : 0));
}

/* == Dense prediction ============================================================================================= */

#define F(KIND, field) CONFIG_FIELD(KIND, DenseScheduleSettings, field)
static const ConfigEntry dense_entries[] = {
    {F(FLOAT, lr), "1e-4", .section = "training", .min = 0, .max = 100,
     .help = "Learning rate of AdamW after the warm-up"},
    {F(CHOICE, lr_decay), "drops",
     CONFIG_CHOICES([DECAY_DROPS] = "drops", [DECAY_COSINE] = "cosine", [DECAY_POLY] = "poly"),
     .help = "How the learning rate falls: drops, to a tenth after each of the epochs lr_drops; cosine, half a cosine to "
             "0; poly, lr (1 - done)^lr_power, with `done` from 0 to 1"},
    {F(INTS, lr_drops), "8,11", .min = 1, .max = 1e6,
     .help = "With lr_decay drops: the epochs after which the learning rate falls to a tenth"},
    {F(FLOAT, lr_power), "0.9", .min = 0, .max = 10, .help = "With lr_decay poly: its power"},
    {F(INT, warmup_steps), "500", .min = 0, .max = 1e9,
     .help = "Steps of linear warm-up (if not given, at most a tenth of all steps; a number that a config file gives for "
             "a longer run is shortened likewise)"},
    {F(FLOAT, lr_warmup), "0.001", .min = 0, .max = 1,
     .help = "Learning rate at the start of the warm-up, as a fraction of that at its end"},
};
#undef F
const ConfigGroup dense_schedule_settings = {CONFIG_GROUP(DenseScheduleSettings, dense_entries),
                                             .change = CHANGE_FREELY};

void dense_schedule_fit(const Config *config, DenseScheduleSettings *s, uint64_t steps) {
    s->warmup_steps = fit_steps(config, s->warmup_steps, steps);
}

/* The factor of the learning rate without warm-up. */
static double decay_of(const DenseScheduleSettings *s, uint64_t step, uint64_t steps, uint64_t epoch) {
    double done = step < steps ? (double)step / (double)steps : 1, factor = 1;
    if (s->lr_decay == DECAY_COSINE) return 0.5 * (1 + cos(M_PI * done));
    if (s->lr_decay == DECAY_POLY) return pow(1 - done, (double)s->lr_power);
    for (int i = 0; i < s->lr_drops.count; i++)
        if (epoch >= (uint64_t)s->lr_drops.at[i]) factor *= 0.1;
    return factor;
}

float dense_lr(const DenseScheduleSettings *s, uint64_t step, uint64_t steps, uint64_t epoch) {
    double rate = (double)s->lr * decay_of(s, step, steps, epoch);
    if (step < (uint64_t)s->warmup_steps)
        rate *= 1 - (1 - (double)s->lr_warmup) * (1 - (double)step / (double)s->warmup_steps);
    return (float)rate;
}
