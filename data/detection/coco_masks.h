/* The segmentations of COCO's annotations: lists of polygons, or run lengths as a list of integers or as COCO's text.
 * Numbers of all annotations lie in a few arrays, which grow while the file streams by.
 *
 * Refused: what is neither polygons nor run lengths, an odd number of coordinates, sizes outside 1 .. IMAGE_MAX_SIDE,
 * runs that are no integers or cover more than their picture. Repaired: polygons of fewer than three corners, at which
 * pycocotools stops, are left out; coordinates beyond +-1e8 are clamped to it. */
#ifndef VIT_DATA_DETECTION_COCO_MASKS_H
#define VIT_DATA_DETECTION_COCO_MASKS_H

#include "core/error.h"
#include "data/masks/object_mask.h"

typedef enum {
    COCO_NO_MASKS, /* segmentations are skipped, at no cost */
    COCO_POLYGONS, /* as in the file, with coordinates rounded to float: for training */
    COCO_RLE       /* polygons become run lengths of their picture, as pycocotools' annToRLE: for evaluation */
} CocoMaskKind;

/* Of one annotation. */
typedef struct {
    size_t ring, number; /* its first polygon, and the first coordinate of that */
    int rings;           /* its number of polygons */
    int rle;             /* index of its run lengths, -1: none */
} CocoMask;

typedef struct {
    CocoMaskKind kind;
    CocoMask *of;     /* [count], in the order of the annotations */
    float *points;    /* [number_count], x before y: COCO_POLYGONS */
    double *exact;    /* [number_count]: COCO_RLE, until coco_masks_finish */
    int *ring_points; /* [ring_count] */
    Rle *rles;        /* [rle_count]; runs are set by coco_masks_finish */
    uint32_t *runs;   /* [run_count], of all run lengths in turn */
    Rle spare[3];     /* scratch */
    size_t count, number_count, ring_count, rle_count, run_count;
    size_t room, number_room, ring_room, rle_room, run_room;
    size_t shortened; /* annotations of which polygons were left out, for a warning */
} CocoMasks;

/* Adds an annotation without a mask. */
void coco_masks_add(CocoMasks *masks);

/* Give the last annotation its mask: from its "segmentation" in the file, false with a reason in `error` if that is
 * refused; or from runs, which are copied. */
struct json_t;
bool coco_masks_read(CocoMasks *masks, const struct json_t *segmentation, Error *error);
void coco_masks_set(CocoMasks *masks, const Rle *rle);

/* Checks annotation i against the size of its picture, before coco_masks_finish. */
bool coco_masks_fit(const CocoMasks *masks, size_t i, int height, int width, Error *error);

/* With COCO_RLE: turns the polygons of annotation i into run lengths, before coco_masks_finish. */
void coco_masks_rasterise(CocoMasks *masks, size_t i, int height, int width);

/* Nothing is added after this; the run lengths can now be used. */
void coco_masks_finish(CocoMasks *masks);
void coco_masks_free(CocoMasks *masks);

#endif
