/* From a sample to pixels of the model's size: what is decoded, cut out, resized and mirrored.  Every draw is a pure
 * function of (seed, epoch, draw).
 *
 * RandAugment or colour jitter follow in training (data/augment.h).
 *
 *   images of the model's size already   crop after padding, flip; evaluation: as they are
 *   all others, training                 RandomResizedCrop, flip
 *   all others, evaluation               resize so that the short side is eval_resize, cut out the centre */
#ifndef VIT_DATA_TRANSFORM_H
#define VIT_DATA_TRANSFORM_H

#include "core/error.h"
#include "data/augment.h"
#include "data/dataset.h"
#include "data/resample.h"

typedef struct JpegReader JpegReader;

typedef struct {
    int height, width; /* of what comes out */
    bool train;
    Augment augment;
    float area[2], ratio[2]; /* RandomResizedCrop: share of the picture, width / height; {0,0}: 0.08-1, 3/4-4/3 */
    int eval_resize;         /* 0: 256/224 of height and width */
    ResampleFilter filter;
    bool exact_decode; /* never decode a JPEG at a fraction of its size: the pixels are Pillow's */
} Transform;

/* What a draw depends on. */
typedef struct {
    uint64_t seed;
    uint32_t epoch, draw; /* draw: the image's number, or sampler.h's */
} TransformKey;

typedef struct {
    int top, left, height, width;
} Crop;

/* Which part of a picture [height,width] training sees: torchvision's RandomResizedCrop.  Ten times an area and an
 * aspect ratio (uniform in its logarithm) until they fit, then the largest centre crop within the ratios. */
Crop transform_crop(const Transform *transform, TransformKey key, int height, int width);

/* What evaluation resizes a picture [height,width] to, and which part of that it keeps: torchvision's Resize and
 * CenterCrop, to the pixel. */
Crop transform_centre(const Transform *transform, int height, int width, int *resized_height, int *resized_width);

/* Decoder and buffers; one for each thread.  Starts as {0}. */
typedef struct {
    JpegReader *jpeg;
    Resampler resampler;
    SampleBuffer bytes, pixels, crop;
} TransformScratch;

void transform_scratch_free(TransformScratch *scratch);

/* out [height,width,3].  fixed: all images of the data set have one size (Dataset.height).  False: `error` says what is
 * wrong with the picture. */
bool transform_sample(TransformScratch *scratch, uint8_t *out, const Sample *sample, bool fixed,
                      const Transform *transform, TransformKey key, Error *error);

#endif
