/* Polygons to masks, with the same pixels as pycocotools (rleFrPoly of cocoapi's common/maskApi.c), which rasterises on
 * a grid five times as fine.  Its roundings decide about pixels on the edge, and coordinates must be the double values
 * of the file: 10.7 rounded to a float lies in another cell of that grid. */
#ifndef VIT_DATA_MASKS_POLYGON_H
#define VIT_DATA_MASKS_POLYGON_H

#include "data/masks/rle.h"

/* xy [points,2], x before y, in pixels; the last point is joined to the first.  What lies outside the picture is cut
 * off.  Coordinates beyond +-1e8, where pycocotools' result is undefined, and NaN are clamped to that.  Allocates
 * nothing but the runs of `out`. */
void polygon_rle(Rle *out, const double *xy, int points, int height, int width);

/* The union of several polygons, which follow each other in xy: polygon i has ring_points[i] points.  Without
 * polygons the mask is empty.  `spare` is memory that is used again, owned as `out` is. */
void polygons_rle(Rle *out, const double *xy, const int *ring_points, int rings, int height, int width, Rle spare[2]);

#endif
