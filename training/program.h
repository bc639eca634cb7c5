/* What all programs that train a model share.  A program is a const Program - its settings, modes and training - which
 * main passes to program_main.
 *
 *   settings   read in this order, later ones win: defaults; the run being resumed, or without --config the checkpoint
 *              that a mode loads; --config; the command line.  A resumed run reports which settings have changed, and
 *              refuses a different model, seed or data set
 *   one mode   --describe, --eval, --bench, --predict, --parity or a mode of the program's own; without one it trains
 *   training   see training/training.h */
#ifndef VIT_TRAINING_PROGRAM_H
#define VIT_TRAINING_PROGRAM_H

#include "training/training.h"

/* Settings that choose what the program does in this call; never saved. */
typedef struct {
    const char *help; /* "-h", "all", or the word that help is wanted for; "": no help */
    bool help_markdown, version;
    const char *config, *resume;
    bool describe, eval, bench;
    const char *parity, *out;
    int isa; /* as in program.c */
} ModeSettings;

extern const ConfigGroup mode_settings;

/* Of programs that predict. */
typedef struct {
    ConfigList predict;
    const char *json;
} PredictSettings;

extern const ConfigGroup predict_settings;

/* A mode does something with a model other than training it, and creates no run folder. */
typedef struct {
    const char *name;       /* the setting that chooses it: "eval" */
    const char *text;       /* what it does, for -h: a line that fits behind the setting */
    void (*run)(void *run); /* called after Program.check and kernels_init; unless alone, also after distributed_open */
    bool alone;             /* with several ranks only rank 0 runs it; the others end once it is known that all
                               have the same settings */
    bool needs_weights;     /* requires --init or --resume */
    bool together;          /* may be chosen together with others of which this is said and that have its function */
    const char *outputs[4]; /* the settings that name output files of this mode only; NULL-terminated.  They
                               are tried and compared with the inputs before `run` is called (core/files.h) */
    bool needs_output;      /* outputs[0] must be given */
    const char *settings[6]; /* other settings that count in this mode only and are never saved; NULL-terminated */
} ProgramMode;

/* A setting as -h shows it. */
typedef struct {
    const char *name, *text;
} HelpLine;

typedef struct {
    const char *name;         /* "train_vit" */
    const char *introduction; /* one sentence that begins with the name, the first line of every help */
    const char *examples;     /* commands, one a line behind two spaces; -h and a call without arguments show four */
    const HelpLine *basics;   /* the settings that matter most, for -h; ends with one whose name is NULL */
    const char *example;      /* the command to which --help WORD adds a setting: "train_vit --config x.ini" */
    const char *word;         /* an operator, which -h names as an example of --help WORD */
    const char *reference;    /* the file in docs/ with all settings */

    /* Adds the groups of settings in the order in which they are printed (config_add), mode_settings, adamw_settings
     * and training_settings among them; then changes their defaults and help (config_default, config_explain).
     * Called before anything is read. */
    void (*settings)(void *run, Config *config);
    /* Called after everything is read: marks the groups in use (config_use).  For --help it is called only if
     * `chooser`, the setting that decides this, was given; otherwise --help shows all groups.  Both NULL: all are
     * always in use. */
    const char *chooser;
    void (*use)(void *run);
    /* Called after each group's check: checks combinations of settings of several groups, and sets defaults that depend
     * on other settings. */
    void (*check)(void *run);
    const ProgramMode *modes; /* ends with one whose name is NULL; if two are chosen, messages name the first */
    TrainingCalls training;
    /* Called after training and after modes that are not `alone`: ends loaders and their threads. */
    void (*close)(void *run);
} Program;

/* Does all the work of main and returns the exit status.  `training` is a member of *run and zero-initialised. */
int program_main(const Program *program, void *run, Training *training, int argc, char **argv);

#endif
