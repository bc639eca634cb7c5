/* A training run of any model, from the start or a saved state to the last epoch: the loop over epochs and steps, the
 * log, evaluations, checkpoints, and stopping on signals.  The program supplies the training step, the evaluation and
 * the learning rate schedule as callbacks, in TrainingCalls. */
#ifndef VIT_TRAINING_TRAINING_H
#define VIT_TRAINING_TRAINING_H

#include "training/adamw.h"
#include "training/run_folder.h"
#include "kernels/device/device.h"

/* == Settings ===================================================================================================== */

typedef struct {
    int epochs, batch_size, micro_batch;
    int precision; /* of activations: which of PRECISION_FLOAT32 and PRECISION_BFLOAT16 */
    uint64_t seed;
    const char *run_dir, *init;
    int eval_every, log_every;
    float bench_seconds;
} TrainingSettings;

extern const ConfigGroup training_settings;

/* == Callbacks of a program ======================================================================================= */

/* The places where the program adds text or numbers of its own. */
typedef enum {
    WORDS_STEP,       /* after the loss in the progress line: "  class error 12 %", or nothing */
    WORDS_COLUMNS,    /* its columns in a row of log.csv, with those of an evaluation empty */
    WORDS_EVALUATED,  /* the same, in the row after an evaluation */
    WORDS_LAST,       /* its last columns in a row */
    WORDS_LAST_EVALUATED, /* the same, in the row after an evaluation */
    WORDS_EVALUATION, /* results of the last evaluation, for the epoch's line: "top-1 61.20 %  top-5 93.10 %" */
    WORDS_RESULT,     /* final result, for the run's last line */
    WORDS_BEST        /* the same if this process has evaluated nothing: only state.best is known */
} TrainingWords;

/* Every function receives `run`, the program's own data. */
typedef struct {
    const char *columns; /* the program's own columns of log.csv, between speed and stall: "top1,top5" */
    const char *last_columns; /* more of its own at the end of a row, "tau_ended,tau_equal", or NULL */
    const char *advice;  /* what to try if the loss is not finite: "a lower lr" */
    int decimals;        /* of images/s in the progress line; the log has one more */

    /* Called first: opens the data, builds the model with its initial weights, then calls training_open, which replaces
     * them if a run is resumed. */
    void (*open)(void *run);
    /* Prints a description of data and model; called on rank 0, after open. */
    void (*announce)(void *run);
    /* Starts loading the epoch's batches from `batch` on, in the background; the next step uses the first.  Also called
     * for the next epoch before an evaluation, and then possibly again with the same arguments. */
    void (*load)(void *run, uint64_t epoch, uint64_t batch);
    /* Total seconds that the program has waited for the loader so far. */
    double (*stalled)(const void *run);
    /* The learning rate of the next step, after `epochs` epochs (may be fractional). */
    float (*rate)(const void *run, double epochs);
    /* Trains on the next batch: computes the gradients of this rank's share, sums them over ranks and calls
     * training_update or training_update_unseen.  With the former it must also call training_sum, which spreads signals
     * to all ranks.  Returns the mean loss of all ranks, or NaN if that is still on the device. */
    double (*step)(void *run);
    /* Called after a step that is followed by a row of the log: stores in state.measured values that are too expensive
     * to compute in every step.  May be NULL. */
    void (*measure)(void *run);
    /* Evaluates the whole validation split, with the EMA weights if there are any, and calls training_sum at its end.
     * Returns the metric in percent by which the best weights are chosen and sets t->validation_loss; both are invalid
     * if t->stopping is set afterwards. */
    double (*evaluate)(void *run);
    /* Writes to text [size], which is "" on entry. */
    void (*words)(const void *run, TrainingWords which, char *text, size_t size);
} TrainingCalls;

/* == A run ======================================================================================================== */

/* An update that the device may still be working on. */
typedef struct {
    uint64_t step;
    bool unseen; /* its loss is on the device, too */
    DeviceMark *done;
} TrainingPending;

typedef struct {
    const char *program; /* "train_vit" */
    const TrainingCalls *calls;
    void *run;
    Config config;
    TrainingSettings *s;
    const AdamWSettings *adamw;
    const char *unit; /* what a batch consists of, in messages: "clips"; NULL: "images" */
    const char *mode; /* "eval": the mode that runs instead of training; NULL: training */
    bool resumed;     /* a run is continued from its state */
    char **saved;     /* [settings]: resumed: the values that were saved with it */
    char *changes;    /* resumed: changed settings, "lr 0.001 -> 0.0005, ...", or "" */
    char *computed_by; /* resumed: the device and ranks of the saved state if they are others, or NULL */
    const char *reordered; /* resumed: name of a changed setting that changes the batches of an epoch, or NULL */

    Params *params;
    uint64_t batches; /* per epoch */
    RunState state;
    RunFolder folder;
    double images_per_s; /* since the last row of the log */
    double stall;        /* fraction of that time spent waiting for the loader */
    double validation_loss; /* of the last evaluation */
    char *mixed;         /* ranks use different instructions: how many which; else NULL */
    bool stopping;       /* a rank has received a signal, and all ranks know it */
    bool evaluated;      /* this process has */

    TrainingPending pending[2]; /* updates whose results have not been read, from `settled` on; step i in i mod 2 */
    uint64_t launched, settled;
    StepFound *found; /* host_malloc [2]: their results */

    double started; /* when this process began to train */
    double before;  /* seconds that the run had trained before that */
    uint64_t first_step;
    double seconds, images, stalled; /* of the steps since the last row */
} Training;

/* Trains until the last epoch or a signal; returns the exit status. */
int training_run(Training *t);

/* Arguments of training_open. */
typedef struct {
    Params *params;   /* with initial weights, and Param.rate set */
    uint64_t batches; /* per epoch */
    const char *stem; /* for the folder's default name: runs/<stem>-001 */
    const char *const *class_names; /* [classes], or NULL; stored with the weights */
    int classes;
    const float *mean, *std; /* [3]: of the pixels, or NULL; stored with the weights */
    const int *image_size;   /* [2]: of all images of the data set, 0 where they differ, or NULL; stored likewise */
} TrainingStart;

/* Allocates the optimizer's memory, loads the state if a run is resumed, begins to catch signals and opens the run
 * folder (by default the next unused name, the same on all ranks). */
void training_open(Training *t, const TrainingStart *start);

/* Rejects a batch that the ranks cannot share equally. */
void training_check_ranks(const Training *t);
/* The images of such a batch that this rank processes, and how many of them at a time: micro_batch, or if that is 0 as
 * few parts of nearly equal size as there are with at most `most` images in each. */
int training_local_batch(const Training *t);
int training_micro_batch(const Training *t, size_t most);

/* Call before data are loaded.  If batch_size exceeds the `images` of an epoch, a default value is reduced to that,
 * with a message, and a value given by the user is rejected. */
void training_fit_batch(Training *t, size_t images, const char *data);

/* Will the run evaluate, and so need a validation split?  Not with eval_every 0. */
bool training_evaluates(const Training *t);

/* == Inside a step ================================================================================================ */

/* This rank processes the images *begin .. *end - 1 of every global batch. */
void training_share(const Training *t, int *begin, int *end);

/* Sums `sums` [count], count < 16, over all ranks, in place, and sets t->stopping if a rank has received a signal. */
void training_sum(Training *t, double *sums, int count);

/* One optimizer step with the gradients in params.  Dies if `loss` or the gradient norm is not finite, so that NaN
 * weights never overwrite a good checkpoint.  A device that runs beside the host is not waited for: the norm arrives,
 * and is checked, in the next step or in training_settle. */
void training_update(Training *t, double loss);

/* The same where the losses of this rank's images were added up on the device, in params->found->loss, so that nothing
 * of a step has to be waited for: the mean of all ranks joins state.loss_sum later, too.  Calls training_sum. */
void training_update_unseen(Training *t);

/* Waits for the results of all updates.  The loop calls it before a row of the log, an evaluation and a checkpoint. */
void training_settle(Training *t);

/* The same check for another value of the current step. */
void training_stop_on_bad(const Training *t, const char *what, double value);

#endif
