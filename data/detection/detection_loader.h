/* Batches for detection.  Every batch is a pure function of (seed, epoch, batch), whichever thread or rank loads it; an
 * image's pixels and boxes are the same on any number of ranks.
 *
 *   training     order from data/detection/size_buckets, augmentation from data/detection/detection_augment; an
 *                incomplete last batch is dropped
 *   evaluation   in the order of the image ids; the last batch may be smaller
 *
 * A part is padded to the largest height and the largest width of its images, rounded up to a multiple.  A padded
 * image never exceeds shorter x longer or longer x shorter: if a wide and a tall image would exceed both, the part ends
 * before the second of them.
 *
 * data/loading/parts.h shares batches among ranks and threads, and replaces images that cannot be read.  A replacement
 * uses the random draws of the image it replaces and is shrunk to fit the space planned for that image; in evaluation
 * its image number is -1, so that it does not count. */
#ifndef VIT_DATA_DETECTION_DETECTION_LOADER_H
#define VIT_DATA_DETECTION_DETECTION_LOADER_H

#include "data/detection/detection_set.h"
#include "data/loading/parts.h"
#include "data/masks/object_mask.h"

typedef struct {
    PartsConfig parts;
    int window;               /* training: group images by size within this many batches; 0: no grouping */
    DetectionAugment augment; /* for training; evaluation only resizes, by its rule to scale[0] and max_size */
    int multiple; /* parts are padded to multiples of this many rows and columns; 0 means 1 */
} DetectionLoaderConfig;

typedef struct {
    int n, height, width;
    uint8_t *pixels;  /* [n,height,width,3]; the padding beyond an image's own size is unspecified */
    int (*size)[2];   /* [n]: each image's own height and width, without padding */
    int *image;       /* [n]: index into coco.images, -1: none */
    float (*boxes)[4]; /* [first[n]]: cx, cy, w, h relative to the image's own size; training only */
    int *labels;      /* [first[n]]; image i has boxes and labels first[i] .. first[i + 1] - 1 */
    float (*corners)[4]; /* [first[n]]: x0, y0, x1, y1 in pixels of the image's own size; DETECTION_MASKS, else NULL */
    ObjectMask *masks;   /* [first[n]], in the same pixels; likewise */
    int *first;       /* [n + 1] */
    size_t batch;     /* of the epoch */
    int position;     /* of the part's first image in the global batch */
} DetectionPart;

typedef struct {
    const DetectionSet *set;
    DetectionLoaderConfig config;
    int shorter, longer; /* upper bounds of every part's short and long side */
    int (*size)[2];      /* [count]: width and height of each in this epoch */
    float (*boxes)[4];   /* [most_boxes] scratch of detection_boxes_of, as is labels */
    int *labels;
    bool masks;          /* whether parts have corners and masks */
    Parts parts;
} DetectionLoader;

/* Ends the process when a training set does not fill one batch. */
void detection_open(DetectionLoader *loader, const DetectionSet *set, const DetectionLoaderConfig *config);
void detection_close(DetectionLoader *loader);

/* Returns the next part, like parts_next: false at the end of the epoch. */
bool detection_next(DetectionLoader *loader, DetectionPart *part);

/* The number of boxes in that global batch of the epoch, over all ranks; DETR's loss is divided by it.  Boxes of
 * damaged pictures are counted as if the pictures were sound. */
int detection_boxes_of(const DetectionLoader *loader, size_t batch);

/* The fraction of padding in this epoch's batches if each batch were padded as a whole. */
double detection_padding(const DetectionLoader *loader);

#endif
