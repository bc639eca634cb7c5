/* JSON files that are lists of records, read as a stream: COCO's annotations (450 MB) and results.  Memory holds one
 * record at a time; whatever no field asks for is skipped without being kept.
 *
 * yajl does the parsing: of the parsers in Debian 12 the one that is C and hands over pieces instead of building a tree
 * (cJSON, json-c and jansson build one, simdjson indexes the whole file in memory, simdjson and RapidJSON are C++,
 * yyjson is not there).  Measured on 440 MB: 0.9 s and 2 MB; cJSON, one record at a time, 3.8 s.  Its author has moved
 * on, Debian mends it; tests/fuzz_coco.c is our part. */
#ifndef VIT_CORE_JSON_LISTS_H
#define VIT_CORE_JSON_LISTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/error.h"

typedef enum {
    JSON_INTEGER, /* of 64 bits */
    JSON_FLAG,    /* 0, 1, false or true, as integer */
    JSON_NUMBER,  /* finite */
    JSON_NUMBER4, /* an array of four finite numbers */
    JSON_TEXT     /* of 1 to JSON_TEXT_MOST bytes without a zero byte */
} JsonKind;

enum { JSON_FIELDS_MOST = 8, JSON_TEXT_MOST = 1023, JSON_DEPTH_MOST = 64 };

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
 * record has its last value.  False: `error` says what is wrong and where: a byte of the file, or
 * "annotations[12].bbox". */
bool json_lists_read(const char *path, const JsonList *lists, int count, void *state, Error *error);

/* The same for a file in memory, parsed in pieces of so many bytes (0: at once), which changes nothing. */
bool json_lists_parse(const void *bytes, size_t size, size_t piece, const JsonList *lists, int count, void *state,
                      Error *error);

#endif
