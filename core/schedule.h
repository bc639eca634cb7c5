/* The learning rate over a run: linear warm-up, then half a cosine, as timm's CosineLRScheduler has it; or steps. */
#ifndef VIT_CORE_SCHEDULE_H
#define VIT_CORE_SCHEDULE_H

#include "core/config.h"

/* -- Warm-up and cosine -- */

typedef enum { LR_EVERY_EPOCH, LR_EVERY_STEP } LrSchedule;

typedef struct {
    float lr;
    int lr_base_batch;
    float lr_min, lr_warmup, warmup_epochs;
    LrSchedule lr_schedule;
} CosineSettings;

extern const ConfigGroup cosine_settings;

/* What takes the number of epochs: the default of warmup_epochs, and whether it is too long. */
void cosine_check(const Config *config, CosineSettings *s, int epochs);

/* lr for batches of that size. */
float cosine_peak(const CosineSettings *s, int batch_size);

/* The rate after `done` of `epochs` (with their fraction); peak: cosine_peak's. */
float cosine_lr(const CosineSettings *s, float peak, int epochs, double done);

/* -- Steps -- */

typedef struct {
    float lr;
    int lr_drop;
} DropSettings;

extern const ConfigGroup drop_settings;

/* A tenth of lr for every lr_drop epochs that are done; 0: lr as it is. */
float drop_lr(const DropSettings *s, double done);

#endif
