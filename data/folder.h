/* ImageNet's layout: <folder>/train/<class>/<image> and <folder>/val/<class>/<image>.  Classes are numbered in the
 * order of their names (strcmp), images by class and name. */
#ifndef VIT_DATA_FOLDER_H
#define VIT_DATA_FOLDER_H

#include "data/dataset.h"

/* Is there a train or a val folder in it? */
bool folder_is(const char *path);

/* See dataset_describe: lists the classes. */
void folder_describe(Dataset *dataset, const char *path);

/* See dataset_open.  The classes of the two splits have to be the same where both are there. */
void folder_open(Dataset *dataset, const char *path, bool train, size_t limit);

#endif
