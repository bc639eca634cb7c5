/* Pixel operations with Pillow's arithmetic, byte for byte (tests/data/test_randaugment.c).  All work in place on
 * pixels [height,width,3]; `scratch` has pillow_scratch(height, width) bytes, of any alignment. */
#ifndef VIT_DATA_IMAGES_PILLOW_H
#define VIT_DATA_IMAGES_PILLOW_H

#include <stddef.h>
#include <stdint.h>

typedef enum { PILLOW_BILINEAR, PILLOW_BICUBIC, PILLOW_NEAREST } PillowFilter;

size_t pillow_scratch(int height, int width);

/* Operations of PIL.ImageOps on n pixels.  Posterize keeps the `bits` highest bits (none if bits <= 0, all if >= 8);
 * solarize inverts values >= `threshold`, 0..256; solarize_add is timm's: it adds `add` >= 0 to values below 128. */
void pillow_autocontrast(uint8_t *pixels, size_t n);
void pillow_equalize(uint8_t *pixels, size_t n);
void pillow_invert(uint8_t *pixels, size_t n);
void pillow_posterize(uint8_t *pixels, size_t n, int bits);
void pillow_solarize(uint8_t *pixels, size_t n, int threshold);
void pillow_solarize_add(uint8_t *pixels, size_t n, int add);

/* The grey value of a pixel, as in Image.convert("L"). */
static inline int pillow_grey(const uint8_t *p) { return (19595 * p[0] + 38470 * p[1] + 7471 * p[2] + 32768) >> 16; }

/* Operations of PIL.ImageEnhance: degenerate + factor (image - degenerate), so that factor 1 changes nothing.  The
 * degenerate image is black for brightness, the grey image for color, its mean for contrast, smoothed for sharpness. */
void pillow_brightness(uint8_t *pixels, size_t n, float factor);
void pillow_color(uint8_t *pixels, size_t n, float factor);
void pillow_contrast(uint8_t *pixels, size_t n, float factor);
void pillow_sharpness(uint8_t *pixels, uint8_t *scratch, int height, int width, float factor);

/* Image.transform(AFFINE): pixel (x, y) is sampled from the source at (m0 x' + m1 y' + m2, m3 x' + m4 y' + m5), x' = x
 * + 1/2, y' = y + 1/2; it is `fill` if that point is outside.  With PILLOW_NEAREST, coordinates are computed by
 * repeated addition, and for shears and rotations rounded to 1/65536, as Pillow does for images of fewer than 2^14
 * pixels a side. */
void pillow_affine(uint8_t *pixels, uint8_t *scratch, int height, int width, const double m[6], PillowFilter filter,
                   const uint8_t fill[3]);
/* Image.rotate: counter-clockwise about the centre. */
void pillow_rotate(uint8_t *pixels, uint8_t *scratch, int height, int width, double degrees, PillowFilter filter,
                   const uint8_t fill[3]);

#endif
