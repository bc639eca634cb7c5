/* Layer-wise decay of the learning rate, for fine-tuning: group g of n has the factor decay^(n - 1 - g), so that layers
 * nearer to the image change less.  The groups are those of ConvNeXt's and BEiT's optim_factory.py:
 *
 *   group 0    the patch embedding, the class token, the position embedding
 *   then       one stage: a group for each block (BEiT, timm);  several stages: a group for every three blocks of a
 *              stage (ConvNeXt), 1 + 1 + 9 + 1 groups for blocks 3,3,27,3, with the patch embedding in front of the
 *              stage in its first group, and the norm in front of that embedding there too
 *   last       the final norm and the classifier
 *
 * A stage whose number of blocks is no multiple of three ends with a smaller group. */
#ifndef VIT_LAYERS_VIT_LAYER_DECAY_H
#define VIT_LAYERS_VIT_LAYER_DECAY_H

#include "layers/vit/vit.h"

typedef struct {
    float layer_decay;
} LayerDecaySettings;

extern const ConfigGroup layer_decay_settings;

/* Rejects models with more groups than the optimizer has learning rates. */
void layer_decay_check(const Config *config, const LayerDecaySettings *s, const VitSettings *model);

/* The number of groups, and the group of a parameter. */
int layer_decay_groups(const VitSettings *model);
int layer_decay_group(const VitSettings *model, const char *name);
/* The factor of its learning rate. */
float layer_decay_rate(const VitSettings *model, const char *name, float decay);

/* Sets Param.rate of every parameter.  Call before params_allocate_optimizer. */
void layer_decay_apply(Vit *vit, const LayerDecaySettings *s);

#endif
