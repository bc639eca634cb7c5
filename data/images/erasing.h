/* Random erasing (Zhong et al. 2017) as timm does it (timm/data/random_erasing.py): with some probability one box of
 * an image, of 0.02 to 1/3 of its area and aspect 0.3 to 1/0.3, is overwritten after normalisation.  The values
 * written there are drawn on the device (images_mix of kernels/tokens/images.h). */
#ifndef VIT_DATA_IMAGES_ERASING_H
#define VIT_DATA_IMAGES_ERASING_H

#include "core/config/config.h"
#include "kernels/tokens/images.h"

typedef struct {
    float reprob;
    ImageNoise remode;
} ErasingSettings;

extern const ConfigGroup erasing_settings;

/* box: top, left, bottom, right, the last two exclusive; all 0 if nothing is erased.  Returns whether there is one. */
bool erasing_draw(int box[4], float probability, uint64_t seed, uint32_t epoch, uint32_t draw, int height, int width);

#endif
