#include "report/run_log.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/files.h"

enum { MOST_COLUMNS = 256, MOST_BYTES = 1 << 28 };

/* Cuts the line that begins at *at off the text; NULL: there is no complete line left. */
static char *next_line(char **at, const char *end) {
    char *line = *at, *newline = memchr(line, '\n', (size_t)(end - line));
    if (!newline) return NULL;
    *at = newline + 1;
    if (newline > line && newline[-1] == '\r') newline[-1] = 0;
    *newline = 0;
    return line;
}

static bool read_header(RunLog *log, char *line, Error *error) {
    size_t columns = 1;
    for (const char *at = line; *at; at++) columns += *at == ',';
    if (!*line || columns > MOST_COLUMNS)
        return refuse(error, "line 1: expected the names of 1 to %d columns", MOST_COLUMNS);
    log->names = xcalloc(columns, sizeof *log->names, "a log");
    while (line) log->names[log->columns++] = xstrdup(strsep(&line, ","));
    return true;
}

static double number_of(const char *cell) {
    char *end;
    double value = strtod(cell, &end);
    return *cell && !*end && isfinite(value) ? value : NAN;
}

/* COCO's average precision is -1 if there are no such objects. */
static bool is_precision(const char *name) { return !strncmp(name, "ap", 2) || !strncmp(name, "mask_ap", 7); }

static void read_row(RunLog *log, char *line, const double *steps) {
    int row = log->rows++;
    for (int c = 0; c < log->columns; c++) {
        double value = line ? number_of(strsep(&line, ",")) : NAN;
        log->values[c][row] = value < 0 && is_precision(log->names[c]) ? NAN : value;
    }
    if (!steps) return;
    int before = row;
    while (before > 0 && steps[before - 1] >= steps[row]) before--;
    for (int c = 0; c < log->columns; c++) log->values[c][before] = log->values[c][row];
    log->rows = before + 1;
}

bool run_log_parse(RunLog *log, char *text, size_t size, Error *error) {
    char *at = text, *end = text + size, *line = next_line(&at, end);
    *log = (RunLog){0};
    if (!line) return refuse(error, "no header: is it the log of a run?");
    if (!read_header(log, line, error)) return false;
    size_t lines = 1; /* room for no rows at all, too */
    for (const char *c = at; c < end; c++) lines += *c == '\n';
    log->values = xcalloc((size_t)log->columns, sizeof *log->values, "a log");
    for (int c = 0; c < log->columns; c++) log->values[c] = xcalloc(lines, sizeof **log->values, "a log");
    const double *steps = run_log_column(log, "step");
    while ((line = next_line(&at, end)))
        if (*line) read_row(log, line, steps);
    return true;
}

bool run_log_read(RunLog *log, const char *path, Error *error) {
    uint8_t *bytes;
    size_t size;
    *log = (RunLog){0};
    if (!file_read(path, MOST_BYTES, &bytes, &size, error)) return false;
    bool ok = run_log_parse(log, (char *)bytes, size, error);
    free(bytes);
    return ok;
}

void run_log_free(RunLog *log) {
    for (int c = 0; c < log->columns; c++) {
        free(log->names[c]);
        if (log->values) free(log->values[c]);
    }
    free(log->names);
    free(log->values);
    *log = (RunLog){0};
}

const double *run_log_column(const RunLog *log, const char *name) {
    for (int c = 0; c < log->columns; c++)
        if (!strcmp(log->names[c], name)) return log->values[c];
    return NULL;
}

double run_log_last(const RunLog *log, const char *name) {
    const double *values = run_log_column(log, name);
    for (int row = log->rows - 1; values && row >= 0; row--)
        if (isfinite(values[row])) return values[row];
    return NAN;
}

double run_log_best(const RunLog *log, const char *name, bool greatest, int *row) {
    const double *values = run_log_column(log, name);
    int best = -1;
    for (int r = 0; values && r < log->rows; r++) {
        if (!isfinite(values[r])) continue;
        if (best < 0 || (greatest ? values[r] > values[best] : values[r] < values[best])) best = r;
    }
    if (row) *row = best;
    return best < 0 ? NAN : values[best];
}

double *run_log_epochs(const RunLog *log, double batches) {
    const double *step = run_log_column(log, "step"), *epoch = run_log_column(log, "epoch");
    double *epochs = xcalloc((size_t)log->rows + 1, sizeof *epochs, "a log");
    double before = 0, length = 0; /* steps before the epoch, and in it */
    for (int r = 0, next = 0; r < log->rows; r++) {
        if (!step || !epoch) {
            epochs[r] = step ? step[r] : NAN;
            continue;
        }
        if (r == next) { /* the first row of an epoch */
            double whole = length;
            before = r ? step[r - 1] : 0;
            while (next < log->rows && epoch[next] == epoch[r]) next++;
            if (next == r) next++; /* not a number */
            length = step[next - 1] - before;
            if (next == log->rows) length = batches >= length ? batches : fmax(whole, length); /* cut short? */
        }
        epochs[r] = epoch[r] - 1 + (step[r] - before) / length;
    }
    return epochs;
}
