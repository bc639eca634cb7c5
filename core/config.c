#include "core/config.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <ini.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "core/die.h"
#include "core/error.h"

enum { WIDTH = 100, HELP_COLUMN = 30, INCLUDE_DEPTH = 8, FILE_LIMIT = 1 << 20, LABEL_SIZE = 512, LINE_LIMIT = 8192 };

/* What one setting owns. */
struct ConfigState {
    char *origin;             /* NULL: the default */
    char *text;               /* of a string */
    const char **items;       /* of a list; the items themselves are argv's */
    int item_count;
};

/* == The table ================================================================================================== */

static const char *section_of(const Config *config, int i) {
    while (i > 0 && !config->entries[i].section) i--;
    return config->entries[i].section;
}

static const char *const *choices_of(const ConfigEntry *entry, int *count) {
    *count = entry->choice_count;
    return entry->choices_of ? entry->choices_of(count) : entry->choices;
}

/* The type's own limits, or the entry's where it has any. */
static void bounds(const ConfigEntry *entry, double *min, double *max) {
    bool free = entry->min == 0 && entry->max == 0, real = entry->type == CONFIG_FLOAT || entry->type == CONFIG_FLOATS;
    double low = real ? -FLT_MAX : entry->type == CONFIG_UINT64 ? 0 : INT_MIN;
    double high = real ? FLT_MAX : entry->type == CONFIG_UINT64 ? (double)UINT64_MAX : INT_MAX;
    if (entry->type == CONFIG_SIZE) low = 1;
    *min = free || entry->min < low ? low : entry->min;
    *max = free || entry->max > high ? high : entry->max;
}

static bool same_name(const char *a, const char *b, size_t b_length) {
    for (size_t i = 0; i < b_length; i++)
        if (!a[i] || a[i] != (b[i] == '-' ? '_' : b[i])) return false;
    return !a[b_length];
}

static int find_name(const Config *config, const char *name, size_t length) {
    for (int i = 0; i < config->count; i++)
        if (same_name(config->entries[i].name, name, length)) return i;
    return -1;
}

static int must_find(const Config *config, const char *name) {
    int i = find_name(config, name, strlen(name));
    assert(i >= 0 && "the setting is in the table");
    return i;
}

static void *field_of(const Config *config, const ConfigEntry *entry) {
    return (char *)config->settings + entry->offset;
}

/* == Words for values =========================================================================================== */

static void put_range(FILE *out, const ConfigEntry *entry) {
    double min = entry->min, max = entry->max;
    if (min == 0 && max == 0) return;
    bool several = entry->type == CONFIG_SIZE || entry->type == CONFIG_INTS || entry->type == CONFIG_FLOATS;
    const char *each = several ? ", each" : "";
    if (isinf(max)) fprintf(out, "%s at least %.9g", each, min);
    else if (isinf(min)) fprintf(out, "%s at most %.9g", each, max);
    else fprintf(out, "%s from %.9g to %.9g", each, min, max);
}

/* "integer from 1 to 64", "cls or gap": what --help shows and what an error says was expected. */
static void put_values(FILE *out, const ConfigEntry *entry) {
    static const char *const words[] = {[CONFIG_INT] = "integer", [CONFIG_UINT64] = "non-negative integer",
                                        [CONFIG_FLOAT] = "number", [CONFIG_BOOL] = "true or false",
                                        [CONFIG_STRING] = "text", [CONFIG_SIZE] = "N or HxW",
                                        [CONFIG_INTS] = "integer or N,N,...",
                                        [CONFIG_FLOATS] = "number or X,X,...", [CONFIG_LIST] = "one or more"};
    if (entry->type == CONFIG_CHOICE) {
        int count;
        const char *const *choices = choices_of(entry, &count);
        for (int i = 0; i < count; i++)
            fprintf(out, "%s%s", i == 0 ? "" : i == count - 1 ? " or " : ", ", choices[i]);
        return;
    }
    fputs(words[entry->type], out);
    put_range(out, entry);
}

static FILE *open_text(char **text, size_t *size) {
    *text = NULL;
    FILE *out = open_memstream(text, size);
    if (!out) die("out of memory for the text of a setting");
    return out;
}

static char *values_text(const ConfigEntry *entry) {
    char *text;
    size_t size;
    FILE *out = open_text(&text, &size);
    put_values(out, entry);
    if (fclose(out)) die("out of memory for the text of a setting");
    return text;
}

/* The fewest digits that read back as the same float; without an exponent where that stays short. */
static void put_float(FILE *out, float value) {
    char text[32];
    double size = fabs((double)value);
    int digits = size >= 1 && size < 1e7 ? (int)log10(size) + 1 : 1;
    do snprintf(text, sizeof text, "%.*g", digits++, (double)value);
    while (digits <= 9 && strtof(text, NULL) != value);
    fputs(text, out);
}

static void put_current(FILE *out, const Config *config, const ConfigEntry *entry) {
    const void *field = field_of(config, entry);
    int count;
    switch (entry->type) {
    case CONFIG_INT: fprintf(out, "%d", *(const int *)field); break;
    case CONFIG_UINT64: fprintf(out, "%llu", (unsigned long long)*(const uint64_t *)field); break;
    case CONFIG_FLOAT: put_float(out, *(const float *)field); break;
    case CONFIG_BOOL: fputs(*(const bool *)field ? "true" : "false", out); break;
    case CONFIG_STRING: fputs(*(const char *const *)field, out); break;
    case CONFIG_CHOICE: fputs(choices_of(entry, &count)[*(const int *)field], out); break;
    case CONFIG_SIZE: {
        const int *size = field;
        fprintf(out, size[0] == size[1] ? "%d" : "%dx%d", size[0], size[1]);
        break;
    }
    case CONFIG_INTS: {
        const ConfigInts *numbers = field;
        for (int i = 0; i < numbers->count; i++) fprintf(out, i ? ",%d" : "%d", numbers->at[i]);
        break;
    }
    case CONFIG_FLOATS: {
        const ConfigFloats *numbers = field;
        for (int i = 0; i < numbers->count; i++) {
            if (i) fputc(',', out);
            put_float(out, numbers->at[i]);
        }
        break;
    }
    case CONFIG_LIST: break;
    }
}

/* == From text to a value ======================================================================================= */
/* Each takes the whole text or refuses it.  `label` is the place and the name: "configs/x.ini:12: lr", "--lr". */

static bool refuse_type(const ConfigEntry *entry, const char *value, const char *label, Error *report) {
    static const char *const articles[] = {[CONFIG_INT] = "an ", [CONFIG_UINT64] = "a ", [CONFIG_FLOAT] = "a ",
                                           [CONFIG_INTS] = "an ", [CONFIG_FLOATS] = "a ", [CONFIG_LIST] = NULL};
    char *expected = values_text(entry);
    const char *article = articles[entry->type] ? articles[entry->type] : "";
    refuse(report, "%s: expected %s%s, got '%.60s'", label, article, expected, value);
    free(expected);
    return false;
}

static bool refuse_range(const ConfigEntry *entry, const char *value, const char *label, Error *report) {
    double min, max;
    bounds(entry, &min, &max);
    if (entry->min != 0 || entry->max != 0) {
        char *expected = values_text(entry);
        refuse(report, "%s: %.60s is out of range (%s)", label, value, expected);
        free(expected);
        return false;
    }
    if (entry->type == CONFIG_UINT64)
        return refuse(report, "%s: %.60s is out of range (from 0 to 2^64 - 1)", label, value);
    return refuse(report, "%s: %.60s is out of range (from %.10g to %.10g)", label, value, min, max);
}

/* Decimal digits with an optional sign, saturated to long long; *end is the first character not used. */
static bool parse_integer(const char *text, long long *value, char **end) {
    const char *digits = text + (*text == '-' || *text == '+');
    if (!isdigit((unsigned char)*digits)) return false;
    *value = strtoll(text, end, 10);
    return true;
}

static bool parse_int(int *field, const ConfigEntry *entry, const char *value, const char *label, Error *report) {
    long long number;
    double min, max;
    char *end;
    bounds(entry, &min, &max);
    if (!parse_integer(value, &number, &end) || *end) return refuse_type(entry, value, label, report);
    if ((double)number < min || (double)number > max) return refuse_range(entry, value, label, report);
    *field = (int)number;
    return true;
}

static bool parse_uint64(uint64_t *field, const ConfigEntry *entry, const char *value, const char *label,
                         Error *report) {
    double min, max;
    char *end;
    bounds(entry, &min, &max);
    if (!isdigit((unsigned char)*value)) return refuse_type(entry, value, label, report);
    errno = 0;
    unsigned long long number = strtoull(value, &end, 10);
    if (*end) return refuse_type(entry, value, label, report);
    if (errno || (double)number < min || (double)number > max) return refuse_range(entry, value, label, report);
    *field = number;
    return true;
}

static bool parse_float(float *field, const ConfigEntry *entry, const char *value, const char *label, Error *report) {
    double min, max;
    char *end;
    bounds(entry, &min, &max);
    if (!*value || isspace((unsigned char)*value)) return refuse_type(entry, value, label, report);
    errno = 0;
    float number = strtof(value, &end);
    if (*end) return refuse_type(entry, value, label, report);
    bool digits = isdigit((unsigned char)value[strcspn(value, "0123456789(")]); /* not inf, not nan(2) */
    if (!digits) return refuse(report, "%s: expected a finite number, got '%.60s'", label, value);
    if (number == 0 && errno == ERANGE) return refuse(report, "%s: %.60s is too small for a float", label, value);
    if (isinf(number) || number < (float)min || number > (float)max) return refuse_range(entry, value, label, report);
    *field = number;
    return true;
}

static bool parse_bool(bool *field, const ConfigEntry *entry, const char *value, const char *label, Error *report) {
    static const char *const words[] = {"false", "true", "0", "1", "no", "yes", "off", "on"};
    for (int i = 0; i < 8; i++) {
        if (strcasecmp(value, words[i])) continue;
        *field = i & 1;
        return true;
    }
    return refuse_type(entry, value, label, report);
}

static bool parse_size(int *field, const ConfigEntry *entry, const char *value, const char *label, Error *report) {
    long long size[2];
    double min, max;
    char *end;
    bounds(entry, &min, &max);
    if (!parse_integer(value, &size[0], &end)) return refuse_type(entry, value, label, report);
    size[1] = size[0];
    if (*end && (!strchr("xX,", *end) || !parse_integer(end + 1, &size[1], &end) || *end))
        return refuse_type(entry, value, label, report);
    for (int i = 0; i < 2; i++)
        if ((double)size[i] < min || (double)size[i] > max) return refuse_range(entry, value, label, report);
    field[0] = (int)size[0];
    field[1] = (int)size[1];
    return true;
}

/* Cuts `value` at its commas into copies in `pieces`; how many, or 0 when they are too many. */
static int split_numbers(char pieces[CONFIG_NUMBERS][64], const char *value) {
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
                       Error *report) {
    char pieces[CONFIG_NUMBERS][64];
    ConfigInts numbers = {.count = split_numbers(pieces, value)};
    if (!numbers.count) return refuse(report, "%s: more than %d numbers", label, CONFIG_NUMBERS);
    for (int i = 0; i < numbers.count; i++)
        if (!parse_int(&numbers.at[i], entry, pieces[i], label, report)) return false;
    *field = numbers;
    return true;
}

static bool parse_floats(ConfigFloats *field, const ConfigEntry *entry, const char *value, const char *label,
                         Error *report) {
    char pieces[CONFIG_NUMBERS][64];
    ConfigFloats numbers = {.count = split_numbers(pieces, value)};
    if (!numbers.count) return refuse(report, "%s: more than %d numbers", label, CONFIG_NUMBERS);
    for (int i = 0; i < numbers.count; i++)
        if (!parse_float(&numbers.at[i], entry, pieces[i], label, report)) return false;
    *field = numbers;
    return true;
}

static bool parse_choice(int *field, const ConfigEntry *entry, const char *value, const char *label, Error *report) {
    int count;
    const char *const *choices = choices_of(entry, &count);
    for (int i = 0; i < count; i++) {
        if (strcmp(value, choices[i])) continue;
        *field = i;
        return true;
    }
    const char *noun = entry->noun ? entry->noun : "value", *near = nearest_word(value, choices, count);
    if (near) return refuse(report, "%s: unknown %s '%.60s' (did you mean '%s'?)", label, noun, value, near);
    char *known = values_text(entry);
    refuse(report, "%s: unknown %s '%.60s' (%s)", label, noun, value, known);
    free(known);
    return false;
}

/* inih's longest line is compiled in (200), but for Debian's build, which has it in a variable of this name. */
extern int ini_max_line __attribute__((weak));

static size_t line_limit(void) {
    if (!&ini_max_line) return INI_MAX_LINE;
    ini_max_line = LINE_LIMIT;
    return LINE_LIMIT;
}

/* A string that is saved must come back from an INI file as it was. */
static bool parse_string(const char **field, char **owned, const ConfigEntry *entry, const char *value,
                         const char *label, Error *report) {
    size_t length = strlen(value), limit = line_limit() - strlen(entry->name) - 8;
    for (size_t i = 0; i < length && !entry->command_line_only; i++) {
        if (iscntrl((unsigned char)value[i]))
            return refuse(report, "%s: a control character (%d) cannot be saved in an INI file", label, value[i]);
        if (value[i] == ';' && (i == 0 || value[i - 1] == ' '))
            return refuse(report, "%s: ' ;' cannot be saved in an INI file, where it begins a comment", label);
    }
    if (length > limit && !entry->command_line_only)
        return refuse(report, "%s: %zu characters are too long for an INI file (at most %zu)", label, length, limit);
    if (length && !entry->command_line_only && (value[0] == ' ' || value[length - 1] == ' '))
        return refuse(report, "%s: spaces around a value cannot be saved in an INI file", label);
    char *copy = xcalloc(length + 1, 1, entry->name);
    memcpy(copy, value, length);
    free(*owned);
    *field = *owned = copy;
    return true;
}

/* Sets entry i; on failure nothing changes. */
static bool set_value(Config *config, int i, const char *value, const char *label, Error *report) {
    const ConfigEntry *entry = &config->entries[i];
    void *field = field_of(config, entry);
    switch (entry->type) {
    case CONFIG_INT: return parse_int(field, entry, value, label, report);
    case CONFIG_UINT64: return parse_uint64(field, entry, value, label, report);
    case CONFIG_FLOAT: return parse_float(field, entry, value, label, report);
    case CONFIG_BOOL: return parse_bool(field, entry, value, label, report);
    case CONFIG_STRING: return parse_string(field, &config->states[i].text, entry, value, label, report);
    case CONFIG_CHOICE: return parse_choice(field, entry, value, label, report);
    case CONFIG_SIZE: return parse_size(field, entry, value, label, report);
    case CONFIG_INTS: return parse_ints(field, entry, value, label, report);
    case CONFIG_FLOATS: return parse_floats(field, entry, value, label, report);
    case CONFIG_LIST: break;
    }
    return refuse(report, "%s: a list can stand only on the command line", label);
}

static void set_origin(Config *config, int i, const char *origin) {
    char *copy = strdup(origin);
    if (!copy) die("out of memory for the origin of a setting");
    free(config->states[i].origin);
    config->states[i].origin = copy;
}

/* == Defaults =================================================================================================== */

static void check_entry(const Config *config, int i) {
    const ConfigEntry *entry = &config->entries[i];
    const char *wrong = NULL;
    if (strspn(entry->name, "abcdefghijklmnopqrstuvwxyz0123456789_") != strlen(entry->name)) wrong = "name";
    if (find_name(config, entry->name, strlen(entry->name)) != i) wrong = "name stands twice";
    if (!strcmp(entry->name, "include")) wrong = "reserved name";
    if (!section_of(config, i)) wrong = "missing section";
    if (!entry->help) wrong = "missing help";
    if (entry->type == CONFIG_LIST && !entry->command_line_only) wrong = "list in files";
    if (!wrong) return;
    fprintf(stderr, "settings table: %s: %s\n", entry->name, wrong);
    abort();
}

static void set_default(Config *config, int i) {
    const ConfigEntry *entry = &config->entries[i];
    Error error;
    const char *initial = entry->initial ? entry->initial : entry->type == CONFIG_BOOL ? "false" : "";
    if (entry->type == CONFIG_LIST) {
        *(ConfigList *)field_of(config, entry) = (ConfigList){0};
    } else if (!set_value(config, i, initial, entry->name, &error)) {
        fprintf(stderr, "settings table: default of %s\n", error.text);
        abort();
    }
}

void config_init(Config *config, const ConfigEntry *entries, int count, void *settings, const char *file_key) {
    *config = (Config){entries, count, settings, file_key, xcalloc((size_t)count, sizeof *config->states, "settings")};
    for (int i = 0; i < count; i++) {
        check_entry(config, i);
        set_default(config, i);
    }
    if (file_key) must_find(config, file_key);
}

void config_free(Config *config) {
    for (int i = 0; i < config->count; i++) {
        free(config->states[i].origin);
        free(config->states[i].text);
        free(config->states[i].items);
    }
    free(config->states);
    *config = (Config){0};
}

/* == Files ====================================================================================================== */

typedef struct Source {
    Config *config;
    Error *report;
    const char *where; /* the file's name */
    const char *text;
    size_t length, at;
    int line, failed_line;      /* failed_line 0: no error so far */
    int *seen;                  /* [config->count] line of each setting in this file, 0 before it */
    const struct Source *parent;
    bool file;                  /* include works */
    dev_t device;
    ino_t inode;
} Source;

/* " (did you mean --lr?)", or nothing; `open` and `close` go around the name. */
static void suggest_name(const Config *config, bool in_file, const char *name, const char *open, const char *close,
                         char *out, size_t size) {
    const char **names = xcalloc((size_t)config->count + 1, sizeof *names, "names of settings");
    int count = 0;
    for (int i = 0; i < config->count; i++)
        if (!in_file || !config->entries[i].command_line_only) names[count++] = config->entries[i].name;
    if (in_file) names[count++] = "include";
    const char *near = nearest_word(name, names, count);
    out[0] = 0;
    if (near) {
        int head = snprintf(out, size, " (did you mean %s", open);
        snprintf(out + head, size - (size_t)head, "%s%s?)", near, close);
        if (!in_file)
            for (char *c = out + head; *c; c++) *c = *c == '_' ? '-' : *c;
    }
    free(names);
}

static bool refuse_section(const Source *s, const char *title, int length) {
    const char **titles = xcalloc((size_t)s->config->count, sizeof *titles, "section titles");
    char name[64], hint[LABEL_SIZE] = "";
    int count = 0;
    for (int i = 0; i < s->config->count; i++) {
        const char *section = section_of(s->config, i);
        bool fresh = !count || strcmp(titles[count - 1], section);
        if (fresh && !s->config->entries[i].command_line_only) titles[count++] = section;
    }
    snprintf(name, sizeof name, "%.*s", length, title);
    const char *near = nearest_word(name, titles, count);
    size_t used = (size_t)snprintf(hint, sizeof hint, near ? "did you mean [%s]?" : "sections:", near);
    for (int i = 0; !near && i < count && used < sizeof hint; i++)
        used += (size_t)snprintf(hint + used, sizeof hint - used, "%s [%s]", i ? "," : "", titles[i]);
    free(titles);
    return refuse(s->report, "%s:%d: unknown section [%s] (%s)", s->where, s->line, name, hint);
}

/* `line` begins with '['.  Nothing but a comment may follow the ']'. */
static bool check_section(const Source *s, const char *line, size_t length) {
    const char *end = memchr(line, ']', length);
    if (!end) return refuse(s->report, "%s:%d: expected ']' at the end of the section's title", s->where, s->line);
    const char *rest = end + 1;
    while (rest < line + length && isspace((unsigned char)*rest)) rest++;
    if (rest < line + length && *rest != ';' && *rest != '#')
        return refuse(s->report, "%s:%d: unexpected text after the section's title", s->where, s->line);
    for (line++; line < end && isspace((unsigned char)*line);) line++;
    while (end > line && isspace((unsigned char)end[-1])) end--;
    int title = (int)(end - line);
    for (int i = 0; i < s->config->count; i++) {
        const char *section = section_of(s->config, i);
        if (!s->config->entries[i].command_line_only && (int)strlen(section) == title &&
            !strncasecmp(section, line, (size_t)title))
            return true;
    }
    return refuse_section(s, line, title);
}

/* inih's reader.  Headings and comments are dealt with here, so that inih sees names and values only, unindented (it
 * would take an indented line for more of the value above). */
static char *next_line(char *buffer, int size, void *stream) {
    Source *s = stream;
    if (s->failed_line || s->at == s->length) return NULL;
    const char *line = s->text + s->at, *end = memchr(line, '\n', s->length - s->at);
    if (!end) end = s->text + s->length;
    s->at = (size_t)(end - s->text) + (end < s->text + s->length);
    s->line++;
    bool ok = true;
    if (memchr(line, 0, (size_t)(end - line)))
        ok = refuse(s->report, "%s:%d: a NUL byte: this is not a text file", s->where, s->line);
    if (s->line == 1 && end - line >= 3 && !memcmp(line, "\xEF\xBB\xBF", 3)) line += 3;
    while (line < end && isspace((unsigned char)*line)) line++;
    if (ok && line < end && *line == '[') ok = check_section(s, line, (size_t)(end - line));
    if (line < end && strchr("[#;", *line)) line = end;
    if (ok && end - line + 2 > size)
        ok = refuse(s->report, "%s:%d: the line is longer than %d characters", s->where, s->line, size - 2);
    if (!ok) {
        s->failed_line = s->line;
        return NULL;
    }
    memcpy(buffer, line, (size_t)(end - line));
    memcpy(buffer + (end - line), "\n", 2);
    return buffer;
}

static bool load_file(Config *config, const char *path, const char *label, const Source *parent, Error *report);

/* The chain of files being read, this one included, may neither come back to a file nor grow without end: load_file
 * checks the first, this the second. */
static bool include_file(Source *s, const char *name) {
    char label[LABEL_SIZE], path[PATH_MAX];
    int depth = 1;
    for (const Source *p = s; p; p = p->parent) depth++;
    snprintf(label, sizeof label, "%s:%d: include", s->where, s->line);
    if (!s->file) return refuse(s->report, "%s: not possible here, only in a file", label);
    if (!*name) return refuse(s->report, "%s: expected a file name", label);
    if (depth > INCLUDE_DEPTH) return refuse(s->report, "%s: files nest deeper than %d", label, INCLUDE_DEPTH);
    const char *slash = strrchr(s->where, '/');
    int folder = *name == '/' || !slash ? 0 : (int)(slash - s->where) + 1;
    int length = snprintf(path, sizeof path, "%.*s%s", folder, s->where, name);
    if (length >= (int)sizeof path) return refuse(s->report, "%s: the path is too long", label);
    return load_file(s->config, path, label, s, s->report);
}

static bool take_setting(Source *s, const char *name, const char *value) {
    char label[LABEL_SIZE], hint[128];
    if (!*name) return refuse(s->report, "%s:%d: expected 'name = value'", s->where, s->line);
    if (!strcmp(name, "include")) return include_file(s, value);
    snprintf(label, sizeof label, "%s:%d: %s", s->where, s->line, name);
    int i = find_name(s->config, name, strlen(name));
    if (i < 0) {
        suggest_name(s->config, true, name, "'", "'", hint, sizeof hint);
        return refuse(s->report, "%s: unknown setting%s", label, hint);
    }
    if (s->config->entries[i].command_line_only)
        return refuse(s->report, "%s: can stand only on the command line", label);
    if (s->seen[i])
        return refuse(s->report, "%s: set twice in this file, on lines %d and %d", label, s->seen[i], s->line);
    s->seen[i] = s->line;
    if (!set_value(s->config, i, value, label, s->report)) return false;
    snprintf(label, sizeof label, "%s:%d", s->where, s->line);
    set_origin(s->config, i, label);
    return true;
}

static int take_pair(void *user, const char *section, const char *name, const char *value) {
    (void)section;
    Source *s = user;
    if (s->failed_line) return 0;
    if (take_setting(s, name, value)) return 1;
    s->failed_line = s->line;
    return 0;
}

static bool load_text(Source *s) {
    line_limit();
    s->seen = xcalloc((size_t)s->config->count, sizeof *s->seen, "lines of settings");
    int first_bad = ini_parse_stream(next_line, s, take_pair, s);
    free(s->seen);
    if (first_bad < 0) return refuse(s->report, "%s: out of memory", s->where);
    if (first_bad && first_bad != s->failed_line)
        return refuse(s->report, "%s:%d: expected 'name = value'", s->where, first_bad);
    return !s->failed_line;
}

/* The whole file in s->text, to be freed by the caller whatever happens.  Pipes work too. */
static bool read_whole(Source *s, FILE *in, const char *prefix, char **text) {
    struct stat status;
    if (fstat(fileno(in), &status))
        return refuse(s->report, "%scannot read '%s': %s", prefix, s->where, strerror(errno));
    s->device = status.st_dev;
    s->inode = status.st_ino;
    for (const Source *p = s->parent; p; p = p->parent)
        if (p->device == s->device && p->inode == s->inode)
            return refuse(s->report, "%s'%s' is already being read: the files include each other", prefix, s->where);
    s->text = *text = xcalloc(FILE_LIMIT + 1, 1, s->where);
    s->length = fread(*text, 1, FILE_LIMIT + 1, in);
    if (ferror(in)) return refuse(s->report, "%scannot read '%s': %s", prefix, s->where, strerror(errno));
    if (s->length > FILE_LIMIT)
        return refuse(s->report, "%s'%s' is not a file of settings: more than %d bytes", prefix, s->where, FILE_LIMIT);
    return true;
}

/* `label` says who asked for the file: "--config", "a.ini:3: include", or NULL for the program itself. */
static bool load_file(Config *config, const char *path, const char *label, const Source *parent, Error *report) {
    Source s = {.config = config, .report = report, .where = path, .parent = parent, .file = true};
    char prefix[LABEL_SIZE + 2] = "", *text = NULL;
    if (label) snprintf(prefix, sizeof prefix, "%s: ", label);
    FILE *in = fopen(path, "rb");
    if (!in) return refuse(report, "%scannot open '%s': %s", prefix, path, strerror(errno));
    bool ok = read_whole(&s, in, prefix, &text);
    fclose(in);
    ok = ok && load_text(&s);
    free(text);
    return ok;
}

bool config_try_file(Config *config, const char *path, Error *error) {
    return load_file(config, path, NULL, NULL, error);
}

bool config_try_text(Config *config, const char *text, size_t length, const char *where, Error *error) {
    Source s = {.config = config, .report = error, .where = where, .text = text, .length = length};
    return load_text(&s);
}

/* == The command line =========================================================================================== */

static bool is_name(const char *argument) {
    return !strncmp(argument, "--", 2);
}

/* The file that --config names is read before everything else.  No value begins with "--" unless it follows '=', so
 * every argument that does is a name. */
static bool load_named_file(Config *config, int argc, char *const *argv, Error *report) {
    const char *path = NULL;
    for (int i = 1; i < argc && config->file_key; i++) {
        size_t length = is_name(argv[i]) ? strcspn(argv[i] + 2, "=") : 0;
        if (!length || !same_name(config->file_key, argv[i] + 2, length)) continue;
        if (path) return refuse(report, "--%s: given twice (a file can hold 'include = other.ini')", config->file_key);
        if (argv[i][2 + length]) path = argv[i] + 3 + length;
        else if (i + 1 < argc && !is_name(argv[i + 1])) path = argv[i + 1];
        else return refuse(report, "%s: expected a file name", argv[i]);
    }
    if (!path) return true;
    char label[LABEL_SIZE];
    snprintf(label, sizeof label, "--%s", config->file_key);
    return load_file(config, path, label, NULL, report);
}

static void append_item(Config *config, int i, const char *item) {
    struct ConfigState *state = &config->states[i];
    const char **items = realloc(state->items, (size_t)(state->item_count + 1) * sizeof *items);
    if (!items) die("out of memory for --%s", config->entries[i].name);
    items[state->item_count++] = item;
    state->items = items;
    *(ConfigList *)field_of(config, &config->entries[i]) = (ConfigList){state->item_count, state->items};
}

/* Takes argv[at] and its values; returns the index after them, 0 for an error. */
static int take_argument(Config *config, int argc, char *const *argv, int at, Error *report) {
    const char *name = argv[at];
    char label[LABEL_SIZE], hint[128];
    if (!is_name(name) || !name[2]) {
        refuse(report, "unexpected argument '%.60s': a setting is --name value (see --help)", name);
        return 0;
    }
    size_t length = strcspn(name + 2, "=");
    const char *value = name[2 + length] ? name + 3 + length : NULL;
    snprintf(label, sizeof label, "--%.*s", length < 60 ? (int)length : 60, name + 2);
    int i = find_name(config, name + 2, length);
    if (i < 0) {
        suggest_name(config, false, label + 2, "--", "", hint, sizeof hint);
        refuse(report, "%s: unknown setting%s", label, hint);
        return 0;
    }
    const ConfigEntry *entry = &config->entries[i];
    at++;
    if (!value && at < argc && !is_name(argv[at])) value = argv[at++];
    if (!value && entry->type == CONFIG_BOOL) value = "true";
    if (!value) {
        refuse(report, "%s: expected a value", label);
        return 0;
    }
    if (entry->type == CONFIG_LIST) {
        append_item(config, i, value);
        while (at < argc && !is_name(argv[at])) append_item(config, i, argv[at++]);
    } else if (!set_value(config, i, value, label, report)) {
        return 0;
    }
    set_origin(config, i, label);
    return at;
}

bool config_try_arguments(Config *config, int argc, char *const *argv, Error *error) {
    if (!load_named_file(config, argc, argv, error)) return false;
    for (int at = 1; at < argc;) {
        at = take_argument(config, argc, argv, at, error);
        if (!at) return false;
    }
    return true;
}

/* == One value, and where it came from ========================================================================== */

static void label_of(const char *origin, const char *name, char *label, size_t size) {
    bool named = !origin || is_name(origin);
    snprintf(label, size, "%s%s%s", origin ? origin : "", named ? "" : ": ", origin && named ? "" : name);
}

bool config_try_set(Config *config, const char *name, const char *value, const char *origin, Error *error) {
    char label[LABEL_SIZE];
    int i = must_find(config, name);
    label_of(origin, name, label, sizeof label);
    if (!set_value(config, i, value, label, error)) return false;
    set_origin(config, i, origin);
    return true;
}

const char *config_origin(const Config *config, const char *name) {
    return config->states[must_find(config, name)].origin;
}

void config_reject(const Config *config, const char *name, const char *format, ...) {
    char label[LABEL_SIZE], message[LABEL_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    label_of(config_origin(config, name), name, label, sizeof label);
    die_usage("%s: %s", label, message);
}

void config_read_file(Config *config, const char *path) {
    Error error;
    if (!config_try_file(config, path, &error)) die_usage("%s", error.text);
}

void config_read_text(Config *config, const char *text, size_t length, const char *where) {
    Error error;
    if (!config_try_text(config, text, length, where, &error)) die_usage("%s", error.text);
}

void config_read_arguments(Config *config, int argc, char *const *argv) {
    Error error;
    if (!config_try_arguments(config, argc, argv, &error)) die_usage("%s", error.text);
}

/* == What the table prints ====================================================================================== */

/* `text` from `column` on, in lines of at most WIDTH characters that begin with `lead`. */
static void put_wrapped(FILE *out, const char *text, int column, const char *lead) {
    bool fresh = true;
    while (*text) {
        int length = (int)strcspn(text, " ");
        if (!fresh && column + 1 + length > WIDTH) {
            fprintf(out, "\n%s", lead);
            column = (int)strlen(lead);
            fresh = true;
        }
        column += fprintf(out, "%s%.*s", fresh ? "" : " ", length, text);
        fresh = false;
        text += length;
        text += strspn(text, " ");
    }
    fputc('\n', out);
}

/* "width of a token (integer from 1 to 4096; default 192)".  A switch explains itself. */
static void put_meaning(FILE *out, const ConfigEntry *entry, const char *lead, int column) {
    char *text, *values = values_text(entry);
    size_t size;
    FILE *line = open_text(&text, &size);
    const char *initial = entry->initial ? entry->initial : entry->type == CONFIG_BOOL ? "false" : "";
    bool plain = entry->type == CONFIG_STRING || entry->type == CONFIG_LIST;
    fputs(entry->help, line);
    if (!(entry->command_line_only && entry->type == CONFIG_BOOL) && !(plain && !*initial))
        fprintf(line, " (%s%s%s%s)", plain ? "" : values, !plain && *initial ? "; " : "", *initial ? "default " : "",
                initial);
    if (fclose(line)) die("out of memory for the help");
    put_wrapped(out, text, column, lead);
    free(values);
    free(text);
}

static const char *placeholder(const ConfigEntry *entry) {
    static const char *const words[] = {[CONFIG_INT] = "N",      [CONFIG_UINT64] = "N",    [CONFIG_FLOAT] = "X",
                                        [CONFIG_BOOL] = "",      [CONFIG_STRING] = "TEXT", [CONFIG_CHOICE] = "NAME",
                                        [CONFIG_SIZE] = "HxW",   [CONFIG_INTS] = "N,...",
                                        [CONFIG_FLOATS] = "X,...", [CONFIG_LIST] = "TEXT..."};
    return entry->argument ? entry->argument : words[entry->type];
}

/* "--img-size HxW" */
static int put_option(FILE *out, const ConfigEntry *entry) {
    const char *argument = placeholder(entry);
    int used = fprintf(out, "--");
    for (const char *c = entry->name; *c; c++, used++) fputc(*c == '_' ? '-' : *c, out);
    return used + fprintf(out, "%s%s", *argument ? " " : "", argument);
}

void config_help(const Config *config, FILE *out) {
    char lead[HELP_COLUMN + 1];
    snprintf(lead, sizeof lead, "%*s", HELP_COLUMN, "");
    for (int i = 0; i < config->count; i++) {
        const char *section = section_of(config, i);
        if (i == 0 || strcmp(section, section_of(config, i - 1))) fprintf(out, "%s%s:\n", i ? "\n" : "", section);
        int column = fprintf(out, "  ") + put_option(out, &config->entries[i]);
        if (column + 2 <= HELP_COLUMN) fprintf(out, "%*s", HELP_COLUMN - column, "");
        else fprintf(out, "\n%s", lead);
        put_meaning(out, &config->entries[i], lead, HELP_COLUMN);
    }
}

void config_write(const Config *config, FILE *out) {
    const char *heading = "";
    for (int i = 0; i < config->count; i++) {
        const ConfigEntry *entry = &config->entries[i];
        if (entry->command_line_only) continue;
        const char *section = section_of(config, i);
        if (strcmp(section, heading)) fprintf(out, "%s[%s]\n", *heading ? "\n" : "", section);
        heading = section;
        fputs("\n# ", out);
        put_meaning(out, entry, "# ", 2);
        fprintf(out, "%s = ", entry->name);
        put_current(out, config, entry);
        fputc('\n', out);
    }
}

char *config_text(const Config *config) {
    char *text;
    size_t size;
    FILE *out = open_text(&text, &size);
    config_write(config, out);
    if (fclose(out)) die("out of memory for the settings as text");
    return text;
}

/* A '|' would end the cell. */
static void put_cell(FILE *out, const char *text) {
    for (; *text; text++) fprintf(out, *text == '|' ? "\\|" : "%c", *text);
}

void config_markdown(const Config *config, FILE *out) {
    for (int i = 0; i < config->count; i++) {
        const ConfigEntry *entry = &config->entries[i];
        const char *section = section_of(config, i), *initial = entry->initial ? entry->initial : "";
        if (i == 0 || strcmp(section, section_of(config, i - 1)))
            fprintf(out, "%s### %s\n\n| setting | values | default | meaning |\n|---|---|---|---|\n", i ? "\n" : "",
                    section);
        if (entry->type == CONFIG_BOOL && !entry->initial && !entry->command_line_only) initial = "false";
        fputs("| `", out);
        if (entry->command_line_only) put_option(out, entry);
        else fputs(entry->name, out);
        fputs("` | ", out);
        char *values = values_text(entry);
        put_cell(out, entry->command_line_only && entry->type == CONFIG_BOOL ? "" : values);
        free(values);
        fprintf(out, *initial ? " | `%s` | " : " |%s | ", initial);
        put_cell(out, entry->help);
        fputs(" |\n", out);
    }
}
