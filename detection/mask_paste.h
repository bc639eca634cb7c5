/* Puts the mask of a detection, predicted for its box, into the picture. */
#ifndef VIT_DETECTION_MASK_PASTE_H
#define VIT_DETECTION_MASK_PASTE_H

#include "data/masks/rle.h"

enum { MASK_PASTE_MOST = 64 };

/* probability [side,side], row by row, side <= MASK_PASTE_MOST, covers the box x0, y0, x1, y1 in pixels.
 * A pixel is 1 where the probability at its centre, bilinearly between the centres of the cells and with cells outside
 * counted as 0, is at least `least` > 0.  A box without width or height, or that is not finite, gives an empty mask.
 * The rule of mmdetection (_do_paste_mask) and detectron2. */
void mask_paste(Rle *out, const float *probability, int side, const double box[4], int height, int width, double least);

#endif
