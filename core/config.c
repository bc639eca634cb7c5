#include "core/config.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/config_parts.h"
#include "core/die.h"
#include "core/error.h"
#include "core/files.h"

/* == The table ================================================================================================== */

static bool same_name(const char *a, const char *b, size_t b_length) {
    for (size_t i = 0; i < b_length; i++)
        if (!a[i] || a[i] != (b[i] == '-' ? '_' : b[i])) return false;
    return !a[b_length];
}

int config_find(const Config *config, const char *name, size_t length) {
    for (int i = 0; i < config->count; i++)
        if (same_name(config->items[i].entry->name, name, length)) return i;
    return -1;
}

int config_must_find(const Config *config, const char *name) {
    int i = config_find(config, name, strlen(name));
    assert(i >= 0 && "the setting is in the table");
    return i;
}

bool config_counts(const Config *config, int i) {
    const struct ConfigBinding *group = &config->groups[config->items[i].group];
    return !config->settled || !group->chooser || group->used;
}

ConfigChange config_change(const Config *config, int i) {
    const ConfigEntry *entry = config->items[i].entry;
    if (entry->command_line_only) return CHANGE_UNSAID;
    return entry->change ? entry->change : config->groups[config->items[i].group].group->change;
}

void config_set_origin(Config *config, int i, const char *origin, Level level) {
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
    if (config_find(config, entry->name, strlen(entry->name)) != i) wrong = "name stands twice";
    if (!strcmp(entry->name, "include")) wrong = "reserved name";
    if (!config->items[i].section) wrong = "missing section";
    if (!entry->help) wrong = "missing help";
    if (entry->type == CONFIG_LIST && !entry->command_line_only) wrong = "list in files";
    if (!entry->command_line_only && !config_change(config, i)) wrong = "may a resumed run change it?";
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
    } else if (!config_set_value(config, i, item->initial, item->entry->name, &error)) {
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

void config_init_like(Config *config, const Config *other) {
    config_init(config, NULL);
    for (int g = 0; g < other->group_count; g++)
        config_add_for(config, other->groups[g].group, other->groups[g].chooser, other->groups[g].owners);
    for (int i = 0; i < config->count; i++) config->items[i].initial = other->items[i].initial;
    config_reset(config);
}

void config_use(Config *config, const ConfigGroup *group) {
    struct ConfigBinding *binding = find_group(config, group);
    if (binding) binding->used = true;
}

void config_default(Config *config, const char *name, const char *value) {
    int i = config_must_find(config, name);
    config->items[i].initial = value;
    set_default(config, i);
}

void config_explain(Config *config, const char *name, const char *help) {
    config->items[config_must_find(config, name)].help = help;
}

void config_example(Config *config, const char *name, const char *words) {
    config->items[config_must_find(config, name)].example = words;
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

/* == The command line =========================================================================================== */

bool config_is_name(const char *argument) { return !strncmp(argument, "--", 2) || !strcmp(argument, "-h"); }

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
    const char *path = NULL;
    for (int i = 1; i < argc && config->file_key; i++) {
        size_t length = config_is_name(argv[i]) ? strcspn(argv[i] + 2, "=") : 0;
        if (!length || !same_name(config->file_key, argv[i] + 2, length)) continue;
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
    const ConfigEntry *entry = config->items[i].entry;
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
        append_item(config, i, value);
        for (; at < argc && !config_is_name(argv[at]); at++) {
            if (!*argv[at]) return refuse_empty(label, error);
            append_item(config, i, argv[at]);
        }
    } else if (!config_set_value(config, i, value, label, error)) {
        return 0;
    }
    config_set_origin(config, i, label, LEVEL_COMMAND);
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

bool config_try_set(Config *config, const char *name, const char *value, const char *origin, Error *error) {
    char label[CONFIG_LABEL];
    int i = config_must_find(config, name);
    config_label(origin, name, label, sizeof label);
    if (!config_set_value(config, i, value, label, error)) return false;
    config_set_origin(config, i, origin, config_is_name(origin) ? LEVEL_COMMAND : LEVEL_FILE);
    return true;
}

const char *config_origin(const Config *config, const char *name) {
    return config->items[config_must_find(config, name)].origin;
}

bool config_chosen(const Config *config, const char *name) {
    const struct ConfigItem *item = &config->items[config_must_find(config, name)];
    switch (item->entry->type) {
    case CONFIG_BOOL: return *(const bool *)item->field;
    case CONFIG_STRING: return **(const char *const *)item->field != 0;
    case CONFIG_LIST: return ((const ConfigList *)item->field)->count > 0;
    default: return item->origin != NULL;
    }
}

const char *config_string(const Config *config, const char *name) {
    const struct ConfigItem *item = &config->items[config_must_find(config, name)];
    assert(item->entry->type == CONFIG_STRING);
    return *(const char *const *)item->field;
}

const ConfigEntry *config_entry(const Config *config, int i) { return config->items[i].entry; }

const char *config_name(const Config *config, int i) { return config->items[i].entry->name; }

const char *config_initial(const Config *config, const char *name) {
    return config->items[config_must_find(config, name)].initial;
}

char *config_value(const Config *config, int i) { return config_current_text(&config->items[i]); }

const char *config_word(const Config *config, const char *name, int choice) {
    return config_choice_name(config->items[config_must_find(config, name)].entry, choice);
}

/* == Resumed runs =============================================================================================== */

bool config_changed(const Config *config, int i, const char *saved) {
    ConfigChange change = config_change(config, i);
    if (change == CHANGE_UNSAID || change == CHANGE_EVERY_CALL) return false;
    char *value = config_value(config, i);
    bool chosen_again = change == CHANGE_TO_DEFAULT && !strcmp(value, config->items[i].initial);
    bool changed = !chosen_again && strcmp(value, saved);
    free(value);
    return changed;
}

bool config_may_change(const Config *config, int i) {
    ConfigChange change = config_change(config, i);
    if (change == CHANGE_PATH) {
        const char *path = config_string(config, config_name(config, i));
        return strpbrk(path, "/.") && file_exists(path);
    }
    return change != CHANGE_NEVER && change != CHANGE_TO_DEFAULT;
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
    const struct ConfigItem *chooser = &config->items[config_must_find(config, group->chooser)];
    bool file = item->level == LEVEL_FILE;
    bool included = file && chooser->level == LEVEL_FILE && item->depth > chooser->depth;
    bool weaker = item->level < chooser->level || item->level == LEVEL_TEXT || included;
    char label[CONFIG_LABEL];
    config_label(item->origin, item->entry->name, label, sizeof label);
    if ((forget(config, i) && file) || weaker) return true;
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
