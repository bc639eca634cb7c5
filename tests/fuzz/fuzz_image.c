/* libFuzzer target: the image reader, the resize after it, and the reader of stored values.  Images have at most 2^18
 * pixels, since a few bytes of a larger image can take seconds to decode. */
#include <stdlib.h>
#include <string.h>

#include "data/images/image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 1 << 18 };

static void check_size(int height, int width) {
    if (height < 1 || width < 1 || (size_t)height * (size_t)width > MOST) abort();
}

static void read_values(const uint8_t *data, size_t size) {
    Error error;
    ImageValues values;
    unsigned sum = 0;
    uint8_t *bytes = malloc(size ? size : 1);
    if (size) memcpy(bytes, data, size);
    if (image_decode_values(&values, bytes, size, MOST, &error)) {
        check_size(values.height, values.width);
        for (int i = 0; i < values.height * values.width; i++) sum += values.at[i];
        if (sum > 255u * MOST) abort();
        image_values_free(&values);
    }
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Error error;
    Image image;
    read_values(data, size);
    if (!image_decode(&image, data, size, MOST, &error)) return 0;
    check_size(image.height, image.width);
    uint8_t out[9 * 8 * 3];
    image_resize(out, 9, 8, image.pixels, image.height, image.width);
    image_free(&image);
    return 0;
}
