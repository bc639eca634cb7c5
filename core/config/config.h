/* Settings.  A program's settings come in groups.  A group belongs to the part of the program that it controls, is
 * defined there as one table - name, type, default, range, section, help - and fills one struct.  The INI parser, the
 * command line, --help, the saved config and the reference in docs/ all come from these tables.
 *
 *     typedef struct { float lr; int warmup; } ScheduleSettings;
 *     #define F(KIND, field) CONFIG_FIELD(KIND, ScheduleSettings, field)
 *     static const ConfigEntry entries[] = {
 *         {F(FLOAT, lr), "1e-3", .section = "training", .min = 0, .max = 10, .help = "Highest learning rate"},
 *         {F(INT, warmup), "0", .min = 0, .max = 1e6, .help = "Steps of linear warm-up"},
 *     };
 *     const ConfigGroup schedule_settings = {CONFIG_GROUP(ScheduleSettings, entries), .change = CHANGE_FREELY};
 *
 *     config_init(&config, "config");
 *     const ScheduleSettings *schedule = config_add(&config, &schedule_settings);
 *     config_try_arguments(&config, argc, argv, &error_usage);
 *
 * A value that is read later replaces an earlier one, and the command line takes precedence over the file that it
 * names.  Every error is one line that begins with the place: "configs/x.ini:12: lr: ..." or "--lr: ...".  The
 * config_try functions return false and write that line into `error`; with error_usage they end the program with it
 * (status 2). After an error the settings read before it stay set. */
#ifndef VIT_CORE_CONFIG_CONFIG_H
#define VIT_CORE_CONFIG_CONFIG_H

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
    CONFIG_ITEMS,    /* ConfigItems                          one to eight names of elements with commas between them */
    CONFIG_SIZE,     /* int[2]: height, width, at least 1    N, HxW or H,W */
    CONFIG_INTS,     /* ConfigInts                           one to eight integers with commas between them */
    CONFIG_FLOATS,   /* ConfigFloats                         the same for finite numbers; empty only by default */
    CONFIG_LIST      /* ConfigList                           command line only: all arguments up to the next --name */
} ConfigType;

/* The items are arguments of the program in their order; count is 0 if there are none. */
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
    int count;
    const void *at[CONFIG_NUMBERS]; /* elements of the entry's table */
} ConfigItems;

/* What --help says about a choice that needs a description, such as an operator. */
typedef struct {
    const char *name, *summary; /* summary: one line */
    const char *paper;          /* "Title (Authors, year), where"; NULL: none */
} ConfigChoice;

/* When a resumed run may take a new value of a setting.  A group sets it for all of its settings, and an entry that
 * differs from its group sets it for itself.  If neither does, config_add aborts, because a wrong assumption would go
 * unnoticed, unless the setting is for the command line alone. */
typedef enum {
    CHANGE_UNSAID,
    CHANGE_NEVER,          /* the saved state would not fit: a model has another shape, or a data set other samples */
    CHANGE_BETWEEN_EPOCHS, /* the order of an epoch's batches depends on it */
    CHANGE_FREELY,
    CHANGE_PATH,           /* files may have moved to another path; a name such as "cifar10" stays */
    CHANGE_TO_DEFAULT,     /* only to the default, with which the program takes the value from the data again */
    CHANGE_EVERY_CALL      /* a path that is not part of the run but given in each call, so values are not compared */
} ConfigChange;

typedef struct {
    const char *name; /* lower case with underscores; users may write dashes instead */
    ConfigType type;
    size_t offset;       /* of the field in the settings struct */
    const char *initial; /* the default as text; NULL is "" for a string, "false" for a bool, no items for a list */
    double min, max;     /* inclusive, of each number; both 0: the type's whole range; may be INFINITY */
    const char *const *choices;
    int choice_count;
    const void *const *table; /* CONFIG_ITEM, _ITEMS: pointers to structs that begin with const char *name, then NULL */
    bool (*offers)(const void *item); /* which elements of the table may be chosen; NULL: all */
    const char *noun;        /* what error messages call a choice: "operator"; NULL is "value" */
    const char *list;        /* --help lists the choices under this heading; the table has structs like ConfigChoice */
    const ConfigChoice *about; /* [choice_count], in place of `choices`, for CONFIG_CHOICE with `list` */
    const char *former;      /* CONFIG_CHOICE: a choice of earlier versions; in a saved run it means the default */
    const char *alone;       /* CONFIG_STRING: the value of --name without one; NULL: a value is needed */
    const char *argument;    /* placeholder in --help: "FOLDER"; NULL: chosen by type */
    bool command_line_only;  /* a mode, not a property of the run: refused in files and never saved */
    ConfigChange change;     /* CHANGE_UNSAID: that of the group */
    bool ranks_differ;       /* the processes of a run may have different values, such as folders of their machines */
    bool shapeless;          /* no tensor's shape depends on it, so weights load with any value of it */
    const char *section;     /* heading in files and help; NULL is the section of the previous entry */
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
#define CONFIG_FITS_ITEMS(x) _Generic((x), ConfigItems: 1, default: -1)
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
    ConfigChange change; /* of the entries that do not set it */
    /* Called once everything is read: rejects (config_reject) values that contradict each other.  May be NULL. */
    void (*check)(const Config *config, const void *settings);
} ConfigGroup;

#define CONFIG_GROUP(Settings, table) \
    .entries = (table), .count = (int)(sizeof(table) / sizeof *(table)), .size = sizeof(Settings)

struct Config {
    const char *file_key;
    struct ConfigSetting *settings; /* [count]: of all groups, each with the address and origin of its value */
    int count;
    struct ConfigBinding *groups; /* [group_count] */
    int group_count;
    bool settled;
};

/* An empty config.  `file_key` is the setting (a command-line string) whose value names the INI file, NULL for none. */
void config_init(Config *config, const char *file_key);

/* A config without a file that has the groups and defaults of another one: for the settings inside a checkpoint. */
void config_init_like(Config *config, const Config *other);

/* Adds a group, which must outlive the config, and returns its struct with every default written into it; the config
 * owns the struct, whose address never changes.  Adding a group again returns the same struct.  An inconsistent table,
 * for instance with a default out of range or a name used twice, aborts with that name. */
void *config_add(Config *config, const ConfigGroup *group);

/* Adds a group that is used only with certain values, `owners`, of another setting, `chooser`, which must be in
 * the config already: for example "ripple, ripple-fixed" of "attn".  config_use marks the group as used in this run. */
void *config_add_for(Config *config, const ConfigGroup *group, const char *chooser, const char *owners);
void config_use(Config *config, const ConfigGroup *group);

/* Call this once everything is read and config_use has been called for the groups in use.  A setting that was given but
 * is not in use is an error that names its place, with two exceptions, in which it falls back to its default: its
 * chooser was set by a source of higher precedence (command line, then file, then checkpoint), or a file gives it its
 * default value.  From here on, config_help, config_text and config_markdown leave out settings not in use.  Finally
 * runs every group's check. */
bool config_try_settle(Config *config, Error *error);
void config_settle(Config *config);

/* Replaces the table's default by this program's own.  Call before anything is read. */
void config_default(Config *config, const char *name, const char *value);

/* Replaces the table's help by a text for this program.  `help` is not copied and must stay valid. */
void config_explain(Config *config, const char *name, const char *help);

/* Further words that the examples of a listed setting's choices need in this program, such as "--share-heads".  They
 * are not copied and must stay valid. */
void config_example(Config *config, const char *name, const char *words);

/* Resets every setting to its default, as if nothing had been read; the structs keep their addresses. */
void config_reset(Config *config);

/* The struct of a group, NULL if it was not added. */
const void *config_settings(const Config *config, const ConfigGroup *group);

/* Frees the structs with the strings and lists that they point to. */
void config_free(Config *config);

/* Reads "name = value" lines ('#' or ';' begins a comment line, ' ;' a comment at the end).  Section headings must be
 * known but do not qualify names.  "include = other.ini", relative to the including file, reads that file at that
 * point, so that later lines win; at most eight files may nest.  A name may occur once in each file. */
bool config_try_file(Config *config, const char *path, Error *error);

/* Reads settings from text in memory like a file; `where` stands for the file's name in messages, and include is
 * refused. */
bool config_try_text(Config *config, const char *text, size_t length, const char *where, Error *error);

/* Reads the file that --<file_key> names, wherever it occurs in argv, then all of argv[1...]: "--name value" or
 * "--name=value".  -h means --help if there is a setting of that name, and gives it the value "-h" if it is a string
 * and no other value follows.  If a name is repeated, the last value wins; a repeated list is appended to.  An empty
 * value for a file or folder is an error, because a shell passes one for an unset variable.  argv must outlive the
 * config. */
bool config_try_arguments(Config *config, int argc, char *const *argv, Error *error);

/* Sets one value from text; `origin` is what config_origin will return.  The setting must not be a list. */
bool config_try_set(Config *config, const char *name, const char *value, const char *origin, Error *error);

/* The place that the value comes from: "configs/x.ini:12", "--lr", or NULL for the default.  The setting must exist. */
const char *config_origin(const Config *config, const char *name);

/* For a bool: is it true?  For a string or list: is it not empty?  For any other setting: was it given? */
bool config_chosen(const Config *config, const char *name);

/* The value of a setting of type CONFIG_STRING. */
const char *config_string(const Config *config, const char *name);

/* The entry of setting i, i < config->count, and its name. */
const ConfigEntry *config_entry(const Config *config, int i);
const char *config_name(const Config *config, int i);

/* When a resumed run may change setting i: CHANGE_UNSAID if it is for the command line alone. */
ConfigChange config_change(const Config *config, int i);

/* Does the value of setting i differ from `saved`, its text in the run that is resumed?  A setting that is not part of
 * the run counts as unchanged.  config_may_change says if the run may take the value. */
bool config_changed(const Config *config, int i, const char *saved);
bool config_may_change(const Config *config, int i);

/* The word for choice `choice` of a setting of type CONFIG_CHOICE. */
const char *config_word(const Config *config, const char *name, int choice);

/* The value of setting i as text, the items of a list separated by spaces.  The caller frees it. */
char *config_value(const Config *config, int i);

/* Is setting i in use in this run, as far as is known? */
bool config_counts(const Config *config, int i);

/* For checks that the table cannot express: ends the program with "<place>: <message>".  In `format`, {dim} stands for
 * a setting with its value and its source, and {heads=%d} gives the value to be shown, for instance one stage's.  Of
 * `name` and the settings in braces, the message blames the one that was given most explicitly: on the command line,
 * then in a file, then in a checkpoint, and a default last; among equals `name`.  The place is that setting's, and
 * where the format begins with it, only its value is repeated.  For example, "{heads} does not divide {dim}" gives
 *
 *     --heads: 5 does not divide dim 192 (the default; --dim sets it)
 *     configs/x.ini:12: dim: heads 3 (the default; --heads sets it) does not divide dim 100 */
_Noreturn void config_reject(const Config *config, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Ends the program with a message about something else, such as a file (exit status 1), in which {dim} stands for a
 * setting, its value and its source. */
_Noreturn void config_die(const Config *config, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Refuses more than 2^31 - 1 of something, which loops of int could not count: config_reject of the setting that caused
 * it.  `what` names them: "tokens". */
void config_limit(const Config *config, const char *name, double count, const char *what);

/* All settings for --help, at most 100 columns wide: by section in the order in which a user asks (data, model,
 * training, modes), then lists of choices (ConfigEntry.list), then the settings that go with some of them. */
void config_help(const Config *config, FILE *out);

/* One word's part of --help: a choice of a listed setting with its summary, paper, settings and an example (`example`
 * and the setting that chooses it), a setting, or a section.  False: there is no such word, and `error` names the
 * nearest ones. */
bool config_help_topic(const Config *config, const char *word, const char *example, FILE *out, Error *error);

/* "--img-size HxW"; returns how many characters. */
int config_put_option(FILE *out, const Config *config, const char *name);

/* The default of a setting as text. */
const char *config_initial(const Config *config, const char *name);

/* The settings as an INI file with sections and comments, which the caller frees.  Reading it back gives the same
 * settings bit for bit. */
char *config_text(const Config *config);

/* Rejects string settings that will be saved and are not UTF-8: checkpoints store them as JSON, which must be UTF-8. */
void config_require_utf8(const Config *config);

/* The reference of all settings as Markdown, one table per section. */
void config_markdown(const Config *config, FILE *out);

#endif
