/* libFuzzer target: the image reader, the resize after it, and the reader of stored values.  Images have at most 2^18
 * pixels, since a few bytes of a larger image can take seconds to decode.  The checksums of a PNG are mended first,
 * because no mutation would get them right. */
#include <stdlib.h>
#include <string.h>

#include "data/images/image.h"
#include "data/images/png.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST = 1 << 18 };

static void check_size(int height, int width) {
    if (height < 1 || width < 1 || (size_t)height * (size_t)width > MOST) abort();
}

/* Changes the bytes. */
static void read_values(uint8_t *bytes, size_t size) {
    Error error;
    ImageValues values;
    unsigned sum = 0;
    if (image_decode_values(&values, bytes, size, MOST, &error)) {
        check_size(values.height, values.width);
        for (int i = 0; i < values.height * values.width; i++) sum += values.at[i];
        if (sum > 255u * MOST) abort();
        image_values_free(&values);
    }
}

static void mend_checksums(uint8_t *bytes, size_t size) {
    if (!png_is(bytes, size)) return;
    for (size_t at = PNG_FIRST, length; png_chunk(bytes, size, at, &length); at += PNG_CHUNK + length) {
        uint32_t crc = png_checksum(bytes + at + 4, 4 + length);
        for (int i = 0; i < 4; i++) bytes[at + 8 + length + (size_t)i] = (uint8_t)(crc >> (24 - 8 * i));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Error error;
    Image image;
    uint8_t *bytes = malloc(size ? size : 1);
    if (size) memcpy(bytes, data, size);
    mend_checksums(bytes, size);
    if (image_decode(&image, bytes, size, MOST, &error)) {
        check_size(image.height, image.width);
        uint8_t out[9 * 8 * 3];
        image_resize(out, 9, 8, image.pixels, image.height, image.width);
        image_free(&image);
    }
    read_values(bytes, size);
    free(bytes);
    return 0;
}
