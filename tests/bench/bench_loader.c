/* How fast images of a folder or packed file are loaded from the page cache with RandomResizedCrop to 224 and flip; one
 * line of JSON per measurement.  scripts/bench/bench_loader.sh compares it with torchvision.
 *
 *   bench_loader DATA WORKERS SECONDS      WORKERS 0: in the main thread, without the pool
 *   bench_loader --decode DATA SECONDS     only libjpeg: whole pictures */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/progress.h"
#include "data/sets/datasets.h"
#include "data/images/jpeg.h"
#include "data/loading/loader.h"

enum { SIDE = 224 };

/* Milliseconds per image in the calling thread, doing what a worker does. */
static double alone(const Dataset *dataset, double seconds) {
    static uint8_t out[SIDE * SIDE * 3];
    static TransformScratch scratch;
    Transform transform = {.height = SIDE, .width = SIDE, .train = true, .augment.s.flip = true};
    Error error;
    double best = 1e9, begin = now_seconds();
    for (uint32_t epoch = 0; epoch < 2 || now_seconds() - begin < seconds; epoch++) {
        double start = now_seconds();
        for (size_t i = 0; i < dataset->count; i++) {
            Sample sample;
            TransformKey key = {1, epoch % 4, (uint32_t)i};
            if (!dataset_read(dataset, i, &scratch.bytes, &sample, &error) ||
                !transform_sample(&scratch, out, &sample, false, &transform, key, &error))
                die("image %zu: %s", i, error.text);
        }
        double took = (now_seconds() - start) / (double)dataset->count;
        if (epoch && took < best) best = took;
    }
    transform_scratch_free(&scratch);
    return 1e3 * best;
}

/* Images per second from the pool in the best epoch. */
static double pooled(const Dataset *dataset, int workers, double seconds) {
    LoaderConfig config = {.parts = {.seed = 1, .batch_size = (int)dataset->count, .train = true, .part = 32,
                                     .max_damaged = 0, .pool = loader_pool_open(workers)},
                           .transform = {.height = SIDE, .width = SIDE, .augment.s.flip = true}};
    Loader loader;
    LoaderPart part;
    double best = 0, begin = now_seconds();
    loader_open(&loader, dataset, &config);
    for (uint32_t epoch = 0; epoch < 2 || now_seconds() - begin < seconds; epoch++) {
        double start = now_seconds();
        parts_start(&loader.parts, epoch % 4, 0);
        while (loader_next(&loader, &part)) continue;
        double rate = (double)dataset->count / (now_seconds() - start);
        if (epoch && rate > best) best = rate;
    }
    parts_close(&loader.parts);
    loader_pool_close(config.parts.pool);
    return best;
}

static double decode_alone(const Dataset *dataset, double seconds) {
    JpegReader *reader = jpeg_open();
    SampleBuffer buffer = {0};
    Error error;
    double best = 1e9, begin = now_seconds();
    for (int pass = 0; pass < 2 || now_seconds() - begin < seconds; pass++) {
        double start = now_seconds();
        for (size_t i = 0; i < dataset->count; i++) {
            Sample sample;
            ImagePart part;
            int height, width;
            if (!dataset_read(dataset, i, &buffer, &sample, &error) ||
                !jpeg_begin(reader, sample.bytes, sample.size, JPEG_MAX_PIXELS, &height, &width, &error) ||
                !jpeg_region(reader, 8, (int[]){0, height}, (int[]){0, width}, &part, &error))
                die("image %zu: %s", i, error.text);
        }
        double took = (now_seconds() - start) / (double)dataset->count;
        if (pass && took < best) best = took;
    }
    jpeg_close(reader);
    return 1e3 * best;
}

int main(int argc, char **argv) {
    Dataset dataset;
    bool decode = argc == 4 && !strcmp(argv[1], "--decode");
    if (argc != 4) die_usage("bench_loader DATA WORKERS SECONDS, or --decode DATA SECONDS");
    double seconds = atof(argv[3]);
    int workers = decode ? 0 : atoi(argv[2]);
    dataset_open(&dataset, argv[decode ? 2 : 1], NULL, true, 0);
    if (decode) printf("{\"what\": \"decode\", \"ms\": %.4f}\n", decode_alone(&dataset, seconds));
    else if (!workers) printf("{\"what\": \"alone\", \"ms\": %.4f}\n", alone(&dataset, seconds));
    else printf("{\"what\": \"pool\", \"workers\": %d, \"images_per_s\": %.1f}\n", workers,
                pooled(&dataset, workers, seconds));
    dataset_close(&dataset);
    return 0;
}
