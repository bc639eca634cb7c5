/* Batches for semantic segmentation.  Every batch is a pure function of (seed, epoch, batch), whichever thread or rank
 * loads it; a picture's pixels and labels are the same on any number of ranks.
 *
 *   training     a random permutation of the pictures, transformed as data/segmentation/segmentation_augment draws it;
 *                all parts are crop_size x crop_size; an incomplete last batch is dropped
 *   evaluation   in the order of the names; a part ends before a picture that the network sees at another size, so that
 *                no picture is padded; the last batch may be smaller
 *
 * data/loading/parts.h shares batches among ranks and threads, and replaces pictures that cannot be read.  A replacement
 * uses the random draws of the picture it replaces; in evaluation its number is -1 and all its labels are ignored. */
#ifndef VIT_DATA_SEGMENTATION_SEGMENTATION_LOADER_H
#define VIT_DATA_SEGMENTATION_SEGMENTATION_LOADER_H

#include "data/loading/parts.h"
#include "data/segmentation/segmentation_augment.h"
#include "data/segmentation/segmentation_set.h"

typedef struct {
    PartsConfig parts;
    SegmentationAugment augment;
} SegmentationLoaderConfig;

typedef struct {
    int n, height, width;          /* multiples of 32 */
    uint8_t *pixels;               /* [n,height,width,3]; what is beyond a picture's own size is unspecified */
    int (*size)[2];                /* [n]: each picture's own height and width; in evaluation height and width */
    int label_height, label_width; /* training: height and width; evaluation: the largest of the part's files */
    uint8_t *labels;               /* [n,label_height,label_width]; 255: ignored, as is all beyond a picture's own size */
    int (*label_size)[2];          /* [n]: training: as size; evaluation: height and width of the picture's file */
    int *image;                    /* [n]: number of the picture in the set, -1: none */
    size_t batch;                  /* of the epoch */
    int position;                  /* of the part's first picture in the global batch */
} SegmentationPart;

typedef struct {
    const SegmentationSet *set;
    SegmentationLoaderConfig config;
    int shorter, longer;  /* upper bounds of the short and the long side of a part's pictures */
    size_t most_pixels;   /* of a picture for the network */
    size_t most_labels;   /* of a picture's labels */
    Parts parts;
} SegmentationLoader;

/* Ends the process when a training set does not fill one batch. */
void segmentation_open(SegmentationLoader *loader, const SegmentationSet *set, const SegmentationLoaderConfig *config);
void segmentation_close(SegmentationLoader *loader);

/* Returns the next part, like parts_next: false at the end of the epoch. */
bool segmentation_next(SegmentationLoader *loader, SegmentationPart *part);

#endif
