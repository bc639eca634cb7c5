/* The settings of a backbone made of a vision transformer's stages: those of train_vit (VitSettings) that mean
 * something for four maps of images of any size, under the same names. */
#ifndef VIT_LAYERS_BACKBONE_HIERARCHY_H
#define VIT_LAYERS_BACKBONE_HIERARCHY_H

#include "layers/vit/trunk.h"

/* Adds them, and those of the operators that allow images of any size; they count with the value `owner` of the setting
 * `chooser`.  hierarchy_use_settings marks them as used. */
void hierarchy_add_settings(Config *config, const char *chooser, const char *owner);
void hierarchy_use_settings(Config *config);

/* What they are for a trunk, and the norms at its stages' ends. */
VitSettings hierarchy_settings(const Config *config);
TrunkEnds hierarchy_ends(const Config *config);

#endif
