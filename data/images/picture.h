/* One picture as a model reads it: brought to the model's size as in evaluation. */
#ifndef VIT_DATA_IMAGES_PICTURE_H
#define VIT_DATA_IMAGES_PICTURE_H

#include "data/images/transform.h"

/* out [transform->height,transform->width,3] from an image file, or from pixels [height,width,3].  whole: the whole picture is
 * resized, whatever its aspect ratio, as fits data sets whose images have the model's size; else it is resized and its
 * centre is cropped.  `scratch` is used again by later calls.  On failure returns false and sets `error`. */
bool picture_of_file(uint8_t *out, const char *path, const Transform *transform, bool whole, TransformScratch *scratch,
                     Error *error);
bool picture_of_pixels(uint8_t *out, const uint8_t *pixels, int height, int width, const Transform *transform, bool whole,
                       TransformScratch *scratch, Error *error);

#endif
