/* The shell around every program that trains a model.  A program is a const Program: its settings, its modes, its
 * training; main hands it to program_main.
 *
 *   settings   the defaults; the run that is resumed, or without --config the checkpoint that is looked at; --config;
 *              the command line: the last wins.  A run that goes on says which settings have changed, and refuses
 *              another model, seed or data set
 *   one mode   --describe, --eval, --bench, --predict, --parity, what else the program has; without any it trains
 *   training   core/training.h */
#ifndef VIT_CORE_PROGRAM_H
#define VIT_CORE_PROGRAM_H

#include "core/training.h"

/* What is asked of a program this time; never saved. */
typedef struct {
    bool help, help_markdown, version;
    const char *config, *resume;
    bool describe, eval, bench;
    ConfigList predict;
    const char *json;
    const char *parity, *out;
} ModeSettings;

extern const ConfigGroup mode_settings;

/* A mode looks at a model and leaves no run behind. */
typedef struct {
    const char *name;       /* the setting that chooses it: "eval" */
    void (*run)(void *run); /* after Program.check and kernels_init, and unless alone after the ranks are connected */
    bool alone;             /* of several ranks the first does it by itself, the others end once it is sure that all
                               have the same settings */
    bool needs_weights;     /* --init or --resume */
    const char *outputs[4]; /* the settings that name files which this mode alone writes, up to a NULL */
    bool needs_output;      /* the first of them */
} ProgramMode;

typedef struct {
    const char *name;         /* "train_vit" */
    const char *introduction; /* what --help begins with */
    const char *beginning;    /* the commands to begin with, which stand on stderr where there are no arguments */

    /* Adds the groups of settings in the order in which they are printed (config_add), mode_settings, adamw_settings
     * and training_settings among them; then what is different in this program (config_default, config_explain).
     * Before anything is read. */
    void (*settings)(void *run, Config *config);
    /* Prints lists for --help, between the introduction and the settings.  NULL: none. */
    void (*lists)(void);
    /* Everything is read: says which groups count (config_use).  Before --help only where `chooser`, the setting on
     * which that depends, was given: else --help shows all of them.  Both NULL: all groups count always. */
    const char *chooser;
    void (*use)(void *run);
    /* Each group is checked: rejects what takes several groups' settings, and takes what defaults depend on others. */
    void (*check)(void *run);
    const ProgramMode *modes; /* up to one without a name; of two that are chosen the first is named */
    TrainingCalls training;
    /* After training and the modes that are not alone: ends loaders and their threads. */
    void (*close)(void *run);
} Program;

/* All of main; its exit status.  `training` is a part of *run, all zeros. */
int program_main(const Program *program, void *run, Training *training, int argc, char **argv);

#endif
