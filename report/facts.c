#include "report/facts.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base64.h"
#include "core/die.h"
#include "core/files.h"
#include "core/json_make.h"
#include "core/text_stream.h"
#include "data/images/image.h"
#include "data/images/jpeg.h"

enum { FORMAT = 1, MOST_BYTES = 1 << 24, QUALITY = 85, LONGEST_LIST = 1 << 20 };

/* == Reading ====================================================================================================== */

static bool is_id(const char *text) {
    if (!text || !*text) return false;
    while (isalnum((unsigned char)*text) || *text == '-') text++;
    return !*text;
}

static bool is_size(const json_t *number) {
    return json_is_integer(number) && json_integer_value(number) >= 0 && json_integer_value(number) <= LONGEST_LIST;
}

/* Has the list `count` elements, each a text or null? */
static bool has_texts(const json_t *list, json_int_t count) {
    if (!json_is_array(list) || (json_int_t)json_array_size(list) != count) return false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_string(item) && !json_is_null(item)) return false;
    }
    return true;
}

static bool is_weight(const json_t *number) { return json_is_number(number) && json_number_value(number) >= 0; }

/* Has the list `count` elements, each a number of at least 0? */
static bool has_numbers(const json_t *list, json_int_t count) {
    if (!json_is_array(list) || (json_int_t)json_array_size(list) != count) return false;
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!is_weight(json_array_get(list, i))) return false;
    return true;
}

static bool is_table(const json_t *section) {
    const json_t *names = json_object_get(section, "names"), *rows = json_object_get(section, "rows");
    json_int_t columns = (json_int_t)json_array_size(names);
    if (columns < 1 || !has_texts(names, columns) || !json_is_array(rows)) return false;
    for (size_t i = 0; i < json_array_size(rows); i++)
        if (!has_texts(json_array_get(rows, i), columns)) return false;
    return true;
}

static bool is_heat(const json_t *section) {
    const json_t *rows = json_object_get(section, "rows"), *columns = json_object_get(section, "columns");
    const json_t *row_names = json_object_get(section, "row_names");
    const json_t *column_names = json_object_get(section, "column_names");
    if (!is_size(rows) || !is_size(columns)) return false;
    json_int_t height = json_integer_value(rows), width = json_integer_value(columns);
    return (json_is_null(row_names) || has_texts(row_names, height)) &&
           (json_is_null(column_names) || has_texts(column_names, width)) &&
           has_numbers(json_object_get(section, "values"), height * width);
}

static bool is_picture(const json_t *picture) {
    const char *type = json_string_value(json_object_get(picture, "type"));
    const char *data = json_string_value(json_object_get(picture, "data"));
    size_t size;
    if (!type || !data || (strcmp(type, "image/png") && strcmp(type, "image/jpeg"))) return false;
    if (!is_size(json_object_get(picture, "width")) || !is_size(json_object_get(picture, "height"))) return false;
    uint8_t *bytes = base64_decode(data, &size);
    free(bytes);
    return bytes;
}

static bool has_pictures(const json_t *section) {
    const json_t *pictures = json_object_get(section, "pictures");
    if (!json_is_array(pictures)) return false;
    for (size_t i = 0; i < json_array_size(pictures); i++)
        if (!is_picture(json_array_get(pictures, i))) return false;
    return true;
}

static bool is_bars(const json_t *section) {
    const json_t *names = json_object_get(section, "names");
    json_int_t count = (json_int_t)json_array_size(names);
    return has_texts(names, count) && has_numbers(json_object_get(section, "values"), count);
}

static bool is_section(const json_t *section) {
    const char *kind = json_string_value(json_object_get(section, "kind"));
    if (!kind || !is_id(json_string_value(json_object_get(section, "id"))) ||
        !json_is_string(json_object_get(section, "title")))
        return false;
    return !strcmp(kind, "table")      ? is_table(section)
           : !strcmp(kind, "heat")     ? is_heat(section)
           : !strcmp(kind, "pictures") ? has_pictures(section)
                                       : !strcmp(kind, "bars") && is_bars(section);
}

static bool is_level(const json_t *level) {
    return json_is_string(json_object_get(level, "column")) && json_is_string(json_object_get(level, "name")) &&
           json_is_number(json_object_get(level, "value"));
}

static bool check(const json_t *all, Error *error) {
    const json_t *sections = json_object_get(all, "sections"), *levels = json_object_get(all, "levels");
    const json_t *format = json_object_get(all, "report");
    if (!json_is_integer(format)) return refuse(error, "not the facts of a run");
    if (json_integer_value(format) != FORMAT)
        return refuse(error, "of another version of the program: its report is %lld, expected %d",
                      (long long)json_integer_value(format), FORMAT);
    if (!json_is_object(json_object_get(all, "values"))) return refuse(error, "values: expected an object");
    if (!json_is_array(sections)) return refuse(error, "sections: expected a list");
    if (!json_is_array(levels)) return refuse(error, "levels: expected a list");
    for (size_t i = 0; i < json_array_size(sections); i++)
        if (!is_section(json_array_get(sections, i)))
            return refuse(error, "sections[%zu]: not of the form of its kind", i);
    for (size_t i = 0; i < json_array_size(levels); i++)
        if (!is_level(json_array_get(levels, i)))
            return refuse(error, "levels[%zu]: expected column, name and value", i);
    return true;
}

bool facts_parse(Facts *facts, const void *bytes, size_t size, Error *error) {
    json_error_t problem;
    *facts = (Facts){json_loadb(bytes, size, 0, &problem)};
    if (!facts->all) return refuse(error, "line %d: not JSON: %s", problem.line, problem.text);
    if (check(facts->all, error)) return true;
    facts_free(facts);
    return false;
}

bool facts_read(Facts *facts, const char *path, Error *error) {
    uint8_t *bytes;
    size_t size;
    *facts = (Facts){0};
    if (!file_exists(path) && errno == ENOENT) return true;
    if (!file_read(path, MOST_BYTES, &bytes, &size, error)) return false;
    bool ok = facts_parse(facts, bytes, size, error);
    free(bytes);
    return ok;
}

void facts_free(Facts *facts) {
    json_decref(facts->all);
    *facts = (Facts){0};
}

/* == Writing ====================================================================================================== */

static json_t *all_of(Facts *facts) {
    if (facts->all) return facts->all;
    facts->all = json_object();
    json_put(facts->all, "report", json_integer(FORMAT));
    json_put(facts->all, "values", json_object());
    json_put(facts->all, "levels", json_array());
    json_put(facts->all, "sections", json_array());
    return facts->all;
}

bool facts_write(const Facts *facts, const char *path, Error *error) {
    Facts none = {0};
    char *text = json_dumps(facts->all ? facts->all : all_of(&none), JSON_INDENT(1) | JSON_REAL_PRECISION(12));
    if (!text) die("out of memory for the facts of a run");
    bool ok = file_write(path, text, strlen(text), error);
    free(text);
    facts_free(&none);
    return ok;
}

/* == Values and levels ============================================================================================ */

static json_t *text_or_null(const char *text) { return text ? json_text_of(text) : json_null(); }

/* 12 rather than 12.0 */
static json_t *number_of(double x) {
    return fabs(x) < 0x1p53 && x == rint(x) ? json_integer((json_int_t)x) : json_number_of(x);
}

void facts_set(Facts *facts, const char *name, const char *text) {
    json_t *values = json_object_get(all_of(facts), "values");
    if (text) json_put(values, name, json_text_of(text));
    else json_object_del(values, name);
}

void facts_set_number(Facts *facts, const char *name, double value) {
    json_put(json_object_get(all_of(facts), "values"), name, number_of(value));
}

static const json_t *value_of(const Facts *facts, const char *name) {
    return json_object_get(json_object_get(facts->all, "values"), name);
}

const char *facts_get(const Facts *facts, const char *name) { return json_string_value(value_of(facts, name)); }

double facts_number(const Facts *facts, const char *name) {
    const json_t *value = value_of(facts, name);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static bool is_text(const json_t *object, const char *key, const char *text) {
    const char *value = json_string_value(json_object_get(object, key));
    return value && !strcmp(value, text);
}

void facts_level(Facts *facts, const char *column, const char *name, double value) {
    json_t *levels = json_object_get(all_of(facts), "levels"), *level;
    if (!isfinite(value)) return;
    for (size_t i = 0; i < json_array_size(levels); i++) {
        level = json_array_get(levels, i);
        if (!is_text(level, "column", column) || !is_text(level, "name", name)) continue;
        json_put(level, "value", number_of(value));
        return;
    }
    level = json_object();
    json_put(level, "column", json_text_of(column));
    json_put(level, "name", json_text_of(name));
    json_put(level, "value", number_of(value));
    json_add(levels, level);
}

/* == Sections ===================================================================================================== */

/* The section of this id, or NULL; *at is its index. */
static json_t *section_of(Facts *facts, const char *id, size_t *at) {
    json_t *sections = json_object_get(all_of(facts), "sections");
    for (*at = 0; *at < json_array_size(sections); ++*at)
        if (is_text(json_array_get(sections, *at), "id", id)) return json_array_get(sections, *at);
    return NULL;
}

/* Puts a new section in place of the one with its id, or after all others. */
static json_t *begin(Facts *facts, const char *id, const char *kind, const char *title) {
    size_t at;
    json_t *sections = json_object_get(all_of(facts), "sections"), *section = json_object();
    assert(is_id(id));
    json_put(section, "id", json_text_of(id));
    json_put(section, "kind", json_text_of(kind));
    json_put(section, "title", json_text_of(title));
    if (!section_of(facts, id, &at)) json_add(sections, section);
    else json_array_set_new(sections, at, section);
    return section;
}

static json_t *texts_of(const char *const *texts, int count) {
    json_t *list = json_array();
    for (int i = 0; i < count; i++) json_add(list, text_or_null(texts[i]));
    return list;
}

/* Numbers below 0, and those that are not finite, become 0: a page cannot show them. */
static json_t *numbers_of(const double *values, size_t count) {
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) json_add(list, number_of(isfinite(values[i]) && values[i] > 0 ? values[i] : 0));
    return list;
}

void facts_table(Facts *facts, const char *id, const char *title, const char *const *names, int columns,
                 const char *const *cells, int rows) {
    json_t *section = begin(facts, id, "table", title), *list = json_array();
    json_put(section, "names", texts_of(names, columns));
    json_put(section, "rows", list);
    for (int row = 0; row < rows; row++) json_add(list, texts_of(cells + (size_t)row * (size_t)columns, columns));
}

void facts_heat(Facts *facts, const char *id, const char *title, const char *row_label, const char *column_label,
                const char *const *row_names, int rows, const char *const *column_names, int columns,
                const double *values) {
    json_t *section = begin(facts, id, "heat", title);
    json_put(section, "row_label", text_or_null(row_label));
    json_put(section, "column_label", text_or_null(column_label));
    json_put(section, "rows", json_integer(rows));
    json_put(section, "columns", json_integer(columns));
    json_put(section, "row_names", row_names ? texts_of(row_names, rows) : json_null());
    json_put(section, "column_names", column_names ? texts_of(column_names, columns) : json_null());
    json_put(section, "values", numbers_of(values, (size_t)rows * (size_t)columns));
}

void facts_bars(Facts *facts, const char *id, const char *title, const char *unit, const char *const *names,
                const double *values, int count) {
    json_t *section = begin(facts, id, "bars", title);
    json_put(section, "unit", text_or_null(unit));
    json_put(section, "names", texts_of(names, count));
    json_put(section, "values", numbers_of(values, (size_t)count));
}

/* == Pictures ===================================================================================================== */

void facts_pictures(Facts *facts, const char *id, const char *title, const char *text) {
    json_t *section = begin(facts, id, "pictures", title);
    json_put(section, "text", text_or_null(text));
    json_put(section, "pictures", json_array());
}

/* The characters of all pictures. */
static size_t bytes_of_pictures(const Facts *facts) {
    const json_t *sections = json_object_get(facts->all, "sections");
    size_t bytes = 0;
    for (size_t i = 0; i < json_array_size(sections); i++) {
        const json_t *pictures = json_object_get(json_array_get(sections, i), "pictures");
        for (size_t k = 0; k < json_array_size(pictures); k++)
            bytes += json_string_length(json_object_get(json_array_get(pictures, k), "data"));
    }
    return bytes;
}

/* height and width, scaled down to at most `side`. */
static void fit(int *height, int *width, int side) {
    double scale = (double)side / fmax(*height, *width);
    if (scale >= 1) return;
    *height = (int)fmax(1, round(*height * scale));
    *width = (int)fmax(1, round(*width * scale));
}

/* The picture as PNG or JPEG, whichever is smaller. */
static uint8_t *encode(const uint8_t *pixels, int height, int width, size_t *size, const char **type) {
    size_t png_size, jpeg_size;
    uint8_t *png = image_encode_png(pixels, height, width, &png_size), *jpeg;
    Error error;
    if (!jpeg_encode(pixels, height, width, QUALITY, &jpeg, &jpeg_size, &error)) die("a picture as JPEG: %s", error.text);
    bool exact = png_size <= jpeg_size;
    free(exact ? jpeg : png);
    *size = exact ? png_size : jpeg_size;
    *type = exact ? "image/png" : "image/jpeg";
    return exact ? png : jpeg;
}

static char *base64_of(const uint8_t *bytes, size_t size) {
    TextStream text;
    base64_put(text_open(&text), bytes, size);
    return text_close(&text, "a picture as text");
}

bool facts_picture(Facts *facts, const char *id, const uint8_t *pixels, int height, int width, int side,
                   const char *caption) {
    const char *type;
    size_t at, size;
    int small_height = height, small_width = width;
    fit(&small_height, &small_width, side);
    uint8_t *small = xcalloc((size_t)small_height * (size_t)small_width, 3, "a picture");
    image_resize(small, small_height, small_width, pixels, height, width);
    uint8_t *bytes = encode(small, small_height, small_width, &size, &type);
    bool fits = bytes_of_pictures(facts) + base64_length(size) <= FACTS_BYTES;
    if (fits) {
        json_t *picture = json_object();
        char *data = base64_of(bytes, size);
        json_add(json_object_get(section_of(facts, id, &at), "pictures"), picture);
        json_put(picture, "caption", text_or_null(caption));
        json_put(picture, "height", json_integer(small_height));
        json_put(picture, "width", json_integer(small_width));
        json_put(picture, "type", json_text_of(type));
        json_put(picture, "data", json_text_of(data));
        free(data);
    }
    free(small);
    free(bytes);
    return fits;
}
