/* JSON files that are lists of records, read as a stream: COCO's annotations (450 MB) and results.  Memory holds one
 * record at a time.  Every byte is checked by the JSON library, jansson, also where no field asks for it; only the
 * brackets, commas and keys around the records are walked here.  docs/design.md has the libraries compared. */
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
    JSON_TEXT     /* of 1 to JSON_TEXT_MOST bytes without a zero byte */
} JsonKind;

enum { JSON_FIELDS_MOST = 8, JSON_TEXT_MOST = 1023 };

/* The longest record, and the longest value beside the lists, in bytes of the file. */
enum { JSON_RECORD_MOST = 16 << 20 };

typedef struct {
    const char *name;
    JsonKind kind;
    bool optional;
} JsonField;

typedef union {
    int64_t integer;
    double number, numbers[4];
    const char *text;
} JsonValue;

typedef struct {
    const char *name; /* key of the list in the file's one object; NULL: the file is the list */
    const JsonField *fields;
    int field_count;
    /* Takes one record: value[i] is fields[i]'s where bit i of `present` is set; texts live until it returns.  False:
     * `error` says what is wrong with the record, and the file is refused. */
    bool (*take)(void *state, const JsonValue *value, uint32_t present, Error *error);
} JsonList;

/* Reads every list, each of which must occur once; their order in the file is free.  A field that occurs twice in a
 * record has its last value.  Integers outside 64 bits and numbers beyond a double are refused wherever they stand.
 * False: `error` says what is wrong and where: a byte of the file, or "annotations[12].bbox". */
bool json_lists_read(const char *path, const JsonList *lists, int count, void *state, Error *error);

/* The same for a file in memory, taken in pieces of so many bytes at first (0: at once), which changes nothing. */
bool json_lists_parse(const void *bytes, size_t size, size_t piece, const JsonList *lists, int count, void *state,
                      Error *error);

#endif
