/* Settings.  A program's settings come in groups: each belongs to the part of the program that it steers, stands there
 * as one table - name, type, default, range, section, help - and fills one struct.  The INI parser, the command line,
 * --help, the saved config and the reference in docs/ all come from these tables.
 *
 *     typedef struct { float lr; int warmup; } ScheduleSettings;
 *     #define F(KIND, field) CONFIG_FIELD(KIND, ScheduleSettings, field)
 *     static const ConfigEntry entries[] = {
 *         {F(FLOAT, lr), "1e-3", .section = "training", .min = 0, .max = 10, .help = "Highest learning rate"},
 *         {F(INT, warmup), "0", .min = 0, .max = 1e6, .help = "Steps of linear warm-up"},
 *     };
 *     const ConfigGroup schedule_settings = {CONFIG_GROUP(ScheduleSettings, entries), .check = schedule_check};
 *
 *     config_init(&config, "config");
 *     const ScheduleSettings *schedule = config_add(&config, &schedule_settings);
 *     config_read_arguments(&config, argc, argv);
 *
 * Later readings win over earlier ones, and the command line wins over the file that it names.  Every error is one
 * line with its place first: "configs/x.ini:12: lr: ..." or "--lr: ...".  The config_try functions return false and
 * write that line into `error`; the config_read functions end the program with it (die_usage, status 2).
 * After an error the settings read before it stay set. */
#ifndef VIT_CORE_CONFIG_H
#define VIT_CORE_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "core/error.h"

typedef enum {       /* field in the settings struct         text */
    CONFIG_INT,      /* int                                  decimal integer */
    CONFIG_UINT64,   /* uint64_t                             decimal integer without sign */
    CONFIG_FLOAT,    /* float                                finite number */
    CONFIG_BOOL,     /* bool                                 true false 1 0 yes no on off; --name alone is true */
    CONFIG_STRING,   /* const char *, never NULL             one line, no "<space>;" (it would begin a comment) */
    CONFIG_CHOICE,   /* int or an enum: index of the choice  one of the choices */
    CONFIG_ITEM,     /* const T *: an element of `table`     its name */
    CONFIG_SIZE,     /* int[2]: height, width, at least 1    N, HxW or H,W */
    CONFIG_INTS,     /* ConfigInts                           one to eight integers with commas between them */
    CONFIG_FLOATS,   /* ConfigFloats                         the same of finite numbers */
    CONFIG_LIST      /* ConfigList                           command line only: all arguments up to the next --name */
} ConfigType;

/* The items are the program's own arguments, in order; count is 0 without any. */
typedef struct {
    int count;
    const char *const *items;
} ConfigList;

enum { CONFIG_NUMBERS = 8 };
typedef struct {
    int count, at[CONFIG_NUMBERS];
} ConfigInts;
typedef struct {
    int count;
    float at[CONFIG_NUMBERS];
} ConfigFloats;

typedef struct {
    const char *name; /* lower case with underscores, as in the file; dashes are as good wherever a user writes it */
    ConfigType type;
    size_t offset;       /* of the field in the settings struct */
    const char *initial; /* the default as text; NULL is "" for a string, "false" for a bool, no items for a list */
    double min, max;     /* inclusive, of each number; both 0: all the type can hold; may be INFINITY */
    const char *const *choices;
    int choice_count;
    const void *const *table; /* of an item: pointers to structs whose first member is const char *name, then NULL */
    bool (*offers)(const void *item); /* which elements of the table can be chosen; NULL: all of them */
    const char *noun;        /* what a choice is, for the error message: "operator"; NULL is "value" */
    const char *argument;    /* placeholder in --help: "FOLDER"; NULL picks one by type */
    bool command_line_only;  /* a mode, not a property of the run: refused in files and never saved */
    const char *section;     /* heading in files and help; NULL is the section of the entry above */
    const char *help;        /* one line, without a full stop */
} ConfigEntry;

/* The first three members of an entry: the setting is named like its field, and a field of the wrong C type does not
 * compile (a char array of negative size). */
#define CONFIG_FIELD(KIND, Settings, field) \
    #field, CONFIG_##KIND, offsetof(Settings, field) + 0 * sizeof(char[CONFIG_FITS_##KIND(((Settings *)0)->field)])
#define CONFIG_FITS_INT(x) _Generic((x), int: 1, default: -1)
#define CONFIG_FITS_UINT64(x) _Generic((x), uint64_t: 1, default: -1)
#define CONFIG_FITS_FLOAT(x) _Generic((x), float: 1, default: -1)
#define CONFIG_FITS_BOOL(x) _Generic((x), bool: 1, default: -1)
#define CONFIG_FITS_STRING(x) _Generic((x), const char *: 1, default: -1)
#define CONFIG_FITS_CHOICE(x) _Generic((x), int: 1, unsigned: 1, default: -1)
#define CONFIG_FITS_ITEM(x) (sizeof(x) == sizeof(void *) ? 1 : -1)
#define CONFIG_FITS_SIZE(x) (_Generic((x), int *: 1, default: -1) * (sizeof(x) == 2 * sizeof(int) ? 1 : -1))
#define CONFIG_FITS_INTS(x) _Generic((x), ConfigInts: 1, default: -1)
#define CONFIG_FITS_FLOATS(x) _Generic((x), ConfigFloats: 1, default: -1)
#define CONFIG_FITS_LIST(x) _Generic((x), ConfigList: 1, default: -1)

#define CONFIG_CHOICES(...)                             \
    .choices = (const char *const[]){__VA_ARGS__},      \
    .choice_count = sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *)

typedef struct Config Config;

/* The settings of one part of a program. */
typedef struct {
    const ConfigEntry *entries;
    int count;
    size_t size; /* of the struct that the entries' fields are in */
    /* Rejects (config_reject) values that contradict each other, once everything is read.  NULL: none can. */
    void (*check)(const Config *config, const void *settings);
} ConfigGroup;

#define CONFIG_GROUP(Settings, table) \
    .entries = (table), .count = (int)(sizeof(table) / sizeof *(table)), .size = sizeof(Settings)

struct Config {
    const char *file_key;
    struct ConfigItem *items; /* [count]: every setting of every group, its value's place and where it was set */
    int count;
    struct ConfigBinding *groups; /* [group_count] */
    int group_count;
    bool settled;
};

/* An empty config.  `file_key` is the setting (a command-line string) whose value names the INI file, NULL for none. */
void config_init(Config *config, const char *file_key);

/* Adds a group, which must outlive the config, and returns its struct with every default written into it; the config
 * owns the struct, which keeps its place.  Adding a group again returns the same struct.  A table that contradicts
 * itself or another one, for instance by a default out of range or a name that stands twice, aborts with that name. */
void *config_add(Config *config, const ConfigGroup *group);

/* The same for settings that count only with some values of another setting, the chooser, which is in the config
 * already: "attn" with "ripple, ripple-fixed" for `owners`.  config_use says that they count in this run. */
void *config_add_for(Config *config, const ConfigGroup *group, const char *chooser, const char *owners);
void config_use(Config *config, const ConfigGroup *group);

/* To be called once everything is read and config_use has been called for what counts.  A setting that was given but
 * does not count is refused with its place, unless its chooser was set by something stronger (the command line over a
 * file, either over a checkpoint) or it states the default in a file: then it falls back to the default.  From here
 * on, config_help, config_write and config_markdown leave out what does not count.  Then every group's check. */
bool config_try_settle(Config *config, Error *error);
void config_settle(Config *config);

/* A default of this program in place of the table's; before anything is read. */
void config_default(Config *config, const char *name, const char *value);

/* What a setting means in this program, in place of the table's help; kept, not copied. */
void config_explain(Config *config, const char *name, const char *help);

/* Every setting back to its default, as if nothing had been read; the structs keep their places. */
void config_reset(Config *config);

/* The struct of a group, NULL where it was not added. */
const void *config_settings(const Config *config, const ConfigGroup *group);

/* Frees the structs and what the strings and lists in them point to. */
void config_free(Config *config);

/* Reads "name = value" lines ('#' or ';' begins a comment line, ' ;' a comment at the end).  Section headings must be
 * known but do not qualify names.  "include = other.ini", relative to the file it stands in, reads that file at that
 * point, so what follows wins; eight files may nest.  A name may stand once in each file. */
bool config_try_file(Config *config, const char *path, Error *error);
void config_read_file(Config *config, const char *path);

/* The same for text in memory; `where` stands for the file's name in messages, and include is refused. */
bool config_try_text(Config *config, const char *text, size_t length, const char *where, Error *error);
void config_read_text(Config *config, const char *text, size_t length, const char *where);

/* Reads the file that --<file_key> names, wherever it stands, then all of argv[1...]: "--name value", "--name=value".
 * -h is --help where there is a setting of that name.
 * A name that is repeated takes its last value, a repeated list grows.  argv must outlive the config. */
bool config_try_arguments(Config *config, int argc, char *const *argv, Error *error);
void config_read_arguments(Config *config, int argc, char *const *argv);

/* Sets one value from text; `origin` as in config_origin.  Not for lists. */
bool config_try_set(Config *config, const char *name, const char *value, const char *origin, Error *error);

/* Where the value comes from: "configs/x.ini:12", "--lr", or NULL for the default.  The name must be in a table. */
const char *config_origin(const Config *config, const char *name);

/* Is this switch on, does this text or list hold anything?  Any other setting: was it given? */
bool config_chosen(const Config *config, const char *name);

/* The text of a string. */
const char *config_string(const Config *config, const char *name);

/* The name of setting i, i < config->count. */
const char *config_name(const Config *config, int i);

/* For what the table cannot check: ends the program with "<place>: <name>: <message>", the place being where the value
 * was set, for instance "configs/x.ini:12: heads: 5 does not divide dim 192". */
_Noreturn void config_reject(const Config *config, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The list of settings for --help: by section, aligned, at most 100 columns. */
void config_help(const Config *config, FILE *out);

/* The settings as an INI file with sections and comments.  Reading it back gives the same settings bit for bit. */
void config_write(const Config *config, FILE *out);

/* What config_write writes, as a string to be freed by the caller; for the metadata of a checkpoint. */
char *config_text(const Config *config);

/* The reference of all settings as Markdown, one table a section. */
void config_markdown(const Config *config, FILE *out);

#endif
