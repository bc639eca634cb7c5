#include "report/compare.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/files.h"
#include "core/integers.h"
#include "core/text.h"
#include "core/text_stream.h"
#include "report/comparison.h"
#include "report/html.h"
#include "report/run_page.h"
#include "report/svg.h"

/* How much of a comparison a page shows, so that it is within REPORT_BYTES. */
typedef struct {
    int points, groups; /* points of a curve; the number of best groups in tables and scatters */
} Detail;
enum { MOST_POINTS = 160, FEWEST_POINTS = 40, DOTS_UP_TO = 20 };

/* == Tables ======================================================================================================= */

/* A table that is filled cell by cell; columns without a text are left out. */
typedef struct {
    int rows, columns;
    const char **names;
    char **cells; /* [rows,columns] */
} Sheet;

static void sheet_begin(Sheet *sheet, int rows, int columns) {
    sheet->rows = rows;
    sheet->columns = columns;
    sheet->names = xcalloc((size_t)columns, sizeof *sheet->names, "a table");
    sheet->cells = xcalloc((size_t)rows * (size_t)columns, sizeof *sheet->cells, "a table");
}

static char *printed(const char *format, va_list arguments) {
    TextStream text;
    vfprintf(text_open(&text), format, arguments);
    return text_close(&text, "a table's cell");
}

static __attribute__((format(printf, 4, 5))) void put(Sheet *sheet, int row, int column, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    sheet->cells[row * sheet->columns + column] = printed(format, arguments);
    va_end(arguments);
}

static void put_number(Sheet *sheet, int row, int column, int decimals, double value) {
    if (isfinite(value)) put(sheet, row, column, "%.*f", decimals, value);
}

/* A mean with its standard error, if there is one, and the unit, to be freed; NULL without a mean. */
static char *sample_text(int decimals, const Sample *sample, const char *unit) {
    TextStream text;
    if (!isfinite(sample->mean)) return NULL;
    FILE *out = text_open(&text);
    fprintf(out, "%.*f", decimals, sample->mean);
    if (isfinite(sample->error)) fprintf(out, " ± %.*f", decimals, sample->error);
    if (*unit) fprintf(out, " %s", unit);
    return text_close(&text, "a table's cell");
}

static void put_sample(Sheet *sheet, int row, int column, int decimals, const Sample *sample) {
    sheet->cells[row * sheet->columns + column] = sample_text(decimals, sample, "");
}

static bool has_text(const Sheet *sheet, int column) {
    for (int row = 0; row < sheet->rows; row++)
        if (sheet->cells[row * sheet->columns + column]) return true;
    return false;
}

static void sheet_end(FILE *out, Sheet *sheet) {
    int columns = 0, kept = 0;
    const char **cells = xcalloc((size_t)sheet->rows * (size_t)sheet->columns, sizeof *cells, "a table");
    const char **names = xcalloc((size_t)sheet->columns, sizeof *names, "a table");
    for (int c = 0; c < sheet->columns; c++)
        if (has_text(sheet, c)) names[columns++] = sheet->names[c];
    for (int c = 0; c < sheet->columns; c++) {
        if (!has_text(sheet, c)) continue;
        for (int r = 0; r < sheet->rows; r++) cells[r * columns + kept] = sheet->cells[r * sheet->columns + c];
        kept++;
    }
    HtmlTable table = {.rows = sheet->rows, .columns = columns, .names = names, .cells = cells, .sortable = true};
    html_table(out, &table);
    for (int i = 0; i < sheet->rows * sheet->columns; i++) free(sheet->cells[i]);
    free(sheet->cells);
    free(sheet->names);
    free(cells);
    free(names);
}

/* == Results ====================================================================================================== */

/* The unit of the longest time that is shown. */
typedef struct {
    double seconds;
    const char *name;
} TimeUnit;

static TimeUnit time_unit(const Comparison *c) {
    double longest = 0;
    for (int i = 0; i < c->run_count; i++) longest = fmax(longest, run_property(&c->runs[i], RUN_SECONDS));
    return longest > 7200 ? (TimeUnit){3600, "h"} : longest > 120 ? (TimeUnit){60, "min"} : (TimeUnit){1, "s"};
}

/* RESULT: the comparison's metric; METRIC: all others. */
enum { NAME, RESULT, DEVIATION, RUNS, SEED, STATE, EPOCH, BEST, BEST_AT, SPEED, PARAMETERS, MACS, MEMORY, TIME, METRIC,
       RESULT_COLUMNS = METRIC + METRICS };

static const struct {
    const char *name;
    RunProperty property;
    int decimals; /* SPEED: by its value */
    double scale;
} properties[] = {
    [SPEED] = {"images/s", RUN_SPEED, 0, 1},
    [PARAMETERS] = {"parameters", RUN_PARAMETERS, 0, 1},
    [MACS] = {"10⁶ multiply-adds", RUN_MACS, 1, 1e-6},
    [MEMORY] = {"MiB", RUN_BYTES, 0, 1.0 / (1 << 20)},
};

static void put_property(Sheet *sheet, int row, int p, double value) {
    int decimals = p == SPEED ? run_log_speed_decimals(value) : properties[p].decimals;
    put_number(sheet, row, p, decimals, properties[p].scale * value);
}

enum { HEADING_SIZE = 48 };

/* Headings of the columns above, which must stay valid until the table is written. */
typedef struct {
    char metric[METRICS][HEADING_SIZE], best[HEADING_SIZE], time[16];
} Headings;

static void heading(char text[HEADING_SIZE], const char *before, const Metric *metric) {
    snprintf(text, HEADING_SIZE, "%s%s%s%s", before, metric->name, *metric->unit ? ", " : "", metric->unit);
}

static int metric_column(const Comparison *c, int m) { return &metrics[m] == c->metric ? RESULT : METRIC + m; }

static void results_begin(Sheet *sheet, Headings *h, const Comparison *c, int rows, TimeUnit unit) {
    sheet_begin(sheet, rows, RESULT_COLUMNS);
    sheet->names[NAME] = "name";
    sheet->names[RUNS] = "runs";
    sheet->names[SEED] = "seed";
    sheet->names[STATE] = "state";
    sheet->names[EPOCH] = "epoch";
    for (int m = 0; m < METRICS; m++) {
        heading(h->metric[m], "", &metrics[m]);
        sheet->names[metric_column(c, m)] = h->metric[m];
    }
    sheet->names[DEVIATION] = "s.d.";
    heading(h->best, "best ", c->metric ? c->metric : metrics);
    sheet->names[BEST] = h->best;
    sheet->names[BEST_AT] = "in epoch";
    for (int p = SPEED; p <= MEMORY; p++) sheet->names[p] = properties[p].name;
    snprintf(h->time, sizeof h->time, "time, %s", unit.name);
    sheet->names[TIME] = h->time;
}

/* Rounded down to the hundredth: a run that is in its third epoch has not ended it. */
static void put_epoch(Sheet *sheet, int row, int column, double epoch) {
    if (isfinite(epoch)) put(sheet, row, column, "%.6g", floor(100 * epoch + 0.01) / 100);
}

static void groups_table(FILE *out, const Comparison *c, int groups, TimeUnit unit) {
    Sheet sheet;
    Headings headings;
    results_begin(&sheet, &headings, c, groups, unit);
    for (int g = 0; g < groups; g++) {
        const RunGroup *group = &c->groups[g];
        put(&sheet, g, NAME, "%s", group->name);
        put(&sheet, g, RUNS, "%d", group->count);
        for (int m = 0; m < METRICS; m++) {
            GroupResult result = group_result(group, &metrics[m]);
            put_sample(&sheet, g, metric_column(c, m), metrics[m].decimals, &result.sample);
            if (&metrics[m] != c->metric) continue;
            put_epoch(&sheet, g, EPOCH, result.epoch);
            put_number(&sheet, g, DEVIATION, metrics[m].decimals, result.sample.deviation);
        }
        for (int p = SPEED; p <= MEMORY; p++) put_property(&sheet, g, p, group_property(group, properties[p].property).mean);
        put_number(&sheet, g, TIME, 1, group_property(group, RUN_SECONDS).mean / unit.seconds);
    }
    sheet_end(out, &sheet);
}

static void put_text(Sheet *sheet, int row, int column, const char *text) {
    if (text) put(sheet, row, column, "%s", text);
}

static void put_run(Sheet *sheet, int row, const Comparison *c, const ComparedRun *run, TimeUnit unit) {
    const double *epochs = run_log_column(&run->log, "epoch");
    int at = -1;
    put(sheet, row, NAME, "%s", run->name);
    put_text(sheet, row, SEED, run_setting(run, "seed"));
    put_text(sheet, row, STATE, facts_get(&run->facts, "state"));
    if (run->log.rows) put_epoch(sheet, row, EPOCH, run->epochs[run->log.rows - 1]);
    for (int m = 0; m < METRICS; m++)
        put_number(sheet, row, metric_column(c, m), metrics[m].decimals, run_log_last(&run->log, metrics[m].column));
    for (int p = SPEED; p <= MEMORY; p++) put_property(sheet, row, p, run_property(run, properties[p].property));
    put_number(sheet, row, TIME, 1, run_property(run, RUN_SECONDS) / unit.seconds);
    if (run->row || !c->metric) return;
    put_number(sheet, row, BEST, c->metric->decimals,
               run_log_best(&run->log, c->metric->column, c->metric->greatest, &at));
    if (at >= 0) put_number(sheet, row, BEST_AT, 0, epochs[at]);
}

static void runs_table(FILE *out, const Comparison *c, int groups, TimeUnit unit) {
    Sheet sheet;
    Headings headings;
    int rows = 0;
    for (int g = 0; g < groups; g++) rows += c->groups[g].count;
    results_begin(&sheet, &headings, c, rows, unit);
    rows = 0;
    for (int g = 0; g < groups; g++)
        for (int i = 0; i < c->groups[g].count; i++) put_run(&sheet, rows++, c, c->groups[g].runs[i], unit);
    sheet_end(out, &sheet);
}

static void results(FILE *out, const Comparison *c, int groups, TimeUnit unit) {
    html_section(out, "results", "Results");
    html_paragraph(out, "The result of a run is that of its last evaluation; the best of all evaluations would be "
                        "biased upwards by chance.");
    if (c->group_count == c->run_count) {
        runs_table(out, c, groups, unit);
        return;
    }
    html_paragraph(out, "Runs that differ in their seed alone share one row: the mean over them, at the last epoch "
                        "that all of them have reached, ± its standard error; s.d. is the standard deviation.");
    groups_table(out, c, groups, unit);
    html_fold_begin(out, "Every run by itself");
    runs_table(out, c, groups, unit);
    html_fold_end(out);
}

/* == Curves ======================================================================================================= */

typedef enum { BY_EPOCH, BY_STEP, BY_TIME, AXES } XAxis;

/* The groups that have logs, the best first; the charts have colours for the first ones. */
typedef struct {
    const RunGroup *groups[CHART_COLOURS];
    int count, of;
    bool timed; /* at least one log has times */
    TimeUnit unit;
} Drawn;

static Drawn drawn_groups(const Comparison *c, TimeUnit unit) {
    Drawn drawn = {.unit = unit};
    for (int g = 0; g < c->group_count; g++) {
        if (c->groups[g].runs[0]->row || !c->groups[g].runs[0]->log.rows) continue;
        if (drawn.of++ >= CHART_COLOURS) continue;
        drawn.groups[drawn.count++] = &c->groups[g];
        drawn.timed |= isfinite(group_property(&c->groups[g], RUN_SECONDS).mean);
    }
    return drawn;
}

/* The mean of a group's runs as a line with a band; `bounds` [2][curve->count] is memory for the band. */
static ChartLine line_of(const RunGroup *group, GroupCurve *curve, double *bounds, XAxis axis, TimeUnit unit,
                         bool dots) {
    int n = curve->count;
    for (int i = 0; i < n; i++) {
        bounds[i] = curve->mean[i] - curve->error[i];
        bounds[n + i] = curve->mean[i] + curve->error[i];
        curve->seconds[i] /= unit.seconds;
    }
    return (ChartLine){.name = group->name, .count = n, .y = curve->mean, .marked = dots && n <= DOTS_UP_TO,
                       .x = axis == BY_EPOCH ? curve->epoch : axis == BY_STEP ? curve->step : curve->seconds,
                       .low = group->count > 1 ? bounds : NULL, .high = group->count > 1 ? bounds + n : NULL};
}

static void put_chart(FILE *out, const Drawn *drawn, const Metric *metric, int points, XAxis axis, const char *label) {
    ChartLine lines[CHART_COLOURS];
    GroupCurve curves[CHART_COLOURS];
    double *bounds[CHART_COLOURS];
    char title[HEADING_SIZE + 32];
    int joined = 1;
    for (int k = 0; k < drawn->count; k++) {
        group_curve(&curves[k], drawn->groups[k], metric, points);
        joined = larger(joined, curves[k].joined);
        bounds[k] = xcalloc(2 * (size_t)curves[k].count + 1, sizeof **bounds, "a band around a curve");
        lines[k] = line_of(drawn->groups[k], &curves[k], bounds[k], axis, drawn->unit, !metric->averaged);
        lines[k].colour = k;
    }
    heading(title, "", metric);
    if (metric->averaged && joined > 1)
        snprintf(title + strlen(title), 32, ", means of %d rows", joined);
    svg_lines(out, &(LineChart){.title = title, .x_label = label, .unit = metric->unit, .lines = lines,
                                .count = drawn->count});
    for (int k = 0; k < drawn->count; k++) {
        group_curve_free(&curves[k]);
        free(bounds[k]);
    }
}

static void describe_curves(FILE *out, const Comparison *c, const Drawn *drawn) {
    char text[256];
    bool bands = false;
    for (int k = 0; k < drawn->count; k++) bands |= drawn->groups[k]->count > 1;
    if (drawn->of > drawn->count) {
        snprintf(text, sizeof text, "The %d of %d with the best %s; the table has all.", drawn->count, drawn->of,
                 c->metric ? c->metric->name : "result");
        html_paragraph(out, text);
    }
    if (bands)
        html_paragraph(out, "A line with a band is a mean over seeds with its standard error on both sides; it ends "
                            "where the shortest of its runs ends.");
}

/* There is a set of charts for each axis, and a choice that needs no script shows those of one (page_rules). */
static void curves(FILE *out, const Comparison *c, int points, TimeUnit unit) {
    static const char *const names[AXES] = {"epoch", "step", "time"};
    Drawn drawn = drawn_groups(c, unit);
    char time[24];
    if (!drawn.count) return;
    html_section(out, "curves", "Curves");
    describe_curves(out, c, &drawn);
    fputs("<div class=\"axes\">\n", out);
    int axes = drawn.timed ? AXES : BY_TIME;
    for (int x = 0; x < axes; x++)
        fprintf(out, "<input type=\"radio\" name=\"axis\" id=\"axis-%d\"%s/> <label for=\"axis-%d\">by %s</label>\n", x,
                x ? "" : " checked=\"checked\"", x, names[x]);
    snprintf(time, sizeof time, "time, %s", unit.name);
    for (int x = 0; x < axes; x++) {
        fprintf(out, "<div class=\"axis axis-%d\">\n", x);
        html_grid_begin(out);
        for (int m = 0; m < METRICS; m++)
            if (metrics[m].curve) put_chart(out, &drawn, &metrics[m], points, (XAxis)x, x == BY_TIME ? time : names[x]);
        html_grid_end(out);
        fputs("</div>\n", out);
    }
    fputs("</div>\n", out);
}

/* == Results against cost ========================================================================================= */

/* The epochs of a table's row, which is compared with rows of the same number; run folders are compared with each
 * other. */
static const char *budget_of(const RunGroup *group) {
    return group->runs[0]->row ? run_setting(group->runs[0], "epochs") : "";
}

static void put_scatter(FILE *out, const Comparison *c, int groups, const char *budget, int property) {
    ChartPoint *points = xcalloc((size_t)groups, sizeof *points, "a scatter");
    char title[128], y_label[HEADING_SIZE];
    double low = INFINITY, high = 0;
    int count = 0;
    for (int g = 0; g < groups; g++) {
        const RunGroup *group = &c->groups[g];
        Sample y = group_result(group, c->metric).sample;
        double x = properties[property].scale * group_property(group, properties[property].property).mean;
        if (strcmp(budget_of(group), budget) || !(x > 0) || !y.count) continue;
        points[count++] = (ChartPoint){group->name, x, y.mean, isfinite(y.error) ? y.error : 0,
                                       c->group_count <= CHART_COLOURS ? g : 0};
        low = fmin(low, x);
        high = fmax(high, x);
    }
    heading(y_label, "", c->metric);
    snprintf(title, sizeof title, *budget ? "%s against %s, %s epochs" : "%s against %s", c->metric->name,
             properties[property].name, budget);
    if (count > 1)
        svg_scatter(out, &(ScatterChart){.title = title, .x_label = properties[property].name, .y_label = y_label,
                                         .points = points, .count = count, .log_x = high > 10 * low});
    free(points);
}

static void scatters(FILE *out, const Comparison *c, int groups) {
    if (!c->metric || groups < 2) return;
    html_section(out, "cost", "Results against cost");
    html_grid_begin(out);
    for (int g = 0; g < groups; g++) {
        bool seen = false;
        for (int k = 0; k < g; k++) seen |= !strcmp(budget_of(&c->groups[k]), budget_of(&c->groups[g]));
        if (seen) continue;
        put_scatter(out, c, groups, budget_of(&c->groups[g]), SPEED);
        put_scatter(out, c, groups, budget_of(&c->groups[g]), MACS);
    }
    html_grid_end(out);
}

/* == Settings ===================================================================================================== */

/* A group's value of a setting; NULL: it has none. */
static const char *value_in(const RunGroup *group, const char *name) {
    const char *value = run_setting(group->runs[0], name);
    for (int i = 1; i < group->count; i++) {
        const char *other = run_setting(group->runs[i], name);
        if (!value || !other || strcmp(value, other)) return value || other ? "(several)" : NULL;
    }
    return value;
}

static bool differs(const Comparison *c, const char *name) {
    const char *value = NULL;
    bool first = true, other = false;
    for (int g = 0; g < c->group_count; g++) {
        if (c->groups[g].runs[0]->row) continue;
        const char *here = value_in(&c->groups[g], name);
        other |= !first && (!here != !value || (here && strcmp(here, value)));
        value = here;
        first = false;
    }
    return other;
}

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* The names of settings that differ, to be freed; without the seed and the folder, in which runs always differ. */
static const char **differing(const Comparison *c, int *count) {
    size_t all = 0, unique = 0;
    for (int i = 0; i < c->run_count; i++) all += (size_t)c->runs[i].setting_count;
    const char **names = xcalloc(all + 1, sizeof *names, "names of settings");
    all = 0;
    for (int i = 0; i < c->run_count; i++)
        for (int s = 0; s < c->runs[i].setting_count; s++) names[all++] = c->runs[i].settings[s].name;
    qsort(names, all, sizeof *names, by_text);
    for (size_t i = 0; i < all; i++) {
        if ((unique && !strcmp(names[unique - 1], names[i])) || text_lists("seed, run_dir", names[i])) continue;
        if (differs(c, names[i])) names[unique++] = names[i];
    }
    *count = (int)unique;
    return names;
}

/* A row for each setting, as long as there are fewer groups than settings; else a row for each group. */
static void settings_table(FILE *out, const RunGroup *const *groups, int group_count, const char *const *names,
                           int count) {
    bool turned = group_count >= count;
    Sheet sheet;
    sheet_begin(&sheet, turned ? group_count : count, 1 + (turned ? count : group_count));
    sheet.names[0] = turned ? "name" : "setting";
    for (int i = 0; i < (turned ? count : group_count); i++) sheet.names[1 + i] = turned ? names[i] : groups[i]->name;
    for (int row = 0; row < sheet.rows; row++) put(&sheet, row, 0, "%s", turned ? groups[row]->name : names[row]);
    for (int g = 0; g < group_count; g++)
        for (int i = 0; i < count; i++) {
            const char *value = value_in(groups[g], names[i]);
            put(&sheet, turned ? g : i, 1 + (turned ? i : g), "%s", value ? value : "-");
        }
    sheet_end(out, &sheet);
}

static void settings(FILE *out, const Comparison *c, int most) {
    const RunGroup **groups = xcalloc((size_t)c->group_count, sizeof *groups, "groups of runs");
    int group_count = 0, count;
    const char **names = differing(c, &count);
    for (int g = 0; g < most; g++)
        if (!c->groups[g].runs[0]->row) groups[group_count++] = &c->groups[g];
    if (group_count > 1) html_section(out, "settings", "Settings that differ");
    if (group_count > 1 && count) settings_table(out, groups, group_count, names, count);
    if (group_count > 1 && !count) html_paragraph(out, "None but the seed and the folder.");
    free(groups);
    free(names);
}

/* == The page ===================================================================================================== */

/* The values of a setting that the runs have, "a, b and c"; empty if there are fewer than two. */
static void list_values(char *list, size_t size, const Comparison *c, const char *name) {
    int found = 0;
    size_t used = 0;
    *list = 0;
    for (int i = 0; i < c->run_count; i++) {
        const char *value = run_setting(&c->runs[i], name);
        bool seen = !value;
        for (int k = 0; k < i && !seen; k++) {
            const char *before = run_setting(&c->runs[k], name);
            seen = before && !strcmp(before, value);
        }
        if (seen) continue;
        if (used < size) used += (size_t)snprintf(list + used, size - used, "%s%s", found ? ", " : "", value);
        found++;
    }
    if (found < 2) *list = 0;
}

static void warn_of(FILE *out, const Comparison *c, const char *setting, const char *what, const char *hence) {
    char list[256], text[400];
    list_values(list, sizeof list, c, setting);
    snprintf(text, sizeof text, "The runs %s (%s): %s.", what, list, hence);
    if (*list) html_paragraph(out, text);
}

/* Warnings for the reader before the figures. */
static void warnings(FILE *out, const Comparison *c, int groups) {
    char text[96];
    warn_of(out, c, "program", "are of different programs", "only what they have in common can be compared");
    warn_of(out, c, "data", "have different data", "their results cannot be compared");
    snprintf(text, sizeof text, "Only the best %d of %d are shown, to keep the page small.", groups, c->group_count);
    if (groups < c->group_count) html_paragraph(out, text);
}

static void figures(FILE *out, const Comparison *c) {
    char label[HEADING_SIZE], fastest[32], *best = NULL;
    const RunGroup *fast = NULL;
    HtmlFigure all[2];
    int count = 0;
    if (c->metric) {
        Sample result = group_result(&c->groups[0], c->metric).sample;
        best = sample_text(c->metric->decimals, &result, c->metric->unit);
        snprintf(label, sizeof label, "%s %s", c->metric->greatest ? "highest" : "lowest", c->metric->name);
        all[count++] = (HtmlFigure){best, label, c->groups[0].name};
    }
    for (int g = 0; g < c->group_count; g++) {
        double here = group_property(&c->groups[g], RUN_SPEED).mean;
        if (here > 0 && !(fast && group_property(fast, RUN_SPEED).mean >= here)) fast = &c->groups[g];
    }
    if (fast) {
        double speed = group_property(fast, RUN_SPEED).mean;
        snprintf(fastest, sizeof fastest, "%.*f", run_log_speed_decimals(speed), speed);
        all[count++] = (HtmlFigure){fastest, "most images/s", fast->name};
    }
    html_figures(out, all, count);
    free(best);
}

/* A choice of axes shows the charts behind it; the names of a wide table stay while it is scrolled. */
static const char page_rules[] =
    "<style>.axis{display:none}.axes>label{margin-right:1.5em;white-space:nowrap;line-height:2.5}\n"
    "#axis-0:checked~.axis-0,#axis-1:checked~.axis-1,#axis-2:checked~.axis-2{display:block}\n"
    ".sort :is(th,td):first-child{position:sticky;left:0;background:var(--card);min-width:min(16em,34vw);"
    "max-width:30ch}</style>\n";

static char *page_of(const Comparison *c, Detail detail, size_t *size) {
    TextStream text;
    char title[64], subtitle[64];
    const char *what = c->group_count == 1 ? "group" : "groups";
    TimeUnit unit = time_unit(c);
    FILE *out = text_open(&text);
    snprintf(title, sizeof title, "%d %s compared", c->run_count, c->run_count == 1 ? "run" : "runs");
    snprintf(subtitle, sizeof subtitle, "%d %s; the runs of a group differ only in their seed", c->group_count, what);
    html_begin(out, &(HtmlPage){.title = title, .subtitle = c->group_count < c->run_count ? subtitle : NULL});
    fputs(page_rules, out);
    warnings(out, c, detail.groups);
    figures(out, c);
    results(out, c, detail.groups, unit);
    curves(out, c, detail.points, unit);
    scatters(out, c, detail.groups);
    settings(out, c, detail.groups);
    html_end(out);
    char *page = text_close(&text, "a page that compares runs");
    *size = text.size;
    return page;
}

bool compare_write(const char *const *paths, int count, const char *path, Error *error) {
    Comparison c;
    size_t size;
    if (!comparison_read(&c, paths, count, error)) return false;
    Detail detail = {MOST_POINTS, c.group_count};
    char *page = page_of(&c, detail, &size);
    while (size > REPORT_BYTES && (detail.points > FEWEST_POINTS || detail.groups > 1)) {
        if (detail.points > FEWEST_POINTS) detail.points /= 2;
        else detail.groups = (detail.groups + 1) / 2;
        free(page);
        page = page_of(&c, detail, &size);
    }
    bool ok = file_write(path, page, size, error) || refuse(error, "%s: %s", path, error->text);
    free(page);
    comparison_free(&c);
    return ok;
}
