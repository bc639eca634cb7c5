#include "data/sets/cifar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/results/class_names.h"
#include "core/die.h"
#include "core/files.h"

/* The two data sets differ in these; means and standard deviations are the customary ones. */
typedef struct {
    const char *name, *folder, *names_file;
    const char *train[5];
    const char *test;
    int train_files;
    size_t train_records, test_records; /* per file */
    int label_bytes;
    float mean[3], std[3];
} CifarLayout;

static const CifarLayout cifar10 = {
    .name = "cifar10",
    .folder = "cifar-10-batches-bin",
    .names_file = "batches.meta.txt",
    .train = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"},
    .test = "test_batch.bin",
    .train_files = 5,
    .train_records = 10000,
    .test_records = 10000,
    .label_bytes = 1,
    .mean = {0.4914f, 0.4822f, 0.4465f},
    .std = {0.2470f, 0.2435f, 0.2616f},
};

static const CifarLayout cifar100 = {
    .name = "cifar100",
    .folder = "cifar-100-binary",
    .names_file = "fine_label_names.txt",
    .train = {"train.bin"},
    .test = "test.bin",
    .train_files = 1,
    .train_records = 50000,
    .test_records = 10000,
    .label_bytes = 2,
    .mean = {0.5071f, 0.4867f, 0.4408f},
    .std = {0.2675f, 0.2565f, 0.2761f},
};

static const CifarLayout *layout_of(int classes) { return classes == 10 ? &cifar10 : &cifar100; }

/* == Records ====================================================================================================== */

size_t cifar_count(size_t size, int classes, size_t expected, Error *error) {
    size_t record = (size_t)layout_of(classes)->label_bytes + CIFAR_PIXELS, count = size / record;
    if (size % record)
        return refuse(error, "%zu bytes: %zu whole records of %zu bytes and %zu bytes left over", size, count, record,
                      size % record), 0;
    if (expected && count != expected) return refuse(error, "%zu records, expected %zu", count, expected), 0;
    if (!count) refuse(error, "%zu records, expected at least 1", count);
    return count;
}

static bool label_in_range(uint8_t label, int classes, const char *what, size_t record, Error *error) {
    if (label < classes) return true;
    return refuse(error, "record %zu: %s %d, expected 0 to %d", record, what, label, classes - 1);
}

bool cifar_parse(uint8_t *pixels, uint8_t *labels, const uint8_t *bytes, size_t count, int classes, Error *error) {
    enum { PLANE = CIFAR_SIDE * CIFAR_SIDE };
    int label_bytes = layout_of(classes)->label_bytes;
    for (size_t i = 0; i < count; i++) {
        if (label_bytes == 2 && !label_in_range(bytes[0], 20, "coarse label", i, error)) return false;
        labels[i] = bytes[label_bytes - 1];
        if (!label_in_range(labels[i], classes, "label", i, error)) return false;
        bytes += label_bytes;
        for (int p = 0; p < PLANE; p++) {
            for (int c = 0; c < 3; c++) pixels[p * 3 + c] = bytes[c * PLANE + p];
        }
        bytes += CIFAR_PIXELS;
        pixels += CIFAR_PIXELS;
    }
    return true;
}

/* == Files ======================================================================================================== */

typedef struct {
    uint8_t *pixels; /* [count,32,32,3] */
    uint8_t *labels; /* [count] */
    ClassNames names;
} Cifar;

/* The folder that holds the split's first file: `path` itself or the official folder below it. */
static void find_folder(char folder[DATASET_PATH], const CifarLayout *layout, const char *path, const char *first) {
    char file[DATASET_PATH];
    path_join(folder, DATASET_PATH, path, layout->folder);
    path_join(file, sizeof file, folder, first);
    if (access(file, F_OK) == 0) return;
    snprintf(folder, DATASET_PATH, "%s", path);
    path_join(file, sizeof file, folder, first);
    if (access(file, F_OK)) {
        die("%s: no such file, and no %s/%s in the same folder: download it with `scripts/fetch_cifar.sh %s`, or set "
            "data_dir", file,
            layout->folder, first, layout->name);
    }
}

static void load_file(uint8_t *pixels, uint8_t *labels, const CifarLayout *layout, int classes, size_t expected,
                      const char *folder, const char *name) {
    char path[DATASET_PATH];
    Error error;
    uint8_t *bytes;
    size_t size;
    path_join(path, sizeof path, folder, name);
    bool ok = file_read(path, (size_t)1 << 30, &bytes, &size, &error) &&
              cifar_count(size, classes, expected, &error) &&
              cifar_parse(pixels, labels, bytes, expected, classes, &error);
    if (!ok) die("%s: %s: run `scripts/fetch_cifar.sh %s` to download it again", path, error.text, layout->name);
    free(bytes);
}

/* Reads a file of one name per line.  Names are optional: without a file of exactly `classes` names, classes are
 * numbered. */
static bool load_names(Cifar *cifar, const CifarLayout *layout, int classes, const char *folder) {
    char path[DATASET_PATH];
    Error error;
    uint8_t *bytes;
    size_t size;
    path_join(path, sizeof path, folder, layout->names_file);
    if (access(path, F_OK)) return false;
    if (!file_read(path, 1 << 16, &bytes, &size, &error)) {
        warn("%s: %s: classes go by number", path, error.text);
        return false;
    }
    class_names_parse(&cifar->names, (const char *)bytes, size, '\n');
    free(bytes);
    bool complete = class_names_complete(&cifar->names, classes);
    if (!complete) warn("%s: %d names, expected %d: classes go by number", path, cifar->names.named, classes);
    return complete;
}

static void cifar_get(const Dataset *dataset, size_t index, uint8_t *pixels, int *label) {
    const Cifar *cifar = dataset->state;
    memcpy(pixels, cifar->pixels + index * CIFAR_PIXELS, CIFAR_PIXELS);
    *label = cifar->labels[index];
}

static int cifar_label(const Dataset *dataset, size_t index) { return ((const Cifar *)dataset->state)->labels[index]; }

static void cifar_close(Dataset *dataset) {
    Cifar *cifar = dataset->state;
    free(cifar->pixels);
    free(cifar->labels);
    class_names_free(&cifar->names);
    free(cifar);
}

static void cifar_describe(Dataset *dataset, int classes) {
    const CifarLayout *layout = layout_of(classes);
    *dataset = (Dataset){.height = CIFAR_SIDE, .width = CIFAR_SIDE, .classes = classes};
    snprintf(dataset->name, sizeof dataset->name, "%s", layout->name);
    memcpy(dataset->mean, layout->mean, sizeof dataset->mean);
    memcpy(dataset->std, layout->std, sizeof dataset->std);
}

static void cifar_open(Dataset *dataset, int classes, const char *path, bool train, size_t limit) {
    const CifarLayout *layout = layout_of(classes);
    const char *const *files = train ? layout->train : &layout->test;
    int file_count = train ? layout->train_files : 1;
    size_t each = train ? layout->train_records : layout->test_records, count = each * (size_t)file_count;
    char folder[DATASET_PATH];

    find_folder(folder, layout, path, files[0]);
    Cifar *cifar = xcalloc(1, sizeof *cifar, layout->name);
    cifar->pixels = xcalloc(count, CIFAR_PIXELS, "images");
    cifar->labels = xcalloc(count, 1, "labels");
    for (int i = 0; i < file_count; i++) {
        size_t first = each * (size_t)i;
        load_file(cifar->pixels + first * CIFAR_PIXELS, cifar->labels + first, layout, classes, each, folder, files[i]);
    }
    cifar_describe(dataset, classes);
    dataset->count = dataset_limited(count, limit);
    dataset->class_names = load_names(cifar, layout, classes, folder) ? cifar->names.at : NULL;
    dataset->get = cifar_get;
    dataset->label = cifar_label;
    dataset->close = cifar_close;
    dataset->state = cifar;
}

/* == The two kinds ================================================================================================ */

static bool cifar_find(char found[DATASET_PATH], const char *path, const CifarLayout *layout) {
    char file[DATASET_PATH];
    snprintf(found, DATASET_PATH, "%s", path);
    path_join(file, sizeof file, path, layout->train[0]);
    if (file_exists(file)) return true;
    path_join(file, sizeof file, path, layout->folder);
    return file_exists(file);
}

static bool cifar10_find(char found[DATASET_PATH], const char *path) { return cifar_find(found, path, &cifar10); }

static bool cifar100_find(char found[DATASET_PATH], const char *path) { return cifar_find(found, path, &cifar100); }

static void cifar10_open(Dataset *dataset, const char *path, bool train, size_t limit) {
    cifar_open(dataset, 10, path, train, limit);
}

static void cifar100_open(Dataset *dataset, const char *path, bool train, size_t limit) {
    cifar_open(dataset, 100, path, train, limit);
}

static void cifar10_describe(Dataset *dataset, const char *path) { (void)path, cifar_describe(dataset, 10); }

static void cifar100_describe(Dataset *dataset, const char *path) { (void)path, cifar_describe(dataset, 100); }

const DatasetKind cifar10_kind = {
    .name = "cifar10", .find = cifar10_find, .open = cifar10_open, .describe = cifar10_describe};
const DatasetKind cifar100_kind = {
    .name = "cifar100", .find = cifar100_find, .open = cifar100_open, .describe = cifar100_describe};
