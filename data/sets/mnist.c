#include "data/sets/mnist.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/die.h"
#include "core/files.h"
#include "core/integers.h"

enum { PIXELS = MNIST_SIDE * MNIST_SIDE, IMAGES_MAGIC = 0x803, LABELS_MAGIC = 0x801 };

/* == Files in memory ============================================================================================== */

/* The item count of a file with that magic number, header size and bytes per item. */
static size_t count_of(const uint8_t *bytes, size_t size, uint32_t magic, size_t header, size_t each, Error *error) {
    if (size >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b) return refuse(error, "compressed by gzip: gunzip it"), 0;
    if (size < header || big_endian(bytes) != magic)
        return refuse(error, "not an idx file of MNIST: begins with %08x, expected %08x",
                      size < 4 ? 0 : big_endian(bytes), magic), 0;
    size_t count = big_endian(bytes + 4);
    if (!count) return refuse(error, "its header says that it is empty"), 0;
    if ((size - header) / each != count || (size - header) % each)
        return refuse(error, "%zu bytes, expected %zu for the %zu that its header "
                             "announces", size, header + count * each,
                      count), 0;
    return count;
}

size_t mnist_images(const uint8_t *bytes, size_t size, Error *error) {
    if (size >= MNIST_IMAGES_HEADER && big_endian(bytes) == IMAGES_MAGIC &&
        (big_endian(bytes + 8) != MNIST_SIDE || big_endian(bytes + 12) != MNIST_SIDE))
        return refuse(error, "images of %u x %u, expected %d x %d", big_endian(bytes + 8), big_endian(bytes + 12),
                      MNIST_SIDE, MNIST_SIDE), 0;
    return count_of(bytes, size, IMAGES_MAGIC, MNIST_IMAGES_HEADER, PIXELS, error);
}

size_t mnist_labels(const uint8_t *bytes, size_t size, Error *error) {
    size_t count = count_of(bytes, size, LABELS_MAGIC, MNIST_LABELS_HEADER, 1, error);
    for (size_t i = 0; i < count; i++) {
        uint8_t label = bytes[MNIST_LABELS_HEADER + i];
        if (label < MNIST_CLASSES) continue;
        return refuse(error, "label %zu is %d, expected 0 to %d", i, label, MNIST_CLASSES - 1), 0;
    }
    return count;
}

/* == Data set ===================================================================================================== */

typedef struct {
    uint8_t *images, *labels; /* the files' contents */
} Mnist;

static const char *const file_names[2][2] = {{"t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"},
                                             {"train-images-idx3-ubyte", "train-labels-idx1-ubyte"}};

/* The folder of the files: `path`, or the subfolder where torchvision puts them. */
static bool mnist_find(char folder[DATASET_PATH], const char *path) {
    static const char *const below[] = {NULL, "mnist", "MNIST/raw"};
    char file[4200];
    for (int i = 0; i < 3; i++) {
        if (below[i])
            path_join(folder, DATASET_PATH, path, below[i]);
        else
            snprintf(folder, DATASET_PATH, "%s", path);
        for (int train = 0; train < 2; train++) {
            path_join(file, sizeof file, folder, file_names[train][0]);
            if (file_exists(file)) return true;
        }
    }
    return false;
}

static uint8_t *load(const char *folder, const char *name, size_t (*check)(const uint8_t *, size_t, Error *),
                     size_t *count) {
    char path[4200];
    Error error;
    uint8_t *bytes;
    size_t size;
    path_join(path, sizeof path, folder, name);
    if (!file_read(path, (size_t)1 << 30, &bytes, &size, &error)) die("%s: %s", path, error.text);
    *count = check(bytes, size, &error);
    if (!*count) die("%s: %s", path, error.text);
    return bytes;
}

static void mnist_get(const Dataset *dataset, size_t index, uint8_t *pixels, int *label) {
    const Mnist *mnist = dataset->state;
    const uint8_t *grey = mnist->images + MNIST_IMAGES_HEADER + index * PIXELS;
    for (int i = 0; i < PIXELS; i++) pixels[3 * i] = pixels[3 * i + 1] = pixels[3 * i + 2] = grey[i];
    *label = mnist->labels[MNIST_LABELS_HEADER + index];
}

static void mnist_close(Dataset *dataset) {
    Mnist *mnist = dataset->state;
    free(mnist->images);
    free(mnist->labels);
    free(mnist);
}

static void mnist_describe(Dataset *dataset, const char *path) {
    static const char *const digits[] = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
    (void)path;
    *dataset = (Dataset){
        .name = "mnist", .height = MNIST_SIDE, .width = MNIST_SIDE, .classes = MNIST_CLASSES, .class_names = digits};
    for (int c = 0; c < 3; c++) {
        dataset->mean[c] = 0.1307f;
        dataset->std[c] = 0.3081f;
    }
}

static void mnist_open(Dataset *dataset, const char *path, bool train, size_t limit) {
    char folder[DATASET_PATH];
    size_t count, labels;
    if (!mnist_find(folder, path)) die("%s: no %s in it, nor in mnist or MNIST/raw below it", path, file_names[train][0]);
    Mnist *mnist = xcalloc(1, sizeof *mnist, "MNIST");
    mnist->images = load(folder, file_names[train][0], mnist_images, &count);
    mnist->labels = load(folder, file_names[train][1], mnist_labels, &labels);
    if (count != labels) die("%s: %zu images but %zu labels", folder, count, labels);
    mnist_describe(dataset, path);
    dataset->count = dataset_limited(count, limit);
    dataset->get = mnist_get;
    dataset->close = mnist_close;
    dataset->state = mnist;
}

const DatasetKind mnist_kind = {
    .name = "mnist", .find = mnist_find, .open = mnist_open, .describe = mnist_describe};
