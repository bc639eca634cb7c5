/* Where the parser is, for  { "images": [ { "id": 7, "bbox": [1, 2, 3, 4], ... }, ... ], ... }
 *
 *   START -> FILE { -> LIST [ -> RECORD { -> NUMBERS [      and back at each closing bracket
 *
 * A file that is a list goes from START to LIST.  A value nobody asked for is skipped: scalars at once, an array or an
 * object by counting its brackets. */
#include "core/json_lists.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yajl/yajl_parse.h>

#include "core/die.h"

typedef enum { START, FILE_OBJECT, LIST, RECORD, NUMBERS, END } Place;

typedef struct {
    const JsonList *lists;
    int count;
    void *state;
    Error *error; /* empty while all is well */

    Place place;
    int skipped;          /* brackets open inside a value that is skipped */
    uint32_t seen;        /* lists that have occurred */
    const JsonList *list; /* of the last key or of this record; NULL: not ours */
    size_t index;         /* of the record */
    int field;            /* of the last key in the record; -1: not ours */
    int numbers;          /* of JSON_NUMBER4 that have come */
    uint32_t present;
    JsonValue value[JSON_FIELDS_MOST];
    char text[JSON_FIELDS_MOST][JSON_TEXT_MOST + 1];
} Reader;

/* == Refusals ===================================================================================================== */

/* 0 stops yajl. */
static int refuse_here(Reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int refuse_here(Reader *r, const char *format, ...) {
    char where[128] = "";
    const char *list = r->list && r->list->name ? r->list->name : "";
    if (r->place == RECORD && r->field >= 0) {
        snprintf(where, sizeof where, "%s[%zu].%s: ", list, r->index, r->list->fields[r->field].name);
    } else if (r->place == RECORD || r->place == LIST) {
        snprintf(where, sizeof where, "%s[%zu]: ", list, r->index);
    } else if (r->place == FILE_OBJECT && *list) {
        snprintf(where, sizeof where, "%s: ", list);
    }
    char what[sizeof r->error->text];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return refuse(r->error, "%s%s", where, what);
}

static int refuse_kind(Reader *r) {
    static const char *const expected[] = {"an integer", "0 or 1", "a number", "an array of four numbers", "a text"};
    if (r->place == NUMBERS) r->place = RECORD;
    return refuse_here(r, "expected %s", expected[r->list->fields[r->field].kind]);
}

/* A value where only a bracket makes sense. */
static int refuse_place(Reader *r) {
    if (r->place == LIST) return refuse_here(r, "expected an object");
    if (r->place == FILE_OBJECT) return refuse_here(r, "expected an array");
    return refuse_here(r, r->lists->name ? "expected an object, {...}" : "expected an array, [...]");
}

/* == Values ======================================================================================================= */

static bool unasked(const Reader *r) {
    return r->skipped || (r->place == RECORD && r->field < 0) || (r->place == FILE_OBJECT && !r->list);
}

static bool in_value(const Reader *r) {
    return r->place == RECORD || r->place == NUMBERS;
}

static JsonKind kind_of(const Reader *r) {
    return r->list->fields[r->field].kind;
}

static int keep(Reader *r, JsonValue value) {
    r->value[r->field] = value;
    r->present |= 1u << r->field;
    return 1;
}

static int on_null(void *context) {
    Reader *r = context;
    if (unasked(r)) return 1;
    return in_value(r) ? refuse_kind(r) : refuse_place(r);
}

static int on_boolean(void *context, int flag) {
    Reader *r = context;
    if (unasked(r)) return 1;
    if (!in_value(r)) return refuse_place(r);
    return kind_of(r) == JSON_FLAG ? keep(r, (JsonValue){.integer = flag}) : refuse_kind(r);
}

static int on_number(void *context, const char *digits, size_t length) {
    Reader *r = context;
    if (unasked(r)) return 1;
    if (!in_value(r)) return refuse_place(r);
    char text[64], *end;
    JsonKind kind = kind_of(r);
    if (length >= sizeof text || kind == JSON_TEXT) return refuse_kind(r);
    memcpy(text, digits, length);
    text[length] = 0;
    if (kind == JSON_INTEGER || kind == JSON_FLAG) {
        errno = 0;
        long long integer = strtoll(text, &end, 10);
        if (*end || errno || (kind == JSON_FLAG && integer != 0 && integer != 1)) return refuse_kind(r);
        return keep(r, (JsonValue){.integer = integer});
    }
    double number = strtod(text, NULL);
    if (!isfinite(number) || (kind == JSON_NUMBER4) != (r->place == NUMBERS)) return refuse_kind(r);
    if (kind == JSON_NUMBER) return keep(r, (JsonValue){.number = number});
    if (r->numbers == 4) return refuse_kind(r);
    r->value[r->field].numbers[r->numbers++] = number;
    return 1;
}

static int on_string(void *context, const unsigned char *text, size_t length) {
    Reader *r = context;
    if (unasked(r)) return 1;
    if (!in_value(r)) return refuse_place(r);
    if (kind_of(r) != JSON_TEXT) return refuse_kind(r);
    if (!length || length > JSON_TEXT_MOST || memchr(text, 0, length)) {
        return refuse_here(r, "expected a text of 1 to %d characters", JSON_TEXT_MOST);
    }
    memcpy(r->text[r->field], text, length);
    r->text[r->field][length] = 0;
    return keep(r, (JsonValue){.text = r->text[r->field]});
}

/* == Brackets ===================================================================================================== */

static int skip(Reader *r) {
    return ++r->skipped < JSON_DEPTH_MOST ? 1 : refuse_here(r, "brackets nested more than %d deep", JSON_DEPTH_MOST);
}

static int on_object(void *context) {
    Reader *r = context;
    if (unasked(r)) return skip(r);
    if (in_value(r)) return refuse_kind(r);
    if (r->place == START && r->lists->name) {
        r->place = FILE_OBJECT;
        return 1;
    }
    if (r->place != LIST) return refuse_place(r);
    r->place = RECORD;
    r->field = -1;
    r->present = 0;
    return 1;
}

static int on_key(void *context, const unsigned char *key, size_t length) {
    Reader *r = context;
    if (r->skipped) return 1;
    if (r->place == FILE_OBJECT) {
        r->list = NULL;
        for (int i = 0; i < r->count; i++) {
            const JsonList *list = &r->lists[i];
            if (strlen(list->name) != length || memcmp(list->name, key, length) != 0) continue;
            r->list = list;
            if (r->seen & 1u << i) return refuse_here(r, "occurs twice");
            r->seen |= 1u << i;
        }
        return 1;
    }
    r->field = -1;
    for (int i = 0; i < r->list->field_count; i++) {
        const char *name = r->list->fields[i].name;
        if (strlen(name) == length && memcmp(name, key, length) == 0) r->field = i;
    }
    return 1;
}

static int on_array(void *context) {
    Reader *r = context;
    if (unasked(r)) return skip(r);
    if (r->place == RECORD && kind_of(r) == JSON_NUMBER4) {
        r->place = NUMBERS;
        r->numbers = 0;
        return 1;
    }
    if (in_value(r)) return refuse_kind(r);
    if (r->place == START && !r->lists->name) r->list = r->lists;
    else if (r->place != FILE_OBJECT) return refuse_place(r);
    r->place = LIST;
    r->index = 0;
    return 1;
}

static int end_record(Reader *r) {
    Error error;
    error.text[0] = 0;
    r->field = -1;
    for (int i = 0; i < r->list->field_count; i++) {
        const JsonField *field = &r->list->fields[i];
        if (!field->optional && !(r->present & 1u << i)) return refuse_here(r, "no \"%s\"", field->name);
    }
    if (!r->list->take(r->state, r->value, r->present, &error)) return refuse_here(r, "%s", error.text);
    r->place = LIST;
    r->index++;
    return 1;
}

static int on_object_end(void *context) {
    Reader *r = context;
    if (r->skipped) {
        r->skipped--;
        return 1;
    }
    if (r->place == RECORD) return end_record(r);
    r->place = END;
    return 1;
}

static int on_array_end(void *context) {
    Reader *r = context;
    if (r->skipped) {
        r->skipped--;
        return 1;
    }
    if (r->place == NUMBERS) {
        if (r->numbers != 4) return refuse_kind(r);
        r->place = RECORD;
        r->present |= 1u << r->field;
        return 1;
    }
    r->place = r->lists->name ? FILE_OBJECT : END;
    return 1;
}

/* == A whole file ================================================================================================= */

static const yajl_callbacks callbacks = {
    .yajl_null = on_null,
    .yajl_boolean = on_boolean,
    .yajl_number = on_number,
    .yajl_string = on_string,
    .yajl_start_map = on_object,
    .yajl_map_key = on_key,
    .yajl_end_map = on_object_end,
    .yajl_start_array = on_array,
    .yajl_end_array = on_array_end,
};

typedef struct {
    Reader *reader;
    yajl_handle parser;
    size_t done; /* bytes of the pieces before this one */
} Stream;

static void stream_open(Stream *s, const JsonList *lists, int count, void *state, Error *error) {
    s->reader = xcalloc(1, sizeof *s->reader, "a JSON reader");
    *s->reader = (Reader){.lists = lists, .count = count, .state = state, .error = error, .field = -1};
    s->parser = yajl_alloc(&callbacks, NULL, s->reader);
    if (!s->parser) die("out of memory for a JSON parser");
    s->done = 0;
    error->text[0] = 0;
}

/* yajl's "lexical error: invalid char in json text.\n" without its last two characters. */
static bool refuse_syntax(Stream *s, size_t at) {
    unsigned char *message = yajl_get_error(s->parser, 0, NULL, 0);
    size_t length = message ? strcspn((char *)message, ".\n") : 0;
    refuse(s->reader->error, "not JSON at byte %zu: %.*s", at, (int)length, (char *)message);
    yajl_free_error(s->parser, message);
    return false;
}

static bool stream_piece(Stream *s, const uint8_t *bytes, size_t size) {
    yajl_status status = yajl_parse(s->parser, bytes, size);
    if (status == yajl_status_error) return refuse_syntax(s, s->done + yajl_get_bytes_consumed(s->parser));
    s->done += size;
    return status == yajl_status_ok;
}

static bool stream_end(Stream *s) {
    Reader *r = s->reader;
    yajl_status status = yajl_complete_parse(s->parser);
    if (status == yajl_status_client_canceled) return false;
    if (status == yajl_status_error || r->place != END)
        return refuse(r->error, "ends after %zu bytes in the middle of the JSON: is it cut short?", s->done);
    for (int i = 0; i < r->count && r->lists->name; i++) {
        if (r->seen & 1u << i) continue;
        return refuse(r->error, "no list \"%s\" in it", r->lists[i].name);
    }
    return true;
}

static void stream_close(Stream *s) {
    yajl_free(s->parser);
    free(s->reader);
}

bool json_lists_parse(const void *bytes, size_t size, size_t piece, const JsonList *lists, int count, void *state,
                      Error *error) {
    Stream s;
    bool ok = true;
    stream_open(&s, lists, count, state, error);
    if (!piece) piece = size;
    for (size_t at = 0; ok && at < size; at += piece) {
        ok = stream_piece(&s, (const uint8_t *)bytes + at, size - at < piece ? size - at : piece);
    }
    ok = ok && stream_end(&s);
    stream_close(&s);
    return ok;
}

static bool read_pieces(Stream *s, int fd, uint8_t *piece, size_t room) {
    for (;;) {
        ssize_t got = read(fd, piece, room);
        if (got == 0) return stream_end(s);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return refuse(s->reader->error, "cannot read: %s", strerror(errno));
        if (!stream_piece(s, piece, (size_t)got)) return false;
    }
}

bool json_lists_read(const char *path, const JsonList *lists, int count, void *state, Error *error) {
    enum { PIECE = 1 << 18 };
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return refuse(error, "cannot open: %s", strerror(errno));
    Stream s;
    uint8_t *piece = xcalloc(PIECE, 1, "a piece of a JSON file");
    stream_open(&s, lists, count, state, error);
    bool ok = read_pieces(&s, fd, piece, PIECE);
    stream_close(&s);
    free(piece);
    close(fd);
    return ok;
}
