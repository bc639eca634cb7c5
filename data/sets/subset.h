/* Parts of a data set of images: the images for training, and those held out for validation. */
#ifndef VIT_DATA_SETS_SUBSET_H
#define VIT_DATA_SETS_SUBSET_H

#include "data/sets/dataset.h"

/* Divides `whole`, a data set of images, into `rest` and `held`: in every class the share `fraction` of its images,
 * rounded to the nearest number, is held.  The choice is a function of the seed and of the last two parts of the
 * image's name: it does not depend on the location of the folder, nor on the order of the files.  If images are added
 * to a class, some of its other images may change sides, since the number that is held grows.  Images keep their order.
 * Takes ownership of `whole`, which is closed with the last of its parts.  If no image or every image of a class would
 * be held, closes nothing, returns false and sets `error`, which names the smallest such class. */
bool subset_divide(Dataset *rest, Dataset *held, Dataset *whole, double fraction, uint64_t seed, Error *error);

/* For an image of a part, the whole data set and the index in it.  For any other data set, itself and the same
 * index. */
const Dataset *subset_whole(const Dataset *dataset);
size_t subset_index(const Dataset *dataset, size_t index);

/* The label of every image, [count], to be freed. */
int *dataset_labels(const Dataset *dataset);

#endif
