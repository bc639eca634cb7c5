/* Rectangles and text in a picture in memory, cut off at its edges, and enlarged pixels. */
#ifndef VIT_DATA_IMAGES_DRAWING_H
#define VIT_DATA_IMAGES_DRAWING_H

#include <stdint.h>

#include "data/images/pixels.h"

typedef struct {
    uint8_t channel[3];
} DrawColour;

/* The colour of category `id`; successive ids have clearly different colours. */
DrawColour draw_colour(int64_t id);

/* Black for letters on a light colour, white on a dark one. */
DrawColour draw_ink_on(DrawColour plate);

/* Fills columns x0 .. x1 - 1 of rows y0 .. y1 - 1. */
void draw_fill(Image *image, int x0, int y0, int x1, int y1, DrawColour colour);

enum { DRAW_LETTER_HEIGHT = 8 }; /* the last row is below the baseline */

/* Draws text with its upper left corner at (x, y).  A letter has 5 x 8 cells of scale x scale pixels, and letters are 6
 * cells apart.  A character that is not printable ASCII becomes a question mark. */
void draw_text(Image *image, int x, int y, const char *text, int scale, DrawColour colour);
int draw_text_width(const char *text, int scale);

/* The same with only as many letters as fit in a width of `room` pixels. */
void draw_text_within(Image *image, int x, int y, int room, const char *text, int scale, DrawColour colour);

/* Copies pixels [height,width,3] to where their upper left corner is at (left, top), each of them enlarged to a square of
 * times x times pixels; all of it lies in the image. */
void draw_pixels(Image *image, int left, int top, const uint8_t *pixels, int height, int width, int times);

/* Enlarges an image: each pixel becomes a square of times x times pixels.  The result must have memory for its larger
 * sides. */
void draw_enlarged(Image *image, const uint8_t *pixels, int times);

#endif
