/* libFuzzer target: the image reader and the following resize.  Images have at most 2^18 pixels, since a few bytes of a
 * larger image can take seconds to decode. */
#include <stdlib.h>

#include "data/images/image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { MOST = 1 << 18 };
    Error error;
    Image image;
    if (!image_decode(&image, data, size, MOST, &error)) return 0;
    if (image.height < 1 || image.width < 1 || (size_t)image.height * (size_t)image.width > MOST) abort();
    uint8_t out[9 * 8 * 3];
    image_resize(out, 9, 8, image.pixels, image.height, image.width);
    image_free(&image);
    return 0;
}
