#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <ini.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/config_parts.h"
#include "core/die.h"
#include "core/error.h"

enum { LINE_LIMIT = 8192 };

/* Each function parses the whole text or fails.  `label` is the place and the name: "configs/x.ini:12: lr", "--lr". */

/* The entry's limits if it has any, or the type's. */
static void bounds(const ConfigEntry *entry, double *min, double *max) {
    bool free = entry->min == 0 && entry->max == 0, real = entry->type == CONFIG_FLOAT || entry->type == CONFIG_FLOATS;
    double low = real ? -FLT_MAX : entry->type == CONFIG_UINT64 ? 0 : INT_MIN;
    double high = real ? FLT_MAX : entry->type == CONFIG_UINT64 ? (double)UINT64_MAX : INT_MAX;
    if (entry->type == CONFIG_SIZE) low = 1;
    *min = free || entry->min < low ? low : entry->min;
    *max = free || entry->max > high ? high : entry->max;
}

static bool refuse_type(const ConfigEntry *entry, const char *value, const char *label, Error *error) {
    static const char *const articles[] = {[CONFIG_INT] = "an ", [CONFIG_UINT64] = "a ", [CONFIG_FLOAT] = "a ",
                                           [CONFIG_INTS] = "an ", [CONFIG_FLOATS] = "a ", [CONFIG_LIST] = NULL};
    char *expected = config_values_text(entry);
    const char *article = articles[entry->type] ? articles[entry->type] : "";
    refuse(error, "%s: expected %s%s, got '%.60s'", label, article, expected, value);
    free(expected);
    return false;
}

static bool refuse_range(const ConfigEntry *entry, const char *value, const char *label, Error *error) {
    double min, max;
    bounds(entry, &min, &max);
    if (entry->min != 0 || entry->max != 0) {
        char *expected = config_values_text(entry);
        refuse(error, "%s: %.60s is out of range (%s)", label, value, expected);
        free(expected);
        return false;
    }
    if (entry->type == CONFIG_UINT64)
        return refuse(error, "%s: %.60s is out of range (from 0 to 2^64 - 1)", label, value);
    return refuse(error, "%s: %.60s is out of range (from %.10g to %.10g)", label, value, min, max);
}

/* Decimal digits with an optional sign, saturated to long long; *end is the first character not used. */
static bool parse_integer(const char *text, long long *value, char **end) {
    const char *digits = text + (*text == '-' || *text == '+');
    if (!isdigit((unsigned char)*digits)) return false;
    *value = strtoll(text, end, 10);
    return true;
}

static bool parse_int(int *field, const ConfigEntry *entry, const char *value, const char *label, Error *error) {
    long long number;
    double min, max;
    char *end;
    bounds(entry, &min, &max);
    if (!parse_integer(value, &number, &end) || *end) return refuse_type(entry, value, label, error);
    if ((double)number < min || (double)number > max) return refuse_range(entry, value, label, error);
    *field = (int)number;
    return true;
}

static bool parse_uint64(uint64_t *field, const ConfigEntry *entry, const char *value, const char *label,
                         Error *error) {
    double min, max;
    char *end;
    bounds(entry, &min, &max);
    if (!isdigit((unsigned char)*value)) return refuse_type(entry, value, label, error);
    errno = 0;
    unsigned long long number = strtoull(value, &end, 10);
    if (*end) return refuse_type(entry, value, label, error);
    if (errno || (double)number < min || (double)number > max) return refuse_range(entry, value, label, error);
    *field = number;
    return true;
}

static bool parse_float(float *field, const ConfigEntry *entry, const char *value, const char *label, Error *error) {
    double min, max;
    char *end;
    bounds(entry, &min, &max);
    if (!*value || isspace((unsigned char)*value)) return refuse_type(entry, value, label, error);
    errno = 0;
    float number = strtof(value, &end);
    if (*end) return refuse_type(entry, value, label, error);
    bool digits = isdigit((unsigned char)value[strcspn(value, "0123456789(")]); /* not inf, not nan(2) */
    if (!digits) return refuse(error, "%s: expected a finite number, got '%.60s'", label, value);
    if (number == 0 && errno == ERANGE) return refuse(error, "%s: %.60s is too small for a float", label, value);
    if (isinf(number) || number < (float)min || number > (float)max) return refuse_range(entry, value, label, error);
    *field = number;
    return true;
}

static bool parse_bool(bool *field, const ConfigEntry *entry, const char *value, const char *label, Error *error) {
    static const char *const words[] = {"false", "true", "0", "1", "no", "yes", "off", "on"};
    for (int i = 0; i < 8; i++) {
        if (strcasecmp(value, words[i])) continue;
        *field = i & 1;
        return true;
    }
    return refuse_type(entry, value, label, error);
}

static bool parse_size(int *field, const ConfigEntry *entry, const char *value, const char *label, Error *error) {
    long long size[2];
    double min, max;
    char *end;
    bounds(entry, &min, &max);
    if (!parse_integer(value, &size[0], &end)) return refuse_type(entry, value, label, error);
    size[1] = size[0];
    if (*end && (!strchr("xX,", *end) || !parse_integer(end + 1, &size[1], &end) || *end))
        return refuse_type(entry, value, label, error);
    for (int i = 0; i < 2; i++)
        if ((double)size[i] < min || (double)size[i] > max) return refuse_range(entry, value, label, error);
    field[0] = (int)size[0];
    field[1] = (int)size[1];
    return true;
}

/* Splits `value` at its commas into copies in `pieces`; returns how many, or 0 if there are too many. */
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

static bool parse_ints(ConfigInts *field, const ConfigEntry *entry, const char *value, const char *label,
                       Error *error) {
    char pieces[CONFIG_NUMBERS][64];
    ConfigInts numbers = {.count = split_list(pieces, value)};
    if (!numbers.count) return refuse(error, "%s: more than %d numbers", label, CONFIG_NUMBERS);
    for (int i = 0; i < numbers.count; i++)
        if (!parse_int(&numbers.at[i], entry, pieces[i], label, error)) return false;
    *field = numbers;
    return true;
}

static bool parse_floats(ConfigFloats *field, const ConfigEntry *entry, const char *value, const char *label,
                         Error *error) {
    char pieces[CONFIG_NUMBERS][64];
    bool none = !*value && !(entry->initial && *entry->initial);
    ConfigFloats numbers = {.count = none ? 0 : split_list(pieces, value)};
    if (none) return *field = numbers, true;
    if (!numbers.count) return refuse(error, "%s: more than %d numbers", label, CONFIG_NUMBERS);
    for (int i = 0; i < numbers.count; i++)
        if (!parse_float(&numbers.at[i], entry, pieces[i], label, error)) return false;
    *field = numbers;
    return true;
}

static bool refuse_choice(const ConfigEntry *entry, const char *value, const char *label, Error *error) {
    int count = config_choice_count(entry);
    const char **names = xcalloc((size_t)count, sizeof *names, "names of choices");
    for (int i = 0; i < count; i++) names[i] = config_choice_name(entry, i);
    const char *noun = entry->noun ? entry->noun : "value", *near = nearest_word(value, names, count);
    free(names);
    if (near) return refuse(error, "%s: unknown %s '%.60s' (did you mean '%s'?)", label, noun, value, near);
    char *known = config_values_text(entry);
    refuse(error, "%s: unknown %s '%.60s' (%s)", label, noun, value, known);
    free(known);
    return false;
}

static bool parse_choice(void *field, const ConfigEntry *entry, const char *value, const char *label, Error *error) {
    int count = config_choice_count(entry);
    for (int i = 0; i < count; i++) {
        if (strcmp(value, config_choice_name(entry, i))) continue;
        if (entry->type == CONFIG_CHOICE) *(int *)field = i;
        else memcpy(field, &(const void *){config_item_at(entry, i)}, sizeof(void *));
        return true;
    }
    return refuse_choice(entry, value, label, error);
}

static bool parse_items(ConfigItems *field, const ConfigEntry *entry, const char *value, const char *label,
                        Error *error) {
    char pieces[CONFIG_NUMBERS][64];
    ConfigItems items = {.count = split_list(pieces, value)};
    if (!items.count) return refuse(error, "%s: more than %d names", label, CONFIG_NUMBERS);
    for (int i = 0; i < items.count; i++)
        if (!parse_choice(&items.at[i], entry, pieces[i], label, error)) return false;
    *field = items;
    return true;
}

/* inih's maximum line length is a compile-time constant (200), except in Debian's build, which has this variable. */
extern int ini_max_line __attribute__((weak));

size_t config_line_limit(void) {
    if (!&ini_max_line) return INI_MAX_LINE;
    ini_max_line = LINE_LIMIT;
    return LINE_LIMIT;
}

/* Checks that a string setting survives being written to an INI file and read back. */
static bool parse_string(const char **field, char **owned, const ConfigEntry *entry, const char *value,
                         const char *label, Error *error) {
    size_t length = strlen(value), limit = config_line_limit() - strlen(entry->name) - 8;
    for (size_t i = 0; i < length && !entry->command_line_only; i++) {
        if (iscntrl((unsigned char)value[i]))
            return refuse(error, "%s: a control character (%d) cannot be saved in an INI file", label, value[i]);
        if (value[i] == ';' && (i == 0 || value[i - 1] == ' '))
            return refuse(error, "%s: ' ;' cannot be saved in an INI file, where it begins a comment", label);
    }
    if (length > limit && !entry->command_line_only)
        return refuse(error, "%s: %zu characters are too long for an INI file (at most %zu)", label, length, limit);
    if (length && !entry->command_line_only && (value[0] == ' ' || value[length - 1] == ' '))
        return refuse(error, "%s: spaces around a value cannot be saved in an INI file", label);
    char *copy = xcalloc(length + 1, 1, entry->name);
    memcpy(copy, value, length);
    free(*owned);
    *field = *owned = copy;
    return true;
}

/* Sets entry i; on failure nothing changes. */
bool config_set_value(Config *config, int i, const char *value, const char *label, Error *error) {
    struct ConfigItem *item = &config->items[i];
    const ConfigEntry *entry = item->entry;
    void *field = item->field;
    switch (entry->type) {
    case CONFIG_INT: return parse_int(field, entry, value, label, error);
    case CONFIG_UINT64: return parse_uint64(field, entry, value, label, error);
    case CONFIG_FLOAT: return parse_float(field, entry, value, label, error);
    case CONFIG_BOOL: return parse_bool(field, entry, value, label, error);
    case CONFIG_STRING: return parse_string(field, &item->text, entry, value, label, error);
    case CONFIG_CHOICE:
    case CONFIG_ITEM: return parse_choice(field, entry, value, label, error);
    case CONFIG_ITEMS: return parse_items(field, entry, value, label, error);
    case CONFIG_SIZE: return parse_size(field, entry, value, label, error);
    case CONFIG_INTS: return parse_ints(field, entry, value, label, error);
    case CONFIG_FLOATS: return parse_floats(field, entry, value, label, error);
    case CONFIG_LIST: break;
    }
    return refuse(error, "%s: a list can stand only on the command line", label);
}
