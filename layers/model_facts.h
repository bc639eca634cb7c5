/* Facts in the report of a run (report/facts.h) that are common to all models: a table of parts, and a result of each
 * class as bars; and the description of a dense model. */
#ifndef VIT_LAYERS_MODEL_FACTS_H
#define VIT_LAYERS_MODEL_FACTS_H

#include "layers/model.h"
#include "report/facts.h"

/* The table "model".  The caller sets `params` and passes model_table_part to a model's function that calls a
 * ModelPart:
 *
 *     ModelTable table = {.params = &detr->model.params};
 *     detr_parts(detr, H, W, model_table_part, &table);
 *     model_table_end(&table, facts, (double)detr_macs(detr, H, W)); */
typedef struct {
    const Params *params;
    char **cells;
    int rows;
    size_t room; /* of cells */
} ModelTable;

void model_table_part(void *table, const char *prefix, const char *what, size_t macs);
/* Writes the table, and the fact "macs". */
void model_table_end(ModelTable *table, Facts *facts, double macs);

/* The end of --describe: the table of a model's parts, whose first column has `width` characters, then the lines that
 * scripts read.  description_part is passed to a model's function that calls a ModelPart. */
typedef struct {
    const Model *model;
    FILE *out;
    int width;
} Description;

void description_head(const Description *d);
void description_part(void *description, const char *prefix, const char *what, size_t macs);
void description_end(const Description *d, size_t params, size_t macs);

/* Bars of a result from 0 to 1 of each class [count], in percent and the best first.  A value below 0 or NaN means that
 * there is no result.  A class without a name ("", or all of them: NULL) is written as its number.  Of many classes the
 * best and the worst are shown. */
void facts_class_bars(Facts *facts, const char *id, const char *title, const char *const *names, const double *values,
                      int count);

#endif
