/* The table of settings, and their defaults. */
#include "core/config/config.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/config/config_parts.h"
#include "core/die.h"
#include "core/files.h"

/* == The table ================================================================================================== */

static bool same_name(const char *a, const char *b, size_t b_length) {
    for (size_t i = 0; i < b_length; i++)
        if (!a[i] || a[i] != (b[i] == '-' ? '_' : b[i])) return false;
    return !a[b_length];
}

int config_find(const Config *config, const char *name, size_t length) {
    for (int i = 0; i < config->count; i++)
        if (same_name(config->settings[i].entry->name, name, length)) return i;
    return -1;
}

int config_must_find(const Config *config, const char *name) {
    int i = config_find(config, name, strlen(name));
    assert(i >= 0 && "the setting is in the table");
    return i;
}

bool config_counts(const Config *config, int i) {
    const struct ConfigBinding *group = &config->groups[config->settings[i].group];
    return !config->settled || !group->chooser || group->used;
}

ConfigChange config_change(const Config *config, int i) {
    const ConfigEntry *entry = config->settings[i].entry;
    if (entry->command_line_only) return CHANGE_UNSAID;
    return entry->change ? entry->change : config->groups[config->settings[i].group].group->change;
}

void config_set_origin(struct ConfigSetting *setting, const char *origin, Level level) {
    char *copy = xstrdup(origin); /* `origin` may be the one that is freed */
    free(setting->origin);
    setting->origin = copy;
    setting->level = level;
}

/* == Groups and defaults ======================================================================================== */

static void check_entry(const Config *config, int i) {
    const ConfigEntry *entry = config->settings[i].entry;
    const char *wrong = NULL;
    if (strspn(entry->name, "abcdefghijklmnopqrstuvwxyz0123456789_") != strlen(entry->name)) wrong = "name";
    if (config_find(config, entry->name, strlen(entry->name)) != i) wrong = "name occurs twice";
    if (!strcmp(entry->name, "include")) wrong = "reserved name";
    if (!config->settings[i].section) wrong = "missing section";
    if (!entry->help) wrong = "missing help";
    if (entry->type == CONFIG_LIST && !entry->command_line_only) wrong = "list in files";
    if (!entry->command_line_only && !config_change(config, i)) wrong = "may a resumed run change it?";
    if (!wrong) return;
    fprintf(stderr, "settings table: %s: %s\n", entry->name, wrong);
    abort();
}

void config_set_default(struct ConfigSetting *setting) {
    Error error;
    free(setting->origin);
    setting->origin = NULL;
    setting->level = LEVEL_DEFAULT;
    if (setting->entry->type == CONFIG_LIST) {
        *(ConfigList *)setting->field = (ConfigList){0};
    } else if (!config_set_value(setting, setting->initial, setting->entry->name, &error)) {
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
    config->settings = resized(config->settings, config->count, sizeof *config->settings);
    for (int i = 0; i < group->count; i++) {
        const ConfigEntry *entry = &group->entries[i];
        const char *before = i ? config->settings[first + i - 1].section : NULL;
        config->settings[first + i] = (struct ConfigSetting){
            .entry = entry,
            .field = settings + entry->offset,
            .section = entry->section ? entry->section : before,
            .initial = entry->initial ? entry->initial : entry->type == CONFIG_BOOL ? "false" : "",
            .help = entry->help,
            .group = g};
    }
    for (int i = first; i < config->count; i++) {
        check_entry(config, i);
        config_set_default(&config->settings[i]);
    }
    return settings;
}

void *config_add(Config *config, const ConfigGroup *group) { return config_add_for(config, group, NULL, NULL); }

void config_init_like(Config *config, const Config *other) {
    config_init(config, NULL);
    for (int g = 0; g < other->group_count; g++)
        config_add_for(config, other->groups[g].group, other->groups[g].chooser, other->groups[g].owners);
    for (int i = 0; i < config->count; i++) config->settings[i].initial = other->settings[i].initial;
    config_reset(config);
}

void config_use(Config *config, const ConfigGroup *group) {
    struct ConfigBinding *binding = find_group(config, group);
    if (binding) binding->used = true;
}

void config_default(Config *config, const char *name, const char *value) {
    int i = config_must_find(config, name);
    config->settings[i].initial = value;
    config_set_default(&config->settings[i]);
}

void config_explain(Config *config, const char *name, const char *help) {
    config->settings[config_must_find(config, name)].help = help;
}

void config_example(Config *config, const char *name, const char *words) {
    config->settings[config_must_find(config, name)].example = words;
}

void config_reset(Config *config) {
    for (int i = 0; i < config->count; i++) {
        free(config->settings[i].arguments);
        config->settings[i].arguments = NULL;
        config->settings[i].argument_count = 0;
        config_set_default(&config->settings[i]);
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
        free(config->settings[i].origin);
        free(config->settings[i].text);
        free(config->settings[i].arguments);
    }
    for (int i = 0; i < config->group_count; i++) free(config->groups[i].settings);
    free(config->settings);
    free(config->groups);
    *config = (Config){0};
}

/* == One value, and where it came from ========================================================================== */

bool config_try_set(Config *config, const char *name, const char *value, const char *origin, Error *error) {
    char label[CONFIG_LABEL];
    int i = config_must_find(config, name);
    config_label(origin, name, label, sizeof label);
    if (!config_set_value(&config->settings[i], value, label, error)) return false;
    config_set_origin(&config->settings[i], origin, config_is_name(origin) ? LEVEL_COMMAND : LEVEL_FILE);
    return true;
}

const char *config_origin(const Config *config, const char *name) {
    return config->settings[config_must_find(config, name)].origin;
}

bool config_chosen(const Config *config, const char *name) {
    const struct ConfigSetting *setting = &config->settings[config_must_find(config, name)];
    switch (setting->entry->type) {
    case CONFIG_BOOL: return *(const bool *)setting->field;
    case CONFIG_STRING: return **(const char *const *)setting->field != 0;
    case CONFIG_LIST: return ((const ConfigList *)setting->field)->count > 0;
    default: return setting->origin != NULL;
    }
}

const char *config_string(const Config *config, const char *name) {
    const struct ConfigSetting *setting = &config->settings[config_must_find(config, name)];
    assert(setting->entry->type == CONFIG_STRING);
    return *(const char *const *)setting->field;
}

const ConfigEntry *config_entry(const Config *config, int i) { return config->settings[i].entry; }

const char *config_name(const Config *config, int i) { return config->settings[i].entry->name; }

const char *config_initial(const Config *config, const char *name) {
    return config->settings[config_must_find(config, name)].initial;
}

char *config_value(const Config *config, int i) { return config_current_text(&config->settings[i]); }

const char *config_word(const Config *config, const char *name, int choice) {
    return config_choice_name(config->settings[config_must_find(config, name)].entry, choice);
}

/* == Resumed runs =============================================================================================== */

bool config_changed(const Config *config, int i, const char *saved) {
    ConfigChange change = config_change(config, i);
    if (change == CHANGE_UNSAID || change == CHANGE_EVERY_CALL) return false;
    char *value = config_value(config, i);
    bool chosen_again = change == CHANGE_TO_DEFAULT && !strcmp(value, config->settings[i].initial);
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
