#include "data/dataset.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/die.h"
#include "core/files.h"
#include "data/cifar.h"
#include "data/folder.h"
#include "data/mnist.h"
#include "data/record.h"
#include "data/shapes.h"

#define F(KIND, field) CONFIG_FIELD(KIND, DataSettings, field)
static const ConfigEntry entries[] = {
    {F(STRING, data), "shapes", .section = "data",
     .help = "shapes (drawn on the spot, no files needed), cifar10, cifar100, mnist, imagenet, a folder with the files "
             "of one of them or with train/<class>/ and val/<class>/, or a file made by pack_dataset"},
    {F(STRING, data_dir), "datasets", .argument = "FOLDER",
     .help = "Where cifar10, cifar100, mnist and imagenet are looked for (scripts/fetch_cifar.sh puts the first two "
             "there)"},
    {F(INT, train_limit), "0", .min = 0, .max = 1e8, .help = "Use only so many training images (0: all)"},
    {F(INT, test_limit), "0", .min = 0, .max = 1e8, .help = "Use only so many test images (0: all)"},
};
#undef F
const ConfigGroup data_settings = {CONFIG_GROUP(DataSettings, entries)};

/* The embedded data set is the same for every run, so that runs with different seeds can be compared. */
static const uint64_t SHAPES_SEED = 0;

enum { PATH_ROOM = 4096, IMAGENET_CLASSES = 1000 };

/* == What `data` is =============================================================================================== */

typedef enum { SHAPES, CIFAR10, CIFAR100, MNIST, IMAGENET, FOLDER, PACKED } Kind;

static const char *const known[] = {"shapes", "cifar10", "cifar100", "mnist", "imagenet"};
enum { KNOWN = sizeof known / sizeof *known };

static bool folder_has(const char *folder, const char *file) {
    char path[PATH_ROOM];
    path_join(path, sizeof path, folder, file);
    return file_exists(path);
}

/* By what is in it.  A folder of packed files becomes one of the files. */
static Kind kind_of_folder(const char *data, char path[PATH_ROOM]) {
    if (folder_has(data, "train.bin") || folder_has(data, "cifar-100-binary"))
        return CIFAR100;
    if (folder_has(data, "data_batch_1.bin") || folder_has(data, "cifar-10-batches-bin")) return CIFAR10;
    if (mnist_is(data)) return MNIST;
    for (int i = 0; i < 2; i++) {
        path_join(path, PATH_ROOM, data, i ? "val.pack" : "train.pack");
        if (file_exists(path)) return PACKED;
    }
    if (!folder_is(data))
        die("%s: neither train/<class>/, train.pack, train.bin (CIFAR-100), data_batch_1.bin (CIFAR-10) nor "
            "train-images-idx3-ubyte (MNIST) is in this folder", data);
    snprintf(path, PATH_ROOM, "%s", data);
    return FOLDER;
}

static Kind kind_of_path(const char *data, char path[PATH_ROOM]) {
    struct stat info;
    if ((size_t)snprintf(path, PATH_ROOM, "%s", data) >= PATH_ROOM) die("data: %.100s...: path too long", data);
    if (stat(data, &info) == 0) {
        if (S_ISDIR(info.st_mode)) return kind_of_folder(data, path);
        if (!record_is(data))
            die("%s: not a packed data set (pack_dataset makes them), and no folder either", data);
        return PACKED;
    }
    if (errno != ENOENT && errno != ENOTDIR) die("%s: cannot open: %s", data, strerror(errno));
    const char *near = nearest_word(data, known, KNOWN);
    if (strchr(data, '/')) die("data: %s: no such folder or file", data);
    if (near) die_usage("data: unknown data set '%s' (did you mean '%s'?)", data, near);
    die_usage("data: '%s' is neither shapes, cifar10, cifar100, mnist or imagenet nor a folder or packed file", data);
}

/* Where it is, too: `folder` for what has a name of its own. */
static Kind kind_of(const char *data, const char *folder, char path[PATH_ROOM]) {
    for (int i = 0; i < KNOWN; i++) {
        if (strcmp(data, known[i])) continue;
        snprintf(path, PATH_ROOM, "%s", folder && *folder ? folder : "datasets");
        return (Kind)i;
    }
    return kind_of_path(data, path);
}

/* == Opening ====================================================================================================== */

/* datasets/imagenet, once it is there: a folder or packed files. */
static Kind find_imagenet(char path[PATH_ROOM]) {
    char data[PATH_ROOM];
    path_join(data, sizeof data, path, "imagenet");
    if (!file_exists(data))
        die("%s: no such folder: put ImageNet's train and val there, or train.pack and val.pack, or give their folder "
            "as data", data);
    Kind kind = kind_of_path(data, path);
    if (kind != FOLDER && kind != PACKED) die("%s: not ImageNet: expected train/<class>/ and val/<class>/", data);
    return kind;
}

void dataset_open(Dataset *dataset, const char *data, const char *folder, bool train, size_t limit) {
    char path[PATH_ROOM];
    Kind kind = kind_of(data, folder, path);
    bool imagenet = kind == IMAGENET;
    if (imagenet) kind = find_imagenet(path);
    switch (kind) {
    case SHAPES: shapes_open(dataset, train, SHAPES_SEED, limit); break;
    case CIFAR10: cifar_open(dataset, 10, path, train, limit); break;
    case CIFAR100: cifar_open(dataset, 100, path, train, limit); break;
    case MNIST: mnist_open(dataset, path, train, limit); break;
    case PACKED: record_open(dataset, path, train, limit); break;
    default: folder_open(dataset, path, train, limit);
    }
    if (imagenet && dataset->classes != IMAGENET_CLASSES)
        die("%s: %d classes, but ImageNet has %d: give another data set by its path", path, dataset->classes,
            IMAGENET_CLASSES);
}

void dataset_describe(Dataset *dataset, const char *data, const char *folder) {
    char path[PATH_ROOM];
    switch (kind_of(data, folder, path)) {
    case SHAPES: shapes_describe(dataset); break;
    case CIFAR10: cifar_describe(dataset, 10); break;
    case CIFAR100: cifar_describe(dataset, 100); break;
    case MNIST: mnist_describe(dataset); break;
    case PACKED: record_describe(dataset, path); break;
    case IMAGENET:
        *dataset = (Dataset){.name = "imagenet", .classes = IMAGENET_CLASSES};
        dataset_imagenet_statistics(dataset);
        break;
    default: folder_describe(dataset, path);
    }
}

void dataset_imagenet_statistics(Dataset *dataset) {
    static const float mean[3] = {0.485f, 0.456f, 0.406f}, std[3] = {0.229f, 0.224f, 0.225f};
    memcpy(dataset->mean, mean, sizeof mean);
    memcpy(dataset->std, std, sizeof std);
}

/* == Samples ====================================================================================================== */

bool sample_buffer_grow(SampleBuffer *buffer, size_t room) {
    if (room <= buffer->room) return true;
    free(buffer->bytes);
    buffer->bytes = malloc(room);
    buffer->room = buffer->bytes ? room : 0;
    return buffer->bytes != NULL;
}

bool dataset_read(const Dataset *dataset, size_t index, SampleBuffer *buffer, Sample *sample, char error[FILE_ERROR]) {
    if (dataset->read) return dataset->read(dataset, index, buffer, sample, error);
    *sample = (Sample){.size = (size_t)dataset->height * (size_t)dataset->width * 3,
                       .height = dataset->height,
                       .width = dataset->width};
    if (!sample_buffer_grow(buffer, sample->size)) {
        snprintf(error, FILE_ERROR, "out of memory for an image");
        return false;
    }
    dataset->get(dataset, index, buffer->bytes, &sample->label);
    sample->bytes = buffer->bytes;
    return true;
}

void dataset_name_image(const Dataset *dataset, size_t index, char *text, size_t size) {
    if (dataset->describe)
        dataset->describe(dataset, index, text, size);
    else
        snprintf(text, size, "image %zu of %s", index, dataset->name);
}

void dataset_close(Dataset *dataset) {
    if (dataset->close) dataset->close(dataset);
    *dataset = (Dataset){.count = 0};
}
