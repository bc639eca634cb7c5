/* Where images come from.  A dataset is a table of labelled images of one size, 8 bits a channel, rows of RGB pixels. */
#ifndef VIT_DATA_DATASET_H
#define VIT_DATA_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Dataset Dataset;
struct Dataset {
    char name[32];
    size_t count;
    int height, width, classes;
    const char *const *class_names; /* [classes], or NULL */
    float mean[3], std[3];          /* of the training split, channels in [0,1] */
    /* Writes image `index` as [height,width,3] and its label.  Any thread may call it at any time. */
    void (*get)(const Dataset *dataset, size_t index, uint8_t *pixels, int *label);
    void (*close)(Dataset *dataset);
    void *state;
};

/* "shapes", "cifar10" or "cifar100" (`path`: the folder of the official binary files); dies with one line that names
 * the file and what is wrong with it.  `seed` and `limit` (0: all) matter to shapes only in what they draw; limit
 * keeps the first `limit` images of any dataset. */
void dataset_open(Dataset *dataset, const char *name, const char *path, bool train, uint64_t seed, size_t limit);
void dataset_close(Dataset *dataset);

#endif
