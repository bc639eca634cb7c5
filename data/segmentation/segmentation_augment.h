/* mmsegmentation's transforms of a picture and its labels for semantic segmentation.  Draws are a pure function of
 * (seed, epoch, sample index).
 *
 *   training    resize to fit (r scale_long, r scale_short), truncated, r uniform in [scale_min, scale_max); crop
 *               crop_size x crop_size at a uniform place, drawn up to eleven times until it has more than one class and
 *               the commonest has less than crop_most of its labelled pixels; mirror with probability 1/2; colours by
 *               data/images/photometric
 *   evaluation  resize to fit (scale_long, scale_short), then each side to the next multiple of 32 by a second resize
 *               (AlignResize of whai362/PVT); labels keep their size
 *
 * A picture fits (L, S) when it is resized by f = min(L / long side, S / short side), sides int(f side + 1/2).  Pixels
 * are resized as by Pillow's BILINEAR, labels to the nearest as by OpenCV's INTER_NEAREST: row y of h from row
 * min(floor(y / (h / H)), H - 1) of H. */
#ifndef VIT_DATA_SEGMENTATION_SEGMENTATION_AUGMENT_H
#define VIT_DATA_SEGMENTATION_SEGMENTATION_AUGMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/config/config.h"
#include "data/images/photometric.h"
#include "data/images/transform.h"

enum { SEGMENTATION_MULTIPLE = 32 }; /* both sides of what enters a network */

typedef struct {
    int scale_long, scale_short;
    float scale_min, scale_max;
    int crop_size;
    float crop_most;
    bool flip, photometric;
} SegmentationAugment;

extern const ConfigGroup segmentation_augment_settings;

/* Resize a picture from_height x from_width to height x width, cut out the rectangle crop_height x crop_width at
 * (top, left), resize that to out_height x out_width (in training its own size), mirror, change colours. */
typedef struct {
    int from_height, from_width, height, width;
    int top, left, crop_height, crop_width, out_height, out_width;
    bool mirror;
    Photometric colours;
} SegmentationDraw;

/* Draws everything for training except the choice among crops: the crop is the first one drawn. */
SegmentationDraw segmentation_draw(const SegmentationAugment *augment, int height, int width, uint64_t seed,
                                   uint32_t epoch, uint32_t index);

/* Moves the crop to the next drawn place until it satisfies crop_most, and writes the crop's labels, mirrored if the
 * draw says so, to out [crop_height,crop_width], rows `stride` bytes apart. labels [from_height,from_width].  False:
 * out of memory. */
bool segmentation_crop(SegmentationDraw *draw, uint8_t *out, size_t stride, const uint8_t *labels,
                       const SegmentationAugment *augment, uint64_t seed, uint32_t epoch, uint32_t index,
                       TransformScratch *scratch);

/* The transform for evaluation. */
SegmentationDraw segmentation_resize(const SegmentationAugment *augment, int height, int width);

/* Applies the draw to a picture: out [out_height,out_width,3], rows `stride` bytes apart.  False: out of memory. */
bool segmentation_pixels(TransformScratch *scratch, uint8_t *out, size_t stride, const ImagePart *picture,
                         const SegmentationDraw *draw);

#endif
