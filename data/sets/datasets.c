#include "data/sets/datasets.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/die.h"
#include "core/files.h"
#include "data/sets/cifar.h"
#include "data/sets/folder.h"
#include "data/sets/mnist.h"
#include "data/sets/moving_shapes.h"
#include "data/sets/record.h"
#include "data/sets/shapes.h"
#include "data/sets/videos.h"

#define F(KIND, field) CONFIG_FIELD(KIND, DataSettings, field)
static const ConfigEntry entries[] = {
    {F(STRING, data), "shapes", .section = "data", .change = CHANGE_PATH,
     .help = "Data set: shapes (generated images, no files needed), moving-shapes (generated clips; also -sense, -turn, "
             "-size and -pair), " DATASETS_WITH_FILES(", ") ", a folder with the files of one of these, with a folder "
             "for each class, with train/<class>/ and val/<class>/ (or valid, or test) of images or videos, with lists "
             "of videos (docs/reference/data.md), or a file made by pack_dataset"},
    {F(STRING, data_dir), "datasets", .argument = "FOLDER", .change = CHANGE_FREELY, .ranks_differ = true,
     .help = "Folder that contains the folders of " DATASETS_WITH_FILES(" and ") "; scripts/fetch_cifar.sh "
             "downloads the first two to it"},
    {F(STRING, labels), .argument = "FILE", .change = CHANGE_PATH,
     .help = "CSV file with the label of each image in the folder data: lines of file,label or file,label,split, where "
             "split is train, val or test (empty: folders are the classes)"},
    {F(INT, train_limit), "0", .min = 0, .max = 1e8, .help = "Use only N of the training images (0: all)"},
    {F(INT, test_limit), "0", .min = 0, .max = 1e8, .change = CHANGE_FREELY,
     .help = "Use only N of the test images, not of those that val_fraction holds out (0: all)"},
    {F(FLOAT, val_fraction), "0", .max = 0.9,
     .help = "Share of the training images of each class that is held out for validation, which chooses "
             "best.safetensors; the test images, if there are any, are then evaluated once, at the end (default: 0; "
             "0.1 for class folders without val/)"},
    {F(FLOATS, mean), .min = -255, .max = 255,
     .help = "Mean of each channel, for pixels in [0, 1] (default: the mean that the weights were trained with if "
             "their file contains it, otherwise the data set's)"},
    {F(FLOATS, std), .min = 0, .max = 255,
     .help = "Standard deviation of each channel, by which pixels are divided (default as for mean)"},
};
#undef F
const ConfigGroup data_settings = {CONFIG_GROUP(DataSettings, entries), .change = CHANGE_NEVER};

static const DatasetKind imagenet_kind;

/* A path is checked for these kinds in this order. */
static const DatasetKind *const kinds[] = {&shapes_kind,
                                           &moving_kinds[MOVING_DIRECTION],
                                           &moving_kinds[MOVING_SENSE],
                                           &moving_kinds[MOVING_TURN],
                                           &moving_kinds[MOVING_SIZE],
                                           &moving_kinds[MOVING_PAIR],
                                           &cifar100_kind,
                                           &cifar10_kind,
                                           &mnist_kind,
                                           &imagenet_kind,
                                           &packed_kind,
                                           &videos_kind,
                                           &folder_kind};
enum { KINDS = sizeof kinds / sizeof *kinds, IMAGENET_CLASSES = 1000 };

/* == What `data` is =============================================================================================== */

static const DatasetKind *kind_of_path(const char *data, char path[DATASET_PATH]) {
    struct stat info;
    if (strlen(data) >= DATASET_PATH) die("%.100s...: path too long", data);
    if (stat(data, &info) == 0) {
        for (int i = 0; i < KINDS; i++)
            if (kinds[i]->find && kinds[i]->find(path, data)) return kinds[i];
        if (!S_ISDIR(info.st_mode))
            die("%s: not a packed data set (pack_dataset makes them), and no folder either", data);
        die("%s: neither <class>/ with pictures, train/<class>/, train.pack, train.bin (CIFAR-100), data_batch_1.bin (CIFAR-10) nor "
            "train-images-idx3-ubyte (MNIST) is in this folder", data);
    }
    if (errno != ENOENT && errno != ENOTDIR) die("%s: cannot open: %s", data, strerror(errno));
    die("%s: no such folder or file", data);
}

static const DatasetKind *kind_named(const char *data) {
    for (int i = 0; i < KINDS; i++)
        if (kinds[i]->name && !strcmp(data, kinds[i]->name)) return kinds[i];
    return NULL;
}

bool dataset_named(const char *data) { return kind_named(data) != NULL; }

bool dataset_generates(const char *data) {
    const DatasetKind *kind = kind_named(data);
    return kind && kind->generates;
}

const char *dataset_nearest(const char *data, const char *also) {
    const char *names[KINDS + 1];
    int count = 0;
    for (int i = 0; i < KINDS; i++)
        if (kinds[i]->name) names[count++] = kinds[i]->name;
    if (also) names[count++] = also;
    return nearest_word(data, names, count);
}

bool dataset_known(const char *data, Error *error) {
    struct stat info;
    bool missing = stat(data, &info) && errno == ENOENT;
    if (kind_named(data) || strchr(data, '/') || !missing) return true;
    const char *near = dataset_nearest(data, NULL);
    if (near) return refuse(error, "unknown data set '%s' (did you mean '%s'?)", data, near);
    return refuse(error, "'%s' is neither shapes, moving-shapes, " DATASETS_WITH_FILES(" or ") " nor a folder or "
                         "packed file", data);
}

void data_check(const Config *config, const DataSettings *s) {
    if (s->mean.count && s->mean.count != 3) config_reject(config, "mean", "expected three numbers, one a channel");
    if (s->std.count && s->std.count != 3) config_reject(config, "std", "expected three numbers, one a channel");
    for (int c = 0; c < s->std.count; c++)
        if (s->std.at[c] <= 0) config_reject(config, "std", "%g: expected numbers above 0", (double)s->std.at[c]);
}

/* path: the location of the data set.  If `data` is the name of a kind, it is `folder`, or the name if the kind
 * generates its images. */
static const DatasetKind *kind_of(const char *data, const char *folder, char path[DATASET_PATH]) {
    const DatasetKind *named = kind_named(data);
    if (named) snprintf(path, DATASET_PATH, "%s", named->generates ? data : folder && *folder ? folder : "datasets");
    return named ? named : kind_of_path(data, path);
}

bool dataset_is_there(const char *data) {
    char path[DATASET_PATH];
    bool there = kind_named(data) != NULL, exists = strlen(data) < DATASET_PATH && file_exists(data);
    for (int i = 0; i < KINDS && exists && !there; i++) there = kinds[i]->find && kinds[i]->find(path, data);
    return there;
}

/* == ImageNet: <folder>/imagenet, once it is there, holds images in folders or packed files ======================= */

static void imagenet_open(Dataset *dataset, const char *folder, bool train, size_t limit) {
    char data[DATASET_PATH], path[DATASET_PATH];
    path_join(data, sizeof data, folder, "imagenet");
    if (!file_exists(data))
        die("%s: no such folder: put ImageNet's train and val there, or train.pack and val.pack, or give their folder "
            "as data", data);
    const DatasetKind *kind = kind_of_path(data, path);
    if (kind != &folder_kind && kind != &packed_kind)
        die("%s: not ImageNet: expected train/<class>/ and val/<class>/", data);
    kind->open(dataset, path, train, limit);
    if (dataset->classes != IMAGENET_CLASSES)
        die("%s: %d classes, but ImageNet has %d: give another data set by its path", path, dataset->classes,
            IMAGENET_CLASSES);
}

static void imagenet_describe(Dataset *dataset, const char *folder) {
    (void)folder;
    dataset_of_photographs(dataset, "imagenet", "");
    dataset->classes = IMAGENET_CLASSES;
}

static const DatasetKind imagenet_kind = {.name = "imagenet", .open = imagenet_open, .describe = imagenet_describe};

/* == Opening ====================================================================================================== */

void dataset_open(Dataset *dataset, const char *data, const char *folder, bool train, size_t limit) {
    char path[DATASET_PATH];
    kind_of(data, folder, path)->open(dataset, path, train, limit);
}

/* The kind of the data there: ImageNet's folder has a kind of its own. */
static const DatasetKind *kind_of_files(const char *data, const char *folder, char path[DATASET_PATH]) {
    const DatasetKind *kind = kind_of(data, folder, path);
    char imagenet[DATASET_PATH];
    if (kind != &imagenet_kind) return kind;
    path_join(imagenet, sizeof imagenet, path, "imagenet");
    return file_exists(imagenet) ? kind_of_path(imagenet, path) : kind;
}

DatasetSplits dataset_splits(const char *data, const char *folder) {
    char path[DATASET_PATH];
    const DatasetKind *kind = kind_of_files(data, folder, path);
    DatasetSplits splits = {.by_class = kind == &folder_kind, .test = kind != &packed_kind};
    if (splits.by_class) folder_splits(path, &splits.validation, &splits.test);
    if (kind == &packed_kind) splits.validation = record_has_validation(path);
    return splits;
}

void dataset_open_test(Dataset *dataset, const char *data, const char *folder, size_t limit) {
    char path[DATASET_PATH];
    kind_of_files(data, folder, path);
    folder_open_test(dataset, path, limit);
}

void dataset_describe(Dataset *dataset, const char *data, const char *folder) {
    char path[DATASET_PATH];
    kind_of(data, folder, path)->describe(dataset, path);
}
