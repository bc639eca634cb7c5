#include "data/sets/labelled.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/die.h"
#include "core/files.h"
#include "data/images/image.h"

/* == The table ==================================================================================================== */

enum { FIELDS = 3, MOST_BYTES = 1 << 30 };

/* Reads a field, ends it with a 0 and returns the start of the next one: after a comma, or NULL at the end of the line;
 * *line then points to the next line. */
static char *field(char **at, char **line, char *end, char **value, Error *error) {
    char *from = *at, *to = *at;
    bool quoted = from < end && *from == '"';
    *value = to;
    if (quoted) from++;
    for (; from < end; from++) {
        if (quoted && *from == '"' && from + 1 < end && from[1] == '"') *to++ = *from++;
        else if (quoted && *from == '"') quoted = false;
        else if (!quoted && (*from == ',' || *from == '\n')) break;
        else *to++ = *from;
    }
    if (quoted) return refuse(error, "a double quote is not closed"), NULL;
    bool more = from < end && *from == ',';
    if (to > *value && to[-1] == '\r' && !more) to--;
    *line = from < end ? from + 1 : end;
    *to = 0;
    *at = from + 1;
    return more ? *at : NULL;
}

/* The column with that name in a header, or -1. */
static int column_named(const char *name) {
    static const char *const names[][FIELDS] = {
        {"file", "label", "split"}, {"filename", "class", NULL}, {"image", NULL, NULL}, {"path", NULL, NULL}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int column = 0; column < FIELDS; column++)
            if (names[i][column] && !strcasecmp(name, names[i][column])) return column;
    return -1;
}

/* The first line is a header if one of its fields names the column of files; if so, sets the position of each
 * column. */
static bool read_header(int place[FIELDS], char *const fields[FIELDS], int count, Error *error) {
    int at[FIELDS] = {-1, -1, -1};
    bool header = false;
    for (int i = 0; i < count; i++) header |= column_named(fields[i]) == 0;
    for (int i = 0; header && i < count; i++) {
        int column = column_named(fields[i]);
        if (column < 0 || at[column] >= 0)
            return refuse(error, "the column '%.40s' is %s: expected file, label and, if you like, split", fields[i],
                          column < 0 ? "unknown" : "there twice"), true;
        at[column] = i;
    }
    if (header && at[1] < 0) return refuse(error, "the header has no column label"), true;
    if (header) memcpy(place, at, sizeof at);
    return header;
}

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static bool split_named(const char *name, uint8_t *split, Error *error) {
    static const char *const names[] = {"train", "val", "test"};
    for (int i = 0; i < LABELLED_SPLITS; i++)
        if (!strcmp(name, names[i])) return *split = (uint8_t)i, true;
    if (!strcmp(name, "valid")) return *split = LABELLED_VALIDATION, true;
    if (!*name) return *split = LABELLED_TRAIN, true;
    return refuse(error, "the split '%.40s' is none of train, val and test", name);
}

/* Is a path absolute, or does it leave the folder? */
static bool leaves_folder(const char *path) {
    if (*path == '/') return true;
    for (const char *part = path; part; part = strchr(part, '/')) {
        part += *part == '/';
        if (part[0] == '.' && part[1] == '.' && (!part[2] || part[2] == '/')) return true;
    }
    return false;
}

/* Leaves out ./ and second slashes, so that a file has one name. */
static void tidy(char *path) {
    char *to = path;
    for (const char *from = path; *from;) {
        bool begins = to == path || to[-1] == '/';
        if (begins && from[0] == '.' && from[1] == '/') from += 2;
        else if (begins && *from == '/') from++;
        else *to++ = *from++;
    }
    *to = 0;
}

static bool add_row(LabelTable *t, char *const row[FIELDS], const int place[FIELDS], int count, int line,
                    Error *error) {
    if (count <= place[0] || count <= place[1])
        return refuse(error, "expected a file and a label, separated by a comma");
    char *file = row[place[0]], *label = row[place[1]];
    if (leaves_folder(file)) return refuse(error, "%.200s: expected a path below the folder", file);
    tidy(file);
    if (!*file) return refuse(error, "the file has no name");
    if (!*label) return refuse(error, "%.200s has no label", file);
    bool splits = place[2] >= 0 && count > place[2];
    if (!split_named(splits ? row[place[2]] : "", &t->split[t->count], error)) return false;
    t->file[t->count] = file;
    t->classes[t->count] = label; /* at first in the order of the lines */
    t->line[t->count++] = line;
    return true;
}

/* A quoted field may hold ends of lines. */
static int lines_in(char *const fields[FIELDS], int count) {
    int lines = 1;
    for (int i = 0; i < count; i++)
        for (const char *at = fields[i]; (at = strchr(at, '\n')); at++) lines++;
    return lines;
}

static bool read_rows(LabelTable *t, char *end, Error *error) {
    int line = 1, place[FIELDS] = {0, 1, 2};
    char *at = t->text;
    if (end - at >= 3 && !memcmp(at, "\xef\xbb\xbf", 3)) at += 3;
    while (at < end) {
        char *fields[FIELDS];
        char *next = at, *begin = at;
        int count = 0;
        Error why = {.text = ""};
        for (; next && count < FIELDS; count++) next = field(&begin, &at, end, &fields[count], &why);
        if (next) refuse(&why, "more than %d fields", FIELDS);
        bool empty = count == 1 && !*fields[0];
        if (!*why.text && !empty && !(line == 1 && read_header(place, fields, count, &why)))
            add_row(t, fields, place, count, line, &why);
        if (*why.text) return refuse(error, "line %d: %.400s", line, why.text);
        line += lines_in(fields, count);
    }
    return t->count || refuse(error, "no image in it: expected lines of a file and its label, separated by a comma");
}

/* Two lines for one file are a mistake. */
static bool check_files(const LabelTable *t, Error *error) {
    const char **sorted = xcalloc(t->count, sizeof *sorted, "the names of images");
    memcpy(sorted, t->file, t->count * sizeof *sorted);
    qsort(sorted, t->count, sizeof *sorted, by_text);
    const char *twice = NULL;
    for (size_t i = 1; i < t->count && !twice; i++)
        if (!strcmp(sorted[i], sorted[i - 1])) twice = sorted[i];
    free(sorted);
    if (!twice) return true;
    int lines[2], found = 0;
    for (size_t i = 0; i < t->count && found < 2; i++)
        if (!strcmp(t->file[i], twice)) lines[found++] = t->line[i];
    return refuse(error, "lines %d and %d: %.200s has two", lines[0], lines[1], twice);
}

static void number_classes(LabelTable *t) {
    const char **of_line = xcalloc(t->count, sizeof *of_line, "classes");
    memcpy(of_line, t->classes, t->count * sizeof *of_line);
    qsort(t->classes, t->count, sizeof *t->classes, by_text);
    for (size_t i = 0; i < t->count; i++)
        if (!t->class_count || strcmp(t->classes[t->class_count - 1], t->classes[i])) t->classes[t->class_count++] = t->classes[i];
    for (size_t i = 0; i < t->count; i++) {
        const char **found = bsearch(&of_line[i], t->classes, (size_t)t->class_count, sizeof *t->classes, by_text);
        t->label[i] = (int)(found - t->classes);
    }
    free(of_line);
}

bool label_table_parse(LabelTable *t, char *text, size_t size, Error *error) {
    size_t lines = 1;
    for (size_t i = 0; i < size; i++) lines += text[i] == '\n';
    *t = (LabelTable){.text = text};
    t->file = xcalloc(lines, sizeof *t->file, "the names of images");
    t->classes = xcalloc(lines, sizeof *t->classes, "classes");
    t->label = xcalloc(lines, sizeof *t->label, "labels");
    t->line = xcalloc(lines, sizeof *t->line, "labels");
    t->split = xcalloc(lines, 1, "labels");
    if (memchr(text, 0, size)) return refuse(error, "it holds a zero byte: not a CSV file");
    if (!read_rows(t, text + size, error) || !check_files(t, error)) return false;
    number_classes(t);
    return true;
}

void label_table_free(LabelTable *t) {
    free(t->text);
    free(t->file);
    free(t->classes);
    free(t->label);
    free(t->line);
    free(t->split);
    *t = (LabelTable){.count = 0};
}

static void table_read(LabelTable *t, const char *csv) {
    Error error;
    uint8_t *bytes;
    size_t size;
    if (!file_read(csv, MOST_BYTES, &bytes, &size, &error)) die("%s: %s", csv, error.text);
    char *text = xgrow(bytes, size + 1, (size_t[]){size}, 1, "labels");
    if (!label_table_parse(t, text, size, &error)) die("%s: %s", csv, error.text);
}

/* == The data set ================================================================================================= */

typedef struct {
    LabelTable table;
    uint32_t *row; /* [count] of the images of this split */
    char root[DATASET_PATH];
} Labelled;

static void path_of(const Labelled *l, size_t index, char path[2 * DATASET_PATH]) {
    snprintf(path, 2 * DATASET_PATH, "%s/%.4000s", l->root, l->table.file[l->row[index]]);
}

static int labelled_label(const Dataset *d, size_t index) {
    const Labelled *l = d->state;
    return l->table.label[l->row[index]];
}

static bool labelled_read(const Dataset *d, size_t index, SampleBuffer *buffer, Sample *sample, Error *error) {
    char path[2 * DATASET_PATH];
    path_of(d->state, index, path);
    *sample = (Sample){.label = labelled_label(d, index)};
    bool ok = file_read_again(path, IMAGE_MAX_BYTES, &buffer->bytes, &buffer->room, &sample->size, error);
    sample->bytes = buffer->bytes;
    return ok;
}

static void labelled_name(const Dataset *d, size_t index, char *text, size_t size) {
    char path[2 * DATASET_PATH];
    path_of(d->state, index, path);
    snprintf(text, size, "%s", path);
}

/* Of the path in the table, which is the same wherever the folder is. */
static void labelled_key(const Dataset *d, size_t index, char *text, size_t size) {
    const Labelled *l = d->state;
    snprintf(text, size, "%s", dataset_last_parts(l->table.file[l->row[index]]));
}

static void labelled_close(Dataset *d) {
    Labelled *l = d->state;
    label_table_free(&l->table);
    free(l->row);
    free(l);
}

static size_t rows_of(const LabelTable *t, LabelledSplit split) {
    size_t rows = 0;
    for (size_t i = 0; i < t->count; i++) rows += t->split[i] == split;
    return rows;
}

void labelled_describe(Dataset *d, const char *folder, const char *csv) {
    LabelTable table;
    dataset_of_photographs(d, folder, "images");
    table_read(&table, csv);
    d->classes = table.class_count;
    label_table_free(&table);
}

DatasetSplits labelled_splits(const char *csv) {
    LabelTable table;
    table_read(&table, csv);
    DatasetSplits splits = {true, rows_of(&table, LABELLED_VALIDATION) > 0, rows_of(&table, LABELLED_TEST) > 0};
    label_table_free(&table);
    return splits;
}

void labelled_open(Dataset *d, const char *folder, const char *csv, LabelledSplit split, size_t limit) {
    static const char *const names[] = {"train", "val or test", "test"};
    Labelled *l = xcalloc(1, sizeof *l, "labels");
    LabelTable *t = &l->table;
    char path[2 * DATASET_PATH];
    snprintf(l->root, sizeof l->root, "%s", folder);
    table_read(t, csv);
    if (split == LABELLED_VALIDATION && !rows_of(t, split)) split = LABELLED_TEST;
    size_t rows = rows_of(t, split), count = dataset_limited(rows, limit);
    if (!rows) die("%s: no line with the split %s", csv, names[split]);
    dataset_of_photographs(d, folder, "images");
    l->row = xcalloc(rows, sizeof *l->row, "labels");
    for (size_t i = 0, at = 0; i < t->count; i++)
        if (t->split[i] == split) l->row[at++] = (uint32_t)i;
    for (size_t i = 0; i < count; i++) l->row[i] = l->row[i * rows / count];
    for (size_t i = 0; i < count; i++) {
        path_of(l, i, path);
        if (!file_is_regular(path))
            die("%s: line %d: %s: %s", csv, t->line[l->row[i]], path,
                file_exists(path) ? "not a file" : "no such file");
    }
    d->classes = t->class_count;
    d->class_names = t->classes;
    d->count = count;
    d->read = labelled_read;
    d->label = labelled_label;
    d->describe = labelled_name;
    d->key = labelled_key;
    d->close = labelled_close;
    d->state = l;
}
