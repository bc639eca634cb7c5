#include "report/comparison.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/files.h"
#include "core/text.h"

enum { PATH_SIZE = 4096, NAME_SIZE = 64, MOST_BYTES = 1 << 24, MOST_CELLS = 64, MOST_RUNS = 4000 };

const Metric metrics[METRICS] = {
    {"top1", "top-1", "%", 2, .greatest = true, .curve = true},
    {"mask_ap", "AP of masks", "", 4, .greatest = true, .curve = true},
    {"ap", "AP", "", 4, .greatest = true, .curve = true},
    {"miou", "mean IoU", "", 4, .greatest = true, .curve = true},
    {"bits", "bits per byte", "", 4, .curve = true},
    {"val_loss", "validation loss", "", 4, .curve = true},
    {"loss", "training loss", "", 4, .curve = true, .averaged = true},
    {"top5", "top-5", "%", 2, .greatest = true},
    {"mask_ap50", "AP50 of masks", "", 4, .greatest = true},
    {"ap50", "AP50", "", 4, .greatest = true},
};

/* == Settings ===================================================================================================== */

const char *run_setting(const ComparedRun *run, const char *name) {
    for (int i = 0; i < run->setting_count; i++)
        if (!strcmp(run->settings[i].name, name)) return run->settings[i].value;
    return NULL;
}

static bool is_of_place(const char *name) {
    return text_lists("run_dir, data_dir, workers, bench_seconds, version, device, host, threads, ranks", name);
}

static void add_setting(ComparedRun *run, size_t *room, const char *name, const char *value) {
    size_t count = (size_t)run->setting_count++;
    run->settings = xgrow(run->settings, count + 1, room, sizeof *run->settings, "settings of runs");
    run->settings[count] = (RunSetting){xstrdup(name), xstrdup(value), is_of_place(name)};
}

/* The whole file, zero at its end; NULL on failure. */
static char *read_text(const char *path, Error *error) {
    uint8_t *bytes;
    size_t size;
    if (!file_read(path, MOST_BYTES, &bytes, &size, error)) return NULL;
    char *text = xcalloc(size + 1, 1, path);
    if (size) memcpy(text, bytes, size);
    free(bytes);
    return text;
}

static bool parse_settings(ComparedRun *run, size_t *room, char *text, Error *error) {
    for (char *name, *value; text_next_setting(&text, &name, &value);) {
        if (!value) return refuse(error, "'%.100s': expected 'name = value'", name);
        add_setting(run, room, name, value);
    }
    return true;
}

static bool read_settings(ComparedRun *run, size_t *room, const char *path, Error *error) {
    char *text = read_text(path, error);
    bool ok = text && parse_settings(run, room, text, error);
    free(text);
    return ok;
}

static void add_facts(ComparedRun *run, size_t *room) {
    static const char *const texts[] = {"program", "version", "device", "host"};
    static const char *const numbers[] = {"threads", "ranks"};
    char number[32];
    for (int i = 0; i < 4; i++) {
        const char *text = facts_get(&run->facts, texts[i]);
        if (text) add_setting(run, room, texts[i], text);
    }
    for (int i = 0; i < 2; i++) {
        snprintf(number, sizeof number, "%g", facts_number(&run->facts, numbers[i]));
        if (strcmp(number, "nan")) add_setting(run, room, numbers[i], number);
    }
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const RunSetting *)a)->name, ((const RunSetting *)b)->name);
}

/* == Run folders ================================================================================================== */

static bool refuse_file(const char *path, Error *error) { return refuse(error, "%s: %s", path, error->text); }

static bool read_folder(ComparedRun *run, const char *folder, Error *error) {
    char path[PATH_SIZE];
    size_t room = 0;
    path_join(path, sizeof path, folder, "log.csv");
    if (!run_log_read(&run->log, path, error)) return refuse_file(path, error);
    if (!run_log_column(&run->log, "step") || !run_log_column(&run->log, "epoch"))
        return refuse(error, "%s: not the log of a run: its header lacks step or epoch", path);
    path_join(path, sizeof path, folder, "config.ini");
    if (!read_settings(run, &room, path, error)) return refuse_file(path, error);
    path_join(path, sizeof path, folder, "report.json");
    if (!facts_read(&run->facts, path, error)) return refuse_file(path, error);
    add_facts(run, &room);
    qsort(run->settings, (size_t)run->setting_count, sizeof *run->settings, by_name);
    run->epochs = run_log_epochs(&run->log, facts_number(&run->facts, "batches"));
    return true;
}

/* == Tables of results ============================================================================================ */

/* The columns of a league's table that count here (scripts/league.sh writes them). */
enum { OPERATOR, FLAGS, EPOCHS, SEED, TOP1, TOP5, VAL_LOSS, PARAMETERS, MILLION_MACS, SECONDS, COLUMNS };
static const char *const column_names[COLUMNS] = {"operator", "flags", "epochs",     "seed",         "top1",
                                                  "top5",     "val_loss", "parameters", "million_macs", "seconds"};

static int split(char *line, char *cells[MOST_CELLS]) {
    int count = 0;
    while (line && count < MOST_CELLS) cells[count++] = strsep(&line, ",");
    return count;
}

static bool find_columns(int at[COLUMNS], char *const *cells, int count, Error *error) {
    for (int i = 0; i < COLUMNS; i++) {
        at[i] = 0;
        while (at[i] < count && strcmp(cells[at[i]], column_names[i])) at[i]++;
        if (at[i] == count)
            return refuse(error, "line 1: no column %s: expected the folder of a run or a table of results as in "
                                 "docs/league.csv", column_names[i]);
    }
    return true;
}

/* Makes a run from a row: its log has one row, and its config the settings that distinguish its group. */
static bool take_row(ComparedRun *run, char *const cells[COLUMNS], Error *error) {
    char log[512], name[256];
    size_t room = 0;
    int length = snprintf(log, sizeof log,
                          "step,epoch,top1,top5,val_loss,wall_s,parameters,million_macs\n1,%s,%s,%s,%s,%s,%s,%s\n",
                          cells[EPOCHS], cells[TOP1], cells[TOP5], cells[VAL_LOSS], cells[SECONDS], cells[PARAMETERS],
                          cells[MILLION_MACS]);
    if (length >= (int)sizeof log) return refuse(error, "its numbers are too long");
    if (!run_log_parse(&run->log, log, (size_t)length, error)) return false;
    snprintf(name, sizeof name, "%s%s%s", cells[OPERATOR], *cells[FLAGS] ? " " : "", cells[FLAGS]);
    text_drop_half_character(name, strlen(name));
    run->name = xstrdup(name);
    run->row = true;
    add_setting(run, &room, "attn", name);
    add_setting(run, &room, "epochs", cells[EPOCHS]);
    add_setting(run, &room, "seed", cells[SEED]);
    run->epochs = run_log_epochs(&run->log, NAN);
    return true;
}

static ComparedRun *new_run(Comparison *c, size_t *room) {
    c->runs = xgrow(c->runs, (size_t)c->run_count + 1, room, sizeof *c->runs, "runs to be compared");
    c->runs[c->run_count] = (ComparedRun){0};
    return &c->runs[c->run_count++];
}

static bool read_rows(Comparison *c, size_t *room, char *text, Error *error) {
    int at[COLUMNS] = {0}, columns = 0; /* 0: the header is next */
    for (int number = 1; text; number++) {
        char *line = text_trim(strsep(&text, "\n")), *cells[MOST_CELLS], *chosen[COLUMNS];
        if (!*line) continue;
        int count = split(line, cells);
        if (!columns && !find_columns(at, cells, count, error)) return false;
        if (!columns) {
            columns = count;
            continue;
        }
        if (count != columns) return refuse(error, "line %d: %d cells, expected %d", number, count, columns);
        for (int i = 0; i < COLUMNS; i++) chosen[i] = cells[at[i]];
        Error why = {.text = ""};
        if (!take_row(new_run(c, room), chosen, &why)) return refuse(error, "line %d: %s", number, why.text);
    }
    return columns || refuse(error, "empty");
}

static bool read_table(Comparison *c, size_t *room, const char *path, Error *error) {
    char *text = read_text(path, error);
    bool ok = (text && read_rows(c, room, text, error)) || refuse_file(path, error);
    free(text);
    return ok;
}

/* == Names ======================================================================================================== */

/* The last `parts` parts of a path, cut at the beginning if they are long. */
static char *path_ending(const char *path, int parts) {
    size_t end = strlen(path), from = end;
    while (from > 0 && (from == end || path[from - 1] != '/' || --parts)) from--;
    if (end - from < NAME_SIZE) {
        char name[NAME_SIZE];
        snprintf(name, sizeof name, "%.*s", (int)(end - from), path + from);
        return xstrdup(name);
    }
    char cut[NAME_SIZE + 4];
    for (from = end - NAME_SIZE + 1; from < end && ((unsigned char)path[from] & 0xC0) == 0x80;) from++;
    snprintf(cut, sizeof cut, "\u2026%.*s", (int)(end - from), path + from);
    return xstrdup(cut);
}

/* Does another folder have the name of run i, or (`itself`) was the same folder given before? */
static bool has_twin(const Comparison *c, int i, bool itself) {
    for (int k = 0; k < (itself ? i : c->run_count); k++) {
        if (k == i || c->runs[k].row || c->runs[i].row || strcmp(c->runs[k].name, c->runs[i].name)) continue;
        if (itself || strcmp(c->runs[k].path, c->runs[i].path)) return true;
    }
    return false;
}

/* Folders have the last parts of their paths as names: as many as distinguish them, and a number where one folder is
 * given twice. */
static void name_runs(Comparison *c) {
    enum { MOST_PARTS = 8 };
    bool *twin = xcalloc((size_t)c->run_count, sizeof *twin, "names of runs");
    for (int parts = 1; parts <= MOST_PARTS; parts++) {
        for (int i = 0; i < c->run_count; i++) twin[i] = parts == 1 ? !c->runs[i].row : has_twin(c, i, false);
        for (int i = 0; i < c->run_count; i++) {
            if (!twin[i]) continue;
            free(c->runs[i].name);
            c->runs[i].name = path_ending(c->runs[i].path, parts);
        }
    }
    free(twin);
    for (int i = c->run_count - 1; i >= 0; i--) {
        char number[NAME_SIZE + 24];
        if (!has_twin(c, i, true)) continue;
        snprintf(number, sizeof number, "%s (%d)", c->runs[i].name, i + 1);
        free(c->runs[i].name);
        c->runs[i].name = xstrdup(number);
    }
}

/* == Groups ======================================================================================================= */

/* The next setting from i on in which groups differ. */
static int telling(const ComparedRun *run, int i) {
    while (i < run->setting_count && (run->settings[i].place || !strcmp(run->settings[i].name, "seed"))) i++;
    return i;
}

static bool same_settings(const ComparedRun *a, const ComparedRun *b) {
    int i = telling(a, 0), k = telling(b, 0);
    bool same = a->row == b->row;
    for (; same && i < a->setting_count && k < b->setting_count; i = telling(a, i + 1), k = telling(b, k + 1))
        same = !strcmp(a->settings[i].name, b->settings[k].name) && !strcmp(a->settings[i].value, b->settings[k].value);
    return same && i == a->setting_count && k == b->setting_count;
}

/* A seed counts once: two runs of one seed are not two samples.  Neither is a run without a seed another one. */
static bool has_seed(const RunGroup *group, const char *seed) {
    bool has = !seed;
    for (int i = 0; !has && i < group->count; i++) {
        const char *other = run_setting(group->runs[i], "seed");
        has = !other || !strcmp(other, seed);
    }
    return has;
}

static RunGroup *find_group(const Comparison *c, const ComparedRun *run) {
    for (int g = 0; g < c->group_count; g++)
        if (same_settings(c->groups[g].runs[0], run) && !has_seed(&c->groups[g], run_setting(run, "seed")))
            return &c->groups[g];
    return NULL;
}

static void make_groups(Comparison *c) {
    size_t runs = (size_t)c->run_count;
    c->groups = xcalloc(runs, sizeof *c->groups, "groups of runs");
    for (int i = 0; i < c->run_count; i++) {
        RunGroup *group = find_group(c, &c->runs[i]);
        if (!group) {
            group = &c->groups[c->group_count++];
            group->runs = xcalloc(runs - (size_t)i, sizeof *group->runs, "groups of runs");
        }
        group->runs[group->count++] = &c->runs[i];
    }
}

/* The common beginning of its runs' names, without an incomplete number and the word before it, such as "-seed". */
static char *common_name(const RunGroup *group) {
    const char *name = group->runs[0]->name;
    size_t same = strlen(name);
    for (int i = 1; i < group->count; i++) {
        size_t k = 0;
        while (k < same && name[k] == group->runs[i]->name[k]) k++;
        same = k;
    }
    char *common = xstrdup(name);
    if (group->count == 1 || !name[same]) return common;
    while (same && isdigit((unsigned char)common[same - 1])) same--;
    if (same >= 4 && !memcmp(common + same - 4, "seed", 4)) same -= 4;
    while (same && strchr("-_. /", common[same - 1])) same--;
    text_drop_half_character(common, same);
    common[same] = 0;
    return common;
}

static bool is_taken(const Comparison *c, int g) {
    bool taken = !*c->groups[g].name;
    for (int k = 0; k < c->group_count; k++) taken |= k != g && !strcmp(c->groups[k].name, c->groups[g].name);
    return taken;
}

static void name_groups(Comparison *c) {
    for (int g = 0; g < c->group_count; g++) c->groups[g].name = common_name(&c->groups[g]);
    for (int g = 0; g < c->group_count; g++) {
        RunGroup *group = &c->groups[g];
        char name[NAME_SIZE + 48];
        if (group->runs[0]->row || group->count == 1 || !is_taken(c, g)) continue;
        snprintf(name, sizeof name, "%s and %d more", group->runs[0]->name, group->count - 1);
        free(group->name);
        group->name = xstrdup(name);
    }
}

static const Metric *common_metric(const Comparison *c) {
    const Metric *metric = NULL;
    for (int m = 0, most = 0; m < METRICS; m++) {
        int have = 0;
        for (int g = 0; g < c->group_count; g++) have += group_result(&c->groups[g], &metrics[m]).sample.count > 0;
        if (have <= most) continue;
        most = have;
        metric = &metrics[m];
    }
    return metric;
}

/* Those without a result last, equal ones in their order. */
static bool stands_before(const RunGroup *a, const RunGroup *b, bool greatest) {
    if (isnan(a->result) || isnan(b->result)) return isnan(b->result) && !isnan(a->result);
    return greatest ? a->result > b->result : a->result < b->result;
}

static void sort_groups(Comparison *c) {
    c->metric = common_metric(c);
    for (int g = 0; g < c->group_count; g++) {
        RunGroup group = c->groups[g];
        int at = g;
        group.result = c->metric ? group_result(&group, c->metric).sample.mean : NAN;
        for (; at > 0 && stands_before(&group, &c->groups[at - 1], c->metric && c->metric->greatest); at--)
            c->groups[at] = c->groups[at - 1];
        c->groups[at] = group;
    }
}

bool comparison_read(Comparison *c, const char *const *paths, int count, Error *error) {
    size_t room = 0;
    bool ok = true;
    *c = (Comparison){0};
    for (int i = 0; i < count && ok; i++) {
        if (!folder_exists(paths[i])) {
            ok = read_table(c, &room, paths[i], error);
            continue;
        }
        ComparedRun *run = new_run(c, &room);
        run->path = text_ends_with(paths[i], ".") ? realpath(paths[i], NULL) : NULL;
        if (!run->path) run->path = xstrdup(paths[i]);
        for (size_t end = strlen(run->path); end > 1 && run->path[end - 1] == '/';) run->path[--end] = 0;
        run->name = xstrdup(paths[i]);
        ok = read_folder(run, paths[i], error);
    }
    if (ok && !c->run_count) ok = refuse(error, "nothing to compare: expected folders of runs or a table of results");
    if (ok && c->run_count > MOST_RUNS) ok = refuse(error, "%d runs, expected at most %d", c->run_count, MOST_RUNS);
    if (!ok) {
        comparison_free(c);
        return false;
    }
    name_runs(c);
    make_groups(c);
    name_groups(c);
    sort_groups(c);
    return true;
}

void comparison_free(Comparison *c) {
    for (int i = 0; i < c->run_count; i++) {
        ComparedRun *run = &c->runs[i];
        for (int s = 0; s < run->setting_count; s++) {
            free(run->settings[s].name);
            free(run->settings[s].value);
        }
        free(run->settings);
        free(run->epochs);
        free(run->path);
        free(run->name);
        run_log_free(&run->log);
        facts_free(&run->facts);
    }
    for (int g = 0; g < c->group_count; g++) {
        free(c->groups[g].name);
        free(c->groups[g].runs);
    }
    free(c->runs);
    free(c->groups);
    *c = (Comparison){0};
}

/* == Statistics =================================================================================================== */

Sample sample_of(const double *values, int count) {
    Sample s = {0, 0, 0, NAN};
    for (int i = 0; i < count; i++) {
        if (!isfinite(values[i])) continue;
        s.count++;
        s.mean += values[i];
    }
    s.mean = s.count ? s.mean / s.count : NAN;
    for (int i = 0; i < count; i++)
        if (isfinite(values[i])) s.deviation += (values[i] - s.mean) * (values[i] - s.mean);
    s.deviation = s.count > 1 ? sqrt(s.deviation / (s.count - 1)) : NAN;
    s.error = s.deviation / sqrt(s.count);
    return s;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values, int count) {
    double *sorted = xcalloc((size_t)count + 1, sizeof *sorted, "a median");
    int n = 0;
    for (int i = 0; values && i < count; i++)
        if (isfinite(values[i])) sorted[n++] = values[i];
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    double middle = n ? (sorted[n / 2] + sorted[(n - 1) / 2]) / 2 : NAN;
    free(sorted);
    return middle;
}

double run_property(const ComparedRun *run, RunProperty property) {
    const RunLog *log = &run->log;
    switch (property) {
    case RUN_SPEED: return median(run_log_column(log, "images_per_s"), log->rows);
    case RUN_PARAMETERS: return run->row ? run_log_last(log, "parameters") : facts_number(&run->facts, "parameters");
    case RUN_MACS: return run->row ? 1e6 * run_log_last(log, "million_macs") : facts_number(&run->facts, "macs");
    case RUN_BYTES: return run_log_last(log, "peak_bytes");
    default: return run_log_last(log, "wall_s");
    }
}

Sample group_property(const RunGroup *group, RunProperty property) {
    double *values = xcalloc((size_t)group->count, sizeof *values, "properties of runs");
    for (int i = 0; i < group->count; i++) values[i] = run_property(group->runs[i], property);
    Sample sample = sample_of(values, group->count);
    free(values);
    return sample;
}

/* == Curves ======================================================================================================= */

/* The position of a run in its log. */
typedef struct {
    const ComparedRun *run;
    const double *step, *values, *seconds;
    int row, last; /* the next row; the last one that had a value */
} Walk;

/* The metric from there to the step `end`, or NaN. */
static double walk_to(Walk *w, double end, bool averaged) {
    double sum = 0, weights = 0, before = w->row ? w->step[w->row - 1] : 0;
    for (; w->row < w->run->log.rows && w->step[w->row] <= end; before = w->step[w->row++]) {
        double value = w->values[w->row], weight = averaged ? w->step[w->row] - before : 1;
        if (!isfinite(value)) continue;
        sum = averaged ? sum + weight * value : value;
        weights = averaged ? weights + weight : 1;
        w->last = w->row;
    }
    return weights > 0 ? sum / weights : NAN;
}

/* The log of the run that ends first, so that no point is beyond a run's end; NULL: one of them has no such column. */
static const RunLog *shortest_log(const RunGroup *group, const Metric *metric) {
    const RunLog *shortest = &group->runs[0]->log;
    for (int i = 0; i < group->count; i++) {
        const RunLog *log = &group->runs[i]->log;
        if (!run_log_column(log, metric->column)) return NULL;
        if (!log->rows || run_log_last(log, "step") < run_log_last(shortest, "step")) shortest = log;
    }
    return shortest;
}

static Walk *begin_walks(const RunGroup *group, const Metric *metric) {
    Walk *walks = xcalloc((size_t)group->count, sizeof *walks, "curves of runs");
    for (int i = 0; i < group->count; i++) {
        const RunLog *log = &group->runs[i]->log;
        walks[i] = (Walk){.run = group->runs[i], .step = run_log_column(log, "step"),
                          .values = run_log_column(log, metric->column), .seconds = run_log_column(log, "wall_s")};
    }
    return walks;
}

static void add_point(GroupCurve *curve, Walk *walks, double *values, int runs, double end, bool averaged) {
    double epoch = 0, seconds = 0;
    for (int i = 0; i < runs; i++) {
        values[i] = walk_to(&walks[i], end, averaged);
        epoch += walks[i].run->epochs[walks[i].last] / runs;
        seconds += walks[i].seconds ? walks[i].seconds[walks[i].last] / runs : NAN;
    }
    Sample sample = sample_of(values, runs);
    if (sample.count < runs) return;
    int at = curve->count++;
    curve->step[at] = end;
    curve->epoch[at] = epoch;
    curve->seconds[at] = seconds;
    curve->mean[at] = sample.mean;
    curve->error[at] = sample.error;
    curve->deviation[at] = sample.deviation;
}

void group_curve(GroupCurve *curve, const RunGroup *group, const Metric *metric, int most) {
    const RunLog *log = shortest_log(group, metric);
    const double *step = log ? run_log_column(log, "step") : NULL;
    const double *x = log ? run_log_column(log, metric->column) : NULL;
    int rows = log ? log->rows : 0, points = 0, taken = 0;
    *curve = (GroupCurve){0};
    double *block = xcalloc(6 * (size_t)rows + (size_t)group->count, sizeof *block, "curves of runs");
    double *values = block + 6 * (size_t)rows;
    Walk *walks = begin_walks(group, metric);
    double **parts[] = {&curve->step, &curve->epoch, &curve->seconds, &curve->mean, &curve->error, &curve->deviation};
    for (int i = 0; i < 6; i++) *parts[i] = block + i * rows;
    for (int row = 0; row < rows; row++) points += isfinite(x[row]);
    curve->joined = points / most + (points % most > 0);
    for (int row = 0; row < rows; row++) {
        if (!isfinite(x[row])) continue;
        taken++;
        if (taken % curve->joined == 0 || taken == points)
            add_point(curve, walks, values, group->count, step[row], metric->averaged);
    }
    free(walks);
}

void group_curve_free(GroupCurve *curve) {
    free(curve->step);
    *curve = (GroupCurve){0};
}

GroupResult group_result(const RunGroup *group, const Metric *metric) {
    GroupCurve curve;
    group_curve(&curve, group, metric, INT_MAX);
    int last = curve.count - 1;
    GroupResult result = {NAN, {0, NAN, NAN, NAN}};
    if (last >= 0)
        result = (GroupResult){curve.epoch[last],
                               {group->count, curve.mean[last], curve.deviation[last], curve.error[last]}};
    group_curve_free(&curve);
    return result;
}
