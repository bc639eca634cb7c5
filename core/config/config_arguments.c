/* The command line. */
#include <stdlib.h>
#include <string.h>

#include "core/config/config_parts.h"
#include "core/die.h"
#include "core/text.h"

/* Is the setting a path, as its placeholder shows?  Other strings may have an empty value. */
static bool refuses_empty(const ConfigEntry *entry) {
    bool path = entry->argument && text_lists("FILE FOLDER IN", entry->argument);
    return path || entry->type == CONFIG_LIST || entry->alone;
}

static bool refuse_empty(const char *label, Error *error) {
    return refuse(error, "%s: the value is empty: is a variable of the shell not set?", label);
}

/* The file that --config names is read before everything else.  A value that begins with "--" or is -h must follow '=',
 * so every other such argument is a name. */
static bool load_named_file(Config *config, int argc, char *const *argv, Error *error) {
    int key = config->file_key ? config_must_find(config, config->file_key) : -1;
    const char *path = NULL;
    for (int i = 1; i < argc && key >= 0; i++) {
        size_t length = config_is_name(argv[i]) ? strcspn(argv[i] + 2, "=") : 0;
        if (!length || config_find(config, argv[i] + 2, length) != key) continue;
        if (path) return refuse(error, "--%s: given twice (a file can hold 'include = other.ini')", config->file_key);
        if (argv[i][2 + length]) path = argv[i] + 3 + length;
        else if (i + 1 < argc && !config_is_name(argv[i + 1])) path = argv[i + 1];
        else return refuse(error, "%s: expected a file name", argv[i]);
    }
    if (!path) return true;
    char label[CONFIG_LABEL];
    snprintf(label, sizeof label, "--%s", config->file_key);
    if (!*path) return refuse_empty(label, error);
    return config_load_file(config, path, label, NULL, error);
}

static void append_to_list(struct ConfigSetting *setting, const char *argument) {
    const char **longer = realloc(setting->arguments, (size_t)(setting->argument_count + 1) * sizeof *longer);
    if (!longer) die("out of memory for --%s", setting->entry->name);
    longer[setting->argument_count++] = argument;
    setting->arguments = longer;
    *(ConfigList *)setting->field = (ConfigList){setting->argument_count, longer};
}

/* Takes argv[at] and its values; returns the index after them, or 0 (false) for an error. */
static int take_argument(Config *config, int argc, char *const *argv, int at, Error *error) {
    bool short_help = !strcmp(argv[at], "-h") && config_find(config, "help", 4) >= 0;
    const char *name = short_help ? "--help" : argv[at];
    char label[CONFIG_LABEL];
    if (!config_is_name(name) || !name[2])
        return refuse(error, "unexpected argument '%.60s': a setting is --name value (see --help)", name);
    size_t length = strcspn(name + 2, "=");
    const char *value = name[2 + length] ? name + 3 + length : NULL;
    snprintf(label, sizeof label, "--%.*s", length < 60 ? (int)length : 60, name + 2);
    int i = config_find(config, name + 2, length);
    if (i < 0) return config_refuse_unknown(config, false, label + 2, label, error);
    struct ConfigSetting *setting = &config->settings[i];
    const ConfigEntry *entry = setting->entry;
    at++;
    if (!value && at < argc && !config_is_name(argv[at])) value = argv[at++];
    if (!value && entry->type == CONFIG_BOOL) value = "true";
    if (!value && entry->alone) value = short_help ? "-h" : entry->alone;
    if (!value) return refuse(error, "%s: expected a value", label);
    if (!*value && refuses_empty(entry)) return refuse_empty(label, error);
    if (entry->type == CONFIG_LIST) {
        append_to_list(setting, value);
        for (; at < argc && !config_is_name(argv[at]); at++) {
            if (!*argv[at]) return refuse_empty(label, error);
            append_to_list(setting, argv[at]);
        }
    } else if (!config_set_value(setting, value, label, error)) {
        return false;
    }
    config_set_origin(setting, label, LEVEL_COMMAND);
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
