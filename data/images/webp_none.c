#include "data/images/webp.h"

bool webp_supported(void) { return false; }

bool webp_decode(Image *image, const uint8_t *bytes, size_t size, size_t most_pixels, Error *error) {
    (void)image, (void)bytes, (void)size, (void)most_pixels;
    return refuse(error, "a WebP picture, and this build has no libwebp: install libwebp-dev and run make again");
}
