#include "data/sequences/sequence_baselines.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>

#include "core/die.h"

enum { BYTES = 256, CHUNK = 256 };

/* == Reading a split in order ===================================================================================== */

/* Reads up to CHUNK images of a split at a time, or all of a stream. */
typedef struct {
    const SequenceSet *set;
    SequencesSplit split;
    size_t count, at;
    uint8_t *tokens; /* [CHUNK,n] */
    TransformScratch *scratch;
    int threads;
} Reader;

static Reader reader_open(const SequenceSet *set, SequencesSplit split, size_t most) {
    Reader r = {.set = set, .split = split, .count = set->count[split], .threads = omp_get_max_threads()};
    if (most && most < r.count) r.count = most;
    r.tokens = xcalloc(CHUNK, (size_t)set->row_bytes, "images");
    r.scratch = xcalloc((size_t)r.threads, sizeof *r.scratch, "reading images");
    return r;
}

static void reader_close(Reader *r) {
    for (int i = 0; i < r->threads; i++) transform_scratch_free(&r->scratch[i]);
    free(r->scratch);
    free(r->tokens);
}

/* Reads the next images and returns their number; 0 at the end. */
static int reader_next(Reader *r) {
    size_t left = r->count - r->at;
    int n = left < CHUNK ? (int)left : CHUNK;
#pragma omp parallel for schedule(dynamic) num_threads(r->threads)
    for (int i = 0; i < n; i++) {
        Error error;
        char name[512];
        int unused;
        uint8_t *tokens = r->tokens + (size_t)i * (size_t)r->set->row_bytes;
        if (sequences_window(r->set, r->split, r->set->n, r->at + (size_t)i, tokens, &unused,
                             &r->scratch[omp_get_thread_num()], &error))
            continue;
        sequences_name(r->set, r->split, r->at + (size_t)i, name, sizeof name);
        die("%s: %s", name, error.text);
    }
    r->at += (size_t)n;
    return n;
}

/* == Histograms =================================================================================================== */

/* The bits that code `times` occurrences of a value that was counted `count` times of `total`. */
static double bits(double times, double count, double total) { return times * log2((total + BYTES) / (count + 1)); }

static double stream_bits(const SequenceSet *set, SequencesSplit split) {
    size_t train[BYTES], test[BYTES], trained = sequences_count_bytes(set, SEQUENCES_TRAIN, train);
    size_t tested = sequences_count_bytes(set, split, test);
    double sum = 0;
    for (int v = 0; v < BYTES; v++) sum += bits((double)test[v], (double)train[v], (double)trained);
    return sum / (double)tested;
}

/* counts [n,BYTES] of the images of a split. */
static size_t count_images(const SequenceSet *set, SequencesSplit split, size_t most, uint32_t *counts) {
    Reader r = reader_open(set, split, most);
    for (int n; (n = reader_next(&r)) > 0;) {
#pragma omp parallel for schedule(static)
        for (int at = 0; at < set->n; at++)
            for (int i = 0; i < n; i++)
                counts[(size_t)at * BYTES + r.tokens[(size_t)i * (size_t)set->row_bytes + (size_t)at]]++;
    }
    reader_close(&r);
    return r.count;
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
