/* Training transforms, in this order: crop, mirror, then RandAugment or colour jitter.  Normalisation, random erasing
 * and mixup follow on the device (kernels.h, images_mix).  Each is a pure function of (seed, epoch, draw), draw being
 * the sample's index, or with repeated augmentation sampler.h's number: threads, ranks and a resumed run change
 * nothing. */
#ifndef VIT_DATA_AUGMENT_H
#define VIT_DATA_AUGMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/config.h"
#include "data/jitter.h"
#include "data/randaugment.h"

typedef struct {
    int crop_padding; /* random crop of the image inside a black frame this wide; 0: no crop */
    bool flip;        /* mirror left and right with probability 1/2 */
    const char *aa;   /* RandAugment by timm's name, "": none */
    RandAugmentResample train_interpolation;
    float color_jitter; /* colour jitter of this strength; not with RandAugment */
} AugmentSettings;

extern const ConfigGroup augment_settings;

/* The settings, and what aa stands for. */
typedef struct {
    AugmentSettings s;
    RandAugment randaugment;
} Augment;

/* The settings have been checked. */
Augment augment_of(const AugmentSettings *settings);

/* What was drawn for one sample: the crop starts at (dy, dx) from the image's own corner, -crop_padding to
 * crop_padding each. */
typedef struct {
    int dy, dx;
    bool mirror;
    RandAugmentDraw randaugment;
    bool jittered;
    JitterDraw jitter;
} AugmentDraw;

AugmentDraw augment_draw(Augment augment, uint64_t seed, uint32_t epoch, uint32_t index);

/* Does it change colours or shapes, beyond crop and mirror? */
bool augment_has_pixels(const Augment *augment);

/* out, in [height,width,3], not overlapping.  Crop, then mirror: torchvision's RandomCrop with crop_padding and
 * RandomHorizontalFlip, the order DeiT trains CIFAR with. */
void augment_apply(uint8_t *out, const uint8_t *in, int height, int width, AugmentDraw draw);

/* The rest: RandAugment or colour jitter, in place, with pillow_scratch(height, width) bytes of scratch. */
void augment_pixels(uint8_t *pixels, uint8_t *scratch, int height, int width, const AugmentDraw *draw);

#endif
