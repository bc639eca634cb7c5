#include "core/safetensors.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/files.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "safetensors files are little-endian, and so must be the machine: tensors are used in place");

static const struct {
    const char *name;
    size_t size;
} dtypes[SAFE_DTYPE_COUNT] = {
    [SAFE_BOOL] = {"BOOL", 1},       [SAFE_U8] = {"U8", 1},           [SAFE_I8] = {"I8", 1},
    [SAFE_F8_E5M2] = {"F8_E5M2", 1}, [SAFE_F8_E4M3] = {"F8_E4M3", 1}, [SAFE_I16] = {"I16", 2},
    [SAFE_U16] = {"U16", 2},         [SAFE_F16] = {"F16", 2},         [SAFE_BF16] = {"BF16", 2},
    [SAFE_I32] = {"I32", 4},         [SAFE_U32] = {"U32", 4},         [SAFE_F32] = {"F32", 4},
    [SAFE_F64] = {"F64", 8},         [SAFE_I64] = {"I64", 8},         [SAFE_U64] = {"U64", 8},
};

/* == Tensors of the header ====================================================================================== */

/* At most 2^53 - 1, the largest integer that every JSON library reads exactly. */
static bool to_size(const json_t *item, size_t *value) {
    json_int_t number = json_integer_value(item);
    *value = (size_t)number; /* 32 bits in WebAssembly */
    return json_is_integer(item) && number >= 0 && number < 1ll << 53 && (uint64_t)number <= SIZE_MAX;
}

static bool parse_dtype(SafeTensor *t, const json_t *item, Error *error) {
    const char *name = json_string_value(item);
    if (!name) return refuse(error, "%s: %s: dtype is missing or not a string", t->file, t->name);
    for (int i = 0; i < SAFE_DTYPE_COUNT; i++) {
        if (strcmp(name, dtypes[i].name)) continue;
        t->dtype = (SafeDtype)i;
        return true;
    }
    return refuse(error, "%s: %s: unknown dtype '%.40s'", t->file, t->name, name);
}

static bool parse_shape(SafeTensor *t, const json_t *item, Error *error) {
    if (!json_is_array(item)) return refuse(error, "%s: %s: shape is missing or not a list", t->file, t->name);
    if (json_array_size(item) > SAFETENSORS_MAX_DIMS)
        return refuse(error, "%s: %s: shape has more than %d dimensions", t->file, t->name, SAFETENSORS_MAX_DIMS);
    t->ndim = (int)json_array_size(item);
    t->size = 1;
    for (int i = 0; i < t->ndim; i++) {
        if (!to_size(json_array_get(item, (size_t)i), &t->shape[i]))
            return refuse(error, "%s: %s: shape[%d] is not an integer from 0 to 2^53 - 1", t->file, t->name, i);
        if (__builtin_mul_overflow(t->size, t->shape[i], &t->size))
            return refuse(error, "%s: %s: the product of the shape overflows", t->file, t->name);
    }
    if (__builtin_mul_overflow(t->size, dtypes[t->dtype].size, &t->bytes))
        return refuse(error, "%s: %s: the size in bytes overflows", t->file, t->name);
    return true;
}

/* data [data_size] is all that follows the header. */
static bool parse_offsets(SafeTensor *t, const json_t *item, const char *data, size_t data_size, Error *error) {
    size_t begin, end;
    if (json_array_size(item) != 2 || !to_size(json_array_get(item, 0), &begin) ||
        !to_size(json_array_get(item, 1), &end))
        return refuse(error, "%s: %s: data_offsets are not two integers from 0 to 2^53 - 1", t->file, t->name);
    if (begin > end || end > data_size)
        return refuse(error, "%s: %s: data_offsets [%zu, %zu] are outside of the %zu bytes of data", t->file, t->name,
                      begin, end, data_size);
    if (end - begin != t->bytes)
        return refuse(error, "%s: %s: data_offsets [%zu, %zu] hold %zu bytes, shape and dtype ask for %zu", t->file,
                      t->name, begin, end, end - begin, t->bytes);
    t->data = data + begin;
    return true;
}

static bool parse_tensor(SafeTensor *t, json_t *item, const char *data, size_t data_size, Error *error) {
    const char *field;
    json_t *value;
    if (!json_is_object(item)) return refuse(error, "%s: %s: expected an object", t->file, t->name);
    json_object_foreach(item, field, value) {
        if (strcmp(field, "dtype") && strcmp(field, "shape") && strcmp(field, "data_offsets"))
            return refuse(error, "%s: %s: unknown field '%.40s'", t->file, t->name, field);
    }
    return parse_dtype(t, json_object_get(item, "dtype"), error) &&
           parse_shape(t, json_object_get(item, "shape"), error) &&
           parse_offsets(t, json_object_get(item, "data_offsets"), data, data_size, error);
}

static bool check_metadata(json_t *metadata, const char *file, Error *error) {
    const char *key;
    json_t *value;
    if (metadata && !json_is_object(metadata)) return refuse(error, "%s: __metadata__ is not an object", file);
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value))
            return refuse(error, "%s: __metadata__: %s: the value is not a string", file, key);
    }
    return true;
}

static int compare_names(const void *a, const void *b) {
    const SafeTensor *const *s = a, *const *t = b;
    return strcmp((*s)->name, (*t)->name);
}

/* Orders by offset in the file; an empty tensor comes before another one with the same offset. */
static int compare_data(const void *a, const void *b) {
    const SafeTensor *s = a, *t = b;
    uintptr_t p = (uintptr_t)s->data, q = (uintptr_t)t->data;
    return p != q ? (p > q) - (p < q) : (s->bytes > t->bytes) - (s->bytes < t->bytes);
}

/* Tensors sorted by offset must cover the data without overlaps or gaps. */
static bool check_cover(const SafeTensors *st, const char *data, size_t data_size, Error *error) {
    size_t covered = 0;
    for (int i = 0; i < st->count; i++) {
        const SafeTensor *t = &st->tensors[i];
        size_t begin = (size_t)((const char *)t->data - data);
        if (begin < covered)
            return refuse(error, "%s: %s: its data begins at %zu, inside of %s, which ends at %zu", st->file, t->name,
                          begin, t[-1].name, covered);
        if (begin > covered)
            return refuse(error, "%s: %s: its data begins at %zu and leaves a hole after %zu", st->file, t->name,
                          begin, covered);
        covered = begin + t->bytes;
    }
    if (covered == data_size) return true;
    return refuse(error, "%s: the tensors end at %zu, the data at %zu: bytes that belong to no tensor", st->file,
                  covered, data_size);
}

static bool sort_names(SafeTensors *st, Error *error) {
    st->by_name = malloc(((size_t)st->count + 1) * sizeof *st->by_name);
    if (!st->by_name) return refuse(error, "%s: out of memory for %d names", st->file, st->count);
    for (int i = 0; i < st->count; i++) st->by_name[i] = &st->tensors[i];
    qsort(st->by_name, (size_t)st->count, sizeof *st->by_name, compare_names);
    return true;
}

static bool parse_tensors(SafeTensors *st, const char *data, size_t data_size, Error *error) {
    const char *name;
    json_t *item;
    st->tensors = calloc(json_object_size(st->json) + 1, sizeof *st->tensors);
    if (!st->tensors) return refuse(error, "%s: out of memory for the tensors", st->file);
    json_object_foreach(st->json, name, item) {
        if (!strcmp(name, "__metadata__")) continue;
        SafeTensor *t = &st->tensors[st->count++];
        t->name = name;
        t->file = st->file;
        if (!parse_tensor(t, item, data, data_size, error)) return false;
    }
    qsort(st->tensors, (size_t)st->count, sizeof *st->tensors, compare_data);
    return check_cover(st, data, data_size, error) && sort_names(st, error);
}

/* == Reading ==================================================================================================== */

/* jansson rejects invalid UTF-8, duplicate keys, and \u0000, which would truncate a name; but it ignores some zero
 * bytes. */
static bool parse_json(SafeTensors *st, const char *text, size_t size, Error *error) {
    json_error_t why;
    st->json = json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_DISABLE_EOF_CHECK, &why);
    if (!st->json) {
        enum json_error_code code = json_error_code(&why);
        if (code == json_error_null_character || code == json_error_null_byte_in_key)
            return refuse(error, "%s: a name or text contains a NUL byte", st->file);
        return refuse(error, "%s: the header is not JSON (near its byte %d): %s", st->file, why.position,
                      *why.text ? why.text : "out of memory");
    }
    size_t end = (size_t)why.position;
    while (end < size && text[end] == ' ') end++;
    return end == size || refuse(error, "%s: byte %zu of the header is not part of its JSON object", st->file, end);
}

/* PyTorch's files begin as a zip archive or as a pickle. */
static bool is_pytorch(const char *bytes) {
    return !memcmp(bytes, "PK\3\4", 4) || (bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5);
}

static bool parse_header(SafeTensors *st, const char *bytes, size_t size, Error *error) {
    uint64_t header;
    if (size < sizeof header)
        return refuse(error, "%s: %zu bytes are too short for a safetensors file", st->file, size);
    memcpy(&header, bytes, sizeof header);
    size_t left = size - sizeof header;
    bool refused = header > SAFETENSORS_MAX_HEADER || header > left;
    if (refused && is_pytorch(bytes))
        return refuse(error, "%s: a PyTorch file, expected safetensors: scripts/convert_weights.py converts a .pth "
                      "file", st->file);
    if (header > left)
        return refuse(error, "%s: not safetensors, or cut short: by its first eight bytes the header is longer than the "
                      "file, which has %zu bytes", st->file, size);
    if (refused)
        return refuse(error, "%s: not safetensors, or damaged: its header has %llu bytes, and %d are the most",
                      st->file, (unsigned long long)header, SAFETENSORS_MAX_HEADER);
    const char *text = bytes + sizeof header, *zero = memchr(text, 0, header);
    if (!header || *text != '{') return refuse(error, "%s: the header is not a JSON object", st->file);
    if (zero) return refuse(error, "%s: byte %td of the header is zero", st->file, zero - text);
    if (!parse_json(st, text, header, error)) return false;
    return check_metadata(json_object_get(st->json, "__metadata__"), st->file, error) &&
           parse_tensors(st, text + header, left - header, error);
}

bool safetensors_parse(SafeTensors *st, const void *bytes, size_t size, const char *file, Error *error) {
    Error why; /* refuse may not return, so everything is freed before */
    *st = (SafeTensors){.file = strdup(file)};
    if (!st->file) return refuse(error, "%s: out of memory", file);
    if (parse_header(st, bytes, size, &why)) return true;
    safetensors_close(st);
    return refuse(error, "%s", why.text);
}

static struct {
    const char *path;
    const void *bytes;
    size_t size;
} held;

void safetensors_hold(const char *path, const void *bytes, size_t size) {
    held.path = path;
    held.bytes = bytes;
    held.size = size;
}

bool safetensors_open(SafeTensors *st, const char *path, Error *error) {
    const void *map;
    size_t size;
    Error why;
    *st = (SafeTensors){0};
    if (held.path && !strcmp(path, held.path)) return safetensors_parse(st, held.bytes, held.size, path, error);
    if (!file_map(path, &map, &size, &why)) return refuse(error, "%s: %s", path, why.text);
    if (!safetensors_parse(st, map, size, path, &why)) {
        file_unmap(map, size);
        return refuse(error, "%s", why.text);
    }
    st->map = map;
    st->map_size = size;
    return true;
}

void safetensors_close(SafeTensors *st) {
    file_unmap(st->map, st->map_size);
    json_decref(st->json);
    free(st->tensors);
    free(st->by_name);
    free(st->file);
    *st = (SafeTensors){0};
}

const SafeTensor *safetensors_find(const SafeTensors *st, const char *name) {
    const SafeTensor *named = &(SafeTensor){.name = name}, **found = NULL;
    if (st->count) found = bsearch(&named, st->by_name, (size_t)st->count, sizeof *st->by_name, compare_names);
    return found ? *found : NULL;
}

const char *safetensors_metadata(const SafeTensors *st, const char *key) {
    return json_string_value(json_object_get(json_object_get(st->json, "__metadata__"), key));
}

/* == Values ===================================================================================================== */
/* Data need not be aligned, so elements are read by memcpy, which compiles to a plain load. */

static float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* 1 sign, 5 exponent (bias 15), 10 fraction.  In a float's fields the exponent is too small by 112; a subnormal number
 * is its fraction times 2^-24. */
static float float_of_half(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7FFF;
    if (rest < 0x0400) return float_of_bits(sign | 0x3F800000) * ((float)rest * 0x1p-24f);
    return float_of_bits(sign | ((rest << 13) + (rest < 0x7C00 ? 112u << 23 : 224u << 23)));
}

bool safetensors_to_float(const SafeTensor *tensor, float *out, Error *error) {
    const char *data = tensor->data;
    size_t n = tensor->size;
    uint16_t half;
    double wide;
    switch (tensor->dtype) {
    case SAFE_F32:
        if (n) memcpy(out, data, n * sizeof *out);
        return true;
    case SAFE_F16:
        for (size_t i = 0; i < n; i++) out[i] = float_of_half((memcpy(&half, data + 2 * i, 2), half));
        return true;
    case SAFE_BF16:
        for (size_t i = 0; i < n; i++) out[i] = float_of_bits((uint32_t)(memcpy(&half, data + 2 * i, 2), half) << 16);
        return true;
    case SAFE_F64:
        for (size_t i = 0; i < n; i++) out[i] = (float)(memcpy(&wide, data + 8 * i, 8), wide);
        return true;
    default:
        return refuse(error, "%s: %s: expected F32, F16, BF16 or F64, got %s", tensor->file,
                      tensor->name, dtypes[tensor->dtype].name);
    }
}

bool safetensors_to_int64(const SafeTensor *tensor, int64_t *out, Error *error) {
    const char *data = tensor->data;
    size_t n = tensor->size;
    int32_t word;
    int16_t half;
    switch (tensor->dtype) {
    case SAFE_I64:
        if (n) memcpy(out, data, n * sizeof *out);
        return true;
    case SAFE_I32:
        for (size_t i = 0; i < n; i++) out[i] = (memcpy(&word, data + 4 * i, 4), word);
        return true;
    case SAFE_I16:
        for (size_t i = 0; i < n; i++) out[i] = (memcpy(&half, data + 2 * i, 2), half);
        return true;
    case SAFE_I8:
        for (size_t i = 0; i < n; i++) out[i] = ((const signed char *)data)[i];
        return true;
    case SAFE_U8:
        for (size_t i = 0; i < n; i++) out[i] = ((const unsigned char *)data)[i];
        return true;
    default:
        return refuse(error, "%s: %s: expected I64, I32, I16, I8 or U8, got %s", tensor->file,
                      tensor->name, dtypes[tensor->dtype].name);
    }
}

/* == Writing ==================================================================================================== */

/* An entry with its size, in the order of the file. */
typedef struct {
    const SafeTensorEntry *entry;
    size_t bytes;
} Piece;

static bool check_entry(const SafeTensorEntry *entry, size_t *bytes, const char *path, Error *error) {
    const char *name = entry->name;
    if (!strcmp(name, "__metadata__")) return refuse(error, "%s: %s: the name is reserved", path, name);
    if (entry->ndim < 0 || entry->ndim > SAFETENSORS_MAX_DIMS)
        return refuse(error, "%s: %s: %d dimensions (at most %d)", path, name, entry->ndim, SAFETENSORS_MAX_DIMS);
    *bytes = dtypes[entry->dtype].size;
    for (int i = 0; i < entry->ndim; i++)
        if (__builtin_mul_overflow(*bytes, entry->shape[i], bytes) || (uint64_t)(*bytes | entry->shape[i]) >> 53)
            return refuse(error, "%s: %s: the size in bytes overflows", path, name);
    return true;
}

static Piece *plan_pieces(const SafeTensorEntry *entries, int count, const char *path, Error *error) {
    Piece *pieces = calloc((size_t)count + 1, sizeof *pieces);
    if (!pieces) {
        refuse(error, "%s: out of memory for %d tensors", path, count);
        return NULL;
    }
    int n = 0;
    for (size_t width = 8; width; width /= 2) {
        for (int i = 0; i < count; i++) {
            if (dtypes[entries[i].dtype].size != width) continue;
            pieces[n].entry = &entries[i];
            if (check_entry(&entries[i], &pieces[n++].bytes, path, error)) continue;
            free(pieces);
            return NULL;
        }
    }
    return pieces;
}

/* Takes ownership of `value`.  `object` is the file's, or its metadata. */
static bool add_json(json_t *object, const char *name, json_t *value, const char *path, Error *error) {
    if (json_object_get(object, name)) {
        json_decref(value);
        return refuse(error, "%s: %s: the name occurs twice", path, name);
    }
    return !json_object_set_new(object, name, value) ||
           refuse(error, "%s: %s: the name or its text is not UTF-8", path, name);
}

static json_t *describe(const Piece *piece, size_t offset) {
    json_t *shape = json_array();
    for (int i = 0; i < piece->entry->ndim; i++)
        json_array_append_new(shape, json_integer((json_int_t)piece->entry->shape[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtypes[piece->entry->dtype].name, "shape", shape, "data_offsets",
                     (json_int_t)offset, (json_int_t)offset + (json_int_t)piece->bytes);
}

static char *print_json(const Piece *pieces, int count, const SafeMetadata *metadata, int metadata_count,
                        const char *path, Error *error) {
    json_t *root = json_object(), *map = json_object();
    bool ok = !metadata_count || add_json(root, "__metadata__", json_incref(map), path, error);
    for (int i = 0; ok && i < metadata_count; i++)
        ok = add_json(map, metadata[i].key, json_string(metadata[i].value), path, error);
    size_t offset = 0;
    for (int i = 0; ok && i < count; i++) {
        ok = add_json(root, pieces[i].entry->name, describe(&pieces[i], offset), path, error);
        offset += pieces[i].bytes;
    }
    char *text = ok ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    json_decref(map);
    return text;
}

/* The length, the JSON and the spaces that bring the data to a multiple of 8. */
static char *make_header(const Piece *pieces, int count, const SafeMetadata *metadata, int metadata_count, size_t *size,
                         const char *path, Error *error) {
    char *json = print_json(pieces, count, metadata, metadata_count, path, error), *header = NULL;
    size_t length = json ? strlen(json) : 0, padded = (length + 7) / 8 * 8;
    uint64_t stored = padded;
    *size = sizeof stored + padded;
    if (padded > SAFETENSORS_MAX_HEADER)
        refuse(error, "%s: the header would have %zu bytes (at most %d)", path, padded, SAFETENSORS_MAX_HEADER);
    else if (json && !(header = malloc(*size)))
        refuse(error, "%s: out of memory for a header of %zu bytes", path, *size);
    if (header) {
        memcpy(header, &stored, sizeof stored);
        memcpy(header + sizeof stored, json, length);
        memset(header + sizeof stored + length, ' ', padded - length);
    }
    free(json);
    return header;
}

/* The contents of a file. */
typedef struct {
    const char *header;
    size_t header_size;
    const Piece *pieces; /* [count] */
    int count;
} Content;

static bool write_pieces(FILE *file, const void *content) {
    const Content *c = content;
    bool ok = fwrite(c->header, 1, c->header_size, file) == c->header_size;
    for (int i = 0; ok && i < c->count; i++) {
        size_t bytes = c->pieces[i].bytes; /* 0: there may be no data */
        ok = !bytes || fwrite(c->pieces[i].entry->data, 1, bytes, file) == bytes;
    }
    return ok;
}

bool safetensors_write(const char *path, const SafeTensorEntry *entries, int count, const SafeMetadata *metadata,
                       int metadata_count, Error *error) {
    size_t header_size;
    Error why;
    Piece *pieces = plan_pieces(entries, count, path, error);
    if (!pieces) return false;
    char *header = make_header(pieces, count, metadata, metadata_count, &header_size, path, error);
    Content content = {header, header_size, pieces, count};
    bool ok = header && (file_replace(path, write_pieces, &content, &why) || refuse(error, "%s: %s", path, why.text));
    free(header);
    free(pieces);
    return ok;
}
