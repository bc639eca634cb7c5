/* The folder of a run: config.ini, log.csv, and the checkpoints last, best and state (core/checkpoint.h).  Of several
 * ranks only rank 0 touches it; for the others these functions do nothing.
 * All die with one line that names the file. */
#ifndef VIT_CORE_RUN_FOLDER_H
#define VIT_CORE_RUN_FOLDER_H

#include <stdio.h>

#include "core/checkpoint.h"
#include "core/class_names.h"
#include "core/config.h"

enum { RUN_PATH_SIZE = 4096 };

typedef struct {
    char path[RUN_PATH_SIZE], log_path[RUN_PATH_SIZE];
    FILE *log;
    int log_columns; /* of a row: a log that was begun with fewer keeps them */
    SafeMetadata metadata[4]; /* travels with every checkpoint, so that --eval and --predict need no config */
    int metadata_count;
    char *config, *classes, normalisation[128];
} RunFolder;

/* The next free runs/<stem>-<number>. */
void run_folder_choose(char path[RUN_PATH_SIZE], const char *stem);

/* Makes or reopens the folder and writes config.ini.  A new log begins with `header` and never replaces another run's;
 * a resumed one forgets the rows that were written after its state was saved, and where its header is the beginning of
 * `header`, as a program of before wrote it, its rows keep those columns.  What killed runs left half-written in the
 * folder goes.  class_names [classes], mean and std [3] of the pixels, or NULL.  Names and settings that are not UTF-8
 * are refused, for no checkpoint could hold them. */
void run_folder_open(RunFolder *folder, const char *path, const Config *config, const char *const *class_names,
                     int classes, const float *mean, const float *std, const char *header, const RunState *resumed);

/* One row with a value for every column of `header`, in the file when this returns.  A log that somebody removed is
 * made again. */
void run_folder_log(RunFolder *folder, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The weights that are evaluated - the average where there is one - as name.safetensors. */
void run_folder_save_weights(const RunFolder *folder, const Params *params, const char *name);

/* last.safetensors, then the state: until that is there, --resume finds the state before,
 * and repeats what came since. */
void run_folder_save(RunFolder *folder, const Params *params, RunState *state);

/* path = the file `name` in the folder. */
void run_folder_file(char path[RUN_PATH_SIZE], const char *folder, const char *name);

/* What --resume was given, a run's folder or any checkpoint in it, as the folder;
 * dies when no state was saved there. */
void run_folder_of(char path[RUN_PATH_SIZE], const char *given);

/* The settings that travel in a checkpoint, or NULL; the caller frees. */
char *run_folder_config(const char *checkpoint);

/* Mean and std of the pixels that travel in a checkpoint; false where there are none. */
bool run_folder_normalisation(float mean[3], float std[3], const char *checkpoint);

/* The class names that travel in a checkpoint; none where there are none. */
void run_folder_classes(ClassNames *names, const char *checkpoint);

#endif
