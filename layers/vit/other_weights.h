/* Weights of published vision transformers that are not this model's. */
#ifndef VIT_LAYERS_VIT_OTHER_WEIGHTS_H
#define VIT_LAYERS_VIT_OTHER_WEIGHTS_H

#include "layers/model.h"

/* Reads the header of a safetensors file of weights and dies, in one line that names what is different and the setting
 * that decides it, where they are of another family, have what no setting makes (LayerScale, a distillation token), or
 * differ from the model in stem, stages, sizes or class token.  Where a plain vision transformer of another
 * program has other shapes, a line on stdout before it has the settings that they follow from. */
void other_weights_refuse(const Model *model, const char *path);

#endif
