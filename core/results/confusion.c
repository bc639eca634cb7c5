#include "core/results/confusion.h"

#include <string.h>

#include "core/die.h"
#include "core/distributed.h"
#include "core/files.h"
#include "core/text.h"

static size_t matrix_size(const Confusion *c) { return (size_t)c->classes * (size_t)c->classes; }

void confusion_open(Confusion *confusion, int classes, bool matrix) {
    size_t C = (size_t)classes;
    double *counts = xcalloc(4 * C, sizeof *counts, "accuracy of each class");
    *confusion = (Confusion){classes, counts, counts + C, counts + 2 * C, counts + 3 * C, NULL};
    if (matrix) confusion->matrix = xcalloc(matrix_size(confusion), sizeof *counts, "a confusion matrix");
}

void confusion_clear(Confusion *confusion) {
    if (confusion->images) memset(confusion->images, 0, 4 * (size_t)confusion->classes * sizeof(double));
    if (confusion->matrix) memset(confusion->matrix, 0, matrix_size(confusion) * sizeof(double));
}

void confusion_add(Confusion *confusion, int label, const Outcome *found) {
    confusion->images[label]++;
    confusion->top1[label] += found->place < 1;
    confusion->top5[label] += found->place < 5;
    if (found->predicted < 0) return;
    confusion->predicted[found->predicted]++;
    if (confusion->matrix) confusion->matrix[(size_t)label * (size_t)confusion->classes + (size_t)found->predicted]++;
}

void confusion_sum(Confusion *confusion) {
    distributed_sum(confusion->images, 4 * (size_t)confusion->classes);
    if (confusion->matrix) distributed_sum(confusion->matrix, matrix_size(confusion));
}

static int worst_class(const Confusion *confusion) {
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

static void put_class(FILE *file, const Table *table, int c) {
    if (table->names && *table->names[c])
        text_put_field(file, table->names[c]);
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
        if (table->names) text_put_field(file, table->names[c]);
        fprintf(file, ",%.0f", t->images[c]);
        put_percent(file, t->top1[c], t->images[c]);
        put_percent(file, t->top5[c], t->images[c]);
        put_percent(file, t->top1[c], t->predicted[c]);
        fputc('\n', file);
    }
    return !ferror(file);
}


void confusion_check_path(const char *path) {
    const char *dot = strrchr(path, '.');
    if (dot && !strcmp(dot, ".png"))
        die_usage("--confusion %s: writes a CSV file: name it .csv", path);
}

bool confusion_report(const Confusion *confusion, const char *matrix, const char *classes, const char *const *names,
                      Error *error) {
    Table table = {confusion, names};
    if (*matrix && !file_replace(matrix, put_matrix, &table, error)) return refuse(error, "%s: %s", matrix, error->text);
    if (*matrix) print_line("%s: the confusion matrix of %d classes\n", matrix, confusion->classes);
    if (*classes && !file_replace(classes, put_classes, &table, error))
        return refuse(error, "%s: %s", classes, error->text);
    int worst = worst_class(confusion);
    if (!*classes || worst < 0) return true;
    char number[32];
    const char *name = names ? names[worst] : "";
    snprintf(number, sizeof number, "class %d", worst);
    print_line("%s: %d classes, the lowest top-1 is %.2f %%, of %s\n", classes, confusion->classes,
               100 * confusion->top1[worst] / confusion->images[worst], *name ? name : number);
    return true;
}
