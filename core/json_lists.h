/* JSON files that are lists of records, read as a stream: COCO's annotations (450 MB) and results.  Memory holds one
 * record at a time.  The JSON library, jansson, checks every byte, also in fields that nobody asks for; the code
 * here parses only the brackets, commas and keys around the records.  docs/developers/decisions.md compares JSON libraries. */
#ifndef VIT_CORE_JSON_LISTS_H
#define VIT_CORE_JSON_LISTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"

typedef enum {
    JSON_INT64,
    JSON_FLAG,    /* 0, 1, false or true, as integer */
    JSON_NUMBER,  /* finite */
    JSON_NUMBER4, /* an array of four finite numbers */
    JSON_TEXT,    /* a string of 1 to JSON_TEXT_MOST bytes without a zero byte */
    JSON_ANY      /* a value of any type, for a caller that uses jansson itself */
} JsonKind;

enum { JSON_FIELDS_MOST = 8, JSON_TEXT_MOST = 1023 };

/* Maximum size of a record, and of a value outside the lists, in bytes of the file. */
enum { JSON_RECORD_MOST = 16 << 20 };

enum { JSON_INTEGERS_MOST = 4096 };

typedef struct {
    const char *name;
    JsonKind kind;
    bool optional;
} JsonField;

typedef union {
    int64_t integer;
    double number, numbers[4];
    const char *text;
    const struct json_t *any; /* jansson's, valid as long as strings are */
} JsonValue;

typedef struct {
    const char *name; /* key of the list in the file's top-level object; NULL: the file itself is the list */
    const JsonField *fields; /* NULL: the records are no objects, but lists of at most JSON_INTEGERS_MOST integers */
    int field_count;
    /* Called for each record: value[i] is the value of fields[i] if bit i of `present` is set; strings are valid until
     * it returns.  For a list of integers, `present` is their number, and value[i].integer for i < present are the
     * integers.  If it returns false, with the reason in `error`, the file is refused. */
    bool (*take)(void *state, const JsonValue *value, uint32_t present, Error *error);
} JsonList;

/* Reads all lists, in any order; each must occur once.  If a field occurs twice in a record, the last value counts.
 * Integers that overflow 64 bits and numbers that overflow a double are errors anywhere in the file. On failure returns
 * false; `error` says what is wrong and where: a byte offset, or "annotations[12].bbox". */
bool json_lists_read(const char *path, const JsonList *lists, int count, void *state, Error *error);

/* Reads the lists of a file that is in memory.  It is parsed in pieces of initially `piece` bytes (0: all at once);
 * tests set this, as the result does not depend on it. */
bool json_lists_parse(const void *bytes, size_t size, size_t piece, const JsonList *lists, int count, void *state,
                      Error *error);

#endif
