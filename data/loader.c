#include "data/loader.h"

#include <assert.h>
#include <omp.h>
#include <stdlib.h>

#include "core/die.h"
#include "core/rng.h"
#include "data/mixup.h"
#include "data/sampler.h"

/* Fisher and Yates: place i takes one of the i + 1 images not placed yet, so each of the n! orders is equally likely
 * to the bias of rng_below.  One thread, some 10 ns an image. */
static void shuffle(Loader *loader) {
    for (size_t i = 0; i < loader->dataset->count; i++) loader->order[i] = (uint32_t)i;
    if (!loader->train) return;
    for (size_t i = loader->dataset->count - 1; i > 0; i--) {
        uint32_t j = rng_below(loader->seed, RNG_SHUFFLE, loader->epoch, 0, i, (uint32_t)i + 1);
        uint32_t swap = loader->order[i];
        loader->order[i] = loader->order[j];
        loader->order[j] = swap;
    }
}

void loader_open(Loader *loader, const Dataset *dataset, uint64_t seed, int batch_size, bool train, Augment augment) {
    size_t batch = (size_t)batch_size, image = (size_t)dataset->height * (size_t)dataset->width * 3;
    assert(batch_size > 0 && dataset->count > 0 && dataset->count < UINT32_MAX);
    if (train && dataset->count < batch) {
        die("batch_size %d: the training split of %s has only %zu images: lower batch_size", batch_size, dataset->name,
            dataset->count);
    }
    *loader = (Loader){.dataset = dataset, .seed = seed, .batch_size = batch_size, .train = train, .augment = augment};
    loader->batches = train ? sampler_length(dataset->count, augment.repeats) / batch : (dataset->count + batch - 1) / batch;
    loader->order = xcalloc(dataset->count, sizeof *loader->order, "the order of an epoch");
    loader->raw = xcalloc(batch + 2, image, "images before augmentation");
    loader->threads = omp_get_max_threads();
    if (train && augment_has_pixels(&augment))
        loader->scratch = xcalloc((size_t)loader->threads, pillow_scratch(dataset->height, dataset->width), "augmentation");
    shuffle(loader);
}

void loader_close(Loader *loader) {
    free(loader->order);
    free(loader->raw);
    free(loader->scratch);
    *loader = (Loader){.batches = 0};
}

void loader_epoch(Loader *loader, uint32_t epoch) {
    if (epoch == loader->epoch) return;
    loader->epoch = epoch;
    if (loader->train) shuffle(loader);
}

/* Where in the epoch's order a position lies: mixup's partners are neighbours (mixup.h). */
static size_t place_of(const Loader *loader, size_t position) {
    size_t n = (size_t)loader->batch_size, batch = position / n;
    if (!loader->train || !loader->augment.pairs) return position;
    return batch * n + mixup_sample(position % n, n);
}

uint32_t loader_draw(const Loader *loader, size_t position) {
    return sampler_draw(loader->order, loader->dataset->count, loader->train ? loader->augment.repeats : 1,
                        place_of(loader, position));
}

void loader_fill(Loader *loader, size_t first, int n, uint8_t *pixels, int *labels) {
    const Dataset *dataset = loader->dataset;
    size_t image = (size_t)dataset->height * (size_t)dataset->width * 3;
    bool moved = loader->train && (loader->augment.pad || loader->augment.flip);
    int threads = loader->threads < n ? loader->threads : n;
    assert(n <= loader->batch_size + 2 && first + (size_t)n <= sampler_length(dataset->count, loader->augment.repeats));

#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int i = 0; i < n; i++) {
        uint32_t key = loader_draw(loader, first + (size_t)i);
        uint8_t *out = pixels + (size_t)i * image, *raw = moved ? loader->raw + (size_t)i * image : out;
        dataset->get(dataset, key % dataset->count, raw, &labels[i]);
        if (!loader->train) continue;
        AugmentDraw draw = augment_draw(loader->augment, loader->seed, loader->epoch, key);
        if (moved) augment_apply(out, raw, dataset->height, dataset->width, draw);
        if (!loader->scratch) continue;
        size_t scratch = (size_t)omp_get_thread_num() * pillow_scratch(dataset->height, dataset->width);
        augment_pixels(out, loader->scratch + scratch, dataset->height, dataset->width, &draw);
    }
}

int loader_batch(Loader *loader, size_t batch, uint8_t *pixels, int *labels) {
    size_t first = batch * (size_t)loader->batch_size, left = loader->dataset->count - first;
    assert(batch < loader->batches);
    int n = left < (size_t)loader->batch_size ? (int)left : loader->batch_size;
    loader_fill(loader, first, n, pixels, labels);
    return n;
}

void loader_targets(float *targets, const int *labels, int n, int classes, float smoothing) {
    float off = smoothing / (float)classes;
    for (int i = 0; i < n; i++) {
        for (int c = 0; c < classes; c++) targets[(size_t)i * (size_t)classes + (size_t)c] = off;
        targets[(size_t)i * (size_t)classes + (size_t)labels[i]] = 1.0f - smoothing + off;
    }
}
