/* Training transforms, in this order: crop, mirror, then RandAugment, AutoAugment or colour jitter.  The AutoAugment of
 * Compact Transformers comes first instead where images have the model's size.  Normalisation, random erasing and mixup
 * follow on the device (kernels.h, images_mix).  Each is a pure function of (seed, epoch, draw), where draw is the
 * sample's index or, with repeated augmentation, the number from sampler_draw.  The result therefore does not depend on
 * the number of threads or ranks, or on whether the run was resumed. */
#ifndef VIT_DATA_IMAGES_AUGMENT_H
#define VIT_DATA_IMAGES_AUGMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/config/config.h"
#include "data/images/autoaugment.h"
#include "data/images/jitter.h"
#include "data/images/randaugment.h"

typedef struct {
    int crop_padding; /* pad with this many black pixels on each side, then crop at random; 0: no crop */
    bool flip;        /* mirror left and right with probability 1/2 */
    const char *aa;   /* RandAugment, as timm's --aa string, or AutoAugment by its policy's name; "": none */
    RandAugmentResample train_interpolation;
    float color_jitter; /* strength of colour jitter; off with RandAugment and AutoAugment */
} AugmentSettings;

extern const ConfigGroup augment_settings;

/* The settings, with the string aa parsed. */
typedef struct {
    AugmentSettings s;
    RandAugment randaugment;
    AutoAugmentPolicy autoaugment;
} Augment;

/* The settings must have been checked already. */
Augment augment_of(const AugmentSettings *settings);

/* The random draws of one sample.  The crop starts at (dy, dx) relative to the top left corner of the unpadded image;
 * each lies in -crop_padding .. crop_padding. */
typedef struct {
    int dy, dx;
    bool mirror;
    RandAugmentDraw randaugment;
    AutoAugmentDraw autoaugment;
    bool jittered;
    JitterDraw jitter;
} AugmentDraw;

AugmentDraw augment_draw(Augment augment, uint64_t seed, uint32_t epoch, uint32_t index);

/* Whether RandAugment, AutoAugment or colour jitter is on; and whether it comes before crop and mirror for images of
 * the model's size. */
bool augment_has_pixels(const Augment *augment);
bool augment_begins_with_pixels(const Augment *augment);

/* Mirrors pixels [height,width,3] in place, left to right. */
void augment_mirror(uint8_t *pixels, int height, int width);

/* out and in are [height,width,3] and must not overlap.  Crops, then mirrors: torchvision's RandomCrop with
 * crop_padding and RandomHorizontalFlip, the order DeiT trains CIFAR with. */
void augment_apply(uint8_t *out, const uint8_t *in, int height, int width, AugmentDraw draw);

/* Applies RandAugment, AutoAugment or colour jitter in place.  scratch holds pillow_scratch(height, width) bytes. */
void augment_pixels(uint8_t *pixels, uint8_t *scratch, int height, int width, const AugmentDraw *draw);

#endif
