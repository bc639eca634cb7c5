/* Where images come from.  A dataset is a table of labelled images of one size, 8 bits a channel, rows of RGB
 * pixels. */
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

/* `data` is "shapes", "cifar10", "cifar100", or a folder with the official binary files of one of the two; a name is
 * looked for in `folder`.  limit keeps the first `limit` images (0: all; shapes draws as many as are asked for).  Dies
 * with one line that names the file and what is wrong with it. */
void dataset_open(Dataset *dataset, const char *data, const char *folder, bool train, size_t limit);

/* What is known without opening a file: name, size, classes, statistics; no count, get or close, and class names only
 * where they are fixed. */
void dataset_describe(Dataset *dataset, const char *data);

/* A described one may be closed too. */
void dataset_close(Dataset *dataset);

#endif
