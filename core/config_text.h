/* The settings' table and values as text: what core/config.c reads, --help, files and messages say. */
#ifndef VIT_CORE_CONFIG_TEXT_H
#define VIT_CORE_CONFIG_TEXT_H

#include "core/config.h"

/* Where a value came from, in order of precedence: later ones win. */
typedef enum { LEVEL_DEFAULT, LEVEL_TEXT, LEVEL_FILE, LEVEL_COMMAND } Level;

/* One setting. */
struct ConfigItem {
    const ConfigEntry *entry;
    void *field;
    const char *section, *initial, *help;
    int group;
    char *origin;             /* NULL: the default */
    Level level;
    int depth;                /* for LEVEL_FILE: how many levels of includes the file is below the first */
    char *text;               /* of a string */
    const char **items;       /* of a list; the items themselves are argv's */
    int item_count;
};

struct ConfigBinding {
    const ConfigGroup *group;
    void *settings;
    const char *chooser, *owners; /* NULL: the group counts always */
    bool used;
};

/* Of an entry with choices: how many there are, and choice i, its place in a table and its name. */
int config_choice_count(const ConfigEntry *entry);
const void *config_item_at(const ConfigEntry *entry, int i);
const char *config_choice_name(const ConfigEntry *entry, int i);

/* The values that an entry takes, for messages and --help: "integer from 1 to 64", "cls or gap".  To be freed. */
char *config_values_text(const ConfigEntry *entry);
/* An item's value, as a file would have it.  To be freed. */
char *config_current_text(const struct ConfigItem *item);

#endif
