/* Where images come from.  A data set is a table of labelled images: of one size and at hand as 8 bits a channel, rows
 * of RGB pixels, or as pictures of any size that are still encoded. */
#ifndef VIT_DATA_DATASET_H
#define VIT_DATA_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"

/* What a data set has of one image. */
typedef struct {
    const uint8_t *bytes;
    size_t size;
    int height, width; /* bytes are pixels [height,width,3]; 0: a picture as in a file */
    int label;
} Sample;

/* Memory for samples that are not in memory already; grows, starts as {0}. */
typedef struct {
    uint8_t *bytes;
    size_t room;
} SampleBuffer;

typedef struct Dataset Dataset;
struct Dataset {
    char name[32];
    size_t count;
    int height, width; /* of every image; 0: as they come */
    int classes;
    const char *const *class_names; /* [classes], or NULL */
    float mean[3], std[3];          /* of the training split, channels in [0,1] */
    /* Any thread may call these at any time.  get writes image `index` as [height,width,3] and its label; NULL where
     * sizes differ.  read gives what there is of it, valid until `buffer` is used again or the data set is closed, or
     * says in `error` what is wrong; NULL where get does.  describe writes what it is called, for messages. */
    void (*get)(const Dataset *dataset, size_t index, uint8_t *pixels, int *label);
    bool (*read)(const Dataset *dataset, size_t index, SampleBuffer *buffer, Sample *sample, Error *error);
    void (*describe)(const Dataset *dataset, size_t index, char *text, size_t size);
    void (*close)(Dataset *dataset);
    void *state;
};

/* Longest path that is looked at, its final 0 included. */
enum { DATASET_PATH = 4096 };

/* A kind of data set, one entry of the list in data/datasets.c. */
typedef struct {
    const char *name; /* what the setting `data` calls it; NULL: it is found by its path alone */
    /* Does it lie in or at `path`, which exists?  found: what open and describe are to be given.  NULL: in no path. */
    bool (*find)(char found[DATASET_PATH], const char *path);
    /* See datasets.h. */
    void (*open)(Dataset *dataset, const char *path, bool train, size_t limit);
    void (*describe)(Dataset *dataset, const char *path);
} DatasetKind;

/* read, or get into the buffer. */
bool dataset_read(const Dataset *dataset, size_t index, SampleBuffer *buffer, Sample *sample, Error *error);

/* "train/n01440764/x.JPEG", or "image 17 of cifar10". */
void dataset_name_image(const Dataset *dataset, size_t index, char *text, size_t size);

/* A described one may be closed too. */
void dataset_close(Dataset *dataset);

/* Channel statistics of ImageNet, which photographs are normalised with. */
extern const float imagenet_mean[3], imagenet_std[3];

/* room bytes at least, or false. */
bool sample_buffer_grow(SampleBuffer *buffer, size_t room);

#endif
