/* AutoAugment (Cubuk et al. 2019): one of 25 pairs of operations, each operation with a probability and a strength that
 * were searched for.  autoaugment_draw is a pure function of (seed, epoch, draw number), and autoaugment_apply applies
 * its result. */
#ifndef VIT_DATA_IMAGES_AUTOAUGMENT_H
#define VIT_DATA_IMAGES_AUTOAUGMENT_H

#include "core/error.h"
#include "data/images/randaugment.h"

typedef enum {
    AUTOAUGMENT_NONE,
    AUTOAUGMENT_CIFAR10,  /* torchvision's AutoAugmentPolicy.CIFAR10: black behind the border, nearest pixels */
    AUTOAUGMENT_IMAGENET, /* torchvision's AutoAugmentPolicy.IMAGENET, likewise */
    AUTOAUGMENT_COMPACT   /* the CIFAR-10 pairs as Compact Transformers have them: grey 128 behind the border, shears
                           * bicubic, rotation in one direction, 256 in place of 255 where solarizing starts; applied
                           * before crop and mirror where images have the model's size */
} AutoAugmentPolicy;

/* Whether `text` begins with "autoaugment". */
bool autoaugment_named(const char *text);
/* Reads autoaugment-cifar10, -imagenet or -compact; false with `error` set if it is none of them. */
bool autoaugment_parse(AutoAugmentPolicy *policy, const char *text, Error *error);

enum { AUTOAUGMENT_PAIRS = 25 };

/* Which pair, which of its two operations are applied, and which of these in the negative direction if they have one. */
typedef struct {
    AutoAugmentPolicy policy;
    int pair;
    bool applies[2], negative[2];
} AutoAugmentDraw;

AutoAugmentDraw autoaugment_draw(AutoAugmentPolicy policy, uint64_t seed, uint32_t epoch, uint32_t draw);

/* Changes pixels [height,width,3] in place; scratch has pillow_scratch(height, width) bytes. */
void autoaugment_apply(uint8_t *pixels, uint8_t *scratch, int height, int width, const AutoAugmentDraw *draw);

#endif
