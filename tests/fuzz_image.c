/* libFuzzer target: the picture reader and the resize behind it.  Pictures are kept below 2^18 pixels: beyond, a few
 * bytes can ask for seconds of honest work. */
#include <stdlib.h>

#include "data/image.h"

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
