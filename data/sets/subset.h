/* Parts of a data set of images: the training images without those that validate, and these alone. */
#ifndef VIT_DATA_SETS_SUBSET_H
#define VIT_DATA_SETS_SUBSET_H

#include "data/sets/dataset.h"

/* Divides `whole`, a data set of images, into `rest` and `held`: in every class the share `fraction` of its images,
 * rounded to the nearest number, is held.  Which ones is a function of the seed and of the last two parts of the image's
 * name, so that neither the folder's place nor the order or number of other files decides.  Images keep their order.
 * Takes `whole` over, which is closed with the last of its parts; on an error closes nothing, returns false and sets
 * `error`: a class of which no image, or every image, would be held. */
bool subset_divide(Dataset *rest, Dataset *held, Dataset *whole, double fraction, uint64_t seed, Error *error);

/* The data set that an image of a part is in, and its index there; of any other data set itself and the same index. */
const Dataset *subset_whole(const Dataset *dataset);
size_t subset_index(const Dataset *dataset, size_t index);

/* The label of every image, [count], to be freed. */
int *dataset_labels(const Dataset *dataset);

#endif
