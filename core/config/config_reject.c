/* Messages about settings: which of them is to blame, the source of its value, and what an unknown name may mean. */
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "core/config/config_parts.h"
#include "core/die.h"
#include "core/config/foreign_names.h"
#include "core/text.h"
#include "core/text_stream.h"

/* == Unknown names ============================================================================================== */

/* The setting of this config that is nearest to `name`, NULL if none is similar. */
static const char *nearest_setting(const Config *config, bool in_file, const char *name) {
    const char **names = xcalloc((size_t)config->count + 1, sizeof *names, "names of settings");
    int count = 0;
    for (int i = 0; i < config->count; i++)
        if (!in_file || !config->settings[i].entry->command_line_only) names[count++] = config->settings[i].entry->name;
    if (in_file) names[count++] = "include";
    const char *near = nearest_word(name, names, count);
    free(names);
    return near;
}

int config_put_option(FILE *out, const Config *config, const char *name) {
    const ConfigEntry *entry = config->settings[config_must_find(config, name)].entry;
    const char *argument = entry->argument ? entry->argument : config_types[entry->type].argument;
    config_put_flag(out, name);
    return 2 + (int)strlen(name) + fprintf(out, "%s%s", *argument ? " " : "", argument);
}

bool config_refuse_unknown(const Config *config, bool in_file, const char *name, const char *label, Error *error) {
    const char *setting, *answer = foreign_name(config, name, &setting);
    const char *near = setting || answer ? NULL : nearest_setting(config, in_file, name);
    TextStream text;
    FILE *out = text_open(&text);
    if (answer) {
        fprintf(out, ": %s", answer);
    } else if (setting) {
        fputs("; here it is ", out);
        if (in_file) fputs(setting, out);
        else config_put_option(out, config, setting);
    } else if (near) {
        fputs(" (did you mean ", out);
        if (in_file) fprintf(out, "'%s'", near);
        else config_put_flag(out, near);
        fputs("?)", out);
    }
    char *hint = text_close(&text, "a message");
    refuse(error, "%s: unknown setting%s", label, hint);
    free(hint);
    return false;
}

/* == Where a value came from ==================================================================================== */

/* The value, or `given` in its place, and a note if it is the default. */
static void put_value(FILE *out, const struct ConfigSetting *setting, const char *given) {
    char *value = given ? NULL : config_current_text(setting);
    const char *text = given ? given : value;
    fputs(*text ? text : "''", out);
    if (!setting->origin) { /* a program may have replaced a default */
        fputs(given || !strcmp(value, setting->initial) ? " (the default; " : " (not given; ", out);
        config_put_flag(out, setting->entry->name);
        fputs(" sets it)", out);
    }
    free(value);
}

/* Prints the text that config_sourced returns. */
static void put_sourced(FILE *out, const struct ConfigSetting *setting, const char *given) {
    const char *name = setting->entry->name, *origin = setting->origin;
    bool typed = origin && config_is_name(origin) && origin[1] == '-';
    size_t length = strlen(name);
    for (size_t k = 0; typed && k <= length; k++) /* --resume sets run_dir, too */
        typed = origin[k + 2] == name[k] || (origin[k + 2] == '-' && name[k] == '_');
    if (typed) config_put_flag(out, name);
    else fputs(name, out);
    fputc(' ', out);
    put_value(out, setting, given);
    if (origin && !typed) fprintf(out, " (%s)", origin);
}

char *config_sourced(const Config *config, int i) {
    TextStream text;
    FILE *out = text_open(&text);
    put_sourced(out, &config->settings[i], NULL);
    return text_close(&text, "a message");
}

/* == Rejections ================================================================================================= */

/* Settings are enclosed by braces in a format, and by these characters in the message, whose arguments may contain
 * braces. */
enum { OPEN = '\1', CLOSE = '\2' };

/* The first setting in a message, as [OPEN name CLOSE] or [OPEN name=value CLOSE]. */
typedef struct {
    const char *begin, *end; /* of the whole text with its marks; begin NULL: there is none */
    int setting;             /* -1: this program has no such setting */
    char name[64], value[64]; /* the value to show in place of the setting's own; "": none */
} Mention;

static Mention next_mention(const Config *config, const char *message) {
    Mention m = {0};
    const char *open = strchr(message, OPEN), *close = open ? strchr(open, CLOSE) : NULL;
    if (!close) return m;
    sscanf(open + 1, "%63[^=\2]=%63[^\2]", m.name, m.value);
    m.begin = open;
    m.end = close + 1;
    m.setting = config_find(config, m.name, strlen(m.name));
    return m;
}

/* Was a given more explicitly than b?  A file takes precedence over the files that it includes. */
static bool outranks(const struct ConfigSetting *a, const struct ConfigSetting *b) {
    if (a->level != b->level) return a->level > b->level;
    return a->level == LEVEL_FILE && a->depth < b->depth;
}

static int blamed(const Config *config, int named, const char *message) {
    int worst = named;
    for (Mention m = next_mention(config, message); m.begin; m = next_mention(config, m.end))
        if (m.setting >= 0 && outranks(&config->settings[m.setting], &config->settings[worst])) worst = m.setting;
    return worst;
}

/* The message with its settings spelled out.  The message's place has named `worst`, unless that is -1. */
static char *spelled_out(const Config *config, int worst, const char *message) {
    const char *at = message;
    TextStream text;
    FILE *out = text_open(&text);
    for (Mention m = next_mention(config, at); m.begin; m = next_mention(config, at)) {
        const char *given = *m.value ? m.value : NULL;
        fprintf(out, "%.*s", (int)(m.begin - at), at);
        at = m.end;
        if (m.setting < 0) {
            fputs(m.name, out);
        } else if (m.setting != worst) {
            put_sourced(out, &config->settings[m.setting], given);
        } else {
            if (m.begin > message) fprintf(out, "%s ", m.name);
            put_value(out, &config->settings[m.setting], given);
        }
    }
    fputs(at, out);
    return text_close(&text, "a message");
}

enum { MESSAGE = 1024 };

/* The format with its arguments, its braces as marks. */
static void fill_in(char message[MESSAGE], const char *format, va_list arguments) {
    char marked[CONFIG_LABEL];
    snprintf(marked, sizeof marked, "%s", format);
    for (char *c = marked; *c; c++) *c = (char)(*c == '{' ? OPEN : *c == '}' ? CLOSE : *c);
    vsnprintf(message, MESSAGE, marked, arguments);
}

void config_reject(const Config *config, const char *name, const char *format, ...) {
    char message[MESSAGE], label[CONFIG_LABEL];
    va_list arguments;
    va_start(arguments, format);
    fill_in(message, format, arguments);
    va_end(arguments);
    int worst = blamed(config, config_must_find(config, name), message);
    config_label(config->settings[worst].origin, config->settings[worst].entry->name, label, sizeof label);
    die_usage("%s: %s", label, spelled_out(config, worst, message));
}

void config_die(const Config *config, const char *format, ...) {
    char message[MESSAGE];
    va_list arguments;
    va_start(arguments, format);
    fill_in(message, format, arguments);
    va_end(arguments);
    die("%s", spelled_out(config, -1, message));
}

void config_limit(const Config *config, const char *name, double count, const char *what) {
    if (count > INT_MAX) config_reject(config, name, "{%s} makes %.4g %s, and the limit is 2^31 - 1", name, count, what);
}

void config_require_utf8(const Config *config) {
    for (int i = 0; i < config->count; i++) {
        const ConfigEntry *entry = config->settings[i].entry;
        if (entry->type != CONFIG_STRING || entry->command_line_only || !config_counts(config, i)) continue;
        const char *value = *(const char *const *)config->settings[i].field;
        if (!text_is_utf8(value))
            config_reject(config, entry->name, "'%s' is not UTF-8, which checkpoints cannot hold: rename it",
                          value);
    }
}

/* == Settings not in use ======================================================================================== */

/* Resets a setting to its default; false if this changes its value. */
static bool forget(struct ConfigSetting *setting) {
    char *given = config_current_text(setting);
    config_set_default(setting);
    char *initial = config_current_text(setting);
    bool same = !strcmp(given, initial);
    free(given);
    free(initial);
    return same;
}

static bool settle_item(Config *config, int i, Error *error) {
    struct ConfigSetting *setting = &config->settings[i];
    const struct ConfigBinding *group = &config->groups[setting->group];
    if (!group->chooser || group->used || setting->level == LEVEL_DEFAULT) return true;
    const struct ConfigSetting *chooser = &config->settings[config_must_find(config, group->chooser)];
    bool file = setting->level == LEVEL_FILE;
    bool included = file && chooser->level == LEVEL_FILE && setting->depth > chooser->depth;
    bool weaker = setting->level < chooser->level || setting->level == LEVEL_TEXT || included;
    char label[CONFIG_LABEL];
    config_label(setting->origin, setting->entry->name, label, sizeof label);
    if ((forget(setting) && file) || weaker) return true;
    char *chosen = config_sourced(config, config_must_find(config, group->chooser));
    const char *owners = group->owners, *third = owners;
    for (int n = 0; n < 3 && third; n++) third = strchr(third + (n > 0), ',');
    int listed = third ? (int)(third - owners) : (int)strlen(owners);
    refuse(error, "%s: %s has no such setting; it belongs to %.*s%s", label, chosen, listed, owners,
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
    config_try_settle(config, &error_usage);
    for (int i = 0; i < config->group_count; i++) {
        const struct ConfigBinding *binding = &config->groups[i];
        bool used = !binding->chooser || binding->used;
        if (used && binding->group->check) binding->group->check(config, binding->settings);
    }
}
