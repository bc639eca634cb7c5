/* Pictures as files: JPEG, PNG, BMP and, in a build with libwebp, WebP in, PNG out, and resizing in between.  The
 * format of a file is determined from its contents, not from its name. */
#ifndef VIT_DATA_IMAGES_IMAGE_H
#define VIT_DATA_IMAGES_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"
#include "data/images/pixels.h"

/* Decodes a complete file in memory to RGB; grey is repeated and alpha is dropped, as Pillow's convert("RGB") does.  Of
 * 16 bits the higher 8 are taken, also of grey values, of which Pillow turns all above 255 into white, and colours of
 * BMPs of 16 bits a pixel can differ from Pillow's by 1.  A picture of more than `most_pixels` pixels is refused before
 * decoding, and the memory used is at most proportional to most_pixels.  On failure returns false and sets `error`;
 * there is then nothing to free. */
bool image_decode(Image *image, const uint8_t *bytes, size_t size, size_t most_pixels, Error *error);

/* Decodes a PNG file whose values are not brightness but, for example, classes: 8-bit grey values or the indices of a
 * palette of up to 8 bits, untouched.  Everything else is refused: colours, alpha, other grey values, other formats.
 * Otherwise like image_decode; `bytes` are changed. */
bool image_decode_values(ImageValues *values, uint8_t *bytes, size_t size, size_t most_pixels, Error *error);

/* The size of such a picture from the first `size` bytes of its file; 33 are enough. */
bool image_values_size(const uint8_t *bytes, size_t size, int *height, int *width, Error *error);

/* The size of a picture from the first `size` bytes of its file.  A failure may mean that more of them are needed. */
bool image_size(const uint8_t *bytes, size_t size, int *height, int *width, Error *error);

bool image_read(Image *image, const char *path, Error *error);

/* Whether the file name has the extension of a picture; the contents are not examined. */
bool image_has_name(const char *name);

void image_free(Image *image);
void image_values_free(ImageValues *values);

/* out [out_height,out_width,3] from in [height,width,3]: Pillow's Image.resize(BICUBIC) bit for bit.  out and in do not
 * overlap. */
void image_resize(uint8_t *out, int out_height, int out_width, const uint8_t *in, int height, int width);

/* Writes pixels [height,width,3] to a PNG file, replacing an existing file atomically. */
bool image_write_png(const char *path, const uint8_t *pixels, int height, int width, Error *error);

/* The same for values [height,width], stored as grey values, which image_decode_values reads. */
bool image_write_values(const char *path, const uint8_t *values, int height, int width, Error *error);

/* pixels [height,width,3] as the bytes of a PNG file.  The caller frees them; dies if memory runs out. */
uint8_t *image_encode_png(const uint8_t *pixels, int height, int width, size_t *size);

#endif
