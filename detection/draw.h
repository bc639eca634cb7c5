/* Boxes, names and scores drawn into a picture. */
#ifndef VIT_DETECTION_DRAW_H
#define VIT_DETECTION_DRAW_H

#include "data/coco.h"
#include "data/image.h"
#include "detection/coco_results.h"

typedef struct {
    uint8_t channel[3];
} DrawColour;

/* The colour of category `id`: neighbours differ. */
DrawColour draw_colour(int64_t id);

/* A frame of that thickness, inwards from x0, y0, x1, y1 (x1, y1 exclusive); what lies outside the picture is cut. */
void draw_frame(Image *image, const int box[4], int thickness, DrawColour colour);

/* Letters of 5 x 8 cells, 6 apart, each cell scale x scale pixels; from (x, y) downwards to the right.  Bytes that are
 * not printable ASCII come out as one question mark a character. */
void draw_text(Image *image, int x, int y, const char *text, int scale, DrawColour colour);
int draw_text_width(const char *text, int scale);

/* Every pixel of a picture as a square of times x times; the image has its sides times that, and memory for them. */
void draw_enlarged(Image *image, const uint8_t *pixels, int times);

/* Those of the detections, best first, with a score of at least `least`: a frame, and on a plate at its upper edge name
 * and score in percent; the first is on top.  coco names the categories; unknown ones go by number. */
void draw_detections(Image *image, const CocoDetection *detections, int count, double least, const Coco *coco);

#endif
