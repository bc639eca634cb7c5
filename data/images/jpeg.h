/* JPEG through libjpeg-turbo: first the header alone, then only the wanted region, optionally at a reduced size that
 * the inverse DCT produces directly.  Baseline, progressive and arithmetic-coded files; grey, YCbCr, RGB, CMYK and YCCK
 * become RGB as in Pillow's convert("RGB").  The EXIF orientation is ignored, as in torchvision. */
#ifndef VIT_DATA_IMAGES_JPEG_H
#define VIT_DATA_IMAGES_JPEG_H

#include <stdbool.h>

#include "core/error.h"
#include "data/images/pixels.h"

/* Pillow's own limit: twice the 2^30 / 4 / 3 pixels at which it warns.  Every picture that Pillow reads is accepted,
 * while a file of 500 bytes whose header claims 4e9 pixels is refused. */
enum { JPEG_MAX_PIXELS = 178956970 };

/* libjpeg's state and the pixels of the last region; each thread needs its own and reuses it for all pictures. */
typedef struct JpegReader JpegReader;

/* Returns NULL when out of memory. */
JpegReader *jpeg_open(void);
void jpeg_close(JpegReader *reader);

/* Whether the bytes begin like a JPEG.  File names are no guide: ImageNet has a PNG that is named .JPEG. */
bool jpeg_is(const uint8_t *bytes, size_t size);

/* Reads the header; `bytes` must stay valid until jpeg_region returns.  On failure returns false and sets `error`. */
bool jpeg_begin(JpegReader *reader, const uint8_t *bytes, size_t size, size_t most_pixels, int *height, int *width,
                Error *error);

/* Whether parts of the picture that was begun may be decoded at less than its size.  With a sampling factor of more
 * than 2, libjpeg-turbo skips rows of reduced pictures wrongly. */
bool jpeg_scales(const JpegReader *reader);

/* The smallest m of 1, 2, 4, 8 (those for which libjpeg-turbo has vector code) such that a region of height x width
 * pixels, decoded at m/8 of its size, still has at least out_height x out_width pixels. */
int jpeg_eighths(int height, int width, int out_height, int out_width);

/* The length that libjpeg gives to a side of n pixels at `eighths` / 8 of its size. */
int jpeg_scaled(int n, int eighths);

/* Decodes rows and columns [low,high), which must lie inside the picture scaled to `eighths` / 8 of its size, 8 unless
 * it scales; `part` is valid until the next call.  With eighths = 8 the pixels equal those of a full decode.  A file
 * that ends before the last wanted row is refused; damage that libjpeg only warns about is accepted, as in Pillow. */
bool jpeg_region(JpegReader *reader, int eighths, const int rows[2], const int columns[2], ImagePart *part,
                 Error *error);

/* Encodes pixels [height,width,3] at that quality (1 to 100), 4:2:0, into *bytes, which the caller frees. */
bool jpeg_encode(const uint8_t *pixels, int height, int width, int quality, uint8_t **bytes, size_t *size,
                 Error *error);

#endif
