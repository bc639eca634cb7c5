/* Data sets of images and clips.  A data set is a table of labelled images: or of labelled videos.  Images and frames
 * are either all of one size and available as 8-bit RGB pixels in row-major order, or encoded pictures of any size. */
#ifndef VIT_DATA_SETS_DATASET_H
#define VIT_DATA_SETS_DATASET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"
#include "data/images/sample.h"
#include "data/video/clips.h"

typedef struct Dataset Dataset;
struct Dataset {
    char name[32];
    size_t count;
    int height, width; /* of every image; 0: sizes differ */
    int classes;
    const char *const *class_names; /* [classes], or NULL */
    bool clips;                     /* of videos: read_clip in place of get and read */
    const int *mirrored; /* [classes]: the class of the mirror image, -1: not to be mirrored; NULL: the same class */
    float mean[3], std[3];          /* of the training split, for channels scaled to [0,1] */
    /* get, read and describe are thread-safe.  get writes image `index` as pixels [height,width,3] and its label; it is
     * NULL if sizes differ.  read returns the stored sample, valid until `buffer` is reused or the data set is closed,
     * or false with `error` set; it is NULL if get suffices.  describe writes the image's name, for messages. */
    void (*get)(const Dataset *dataset, size_t index, uint8_t *pixels, int *label);
    bool (*read)(const Dataset *dataset, size_t index, SampleBuffer *buffer, Sample *sample, Error *error);
    void (*describe)(const Dataset *dataset, size_t index, char *text, size_t size);
    /* Writes what dataset_key promises; NULL: that is the end of what describe writes. */
    void (*key)(const Dataset *dataset, size_t index, char *text, size_t size);
    /* The label of an image without its pixels; NULL: use get or read. */
    int (*label)(const Dataset *dataset, size_t index);
    /* Thread-safe.  Gives the frames of a clip to `taker` (data/video/clips.h), each valid until the next one; sets
     * *label, even where it returns false with `error` set.  If videos have files, read returns a whole one: an encoded
     * video, or a sequence of pictures (data/video/clip_file.h).  Otherwise read is NULL. */
    bool (*read_clip)(const Dataset *dataset, size_t index, const ClipChoice *choice, SampleBuffer *buffer,
                      const ClipTaker *taker, int *label, Error *error);
    void (*close)(Dataset *dataset);
    void *state;
};

/* Size of a buffer for a path, terminating 0 included; longer paths are not supported. */
enum { DATASET_PATH = 4096 };

/* A kind of data set, one entry of the list in data/sets/datasets.c. */
typedef struct {
    const char *name; /* its name in the setting `data`; NULL: it can only be given as a path */
    bool generates;   /* its open generates any number of images or clips */
    /* Whether `path`, which exists, is or contains a data set of this kind; writes to `found` the path for open and
     * describe.  NULL: this kind has no files. */
    bool (*find)(char found[DATASET_PATH], const char *path);
    /* See datasets.h.  A kind that generates its images is given its name in place of a path. */
    void (*open)(Dataset *dataset, const char *path, bool train, size_t limit);
    void (*describe)(Dataset *dataset, const char *path);
} DatasetKind;

/* Calls read; for a data set that only has get, calls get with the buffer's memory. */
bool dataset_read(const Dataset *dataset, size_t index, SampleBuffer *buffer, Sample *sample, Error *error);

/* Writes the image's name for messages, such as "train/n01440764/x.JPEG" or "image 17 of cifar10". */
void dataset_name_image(const Dataset *dataset, size_t index, char *text, size_t size);

/* Writes the last two parts of the image's path, its class and its file: the same name wherever the data set is, and for
 * the file that it is packed into. */
void dataset_key(const Dataset *dataset, size_t index, char *text, size_t size);

/* The last two parts of a path. */
const char *dataset_last_parts(const char *path);

/* Describes a data set of photographs: sets only its name, the last part of `path` or `otherwise`, and the
 * statistics. */
void dataset_of_photographs(Dataset *dataset, const char *path, const char *otherwise);

/* How many of `count` images remain under a limit; 0: no limit. */
size_t dataset_limited(size_t count, size_t limit);

/* Closes a data set, which may only have been described. */
void dataset_close(Dataset *dataset);

#endif
