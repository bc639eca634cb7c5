/* A training run around any model: where it is, what it logs and saves, when it evaluates, how it is stopped and
 * resumed.  The program keeps the loop and what is its own: the step, the learning rate, the evaluation,
 * the columns of the log. */
#ifndef VIT_CORE_TRAINING_H
#define VIT_CORE_TRAINING_H

#include "core/run.h"

typedef struct {
    const char *program; /* "train_vit" */
    const char *advice;  /* what to try where numbers are none: "a lower lr" */
    Params *params;
    int epochs, batch_size, eval_every, log_every;
    int decimals;     /* of images/s in the progress line; the log has one more */
    uint64_t batches; /* of an epoch */

    RunState state;
    RunFolder folder;
    double images_per_s; /* since the last row of the log */
    double stall;        /* share of that time in which the next images were not there */
    bool stopping;       /* all ranks know that a signal came to one */

    double started; /* when this process began to train */
    uint64_t first_step;
    double step_began, step_stalled;  /* of the step in progress */
    double seconds, images, stalled;  /* of the steps since the last row */
} Training;

/* What a folder of this run is made of. */
typedef struct {
    const char *stem;               /* of its default name: runs/<stem>-001 */
    const char *const *class_names; /* [classes], or NULL */
    int classes;
    const char *columns; /* the program's own in log.csv, behind the speed and before the stall */
} TrainingNames;

/* From the state that is resumed, or from the start: opens the folder, by default the next free one on all ranks, and
 * begins to note signals.  The fields above the state are set, and the optimizer's memory is there. */
void training_open(Training *t, Config *config, const RunStrings *strings, const TrainingNames *names);

/* "resumed at epoch 3, after 12 of its batches", where so. */
void training_print_resumed(const Training *t);

/* == Steps ======================================================================================================== */

/* Around a step; stalled: the seconds that the loader has let the program wait so far. */
void training_begin_step(Training *t, double stalled);
void training_end_step(Training *t, double loss, double stalled);

/* After the step: is this the epoch's last, and is a row of the log due?  The last one's row waits for the
 * evaluation. */
bool training_is_last_step(const Training *t);
bool training_log_is_due(const Training *t);

/* The line that a person watches; `more` stands behind the loss. */
void training_show(const Training *t, const char *more);

/* A row of log.csv with the program's own columns; losses and speed are then measured anew. */
void training_log(Training *t, const char *columns, ...) __attribute__((format(printf, 2, 3)));

/* Dies where a value of the step in progress is not finite: before anything that is not a number is saved over good
 * weights. */
void training_stop_on_bad(const Training *t, const char *what, double value);

/* == Epochs ======================================================================================================= */

bool training_is_over(const Training *t);
bool training_is_last_epoch(const Training *t);
bool training_eval_is_due(const Training *t);

/* Before an evaluation: the last update may overflow though its loss and gradient were still finite; and ranks, which
 * update their own copies of the parameters with the same gradients, have to agree. */
void training_check_weights(const Training *t);

/* Keeps the weights as best.safetensors if no evaluation was better. */
void training_keep_best(Training *t, double percent);

/* Saves all; the next epoch begins. */
void training_end_epoch(Training *t);

/* A signal came: saves what there is, says so, and gives the exit status that the shell expects. */
int training_stop_early(Training *t);

/* The last line: the result, how long it took, where everything is; or that there was nothing left to train. */
void training_report(const Training *t, const char *result, ...) __attribute__((format(printf, 2, 3)));

#endif
