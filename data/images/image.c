#include "data/images/image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/files.h"
#include "core/integers.h"
#include "core/text.h"
#include "data/images/jpeg.h"
#include "data/images/png.h"
#include "data/images/resample.h"
#include "data/images/webp.h"

/* The largest single allocation that stb may request while it decodes one picture: a PNG of 100 bytes can claim a chunk
 * of 2^30 bytes, and one of a megabyte can decompress to a gigabyte. */
static _Thread_local size_t ceiling;
static _Thread_local bool starved; /* a request within that limit failed: out of memory */

static void *bounded_realloc(void *memory, size_t size) {
    void *larger = size > ceiling ? NULL : realloc(memory, size);
    starved |= !larger && size <= ceiling;
    return larger;
}

/* This file instantiates stb.  stb only decodes from memory; reading files and checking limits is done here. */
#define STBI_MALLOC(size) bounded_realloc(NULL, size)
#define STBI_REALLOC(memory, size) bounded_realloc(memory, size)
#define STBI_FREE(memory) free(memory)
#define STB_IMAGE_IMPLEMENTATION
#define STBI_NO_STDIO
#define STBI_NO_HDR
#define STBI_NO_LINEAR
#define STBI_ONLY_PNG
#define STBI_ONLY_BMP
#define STBI_MAX_DIMENSIONS IMAGE_MAX_SIDE
#include <stb/stb_image.h>

/* stb asserts that it gets memory. */
static void *certain_realloc(void *memory, size_t size) {
    void *larger = realloc(memory, size);
    if (!larger) die("out of memory: %zu bytes for a picture's file", size);
    return larger;
}

#define STBIW_MALLOC(size) certain_realloc(NULL, size)
#define STBIW_REALLOC(memory, size) certain_realloc(memory, size)
#define STBIW_FREE(memory) free(memory)
#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STBI_WRITE_NO_STDIO
#include <stb/stb_image_write.h>

/* == In =========================================================================================================== */

static bool refuse_size(Error *error, int height, int width, size_t most_pixels) {
    return refuse(error, "%d x %d pixels, expected 1 to %d a side and at most %zu in all", height, width, IMAGE_MAX_SIDE,
                  most_pixels);
}

static bool decode_jpeg(Image *image, const uint8_t *bytes, size_t size, size_t most_pixels, Error *error) {
    int height, width;
    ImagePart part;
    JpegReader *reader = jpeg_open();
    uint8_t *pixels = NULL;
    bool ok = reader && jpeg_begin(reader, bytes, size, most_pixels, &height, &width, error) &&
              jpeg_region(reader, 8, (int[]){0, height}, (int[]){0, width}, &part, error);
    if (ok) pixels = malloc((size_t)height * (size_t)width * 3);
    if (!reader || (ok && !pixels)) refuse_memory(error, 0, "a picture");
    if (pixels) memcpy(pixels, part.pixels, (size_t)height * (size_t)width * 3);
    if (pixels) *image = (Image){height, width, pixels};
    jpeg_close(reader);
    return pixels != NULL;
}

/* Positions in a PNG's header, and the colour types. */
enum { PNG_WIDTH = 16, PNG_HEIGHT = 20, PNG_DEPTH = 24, PNG_COLOUR = 25, PNG_HEADER = 33 };
enum { PNG_GREY = 0, PNG_PALETTE = 3 };

static bool webp_is(const uint8_t *bytes, size_t size) {
    return size >= 12 && !memcmp(bytes, "RIFF", 4) && !memcmp(bytes + 8, "WEBP", 4);
}

/* Behind the end of a BMP stb reads zeros, which would become black pixels.  Refuses a file without all of its pixels;
 * the padding of the last row may be missing. */
static bool bmp_is_whole(const uint8_t *bytes, size_t size, int height, int width, Error *error) {
    enum { OFFSET = 10, HEADER = 14, BITS = 28, BITS_OS2 = 24 };
    if (size >= BITS + 2) {
        uint64_t offset = little_endian(bytes + OFFSET);
        const uint8_t *bits = bytes + (little_endian(bytes + HEADER) == 12 ? BITS_OS2 : BITS);
        uint64_t row = (uint64_t)width * (bits[0] | (uint64_t)bits[1] << 8), stride = (row + 31) / 32 * 4;
        if (offset + (uint64_t)(height - 1) * stride + (row + 7) / 8 <= size) return true;
    }
    return refuse(error, "a BMP cut short");
}

/* Decodes a PNG or BMP to `channels` a pixel; NULL, and `error` is set, on failure. */
static uint8_t *decode_stb(const uint8_t *bytes, size_t size, size_t most_pixels, int channels, int *height, int *width,
                           Error *error) {
    int stored;
    /* stb needs twice the file while it collects chunks, and twice 4 channels of 16 bits a pixel while it decompresses;
     * the rest is a margin. */
    ceiling = 2 * size + 16 * most_pixels + (1 << 24);
    starved = false;
    bool png = png_is(bytes, size);
    if (!stbi_info_from_memory(bytes, (int)size, width, height, &stored)) {
        uint32_t most = IMAGE_MAX_SIDE;
        if (starved) return refuse_memory(error, 0, "a picture"), NULL;
        if (png && size >= 24 && (big_endian(bytes + 16) > most || big_endian(bytes + 20) > most))
            return refuse(error, "%u x %u pixels, expected at most %u a side", big_endian(bytes + 20),
                          big_endian(bytes + 16), most), NULL;
        if (png) return refuse(error, "a damaged PNG"), NULL;
        return refuse(error, "not a JPEG, PNG, WebP or BMP picture (%s)", stbi_failure_reason()), NULL;
    }
    if (!png && *height < 0 && *height >= -IMAGE_MAX_SIDE) *height = -*height; /* a BMP from the top down */
    if (*height < 1 || *width < 1 || *height > IMAGE_MAX_SIDE || *width > IMAGE_MAX_SIDE ||
        (size_t)*height * (size_t)*width > most_pixels) {
        return refuse_size(error, *height, *width, most_pixels), NULL;
    }
    if (!png && !bmp_is_whole(bytes, size, *height, *width, error)) return NULL;
    uint8_t *pixels = stbi_load_from_memory(bytes, (int)size, width, height, &stored, channels);
    if (!pixels && starved) refuse_memory(error, 0, "a picture");
    else if (!pixels) refuse(error, "a damaged picture (%s)", stbi_failure_reason());
    return pixels;
}

/* By how many bytes the palette of a PNG, a chunk at *palette, is too short for the largest index that its pixels can
 * have; 0 if it is long enough or stb refuses the file. */
static size_t palette_lacks(const uint8_t *bytes, size_t size, size_t *palette) {
    if (size < PNG_HEADER || bytes[PNG_COLOUR] != PNG_PALETTE || bytes[PNG_DEPTH] > 8) return 0;
    size_t have = 0, need = (size_t)3 << bytes[PNG_DEPTH];
    for (size_t at = PNG_FIRST, length; png_chunk(bytes, size, at, &length); at += PNG_CHUNK + length) {
        const uint8_t *name = bytes + at + 4;
        if (!memcmp(name, "IDAT", 4)) return have && have % 3 == 0 && have < need ? need - have : 0;
        if (!memcmp(name, "tRNS", 4) && 3 * length > have) return 0;
        if (memcmp(name, "PLTE", 4)) continue;
        *palette = at;
        have = length;
    }
    return 0;
}

/* stb leaves colours undefined that a palette lacks.  As in Pillow, they are black. */
static uint8_t *decode_png(const uint8_t *bytes, size_t size, size_t most_pixels, int *height, int *width,
                           Error *error) {
    size_t palette, lacks = palette_lacks(bytes, size, &palette);
    if (!lacks) return decode_stb(bytes, size, most_pixels, 3, height, width, error);
    uint8_t *filled = calloc(size + lacks, 1);
    if (!filled) return refuse_memory(error, size + lacks, "a picture"), NULL;
    size_t length = big_endian(bytes + palette), end = palette + 8 + length;
    memcpy(filled, bytes, end);
    memcpy(filled + end + lacks, bytes + end, size - end);
    filled[palette + 2] = (uint8_t)((length + lacks) >> 8);
    filled[palette + 3] = (uint8_t)(length + lacks);
    uint8_t *pixels = decode_stb(filled, size + lacks, most_pixels, 3, height, width, error);
    free(filled);
    return pixels;
}

static bool check_bytes(size_t size, Error *error) {
    return (size && size <= IMAGE_MAX_BYTES) || refuse(error, "%zu bytes, expected 1 to %d", size, IMAGE_MAX_BYTES);
}

bool image_decode(Image *image, const uint8_t *bytes, size_t size, size_t most_pixels, Error *error) {
    int height, width;
    if (!check_bytes(size, error)) return false;
    if (jpeg_is(bytes, size)) return decode_jpeg(image, bytes, size, most_pixels, error);
    if (webp_is(bytes, size)) return webp_decode(image, bytes, size, most_pixels, error);
    bool png = png_is(bytes, size);
    if (png && !png_check(bytes, size, error)) return false;
    uint8_t *pixels = png ? decode_png(bytes, size, most_pixels, &height, &width, error)
                          : decode_stb(bytes, size, most_pixels, 3, &height, &width, error);
    if (pixels) *image = (Image){height, width, pixels};
    return pixels != NULL;
}

bool image_size(const uint8_t *bytes, size_t size, int *height, int *width, Error *error) {
    int stored;
    if (!check_bytes(size, error)) return false;
    if (jpeg_is(bytes, size)) {
        JpegReader *reader = jpeg_open();
        if (!reader) return refuse_memory(error, 0, "a picture");
        bool ok = jpeg_begin(reader, bytes, size, JPEG_MAX_PIXELS, height, width, error);
        jpeg_close(reader);
        return ok;
    }
    if (webp_is(bytes, size)) {
        Image image;
        if (!webp_decode(&image, bytes, size, IMAGE_MAX_PIXELS, error)) return false;
        *height = image.height;
        *width = image.width;
        image_free(&image);
        return true;
    }
    ceiling = 2 * size + (1 << 24);
    if (!stbi_info_from_memory(bytes, (int)size, width, height, &stored))
        return refuse(error, "not a JPEG, PNG, WebP or BMP picture (%s)", stbi_failure_reason());
    *height = abs(*height); /* negative in a BMP from the top down */
    return true;
}

/* == Values as they are stored ==================================================================================== */

bool image_values_size(const uint8_t *bytes, size_t size, int *height, int *width, Error *error) {
    static const char *const kinds[] = {[2] = "colours", [4] = "grey values with alpha", [6] = "colours with alpha"};
    if (!png_is(bytes, size)) return refuse(error, "not a PNG picture, which keeps values as they were stored");
    if (size < PNG_HEADER || memcmp(bytes + 12, "IHDR", 4)) return refuse(error, "a damaged PNG");
    uint32_t h = big_endian(bytes + PNG_HEIGHT), w = big_endian(bytes + PNG_WIDTH), most = IMAGE_MAX_SIDE;
    int depth = bytes[PNG_DEPTH], colour = bytes[PNG_COLOUR];
    if (!h || !w || h > most || w > most)
        return refuse(error, "%u x %u pixels, expected 1 to %u a side", h, w, most);
    if (colour == 2 || colour == 4 || colour == 6)
        return refuse(error, "a PNG of %s, expected one of grey values or of palette indices", kinds[colour]);
    if (colour != PNG_GREY && colour != PNG_PALETTE) return refuse(error, "a damaged PNG");
    if (depth != 8 && colour == PNG_GREY)
        return refuse(error, "a PNG of grey values of %d bits, expected 8", depth);
    *height = (int)h;
    *width = (int)w;
    return true;
}

/* Gives chunks of transparency a name that stb does not know: with palette indices they have another form. */
static void hide_transparency(uint8_t *bytes, size_t size) {
    for (size_t at = PNG_FIRST, length; png_chunk(bytes, size, at, &length); at += PNG_CHUNK + length)
        if (!memcmp(bytes + at + 4, "tRNS", 4)) bytes[at + 6] = 'n';
}

/* stb replaces palette indices by colours.  If the header calls them grey values, they are unchanged, except those of
 * 1, 2 and 4 bits, which stb multiplies so that the largest becomes 255. */
bool image_decode_values(ImageValues *values, uint8_t *bytes, size_t size, size_t most_pixels, Error *error) {
    int height, width;
    if (!check_bytes(size, error) || !image_values_size(bytes, size, &height, &width, error) ||
        !png_check(bytes, size, error)) return false;
    int depth = bytes[PNG_DEPTH], most = depth < 8 ? (1 << depth) - 1 : 255;
    bytes[PNG_COLOUR] = PNG_GREY;
    hide_transparency(bytes, size);
    uint8_t *at = decode_stb(bytes, size, most_pixels, 1, &height, &width, error);
    if (!at) return false;
    size_t n = (size_t)height * (size_t)width;
    for (size_t i = 0; most < 255 && i < n; i++) at[i] = (uint8_t)(at[i] * most / 255);
    *values = (ImageValues){height, width, at};
    return true;
}

void image_values_free(ImageValues *values) {
    stbi_image_free(values->at);
    *values = (ImageValues){.height = 0};
}

/* == Files ======================================================================================================== */

bool image_read(Image *image, const char *path, Error *error) {
    uint8_t *bytes;
    size_t size;
    if (!file_read(path, IMAGE_MAX_BYTES, &bytes, &size, error)) return false;
    bool ok = image_decode(image, bytes, size, IMAGE_MAX_PIXELS, error);
    free(bytes);
    return ok;
}

bool image_has_name(const char *name) {
    return text_has_extension(name, "jpeg jpg jpe png bmp") || (text_has_extension(name, "webp") && webp_supported());
}

void image_free(Image *image) {
    stbi_image_free(image->pixels);
    *image = (Image){.height = 0};
}

/* == Resize ======================================================================================================= */

void image_resize(uint8_t *out, int out_height, int out_width, const uint8_t *in, int height, int width) {
    ImagePart part = {.pixels = in, .stride = (size_t)width * 3, .height = height, .width = width};
    ResampleAxis rows = resample_whole(height, out_height), columns = resample_whole(width, out_width);
    Resampler resampler = {0};
    if (!resample(&resampler, out, &part, &rows, &columns, RESAMPLE_BICUBIC))
        die("out of memory for resizing %d x %d pixels to %d x %d", height, width, out_height, out_width);
    resampler_free(&resampler);
}

/* == Out ========================================================================================================== */

static bool write_png(const char *path, const uint8_t *pixels, int height, int width, int channels, Error *error) {
    int size;
    if (height < 1 || width < 1 || height > IMAGE_MAX_SIDE || width > IMAGE_MAX_SIDE ||
        (size_t)height * (size_t)width > IMAGE_MAX_PIXELS) {
        return refuse_size(error, height, width, IMAGE_MAX_PIXELS);
    }
    uint8_t *png = stbi_write_png_to_mem(pixels, width * channels, width, height, channels, &size);
    bool ok = file_write(path, png, (size_t)size, error);
    free(png);
    return ok;
}

bool image_write_png(const char *path, const uint8_t *pixels, int height, int width, Error *error) {
    return write_png(path, pixels, height, width, 3, error);
}

bool image_write_values(const char *path, const uint8_t *values, int height, int width, Error *error) {
    return write_png(path, values, height, width, 1, error);
}

uint8_t *image_encode_png(const uint8_t *pixels, int height, int width, size_t *size) {
    int length;
    uint8_t *png = stbi_write_png_to_mem(pixels, width * 3, width, height, 3, &length);
    *size = (size_t)length;
    return png;
}
