/* Recognises weights of published vision transformers that do not fit this model. */
#ifndef VIT_LAYERS_VIT_OTHER_WEIGHTS_H
#define VIT_LAYERS_VIT_OTHER_WEIGHTS_H

#include "layers/model.h"

/* Reads the header of a safetensors file of weights and dies, in one line that names what is different and the setting
 * that decides it, if they are of another family, have layers that no setting makes (LayerScale, a distillation token),
 * or differ from the model in stem, stages, sizes or class token.  If a plain vision transformer of another program has
 * other shapes, a line on stdout before that has the settings for those shapes. */
void other_weights_refuse(const Model *model, const char *path);

#endif
