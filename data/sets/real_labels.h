/* ImageNet ReaL's labels (Beyer et al. 2020, "Are we done with ImageNet?"): real.json is a list with a list of labels
 * for each validation image, in the order of their names, ILSVRC2012_val_00000001.JPEG and so on.  Each of an image's
 * labels is right; an image without labels does not count. */
#ifndef VIT_DATA_SETS_REAL_LABELS_H
#define VIT_DATA_SETS_REAL_LABELS_H

#include "data/sets/dataset.h"

typedef struct {
    int *labels;    /* of all images, one after the other */
    size_t *first;  /* [images + 1]: labels[first[i]] is the first of image i's */
    size_t images, label_room, image_room;
    size_t *number; /* [dataset->count]: the image of the file that each image of the data set is */
    int classes;
} RealLabels;

/* Reads the file for these images, which are found in it by the numbers in their names.  With `whole` it must have as
 * many images as the data set.  On failure returns false with one line in `error`; there is then nothing to close. */
bool real_labels_open(RealLabels *real, const char *path, const Dataset *dataset, bool whole, Error *error);

/* The labels of an image of the data set, *count of them, as indices of the data set's classes. */
const int *real_labels_of(const RealLabels *real, size_t index, size_t *count);

void real_labels_close(RealLabels *real);

#endif
