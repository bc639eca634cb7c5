#include "data/sequences/sequence_baselines.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>

#include "core/die.h"
#include "data/sets/dataset.h"

enum { BYTES = 256, CHUNK = 256 };

/* Reads n images of a split from `first` on as tokens [n,row_bytes], with a scratch for each thread; marks those that
 * could be read, and returns their number. */
static size_t read_images(const SequenceSet *set, SequencesSplit split, size_t first, int n, uint8_t *tokens,
                          bool *there, TransformScratch *scratch, int threads) {
    size_t count = 0;
#pragma omp parallel for schedule(dynamic) num_threads(threads) reduction(+ : count)
    for (int i = 0; i < n; i++) {
        Error error;
        int unused;
        uint8_t *row = tokens + (size_t)i * (size_t)set->row_bytes;
        there[i] = sequences_window(set, split, set->n, first + (size_t)i, row, &unused,
                                    &scratch[omp_get_thread_num()], &error);
        count += there[i];
    }
    return count;
}

/* The bits that code `times` occurrences of a value that was counted `count` times of `total`. */
static double bits(double times, double count, double total) { return times * log2((total + BYTES) / (count + 1)); }

static double stream_bits(const SequenceSet *set, SequencesSplit split) {
    size_t train[BYTES], test[BYTES], trained = sequences_count_bytes(set, SEQUENCES_TRAIN, train);
    size_t tested = sequences_count_bytes(set, split, test);
    double sum = 0;
    for (int v = 0; v < BYTES; v++) sum += bits((double)test[v], (double)train[v], (double)trained);
    return sum / (double)tested;
}

/* Fills counts [n,BYTES] from the images of a split; returns the number of images. */
static size_t count_images(const SequenceSet *set, SequencesSplit split, size_t most, uint32_t *counts) {
    size_t count = dataset_limited(set->count[split], most), row = (size_t)set->row_bytes, counted = 0;
    bool there[CHUNK];
    int threads = omp_get_max_threads();
    uint8_t *tokens = xcalloc(CHUNK, row, "images");
    TransformScratch *scratch = xcalloc((size_t)threads, sizeof *scratch, "reading images");
    for (size_t first = 0; first < count; first += CHUNK) {
        int n = count - first < CHUNK ? (int)(count - first) : CHUNK;
        counted += read_images(set, split, first, n, tokens, there, scratch, threads);
#pragma omp parallel for schedule(static)
        for (int at = 0; at < set->n; at++)
            for (int i = 0; i < n; i++)
                counts[(size_t)at * BYTES + tokens[(size_t)i * row + (size_t)at]] += there[i];
    }
    for (int i = 0; i < threads; i++) transform_scratch_free(&scratch[i]);
    free(scratch);
    free(tokens);
    return counted;
}

double sequences_histogram_bits(const SequenceSet *set, SequencesSplit split, size_t most) {
    if (set->kind != SEQUENCES_IMAGES) return stream_bits(set, split);
    size_t size = (size_t)set->n * BYTES;
    uint32_t *train = xcalloc(size, sizeof *train, "histograms"), *test = xcalloc(size, sizeof *test, "histograms");
    size_t trained = count_images(set, SEQUENCES_TRAIN, most, train), tested = count_images(set, split, most, test);
    double sum = 0;
    for (size_t i = 0; i < size; i++)
        if (test[i]) sum += bits(test[i], train[i], (double)trained);
    free(train);
    free(test);
    return sum / (double)tested / set->n;
}
