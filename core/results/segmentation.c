#include "core/results/segmentation.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/distributed.h"
#include "core/files.h"
#include "core/text.h"

enum { VALUES = 256 };

void segmentation_counts_open(SegmentationCounts *counts, int classes) {
    *counts = (SegmentationCounts){classes, xcalloc(VALUES * VALUES, sizeof *counts->pairs, "counts of pixels")};
}

void segmentation_counts_close(SegmentationCounts *counts) {
    free(counts->pairs);
    *counts = (SegmentationCounts){.classes = 0};
}

/* == Counting ===================================================================================================== */

/* Are all `n` bytes, a multiple of 8, equal?  Compilers make vectors of this. */
static inline bool all_equal(const uint8_t *bytes, size_t n) {
    uint64_t first = 0x0101010101010101u * bytes[0], differ = 0, word;
    for (size_t i = 0; i < n; i += sizeof word) {
        memcpy(&word, bytes + i, sizeof word);
        differ |= word ^ first;
    }
    return !differ;
}

/* Counts `n` pixels.  Blocks of LARGE or SMALL pixels with only one pair, as most have, because both pictures consist
 * of areas, are counted at once. */
enum { LARGE = 64, SMALL = 8 };

static void count_large(uint64_t *pairs, const uint8_t *predicted, const uint8_t *labels) {
    for (size_t i = 0; i < LARGE; i += SMALL) {
        if (all_equal(labels + i, SMALL) && all_equal(predicted + i, SMALL))
            pairs[labels[i] * VALUES + predicted[i]] += SMALL;
        else
            for (size_t k = i; k < i + SMALL; k++) pairs[labels[k] * VALUES + predicted[k]]++;
    }
}

static void count_row(uint64_t *pairs, const uint8_t *predicted, const uint8_t *labels, size_t n) {
    size_t i = 0;
    for (; i + LARGE <= n; i += LARGE) {
        if (all_equal(labels + i, LARGE) && all_equal(predicted + i, LARGE))
            pairs[labels[i] * VALUES + predicted[i]] += LARGE;
        else
            count_large(pairs, predicted + i, labels + i);
    }
    for (; i < n; i++) pairs[labels[i] * VALUES + predicted[i]]++;
}

void segmentation_counts_add(SegmentationCounts *counts, const uint8_t *predicted, size_t predicted_stride,
                             const uint8_t *labels, size_t label_stride, int height, int width) {
    for (int y = 0; y < height; y++)
        count_row(counts->pairs, predicted + (size_t)y * predicted_stride, labels + (size_t)y * label_stride,
                  (size_t)width);
}

/* distributed_sum takes doubles, which are exact up to 2^53 pixels. */
void segmentation_counts_sum(SegmentationCounts *counts) {
    size_t n = VALUES * VALUES;
    double *sums = xcalloc(n, sizeof *sums, "counts of pixels");
    for (size_t i = 0; i < n; i++) sums[i] = (double)counts->pairs[i];
    distributed_sum(sums, n);
    for (size_t i = 0; i < n; i++) counts->pairs[i] = (uint64_t)sums[i];
    free(sums);
}

/* == Scores ======================================================================================================= */

ClassPixels segmentation_pixels_of(const SegmentationCounts *counts, int class) {
    size_t c = (size_t)class;
    ClassPixels pixels = {.both = counts->pairs[c * VALUES + c]};
    for (size_t k = 0; k < (size_t)counts->classes; k++) {
        pixels.labelled += counts->pairs[c * VALUES + k];
        pixels.predicted += counts->pairs[k * VALUES + c];
    }
    return pixels;
}

double segmentation_iou(ClassPixels pixels) {
    uint64_t either = pixels.predicted + pixels.labelled - pixels.both;
    return either ? (double)pixels.both / (double)either : (double)NAN;
}

double segmentation_accuracy(ClassPixels pixels) {
    return pixels.labelled ? (double)pixels.both / (double)pixels.labelled : (double)NAN;
}

SegmentationScores segmentation_scores(const SegmentationCounts *counts) {
    SegmentationScores scores = {.present = 0};
    ClassPixels all = {.both = 0};
    int labelled = 0;
    for (int c = 0; c < counts->classes; c++) {
        ClassPixels pixels = segmentation_pixels_of(counts, c);
        double iou = segmentation_iou(pixels), accuracy = segmentation_accuracy(pixels);
        all.both += pixels.both;
        all.labelled += pixels.labelled;
        if (!isnan(iou)) scores.miou += (iou - scores.miou) / ++scores.present;
        if (!isnan(accuracy)) scores.macc += (accuracy - scores.macc) / ++labelled;
    }
    scores.aacc = all.labelled ? segmentation_accuracy(all) : 0;
    scores.pixels = all.labelled;
    return scores;
}

/* == Tables ======================================================================================================= */

static const char *name_of(const char *const *names, int class, char number[32]) {
    snprintf(number, 32, "class %d", class);
    return names ? names[class] : number;
}

/* A percentage with 2 decimals for readers; "-" if there is none. */
static const char *percent(char text[32], double share) {
    if (isnan(share)) return "-";
    snprintf(text, 32, "%.2f", 100 * share);
    return text;
}

void segmentation_counts_print(const SegmentationCounts *counts, const char *const *names) {
    double total = (double)segmentation_scores(counts).pixels;
    print_line("%-24s %7s %7s %9s\n", "class", "IoU", "Acc", "pixels");
    for (int c = 0; c < counts->classes; c++) {
        ClassPixels pixels = segmentation_pixels_of(counts, c);
        char number[32], text[3][32];
        double share = total > 0 ? (double)pixels.labelled / total : (double)NAN;
        print_line("%-24.24s %7s %7s %7s %%\n", name_of(names, c, number), percent(text[0], segmentation_iou(pixels)),
                   percent(text[1], segmentation_accuracy(pixels)), percent(text[2], share));
    }
}

typedef struct {
    const SegmentationCounts *counts;
    const char *const *names;
} Table;

static void put_percent(FILE *file, double share) {
    fputc(',', file);
    if (!isnan(share)) fprintf(file, "%.3f", 100 * share);
}

static bool put_classes(FILE *file, const void *content) {
    const Table *table = content;
    fputs("class,name,pixels,iou,accuracy\n", file);
    for (int c = 0; c < table->counts->classes && !ferror(file); c++) {
        ClassPixels pixels = segmentation_pixels_of(table->counts, c);
        fprintf(file, "%d,", c);
        if (table->names) text_put_field(file, table->names[c]);
        fprintf(file, ",%ju", (uintmax_t)pixels.labelled);
        put_percent(file, segmentation_iou(pixels));
        put_percent(file, segmentation_accuracy(pixels));
        fputc('\n', file);
    }
    return !ferror(file);
}

bool segmentation_counts_write(const SegmentationCounts *counts, const char *path, const char *const *names,
                               Error *error) {
    Table table = {counts, names};
    return file_replace(path, put_classes, &table, error);
}
