/* The data sets there are, and which of them the setting `data` means. */
#ifndef VIT_DATA_DATASETS_H
#define VIT_DATA_DATASETS_H

#include "core/config.h"
#include "data/dataset.h"

/* Which data set, and how much of it. */
typedef struct {
    const char *data, *data_dir;
    int train_limit, test_limit;
    ConfigFloats mean, std; /* of the channels, in place of the data set's own; none or three */
} DataSettings;

extern const ConfigGroup data_settings;

/* Three numbers or none, and no std of 0. */
void data_check(const Config *config, const DataSettings *s);

/* `data` is
 *   shapes                              the embedded data set
 *   cifar10, cifar100, mnist, imagenet  looked for in `folder`
 *   a folder                            with the files of CIFAR or MNIST, with train/<class>/ and val/<class>/, or with
 *                                       train.pack and val.pack
 *   a file                              packed by pack_dataset (data/record.h)
 * limit keeps the first `limit` images (0: all; shapes draws as many as are asked for; of folders and packed files
 * every so manyth, so that all classes stay).  Dies with one line that names the file and what is wrong with it. */
void dataset_open(Dataset *dataset, const char *data, const char *folder, bool train, size_t limit);

/* What is known without opening images: name, size, classes, statistics; no count, get, read or close, and class names
 * only where they are fixed.  Names are known without any file. */
void dataset_describe(Dataset *dataset, const char *data, const char *folder);

#endif
