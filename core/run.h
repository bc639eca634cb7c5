/* What every program has around its training (core/training.h): where its settings come from, one mode at a time,
 * speed, and parity with other frameworks. */
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
void run_settings_open(Config *config, const RunStrings *strings, bool (*looking)(const void *settings),
                       const void *settings, int argc, char **argv);

typedef struct {
    const char *name;
    bool chosen;
} RunMode;

/* The name of the one that is chosen, NULL for none; of two, die_usage. */
const char *run_one_mode(const RunMode *modes, int count);

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
