/* Stands in for jansson where there is no jansson, in WebAssembly: what core/safetensors.c needs to read a header.
 * It accepts and refuses the same texts as jansson 2.14 does with JSON_REJECT_DUPLICATES and JSON_DISABLE_EOF_CHECK,
 * which are the flags of its only caller.  Values are never changed once they are read, so they need no count of their
 * owners: the root is freed with all that it holds. */
#include <jansson.h>

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MOST = 2048 };

typedef struct {
    json_t *value;
    const struct Members *owner;
    size_t index;
    char key[];
} Member;

typedef struct Members {
    json_t json;
    Member **at;     /* in the order of the text */
    Member **sorted; /* by key */
    size_t count, room;
} Object;

typedef struct {
    json_t json;
    json_t **at;
    size_t count, room;
} Array;

typedef struct {
    json_t json;
    json_int_t value;
} Integer;

typedef struct {
    json_t json;
    char text[];
} String;

typedef struct {
    const unsigned char *text, *at, *end;
    json_error_t *error;
    int depth;
} Reader;

/* == Refusals ===================================================================================================== */

static void *fail(Reader *r, enum json_error_code code, const char *text) {
    if (*r->error->text) return NULL;
    snprintf(r->error->text, sizeof r->error->text - 1, "%s", text);
    r->error->text[sizeof r->error->text - 1] = (char)code;
    r->error->position = (int)(r->at - r->text);
    return NULL;
}

static void *out_of_memory(Reader *r) { return fail(r, json_error_out_of_memory, "out of memory"); }
static void *bad_syntax(Reader *r, const char *text) { return fail(r, json_error_invalid_syntax, text); }

/* A larger *list, with room for one more than `count`. */
static bool grow(Reader *r, void *list, size_t count, size_t *room) {
    void *larger, *old;
    if (count < *room) return true;
    memcpy(&old, list, sizeof old);
    size_t wanted = *room ? 2 * *room : 8;
    if (!(larger = realloc(old, wanted * sizeof(void *)))) return out_of_memory(r);
    memcpy(list, &larger, sizeof larger);
    *room = wanted;
    return true;
}

static json_t *made(Reader *r, json_type type, size_t size) {
    json_t *value = calloc(1, size);
    if (!value) return out_of_memory(r);
    *value = (json_t){type, 1};
    return value;
}

/* == Strings ====================================================================================================== */

/* The length of the UTF-8 sequence at `s`, of which `left` bytes are there; 0 if it is none. */
static size_t utf8_length(const unsigned char *s, size_t left) {
    size_t length = s[0] < 0x80 ? 1 : s[0] < 0xC2 ? 0 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : s[0] < 0xF5 ? 4 : 0;
    if (length > left) return 0;
    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xC0) != 0x80) return 0;
    bool wrong = length > 1 && ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F) ||
                                (s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] > 0x8F));
    return wrong ? 0 : length;
}

static char *put_utf8(char *to, uint32_t code) {
    if (code < 0x80) {
        *to++ = (char)code;
        return to;
    }
    int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xC0, 0xE0, 0xF0};
    *to++ = (char)(lead[more] | code >> (6 * more));
    while (more--) *to++ = (char)(0x80 | (code >> (6 * more) & 0x3F));
    return to;
}

/* The four digits after \u; -1: they are none. */
static int32_t hex4(Reader *r) {
    int32_t code = 0;
    if (r->end - r->at < 4) return -1;
    for (int i = 0; i < 4; i++) {
        static const char digits[] = "0123456789abcdef";
        const char *digit = *r->at ? strchr(digits, *r->at < 'A' ? *r->at : *r->at | 32) : NULL;
        if (!digit) return -1;
        code = 16 * code + (int32_t)(digit - digits);
        r->at++;
    }
    return code;
}

static bool read_code(Reader *r, char **to) {
    int32_t code = hex4(r), low = 0;
    if (code < 0) return bad_syntax(r, "invalid escape");
    if (code >= 0xD800 && code < 0xDC00) {
        bool pair = r->end - r->at >= 2 && r->at[0] == '\\' && r->at[1] == 'u';
        r->at += pair ? 2 : 0;
        low = pair ? hex4(r) : -1;
        if (low < 0xDC00 || low > 0xDFFF) return bad_syntax(r, "invalid Unicode");
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code < 0xE000) {
        return bad_syntax(r, "invalid Unicode");
    }
    if (!code) return fail(r, json_error_null_character, "\\u0000 is not allowed");
    *to = put_utf8(*to, (uint32_t)code);
    return true;
}

static bool read_escape(Reader *r, char **to) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char *found = r->at < r->end && *r->at ? strchr(names, *r->at) : NULL;
    if (r->at == r->end) return bad_syntax(r, "premature end of input");
    if (*r->at++ == 'u') return read_code(r, to);
    if (!found) return bad_syntax(r, "invalid escape");
    *(*to)++ = values[found - names];
    return true;
}

/* After the opening quote, to `to`, which has room for what is left of the input. */
static bool read_characters(Reader *r, char *to) {
    while (r->at < r->end && *r->at != '"') {
        size_t length = utf8_length(r->at, (size_t)(r->end - r->at));
        if (*r->at == '\\') {
            r->at++;
            if (!read_escape(r, &to)) return false;
            continue;
        }
        if (!length) return fail(r, json_error_invalid_utf8, "unable to decode UTF-8");
        if (*r->at < 0x20) return bad_syntax(r, "control character");
        for (; length; length--) *to++ = (char)*r->at++;
    }
    if (r->at == r->end) return bad_syntax(r, "premature end of input");
    r->at++;
    *to = 0;
    return true;
}

/* The bytes up to the closing quote, the quote included; no escape is shorter than what it says. */
static size_t room_of_string(const Reader *r) {
    const unsigned char *at = r->at;
    while (at < r->end && *at != '"') at += *at == '\\' && at + 1 < r->end ? 2 : 1;
    return (size_t)(at - r->at) + 1;
}

static json_t *read_string(Reader *r) {
    String *s = (String *)made(r, JSON_STRING, sizeof *s + room_of_string(r));
    if (!s || read_characters(r, s->text)) return s ? &s->json : NULL;
    free(s);
    return NULL;
}

/* == Other values ================================================================================================= */

static void skip_space(Reader *r) {
    while (r->at < r->end && *r->at && strchr(" \t\n\r", *r->at)) r->at++;
}

static bool take(Reader *r, char wanted) {
    skip_space(r);
    bool found = r->at < r->end && *r->at == (unsigned char)wanted;
    r->at += found;
    return found;
}

static bool take_digits(Reader *r) {
    const unsigned char *from = r->at;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9') r->at++;
    return r->at > from;
}

/* Numbers with a fraction or an exponent are real, and nothing of them is needed but their type. */
static json_t *read_number(Reader *r) {
    char digits[32] = "";
    const unsigned char *from = r->at;
    bool real = false, zero;
    r->at += *r->at == '-';
    zero = r->at < r->end && *r->at == '0';
    r->at += zero;
    if (!zero && !take_digits(r)) return bad_syntax(r, "invalid token");
    if (zero && r->at < r->end && *r->at >= '0' && *r->at <= '9') return bad_syntax(r, "invalid token");
    if (r->at < r->end && *r->at == '.') {
        real = true;
        r->at++;
        if (!take_digits(r)) return bad_syntax(r, "invalid token");
    }
    if (r->at < r->end && (*r->at == 'e' || *r->at == 'E')) {
        real = true;
        r->at++;
        if (r->at < r->end && (*r->at == '+' || *r->at == '-')) r->at++;
        if (!take_digits(r)) return bad_syntax(r, "invalid token");
    }
    size_t length = (size_t)(r->at - from);
    if (real) {
        char *text = strndup((const char *)from, length);
        if (!text) return out_of_memory(r);
        double value = strtod(text, NULL);
        free(text);
        if (value > 1.7976931348623157e308 || value < -1.7976931348623157e308)
            return fail(r, json_error_numeric_overflow, "real number overflow");
        return made(r, JSON_REAL, sizeof(json_t));
    }
    if (length >= sizeof digits) return fail(r, json_error_numeric_overflow, "too big integer");
    memcpy(digits, from, length);
    errno = 0;
    json_int_t value = strtoll(digits, NULL, 10);
    if (errno) return fail(r, json_error_numeric_overflow, "too big integer");
    Integer *number = (Integer *)made(r, JSON_INTEGER, sizeof *number);
    if (number) number->value = value;
    return &number->json;
}

static json_t *read_word(Reader *r) {
    static const struct {
        const char *word;
        json_type type;
    } words[] = {{"true", JSON_TRUE}, {"false", JSON_FALSE}, {"null", JSON_NULL}};
    const unsigned char *from = r->at;
    while (r->at < r->end && ((*r->at | 32) >= 'a' && (*r->at | 32) <= 'z')) r->at++;
    for (int i = 0; i < 3; i++)
        if ((size_t)(r->at - from) == strlen(words[i].word) && !memcmp(from, words[i].word, strlen(words[i].word)))
            return made(r, words[i].type, sizeof(json_t));
    return bad_syntax(r, "invalid token");
}

static json_t *read_value(Reader *r);

static json_t *read_array(Reader *r) {
    Array *array = (Array *)made(r, JSON_ARRAY, sizeof *array);
    bool ok = array, more = ok && !take(r, ']');
    while (ok && more) {
        json_t *value = read_value(r);
        ok = value && grow(r, &array->at, array->count, &array->room);
        if (ok) array->at[array->count++] = value;
        else json_decref(value);
        more = ok && take(r, ',');
        if (ok && !more) ok = take(r, ']') || bad_syntax(r, "']' expected");
    }
    if (ok) return &array->json;
    if (array) json_decref(&array->json);
    return NULL;
}

static int by_key(const void *a, const void *b) {
    return strcmp((*(Member *const *)a)->key, (*(Member *const *)b)->key);
}

static bool sort_members(Reader *r, Object *object) {
    size_t count = object->count;
    if (!count) return true;
    object->sorted = malloc(count * sizeof(Member *));
    if (!object->sorted) return out_of_memory(r);
    memcpy(object->sorted, object->at, count * sizeof(Member *));
    qsort(object->sorted, count, sizeof(Member *), by_key);
    for (size_t i = 1; i < count; i++)
        if (!strcmp(object->sorted[i - 1]->key, object->sorted[i]->key))
            return fail(r, json_error_duplicate_key, "duplicate object key");
    return true;
}

/* "key": value, at the end of the object's members. */
static bool read_member(Reader *r, Object *object) {
    if (!take(r, '"')) return bad_syntax(r, "string or '}' expected");
    if (!grow(r, &object->at, object->count, &object->room)) return false;
    Member *member = calloc(1, sizeof *member + room_of_string(r));
    if (!member) return out_of_memory(r);
    member->owner = object;
    member->index = object->count;
    object->at[object->count++] = member;
    if (!read_characters(r, member->key)) return false;
    if (!take(r, ':')) return bad_syntax(r, "':' expected");
    return (member->value = read_value(r)) != NULL;
}

static json_t *read_object(Reader *r) {
    Object *object = (Object *)made(r, JSON_OBJECT, sizeof *object);
    bool ok = object, more = ok && !take(r, '}');
    while (ok && more) {
        ok = read_member(r, object);
        more = ok && take(r, ',');
        if (ok && !more) ok = take(r, '}') || bad_syntax(r, "'}' expected");
    }
    if (ok && sort_members(r, object)) return &object->json;
    if (object) json_decref(&object->json);
    return NULL;
}

static json_t *read_value(Reader *r) {
    json_t *value;
    if (++r->depth > DEPTH_MOST) return fail(r, json_error_stack_overflow, "maximum parsing depth reached");
    skip_space(r);
    if (r->at == r->end) value = bad_syntax(r, "premature end of input");
    else if (take(r, '{')) value = read_object(r);
    else if (take(r, '[')) value = read_array(r);
    else if (take(r, '"')) value = read_string(r);
    else value = *r->at == '-' || (*r->at >= '0' && *r->at <= '9') ? read_number(r) : read_word(r);
    r->depth--;
    return value;
}

/* == jansson's functions ========================================================================================== */

json_t *json_loadb(const char *buffer, size_t size, size_t flags, json_error_t *error) {
    const unsigned char *text = (const unsigned char *)buffer;
    Reader r = {text, text, text + size, error, 0};
    (void)flags;
    memset(error, 0, sizeof *error);
    skip_space(&r);
    if (r.at == r.end || (*r.at != '{' && *r.at != '[')) return bad_syntax(&r, "'[' or '{' expected");
    json_t *root = read_value(&r);
    if (root) error->position = (int)(r.at - text);
    return root;
}

void json_delete(json_t *json) {
    Object *object = (Object *)json;
    Array *array = (Array *)json;
    for (size_t i = 0; json_is_object(json) && i < object->count; i++) {
        json_decref(object->at[i]->value);
        free(object->at[i]);
    }
    for (size_t i = 0; json_is_array(json) && i < array->count; i++) json_decref(array->at[i]);
    if (json_is_object(json)) free(object->at);
    if (json_is_object(json)) free(object->sorted);
    if (json_is_array(json)) free(array->at);
    free(json);
}

/* Where memory runs out, this reader says so itself. */
void json_get_alloc_funcs(json_malloc_t *allocate, json_free_t *release) { *allocate = malloc, *release = free; }
void json_set_alloc_funcs(json_malloc_t allocate, json_free_t release) { (void)allocate, (void)release; }

json_int_t json_integer_value(const json_t *json) { return json_is_integer(json) ? ((const Integer *)json)->value : 0; }
const char *json_string_value(const json_t *json) { return json_is_string(json) ? ((const String *)json)->text : NULL; }
size_t json_array_size(const json_t *json) { return json_is_array(json) ? ((const Array *)json)->count : 0; }
size_t json_object_size(const json_t *json) { return json_is_object(json) ? ((const Object *)json)->count : 0; }

json_t *json_array_get(const json_t *json, size_t index) {
    return index < json_array_size(json) ? ((const Array *)json)->at[index] : NULL;
}

static int key_order(const void *key, const void *member) { return strcmp(key, (*(Member *const *)member)->key); }

json_t *json_object_get(const json_t *json, const char *key) {
    const Object *object = (const Object *)json;
    if (!json_object_size(json)) return NULL;
    Member **found = bsearch(key, object->sorted, object->count, sizeof(Member *), key_order);
    return found ? (*found)->value : NULL;
}

static Member *member_at(const Object *object, size_t index) {
    return index < object->count ? object->at[index] : NULL;
}

void *json_object_iter(json_t *json) { return json_is_object(json) ? member_at((Object *)json, 0) : NULL; }
const char *json_object_iter_key(void *iter) { return iter ? ((Member *)iter)->key : NULL; }
json_t *json_object_iter_value(void *iter) { return iter ? ((Member *)iter)->value : NULL; }
void *json_object_key_to_iter(const char *key) { return key ? (char *)key - offsetof(Member, key) : NULL; }

void *json_object_iter_next(json_t *json, void *iter) {
    (void)json;
    return iter ? member_at(((Member *)iter)->owner, ((Member *)iter)->index + 1) : NULL;
}
