/* The settings of a backbone made of a vision transformer's stages: those of train_vit (VitSettings) that apply to four
 * maps of images of any size, with the same names. */
#ifndef VIT_LAYERS_BACKBONE_HIERARCHY_H
#define VIT_LAYERS_BACKBONE_HIERARCHY_H

#include "layers/vit/trunk.h"

/* Adds these settings, and those of the operators that support images of any size; they apply if the setting `chooser`
 * has the value `owner`.  hierarchy_use_settings marks them as used. */
void hierarchy_add_settings(Config *config, const char *chooser, const char *owner);
void hierarchy_use_settings(Config *config);

/* The same as settings of a trunk, and the norms at the ends of its stages. */
VitSettings hierarchy_settings(const Config *config);
TrunkEnds hierarchy_ends(const Config *config);

#endif
