/* Where images come from.  A data set is a table of labelled images: of one size and at hand as 8 bits a channel, rows
 * of RGB pixels, or as pictures of any size that are still encoded. */
#ifndef VIT_DATA_DATASET_H
#define VIT_DATA_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/config.h"
#include "core/files.h"

/* Which data set, and how much of it. */
typedef struct {
    const char *data, *data_dir;
    int train_limit, test_limit;
} DataSettings;

extern const ConfigGroup data_settings;

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
    bool (*read)(const Dataset *dataset, size_t index, SampleBuffer *buffer, Sample *sample, char error[FILE_ERROR]);
    void (*describe)(const Dataset *dataset, size_t index, char *text, size_t size);
    void (*close)(Dataset *dataset);
    void *state;
};

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

/* read, or get into the buffer. */
bool dataset_read(const Dataset *dataset, size_t index, SampleBuffer *buffer, Sample *sample, char error[FILE_ERROR]);

/* "train/n01440764/x.JPEG", or "image 17 of cifar10". */
void dataset_name_image(const Dataset *dataset, size_t index, char *text, size_t size);

/* A described one may be closed too. */
void dataset_close(Dataset *dataset);

/* Channel statistics of ImageNet, which all data sets of photographs are normalised with. */
void dataset_imagenet_statistics(Dataset *dataset);

/* room bytes at least, or false. */
bool sample_buffer_grow(SampleBuffer *buffer, size_t room);

#endif
