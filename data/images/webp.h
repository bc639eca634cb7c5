/* WebP through libwebp.  The Makefile compiles webp.c if the library is installed, otherwise webp_none.c, which reports
 * that it is not. */
#ifndef VIT_DATA_IMAGES_WEBP_H
#define VIT_DATA_IMAGES_WEBP_H

#include <stdbool.h>

#include "core/error.h"
#include "data/images/pixels.h"

/* Whether this build can read WebP. */
bool webp_supported(void);

/* Like image_decode, for bytes that begin as a WebP file does. */
bool webp_decode(Image *image, const uint8_t *bytes, size_t size, size_t most_pixels, Error *error);

#endif
