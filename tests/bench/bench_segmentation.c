/* Speed of semantic segmentation's data and metrics on one thread:
 *
 *     bench_segmentation              counting pairs of classes in two label images, and the colours of a crop
 *     bench_segmentation FOLDER       ADE20K: opening a set, and pictures per second in training and in evaluation
 *
 * Counting is compared with memchr for a byte that does not occur, which only reads the same two images. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/die.h"
#include "core/rng.h"
#include "data/segmentation/segmentation_loader.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* == In memory ==================================================================================================== */

enum { SIDE = 4096, PIXELS = SIDE * SIDE, CLASSES = 150, ROUNDS = 7 };

/* Squares of `size` pixels, one class each; predictions are shifted by a few pixels, so that they are wrong at
 * edges. */
static void paint(uint8_t *classes, int size, int shift) {
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++)
            classes[(size_t)y * SIDE + (size_t)x] =
                (uint8_t)rng_below(1, RNG_TEST, (uint32_t)((x + shift) / size), (uint32_t)(y / size), 0, CLASSES);
}

static double count_time(const uint8_t *predicted, const uint8_t *labels, uint64_t *sum) {
    double best = 1e9;
    SegmentationCounts counts;
    segmentation_counts_open(&counts, CLASSES);
    for (int round = 0; round < ROUNDS; round++) {
        double start = now();
        segmentation_counts_add(&counts, predicted, SIDE, labels, SIDE, SIDE, SIDE);
        double took = now() - start;
        best = took < best ? took : best;
    }
    *sum += segmentation_scores(&counts).pixels;
    segmentation_counts_close(&counts);
    return best;
}

static double read_time(const uint8_t *predicted, const uint8_t *labels, uint64_t *sum) {
    double best = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        double start = now();
        *sum += memchr(predicted, 254, PIXELS) != NULL;
        *sum += memchr(labels, 254, PIXELS) != NULL;
        double took = now() - start;
        best = took < best ? took : best;
    }
    return best;
}

static void bench_memory(void) {
    uint8_t *predicted = xcalloc(2, PIXELS, "predictions"), *labels = predicted + PIXELS;
    uint64_t sum = 0;
    for (int size = 128; size; size = size > 16 ? size / 2 : size > 1 ? 1 : 0) {
        paint(labels, size, 0);
        paint(predicted, size, size > 1 ? 3 : 0);
        double counted = count_time(predicted, labels, &sum), read = read_time(predicted, labels, &sum);
        printf("areas of %3d pixels: counted at %5.2f pixels/ns, read at %5.2f\n", size, PIXELS / counted * 1e-9,
               PIXELS / read * 1e-9);
    }
    Photometric all = {.brighten = true, .saturate = true, .turn = true, .contrast_last = true, .brightness = 10,
                       .contrast = 1.1f, .saturation = 0.9f, .hue = 5};
    uint8_t *crop = xcalloc(512 * 512, 3, "a crop");
    for (int i = 0; i < 512 * 512 * 3; i++) crop[i] = (uint8_t)rng_bits(1, RNG_TEST, 2, 0, (uint64_t)i);
    double best = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        double start = now();
        photometric_apply(crop, 512 * 3, 512, 512, &all);
        double took = now() - start;
        best = took < best ? took : best;
    }
    printf("all steps of the colour distortion, 512 x 512: %.2f ms   (%llu)\n", best * 1e3, (unsigned long long)sum);
    free(crop);
    free(predicted);
}

/* == From files =================================================================================================== */

static void bench_epoch(const SegmentationSet *set, bool train, double most) {
    const SegmentationAugment augment = {.scale_long = 2048, .scale_short = 512, .scale_min = 0.5f, .scale_max = 2,
                                         .crop_size = 512, .crop_most = 0.75f, .flip = true, .photometric = true};
    SegmentationLoaderConfig config = {.parts = {.seed = 1, .batch_size = 1, .train = train, .max_damaged = 1,
                                                 .pool = loader_pool_open(1)},
                                       .augment = augment};
    SegmentationLoader loader;
    SegmentationPart part;
    int pictures = 0;
    segmentation_open(&loader, set, &config);
    double start = now();
    parts_start(&loader.parts, 0, 0);
    while (now() - start < most && segmentation_next(&loader, &part)) pictures += part.n;
    printf("%s: %.1f pictures/s\n", train ? "training" : "evaluation", pictures / (now() - start));
    segmentation_close(&loader);
    loader_pool_close(config.parts.pool);
}

int main(int argc, char **argv) {
    if (argc < 2) return bench_memory(), 0;
    SegmentationSet set;
    SegmentationSetSettings s = {.data = argv[1], .val_images = "images/validation",
                                 .val_annotations = "annotations/validation", .class_names = "",
                                 .zero_unlabelled = true};
    double start = now();
    segmentation_set_open(&set, &s, false, 1);
    printf("opened %d pictures in %.2f s\n", set.count, now() - start);
    bench_epoch(&set, true, 5);
    bench_epoch(&set, false, 5);
    segmentation_set_close(&set);
    return 0;
}
