#include "data/loading/loader.h"

#include <assert.h>
#include <omp.h>
#include <stdlib.h>

#include "core/die.h"
#include "core/rng.h"
#include "data/images/mixup.h"
#include "data/loading/sampler.h"

static const ConfigEntry entries[] = {
    {CONFIG_FIELD(FLOAT, TargetSettings, label_smoothing), "0.1", .section = "training", .min = 0, .max = 0.99,
     .help = "Label smoothing: the share of each target that is spread evenly over all classes"},
};
const ConfigGroup target_settings = {CONFIG_GROUP(TargetSettings, entries), .change = CHANGE_FREELY};

struct LoaderSlot {
    LoaderPart part;
    size_t position; /* position in the epoch of the slot's first image */
};

/* == Order ======================================================================================================== */

/* Fisher and Yates: place i takes one of the i + 1 images not placed yet, so each of the n! orders is equally likely
 * to the bias of rng_below.  One thread, some 10 ns an image. */
static void shuffle(Loader *loader) {
    uint64_t seed = loader->config.seed;
    uint32_t *order = loader->order;
    for (size_t i = 0; i < loader->dataset->count; i++) order[i] = (uint32_t)i;
    if (!loader->config.train) return;
    for (size_t i = loader->dataset->count - 1; i > 0; i--) {
        uint32_t j = rng_below(seed, RNG_SHUFFLE, loader->epoch, 0, i, (uint32_t)i + 1);
        uint32_t swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
}

/* Of a clip or an image in a training epoch. */
static int samples_of(const Dataset *dataset, const LoaderConfig *c) {
    return dataset->clips && c->train && c->clips.samples_per_clip > 1 ? c->clips.samples_per_clip : 1;
}

static int views_of(const Dataset *dataset, const LoaderConfig *c) {
    return dataset->clips && !c->train ? clip_views(&c->clips) : 1;
}

size_t loader_length(const Dataset *dataset, const LoaderConfig *c) {
    int samples = samples_of(dataset, c);
    if (!c->train) return dataset->count * (size_t)views_of(dataset, c);
    return samples > 1 ? dataset->count * (size_t)samples : sampler_length(dataset->count, c->repeats);
}

static size_t length_of(const Loader *loader) { return loader_length(loader->dataset, &loader->config); }

int loader_views(const Loader *loader) { return views_of(loader->dataset, &loader->config); }

/* The place in the epoch's order for a position: with pairs, mixup partners are neighbours (mixup.h). */
static size_t place_of(const Loader *loader, size_t position) {
    size_t n = (size_t)loader->config.batch_size, batch = position / n;
    if (!loader->config.train || !loader->config.pairs) return position;
    return batch * n + mixup_sample(position % n, n);
}

uint32_t loader_draw(const Loader *loader, size_t position) {
    int repeats = loader->config.train ? loader->config.repeats : 1;
    int samples = samples_of(loader->dataset, &loader->config);
    if (samples > 1) repeats = samples;
    position /= (size_t)loader_views(loader);
    return sampler_draw(loader->order, loader->dataset->count, repeats, place_of(loader, position));
}

/* == One image ==================================================================================================== */

/* Where a sample goes, and the key of its draws. */
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
    int clip, crop; /* of the video's, in evaluation */
} Job;

static bool load_sample(void *argument, size_t index, Error *error) {
    const Job *job = argument;
    const Dataset *dataset = job->loader->dataset;
    const Transform *transform = &job->loader->config.transform;
    const Target *to = job->samples;
    Sample sample;
    if (!dataset_read(dataset, index, &job->scratch->bytes, &sample, error) ||
        !transform_sample(job->scratch, to->out, &sample, dataset->height > 0, transform, to->key, error))
        return false;
    *to->label = sample.label;
    return true;
}

/* == One clip ===================================================================================================== */

static size_t frame_bytes(const Loader *loader) {
    const Transform *t = &loader->config.transform;
    return (size_t)t->height * (size_t)t->width * 3;
}

typedef struct {
    const Job *job;
    Transform transform;
} Frames;

static bool take_frame(void *argument, int i, const Sample *frame, Error *error) {
    Frames *frames = argument;
    const Job *job = frames->job;
    const Dataset *dataset = job->loader->dataset;
    bool ok = true;
    if (!i && dataset->mirrored && dataset->mirrored[frame->label] < 0) frames->transform.augment.s.flip = false;
    for (int s = 0; ok && s < job->count; s++)
        ok = transform_sample(job->scratch, job->samples[s].out + (size_t)i * frame_bytes(job->loader), frame,
                              dataset->height > 0, &frames->transform, job->samples[s].key, error);
    return ok;
}

static bool load_clip(void *argument, size_t index, Error *error) {
    const Job *job = argument;
    const LoaderConfig *c = &job->loader->config;
    const Dataset *dataset = job->loader->dataset;
    Frames frames = {.job = job, .transform = c->transform};
    ClipTaker taker = {take_frame, &frames};
    frames.transform.crop = job->crop;
    frames.transform.crops = c->train ? 1 : c->clips.test_crops;
    TransformKey key = job->samples[0].key;
    ClipChoice choice = {.frames = c->frames, .s = c->clips, .train = c->train, .clip = job->clip,
                         .seed = key.seed, .epoch = key.epoch, .draw = key.draw};
    if (samples_of(dataset, c) > 1) choice.draw %= (uint32_t)dataset->count; /* the same frames for all of them */
    int label;
    if (!dataset->read_clip(dataset, index, &choice, &job->scratch->bytes, &taker, &label, error)) {
        *job->samples[0].label = label;
        return false;
    }
    for (int s = 0; s < job->count; s++) {
        const Target *to = &job->samples[s];
        bool mirrors = c->train && dataset->mirrored && transform_mirrors(&frames.transform, to->key);
        *to->label = mirrors ? dataset->mirrored[label] : label;
    }
    return true;
}

static void add_target(Job *job, size_t position, uint8_t *out, int *label) {
    const Loader *loader = job->loader;
    TransformKey key = {loader->config.seed, loader->epoch, loader_draw(loader, position)};
    job->samples[job->count++] = (Target){key, out, label};
}

/* Loads what is at that position of the epoch, the first of the job's; a replacement for a damaged image uses the
 * damaged one's draws. */
static void load_job(Loader *loader, Job *job, size_t position) {
    const LoaderConfig *c = &loader->config;
    size_t index = job->samples[0].key.draw % loader->dataset->count;
    if (loader->dataset->clips && !c->train) {
        int view = (int)(position % (size_t)loader_views(loader)), *label = job->samples[0].label;
        assert(label);
        job->clip = view / c->clips.test_crops;
        job->crop = view % c->clips.test_crops;
        if (!parts_try(&loader->parts, index, job, load_clip)) *label = -1 - *label;
    } else {
        parts_load(&loader->parts, index, job->count, job, loader->dataset->clips ? load_clip : load_sample);
    }
}

static void describe(const void *loader, size_t index, char *text, size_t size) {
    dataset_name_image(((const Loader *)loader)->dataset, index, text, size);
}

/* == Parts ======================================================================================================== */

/* Number of images in that global batch, over all ranks. */
static int batch_images(const Loader *loader, size_t batch) {
    size_t size = (size_t)loader->config.batch_size, left = length_of(loader) - batch * size;
    return left < size ? (int)left : (int)size;
}

/* Finds the images that the samples of a part need, mixup partners included. */
static int open_part(void *argument, int number, size_t batch, int first, int *images) {
    const Loader *loader = argument;
    LoaderSlot *slot = &loader->slots[number];
    LoaderPart *p = &slot->part;
    size_t begin = (size_t)first;
    int n = *images;
    p->n = p->count = n;
    p->batch = batch;
    p->first = first;
    for (int i = 0; i < 2 * n; i++) p->pairs[i] = i / 2;
    if (loader->config.train && loader->config.pairs)
        p->count = mixup_part(&begin, p->pairs, begin, n, (size_t)batch_images(loader, batch));
    slot->position = batch * (size_t)loader->config.batch_size + begin;
    for (int i = 0; i < p->count; i++) p->draws[i] = loader_draw(loader, slot->position + (size_t)i);
    return p->count;
}

static size_t image_bytes(const Loader *loader) {
    return (size_t)loader->config.frames * frame_bytes(loader);
}

/* Of the samples of a clip that are in this part, the first one loads them all. */
static void fill_image(void *argument, int number, int first, TransformScratch *scratch) {
    Loader *loader = argument;
    LoaderSlot *slot = &loader->slots[number];
    const LoaderPart *p = &slot->part;
    bool alone = samples_of(loader->dataset, &loader->config) == 1;
    uint32_t count = (uint32_t)loader->dataset->count, index = p->draws[first] % count;
    Job job = {.loader = loader, .scratch = scratch};
    for (int i = 0; i < first && !alone; i++)
        if (p->draws[i] % count == index) return;
    for (int i = first; i < (alone ? first + 1 : p->count); i++)
        if (p->draws[i] % count == index)
            add_target(&job, slot->position + (size_t)i, p->pixels + (size_t)i * image_bytes(loader), &p->labels[i]);
    load_job(loader, &job, slot->position + (size_t)first);
}

/* == A loader ===================================================================================================== */

static void slots_open(Loader *loader) {
    const LoaderConfig *c = &loader->config;
    loader->slots = xcalloc((size_t)loader->parts.slots, sizeof *loader->slots, "batches");
    for (int i = 0; i < loader->parts.slots; i++) {
        LoaderPart *part = &loader->slots[i].part;
        size_t most_images = (size_t)loader->parts.room + 2;
        part->pixels = c->allocate(most_images * image_bytes(loader), "a batch of images");
        part->labels = xcalloc(most_images, sizeof *part->labels, "a batch of labels");
        part->draws = xcalloc(most_images, sizeof *part->draws, "a batch of draws");
        part->pairs = xcalloc((size_t)loader->parts.room, 2 * sizeof *part->pairs, "a batch of pairs");
    }
}

void loader_open(Loader *loader, const Dataset *dataset, const LoaderConfig *config) {
    size_t batch = (size_t)config->batch_size;
    assert(config->batch_size > 0 && dataset->count > 0 && dataset->count < UINT32_MAX);
    *loader = (Loader){.dataset = dataset, .config = *config};
    if (config->train && length_of(loader) < batch)
        die("batch_size %d: the training split of %s has only %zu images: lower batch_size", config->batch_size,
            dataset->name, length_of(loader));
    LoaderConfig *c = &loader->config;
    if (c->ranks < 1) c->ranks = 1;
    if (c->repeats < 1) c->repeats = 1;
    if (c->frames < 1) c->frames = 1;
    if (c->clips.test_clips < 1) c->clips.test_clips = 1;
    if (c->clips.test_crops < 1) c->clips.test_crops = 1;
    if (!c->allocate) c->allocate = parts_allocate;
    if (!c->release) c->release = parts_release;
    c->transform.train = c->train;
    loader->order = xcalloc(dataset->count, sizeof *loader->order, "the order of an epoch");
    shuffle(loader);
    PartsConfig parts = {.name = dataset->name,
                         .count = dataset->count,
                         .length = length_of(loader),
                         .batch_size = c->batch_size,
                         .short_batch = !c->train,
                         .rank = c->rank,
                         .ranks = c->ranks,
                         .part = c->part,
                         .chunk = dataset->get ? 16 : 1, /* a lock is costly next to a copy, cheap next to a JPEG */
                         .views = loader_views(loader) * samples_of(dataset, c),
                         .max_damaged = c->max_damaged,
                         .pool = c->pool,
                         .loader = loader,
                         .open = open_part,
                         .fill = fill_image,
                         .describe = describe};
    parts_open(&loader->parts, &parts);
    loader->batches = loader->parts.batches;
    slots_open(loader);
}

void loader_close(Loader *loader) {
    if (!loader->slots) return;
    int slots = loader->parts.slots;
    parts_close(&loader->parts);
    for (int i = 0; i < slots; i++) {
        LoaderPart *part = &loader->slots[i].part;
        loader->config.release(part->pixels);
        free(part->labels);
        free(part->draws);
        free(part->pairs);
    }
    free(loader->slots);
    free(loader->order);
    *loader = (Loader){.batches = 0};
}

void loader_epoch(Loader *loader, uint32_t epoch) {
    if (epoch == loader->epoch) return;
    loader->epoch = epoch;
    if (loader->config.train) shuffle(loader);
}

void loader_start(Loader *loader, uint32_t epoch, size_t batch) {
    if (parts_begun(&loader->parts, epoch, batch)) return;
    parts_stop(&loader->parts);
    loader_epoch(loader, epoch);
    parts_start(&loader->parts, epoch, batch);
}

bool loader_next(Loader *loader, LoaderPart *part) {
    int slot = parts_next(&loader->parts);
    if (slot >= 0) *part = loader->slots[slot].part;
    return slot >= 0;
}

void loader_fill(Loader *loader, size_t first, int n, uint8_t *pixels, int *labels) {
    Parts *parts = &loader->parts;
    assert(first + (size_t)n <= length_of(loader));

#pragma omp parallel for schedule(dynamic) num_threads(parts->threads)
    for (int i = 0; i < n; i++) {
        Job job = {.loader = loader, .scratch = &parts->scratch[omp_get_thread_num()]};
        add_target(&job, first + (size_t)i, pixels + (size_t)i * image_bytes(loader), &labels[i]);
        load_job(loader, &job, first + (size_t)i);
    }
    parts->stats.images += (uint64_t)n;
    parts_check(parts);
}

LoaderStats loader_stats(const Loader *loader) { return parts_stats(&loader->parts); }

void loader_targets(float *targets, const int *labels, int n, int classes, float smoothing) {
    float off = smoothing / (float)classes;
    for (int i = 0; i < n; i++) {
        for (int c = 0; c < classes; c++) targets[(size_t)i * (size_t)classes + (size_t)c] = off;
        targets[(size_t)i * (size_t)classes + (size_t)labels[i]] = 1.0f - smoothing + off;
    }
}
