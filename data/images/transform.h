/* From a sample to pixels of the model's size: decode, crop, resize and mirror.  Every draw is a pure
 * function of (seed, epoch, draw).
 *
 * RandAugment, AutoAugment or colour jitter follow in training, or come first (data/images/augment.h).
 *
 * The frames of a clip are images with the same key, so all are cropped, mirrored and recoloured alike.
 *
 *   images already of the model's size   crop after padding, flip; evaluation: unchanged
 *   all others, training                 RandomResizedCrop, or with short_side_max a random crop of the picture resized
 *                                        to a drawn short side (SlowFast's scale jitter), flip
 *   all others, evaluation               resize the short side to eval_resize, then centre crop */
#ifndef VIT_DATA_IMAGES_TRANSFORM_H
#define VIT_DATA_IMAGES_TRANSFORM_H

#include "core/config/config.h"
#include "core/error.h"
#include "data/images/augment.h"
#include "data/images/jpeg.h"
#include "data/images/resample.h"
#include "data/images/sample.h"

typedef struct {
    /* RandomResizedCrop: fraction of the area; width / height.  A maximum of 0 means 0.08-1 and 3/4-4/3 */
    float crop_area_min, crop_area_max, crop_ratio_min, crop_ratio_max;
    int short_side_min, short_side_max; /* training: range of the short side to which a picture is resized before a
                                         * crop; 0: not used */
    int eval_resize; /* 0: 256/224 times height and width */
    ResampleFilter interpolation;
    bool exact_decode; /* never decode a JPEG at reduced size, so that the pixels equal Pillow's */
} TransformSettings;

extern const ConfigGroup transform_settings;

/* Checks that crops are not smaller than the output. */
void transform_check(const Config *config, const TransformSettings *s, int height, int width);

typedef struct {
    int height, width; /* of the output */
    bool train;
    int crop, crops; /* evaluation: which of several crops along the longer side; crops 0 or 1: the centre */
    TransformSettings s;
    Augment augment;
} Transform;

/* The random draws of a sample are a function of these numbers. */
typedef struct {
    uint64_t seed;
    uint32_t epoch, draw; /* draw: the image's index, or the number from sampler_draw */
} TransformKey;

typedef struct {
    int top, left, height, width;
} Crop;

/* The crop of a picture [height,width] for training: torchvision's RandomResizedCrop.  Makes up to ten attempts to draw
 * a fitting area and aspect ratio (uniform in its logarithm), then takes the largest centre crop within the ratios. */
Crop transform_crop(const Transform *transform, TransformKey key, int height, int width);

/* Whether training mirrors the sample. */
bool transform_mirrors(const Transform *transform, TransformKey key);

/* For evaluation, the size to which a picture [height,width] is resized and the crop of the result: exactly
 * torchvision's Resize and CenterCrop. */
Crop transform_centre(const Transform *transform, int height, int width, int *resized_height, int *resized_width);

/* Decoder and buffers; each thread needs its own.  Initialise to {0}. */
typedef struct {
    JpegReader *jpeg;
    Resampler resampler;
    SampleBuffer bytes, pixels, crop, labels; /* labels: of every pixel, for segmentation */
} TransformScratch;

void transform_scratch_free(TransformScratch *scratch);

/* out [height,width,3].  fixed: all images of the data set have one size (Dataset.height is not 0).  On failure returns
 * false and sets `error`. */
bool transform_sample(TransformScratch *scratch, uint8_t *out, const Sample *sample, bool fixed,
                      const Transform *transform, TransformKey key, Error *error);

#endif
