/* Batches for detection.  Any batch of any epoch is a function of (seed, epoch, batch) alone, whatever loads it; an
 * image's pixels and boxes are the same on any number of ranks.
 *
 *   training     order of data/size_buckets, draws of data/detection_augment; the images left over behind the last
 *                whole batch sit the epoch out
 *   evaluation   order of the ids; the last batch may be short
 *
 * A part is padded to its largest height and width.  No part is larger than short x long or long x short times its
 * images: where a wide and a tall image meet that would not fit together, the part ends before the second.
 *
 * data/parts.h shares batches among ranks and threads, and says what becomes of images that cannot be read.  What takes
 * their place is drawn as they would have been and made to fit where they would have lain; in evaluation it has the
 * number -1, so that nothing is counted for it. */
#ifndef VIT_DATA_DETECTION_LOADER_H
#define VIT_DATA_DETECTION_LOADER_H

#include "data/detection_set.h"
#include "data/parts.h"

typedef struct {
    uint64_t seed;
    int batch_size; /* of all ranks together */
    bool train;
    int rank, ranks;          /* ranks 0: one */
    int part;                 /* images that detection_next gives at a time at most, 0: this rank's share of a batch */
    int window;               /* training: batches in a row whose images are grouped by size; 0: none */
    float max_damaged;        /* more than this share of an epoch's images damaged ends the run */
    DetectionAugment augment; /* training; evaluation resizes to scale[0], max_size */
    LoaderPool *pool;         /* NULL: detection_next fills its part itself, with OpenMP */
    void *(*allocate)(size_t bytes, const char *what); /* of the parts' pixels, NULL: xcalloc and free */
    void (*release)(void *memory);
} DetectionLoaderConfig;

typedef struct {
    int n, height, width;
    uint8_t *pixels;  /* [n,height,width,3]; beyond an image's own size, anything */
    int (*size)[2];   /* [n]: own height and width */
    int *image;       /* [n]: number in coco.images, -1: none */
    float (*boxes)[4]; /* [first[n]]: cx, cy, w, h relative to the image's own size; training only */
    int *labels;      /* [first[n]] */
    int *first;       /* [n + 1] */
    size_t batch;     /* of the epoch */
    int position;     /* of the first image in the global batch */
} DetectionPart;

typedef struct DetectionSlot DetectionSlot;

typedef struct {
    const DetectionSet *set;
    DetectionLoaderConfig config;
    size_t batches;         /* per epoch */
    int shorter, longer;    /* no image's sides are more */
    uint32_t epoch;
    uint32_t *order;        /* [count]: a permutation of the images */
    int (*size)[2];         /* [count]: width and height of each in this epoch */
    float (*boxes)[4];      /* [most_boxes] scratch of detection_boxes_of */
    int *labels;
    DetectionSlot *slots;
    Parts parts;
} DetectionLoader;

/* Ends the run when a training set does not fill one batch. */
void detection_open(DetectionLoader *loader, const DetectionSet *set, const DetectionLoaderConfig *config);
/* At any moment: waits for the images that workers are at. */
void detection_close(DetectionLoader *loader);

/* The pool begins to load from that batch on; what was loaded for another place is dropped.  Does nothing when that is
 * where it began and nothing has been taken yet. */
void detection_start(DetectionLoader *loader, uint32_t epoch, size_t batch);

/* The next part, until the call after it; false at the end of the epoch.
 * Ends the run when too many images are damaged. */
bool detection_next(DetectionLoader *loader, DetectionPart *part);

/* The boxes of that batch of the epoch, all ranks': by what the loss is divided.  Those of pictures that are damaged
 * count as they would have been. */
int detection_boxes_of(const DetectionLoader *loader, size_t batch);

/* The share of padding in this epoch's batches, if each were padded as a whole. */
double detection_padding(const DetectionLoader *loader);

LoaderStats detection_stats(const DetectionLoader *loader);

#endif
