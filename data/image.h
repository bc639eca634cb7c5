/* Pictures as files: JPEG, PNG and BMP in, PNG out, and resizing in between.  What a file is, its bytes say and not its
 * name. */
#ifndef VIT_DATA_IMAGE_H
#define VIT_DATA_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"

typedef struct {
    int height, width;
    uint8_t *pixels; /* [height,width,3] */
} Image;

/* A rectangle of a larger picture: its first pixel is pixel (top, left) there. */
typedef struct {
    const uint8_t *pixels; /* [height,width,3], rows `stride` bytes apart */
    size_t stride;
    int top, left, height, width;
} ImagePart;

/* Sides and pixels beyond which a picture is refused before anything is decoded. */
enum { IMAGE_MAX_SIDE = 32768, IMAGE_MAX_PIXELS = 1 << 26, IMAGE_MAX_BYTES = 1 << 28 };

/* Decodes a whole file in memory to RGB; grey is repeated, 16 bits become 8, alpha is dropped, as Pillow's
 * convert("RGB") does.  Refuses more than `most_pixels` before it decodes, and takes memory
 * in proportion to them only.  False: `error` says why, nothing to free. */
bool image_decode(Image *image, const uint8_t *bytes, size_t size, size_t most_pixels, Error *error);

bool image_read(Image *image, const char *path, Error *error);

/* Does a file's name end as a picture's does, whatever is in it? */
bool image_has_name(const char *name);

void image_free(Image *image);

/* out [out_height,out_width,3] from in [height,width,3]: Pillow's Image.resize(BICUBIC) bit for bit.  out and in do not
 * overlap. */
void image_resize(uint8_t *out, int out_height, int out_width, const uint8_t *in, int height, int width);

/* pixels [height,width,3] to a PNG file, replaced as a whole. */
bool image_write_png(const char *path, const uint8_t *pixels, int height, int width, Error *error);

#endif
