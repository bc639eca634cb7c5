#include "data/dataset.h"

#include <stdio.h>
#include <string.h>

#include "core/die.h"
#include "core/files.h"
#include "data/cifar.h"
#include "data/shapes.h"

/* The embedded data set is the same for every run, so that runs with different seeds can be compared. */
static const uint64_t SHAPES_SEED = 0;

static bool folder_has(const char *folder, const char *file) {
    char path[4096];
    path_join(path, sizeof path, folder, file);
    return file_exists(path);
}

/* 10 or 100 for the two CIFARs by name or by the files in a folder, 0 for shapes. */
static int cifar_classes(const char *data, bool *folder) {
    static const char *const known[] = {"shapes", "cifar10", "cifar100"};
    *folder = false;
    if (!strcmp(data, "shapes")) return 0;
    if (!strcmp(data, "cifar10")) return 10;
    if (!strcmp(data, "cifar100")) return 100;
    *folder = true;
    if (folder_has(data, "train.bin") || folder_has(data, "cifar-100-binary")) return 100;
    if (folder_has(data, "data_batch_1.bin") || folder_has(data, "cifar-10-batches-bin")) return 10;
    if (file_exists(data))
        die("%s: neither train.bin (CIFAR-100) nor data_batch_1.bin (CIFAR-10) is in this folder", data);
    const char *near = nearest_word(data, known, 3);
    if (strchr(data, '/')) die("data: %s: no such folder", data);
    if (near) die_usage("data: unknown data set '%s' (did you mean '%s'?)", data, near);
    die_usage("data: '%s' is neither shapes, cifar10 or cifar100 nor a folder", data);
}

void dataset_open(Dataset *dataset, const char *data, const char *folder, bool train, size_t limit) {
    bool is_folder;
    int classes = cifar_classes(data, &is_folder);
    if (classes)
        cifar_open(dataset, classes, is_folder ? data : folder, train, limit);
    else
        shapes_open(dataset, train, SHAPES_SEED, limit);
}

void dataset_describe(Dataset *dataset, const char *data) {
    bool is_folder;
    int classes = cifar_classes(data, &is_folder);
    if (classes)
        cifar_describe(dataset, classes);
    else
        shapes_describe(dataset);
}

void dataset_close(Dataset *dataset) {
    if (dataset->close) dataset->close(dataset);
    *dataset = (Dataset){.count = 0};
}
