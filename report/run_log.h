/* log.csv of a run folder, as columns of numbers. */
#ifndef VIT_REPORT_RUN_LOG_H
#define VIT_REPORT_RUN_LOG_H

#include <stdbool.h>
#include <stddef.h>

#include "core/error.h"

typedef struct {
    int columns, rows;
    char **names;    /* [columns] */
    double **values; /* [columns][rows]; NaN: empty, not a finite number, or a precision without objects */
} RunLog;

/* Reads a log that may be in use: an incomplete last line is left out, missing cells of a row are NaN, and rows of a
 * log whose steps go back replace the earlier ones.  On failure returns false with `error` set, without the file's
 * name. */
bool run_log_read(RunLog *log, const char *path, Error *error);
/* The same for a log in memory; text [size] is changed. */
bool run_log_parse(RunLog *log, char *text, size_t size, Error *error);
void run_log_free(RunLog *log);

/* The decimals of a column images_per_s: three digits of a slow program, whole numbers from 100 on. */
static inline int run_log_speed_decimals(double speed) { return speed < 1 ? 3 : speed < 10 ? 2 : speed < 100 ? 1 : 0; }

/* The values of a column [log->rows]; NULL: there is none of this name. */
const double *run_log_column(const RunLog *log, const char *name);
/* The last finite value, NaN if there is none; the greatest or the least one, NaN if there is none, and in *row, unless
 * row is NULL, its first row (-1: none). */
double run_log_last(const RunLog *log, const char *name);
double run_log_best(const RunLog *log, const char *name, bool greatest, int *row);

/* The number of epochs done at each row [log->rows], to be freed: `epoch` counts from 1, and the steps of an epoch
 * divide it.  batches: the number of steps of a complete last epoch, or NaN.  For a log without epochs, the number of
 * steps. */
double *run_log_epochs(const RunLog *log, double batches);

#endif
