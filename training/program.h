/* The functions that the main of every training program calls, in this order; tests/core/test_program.c has the
 * smallest one.
 *
 *     static Run run;                      has a Training t, all zero
 *     if (!program_begin(t, &facts, argc, argv)) return t->status;
 *     ...                                  adds its groups of settings to t->config: config_add, config_default
 *     if (!program_read(t, argc, argv)) return t->status;
 *     ...                                  marks the groups that are in use: config_use
 *     if (!program_settle(t)) return t->status;
 *     ...                                  checks combinations of settings of several groups
 *     if (!program_open(t)) return t->status;
 *     if (run.modes->describe) ...
 *     else t->status = train(&run);        see training/training.h
 *     return program_close(t);
 *
 *   settings   read in this order, later ones win: defaults; the run being resumed, or without --config the checkpoint
 *              that a mode loads; --config; the command line.  A resumed run reports which settings have changed, and
 *              refuses a different model, seed or data set
 *   one mode   --describe, --eval, --bench, --predict, --parity, --report, --compare or a mode of the program's own;
 *              without one it trains
 */
#ifndef VIT_TRAINING_PROGRAM_H
#define VIT_TRAINING_PROGRAM_H

#include "training/training.h"

/* Settings that choose what the program does in this call; never saved. */
typedef struct {
    const char *help; /* "-h", "all", or a word to explain; "": no help */
    bool help_markdown, version;
    const char *config, *resume;
    bool describe, eval, bench;
    const char *parity, *report, *out;
    ConfigList compare;
    int isa; /* as in program.c */
} ModeSettings;

extern const ConfigGroup mode_settings;

/* Settings of programs that predict. */
typedef struct {
    ConfigList predict;
    const char *json;
} PredictSettings;

extern const ConfigGroup predict_settings;

/* A setting as -h shows it. */
typedef struct {
    const char *name, *text;
} HelpLine;

/* A mode does something with a model other than training it, and creates no run folder.  The conditions here are
 * checked before anything is opened. */
typedef struct {
    const char *name;        /* the setting that chooses it: "eval" */
    const char *text;        /* its action, for -h: a line that fits after the setting */
    bool alone;              /* with several ranks only rank 0 runs it; the others end once it is known that all have
                                the same settings */
    bool needs_weights;      /* requires --init or --resume */
    bool together;           /* may be chosen together with the other modes that have this flag */
    const char *outputs[4];  /* the settings that name output files of this mode only; NULL-terminated.  They are tried
                                and compared with the inputs (core/files.h) */
    bool needs_output;       /* outputs[0] must be given */
    const char *settings[6]; /* other settings that count in this mode only and are never saved; NULL-terminated */
} ProgramMode;

/* Modes and lines of -h that all programs have. */
#define PROGRAM_MODE_BENCH {"bench", "measure the speed of training and inference", .outputs = {NULL}}
#define PROGRAM_MODE_PARITY                                                                           \
    {"parity", "run one step on inputs from a file, and write its gradients to --out", .alone = true, \
     .outputs = {"out"}, .needs_output = true}
#define PROGRAM_MODES_OF_PAGES                                                                                    \
    {"report", "make the page of a run, report.html in its folder or --out", .alone = true, .outputs = {"out"}},  \
    {"compare", "compare runs on a page, --out", .alone = true, .outputs = {"out"}, .needs_output = true}
#define PROGRAM_BASICS_OF_A_RUN                                                    \
    {"resume", "continue the run in this folder"},                                 \
    {"run_dir", "where log and checkpoints go; otherwise a new folder in runs/"},  \
    {"seed", "of all random numbers"},                                             \
    {.name = NULL}

/* The name of a program, and the texts of its help besides the settings. */
typedef struct ProgramFacts {
    const char *name;         /* "train_vit" */
    const char *introduction; /* one sentence that begins with the name, the first line of every help */
    const char *examples;     /* commands, one a line after two spaces; -h and a call without arguments show four */
    const HelpLine *basics;   /* the most important settings, for -h; ends with one whose name is NULL */
    const char *example;      /* the command to which --help WORD adds a setting: "train_vit --config x.ini" */
    const char *word;         /* an operator, which -h names as an example of --help WORD */
    const char *reference;    /* the file in docs/ with all settings */
    const char *chooser;      /* the setting that decides which groups of settings are in use, or NULL: without it
                                 --help shows all groups */
    const ProgramMode *modes; /* ends with a mode whose name is NULL; if two are chosen, messages name the first */
    const char *advice;       /* advice if the loss is not finite: "a lower lr" */
    int decimals;             /* digits of images/s in the progress line; the log has one more */
} ProgramFacts;

/* Prepares the process, whose stack may be small until then, and an empty t->config with mode_settings.  False: there
 * are no arguments, and examples were printed. */
bool program_begin(Training *t, const ProgramFacts *facts, int argc, char **argv);

/* Reads the settings.  False: another variant of the program, which they require, has done everything
 * (kernels_choose). */
bool program_read(Training *t, int argc, char **argv);

/* Settles the settings (config_settle), prints help or the version, and chooses the mode and checks the conditions in
 * its ProgramMode.  False: the call only asked for help or for a page of runs, which is done. */
bool program_settle(Training *t);

/* Starts the kernels, waits for the other ranks, and makes sure that outputs can be written.  False: this rank is not
 * needed. */
bool program_open(Training *t);

/* Leaves the other ranks and returns t->status. */
int program_close(Training *t);

#endif
