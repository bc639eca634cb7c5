/* ImageNet's layout: <folder>/train/<class>/<image> and <folder>/val/<class>/<image>, where val may also be called valid
 * or test; or <folder>/<class>/<image> alone, which are all training images.  Classes are numbered in the order of their names (strcmp), images in the order of
 * class and then name. */
#ifndef VIT_DATA_SETS_FOLDER_H
#define VIT_DATA_SETS_FOLDER_H

#include "data/sets/dataset.h"

/* Recognised by a train or a val folder, or by class folders with pictures; describing it lists the class folders. */
extern const DatasetKind folder_kind;

/* See dataset_open in data/sets/datasets.h.  If both splits exist, they must have the same classes. */
/* Whether a folder has images for validation (val or valid), and images for the test (test). */
void folder_splits(const char *path, bool *validation, bool *test);
/* Opens the split of a folder that has both. */
void folder_open_test(Dataset *dataset, const char *path, size_t limit);

void folder_open(Dataset *dataset, const char *path, bool train, size_t limit);

#endif
