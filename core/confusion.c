#include "core/confusion.h"

#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/distributed.h"
#include "core/files.h"

static size_t matrix_size(const Confusion *c) { return (size_t)c->classes * (size_t)c->classes; }

void confusion_open(Confusion *confusion, int classes, bool matrix) {
    size_t C = (size_t)classes;
    double *counts = xcalloc(4 * C, sizeof *counts, "accuracy of each class");
    *confusion = (Confusion){classes, counts, counts + C, counts + 2 * C, counts + 3 * C, NULL};
    if (matrix) confusion->matrix = xcalloc(matrix_size(confusion), sizeof *counts, "a confusion matrix");
}

void confusion_close(Confusion *confusion) {
    free(confusion->images);
    free(confusion->matrix);
    *confusion = (Confusion){.classes = 0};
}

void confusion_add(Confusion *confusion, int label, int place, int predicted) {
    confusion->images[label]++;
    confusion->top1[label] += place < 1;
    confusion->top5[label] += place < 5;
    if (predicted < 0) return;
    confusion->predicted[predicted]++;
    if (confusion->matrix) confusion->matrix[(size_t)label * (size_t)confusion->classes + (size_t)predicted]++;
}

static void sum_counts(double *counts, size_t n) {
    enum { AT_ONCE = 1 << 20 };
    for (size_t first = 0; first < n && distributed_ranks() > 1; first += AT_ONCE)
        distributed_sum(counts + first, n - first < AT_ONCE ? (int)(n - first) : AT_ONCE);
}

void confusion_sum(Confusion *confusion) {
    sum_counts(confusion->images, 4 * (size_t)confusion->classes);
    if (confusion->matrix) sum_counts(confusion->matrix, matrix_size(confusion));
}

int confusion_worst(const Confusion *confusion) {
    int worst = -1;
    for (int c = 0; c < confusion->classes; c++) {
        if (confusion->images[c] < 1) continue;
        if (worst < 0 || confusion->top1[c] / confusion->images[c] < confusion->top1[worst] / confusion->images[worst])
            worst = c;
    }
    return worst;
}

/* == Files ======================================================================================================== */

typedef struct {
    const Confusion *confusion;
    const char *const *names;
} Table;

/* A text as one field of a row: in quotes where it holds what would end it (RFC 4180). */
static void put_field(FILE *file, const char *text) {
    bool quoted = strpbrk(text, ",\"\r\n") != NULL;
    if (quoted) fputc('"', file);
    for (; *text; text++) {
        if (*text == '"') fputc('"', file);
        fputc(*text, file);
    }
    if (quoted) fputc('"', file);
}

static void put_class(FILE *file, const Table *table, int c) {
    if (table->names)
        put_field(file, table->names[c]);
    else
        fprintf(file, "%d", c);
}

static bool put_matrix(FILE *file, const void *content) {
    const Table *table = content;
    const double *count = table->confusion->matrix;
    int C = table->confusion->classes;
    fputs("true class", file);
    for (int c = 0; c < C; c++) {
        fputc(',', file);
        put_class(file, table, c);
    }
    fputc('\n', file);
    for (int row = 0; row < C && !ferror(file); row++) {
        put_class(file, table, row);
        for (int c = 0; c < C; c++) fprintf(file, ",%.0f", *count++);
        fputc('\n', file);
    }
    return !ferror(file);
}

static void put_percent(FILE *file, double part, double whole) {
    fputc(',', file);
    if (whole > 0) fprintf(file, "%.3f", 100 * part / whole);
}

static bool put_classes(FILE *file, const void *content) {
    const Table *table = content;
    const Confusion *t = table->confusion;
    fputs("class,name,images,top1,top5,precision\n", file);
    for (int c = 0; c < t->classes && !ferror(file); c++) {
        fprintf(file, "%d,", c);
        if (table->names) put_field(file, table->names[c]);
        fprintf(file, ",%.0f", t->images[c]);
        put_percent(file, t->top1[c], t->images[c]);
        put_percent(file, t->top5[c], t->images[c]);
        put_percent(file, t->top1[c], t->predicted[c]);
        fputc('\n', file);
    }
    return !ferror(file);
}

bool confusion_write(const char *path, const Confusion *confusion, const char *const *names, Error *error) {
    return file_replace(path, put_matrix, &(Table){confusion, names}, error);
}

bool confusion_write_classes(const char *path, const Confusion *confusion, const char *const *names, Error *error) {
    return file_replace(path, put_classes, &(Table){confusion, names}, error);
}
