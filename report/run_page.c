#include "report/run_page.h"

#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base64.h"
#include "core/die.h"
#include "core/files.h"
#include "core/progress.h"
#include "core/text.h"
#include "core/text_stream.h"
#include "report/html.h"
#include "report/run_log.h"
#include "report/svg.h"

enum { PATH_SIZE = 4096, NAME_SIZE = 256, TEXT_SIZE = 640, CONFIG_BYTES = 1 << 20, MOST_LINES = 12 };

/* A line of config.ini.  initial and help are NULL if the program does not have the setting. */
typedef struct {
    char *name, *value, *initial;
    const char *help;
    bool differs;
} Setting;

typedef struct {
    char name[NAME_SIZE]; /* the folder's */
    const Facts *facts;
    int reload_s;
    RunLog log;
    double *epochs; /* [log.rows]: epochs done at a row, or steps if the log has no epochs */
    Setting *settings;
    size_t setting_count, setting_room;
    bool known; /* the settings have defaults */
    int pictures_left, parts_left;       /* numbers that may still be written; parts are charts, tables and the like */
    int pictures_left_out, parts_left_out;
} Page;

/* == Numbers as text ============================================================================================== */

/* "5.72 M" */
static void short_number(char *text, size_t size, double x) {
    static const char *const units[] = {"", " k", " M", " G", " T"};
    int u = 0;
    while (x >= 999.5 && u < 4) {
        x /= 1000;
        u++;
    }
    snprintf(text, size, "%.3g%s", x, units[u]);
}

static void bytes_text(char *text, size_t size, double bytes) {
    bool large = bytes >= 0x1p30;
    snprintf(text, size, "%.*f %s", large ? 2 : 0, bytes / (large ? 0x1p30 : 0x1p20), large ? "GiB" : "MiB");
}

static void time_text(char *text, size_t size, double seconds) {
    bool is_time = fabs(seconds) < 0x1p40; /* false for NaN */
    time_t moment = is_time ? (time_t)seconds : 0;
    struct tm parts;
    if (!is_time || !localtime_r(&moment, &parts) || !strftime(text, size, "%Y-%m-%d %H:%M", &parts))
        snprintf(text, size, "?");
}

/* == What a page is made of ======================================================================================= */

static void add_setting(Page *page, const Setting *setting) {
    page->settings = xgrow(page->settings, page->setting_count + 1, &page->setting_room, sizeof *setting, "settings");
    page->settings[page->setting_count++] = *setting;
}

/* The settings as those of the program; false: the text has other settings than `like`. */
static bool known_settings(Page *page, const Config *like, const char *text, size_t size) {
    Config given, initial;
    Error error;
    config_init_like(&given, like);
    config_init_like(&initial, like);
    page->known = config_try_text(&given, text, size, "config.ini", &error);
    for (int i = 0; i < given.count && page->known; i++) {
        const char *name = config_name(&given, i);
        if (!config_origin(&given, name)) continue;
        Setting s = {.name = xstrdup(name), .value = config_value(&given, i), .initial = config_value(&initial, i),
                     .help = config_entry(&given, i)->help};
        s.differs = strcmp(s.value, s.initial) && strcmp(name, "run_dir");
        add_setting(page, &s);
    }
    config_free(&given);
    config_free(&initial);
    return page->known;
}

/* The settings of a config.ini of an unknown program, in its order. */
static void unknown_settings(Page *page, char *text) {
    for (char *name, *value; text_next_setting(&text, &name, &value);)
        if (value) add_setting(page, &(Setting){.name = xstrdup(name), .value = xstrdup(value)});
}

static void read_settings(Page *page, const char *folder, const Config *like) {
    char path[PATH_SIZE];
    uint8_t *bytes;
    size_t size;
    Error error;
    path_join(path, sizeof path, folder, "config.ini");
    if (!file_read(path, CONFIG_BYTES, &bytes, &size, &error)) return;
    char *text = xcalloc(size + 1, 1, "settings");
    memcpy(text, bytes, size);
    free(bytes);
    if (!like || !known_settings(page, like, text, size)) unknown_settings(page, text);
    free(text);
}

/* Reads the existing files; a folder with neither a log nor facts is not that of a run. */
static bool page_open(Page *page, const char *folder, const Facts *facts, const Config *like, int reload_s,
                      Error *error) {
    char path[PATH_SIZE];
    *page = (Page){.facts = facts, .reload_s = reload_s};
    text_name_path(page->name, sizeof page->name, folder, "run");
    path_join(path, sizeof path, folder, "log.csv");
    bool there = file_exists(path);
    if (there && !run_log_read(&page->log, path, error)) return refuse(error, "%s: %s", path, error->text);
    if (there && !run_log_column(&page->log, "step"))
        return refuse(error, "%s: no column named step: is it the log of a run?", path);
    if (!there && !facts->all) return refuse(error, "%s: neither log.csv nor report.json is in this folder", folder);
    page->epochs = run_log_epochs(&page->log, facts_number(facts, "batches"));
    read_settings(page, folder, like);
    return true;
}

static void page_close(Page *page) {
    for (size_t i = 0; i < page->setting_count; i++) {
        free(page->settings[i].name);
        free(page->settings[i].value);
        free(page->settings[i].initial);
    }
    free(page->settings);
    free(page->epochs);
    run_log_free(&page->log);
}

/* == Results ====================================================================================================== */

/* A column with a metric of the model. */
typedef struct {
    const char *column, *name, *format;
    bool least; /* the best value is the least one */
} Score;

static const Score scores[] = {
    {"top1", "top-1", "%.2f %%", false},
    {"ap", "AP", "%.4f", false},
    {"mask_ap", "mask AP", "%.4f", false},
    {"miou", "mean IoU", "%.4f", false},
    {"bits", "bits per byte", "%.4f", true},
};
enum { SCORES = sizeof scores / sizeof *scores, MOST_FIGURES = 2 * SCORES + 6 };

typedef struct {
    char value[64], label[64], note[64];
} Figure;

typedef struct {
    Figure at[MOST_FIGURES];
    int count;
} Figures;

static Figure *next_figure(Figures *figures, const char *label) {
    Figure *f = &figures->at[figures->count++];
    snprintf(f->label, sizeof f->label, "%s", label);
    return f;
}

static void epoch_note(Figure *f, const Page *page, int row) {
    const double *epoch = run_log_column(&page->log, "epoch");
    if (epoch && isfinite(epoch[row])) snprintf(f->note, sizeof f->note, "epoch %.0f", epoch[row]);
}

static void add_score(Figures *figures, const Page *page, const Score *score) {
    char label[64];
    const double *values = run_log_column(&page->log, score->column);
    int best, last = page->log.rows - 1;
    double value = run_log_best(&page->log, score->column, !score->least, &best);
    if (best < 0) return;
    while (!isfinite(values[last])) last--;
    snprintf(label, sizeof label, "best %s", score->name);
    Figure *f = next_figure(figures, label);
    snprintf(f->value, sizeof f->value, score->format, value);
    epoch_note(f, page, best);
    if (last == best) return;
    snprintf(label, sizeof label, "last %s", score->name);
    f = next_figure(figures, label);
    snprintf(f->value, sizeof f->value, score->format, values[last]);
    epoch_note(f, page, last);
}

/* "images", or the other samples of this run's batches. */
static const char *unit_of(const Page *page) {
    const char *unit = facts_get(page->facts, "unit");
    return unit ? unit : "images";
}

static void add_figures(Figures *figures, const Page *page) {
    double loss = run_log_last(&page->log, "loss"), validation = run_log_last(&page->log, "val_loss");
    double speed = run_log_last(&page->log, "images_per_s"), seconds = run_log_last(&page->log, "wall_s");
    double bytes = run_log_last(&page->log, "peak_bytes");
    double parameters = facts_number(page->facts, "parameters"), macs = facts_number(page->facts, "macs");
    char label[64];
    Figure *f;
    for (int i = 0; i < SCORES; i++) add_score(figures, page, &scores[i]);
    if (isfinite(loss)) {
        f = next_figure(figures, "training loss");
        snprintf(f->value, sizeof f->value, "%.4f", loss);
        if (isfinite(validation)) snprintf(f->note, sizeof f->note, "validation %.4f", validation);
    }
    if (isfinite(speed)) {
        snprintf(label, sizeof label, "%.50s per second", unit_of(page));
        f = next_figure(figures, label);
        snprintf(f->value, sizeof f->value, "%.*f", run_log_speed_decimals(speed), speed);
    }
    if (isfinite(seconds)) duration_text((f = next_figure(figures, "wall time"))->value, sizeof f->value, seconds);
    if (isfinite(parameters))
        short_number((f = next_figure(figures, "parameters"))->value, sizeof f->value, parameters);
    if (isfinite(macs)) short_number((f = next_figure(figures, "multiply-adds"))->value, sizeof f->value, macs);
    if (isfinite(bytes)) bytes_text((f = next_figure(figures, "memory"))->value, sizeof f->value, bytes);
}

static void put_figures(FILE *out, const Page *page) {
    static const Figures none;
    Figures figures = none;
    HtmlFigure shown[MOST_FIGURES];
    add_figures(&figures, page);
    for (int i = 0; i < figures.count; i++) {
        const Figure *f = &figures.at[i];
        shown[i] = (HtmlFigure){f->value, f->label, *f->note ? f->note : NULL};
    }
    if (figures.count) html_figures(out, shown, figures.count);
}

/* == Curves ======================================================================================================= */

/* A chart of up to five columns of the log. */
typedef struct {
    const char *title, *unit;
    double scale;
    bool log_y, from_zero;
    struct {
        const char *column, *name;
        bool noisy; /* if it has many values, their mean is a line, and the values are faint behind it */
    } lines[5];
} Curves;

static const Curves all_curves[] = {
    {"Loss", "", 1, .lines = {{"loss", "training", true}, {"val_loss", "validation", false}}},
    {"Accuracy", "%", 1, .lines = {{"top1", "top-1", false}, {"top5", "top-5", false}}},
    {"Average precision of boxes", "", 1, .from_zero = true,
     .lines = {{"ap", "AP", false}, {"ap50", "AP50", false}, {"ap75", "AP75", false}}},
    {"Average precision of masks", "", 1, .from_zero = true,
     .lines = {{"mask_ap", "AP", false}, {"mask_ap50", "AP50", false}, {"mask_ap75", "AP75", false}}},
    {"Average precision by size", "", 1, .from_zero = true,
     .lines = {{"ap_small", "small", false}, {"ap_medium", "medium", false}, {"ap_large", "large", false}}},
    {"Mean IoU and accuracy", "", 1, .from_zero = true,
     .lines = {{"miou", "mean IoU", false}, {"macc", "accuracy of classes", false},
               {"aacc", "accuracy of pixels", false}}},
    {"Bits per byte", "", 1, .lines = {{"bits", "validation", false}}},
    {"Parts of the loss", "", 1,
     .lines = {{"objectness", "objectness", true}, {"rpn_box", "proposals", true}, {"class", "class", true},
               {"box", "box", true}, {"mask", "mask", true}}},
    {"Parts of the last layer's loss", "", 1,
     .lines = {{"focal", "focal", true}, {"l1", "L1", true}, {"giou", "GIoU", true}}},
    {"Boxes with a wrong class", "%", 1, .lines = {{"class_error", "class error", true}}},
    {"Divergence from weights that halve from ring to ring", "nats", 1,
     .lines = {{"jsd", "Jensen-Shannon divergence", false}}},
    {"Sticks broken to the end", "%", 100, .from_zero = true,
     .lines = {{"tau_ended", "ended by tau", false}, {"tau_equal", "after the first", false}}},
    {"Learning rate", "", 1, .from_zero = true, .lines = {{"lr", "learning rate", false}}},
    {"Norm of the gradient", "", 1, .log_y = true, .lines = {{"grad_norm", "before clipping", true}}},
    {"Speed", "per second", 1, .from_zero = true, .lines = {{"images_per_s", "training", false}}},
    {"Waiting for data", "%", 100, .from_zero = true, .lines = {{"stall", "share of the time", false}}},
    {"Memory", "MiB", 1 / 0x1p20, .from_zero = true, .lines = {{"peak_bytes", "most so far", false}}},
    {"Time of an evaluated image", "s", 1, .from_zero = true, .lines = {{"infer_s", "seconds", false}}},
};
enum { CURVES = sizeof all_curves / sizeof *all_curves };

/* The existing values of a column, and their rows. */
typedef struct {
    int count;
    double *x, *y;
} Points;

static Points points_of(const Page *page, const char *column, double scale) {
    const double *values = run_log_column(&page->log, column);
    size_t room = (size_t)page->log.rows + 1;
    Points p = {0, xcalloc(room, sizeof *p.x, "a curve"), xcalloc(room, sizeof *p.y, "a curve")};
    for (int r = 0; values && r < page->log.rows; r++) {
        if (!isfinite(values[r]) || !isfinite(page->epochs[r])) continue;
        p.x[p.count] = page->epochs[r];
        p.y[p.count++] = values[r] * scale;
    }
    return p;
}

/* Means of the `width` values around each one; at the ends, of the existing ones. */
static Points smoothed(const Points *raw, int width) {
    size_t count = (size_t)raw->count;
    Points p = {raw->count, xcalloc(count, sizeof *p.x, "a curve"), xcalloc(count, sizeof *p.y, "a curve")};
    double *sums = xcalloc(count + 1, sizeof *sums, "a curve"); /* of the values before each one */
    for (int i = 0; i < raw->count; i++) sums[i + 1] = sums[i] + raw->y[i];
    for (int i = 0; i < raw->count; i++) {
        int first = i > width / 2 ? i - width / 2 : 0;
        int end = i + width / 2 < raw->count ? i + width / 2 + 1 : raw->count;
        p.x[i] = raw->x[i];
        p.y[i] = (sums[end] - sums[first]) / (end - first);
    }
    free(sums);
    return p;
}

typedef struct {
    ChartLine lines[MOST_LINES];
    Points points[MOST_LINES];
    char names[MOST_LINES][64];
    int count;
} Drawing;

static ChartLine *add_line(Drawing *d, Points points, const char *name, int colour) {
    int i = d->count++;
    d->points[i] = points;
    snprintf(d->names[i], sizeof d->names[i], "%s", name);
    d->lines[i] = (ChartLine){.name = d->names[i], .count = points.count, .x = points.x, .y = points.y,
                              .colour = colour, .marked = points.count <= 30};
    return &d->lines[i];
}

static void add_curve(Drawing *d, Points points, const char *name, bool noisy, int colour) {
    enum { MANY = 100, PIECES = 20 };
    char mean[64];
    int width = points.count / PIECES | 1;
    ChartLine *line = add_line(d, points, name, colour);
    if (!noisy || points.count < MANY) return;
    line->faint = true;
    snprintf(mean, sizeof mean, "%.30s, mean of %d rows", name, width);
    add_line(d, smoothed(&points, width), mean, colour);
}

/* The levels of the chart's columns, for comparison with their values. */
static int levels_of(const Page *page, const Curves *c, double *levels, const char **names, int most) {
    const json_t *list = json_object_get(page->facts->all, "levels");
    int count = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *level = json_array_get(list, i);
        const char *column = json_string_value(json_object_get(level, "column"));
        for (int k = 0; k < 5 && c->lines[k].column && count < most; k++) {
            if (strcmp(column, c->lines[k].column)) continue;
            levels[count] = json_number_value(json_object_get(level, "value")) * c->scale;
            names[count++] = json_string_value(json_object_get(level, "name"));
        }
    }
    return count;
}

static bool may_put_part(Page *page) {
    bool may = page->parts_left > 0;
    page->parts_left -= may;
    page->parts_left_out += !may;
    return may;
}

static void put_curves(FILE *out, Page *page, const Curves *c) {
    enum { MOST_LEVELS = 8 };
    double levels[MOST_LEVELS];
    const char *level_names[MOST_LEVELS];
    static const Drawing none;
    Drawing d = none;
    for (int i = 0; i < 5 && c->lines[i].column; i++) {
        Points points = points_of(page, c->lines[i].column, c->scale);
        add_curve(&d, points, c->lines[i].name, c->lines[i].noisy, i);
    }
    bool any = false;
    for (int i = 0; i < d.count; i++) any |= d.points[i].count > 0;
    const char *over = run_log_column(&page->log, "epoch") ? "epoch" : "step";
    if (any && may_put_part(page))
        svg_lines(out, &(LineChart){.title = c->title, .x_label = over, .y_label = c->unit, .unit = c->unit,
                                    .lines = d.lines, .count = d.count, .log_y = c->log_y, .from_zero = c->from_zero,
                                    .levels = levels, .level_names = level_names,
                                    .level_count = levels_of(page, c, levels, level_names, MOST_LEVELS)});
    for (int i = 0; i < d.count; i++) {
        free(d.points[i].x);
        free(d.points[i].y);
    }
}

/* Is the column in one of the charts above, or their horizontal axis? */
static bool is_drawn(const char *column) {
    for (int i = 0; i < CURVES; i++)
        for (int k = 0; k < 5 && all_curves[i].lines[k].column; k++)
            if (!strcmp(column, all_curves[i].lines[k].column)) return true;
    return text_lists("step epoch wall_s", column);
}

static void put_all_curves(FILE *out, Page *page) {
    if (!page->log.rows) return;
    html_section(out, "curves", "Curves");
    html_grid_begin(out);
    for (int i = 0; i < CURVES; i++) put_curves(out, page, &all_curves[i]);
    for (int c = 0; c < page->log.columns; c++) {
        const char *name = page->log.names[c];
        if (!is_drawn(name)) put_curves(out, page, &(Curves){name, "", 1, .lines = {{name, name, true}}});
    }
    html_grid_end(out);
}

/* == Model, settings and machine ================================================================================== */

static const char **texts_of(const json_t *list) {
    size_t count = json_array_size(list);
    const char **texts = xcalloc(count + 1, sizeof *texts, "the texts of a page");
    for (size_t i = 0; i < count; i++) texts[i] = json_string_value(json_array_get(list, i));
    return texts;
}

static void put_table(FILE *out, const json_t *section) {
    const json_t *list = json_object_get(section, "names"), *rows = json_object_get(section, "rows");
    size_t columns = json_array_size(list), height = json_array_size(rows);
    const char **names = texts_of(list), **cells = xcalloc(height * columns + 1, sizeof *cells, "a table");
    for (size_t i = 0; i < height * columns; i++)
        cells[i] = json_string_value(json_array_get(json_array_get(rows, i / columns), i % columns));
    html_table(out, &(HtmlTable){.rows = (int)height, .columns = (int)columns, .names = names, .cells = cells,
                                 .sortable = height > 2});
    free(names);
    free(cells);
}

static const json_t *sections_of(const Page *page) { return json_object_get(page->facts->all, "sections"); }

static bool is_model(const json_t *section) {
    return !strcmp(json_string_value(json_object_get(section, "id")), "model") &&
           !strcmp(json_string_value(json_object_get(section, "kind")), "table");
}

static void put_model(FILE *out, Page *page) {
    const char *sentence = facts_get(page->facts, "sentence");
    const json_t *sections = sections_of(page), *table = NULL;
    for (size_t i = 0; i < json_array_size(sections); i++)
        if (is_model(json_array_get(sections, i))) table = json_array_get(sections, i);
    if (!sentence && !table) return;
    html_section(out, "model", "Model");
    if (sentence) html_paragraph(out, sentence);
    if (table && may_put_part(page)) put_table(out, table);
}

static void put_settings_table(FILE *out, const Page *page, bool differ) {
    static const char *const names[] = {"setting", "value", "default"};
    int columns = page->known ? 3 : 2, rows = 0;
    const char **cells = xcalloc(3 * page->setting_count + 1, sizeof *cells, "a table");
    const char **meanings = xcalloc(page->setting_count + 1, sizeof *meanings, "a table");
    for (size_t i = 0; i < page->setting_count; i++) {
        const Setting *s = &page->settings[i];
        const char *row[] = {s->name, *s->value ? s->value : "none", s->initial && *s->initial ? s->initial : "none"};
        if (s->differs != differ) continue;
        memcpy(cells + columns * rows, row, (size_t)columns * sizeof *row);
        meanings[rows++] = s->help;
    }
    html_table(out, &(HtmlTable){.rows = rows, .columns = columns, .names = names, .cells = cells, .titles = meanings});
    free(cells);
    free(meanings);
}

static void put_settings(FILE *out, const Page *page) {
    char text[TEXT_SIZE];
    const char *program = facts_get(page->facts, "program");
    size_t differ = 0;
    if (!page->setting_count) return;
    for (size_t i = 0; i < page->setting_count; i++) differ += page->settings[i].differs;
    html_section(out, "settings", "Settings");
    if (!page->known) {
        snprintf(text, sizeof text, "%.60s --report shows which of them differ from the defaults.",
                 program ? program : "The training program's");
        html_paragraph(out, text);
    } else if (differ) {
        put_settings_table(out, page, true);
    } else {
        html_paragraph(out, "All settings have their defaults.");
    }
    if (differ == page->setting_count) return;
    snprintf(text, sizeof text, page->known ? "The %zu others have their defaults" : "All %zu settings",
             page->setting_count - differ);
    html_fold_begin(out, text);
    put_settings_table(out, page, false);
    html_fold_end(out);
}

/* The known facts about the machine, the program and the time. */
static const struct {
    const char *label, *fact;
    enum { A_TEXT, A_NUMBER, A_MOMENT } kind;
} machine_facts[] = {
    {"device", "device", A_TEXT},       {"threads", "threads", A_NUMBER},  {"ranks", "ranks", A_NUMBER},
    {"host", "host", A_TEXT},           {"precision", "precision", A_TEXT}, {"version", "version", A_TEXT},
    {"commit", "commit", A_TEXT},       {"run began", "began", A_MOMENT},  {"page was written", "written", A_MOMENT},
};
enum { MACHINE_FACTS = sizeof machine_facts / sizeof *machine_facts };

static void put_machine(FILE *out, const Page *page) {
    const char *cells[2 * MACHINE_FACTS], *resume = facts_get(page->facts, "resume");
    char texts[MACHINE_FACTS][64];
    int rows = 0;
    for (int i = 0; i < MACHINE_FACTS; i++) {
        const char *text = facts_get(page->facts, machine_facts[i].fact);
        double value = facts_number(page->facts, machine_facts[i].fact);
        if (isfinite(value) && machine_facts[i].kind == A_MOMENT) time_text(texts[i], sizeof texts[i], value);
        else snprintf(texts[i], sizeof texts[i], "%.0f", value);
        if (!text && !isfinite(value)) continue;
        cells[2 * rows] = machine_facts[i].label;
        cells[2 * rows++ + 1] = text ? text : texts[i];
    }
    if (!rows && !resume) return;
    html_section(out, "machine", "Machine");
    if (rows) html_table(out, &(HtmlTable){.rows = rows, .columns = 2, .cells = cells});
    if (resume) html_paragraph(out, "This command continues the run:");
    if (resume) html_command(out, resume);
}

/* == The sections of the facts ==================================================================================== */

static double *numbers_of(const json_t *list) {
    size_t count = json_array_size(list);
    double *numbers = xcalloc(count + 1, sizeof *numbers, "the numbers of a page");
    for (size_t i = 0; i < count; i++) numbers[i] = json_number_value(json_array_get(list, i));
    return numbers;
}

static const char *text_of(const json_t *section, const char *key) {
    const char *text = json_string_value(json_object_get(section, key));
    return text ? text : "";
}

static void put_heat(FILE *out, const json_t *section) {
    const json_t *row_list = json_object_get(section, "row_names"), *list = json_object_get(section, "column_names");
    const char **row_names = texts_of(row_list), **column_names = texts_of(list);
    double *values = numbers_of(json_object_get(section, "values"));
    svg_heat(out, &(HeatMap){.title = "", .row_label = text_of(section, "row_label"),
                             .column_label = text_of(section, "column_label"), .values = values,
                             .rows = (int)json_integer_value(json_object_get(section, "rows")),
                             .columns = (int)json_integer_value(json_object_get(section, "columns")),
                             .row_names = json_is_array(row_list) ? row_names : NULL,
                             .column_names = json_is_array(list) ? column_names : NULL});
    free(row_names);
    free(column_names);
    free(values);
}

static void put_bars(FILE *out, const json_t *section) {
    const json_t *list = json_object_get(section, "names");
    const char **names = texts_of(list);
    double *values = numbers_of(json_object_get(section, "values"));
    svg_bars(out, &(BarChart){.title = "", .unit = text_of(section, "unit"),
                              .count = (int)json_array_size(list), .names = names, .values = values});
    free(names);
    free(values);
}

static void put_picture(FILE *out, const json_t *picture, const char *title) {
    enum { SMALL = 64, SHOWN = 128 }; /* pixels; smaller pictures are shown larger than they are, pixel by pixel */
    const char *caption = json_string_value(json_object_get(picture, "caption"));
    int width = (int)json_integer_value(json_object_get(picture, "width"));
    size_t size = 0;
    uint8_t *bytes = base64_decode(text_of(picture, "data"), &size);
    html_picture(out, &(HtmlPicture){.type = text_of(picture, "type"), .bytes = bytes, .size = size,
                                     .caption = caption, .alt = caption ? caption : title,
                                     .width = width <= SMALL ? SHOWN : 0, .pixelated = width <= SMALL});
    free(bytes);
}

static void put_pictures(FILE *out, Page *page, const json_t *section) {
    const json_t *pictures = json_object_get(section, "pictures"), *text = json_object_get(section, "text");
    if (json_is_string(text)) html_paragraph(out, json_string_value(text));
    html_grid_begin(out);
    for (size_t i = 0; i < json_array_size(pictures); i++) {
        bool may = page->pictures_left > 0;
        page->pictures_left -= may;
        page->pictures_left_out += !may;
        if (may) put_picture(out, json_array_get(pictures, i), text_of(section, "title"));
    }
    html_grid_end(out);
}

static void put_section(FILE *out, Page *page, const json_t *section) {
    const char *kind = text_of(section, "kind");
    if (is_model(section) || !may_put_part(page)) return;
    html_section(out, text_of(section, "id"), text_of(section, "title"));
    if (!strcmp(kind, "table")) put_table(out, section);
    else if (!strcmp(kind, "heat")) put_heat(out, section);
    else if (!strcmp(kind, "bars")) put_bars(out, section);
    else put_pictures(out, page, section);
}

static void put_sections(FILE *out, Page *page) {
    const json_t *sections = sections_of(page);
    char text[TEXT_SIZE];
    for (size_t i = 0; i < json_array_size(sections); i++) put_section(out, page, json_array_get(sections, i));
    if (!page->pictures_left_out && !page->parts_left_out) return;
    snprintf(text, sizeof text,
             "To keep this page below %d kB, %d pictures and %d charts or tables were left out; they are in report.json "
             "and log.csv.",
             REPORT_BYTES / 1000, page->pictures_left_out, page->parts_left_out);
    html_paragraph(out, text);
}

/* == The page ===================================================================================================== */

/* "train_vit, running: 3 of 10 epochs, 4:05 left" */
static void state_text(char *text, size_t size, const Page *page) {
    const char *program = facts_get(page->facts, "program"), *state = facts_get(page->facts, "state");
    const char *reason = facts_get(page->facts, "reason"), *result = facts_get(page->facts, "result");
    double epoch = facts_number(page->facts, "epoch"), epochs = facts_number(page->facts, "epochs");
    double left = facts_number(page->facts, "eta_s"), written = facts_number(page->facts, "written");
    bool running = state && !strcmp(state, "running"), done = state && !strcmp(state, "done");
    char more[96] = "", moment[64];
    if (running && page->reload_s && isfinite(left)) {
        duration_text(moment, sizeof moment, left);
        snprintf(more, sizeof more, ", %s left", moment);
    } else if (running && !page->reload_s) {
        time_text(moment, sizeof moment, written);
        snprintf(more, sizeof more, ", last update at %s", moment);
    }
    const char *words = done ? result : reason;
    int used = snprintf(text, size, "%.60s%s%.20s", program ? program : "", program && state ? ", " : "",
                        state ? state : "");
    if (isfinite(epoch) && isfinite(epochs))
        used += snprintf(text + used, size - (size_t)used, ": %.6g of %.0f epochs%s", floor(100 * epoch + 0.01) / 100,
                         epochs, more);
    if (words) snprintf(text + used, size - (size_t)used, "; %.300s", words);
    text_drop_half_character(text, strlen(text));
}

static void put_page(FILE *out, Page *page) {
    char subtitle[TEXT_SIZE];
    state_text(subtitle, sizeof subtitle, page);
    html_begin(out, &(HtmlPage){page->name, *subtitle ? subtitle : NULL, page->reload_s});
    put_figures(out, page);
    put_all_curves(out, page);
    put_model(out, page);
    put_settings(out, page);
    put_machine(out, page);
    put_sections(out, page);
    html_end(out);
}

/* The page with at most `pictures` pictures and `parts` parts. */
static char *page_text(Page *page, int pictures, int parts, size_t *size) {
    TextStream stream;
    page->pictures_left = pictures;
    page->parts_left = parts;
    page->pictures_left_out = page->parts_left_out = 0;
    put_page(text_open(&stream), page);
    char *text = text_close(&stream, "a page");
    *size = stream.size;
    return text;
}

/* The page with as many pictures as REPORT_BYTES allow, or without pictures as many parts. */
static char *fitting_text(Page *page, size_t *size) {
    char *text = page_text(page, INT_MAX, INT_MAX, size);
    int pictures = INT_MAX - page->pictures_left, parts = INT_MAX - page->parts_left; /* that it has */
    for (int kind = 0; kind < 2 && *size > REPORT_BYTES; kind++) {
        int fits = 0, above = kind == 0 ? pictures : parts; /* `fits` is a number that fits, if any does; `above` does
                                                             * not */
        while (above - fits > 1) {
            int middle = fits + (above - fits) / 2;
            free(text);
            text = kind == 0 ? page_text(page, middle, INT_MAX, size) : page_text(page, 0, middle, size);
            *(*size > REPORT_BYTES ? &above : &fits) = middle;
        }
        free(text);
        text = kind == 0 ? page_text(page, fits, INT_MAX, size) : page_text(page, 0, fits, size);
    }
    return text;
}

/* The page of a folder; NULL, with `error` set, if there is none. */
static char *text_of_folder(const char *folder, const Facts *facts, const Config *like, int reload_s, size_t *size,
                            Error *error) {
    Page page;
    char *text = NULL;
    if (page_open(&page, folder, facts, like, reload_s, error)) text = fitting_text(&page, size);
    page_close(&page);
    if (!text || *size <= REPORT_BYTES) return text;
    refuse(error, "%s: its page would have %zu bytes, expected at most %d", folder, *size, REPORT_BYTES);
    free(text);
    return NULL;
}

bool run_page_write(FILE *out, const char *folder, const Facts *facts, const Config *config, int reload_s,
                    Error *error) {
    size_t size;
    char *text = text_of_folder(folder, facts, config, reload_s, &size, error);
    bool ok = text && (fwrite(text, 1, size, out) == size || refuse_errno(error, "cannot write"));
    free(text);
    return ok;
}

bool run_page_replace(const char *folder, const char *path, const Facts *facts, const Config *config, int reload_s,
                      Error *error) {
    char own[PATH_SIZE];
    size_t size;
    char *text = text_of_folder(folder, facts, config, reload_s, &size, error);
    if (!path) path_join(own, sizeof own, folder, "report.html");
    if (!path) path = own;
    bool ok = text && (file_write(path, text, size, error) || refuse(error, "%s: %s", path, error->text));
    free(text);
    return ok;
}
