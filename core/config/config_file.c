/* INI files: reading, with includes, and writing. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "core/config/config_parts.h"
#include "core/die.h"
#include "core/files.h"
#include "core/text_stream.h"

enum { INCLUDE_DEPTH = 8, FILE_LIMIT = 1 << 20 };

typedef struct ConfigSource {
    Config *config;
    Error *error;
    const char *where; /* the file's name */
    const char *text;
    size_t length, at;
    int line, failed_line;      /* failed_line 0: no error so far */
    int *seen;                  /* [config->count] line of each setting in this file, 0 before it */
    const struct ConfigSource *parent;
    bool file;                  /* include is allowed */
    dev_t device;
    ino_t inode;
} Source;

static bool refuse_section(const Source *s, const char *title, int length) {
    const char **titles = xcalloc((size_t)s->config->count, sizeof *titles, "section titles");
    char name[64], hint[CONFIG_LABEL] = "";
    int count = 0;
    for (int i = 0; i < s->config->count; i++) {
        const char *section = s->config->settings[i].section;
        bool fresh = !count || strcmp(titles[count - 1], section);
        if (fresh && !s->config->settings[i].entry->command_line_only) titles[count++] = section;
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
        const char *section = s->config->settings[i].section;
        if (!s->config->settings[i].entry->command_line_only && (int)strlen(section) == title &&
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

/* Files that include this one. */
static int depth_of(const Source *s) {
    int depth = 0;
    for (const Source *p = s->parent; p; p = p->parent) depth++;
    return depth;
}

/* Includes may be neither circular nor nested too deeply: load_file checks the first, this function the second. */
static bool include_file(Source *s, const char *name) {
    char label[CONFIG_LABEL], path[PATH_MAX];
    snprintf(label, sizeof label, "%s:%d: include", s->where, s->line);
    if (!s->file) return refuse(s->error, "%s: not possible here, only in a file", label);
    if (!*name) return refuse(s->error, "%s: expected a file name", label);
    if (depth_of(s) + 2 > INCLUDE_DEPTH) return refuse(s->error, "%s: files nest deeper than %d", label, INCLUDE_DEPTH);
    const char *slash = strrchr(s->where, '/');
    int folder = *name == '/' || !slash ? 0 : (int)(slash - s->where) + 1;
    int length = snprintf(path, sizeof path, "%.*s%s", folder, s->where, name);
    if (length >= (int)sizeof path) return refuse(s->error, "%s: the path is too long", label);
    return config_load_file(s->config, path, label, s, s->error);
}

static bool take_setting(Source *s, const char *name, const char *value) {
    char label[CONFIG_LABEL];
    if (!*name) return refuse(s->error, "%s:%d: expected 'name = value'", s->where, s->line);
    if (!strcmp(name, "include")) return include_file(s, value);
    snprintf(label, sizeof label, "%s:%d: %s", s->where, s->line, name);
    int i = config_find(s->config, name, strlen(name));
    if (i < 0) return config_refuse_unknown(s->config, true, name, label, s->error);
    struct ConfigSetting *setting = &s->config->settings[i];
    const ConfigEntry *entry = setting->entry;
    if (!s->file && entry->former && !strcmp(value, entry->former)) value = entry->initial;
    if (entry->command_line_only)
        return refuse(s->error, "%s: possible only on the command line", label);
    if (s->seen[i])
        return refuse(s->error, "%s: set twice in this file, on lines %d and %d", label, s->seen[i], s->line);
    s->seen[i] = s->line;
    if (!config_set_value(setting, value, label, s->error)) return false;
    snprintf(label, sizeof label, "%s:%d", s->where, s->line);
    config_set_origin(setting, label, s->file ? LEVEL_FILE : LEVEL_TEXT);
    setting->depth = depth_of(s);
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
    config_line_limit();
    s->seen = xcalloc((size_t)s->config->count, sizeof *s->seen, "lines of settings");
    int first_bad = ini_parse_stream(next_line, s, take_pair, s);
    free(s->seen);
    if (first_bad < 0) return refuse(s->error, "%s: out of memory", s->where);
    if (first_bad && first_bad != s->failed_line)
        return refuse(s->error, "%s:%d: expected 'name = value'", s->where, first_bad);
    return !s->failed_line;
}

/* Reads the whole file into s->text, which the caller frees, also after an error. */
static bool read_whole(Source *s, FILE *in, const char *prefix, char **text) {
    struct stat status;
    if (fstat(fileno(in), &status))
        return refuse(s->error, "%scannot read '%s': %s", prefix, s->where, strerror(errno));
    if (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode))
        return refuse(s->error, "%s'%s' is a pipe, and settings are read more than once: write them into a file", prefix,
                      s->where);
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

bool config_load_file(Config *config, const char *path, const char *label, const Source *parent, Error *error) {
    Source s = {.config = config, .error = error, .where = path, .parent = parent, .file = true};
    char prefix[CONFIG_LABEL + 2] = "", *text = NULL;
    if (label) snprintf(prefix, sizeof prefix, "%s: ", label);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer must not be waited for */
    FILE *in = fd < 0 ? NULL : fdopen(fd, "rb");
    if (!in) return refuse(error, "%scannot open '%s': %s", prefix, path, strerror(errno));
    file_note(path);
    bool ok = read_whole(&s, in, prefix, &text);
    fclose(in);
    ok = ok && load_text(&s);
    free(text);
    return ok;
}

bool config_try_file(Config *config, const char *path, Error *error) {
    return config_load_file(config, path, NULL, NULL, error);
}

bool config_try_text(Config *config, const char *text, size_t length, const char *where, Error *error) {
    Source s = {.config = config, .error = error, .where = where, .text = text, .length = length};
    return load_text(&s);
}

/* == Writing ==================================================================================================== */

char *config_text(const Config *config) {
    const char *heading = "";
    TextStream text;
    FILE *out = text_open(&text);
    for (int i = 0; i < config->count; i++) {
        const struct ConfigSetting *setting = &config->settings[i];
        if (setting->entry->command_line_only || !config_counts(config, i)) continue;
        if (strcmp(setting->section, heading)) fprintf(out, "%s[%s]\n", *heading ? "\n" : "", setting->section);
        heading = setting->section;
        fputs("\n# ", out);
        config_put_meaning(out, setting, "# ", 2);
        char *value = config_current_text(setting);
        fprintf(out, "%s = %s\n", setting->entry->name, value);
        free(value);
    }
    return text_close(&text, "the settings as text");
}
