/* Pictures in memory: 8-bit RGB, or one value a pixel, in row-major order. */
#ifndef VIT_DATA_IMAGES_PIXELS_H
#define VIT_DATA_IMAGES_PIXELS_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    int height, width;
    uint8_t *pixels; /* [height,width,3] */
} Image;

typedef struct {
    int height, width;
    uint8_t *at; /* [height,width] */
} ImageValues;

/* A rectangle of a larger picture: its first pixel is pixel (top, left) of that picture. */
typedef struct {
    const uint8_t *pixels; /* [height,width,3], rows `stride` bytes apart */
    size_t stride;
    int top, left, height, width;
} ImagePart;

/* Limits beyond which a picture is refused before anything is decoded: side, number of pixels, file size. */
enum { IMAGE_MAX_SIDE = 32768, IMAGE_MAX_PIXELS = 1 << 26, IMAGE_MAX_BYTES = 1 << 28 };

#endif
