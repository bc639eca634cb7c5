/* What a run of any program has around its training loop: where its settings come from, one mode at a time, guards
 * against numbers that are none, speed, and parity with other frameworks. */
#ifndef VIT_CORE_RUN_H
#define VIT_CORE_RUN_H

#include "core/run_folder.h"

/* == Settings ===================================================================================================== */

/* Where a program's settings struct keeps the strings of these names. */
typedef struct {
    const char **config, **resume, **init, **run_dir;
} RunStrings;

/* Settings come from, last wins: defaults; the run that is resumed, or the checkpoint that is looked at; --config; the
 * command line.  looking(settings): does the mode only look at weights?  Then resume becomes init, the run's last
 * weights; training goes on from the run's state. */
void run_settings_open(Config *config, const ConfigEntry *entries, int count, void *settings, const RunStrings *strings,
                       bool (*looking)(const void *settings), int argc, char **argv);

typedef struct {
    const char *name;
    bool chosen;
} RunMode;

/* The name of the one that is chosen, NULL for none; of two, die_usage. */
const char *run_one_mode(const RunMode *modes, int count);

/* == Training ===================================================================================================== */

/* The run's folder, by default the next free one of that stem on all ranks, with what ranks say when one dies. */
void run_open_folder(RunFolder *folder, Config *config, const RunStrings *strings, const char *program,
                     const char *stem, const char *const *class_names, int classes, const char *header,
                     const RunState *resumed);

/* Dies where the value is not finite: before anything that is not a number is saved over good weights. */
void run_stop_on_bad(const RunState *state, const RunFolder *folder, uint64_t step, const char *what, double value,
                     const char *advice);
/* The last update before a save may overflow though its loss and gradient were still finite. */
void run_stop_on_bad_weights(const RunState *state, const RunFolder *folder, const Params *params, const char *advice);

/* Ranks update their own copies of the parameters, with the same gradients: anything else is a fault of a machine. */
void run_check_ranks_agree(const Params *params, uint64_t step);

/* A signal came: saves what there is, says so, and gives the exit status that the shell expects. */
int run_stop_early(const RunFolder *folder, const Params *params, RunState *state, const char *program, int epochs);

/* == The other modes ============================================================================================== */

typedef struct {
    double images_per_s; /* of the median batch */
    double fastest;      /* seconds of the batch that neighbours disturbed least */
} RunSpeed;

/* Over whole batches of so many images, for about so many seconds, after one batch that is not counted. */
RunSpeed run_speed(void (*batch)(void *context), void *context, int images, double seconds);

/* Parameters and buffers that travel in a file of parity replace the model's; all of them or none. */
void run_parity_parameters(Params *params, const SafeTensors *st);

/* The outputs, and grad.<parameter> of every parameter. */
void run_parity_write(const char *path, const SafeTensorEntry *outputs, int count, const Params *params);

#endif
