/* Parsers of values, one for each type of setting. */
#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <ini.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/config/config_parts.h"
#include "core/die.h"

enum { LINE_LIMIT = 8192 };

/* The text to read, and its setting.  Each parser sets *field, whose type is in the entry, from the whole text, or
 * refuses the text. */
typedef struct {
    struct ConfigSetting *setting;
    const ConfigEntry *entry;
    const char *label; /* the place and the name: "configs/x.ini:12: lr", "--lr" */
    Error *error;
} Reading;
typedef bool Parser(const Reading *r, const char *value, void *field);

/* The entry's limits if it has any, or the type's. */
static void bounds(const ConfigEntry *entry, double *min, double *max) {
    bool free = entry->min == 0 && entry->max == 0, real = entry->type == CONFIG_FLOAT || entry->type == CONFIG_FLOATS;
    double low = real ? -FLT_MAX : entry->type == CONFIG_UINT64 ? 0 : INT_MIN;
    double high = real ? FLT_MAX : entry->type == CONFIG_UINT64 ? (double)UINT64_MAX : INT_MAX;
    if (entry->type == CONFIG_SIZE) low = 1;
    *min = free || entry->min < low ? low : entry->min;
    *max = free || entry->max > high ? high : entry->max;
}

static bool refuse_type(const Reading *r, const char *value) {
    char *expected = config_values_text(r->entry);
    refuse(r->error, "%s: expected %s%s, got '%.60s'", r->label, config_types[r->entry->type].article, expected, value);
    free(expected);
    return false;
}

static bool refuse_range(const Reading *r, const char *value) {
    const ConfigEntry *entry = r->entry;
    double min, max;
    bounds(entry, &min, &max);
    char *expected = entry->min != 0 || entry->max != 0 ? config_values_text(entry) : NULL, type[64];
    if (entry->type == CONFIG_UINT64) snprintf(type, sizeof type, "from 0 to 2^64 - 1");
    else snprintf(type, sizeof type, "from %.10g to %.10g", min, max);
    refuse(r->error, "%s: %.60s is out of range (%s)", r->label, value, expected ? expected : type);
    free(expected);
    return false;
}

static bool is_outside(const Reading *r, double number) {
    double min, max;
    bounds(r->entry, &min, &max);
    return number < min || number > max;
}

/* Decimal digits with an optional sign, saturated to long long; *end is the first character not used. */
static bool parse_integer(const char *text, long long *value, char **end) {
    const char *digits = text + (*text == '-' || *text == '+');
    if (!isdigit((unsigned char)*digits)) return false;
    *value = strtoll(text, end, 10);
    return true;
}

static bool parse_int(const Reading *r, const char *value, void *field) {
    long long number;
    char *end;
    if (!parse_integer(value, &number, &end) || *end) return refuse_type(r, value);
    if (is_outside(r, (double)number)) return refuse_range(r, value);
    *(int *)field = (int)number;
    return true;
}

static bool parse_uint64(const Reading *r, const char *value, void *field) {
    char *end;
    if (!isdigit((unsigned char)*value)) return refuse_type(r, value);
    errno = 0;
    unsigned long long number = strtoull(value, &end, 10);
    if (*end) return refuse_type(r, value);
    if (errno || is_outside(r, (double)number)) return refuse_range(r, value);
    *(uint64_t *)field = number;
    return true;
}

static bool parse_float(const Reading *r, const char *value, void *field) {
    double min, max;
    char *end;
    bounds(r->entry, &min, &max);
    if (!*value || isspace((unsigned char)*value)) return refuse_type(r, value);
    errno = 0;
    float number = strtof(value, &end);
    if (*end) return refuse_type(r, value);
    bool digits = isdigit((unsigned char)value[strcspn(value, "0123456789(")]); /* not inf, not nan(2) */
    if (!digits) return refuse(r->error, "%s: expected a finite number, got '%.60s'", r->label, value);
    if (number == 0 && errno == ERANGE)
        return refuse(r->error, "%s: %.60s is too small for a float", r->label, value);
    if (isinf(number) || number < (float)min || number > (float)max) return refuse_range(r, value);
    *(float *)field = number;
    return true;
}

static bool parse_bool(const Reading *r, const char *value, void *field) {
    static const char *const words[] = {"false", "true", "0", "1", "no", "yes", "off", "on"};
    for (int i = 0; i < 8; i++) {
        if (strcasecmp(value, words[i])) continue;
        *(bool *)field = i & 1;
        return true;
    }
    return refuse_type(r, value);
}

static bool parse_size(const Reading *r, const char *value, void *field) {
    long long height, width;
    char *end;
    if (!parse_integer(value, &height, &end)) return refuse_type(r, value);
    width = height;
    if (*end && (!strchr("xX,", *end) || !parse_integer(end + 1, &width, &end) || *end)) return refuse_type(r, value);
    if (is_outside(r, (double)height) || is_outside(r, (double)width)) return refuse_range(r, value);
    memcpy(field, (int[]){(int)height, (int)width}, 2 * sizeof(int));
    return true;
}

static bool refuse_choice(const Reading *r, const char *value) {
    int count = config_choice_count(r->entry);
    const char **names = xcalloc((size_t)count, sizeof *names, "names of choices");
    for (int i = 0; i < count; i++) names[i] = config_choice_name(r->entry, i);
    const char *noun = r->entry->noun ? r->entry->noun : "value", *near = nearest_word(value, names, count);
    free(names);
    if (near) return refuse(r->error, "%s: unknown %s '%.60s' (did you mean '%s'?)", r->label, noun, value, near);
    char *known = config_values_text(r->entry);
    refuse(r->error, "%s: unknown %s '%.60s' (%s)", r->label, noun, value, known);
    free(known);
    return false;
}

static bool parse_choice(const Reading *r, const char *value, void *field) {
    int count = config_choice_count(r->entry);
    for (int i = 0; i < count; i++) {
        if (strcmp(value, config_choice_name(r->entry, i))) continue;
        if (r->entry->type == CONFIG_CHOICE) *(int *)field = i;
        else memcpy(field, &(const void *){config_item_at(r->entry, i)}, sizeof(void *));
        return true;
    }
    return refuse_choice(r, value);
}

/* Splits `value` at its commas into copies in `pieces`; returns their number, or 0 if there are too many. */
static int split_list(char pieces[CONFIG_NUMBERS][64], const char *value) {
    for (int count = 0; count < CONFIG_NUMBERS; count++) {
        size_t length = strcspn(value, ",");
        snprintf(pieces[count], sizeof pieces[count], "%.*s", length < 64 ? (int)length : 63, value);
        if (!value[length]) return count + 1;
        value += length + 1;
        value += strspn(value, " ");
    }
    return 0;
}

/* One to eight values of `size` bytes with commas between them; nothing changes unless all are valid. */
static bool parse_list(const Reading *r, const char *value, Parser *parse, const char *what, int *count, void *at,
                       size_t size) {
    char pieces[CONFIG_NUMBERS][64];
    const void *read[CONFIG_NUMBERS] = {0}; /* room for any of the types */
    int n = split_list(pieces, value);
    if (!n) return refuse(r->error, "%s: more than %d %s", r->label, CONFIG_NUMBERS, what);
    for (int i = 0; i < n; i++)
        if (!parse(r, pieces[i], (char *)read + (size_t)i * size)) return false;
    *count = n;
    memcpy(at, read, CONFIG_NUMBERS * size);
    return true;
}

static bool parse_ints(const Reading *r, const char *value, void *field) {
    ConfigInts *numbers = field;
    return parse_list(r, value, parse_int, "numbers", &numbers->count, numbers->at, sizeof *numbers->at);
}

static bool parse_floats(const Reading *r, const char *value, void *field) {
    ConfigFloats *numbers = field;
    bool may_be_empty = !(r->entry->initial && *r->entry->initial);
    if (!*value && may_be_empty) return *numbers = (ConfigFloats){0}, true;
    return parse_list(r, value, parse_float, "numbers", &numbers->count, numbers->at, sizeof *numbers->at);
}

static bool parse_items(const Reading *r, const char *value, void *field) {
    ConfigItems *items = field;
    return parse_list(r, value, parse_choice, "names", &items->count, items->at, sizeof *items->at);
}

/* inih's maximum line length is a compile-time constant (200), except in Debian's build, which has this variable. */
extern int ini_max_line __attribute__((weak));

size_t config_line_limit(void) {
    if (!&ini_max_line) return INI_MAX_LINE;
    ini_max_line = LINE_LIMIT;
    return LINE_LIMIT;
}

/* Does a string survive being written to an INI file and read back? */
static bool check_savable(const Reading *r, const char *value) {
    size_t length = strlen(value), limit = config_line_limit() - strlen(r->entry->name) - 8;
    for (size_t i = 0; i < length; i++) {
        if (iscntrl((unsigned char)value[i]))
            return refuse(r->error, "%s: a control character (%d) cannot be saved in an INI file", r->label, value[i]);
        if (value[i] == ';' && (i == 0 || value[i - 1] == ' '))
            return refuse(r->error, "%s: ' ;' cannot be saved in an INI file, where it begins a comment", r->label);
    }
    if (length > limit)
        return refuse(r->error, "%s: %zu characters are too long for an INI file (at most %zu)", r->label, length,
                      limit);
    if (length && (value[0] == ' ' || value[length - 1] == ' '))
        return refuse(r->error, "%s: spaces around a value cannot be saved in an INI file", r->label);
    return true;
}

static bool parse_string(const Reading *r, const char *value, void *field) {
    if (!r->entry->command_line_only && !check_savable(r, value)) return false;
    char *copy = xstrdup(value); /* `value` may be the text that is freed */
    free(r->setting->text);
    *(const char **)field = r->setting->text = copy;
    return true;
}

static bool parse_argument_list(const Reading *r, const char *value, void *field) {
    (void)value, (void)field;
    return refuse(r->error, "%s: a list is possible only on the command line", r->label);
}

bool config_set_value(struct ConfigSetting *setting, const char *value, const char *label, Error *error) {
    static Parser *const parsers[] = {
        [CONFIG_INT] = parse_int,       [CONFIG_UINT64] = parse_uint64, [CONFIG_FLOAT] = parse_float,
        [CONFIG_BOOL] = parse_bool,     [CONFIG_STRING] = parse_string, [CONFIG_CHOICE] = parse_choice,
        [CONFIG_ITEM] = parse_choice,   [CONFIG_ITEMS] = parse_items,   [CONFIG_SIZE] = parse_size,
        [CONFIG_INTS] = parse_ints,     [CONFIG_FLOATS] = parse_floats, [CONFIG_LIST] = parse_argument_list,
    };
    const Reading r = {setting, setting->entry, label, error};
    return parsers[setting->entry->type](&r, value, setting->field);
}
