/* Draws boxes, masks, class names and scores into an image. */
#ifndef VIT_DETECTION_DRAW_H
#define VIT_DETECTION_DRAW_H

#include "data/detection/coco.h"
#include "data/images/drawing.h"
#include "data/images/image.h"
#include "data/masks/rle.h"
#include "detection/coco_results.h"

/* Draws a frame along the inside of the box x0, y0, x1, y1 (x1, y1 exclusive), clipped to the image. */
void draw_frame(Image *image, const int box[4], int thickness, DrawColour colour);

/* Mixes the pixels of a mask half and half with the colour.  The image may be an enlarged one: each pixel of the mask
 * is then a square. */
void draw_mask(Image *image, const Rle *mask, DrawColour colour);

/* Draws the outline of the region where inside [height,width], of the image's size, is not 0, in dashes of white and
 * the colour. */
void draw_outline(Image *image, const uint8_t *inside, DrawColour colour);

/* Draws the detections (sorted, best first) with a score of at least `least`: first their masks [count], unless that is
 * NULL, then for each a frame, and a label with class name and score in percent.  Better detections are drawn over
 * worse ones.  Names come from coco; a category without a name is shown by its id. */
void draw_detections(Image *image, const CocoDetection *detections, int count, double least, const RleTexts *masks,
                     const Coco *coco);

#endif
