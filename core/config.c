/* The table of settings, and their defaults. */
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

void config_set_origin(struct ConfigItem *item, const char *origin, Level level) {
    char *copy = strdup(origin);
    if (!copy) die("out of memory for the origin of a setting");
    free(item->origin);
    item->origin = copy;
    item->level = level;
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

void config_set_default(struct ConfigItem *item) {
    Error error;
    free(item->origin);
    item->origin = NULL;
    item->level = LEVEL_DEFAULT;
    if (item->entry->type == CONFIG_LIST) {
        *(ConfigList *)item->field = (ConfigList){0};
    } else if (!config_set_value(item, item->initial, item->entry->name, &error)) {
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
        config_set_default(&config->items[i]);
    }
    return settings;
}

void *config_add(Config *config, const ConfigGroup *group) { return config_add_for(config, group, NULL, NULL); }

void config_use(Config *config, const ConfigGroup *group) {
    struct ConfigBinding *binding = find_group(config, group);
    if (binding) binding->used = true;
}

void config_default(Config *config, const char *name, const char *value) {
    int i = config_must_find(config, name);
    config->items[i].initial = value;
    config_set_default(&config->items[i]);
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
        config_set_default(&config->items[i]);
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

/* == One value, and where it came from ========================================================================== */

bool config_try_set(Config *config, const char *name, const char *value, const char *origin, Error *error) {
    char label[CONFIG_LABEL];
    int i = config_must_find(config, name);
    config_label(origin, name, label, sizeof label);
    if (!config_set_value(&config->items[i], value, label, error)) return false;
    config_set_origin(&config->items[i], origin, config_is_name(origin) ? LEVEL_COMMAND : LEVEL_FILE);
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
