/* The learning rate over a run: linear warm-up, then half a cosine, as timm's CosineLRScheduler has it. */
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

#endif
