#include "layers/vit/distillation.h"

#define F(KIND, field) CONFIG_FIELD(KIND, DistillationSettings, field)
static const ConfigEntry entries[] = {
    {F(STRING, teacher), .section = "distillation", .argument = "FILE", .change = CHANGE_FREELY,
     .help = "Teacher for distillation: a checkpoint of another model, which is given the same batches, or the logits "
             "of the training images in a file of --write-logits"},
    {F(CHOICE, distillation), "none", CONFIG_CHOICES("none", "soft", "hard"),
     .help = "Loss against the teacher: soft, the divergence of the softmax of both logits over distillation_tau; "
             "hard, cross entropy against the class that the teacher finds most likely (DeiT). With distilled true it "
             "trains the distillation token's classifier"},
    {F(FLOAT, distillation_alpha), "0.5", .min = 0, .max = 1, .change = CHANGE_FREELY,
     .help = "Weight w of the loss against the teacher; the loss against the labels has 1 - w"},
    {F(FLOAT, distillation_tau), "3", .min = 0.01, .max = 100, .change = CHANGE_FREELY,
     .help = "Temperature of the soft loss, which divides both logits; the loss is multiplied by its square"},
};
#undef F

void distillation_check(const Config *config, const DistillationSettings *s) {
    bool loses = s->distillation != DISTILLATION_NONE;
    if (*s->teacher && !loses)
        config_reject(config, "teacher", "{teacher} gives targets, but {distillation} has no loss for them: use "
                                         "distillation hard, or soft");
    if (!*s->teacher && loses)
        config_reject(config, "distillation", "{distillation} learns from a teacher, and there is none: give --teacher");
}

const ConfigGroup distillation_settings = {CONFIG_GROUP(DistillationSettings, entries), .change = CHANGE_NEVER};
