/* Settings.  One table describes every setting of a program - name, type, default, range, section, help - and the INI
 * parser, the command line, --help, the saved config and the README's reference all come from it.
 *
 *     typedef struct { int img_size[2]; float lr; int pool; } Settings;
 *     static const ConfigEntry entries[] = {
 *         {CONFIG_FIELD(SIZE, Settings, img_size), "224", .section = "data", .min = 1, .max = 4096, .help = ...},
 *         {CONFIG_FIELD(FLOAT, Settings, lr), "1e-3", .section = "training", .min = 0, .max = 10, .help = ...},
 *         {CONFIG_FIELD(CHOICE, Settings, pool), "cls", CONFIG_CHOICES("cls", "gap"), .help = ...},
 *     };
 *     config_init(&config, entries, sizeof entries / sizeof *entries, &settings, "config");
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
    const char *const *(*choices_of)(int *count); /* instead of choices, for names that live in another table */
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
#define CONFIG_FITS_SIZE(x) (_Generic((x), int *: 1, default: -1) * (sizeof(x) == 2 * sizeof(int) ? 1 : -1))
#define CONFIG_FITS_INTS(x) _Generic((x), ConfigInts: 1, default: -1)
#define CONFIG_FITS_FLOATS(x) _Generic((x), ConfigFloats: 1, default: -1)
#define CONFIG_FITS_LIST(x) _Generic((x), ConfigList: 1, default: -1)

#define CONFIG_CHOICES(...)                             \
    .choices = (const char *const[]){__VA_ARGS__},      \
    .choice_count = sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *)

typedef struct {
    const ConfigEntry *entries;
    int count;
    void *settings;
    const char *file_key;
    struct ConfigState *states; /* [count]: what each setting owns and where it was set */
} Config;

/* Binds the table to `settings` and writes every default into it.  `file_key` is the entry (a command-line string)
 * whose value names the INI file, NULL for none.  entries and settings must outlive the config.  A table that
 * contradicts itself, for instance by a default out of range, aborts with the entry's name. */
void config_init(Config *config, const ConfigEntry *entries, int count, void *settings, const char *file_key);

/* Frees what the strings and lists in the settings point to. */
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
 * A name that is repeated takes its last value, a repeated list grows.  argv must outlive the config. */
bool config_try_arguments(Config *config, int argc, char *const *argv, Error *error);
void config_read_arguments(Config *config, int argc, char *const *argv);

/* Sets one value from text; `origin` as in config_origin.  Not for lists. */
bool config_try_set(Config *config, const char *name, const char *value, const char *origin, Error *error);

/* Where the value comes from: "configs/x.ini:12", "--lr", or NULL for the default.  The name must be in the table. */
const char *config_origin(const Config *config, const char *name);

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
