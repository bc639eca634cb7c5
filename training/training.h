/* A training run of any model, as a library for the loop of a program over epochs, batches and parts of a batch: it
 * keeps the position in the run, the log, the checkpoints and the best weights, and stops on signals.
 * tests/core/test_program.c, a program of one tensor, shows in which order its functions are called. */
#ifndef VIT_TRAINING_TRAINING_H
#define VIT_TRAINING_TRAINING_H

#include "training/adamw.h"
#include "training/run_folder.h"
#include "report/facts.h"
#include "kernels/device/device.h"

/* == Settings ===================================================================================================== */

typedef struct {
    int epochs, batch_size, micro_batch;
    int precision; /* of activations: which of PRECISION_FLOAT32 and PRECISION_BFLOAT16 */
    uint64_t seed;
    const char *run_dir, *init;
    int eval_every, patience, log_every;
    float bench_seconds;
} TrainingSettings;

extern const ConfigGroup training_settings;

/* == A run ======================================================================================================== */

/* An update that the device may still be working on. */
typedef struct {
    uint64_t step;
    int images;
    bool unseen; /* its loss is on the device, too */
    DeviceMark *done;
} TrainingPending;

typedef struct {
    const struct ProgramFacts *facts; /* training/program.h */
    const char *program; /* "train_vit" */
    const char *advice;  /* advice if the loss is not finite: "a lower lr" */
    int decimals;        /* digits of images/s in the progress line; the log has one more */
    int status;          /* that main returns */
    Config config;
    TrainingSettings *s;
    const AdamWSettings *adamw;
    const char *unit; /* name of the samples in messages: "images", unless the program sets another */
    const char *mode; /* "eval": the mode that runs instead of training; NULL: training */
    bool alone;       /* it runs on one rank only */
    bool resumed;     /* a run is continued from its state */
    bool has_state;   /* this process has taken part in saving a state */
    char **saved;     /* [settings]: resumed: the values that were saved with it */
    char *changes;    /* resumed: changed settings, "lr 0.001 -> 0.0005, ...", or "" */
    char *mixed;         /* if ranks use different instructions, their numbers; otherwise NULL */
    char *computed_by; /* resumed: the device and ranks of the saved state if they are others, or NULL */
    const char *reordered; /* resumed: name of a changed setting that changes the batches of an epoch, or NULL */

    Params *params;
    uint64_t batches; /* per epoch */
    uint64_t samples; /* per epoch, of which the last batch may have fewer than batch_size; 0: all batches are full */
    uint64_t most_steps; /* the run ends after this number of steps, even within an epoch; 0: with an epoch */
    RunState state;
    RunFolder folder;
    struct Report *report;  /* of rank 0: the run's page (training/report.h) */
    double images_per_s;    /* since the last row of the log */
    double stall;           /* fraction of that time spent waiting for the loader */
    double validation_loss; /* of the last evaluation, which sets it; 0: it has none */
    bool stopping;          /* a rank has received a signal, and all ranks know it */
    bool evaluated;         /* this process has received one */
    bool logged;            /* the last step has its row */
    char note[64];          /* of training_note */

    TrainingPending pending[2]; /* updates whose results have not been read, from `settled` on; step i in i mod 2 */
    uint64_t launched, settled;
    StepStats *step_stats; /* host_malloc [2]: their results */

    double started; /* when this process began to train */
    double before;  /* seconds that the run had trained before that */
    double began;   /* when the step began */
    uint64_t first_step;
    double seconds, images, stalled; /* of the steps since the last row */
    double stalled_before;           /* seconds that steps had waited for the loader at the last row */
} Training;

/* Rejects a batch that the ranks cannot share equally. */
void training_check_ranks(const Training *t);
/* The images of such a batch that this rank processes, and their number at a time: micro_batch or, if that is 0, the
 * share divided into the smallest number of nearly equal parts of at most `most` images. */
int training_local_batch(const Training *t);
int training_micro_batch(const Training *t, size_t most);

/* Call before data are loaded.  If batch_size exceeds the `images` of an epoch, a default value is reduced to that,
 * with a message, and a value given by the user is rejected. */
void training_fit_batch(Training *t, size_t images, const char *data);

/* Will the run evaluate, and so need a validation split?  Not with eval_every 0. */
bool training_evaluates(const Training *t);

/* Adds a column to log.csv, before training_open.  `name` and `format`, for printf of one double, must stay valid; do
 * not add a column that cannot have a value in this run. */
void training_column(Training *t, const char *name, const char *format, LogPlace place);

/* Call before training_open: unless `steps` is 0 the run has that many steps, and as many epochs of that many batches as
 * they take. */
void training_limit_steps(Training *t, uint64_t steps, uint64_t batches);

/* Allocates the optimizer's memory, loads the state if a run is resumed, begins to catch signals, opens the run
 * folder (by default the next unused name, the same on all ranks), and prints the device. */
void training_open(Training *t, const TrainingStart *start);

/* After training_open: the facts from which the run's page is made besides the log.  The program may add to them at any
 * time before training_epoch_end or training_report.  NULL on all ranks except the one that writes the page. */
Facts *training_facts(const Training *t);

/* Prints the number and size of batches, with a text about their parts, and the changes and position of a resumed
 * run. */
void training_announce(const Training *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* == Epochs and steps ============================================================================================= */

bool training_epoch_left(const Training *t);
bool training_batch_left(const Training *t);
/* The number of epochs done, with the finished part of the one in progress. */
double training_epochs(const Training *t);
/* The number of steps of the whole run, and the seconds that the rest of them will take; NaN: not known yet. */
uint64_t training_steps(const Training *t);
double training_seconds_left(const Training *t);

/* Begins a step with that learning rate: sets the gradients and the statistics of the step to zero. */
void training_step_begin(Training *t, float lr);

/* The number of images in the current batch, over all ranks. */
int training_batch(const Training *t);
/* Writes the range of images *begin .. *end - 1 of the current batch that this rank processes. */
void training_share(const Training *t, int *begin, int *end);

/* Sums `sums` [count], count < 16, over all ranks, in place, and sets t->stopping if a rank has received a signal. */
void training_sum(Training *t, double *sums, int count);

/* One step of AdamW with the gradients in params; `loss` is the mean of all ranks.  Dies if it or the gradient norm is
 * not finite, so that NaN weights never overwrite a good checkpoint.  It does not wait for a device that runs
 * asynchronously: the norm is read and checked in the next step or before a row of the log.  Call training_sum before
 * it. */
void training_update(Training *t, double loss);

/* One step of AdamW if the losses of this rank's images were added up on the device, in params->step_stats->loss: no
 * result of the step has to be waited for, as the mean of all ranks is also read later.  Calls training_sum. */
void training_update_unseen(Training *t);

/* Dies if that value of the current step is not finite, as training_update does. */
void training_stop_on_bad(const Training *t, const char *what, double value);

/* Counts the step and its time.  If a row of the log is due, it waits for the device.  `stalled`: seconds that steps
 * have waited for the loader since the program began. */
void training_step_end(Training *t, double stalled);

/* Is a row of the log due after the step that has ended?  Values that are expensive to compute can wait for that. */
bool training_row_is_due(const Training *t);

/* Sets the value of a column, the same on all ranks.  It is in every row until the epoch ends. */
void training_value(Training *t, const char *name, double value);
/* Adds the sum over `count` samples of this rank to a column, which then has the mean over the epoch so far. */
void training_add(Training *t, const char *name, double sum, double count);

/* Returns the mean loss since the last row of the log, or NaN if none is known yet. */
double training_loss(const Training *t);
/* Sets the text after the loss in the progress line. */
void training_note(Training *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Shows the progress line and writes a row if one is due; the row of an epoch's last step is written by
 * training_evaluated or training_epoch_end. */
void training_log(Training *t);

/* Saves the run after a signal, prints how to continue it, and returns the exit status that the shell expects. */
int training_stop_early(Training *t);
/* The same after the last epoch, whose state is saved already: the parameters are now those of the best epoch. */
int training_stop_tested(const Training *t);

/* == The end of an epoch ========================================================================================== */

/* Ends the program if a parameter is not finite, or if the ranks' parameters differ. */
void training_epoch_trained(Training *t);
/* Is there an epoch after this one, unless patience ends the run? */
bool training_epoch_follows(const Training *t);
/* Is this epoch followed by an evaluation?  It takes the EMA weights if there are any, and calls training_sum at its
 * end, after which t->stopping says that its result is not valid. */
bool training_evaluation_is_due(const Training *t);
/* Takes the result of an evaluation: prints it after the epoch, writes the row of the log, and saves the weights if
 * `percent` is the highest so far. */
void training_evaluated(Training *t, double percent, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Moves on to the next epoch, and saves the run. */
void training_epoch_end(Training *t);

/* Prints the last line: the text about the result, unless nothing was ever evaluated, the duration and the folder; or
 * that nothing was left to train.  Returns the exit status. */
int training_report(const Training *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
