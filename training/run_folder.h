/* The folder of a run: config.ini, log.csv, the checkpoints last, best and state (training/checkpoint.h), and the run's
 * page (training/report.h).  Only rank 0 accesses it; on other ranks these functions do nothing.
 * On failure all functions die with one line that names the file. */
#ifndef VIT_TRAINING_RUN_FOLDER_H
#define VIT_TRAINING_RUN_FOLDER_H

#include <stdio.h>

#include "training/checkpoint.h"
#include "core/results/class_names.h"
#include "core/config/config.h"

enum { RUN_PATH_SIZE = 4096, LOG_COLUMNS = 64, LOG_SIZE = 1024 };

typedef struct {
    char path[RUN_PATH_SIZE], log_path[RUN_PATH_SIZE];
    FILE *log;
    int log_order[LOG_COLUMNS], log_columns; /* index of each file column's value in a row; -1: none */
    SafeMetadata metadata[5]; /* stored in every checkpoint, so that --eval and --predict need no config */
    int metadata_count;
    char *config, *classes, normalisation[128], image_size[32];
} RunFolder;

/* The properties of a run at its start. */
typedef struct {
    Params *params;   /* with initial weights, and Param.rate set */
    uint64_t batches, samples; /* per epoch */
    size_t examples;  /* training images, or bytes of a stream, for RunState */
    bool streams;     /* which the message about another number of them names bytes */
    const char *stem; /* for the folder's default name: runs/<stem>-001 */
    const char *const *class_names; /* [classes], or NULL; stored with the weights */
    int classes;
    const float *mean, *std; /* [3]: of the pixels, or NULL; stored with the weights */
    const int *image_size;   /* [2]: of all images of the data set, 0 where they differ, or NULL; stored likewise */
} TrainingStart;

/* The names of the files in it, ending with NULL: settings, checkpoints, the page, without which a run continues if it
 * cannot be written (training/report.h), the log, and the result on the test images. */
extern const char *const run_folder_files[];

/* Writes the next unused runs/<stem>-<number> to path. */
void run_folder_choose(char path[RUN_PATH_SIZE], const char *stem);

/* Creates or reopens the folder and writes config.ini.  A new log begins with `header` and never replaces another
 * run's, unless that run ended before it trained: without a row and without a checkpoint.  If another process trains in
 * the folder, the error names it.  A resumed log loses the rows that were written after its state was saved.  It keeps
 * its own header: values are written to the columns with their names, values without a column are left out, and other
 * columns stay empty.  Removes temporary files of killed runs.  Names and settings that are not UTF-8 are errors,
 * because checkpoints cannot store them. */
void run_folder_open(RunFolder *folder, const char *path, const Config *config, const TrainingStart *start,
                     const char *header, const RunState *resumed);

/* Appends a row and flushes it.  `row` has a value for every column of `header`, with commas between them, and is split
 * in place.  Header and row are shorter than LOG_SIZE.  If somebody removed the log, it is created again. */
void run_folder_log(RunFolder *folder, char *row);

/* Saves the weights used for evaluation - the EMA if there is one - as <name>.safetensors. */
void run_folder_save_weights(const RunFolder *folder, const Params *params, const char *name);

/* Saves last.safetensors, then the state.  If the process is killed in between, --resume continues from the previous
 * state and repeats the steps since. */
void run_folder_save(RunFolder *folder, const Params *params, RunState *state);

/* Writes the path of the file `name` in the folder to `path`. */
void run_folder_file(char path[RUN_PATH_SIZE], const char *folder, const char *name);

/* Writes the run's folder to path; `given` is --resume's value, the folder or any checkpoint in it.  Dies if the folder
 * has no saved state. */
void run_folder_of(char path[RUN_PATH_SIZE], const char *given);

/* The settings stored in a checkpoint, or NULL; the caller frees them. */
char *run_folder_config(const char *checkpoint);

/* The settings stored in a checkpoint, read into a config with the groups of `like`; false if it has none or has other
 * settings than these.  The caller calls config_free in either case. */
bool run_folder_settings(Config *settings, const Config *like, const char *checkpoint);

/* The device that computed a state (checkpoint_device), or NULL; the caller frees it. */
char *run_folder_device(const char *state);

/* Reads mean and std of the pixels from a checkpoint; false if it has none. */
bool run_folder_normalisation(float mean[3], float std[3], const char *checkpoint);

/* Reads the size of the images of the data set it was trained on, 0x0 where they differ; false if it has none. */
bool run_folder_image_size(int size[2], const char *checkpoint);

/* Reads the class names from a checkpoint; if it has none, names->count is 0. */
void run_folder_classes(ClassNames *names, const char *checkpoint);

#endif
