#include "layers/vit/layer_decay.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define F(KIND, field) CONFIG_FIELD(KIND, LayerDecaySettings, field)
static const ConfigEntry entries[] = {
    {F(FLOAT, layer_decay), "1", .section = "training", .min = 0.01, .max = 1,
     .help = "Layer-wise decay of the learning rate, for fine-tuning: each group of layers has this factor times the "
             "learning rate of the next group (1: all have the same). A group is one block, or with several stages "
             "three blocks of a stage, as in ConvNeXt"},
};
#undef F
const ConfigGroup layer_decay_settings = {CONFIG_GROUP(LayerDecaySettings, entries), .change = CHANGE_FREELY};

/* The number of consecutive blocks with the same learning rate. */
static int blocks_together(const VitSettings *model) { return model->dim.count > 1 ? 3 : 1; }

/* The group of the first block of a stage; for the stage after the last one, the last group. */
static int first_group(const VitSettings *model, int stage) {
    int group = 1, together = blocks_together(model);
    for (int i = 0; i < stage; i++) {
        int depth = model->depth.at[model->depth.count > 1 ? i : 0];
        group += (depth + together - 1) / together;
    }
    return group;
}

int layer_decay_groups(const VitSettings *model) { return first_group(model, model->dim.count) + 1; }

static bool begins(const char *name, const char *with) { return !strncmp(name, with, strlen(with)); }

int layer_decay_group(const VitSettings *model, const char *name) {
    int stage = 0, block, rest = 0;
    if (sscanf(name, "pos_embed%d", &stage) == 1) return stage > 1 ? first_group(model, stage - 1) : 0;
    if (begins(name, "patch_embed.") || begins(name, "tokenizer.") || begins(name, "pos_embed")) return 0;
    if (begins(name, "cls_token") || begins(name, "dist_token"))
        return model->dim.count > 1 ? first_group(model, model->dim.count - 1) : 0;
    if (sscanf(name, "stages.%d.%n", &stage, &rest) == 1 || sscanf(name, "layers.%d.%n", &stage, &rest) == 1)
        name += rest;
    if (sscanf(name, "blocks.%d.", &block) == 1) return first_group(model, stage) + block / blocks_together(model);
    if (begins(name, "downsample.")) return first_group(model, stage);
    return rest ? first_group(model, stage + 1) : layer_decay_groups(model) - 1; /* a stage's norm; norm and head */
}

void layer_decay_check(const Config *config, const LayerDecaySettings *s, const VitSettings *model) {
    int groups = layer_decay_groups(model);
    if (s->layer_decay < 1 && groups > PIECE_RATES)
        config_reject(config, "layer_decay", "{layer_decay} supports at most %d groups of layers, but {depth} makes %d",
                      PIECE_RATES, groups);
}

float layer_decay_rate(const VitSettings *model, const char *name, float decay) {
    int after = layer_decay_groups(model) - 1 - layer_decay_group(model, name);
    return (float)pow((double)decay, after);
}

void layer_decay_apply(Vit *vit, const LayerDecaySettings *s) {
    Params *params = &vit->model.params;
    for (int i = 0; i < params_count(params); i++)
        params_set_rate(params, i, layer_decay_rate(&vit->settings, params_at(params, i)->name, s->layer_decay));
}
