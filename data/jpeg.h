/* JPEG through libjpeg-turbo: the header alone, then only the pixels that are wanted, at a size that the inverse DCT
 * can give by itself.  Baseline, progressive and arithmetic-coded files; grey, YCbCr, RGB, CMYK and YCCK become RGB as
 * Pillow's convert("RGB") makes them.  The EXIF orientation is left alone, as torchvision does. */
#ifndef VIT_DATA_JPEG_H
#define VIT_DATA_JPEG_H

#include "core/error.h"
#include "data/image.h"

/* Pillow's own limit: twice the 2^30 / 4 / 3 pixels that it warns of.  What could be read when a data set was made can
 * be read here, and 500 bytes that announce 4e9 pixels cannot. */
enum { JPEG_MAX_PIXELS = 178956970 };

/* libjpeg's state and the pixels of the last region; one for each thread, kept from picture to picture. */
typedef struct JpegReader JpegReader;

/* NULL: out of memory. */
JpegReader *jpeg_open(void);
void jpeg_close(JpegReader *reader);

/* Do these bytes begin like a JPEG?  Names tell nothing: ImageNet has a PNG that is called .JPEG. */
bool jpeg_is(const uint8_t *bytes, size_t size);

/* Reads the header of the picture, which stays where it is until jpeg_region.  False: `error` says why. */
bool jpeg_begin(JpegReader *reader, const uint8_t *bytes, size_t size, size_t most_pixels, int *height, int *width,
                Error *error);

/* The fewest eighths of its size at which a picture can be decoded so that height x width of its pixels still are
 * out_height x out_width: 1, 2, 4 or 8, those for which libjpeg-turbo has vector code. */
int jpeg_eighths(int height, int width, int out_height, int out_width);

/* Length n at that many eighths: what libjpeg makes of a picture's side. */
int jpeg_scaled(int n, int eighths);

/* Decodes rows and columns [low,high) of the picture at `eighths` of its size, all of them inside it; `part` is valid
 * until the next call.  With 8 eighths the pixels are those of a whole decode.  A file that ends before the last row
 * wanted is refused; damage that libjpeg bridges with a warning is not, as in Pillow. */
bool jpeg_region(JpegReader *reader, int eighths, const int rows[2], const int columns[2], ImagePart *part,
                 Error *error);

/* Encodes pixels [height,width,3] at that quality (1 to 100), 4:2:0, into *bytes, to be freed by the caller. */
bool jpeg_encode(const uint8_t *pixels, int height, int width, int quality, uint8_t **bytes, size_t *size,
                 Error *error);

#endif
