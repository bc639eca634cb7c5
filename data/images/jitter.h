/* Colour jitter as torchvision does it to pictures (transforms.ColorJitter): brightness, contrast and saturation, each
 * changed by a factor uniform in [max(0, 1 - s), 1 + s], in random order.  Saturation is Pillow's Color. */
#ifndef VIT_DATA_IMAGES_JITTER_H
#define VIT_DATA_IMAGES_JITTER_H

#include <stddef.h>
#include <stdint.h>

typedef enum { JITTER_BRIGHTNESS, JITTER_CONTRAST, JITTER_SATURATION, JITTERS } Jitter;

typedef struct {
    Jitter order[JITTERS];
    float factor[JITTERS]; /* indexed by Jitter */
} JitterDraw;

JitterDraw jitter_draw(float strength, uint64_t seed, uint32_t epoch, uint32_t draw);

/* Changes pixels [n,3] in place. */
void jitter_apply(uint8_t *pixels, size_t n, const JitterDraw *draw);

#endif
