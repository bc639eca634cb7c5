/* The state of a setting, which the files core/config/config*.c share, and their functions for each other.  The files
 * follow the order of the chapters below, and each calls only those above it. */
#ifndef VIT_CORE_CONFIG_CONFIG_PARTS_H
#define VIT_CORE_CONFIG_CONFIG_PARTS_H

#include "core/config/config.h"

enum { CONFIG_LABEL = 512 };

/* The places that a value may come from, in order of precedence: later ones win. */
typedef enum { LEVEL_DEFAULT, LEVEL_TEXT, LEVEL_FILE, LEVEL_COMMAND } Level;

/* A setting and its current value. */
struct ConfigSetting {
    const ConfigEntry *entry;
    void *field;
    const char *section, *initial, *help;
    const char *example;      /* NULL: none */
    int group;
    char *origin;             /* NULL: the default */
    Level level;
    int depth;                /* for LEVEL_FILE: how many levels of includes the file is below the first */
    char *text;               /* a string's own copy */
    const char **arguments;   /* [argument_count]: those of a list, which are argv's */
    int argument_count;
};

struct ConfigBinding {
    const ConfigGroup *group;
    void *settings;
    const char *chooser, *owners; /* NULL: the group counts always */
    bool used;
};

/* == config_text.c */

/* The words for each type of setting. */
typedef struct {
    const char *article;  /* before `values`, in "expected an integer" */
    const char *values;   /* NULL: the names of the choices */
    const char *argument; /* the placeholder in --help */
} ConfigTypeWords;
extern const ConfigTypeWords config_types[];

/* How many choices an entry has, choice i as the element of its table, and the name of choice i. */
int config_choice_count(const ConfigEntry *entry);
const void *config_item_at(const ConfigEntry *entry, int i);
const char *config_choice_name(const ConfigEntry *entry, int i);
/* Choice i of an entry with a list (ConfigEntry.list). */
const ConfigChoice *config_choice(const ConfigEntry *entry, int i);

/* The values that an entry takes, for messages and --help: "integer from 1 to 64", "cls or gap".  To be freed. */
char *config_values_text(const ConfigEntry *entry);
/* The current value, as it would be in a file.  To be freed. */
char *config_current_text(const struct ConfigSetting *setting);
/* Prints `text`, starting in column `column`, wrapped to CONFIG_WIDTH characters; further lines begin with `lead`. */
enum { CONFIG_WIDTH = 100 };
void config_put_wrapped(FILE *out, const char *text, int column, const char *lead);
/* "width of a token (integer from 1 to 4096; default 192)".  Nothing is added for a bool. */
void config_put_meaning(FILE *out, const struct ConfigSetting *setting, const char *lead, int column);
/* Is this argument the name of a setting, "--lr" or "-h"? */
bool config_is_name(const char *argument);
/* "configs/x.ini:12: lr", "--lr", or "lr" for a default. */
void config_label(const char *origin, const char *name, char *label, size_t size);
/* "--img-size" */
void config_put_flag(FILE *out, const char *name);

/* == config_value.c */

/* Gives the setting the value that the text has; on failure nothing changes.  `label` is the place and the name. */
bool config_set_value(struct ConfigSetting *setting, const char *value, const char *label, Error *error);
/* The longest line of an INI file, in bytes. */
size_t config_line_limit(void);

/* == config.c */

/* The index of a setting, or -1; dashes in `name` count as underscores.  config_must_find asserts that it exists. */
int config_find(const Config *config, const char *name, size_t length);
int config_must_find(const Config *config, const char *name);
void config_set_origin(struct ConfigSetting *setting, const char *origin, Level level);
void config_set_default(struct ConfigSetting *setting);

/* == config_reject.c, which also calls foreign_names.c */

/* Refuses `name`, which no setting has: if it is another tool's name, with the setting here that does the same or an
 * answer; otherwise with the nearest name.  In a file names have no dashes. */
bool config_refuse_unknown(const Config *config, bool in_file, const char *name, const char *label, Error *error);
/* "--dim 192", "dim 192 (configs/x.ini:12)" or "dim 192 (the default; --dim sets it)".  To be freed. */
char *config_sourced(const Config *config, int i);

/* == config_file.c */

struct ConfigSource;
/* Reads an INI file.  `label` says who asked for it: "--config", "a.ini:3: include", or NULL for the program itself. */
bool config_load_file(Config *config, const char *path, const char *label, const struct ConfigSource *parent,
                      Error *error);

/* == config_arguments.c and config_help.c, of which no other file here calls anything */

#endif
