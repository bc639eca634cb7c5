/* The list of data sets, and the choice among them by the setting `data`. */
#ifndef VIT_DATA_SETS_DATASETS_H
#define VIT_DATA_SETS_DATASETS_H

#include "core/config/config.h"
#include "data/sets/dataset.h"

/* The data sets that have a name and files, for help and messages; `last` comes before the last name. */
#define DATASETS_WITH_FILES(last) "cifar10, cifar100, mnist" last "imagenet"

/* Settings that choose a data set and how much of it is used. */
typedef struct {
    const char *data, *data_dir, *labels;
    int train_limit, test_limit;
    float val_fraction;
    ConfigFloats mean, std; /* per channel, replacing the data set's own; none or three numbers */
} DataSettings;

extern const ConfigGroup data_settings;

/* Checks that mean and std have three numbers or none, and that no std is 0. */
void data_check(const Config *config, const DataSettings *s);

/* Whether `data` is the name of a data set. */
bool dataset_named(const char *data);

/* Whether `data` names a data set that generates any number of images. */
bool dataset_generates(const char *data);

/* The name of the data set that `data` may mean, misspelled; NULL: none is similar.  `also`: another name, or NULL. */
const char *dataset_nearest(const char *data, const char *also);

/* Whether `data` names a kind of data set, or a folder or file that is one. */
bool dataset_is_there(const char *data);

/* Is this the name of a data set, or a path?  A path is not examined until it is opened. */
bool dataset_known(const char *data, Error *error);

/* Opens the data set that `data` names:
 *   shapes                              the embedded data set
 *   moving-shapes, moving-shapes-sense, -turn, -size, -pair   the embedded clips (data/sets/moving_shapes.h)
 *   cifar10, cifar100, mnist, imagenet  looked for in `folder`
 *   a folder                            with the files of CIFAR or MNIST, with train/<class>/ and val/<class>/, with
 *                                       class folders alone, or with train.pack and val.pack
 *   a folder                            with videos or lists of them (data/sets/videos.h)
 *   a file                              packed by pack_dataset (data/sets/record.h)
 * `limit` is the number of images to use, 0 for all.  They are the first `limit` images, except that folders and packed
 * files are sampled at even intervals, so that all classes remain, and that shapes generates as many as requested.
 * On error ends the process with one line that names the file and what is wrong with it. */
void dataset_open(Dataset *dataset, const char *data, const char *folder, bool train, size_t limit);

/* What the data have besides training images.  by_class: the data are class folders; validation: there are images for
 * validation; test: there are test images. */
typedef struct {
    bool by_class, validation, test;
} DatasetSplits;
DatasetSplits dataset_splits(const char *data, const char *folder);

/* Opens the test images of a data set that has both kinds. */
void dataset_open_test(Dataset *dataset, const char *data, const char *folder, size_t limit);

/* Fills in what is known without opening images: name, size, classes, statistics, and class names if they are fixed;
 * count, get, read and close stay unset.  For a data set given by its name, no file is needed. */
void dataset_describe(Dataset *dataset, const char *data, const char *folder);

#endif
