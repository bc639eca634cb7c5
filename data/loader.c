#include "data/loader.h"

#include <assert.h>
#include <stdlib.h>

#include "core/die.h"
#include "core/rng.h"

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
    loader->batches = train ? dataset->count / batch : (dataset->count + batch - 1) / batch;
    loader->order = xcalloc(dataset->count, sizeof *loader->order, "the order of an epoch");
    loader->raw = xcalloc(batch, image, "images before augmentation");
    shuffle(loader);
}

void loader_close(Loader *loader) {
    free(loader->order);
    free(loader->raw);
    *loader = (Loader){.batches = 0};
}

void loader_epoch(Loader *loader, uint32_t epoch) {
    if (epoch == loader->epoch) return;
    loader->epoch = epoch;
    if (loader->train) shuffle(loader);
}

void loader_fill(Loader *loader, size_t first, int n, uint8_t *pixels, int *labels) {
    const Dataset *dataset = loader->dataset;
    size_t image = (size_t)dataset->height * (size_t)dataset->width * 3;
    bool augmented = loader->train && (loader->augment.pad || loader->augment.flip);
    assert(n <= loader->batch_size && first + (size_t)n <= dataset->count);

#pragma omp parallel for schedule(static)
    for (int i = 0; i < n; i++) {
        uint32_t index = loader->order[first + (size_t)i];
        uint8_t *out = pixels + (size_t)i * image, *raw = augmented ? loader->raw + (size_t)i * image : out;
        dataset->get(dataset, index, raw, &labels[i]);
        if (!augmented) continue;
        AugmentDraw draw = augment_draw(loader->augment, loader->seed, loader->epoch, index);
        augment_apply(out, raw, dataset->height, dataset->width, draw);
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
