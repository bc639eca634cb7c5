/* Distillation (Hinton et al. 2015; DeiT, Touvron et al. 2021): the logits of a teacher as a second target.  The
 * teacher is a file of logits of the training images, or a checkpoint whose model is given the same batches as the
 * student. docs/guide/distillation.md has the losses. */
#ifndef VIT_LAYERS_VIT_DISTILLATION_H
#define VIT_LAYERS_VIT_DISTILLATION_H

#include "core/config/config.h"

typedef enum { DISTILLATION_NONE, DISTILLATION_SOFT, DISTILLATION_HARD } DistillationKind;

typedef struct {
    DistillationKind kind;
    float alpha, tau;
} Distillation;

typedef struct {
    const char *teacher;
    int distillation; /* of DistillationKind */
    float distillation_alpha, distillation_tau;
} DistillationSettings;

extern const ConfigGroup distillation_settings;

/* Rejects a teacher without a loss, and a loss without a teacher. */
void distillation_check(const Config *config, const DistillationSettings *s);

static inline Distillation distillation_of(const DistillationSettings *s) {
    return (Distillation){(DistillationKind)s->distillation, s->distillation_alpha, s->distillation_tau};
}

#endif
