/* mmsegmentation's PhotoMetricDistortion of a picture's colours (mmseg/datasets/transforms/transforms.py), with the
 * roundings of OpenCV's 8-bit HSV.  Each step happens with probability 1/2:
 *   brightness   + uniform in [-32, 32)
 *   contrast     * uniform in [0.5, 1.5], here or at the end, by a coin
 *   saturation   S of HSV * uniform in [0.5, 1.5]
 *   hue          H of HSV + a whole number in -18 .. 17, of the 180 of a circle */
#ifndef VIT_DATA_IMAGES_PHOTOMETRIC_H
#define VIT_DATA_IMAGES_PHOTOMETRIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    bool brighten, contrast_first, saturate, turn, contrast_last; /* which steps happen, in this order */
    float brightness, contrast, saturation;
    int hue;
} Photometric;

Photometric photometric_draw(uint64_t seed, uint32_t epoch, uint32_t draw);

/* Changes pixels [height,width,3], rows `stride` bytes apart, in place. */
void photometric_apply(uint8_t *pixels, size_t stride, int height, int width, const Photometric *draw);

#endif
