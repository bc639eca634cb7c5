/* Training transforms.  Each is a pure function of (seed, epoch, sample index): the number of threads or ranks and a
 * resumed run change nothing. */
#ifndef VIT_DATA_AUGMENT_H
#define VIT_DATA_AUGMENT_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int pad;   /* random crop of the image inside a black frame this wide; 0: no crop */
    bool flip; /* mirror left and right with probability 1/2 */
} Augment;

/* What was drawn for one sample: the crop starts at (dy, dx) from the image's own corner, -pad to pad each. */
typedef struct {
    int dy, dx;
    bool mirror;
} AugmentDraw;

AugmentDraw augment_draw(Augment augment, uint64_t seed, uint32_t epoch, uint32_t index);

/* out, in [height,width,3], not overlapping.  Crop, then mirror: torchvision's RandomCrop(size, padding=pad) and
 * RandomHorizontalFlip, the order DeiT trains CIFAR with. */
void augment_apply(uint8_t *out, const uint8_t *in, int height, int width, AugmentDraw draw);

#endif
