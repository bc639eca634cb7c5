/* ImageNet's layout: <folder>/train/<class>/<image> and <folder>/val/<class>/<image>, where valid or test
 * will do for val.  Classes are numbered in the
 * order of their names (strcmp), images by class and name. */
#ifndef VIT_DATA_FOLDER_H
#define VIT_DATA_FOLDER_H

#include "data/dataset.h"

/* Found where there is a train or a val folder; to describe it lists the classes. */
extern const DatasetKind folder_kind;

/* See dataset_open in data/datasets.h.  The classes of the two splits have to be the same where both are there. */
void folder_open(Dataset *dataset, const char *path, bool train, size_t limit);

#endif
