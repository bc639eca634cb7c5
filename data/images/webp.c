#include "data/images/webp.h"

#include <stdlib.h>
#include <webp/decode.h>

bool webp_supported(void) { return true; }

bool webp_decode(Image *image, const uint8_t *bytes, size_t size, size_t most_pixels, Error *error) {
    WebPBitstreamFeatures features;
    if (WebPGetFeatures(bytes, size, &features) != VP8_STATUS_OK) return refuse(error, "a damaged WebP");
    if (features.has_animation) return refuse(error, "an animated WebP, expected one picture");
    size_t pixels = (size_t)features.height * (size_t)features.width; /* at most 2^28 by the format */
    if (pixels > most_pixels)
        return refuse(error, "%d x %d pixels, expected at most %d a side and %zu in all", features.height,
                      features.width, IMAGE_MAX_SIDE, most_pixels);
    uint8_t *rgb = malloc(3 * pixels);
    if (!rgb) return refuse_memory(error, 0, "a picture");
    if (!WebPDecodeRGBInto(bytes, size, rgb, 3 * pixels, 3 * features.width)) {
        free(rgb);
        return refuse(error, "a damaged WebP");
    }
    *image = (Image){features.height, features.width, rgb};
    return true;
}
