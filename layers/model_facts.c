#include "layers/model_facts.h"

#include <stdlib.h>
#include <string.h>

#include "core/die.h"

/* == The parts of a model ========================================================================================= */

static const char *const columns[] = {"part", "", "parameters", "10^6 multiply-adds"};
enum { COLUMNS = sizeof columns / sizeof *columns, CELL = 128 };

void model_table_part(void *context, const char *prefix, const char *what, size_t macs) {
    ModelTable *table = context;
    size_t length = strlen(prefix), count = (size_t)table->rows++ * COLUMNS;
    char texts[COLUMNS][CELL];
    if (length && prefix[length - 1] == '.') length--;
    snprintf(texts[0], CELL, "%.*s", (int)length, prefix);
    snprintf(texts[1], CELL, "%s", what);
    snprintf(texts[2], CELL, "%zu", params_size_of(table->params, prefix));
    snprintf(texts[3], CELL, "%.3f", (double)macs / 1e6);
    table->cells = xgrow(table->cells, count + COLUMNS, &table->room, sizeof *table->cells, "a table of parts");
    for (int i = 0; i < COLUMNS; i++) table->cells[count + (size_t)i] = xstrdup(texts[i]);
}

void model_table_end(ModelTable *table, Facts *facts, double macs) {
    facts_table(facts, "model", "Model", columns, COLUMNS, (const char *const *)table->cells, table->rows);
    facts_set_number(facts, "macs", macs);
    for (int i = 0; i < table->rows * COLUMNS; i++) free(table->cells[i]);
    free(table->cells);
}

/* == --describe =================================================================================================== */

void description_head(const Description *d) {
    fprintf(d->out, "  %-*s %-36s %12s %12s\n", d->width, "layer", "", "trainable", "10^9 macs");
}

void description_part(void *description, const char *prefix, const char *what, size_t macs) {
    const Description *d = description;
    fprintf(d->out, "  %-*s %-36s %12zu %12.3f\n", d->width, prefix, what, params_size_of(&d->model->params, prefix),
            (double)macs / 1e9);
}

void description_end(const Description *d, size_t params, size_t macs) {
    fprintf(d->out, "activation_bytes: %zu\nparams: %zu\ntrainable_params: %zu\nmacs: %zu\n",
            model_activation_bytes(d->model), params, d->model->params.parameters, macs);
}

/* == Classes ====================================================================================================== */

typedef struct {
    int class;
    double value;
} ClassResult;

static int better_first(const void *a, const void *b) {
    const ClassResult *x = a, *y = b;
    return x->value != y->value ? (x->value < y->value ? 1 : -1) : x->class - y->class;
}

void facts_class_bars(Facts *facts, const char *id, const char *title, const char *const *names, const double *values,
                      int count) {
    enum { EACH = 20 };
    ClassResult *results = xcalloc((size_t)count, sizeof *results, "results of classes");
    const char *shown[2 * EACH];
    double percent[2 * EACH];
    char numbers[2 * EACH][16], whole[160];
    int known = 0, bars = 0;
    for (int i = 0; i < count; i++)
        if (values[i] >= 0) results[known++] = (ClassResult){i, values[i]};
    qsort(results, (size_t)known, sizeof *results, better_first);
    for (int i = 0; i < known; i++) {
        int class = results[i].class;
        if (i >= EACH && i < known - EACH) continue;
        snprintf(numbers[bars], sizeof *numbers, "class %d", class);
        shown[bars] = names && *names[class] ? names[class] : numbers[bars];
        percent[bars++] = 100 * results[i].value;
    }
    snprintf(whole, sizeof whole, "%s: the %d best and the %d worst of %d", title, EACH, EACH, known);
    facts_bars(facts, id, bars < known ? whole : title, "%", shown, percent, bars);
    free(results);
}
