/* The command line. */
#include <stdlib.h>
#include <string.h>

#include "core/config_parts.h"
#include "core/die.h"
#include "core/error.h"

/* Decided by the placeholder; for other strings an empty value may be meaningful. */
static bool refuses_empty(const ConfigEntry *entry) {
    static const char *const paths[] = {"FILE", "FOLDER", "IN"};
    bool path = entry->type == CONFIG_LIST || entry->alone;
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

static void append_to_list(struct ConfigItem *item, const char *argument) {
    const char **items = realloc(item->items, (size_t)(item->item_count + 1) * sizeof *items);
    if (!items) die("out of memory for --%s", item->entry->name);
    items[item->item_count++] = argument;
    item->items = items;
    *(ConfigList *)item->field = (ConfigList){item->item_count, items};
}

/* Takes argv[at] and its values; returns the index after them, 0 for an error. */
static int take_argument(Config *config, int argc, char *const *argv, int at, Error *error) {
    bool short_help = !strcmp(argv[at], "-h") && config_find(config, "help", 4) >= 0;
    const char *name = short_help ? "--help" : argv[at];
    char label[CONFIG_LABEL];
    if (!config_is_name(name) || !name[2]) {
        refuse(error, "unexpected argument '%.60s': a setting is --name value (see --help)", name);
        return 0;
    }
    size_t length = strcspn(name + 2, "=");
    const char *value = name[2 + length] ? name + 3 + length : NULL;
    snprintf(label, sizeof label, "--%.*s", length < 60 ? (int)length : 60, name + 2);
    int i = config_find(config, name + 2, length);
    if (i < 0) {
        char *hint = config_suggestion(config, false, label + 2);
        refuse(error, "%s: unknown setting%s", label, hint);
        free(hint);
        return 0;
    }
    struct ConfigItem *item = &config->items[i];
    const ConfigEntry *entry = item->entry;
    at++;
    if (!value && at < argc && !config_is_name(argv[at])) value = argv[at++];
    if (!value && entry->type == CONFIG_BOOL) value = "true";
    if (!value && entry->alone) value = short_help ? "-h" : entry->alone;
    if (!value) {
        refuse(error, "%s: expected a value", label);
        return 0;
    }
    if (!*value && refuses_empty(entry)) return refuse_empty(label, error);
    if (entry->type == CONFIG_LIST) {
        append_to_list(item, value);
        for (; at < argc && !config_is_name(argv[at]); at++) {
            if (!*argv[at]) return refuse_empty(label, error);
            append_to_list(item, argv[at]);
        }
    } else if (!config_set_value(item, value, label, error)) {
        return 0;
    }
    config_set_origin(item, label, LEVEL_COMMAND);
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

void config_read_arguments(Config *config, int argc, char *const *argv) {
    Error error;
    if (!config_try_arguments(config, argc, argv, &error)) die_usage("%s", error.text);
}
