/* Batches for classification.  Every batch is a pure function of (seed, epoch, batch), whichever thread or rank
 * loads it: a run resumed in the middle of an epoch sees the same bytes as an uninterrupted one, and image j of a batch
 * is the same on any number of ranks.
 *
 *   training     order = a uniformly random permutation of all images keyed by (seed, epoch);
 *                batches = count / batch_size, rounded down: an incomplete last batch is dropped, as in DeiT, unless
 *                keep_last is set;
 *                balanced: all classes come equally often, and a class repeats its images (sampler.h);
 *                sampler.h describes repeated augmentation, mixup.h the order of samples within a batch
 *   evaluation   order = the data set's; batches = count / batch_size, rounded up: the last may be smaller
 *
 * The same for clips, [frames,height,width,3] in place of [height,width,3].  In training each clip has samples_per_clip
 * consecutive places of the order, with the same frames and independent augmentation, and its file is opened once for
 * those in the same part. In evaluation it has `views` places, one for each of its clips and crops.
 *
 * An image or video that cannot be read is replaced in training, but not in evaluation, unless `replaces` is set: its
 * label is then -1 - label, and its pixels are undefined.
 *
 * data/loading/parts.h shares batches among ranks and threads, and replaces images that cannot be read. */
#ifndef VIT_DATA_LOADING_LOADER_H
#define VIT_DATA_LOADING_LOADER_H

#include "data/video/clips.h"
#include "data/sets/dataset.h"
#include "data/loading/parts.h"

typedef enum { CLASS_WEIGHTS_NONE, CLASS_WEIGHTS_INVERSE, CLASS_WEIGHTS_SQRT } ClassWeights;

typedef struct {
    float label_smoothing;
    ClassWeights class_weights;
} TargetSettings;

extern const ConfigGroup target_settings;

typedef struct {
    PartsConfig parts;
    bool balanced; /* training: every class comes equally often */
    bool replaces; /* evaluation: another image takes the place of a damaged one, as in training */
    int repeats; /* training: how often each image is repeated (sampler.h); 0 or 1: no repeated augmentation */
    bool pairs;  /* training: samples of a batch in mixup's order, partners adjacent (mixup.h) */
    Transform transform;
    int frames; /* of a clip; 0 or 1 for images */
    ClipSettings clips;
} LoaderConfig;

/* n consecutive samples of a batch, plus any mixup partners that lie just before or after them: `count` images in all,
 * at most n + 2. */
typedef struct {
    uint8_t *pixels; /* [count,frames,height,width,3] */
    int *labels;     /* [count] */
    uint32_t *draws; /* [count]: the keys of the random draws of each image, as loader_draw returns them */
    int *pairs;      /* [n,2]: indices into the images of a sample and its partner; equal without config.pairs */
    int n, count;
    size_t batch; /* of the epoch */
    int first;    /* position of the first sample in the global batch */
} LoaderPart;

typedef struct {
    const Dataset *dataset;
    LoaderConfig config;
    Parts parts;
    int *labels; /* [count] of the data set, if classes are balanced */
} Loader;

/* Starts at epoch 0.  Ends the process when a training set does not fill one batch. */
void loader_open(Loader *loader, const Dataset *dataset, const LoaderConfig *config);
/* Returns the next part, like parts_next: false at the end of the epoch. */
bool loader_next(Loader *loader, LoaderPart *part);

/* The key of the random draws of the sample at a position of the epoch: image + repeat * count, where repeat counts
 * from 0 the repetitions of the image (sampler.h). */
uint32_t loader_draw(const Loader *loader, size_t position);

/* The number of samples in an epoch. */
size_t loader_length(const Dataset *dataset, const LoaderConfig *config);

/* How many views of a sample this epoch has: 1, except when videos are evaluated. */
int loader_views(const Loader *loader);

/* Fills pixels [n,frames,height,width,3] and labels [n] with the images at positions first .. first+n-1 of the epoch,
 * using OpenMP; the bytes do not depend on the number of threads.  Not thread-safe, and not to be called while the pool
 * loads for this loader. */
void loader_fill(Loader *loader, size_t first, int n, uint8_t *pixels, int *labels);

/* Writes the first training images of a run, at most 64, or 16 clips, as a loader with this transform, seed, frames and
 * clips gives them, into a picture (data/images/sheet.h).  Returns their number; on failure returns 0 and sets
 * `error`. */
int loader_write_sheet(const char *path, const Dataset *dataset, const LoaderConfig *config, Error *error);

/* weights [classes]: the factor of an image's loss, by its class.  The mean over the data set is 1; with n_c images of
 * class c, in proportion to 1 / n_c (inverse) or 1 / sqrt(n_c) (sqrt); 0 for a class without images. */
void loader_class_weights(float *weights, const Dataset *dataset, ClassWeights kind);

/* targets [n,classes]: timm's smoothed one-hot (timm/data/mixup.py): off = s / C, on = 1 - s + s / C. */
void loader_targets(float *targets, const int *labels, int n, int classes, float smoothing);

#endif
