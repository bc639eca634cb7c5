/* The columns of log.csv that a model's operators measure. */
#include <string.h>

#include "core/die.h"
#include "kernels/kernels.h"
#include "layers/vit/run.h"

enum { SUMS = ATTENTION_PARTS * ATTENTION_COLUMNS }; /* of a block */

static const AttentionColumns *columns_of(const Attention *a) { return a->op->columns ? a->op->columns(a) : NULL; }

static bool is_in_log(const RunState *state, const char *name) {
    int i = 0;
    while (i < state->column_count && strcmp(state->columns[i].name, name)) i++;
    return i < state->column_count;
}

void vit_run_open_columns(VitRun *run) {
    size_t bytes = (size_t)run->vit.trunk.depth * SUMS * sizeof *run->column_sums;
    for (int i = 0; i < run->vit.trunk.depth; i++) {
        Attention *a = &trunk_block(&run->vit.trunk, i)->attention;
        const AttentionColumns *columns = columns_of(a);
        if (!columns) continue;
        if (!run->column_sums) {
            run->column_sums = device_malloc(bytes, "columns of the log");
            run->column_host = xcalloc(1, bytes, "columns of the log");
            device_zero(run->column_sums, bytes);
        }
        a->sums = run->column_sums + i * SUMS;
        for (int k = 0; columns->names[k]; k++)
            if (!is_in_log(&run->training.state, columns->names[k]))
                training_column(&run->training, columns->names[k], "%.6f", LOG_LAST);
    }
}

/* The sums are whole multiples of a power of two, which double adds exactly, however often they are read. */
void vit_run_read_columns(VitRun *run) {
    size_t bytes = (size_t)run->vit.trunk.depth * SUMS * sizeof *run->column_sums;
    if (!run->column_sums) return;
    device_download(run->column_host, run->column_sums, bytes);
    device_zero(run->column_sums, bytes);
    for (int i = 0; i < run->vit.trunk.depth; i++) {
        const Attention *a = &trunk_block(&run->vit.trunk, i)->attention;
        const AttentionColumns *columns = columns_of(a);
        const uint64_t *found = run->column_host + i * SUMS;
        for (int k = 0; columns && columns->names[k]; k++) {
            uint64_t sum = 0;
            for (int part = 0; part < ATTENTION_PARTS; part++) sum += found[part * ATTENTION_COLUMNS + k];
            training_add(&run->training, columns->names[k], (double)sum * columns->unit,
                         run->images_measured * a->N * a->H);
        }
    }
    run->images_measured = 0;
}
