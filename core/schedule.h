/* The learning rate over a run: linear warm-up, then half a cosine, as timm's CosineLRScheduler has it; or steps. */
#ifndef VIT_CORE_SCHEDULE_H
#define VIT_CORE_SCHEDULE_H

#include <stdbool.h>

typedef struct {
    float lr, lr_min, lr_warmup; /* base, at the end, at the start of the warm-up */
    float warmup_epochs, epochs;
    bool per_epoch; /* constant within an epoch, as timm does by default; else it moves with every step */
} Schedule;

/* The rate after `done` epochs (with their fraction). */
float schedule_lr(const Schedule *schedule, double done);

/* A tenth of lr for every `drop` epochs that are done; 0: lr as it is. */
float schedule_drop(float lr, int drop, int epoch);

#endif
