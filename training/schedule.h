/* The learning rate over a run: linear warm-up, then half a cosine, as in timm's CosineLRScheduler; step decay; or
 * the schedules of dense prediction. */
#ifndef VIT_TRAINING_SCHEDULE_H
#define VIT_TRAINING_SCHEDULE_H

#include "core/config/config.h"

/* -- Warm-up and cosine -- */

typedef enum { LR_EVERY_EPOCH, LR_EVERY_STEP } LrSchedule;
typedef enum { WARMUP_LINEAR, WARMUP_RECIPROCAL } WarmupCurve;
typedef enum { COSINE_FROM_START, COSINE_FROM_WARMUP } CosineFrom;

typedef struct {
    float lr;
    int lr_base_batch;
    float lr_min, lr_warmup, warmup_epochs;
    WarmupCurve warmup_curve;
    CosineFrom cosine_from;
    LrSchedule lr_schedule;
} CosineSettings;

extern const ConfigGroup cosine_settings;

/* Sets the default of warmup_epochs for that number of epochs.  A longer warm-up than all epochs is shortened to the
 * default, with a line on stdout; it is rejected if it was given together with epochs, on the command line or in one
 * file. */
void cosine_fit(const Config *config, CosineSettings *s, int epochs);

/* The peak learning rate for that batch size. */
float cosine_peak(const CosineSettings *s, int batch_size);

/* Says on stdout if that peak is below lr_min. */
void cosine_announce(const CosineSettings *s, float peak);

/* The learning rate after `done` (may be fractional) of `epochs` epochs; `peak` is cosine_peak's result. */
float cosine_lr(const CosineSettings *s, float peak, int epochs, double done);

/* -- Warm-up and cosine by steps -- */

typedef struct {
    float lr;
    int warmup_steps;
} StepCosineSettings;

extern const ConfigGroup step_cosine_settings;

/* Adapts warmup_steps to that number of steps.  As that also depends on data and batch_size, a longer warm-up is
 * rejected only if the command line gives both it and epochs. */
void step_cosine_fit(const Config *config, StepCosineSettings *s, uint64_t steps);

/* The learning rate of step 1, 2, ... of `steps`: lr step / W in the warm-up of W, then half a cosine that begins at
 * its end and is 0 in the last step. */
float step_cosine_lr(const StepCosineSettings *s, uint64_t step, uint64_t steps);

/* -- Steps -- */

typedef struct {
    float lr;
    int lr_drop;
} DropSettings;

extern const ConfigGroup drop_settings;

/* The learning rate after `done` epochs: lr, divided by 10 every lr_drop epochs; lr_drop 0: never. */
float drop_lr(const DropSettings *s, double done);

/* -- Dense prediction: warm-up by steps, then one of three ways down -- */

typedef enum { DECAY_DROPS, DECAY_COSINE, DECAY_POLY } LrDecay;

typedef struct {
    float lr, lr_warmup, lr_power;
    int warmup_steps;
    LrDecay lr_decay;
    ConfigInts lr_drops;
} DenseScheduleSettings;

extern const ConfigGroup dense_schedule_settings;

/* Adapts warmup_steps to that number of steps, like step_cosine_fit. */
void dense_schedule_fit(const Config *config, DenseScheduleSettings *s, uint64_t steps);

/* The learning rate of step 0, 1, ... of `steps`, with `batches` steps in an epoch, as in mmdetection and
 * mmsegmentation: in the W steps of warm-up, 1 - (1 - lr_warmup) (1 - step / W) times the result of the decay for that
 * step. */
float dense_lr(const DenseScheduleSettings *s, uint64_t step, uint64_t steps, uint64_t epoch);

#endif
