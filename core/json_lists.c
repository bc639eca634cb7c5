/* A window (buffer) moves along the file.  jansson parses from the start of a record and reports how many bytes the
 * record has.  A record cut off by the window's end is parsed again after more has been read. */
#include "core/json_lists.h"

#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/die.h"
#include "core/files.h"

typedef struct {
    const JsonList *lists;
    int count;
    void *state;
    Error *report; /* empty: no error so far */

    int fd;               /* -1: the file is in memory */
    const uint8_t *bytes; /* the rest of the file in memory */
    size_t size;

    char *window;          /* [room] */
    size_t room, at, have; /* window[at] .. window[have - 1] are still to be parsed */
    size_t passed;         /* bytes of the file before the window */
    bool ended;            /* the window reaches the end of the file */

    uint32_t seen;        /* lists that have occurred */
    const JsonList *list; /* NULL: not a requested list */
    bool inside;          /* inside the list's brackets */
    size_t index;         /* of the record */
    const char *field;    /* of the record; NULL: none */
} Reader;

/* == Refusals ===================================================================================================== */

/* Writes "annotations[12].bbox: " and the error message, and returns false.  Keeps the first error. */
static bool refuse_here(Reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool refuse_here(Reader *r, const char *format, ...) {
    char what[sizeof r->report->text], index[32] = "";
    const char *list = r->list && r->list->name ? r->list->name : "";
    if (*r->report->text) return false;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    if (r->list && r->inside) snprintf(index, sizeof index, "[%zu]", r->index);
    return refuse(r->report, "%s%s%s%s%s%s", list, index, r->field ? "." : "", r->field ? r->field : "",
                  *list || *index ? ": " : "", what);
}

static bool refuse_end(Reader *r) {
    r->list = NULL;
    return refuse_here(r, "ends after %zu bytes in the middle of the JSON: is it cut short?", r->passed + r->have);
}

/* == The window =================================================================================================== */

static ssize_t take_bytes(Reader *r, char *to, size_t room) {
    if (r->fd >= 0) {
        ssize_t got;
        do got = read(r->fd, to, room);
        while (got < 0 && errno == EINTR);
        return got;
    }
    if (room > r->size) room = r->size;
    if (!room) return 0; /* there may be no bytes at all */
    memcpy(to, r->bytes, room);
    r->bytes += room;
    r->size -= room;
    return (ssize_t)room;
}

/* Reads more into the window and enlarges it if it is full of unparsed data.  Refuses zero bytes, which are never valid
 * JSON, because jansson ignores some of them. */
static bool fetch(Reader *r) {
    memmove(r->window, r->window + r->at, r->have - r->at);
    r->passed += r->at;
    r->have -= r->at;
    r->at = 0;
    if (r->have == r->room) {
        if (r->room >= JSON_RECORD_MOST)
            return refuse_here(r, "more than %d MB without an end from byte %zu on", JSON_RECORD_MOST >> 20, r->passed);
        r->room *= 2;
        r->window = realloc(r->window, r->room);
        if (!r->window) die("out of memory for %zu bytes of JSON", r->room);
    }
    while (r->have < r->room && !r->ended) {
        ssize_t got = take_bytes(r, r->window + r->have, r->room - r->have);
        if (got < 0) return refuse_here(r, "cannot read: %s", strerror(errno));
        const char *zero = memchr(r->window + r->have, 0, (size_t)got);
        if (zero) return refuse_here(r, "not JSON at byte %zu: zero", r->passed + (size_t)(zero - r->window));
        r->have += (size_t)got;
        r->ended = !got;
    }
    return true;
}

/* The next byte that is not white space; 0 at the end of the file and after an error. */
static char peek(Reader *r) {
    for (;;) {
        while (r->at < r->have && strchr(" \t\r\n", r->window[r->at])) r->at++;
        if (r->at < r->have) return r->window[r->at];
        if (r->ended || !fetch(r)) return 0;
    }
}

static bool accept(Reader *r, char bracket) {
    bool there = peek(r) == bracket;
    r->at += there;
    return there;
}

static bool expect(Reader *r, char bracket) {
    if (accept(r, bracket)) return true;
    if (r->at == r->have) return refuse_end(r);
    return refuse_here(r, "not JSON at byte %zu: '%c' expected", r->passed + r->at, bracket);
}

/* Reports jansson's error in the value that begins at window[at], of which it has read `used` bytes. */
static void refuse_value(Reader *r, json_error_t *error, size_t used) {
    enum json_error_code code = json_error_code(error);
    bool limit = code == json_error_numeric_overflow || code == json_error_stack_overflow;
    if (r->at + used == r->have) {
        refuse_end(r);
        return;
    }
    refuse_here(r, "%s byte %zu: %s", limit ? "refused at" : "not JSON at", r->passed + r->at + used,
                *error->text ? error->text : "out of memory");
}

/* Parses the next value, of any type; NULL: error. */
static json_t *next_value(Reader *r) {
    enum { CUT = 4 }; /* a value that ends this near to the window's end may be cut: a character of UTF-8 has up to 4
                       * bytes */
    peek(r);
    while (!*r->report->text) {
        json_error_t error;
        size_t left = r->have - r->at;
        json_t *value = json_loadb(r->window + r->at, left,
                                   JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, &error);
        size_t used = (size_t)error.position;
        if (r->ended || used + CUT < left) {
            if (value) r->at += used;
            else refuse_value(r, &error, used);
            return value;
        }
        json_decref(value); /* may be the 1 of 12 */
        fetch(r);
    }
    return NULL;
}

/* == Records ====================================================================================================== */

static bool to_value(JsonValue *value, const json_t *item, JsonKind kind) {
    switch (kind) {
    case JSON_INT64:
        value->integer = json_integer_value(item);
        return json_is_integer(item);
    case JSON_FLAG:
        value->integer = json_is_integer(item) ? json_integer_value(item) : json_is_true(item);
        return json_is_boolean(item) || (json_is_integer(item) && (value->integer == 0 || value->integer == 1));
    case JSON_NUMBER:
        value->number = json_number_value(item);
        return json_is_number(item);
    case JSON_NUMBER4:
        for (size_t i = 0; i < 4; i++) {
            const json_t *number = json_array_get(item, i);
            if (!json_is_number(number)) return false;
            value->numbers[i] = json_number_value(number);
        }
        return json_array_size(item) == 4;
    case JSON_ANY:
        value->any = item;
        return true;
    default:
        value->text = json_string_value(item);
        return value->text && *value->text && json_string_length(item) <= JSON_TEXT_MOST &&
               strlen(value->text) == json_string_length(item);
    }
}

static bool take_integers(Reader *r, const json_t *record) {
    JsonValue integers[JSON_INTEGERS_MOST];
    size_t count = json_array_size(record);
    Error error = {.text = ""};
    if (!json_is_array(record)) return refuse_here(r, "expected a list of integers");
    if (count > JSON_INTEGERS_MOST) return refuse_here(r, "more than %d integers", JSON_INTEGERS_MOST);
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(record, i);
        if (!json_is_integer(item)) return refuse_here(r, "expected a list of integers");
        integers[i].integer = json_integer_value(item);
    }
    return r->list->take(r->state, integers, (uint32_t)count, &error) || refuse_here(r, "%s", error.text);
}

static bool take_record(Reader *r, const json_t *record) {
    static const char *const expected[] = {"an integer", "0 or 1", "a number", "an array of four numbers",
                                           "a text of 1 to 1023 bytes"};
    _Static_assert(JSON_TEXT_MOST == 1023, "the message names it");
    JsonValue value[JSON_FIELDS_MOST];
    uint32_t present = 0;
    Error error = {.text = ""};
    if (!r->list->fields) return take_integers(r, record);
    if (!json_is_object(record)) return refuse_here(r, "expected an object");
    for (int i = 0; i < r->list->field_count; i++) {
        const JsonField *field = &r->list->fields[i];
        const json_t *item = json_object_get(record, field->name);
        if (!item && field->optional) continue;
        if (!item) return refuse_here(r, "no \"%s\"", field->name);
        r->field = field->name;
        if (!to_value(&value[i], item, field->kind)) return refuse_here(r, "expected %s", expected[field->kind]);
        r->field = NULL;
        present |= 1u << i;
    }
    return r->list->take(r->state, value, present, &error) || refuse_here(r, "%s", error.text);
}

/* == A whole file ================================================================================================= */

/* Parses a list after its opening bracket.  Records of a list that was not requested are freed at once. */
static bool read_list(Reader *r) {
    r->inside = true;
    r->index = 0;
    for (bool more = !accept(r, ']'); more; r->index++) {
        json_t *record = next_value(r);
        bool ok = record && (!r->list || take_record(r, record));
        json_decref(record);
        if (!ok) return false;
        more = !accept(r, ']');
        if (more && !expect(r, ',')) return false;
    }
    r->inside = false;
    r->list = NULL;
    return true;
}

/* Reports that something other than the expected array or object was found. */
static bool refuse_other(Reader *r, const char *expected) {
    json_t *value = next_value(r);
    json_decref(value);
    return value ? refuse_here(r, "expected %s", expected) : false;
}

static const JsonList *find_list(const Reader *r, const json_t *key) {
    for (int i = 0; i < r->count; i++) {
        const char *name = r->lists[i].name;
        if (strlen(name) == json_string_length(key) && !strcmp(name, json_string_value(key))) return &r->lists[i];
    }
    return NULL;
}

/* A key of the file's object, and its value. */
static bool read_member(Reader *r) {
    if (peek(r) != '"') return expect(r, '"');
    json_t *key = next_value(r);
    if (!key) return false;
    r->list = find_list(r, key);
    json_decref(key);
    if (r->list) {
        uint32_t bit = 1u << (r->list - r->lists);
        if (r->seen & bit) return refuse_here(r, "occurs twice");
        r->seen |= bit;
    }
    if (!expect(r, ':')) return false;
    if (accept(r, '[')) return read_list(r);
    if (r->list) return refuse_other(r, "an array");
    json_t *value = next_value(r);
    json_decref(value);
    return value;
}

static bool read_lists(Reader *r) {
    if (!accept(r, '{')) return refuse_other(r, "an object, {...}");
    for (bool more = !accept(r, '}'); more;) {
        if (!read_member(r)) return false;
        more = !accept(r, '}');
        if (more && !expect(r, ',')) return false;
    }
    return true;
}

static bool read_only_list(Reader *r) {
    if (!accept(r, '[')) return refuse_other(r, "an array, [...]");
    r->list = r->lists;
    return read_list(r);
}

static bool read_file(Reader *r) {
    if (!(r->lists->name ? read_lists(r) : read_only_list(r))) return false;
    if (peek(r)) return refuse_here(r, "not JSON at byte %zu: the end of the file expected", r->passed + r->at);
    for (int i = 0; i < r->count && r->lists->name; i++) {
        if (!(r->seen & 1u << i)) return refuse_here(r, "no list \"%s\" in it", r->lists[i].name);
    }
    return !*r->report->text; /* a read may have failed at the end */
}

static bool run(Reader r, size_t room) {
    r.room = room;
    r.window = xcalloc(room, 1, "a piece of a JSON file");
    *r.report->text = 0;
    bool ok = read_file(&r);
    free(r.window);
    return ok;
}

bool json_lists_parse(const void *bytes, size_t size, size_t piece, const JsonList *lists, int count, void *state,
                      Error *error) {
    size_t room = piece ? piece : size + 1;
    return run((Reader){.lists = lists, .count = count, .state = state, .report = error, .fd = -1,
                        .bytes = bytes, .size = size}, room);
}

bool json_lists_read(const char *path, const JsonList *lists, int count, void *state, Error *error) {
    enum { WINDOW = 1 << 18 };
    int fd = file_open(path, error);
    if (fd < 0) return false;
    bool ok = run((Reader){.lists = lists, .count = count, .state = state, .report = error, .fd = fd}, WINDOW);
    close(fd);
    return ok;
}
