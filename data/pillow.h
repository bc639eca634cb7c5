/* Pixel operations with Pillow's arithmetic, byte for byte (tests/test_randaugment.c).  All work in place on pixels
 * [height,width,3]; `scratch` is pillow_scratch(height, width) bytes, of any alignment. */
#ifndef VIT_DATA_PILLOW_H
#define VIT_DATA_PILLOW_H

#include <stddef.h>
#include <stdint.h>

typedef enum { PILLOW_BILINEAR, PILLOW_BICUBIC } PillowFilter;

size_t pillow_scratch(int height, int width);

/* ImageOps, on n pixels.  Posterize keeps `bits` (none from 0 down, all from 8 up); solarize inverts from `threshold`
 * 0..256 up; solarize_add is timm's: values below 128 grow by `add` >= 0. */
void pillow_autocontrast(uint8_t *pixels, size_t n);
void pillow_equalize(uint8_t *pixels, size_t n);
void pillow_invert(uint8_t *pixels, size_t n);
void pillow_posterize(uint8_t *pixels, size_t n, int bits);
void pillow_solarize(uint8_t *pixels, size_t n, int threshold);
void pillow_solarize_add(uint8_t *pixels, size_t n, int add);

/* ImageEnhance: away from the degenerate image (black; the grey image; its mean grey; the smoothed image) by `factor`,
 * where 1 changes nothing. */
void pillow_brightness(uint8_t *pixels, size_t n, float factor);
void pillow_color(uint8_t *pixels, size_t n, float factor);
void pillow_contrast(uint8_t *pixels, size_t n, float factor);
void pillow_sharpness(uint8_t *pixels, uint8_t *scratch, int height, int width, float factor);

/* Image.transform(AFFINE): pixel (x, y) becomes what lies at (m0 x' + m1 y' + m2, m3 x' + m4 y' + m5), x' = x + 1/2,
 * y' = y + 1/2; `fill` where that is outside. */
void pillow_affine(uint8_t *pixels, uint8_t *scratch, int height, int width, const double m[6], PillowFilter filter,
                   const uint8_t fill[3]);
/* Image.rotate: counter-clockwise about the centre. */
void pillow_rotate(uint8_t *pixels, uint8_t *scratch, int height, int width, double degrees, PillowFilter filter,
                   const uint8_t fill[3]);

#endif
