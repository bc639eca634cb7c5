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

#include "core/config_text.h"
#include "core/die.h"
#include "core/error.h"
#include "core/files.h"
#include "core/text.h"

enum { INCLUDE_DEPTH = 8, FILE_LIMIT = 1 << 20, LABEL_SIZE = 512, LINE_LIMIT = 8192 };

/* == The table ================================================================================================== */

/* The entry's limits if it has any, or the type's. */
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
        if (same_name(config->items[i].entry->name, name, length)) return i;
    return -1;
}

static int must_find(const Config *config, const char *name) {
    int i = find_name(config, name, strlen(name));
    assert(i >= 0 && "the setting is in the table");
    return i;
}

bool config_counts(const Config *config, int i) {
    const struct ConfigBinding *group = &config->groups[config->items[i].group];
    return !config->settled || !group->chooser || group->used;
}

/* == From text to a value ======================================================================================= */
/* Each function parses the whole text or fails.  `label` is the place and the name: "configs/x.ini:12: lr", "--lr". */

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

static size_t line_limit(void) {
    if (!&ini_max_line) return INI_MAX_LINE;
    ini_max_line = LINE_LIMIT;
    return LINE_LIMIT;
}

/* Checks that a string setting survives being written to an INI file and read back. */
static bool parse_string(const char **field, char **owned, const ConfigEntry *entry, const char *value,
                         const char *label, Error *error) {
    size_t length = strlen(value), limit = line_limit() - strlen(entry->name) - 8;
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
static bool set_value(Config *config, int i, const char *value, const char *label, Error *error) {
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

static void set_origin(Config *config, int i, const char *origin, Level level) {
    char *copy = strdup(origin);
    if (!copy) die("out of memory for the origin of a setting");
    free(config->items[i].origin);
    config->items[i].origin = copy;
    config->items[i].level = level;
}

/* == Groups and defaults ======================================================================================== */

static void check_entry(const Config *config, int i) {
    const ConfigEntry *entry = config->items[i].entry;
    const char *wrong = NULL;
    if (strspn(entry->name, "abcdefghijklmnopqrstuvwxyz0123456789_") != strlen(entry->name)) wrong = "name";
    if (find_name(config, entry->name, strlen(entry->name)) != i) wrong = "name stands twice";
    if (!strcmp(entry->name, "include")) wrong = "reserved name";
    if (!config->items[i].section) wrong = "missing section";
    if (!entry->help) wrong = "missing help";
    if (entry->type == CONFIG_LIST && !entry->command_line_only) wrong = "list in files";
    if (!wrong) return;
    fprintf(stderr, "settings table: %s: %s\n", entry->name, wrong);
    abort();
}

static void set_default(Config *config, int i) {
    struct ConfigItem *item = &config->items[i];
    Error error;
    free(item->origin);
    item->origin = NULL;
    item->level = LEVEL_DEFAULT;
    if (item->entry->type == CONFIG_LIST) {
        *(ConfigList *)item->field = (ConfigList){0};
    } else if (!set_value(config, i, item->initial, item->entry->name, &error)) {
        fprintf(stderr, "settings table: default of %s\n", error.text);
        abort();
    }
}

void config_init(Config *config, const char *file_key) { *config = (Config){.file_key = file_key}; }

static struct ConfigBinding *find_group(const Config *config, const ConfigGroup *group) {
    for (int i = 0; i < config->group_count; i++)
        if (config->groups[i].group == group) return &config->groups[i];
    return NULL;
}

static void *resized(void *memory, int count, size_t size) {
    void *larger = realloc(memory, (size_t)count * size);
    if (!larger) die("out of memory for settings");
    return larger;
}

void *config_add_for(Config *config, const ConfigGroup *group, const char *chooser, const char *owners) {
    if (find_group(config, group)) return find_group(config, group)->settings;
    int g = config->group_count++, first = config->count;
    config->groups = resized(config->groups, config->group_count, sizeof *config->groups);
    config->groups[g] = (struct ConfigBinding){.group = group, .chooser = chooser, .owners = owners};
    char *settings = config->groups[g].settings = xcalloc(1, group->size, "settings");
    config->count += group->count;
    config->items = resized(config->items, config->count, sizeof *config->items);
    for (int i = 0; i < group->count; i++) {
        const ConfigEntry *entry = &group->entries[i];
        const char *before = i ? config->items[first + i - 1].section : NULL;
        config->items[first + i] = (struct ConfigItem){
            .entry = entry,
            .field = settings + entry->offset,
            .section = entry->section ? entry->section : before,
            .initial = entry->initial ? entry->initial : entry->type == CONFIG_BOOL ? "false" : "",
            .help = entry->help,
            .group = g};
    }
    for (int i = first; i < config->count; i++) {
        check_entry(config, i);
        set_default(config, i);
    }
    return settings;
}

void *config_add(Config *config, const ConfigGroup *group) { return config_add_for(config, group, NULL, NULL); }

void config_use(Config *config, const ConfigGroup *group) {
    struct ConfigBinding *binding = find_group(config, group);
    if (binding) binding->used = true;
}

void config_default(Config *config, const char *name, const char *value) {
    int i = must_find(config, name);
    config->items[i].initial = value;
    set_default(config, i);
}

void config_explain(Config *config, const char *name, const char *help) {
    config->items[must_find(config, name)].help = help;
}

void config_reset(Config *config) {
    for (int i = 0; i < config->count; i++) {
        free(config->items[i].items);
        config->items[i].items = NULL;
        config->items[i].item_count = 0;
        set_default(config, i);
    }
    for (int i = 0; i < config->group_count; i++) config->groups[i].used = false;
    config->settled = false;
}

const void *config_settings(const Config *config, const ConfigGroup *group) {
    const struct ConfigBinding *binding = find_group(config, group);
    return binding ? binding->settings : NULL;
}

void config_free(Config *config) {
    for (int i = 0; i < config->count; i++) {
        free(config->items[i].origin);
        free(config->items[i].text);
        free(config->items[i].items);
    }
    for (int i = 0; i < config->group_count; i++) free(config->groups[i].settings);
    free(config->items);
    free(config->groups);
    *config = (Config){0};
}

/* == Files ====================================================================================================== */

typedef struct Source {
    Config *config;
    Error *error;
    const char *where; /* the file's name */
    const char *text;
    size_t length, at;
    int line, failed_line;      /* failed_line 0: no error so far */
    int *seen;                  /* [config->count] line of each setting in this file, 0 before it */
    const struct Source *parent;
    bool file;                  /* include is allowed */
    dev_t device;
    ino_t inode;
} Source;

/* " (did you mean --lr?)", or nothing; `open` and `close` enclose the name. */
static void suggest_name(const Config *config, bool in_file, const char *name, const char *open, const char *close,
                         char *out, size_t size) {
    const char **names = xcalloc((size_t)config->count + 1, sizeof *names, "names of settings");
    int count = 0;
    for (int i = 0; i < config->count; i++)
        if (!in_file || !config->items[i].entry->command_line_only) names[count++] = config->items[i].entry->name;
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
        const char *section = s->config->items[i].section;
        bool fresh = !count || strcmp(titles[count - 1], section);
        if (fresh && !s->config->items[i].entry->command_line_only) titles[count++] = section;
    }
    snprintf(name, sizeof name, "%.*s", length, title);
    const char *near = nearest_word(name, titles, count);
    size_t used = (size_t)snprintf(hint, sizeof hint, near ? "did you mean [%s]?" : "sections:", near);
    for (int i = 0; !near && i < count && used < sizeof hint; i++)
        used += (size_t)snprintf(hint + used, sizeof hint - used, "%s [%s]", i ? "," : "", titles[i]);
    free(titles);
    return refuse(s->error, "%s:%d: unknown section [%s] (%s)", s->where, s->line, name, hint);
}

/* `line` begins with '['.  Nothing but a comment may follow the ']'. */
static bool check_section(const Source *s, const char *line, size_t length) {
    const char *end = memchr(line, ']', length);
    if (!end) return refuse(s->error, "%s:%d: expected ']' at the end of the section's title", s->where, s->line);
    const char *rest = end + 1;
    while (rest < line + length && isspace((unsigned char)*rest)) rest++;
    if (rest < line + length && *rest != ';' && *rest != '#')
        return refuse(s->error, "%s:%d: unexpected text after the section's title", s->where, s->line);
    for (line++; line < end && isspace((unsigned char)*line);) line++;
    while (end > line && isspace((unsigned char)end[-1])) end--;
    int title = (int)(end - line);
    for (int i = 0; i < s->config->count; i++) {
        const char *section = s->config->items[i].section;
        if (!s->config->items[i].entry->command_line_only && (int)strlen(section) == title &&
            !strncasecmp(section, line, (size_t)title))
            return true;
    }
    return refuse_section(s, line, title);
}

/* The reader function for inih.  It handles headings and comments itself and removes indentation, so that inih sees
 * only names and values (inih would treat an indented line as a continuation of the previous value). */
static char *next_line(char *buffer, int size, void *stream) {
    Source *s = stream;
    if (s->failed_line || s->at == s->length) return NULL;
    const char *line = s->text + s->at, *end = memchr(line, '\n', s->length - s->at);
    if (!end) end = s->text + s->length;
    s->at = (size_t)(end - s->text) + (end < s->text + s->length);
    s->line++;
    bool ok = true;
    if (memchr(line, 0, (size_t)(end - line)))
        ok = refuse(s->error, "%s:%d: a NUL byte: this is not a text file", s->where, s->line);
    if (s->line == 1 && end - line >= 3 && !memcmp(line, "\xEF\xBB\xBF", 3)) line += 3;
    while (line < end && isspace((unsigned char)*line)) line++;
    if (ok && line < end && *line == '[') ok = check_section(s, line, (size_t)(end - line));
    if (line < end && strchr("[#;", *line)) line = end;
    if (ok && end - line + 2 > size)
        ok = refuse(s->error, "%s:%d: the line is longer than %d characters", s->where, s->line, size - 2);
    if (!ok) {
        s->failed_line = s->line;
        return NULL;
    }
    memcpy(buffer, line, (size_t)(end - line));
    memcpy(buffer + (end - line), "\n", 2);
    return buffer;
}

static bool load_file(Config *config, const char *path, const char *label, const Source *parent, Error *error);

/* Files that include this one. */
static int depth_of(const Source *s) {
    int depth = 0;
    for (const Source *p = s->parent; p; p = p->parent) depth++;
    return depth;
}

/* Includes may be neither circular nor nested too deeply: load_file checks the first, this function the second. */
static bool include_file(Source *s, const char *name) {
    char label[LABEL_SIZE], path[PATH_MAX];
    snprintf(label, sizeof label, "%s:%d: include", s->where, s->line);
    if (!s->file) return refuse(s->error, "%s: not possible here, only in a file", label);
    if (!*name) return refuse(s->error, "%s: expected a file name", label);
    if (depth_of(s) + 2 > INCLUDE_DEPTH) return refuse(s->error, "%s: files nest deeper than %d", label, INCLUDE_DEPTH);
    const char *slash = strrchr(s->where, '/');
    int folder = *name == '/' || !slash ? 0 : (int)(slash - s->where) + 1;
    int length = snprintf(path, sizeof path, "%.*s%s", folder, s->where, name);
    if (length >= (int)sizeof path) return refuse(s->error, "%s: the path is too long", label);
    return load_file(s->config, path, label, s, s->error);
}

static bool take_setting(Source *s, const char *name, const char *value) {
    char label[LABEL_SIZE], hint[128];
    if (!*name) return refuse(s->error, "%s:%d: expected 'name = value'", s->where, s->line);
    if (!strcmp(name, "include")) return include_file(s, value);
    snprintf(label, sizeof label, "%s:%d: %s", s->where, s->line, name);
    int i = find_name(s->config, name, strlen(name));
    if (i < 0) {
        suggest_name(s->config, true, name, "'", "'", hint, sizeof hint);
        return refuse(s->error, "%s: unknown setting%s", label, hint);
    }
    if (s->config->items[i].entry->command_line_only)
        return refuse(s->error, "%s: can stand only on the command line", label);
    if (s->seen[i])
        return refuse(s->error, "%s: set twice in this file, on lines %d and %d", label, s->seen[i], s->line);
    s->seen[i] = s->line;
    if (!set_value(s->config, i, value, label, s->error)) return false;
    snprintf(label, sizeof label, "%s:%d", s->where, s->line);
    set_origin(s->config, i, label, s->file ? LEVEL_FILE : LEVEL_TEXT);
    s->config->items[i].depth = depth_of(s);
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
    if (first_bad < 0) return refuse(s->error, "%s: out of memory", s->where);
    if (first_bad && first_bad != s->failed_line)
        return refuse(s->error, "%s:%d: expected 'name = value'", s->where, first_bad);
    return !s->failed_line;
}

/* Reads the whole file into s->text, which the caller frees, also after an error.  Works for pipes too. */
static bool read_whole(Source *s, FILE *in, const char *prefix, char **text) {
    struct stat status;
    if (fstat(fileno(in), &status))
        return refuse(s->error, "%scannot read '%s': %s", prefix, s->where, strerror(errno));
    s->device = status.st_dev;
    s->inode = status.st_ino;
    for (const Source *p = s->parent; p; p = p->parent)
        if (p->device == s->device && p->inode == s->inode)
            return refuse(s->error, "%s'%s' is already being read: the files include each other", prefix, s->where);
    s->text = *text = xcalloc(FILE_LIMIT + 1, 1, s->where);
    s->length = fread(*text, 1, FILE_LIMIT + 1, in);
    if (ferror(in)) return refuse(s->error, "%scannot read '%s': %s", prefix, s->where, strerror(errno));
    if (s->length > FILE_LIMIT)
        return refuse(s->error, "%s'%s' is not a file of settings: more than %d bytes", prefix, s->where, FILE_LIMIT);
    return true;
}

/* `label` says who asked for the file: "--config", "a.ini:3: include", or NULL for the program itself. */
static bool load_file(Config *config, const char *path, const char *label, const Source *parent, Error *error) {
    Source s = {.config = config, .error = error, .where = path, .parent = parent, .file = true};
    char prefix[LABEL_SIZE + 2] = "", *text = NULL;
    if (label) snprintf(prefix, sizeof prefix, "%s: ", label);
    FILE *in = fopen(path, "rb");
    if (!in) return refuse(error, "%scannot open '%s': %s", prefix, path, strerror(errno));
    file_note(path);
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
    Source s = {.config = config, .error = error, .where = where, .text = text, .length = length};
    return load_text(&s);
}

/* == The command line =========================================================================================== */

static bool is_name(const char *argument) {
    return !strncmp(argument, "--", 2) || !strcmp(argument, "-h");
}

/* Decided by the placeholder; for other strings an empty value may be meaningful. */
static bool takes_path(const ConfigEntry *entry) {
    static const char *const paths[] = {"FILE", "FOLDER", "IN"};
    bool path = entry->type == CONFIG_LIST;
    for (size_t i = 0; entry->argument && i < sizeof paths / sizeof *paths; i++)
        path |= !strcmp(entry->argument, paths[i]);
    return path;
}

static int refuse_empty(const char *label, Error *error) {
    refuse(error, "%s: the value is empty: is a variable of the shell not set?", label);
    return 0;
}

/* The file that --config names is read before everything else.  No value begins with "--" or is -h unless it
 * follows '=', so every argument that does is a name. */
static bool load_named_file(Config *config, int argc, char *const *argv, Error *error) {
    const char *path = NULL;
    for (int i = 1; i < argc && config->file_key; i++) {
        size_t length = is_name(argv[i]) ? strcspn(argv[i] + 2, "=") : 0;
        if (!length || !same_name(config->file_key, argv[i] + 2, length)) continue;
        if (path) return refuse(error, "--%s: given twice (a file can hold 'include = other.ini')", config->file_key);
        if (argv[i][2 + length]) path = argv[i] + 3 + length;
        else if (i + 1 < argc && !is_name(argv[i + 1])) path = argv[i + 1];
        else return refuse(error, "%s: expected a file name", argv[i]);
    }
    if (!path) return true;
    char label[LABEL_SIZE];
    snprintf(label, sizeof label, "--%s", config->file_key);
    if (!*path) return refuse_empty(label, error);
    return load_file(config, path, label, NULL, error);
}

static void append_item(Config *config, int i, const char *item) {
    struct ConfigItem *state = &config->items[i];
    const char **items = realloc(state->items, (size_t)(state->item_count + 1) * sizeof *items);
    if (!items) die("out of memory for --%s", state->entry->name);
    items[state->item_count++] = item;
    state->items = items;
    *(ConfigList *)state->field = (ConfigList){state->item_count, state->items};
}

/* Takes argv[at] and its values; returns the index after them, 0 for an error. */
static int take_argument(Config *config, int argc, char *const *argv, int at, Error *error) {
    const char *name = !strcmp(argv[at], "-h") && find_name(config, "help", 4) >= 0 ? "--help" : argv[at];
    char label[LABEL_SIZE], hint[128];
    if (!is_name(name) || !name[2]) {
        refuse(error, "unexpected argument '%.60s': a setting is --name value (see --help)", name);
        return 0;
    }
    size_t length = strcspn(name + 2, "=");
    const char *value = name[2 + length] ? name + 3 + length : NULL;
    snprintf(label, sizeof label, "--%.*s", length < 60 ? (int)length : 60, name + 2);
    int i = find_name(config, name + 2, length);
    if (i < 0) {
        suggest_name(config, false, label + 2, "--", "", hint, sizeof hint);
        refuse(error, "%s: unknown setting%s", label, hint);
        return 0;
    }
    const ConfigEntry *entry = config->items[i].entry;
    at++;
    if (!value && at < argc && !is_name(argv[at])) value = argv[at++];
    if (!value && entry->type == CONFIG_BOOL) value = "true";
    if (!value) {
        refuse(error, "%s: expected a value", label);
        return 0;
    }
    if (!*value && takes_path(entry)) return refuse_empty(label, error);
    if (entry->type == CONFIG_LIST) {
        append_item(config, i, value);
        for (; at < argc && !is_name(argv[at]); at++) {
            if (!*argv[at]) return refuse_empty(label, error);
            append_item(config, i, argv[at]);
        }
    } else if (!set_value(config, i, value, label, error)) {
        return 0;
    }
    set_origin(config, i, label, LEVEL_COMMAND);
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
    set_origin(config, i, origin, is_name(origin) ? LEVEL_COMMAND : LEVEL_FILE);
    return true;
}

const char *config_origin(const Config *config, const char *name) {
    return config->items[must_find(config, name)].origin;
}

bool config_chosen(const Config *config, const char *name) {
    const struct ConfigItem *item = &config->items[must_find(config, name)];
    switch (item->entry->type) {
    case CONFIG_BOOL: return *(const bool *)item->field;
    case CONFIG_STRING: return **(const char *const *)item->field != 0;
    case CONFIG_LIST: return ((const ConfigList *)item->field)->count > 0;
    default: return item->origin != NULL;
    }
}

const char *config_string(const Config *config, const char *name) {
    const struct ConfigItem *item = &config->items[must_find(config, name)];
    assert(item->entry->type == CONFIG_STRING);
    return *(const char *const *)item->field;
}

const char *config_name(const Config *config, int i) { return config->items[i].entry->name; }

const char *config_section(const Config *config, int i) { return config->items[i].section; }

char *config_value(const Config *config, int i) { return config_current_text(&config->items[i]); }

void config_reject(const Config *config, const char *name, const char *format, ...) {
    char label[LABEL_SIZE], message[LABEL_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    label_of(config_origin(config, name), name, label, sizeof label);
    die_usage("%s: %s", label, message);
}

void config_require_utf8(const Config *config) {
    for (int i = 0; i < config->count; i++) {
        const ConfigEntry *entry = config->items[i].entry;
        if (entry->type != CONFIG_STRING || entry->command_line_only || !config_counts(config, i)) continue;
        const char *value = *(const char *const *)config->items[i].field;
        if (!text_is_utf8(value))
            config_reject(config, entry->name, "'%s' is not UTF-8, and checkpoints could not hold it: rename it",
                          value);
    }
}

/* == Settings not in use ======================================================================================== */

/* Resets a setting to its default; false if this changes its value. */
static bool forget(Config *config, int i) {
    char *given = config_current_text(&config->items[i]);
    set_default(config, i);
    char *initial = config_current_text(&config->items[i]);
    bool same = !strcmp(given, initial);
    free(given);
    free(initial);
    return same;
}

static bool settle_item(Config *config, int i, Error *error) {
    struct ConfigItem *item = &config->items[i];
    const struct ConfigBinding *group = &config->groups[item->group];
    if (!group->chooser || group->used || item->level == LEVEL_DEFAULT) return true;
    const struct ConfigItem *chooser = &config->items[must_find(config, group->chooser)];
    bool file = item->level == LEVEL_FILE;
    bool included = file && chooser->level == LEVEL_FILE && item->depth > chooser->depth;
    bool weaker = item->level < chooser->level || item->level == LEVEL_TEXT || included;
    char label[LABEL_SIZE];
    label_of(item->origin, item->entry->name, label, sizeof label);
    if ((forget(config, i) && file) || weaker) return true;
    char *chosen = config_current_text(chooser);
    const char *owners = group->owners, *third = owners;
    for (int n = 0; n < 3 && third; n++) third = strchr(third + (n > 0), ',');
    int listed = third ? (int)(third - owners) : (int)strlen(owners);
    refuse(error, "%s: %s %s has no such setting; it belongs to %.*s%s", label, group->chooser, chosen, listed, owners,
           third ? ", ..." : "");
    free(chosen);
    return false;
}

bool config_try_settle(Config *config, Error *error) {
    for (int i = 0; i < config->count; i++)
        if (!settle_item(config, i, error)) return false;
    config->settled = true;
    return true;
}

void config_settle(Config *config) {
    Error error;
    if (!config_try_settle(config, &error)) die_usage("%s", error.text);
    for (int i = 0; i < config->group_count; i++) {
        const struct ConfigBinding *binding = &config->groups[i];
        bool used = !binding->chooser || binding->used;
        if (used && binding->group->check) binding->group->check(config, binding->settings);
    }
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
