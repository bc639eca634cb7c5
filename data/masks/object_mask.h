/* The mask of an object in a transformed picture, and the target that a mask head learns from it. */
#ifndef VIT_DATA_MASKS_OBJECT_MASK_H
#define VIT_DATA_MASKS_OBJECT_MASK_H

#include "data/masks/rle.h"

/* Coordinates are those of the original picture; the transformed one has x' = scale[0] x + shift[0], and y' likewise.
 * A mirrored picture has a negative scale[0].  Nothing is copied: polygons, or runs, belong to the annotations. */
typedef struct {
    const float *points;    /* [sum of ring_points,2], x before y */
    const int *ring_points; /* [rings] */
    int rings;              /* 0: the mask is `rle`, of the original picture's size */
    const Rle *rle;
    double scale[2], shift[2];
} ObjectMask;

/* Memory that object_mask_target uses again.  Zero it before use. */
typedef struct {
    double *points;
    uint8_t *bitmap;
    struct MaskSample *samples[2]; /* along x and y */
    size_t points_room, bitmap_room, samples_room[2];
    Rle mask, spare[2];
} MaskScratch;

void mask_scratch_free(MaskScratch *scratch);

/* cells [side,side], row by row: 1 where the object covers the cell of the box x0, y0, x1, y1 in the transformed
 * picture, otherwise 0.
 *   polygons   detectron2's rule (rasterize_polygons_within_box): moved to the box, times side / max(width, 0.1) and
 *              side / max(height, 0.1), rasterised on side x side and united
 *   runs       mmdetection's rule (crop_and_resize): aligned, adaptive RoIAlign of the bitmap at scale 1 gives >= 0.5;
 *              here the bitmap and the box are those of the original picture
 * A mirrored picture's target is the mirror image of the other's. */
void object_mask_target(uint8_t *cells, int side, const ObjectMask *object, const float box[4], MaskScratch *scratch);

#endif
