#include "data/loading/loader.h"

#include <assert.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>

#include "core/die.h"
#include "data/images/mixup.h"
#include "data/images/sheet.h"
#include "data/loading/sampler.h"
#include "data/sets/subset.h"

static const ConfigEntry entries[] = {
    {CONFIG_FIELD(FLOAT, TargetSettings, label_smoothing), "0.1", .section = "training", .min = 0, .max = 0.99,
     .help = "Label smoothing: the share of each target that is spread evenly over all classes"},
    {CONFIG_FIELD(CHOICE, TargetSettings, class_weights), "none",
     CONFIG_CHOICES([CLASS_WEIGHTS_NONE] = "none", [CLASS_WEIGHTS_INVERSE] = "inverse", [CLASS_WEIGHTS_SQRT] = "sqrt"),
     .help = "Weight of each image in the loss, for data sets with many images of some classes and few of others: "
             "none; inverse, one over the number of training images of its class; or sqrt, one over the square root of "
             "that number. The mean weight over all training images is 1, and the loss of a batch is the mean over its "
             "images"},
};
const ConfigGroup target_settings = {CONFIG_GROUP(TargetSettings, entries), .change = CHANGE_FREELY};

typedef struct {
    LoaderPart part;
    size_t position; /* position in the epoch of the part's first image */
} LoaderSlot;

/* == Order ======================================================================================================== */

/* The number of samples of a clip or an image in a training epoch. */
static int samples_of(const Dataset *dataset, const LoaderConfig *c) {
    return dataset->clips && c->parts.train && c->clips.samples_per_clip > 1 ? c->clips.samples_per_clip : 1;
}

static int views_of(const Dataset *dataset, const LoaderConfig *c) {
    return dataset->clips && !c->parts.train ? clip_views(&c->clips) : 1;
}

size_t loader_length(const Dataset *dataset, const LoaderConfig *c) {
    int samples = samples_of(dataset, c);
    if (!c->parts.train) return dataset->count * (size_t)views_of(dataset, c);
    return samples > 1 ? dataset->count * (size_t)samples : sampler_length(dataset->count, c->repeats);
}

static size_t length_of(const Loader *loader) { return loader_length(loader->dataset, &loader->config); }

int loader_views(const Loader *loader) { return views_of(loader->dataset, &loader->config); }

/* The place in the epoch's order for a position: with pairs, mixup partners are neighbours (mixup.h). */
static size_t place_of(const Loader *loader, size_t position) {
    size_t size = (size_t)loader->config.parts.batch_size, batch = position / size;
    if (!loader->config.parts.train || !loader->config.pairs) return position;
    return batch * size + mixup_sample(position % size, (size_t)parts_batch(&loader->parts, batch));
}

uint32_t loader_draw(const Loader *loader, size_t position) {
    int repeats = loader->config.parts.train ? loader->config.repeats : 1;
    int samples = samples_of(loader->dataset, &loader->config);
    if (samples > 1) repeats = samples;
    position /= (size_t)loader_views(loader);
    return sampler_draw(loader->parts.order, loader->dataset->count, repeats, place_of(loader, position));
}

/* == One image ==================================================================================================== */

/* The memory of a sample, and the key of its random draws. */
typedef struct {
    TransformKey key;
    uint8_t *out;
    int *label;
} Target;

typedef struct {
    const Loader *loader;
    TransformScratch *scratch;
    Target samples[CLIP_MOST_SAMPLES]; /* of one clip, or of one image */
    int count;
    int clip, crop; /* of the views of a video, in evaluation */
} ImageJob;

static bool load_sample(void *argument, size_t index, Error *error) {
    const ImageJob *job = argument;
    const Dataset *dataset = job->loader->dataset;
    const Transform *transform = &job->loader->config.transform;
    const Target *to = job->samples;
    Sample sample;
    bool ok = dataset_read(dataset, index, &job->scratch->bytes, &sample, error) &&
              transform_sample(job->scratch, to->out, &sample, dataset->height > 0, transform, to->key, error);
    *to->label = sample.label; /* which a data set knows although an image cannot be read */
    return ok;
}

/* == One clip ===================================================================================================== */

static size_t frame_bytes(const Loader *loader) {
    const Transform *t = &loader->config.transform;
    return (size_t)t->height * (size_t)t->width * 3;
}

typedef struct {
    const ImageJob *job;
    Transform transform;
} FrameJob;

static bool take_frame(void *argument, int i, const Sample *frame, Error *error) {
    FrameJob *frames = argument;
    const ImageJob *job = frames->job;
    const Dataset *dataset = job->loader->dataset;
    bool ok = true;
    if (!i && dataset->mirrored && dataset->mirrored[frame->label] < 0) frames->transform.augment.s.flip = false;
    for (int s = 0; ok && s < job->count; s++)
        ok = transform_sample(job->scratch, job->samples[s].out + (size_t)i * frame_bytes(job->loader), frame,
                              dataset->height > 0, &frames->transform, job->samples[s].key, error);
    return ok;
}

static bool load_clip(void *argument, size_t index, Error *error) {
    const ImageJob *job = argument;
    const LoaderConfig *c = &job->loader->config;
    const Dataset *dataset = job->loader->dataset;
    FrameJob frames = {.job = job, .transform = c->transform};
    ClipTaker taker = {take_frame, &frames};
    frames.transform.crop = job->crop;
    frames.transform.crops = c->parts.train ? 1 : c->clips.test_crops;
    TransformKey key = job->samples[0].key;
    ClipChoice choice = {.frames = c->frames, .s = c->clips, .train = c->parts.train, .clip = job->clip,
                         .seed = key.seed, .epoch = key.epoch, .draw = key.draw};
    if (samples_of(dataset, c) > 1) choice.draw %= (uint32_t)dataset->count; /* the same frames for all samples of a
                                                                              * clip */
    int label;
    if (!dataset->read_clip(dataset, index, &choice, &job->scratch->bytes, &taker, &label, error)) {
        *job->samples[0].label = label;
        return false;
    }
    for (int s = 0; s < job->count; s++) {
        const Target *to = &job->samples[s];
        bool mirrors = c->parts.train && dataset->mirrored && transform_mirrors(&frames.transform, to->key);
        *to->label = mirrors ? dataset->mirrored[label] : label;
    }
    return true;
}

static void add_target(ImageJob *job, size_t position, uint8_t *out, int *label) {
    const Loader *loader = job->loader;
    TransformKey key = {loader->config.parts.seed, loader->parts.epoch, loader_draw(loader, position)};
    job->samples[job->count++] = (Target){key, out, label};
}

/* Loads the image or clip at that position of the epoch, the first of the job's; a replacement for a damaged image uses
 * the random numbers of the damaged one. */
static void load_job(Loader *loader, ImageJob *job, size_t position) {
    const LoaderConfig *c = &loader->config;
    size_t index = job->samples[0].key.draw % loader->dataset->count;
    bool (*load)(void *, size_t, Error *) = loader->dataset->clips ? load_clip : load_sample;
    int view = (int)(position % (size_t)loader_views(loader)), *label = job->samples[0].label;
    assert(label);
    job->clip = view / c->clips.test_crops;
    job->crop = view % c->clips.test_crops;
    if (c->parts.train || c->replaces) parts_load(&loader->parts, index, job->count, job, load, PARTS_REPLACED);
    else if (!parts_try(&loader->parts, index, job, load, "counts as wrong")) *label = -1 - *label;
}

static void describe(const void *loader, size_t index, char *text, size_t size) {
    dataset_name_image(((const Loader *)loader)->dataset, index, text, size);
}

/* == Parts ======================================================================================================== */

/* Finds the images that the samples of a part need, mixup partners included. */
static int open_part(void *argument, void *memory, size_t batch, int first, int *images) {
    const Loader *loader = argument;
    LoaderSlot *slot = memory;
    LoaderPart *p = &slot->part;
    size_t begin = (size_t)first;
    int n = *images;
    p->n = p->count = n;
    p->batch = batch;
    p->first = first;
    for (int i = 0; i < 2 * n; i++) p->pairs[i] = i / 2;
    if (loader->config.parts.train && loader->config.pairs)
        p->count = mixup_part(&begin, p->pairs, begin, n, (size_t)parts_batch(&loader->parts, batch));
    slot->position = batch * (size_t)loader->config.parts.batch_size + begin;
    for (int i = 0; i < p->count; i++) p->draws[i] = loader_draw(loader, slot->position + (size_t)i);
    return p->count;
}

static size_t image_bytes(const Loader *loader) { return (size_t)loader->config.frames * frame_bytes(loader); }

/* Loads an image or clip.  If several samples of a clip are in this part, the first one loads them all. */
static void fill_image(void *argument, void *memory, int first, TransformScratch *scratch) {
    Loader *loader = argument;
    const LoaderSlot *slot = memory;
    const LoaderPart *p = &slot->part;
    bool alone = samples_of(loader->dataset, &loader->config) == 1;
    uint32_t count = (uint32_t)loader->dataset->count, index = p->draws[first] % count;
    ImageJob job = {.loader = loader, .scratch = scratch};
    for (int i = 0; i < first && !alone; i++)
        if (p->draws[i] % count == index) return;
    for (int i = first; i < (alone ? first + 1 : p->count); i++)
        if (p->draws[i] % count == index)
            add_target(&job, slot->position + (size_t)i, p->pixels + (size_t)i * image_bytes(loader), &p->labels[i]);
    load_job(loader, &job, slot->position + (size_t)first);
}

/* == Balance ====================================================================================================== */

static void shuffle_balanced(void *argument) {
    Loader *loader = argument;
    const Parts *p = &loader->parts;
    sampler_balance(p->order, loader->labels, p->source.count, loader->dataset->classes, p->config.seed, p->epoch);
}

void loader_class_weights(float *weights, const Dataset *dataset, ClassWeights kind) {
    int *labels = dataset_labels(dataset);
    double *counts = xcalloc((size_t)dataset->classes, sizeof *counts, "classes"), sum = 0;
    for (size_t i = 0; i < dataset->count; i++) counts[labels[i]]++;
    for (int c = 0; c < dataset->classes; c++) {
        double weight = counts[c] == 0 ? 0 : kind == CLASS_WEIGHTS_SQRT ? 1 / sqrt(counts[c]) : 1 / counts[c];
        weights[c] = (float)weight;
        sum += weight * counts[c];
    }
    for (int c = 0; c < dataset->classes; c++) weights[c] = (float)((double)weights[c] * (double)dataset->count / sum);
    free(counts);
    free(labels);
}

/* == A loader ===================================================================================================== */

void loader_open(Loader *loader, const Dataset *dataset, const LoaderConfig *config) {
    *loader = (Loader){.dataset = dataset, .config = *config};
    LoaderConfig *c = &loader->config;
    if (c->balanced && c->parts.train) loader->labels = dataset_labels(dataset);
    if (c->repeats < 1) c->repeats = 1;
    if (c->frames < 1) c->frames = 1;
    if (c->clips.test_clips < 1) c->clips.test_clips = 1;
    if (c->clips.test_crops < 1) c->clips.test_crops = 1;
    c->transform.train = c->parts.train;
    PartsSource source = {
        .name = dataset->name,
        .noun = dataset->clips ? "videos" : "images",
        .count = dataset->count,
        .length = length_of(loader),
        .chunk = dataset->get ? 16 : 1, /* a lock is costly next to a copy, cheap next to a JPEG */
        .views = loader_views(loader) * samples_of(dataset, c),
        .loader = loader,
        .shuffle = c->balanced && c->parts.train ? shuffle_balanced : NULL,
        .slot_size = sizeof(LoaderSlot),
        .arrays = {{offsetof(LoaderSlot, part.pixels), image_bytes(loader), 2, "a batch of images"},
                   {offsetof(LoaderSlot, part.labels), sizeof(int), 2, "a batch of labels"},
                   {offsetof(LoaderSlot, part.draws), sizeof(uint32_t), 2, "a batch of draws"},
                   {offsetof(LoaderSlot, part.pairs), sizeof(int[2]), 0, "a batch of pairs"}},
        .open = open_part,
        .fill = fill_image,
        .describe = describe};
    parts_open(&loader->parts, &c->parts, &source);
}

bool loader_next(Loader *loader, LoaderPart *part) {
    const LoaderSlot *slot = parts_next(&loader->parts);
    if (slot) *part = slot->part;
    return slot;
}

void loader_fill(Loader *loader, size_t first, int n, uint8_t *pixels, int *labels) {
    Parts *parts = &loader->parts;
    assert(first + (size_t)n <= length_of(loader));

#pragma omp parallel for schedule(dynamic) num_threads(parts->threads)
    for (int i = 0; i < n; i++) {
        ImageJob job = {.loader = loader, .scratch = &parts->scratch[omp_get_thread_num()]};
        add_target(&job, first + (size_t)i, pixels + (size_t)i * image_bytes(loader), &labels[i]);
        load_job(loader, &job, first + (size_t)i);
    }
    parts->stats.images += (uint64_t)n;
    parts_check(parts);
}

int loader_write_sheet(const char *path, const Dataset *dataset, const LoaderConfig *config, Error *error) {
    enum { MOST = 64 };
    const Transform *t = &config->transform;
    int frames = config->frames > 1 ? config->frames : 1, most = frames > 1 ? MOST / 4 : MOST;
    int labels[MOST], n = dataset->count < (size_t)most ? (int)dataset->count : most;
    LoaderConfig whole = {.parts = {.seed = config->parts.seed, .batch_size = n, .train = true, .max_damaged = 1},
                          .transform = *t, .frames = frames, .clips = config->clips};
    Loader loader;
    loader_open(&loader, dataset, &whole);
    uint8_t *pixels = xcalloc((size_t)n * 3 * (size_t)frames, (size_t)t->height * (size_t)t->width, "a batch");
    loader_fill(&loader, 0, n, pixels, labels);
    bool ok = sheet_write(path, pixels, n, frames, t->height, t->width, labels, dataset->class_names, error);
    free(pixels);
    parts_close(&loader.parts);
    return ok ? n : 0;
}

void loader_targets(float *targets, const int *labels, int n, int classes, float smoothing) {
    float off = smoothing / (float)classes;
    for (int i = 0; i < n; i++) {
        for (int c = 0; c < classes; c++) targets[(size_t)i * (size_t)classes + (size_t)c] = off;
        targets[(size_t)i * (size_t)classes + (size_t)labels[i]] = 1.0f - smoothing + off;
    }
}
