/* A training run around any model, from the first step or from the state that it goes on from to the last epoch: the
 * loop over epochs and steps, the log, evaluations, checkpoints, and how it is stopped.  What is a step, what is an
 * evaluation and how the learning rate moves is the program's, in TrainingCalls. */
#ifndef VIT_CORE_TRAINING_H
#define VIT_CORE_TRAINING_H

#include "core/adamw.h"
#include "core/run_folder.h"

/* == Settings ===================================================================================================== */

typedef struct {
    int epochs, batch_size, micro_batch;
    uint64_t seed;
    const char *run_dir, *init;
    int eval_every, log_every;
    float bench_seconds;
} TrainingSettings;

extern const ConfigGroup training_settings;

/* == What a program says of its training ========================================================================== */

/* Where words or numbers of the program's own are asked for. */
typedef enum {
    WORDS_STEP,       /* behind the loss in the line that a person watches: "  class error 12 %", or nothing */
    WORDS_COLUMNS,    /* its columns of a row of log.csv, those of an evaluation empty */
    WORDS_EVALUATED,  /* the same in the row after an evaluation */
    WORDS_EVALUATION, /* what the last evaluation found, for the line of the epoch: "top-1 61.20 %  top-5 93.10 %" */
    WORDS_RESULT,     /* what the run came to, for its last line */
    WORDS_BEST        /* the same of a run that had nothing left to train: the state knows `best` only */
} TrainingWords;

/* Every function is given `run`, whatever the program keeps of its own. */
typedef struct {
    const char *columns; /* the program's own in log.csv, behind the speed and before the stall: "top1,top5" */
    const char *advice;  /* what to try where numbers are none: "a lower lr" */
    int decimals;        /* of images/s in the line that a person watches; the log has one more */

    /* First of all: opens data and model with its first weights, then calls training_open, which may load later
     * ones. */
    void (*open)(void *run);
    /* Prints what there is to know of data and model, on rank 0, after open. */
    void (*announce)(void *run);
    /* Begins to load the batches of that epoch from `batch` on, in the background; the next step takes the first.  Also
     * called for the next epoch before an evaluation, and may then be called again with the same numbers. */
    void (*load)(void *run, uint64_t epoch, uint64_t batch);
    /* Seconds that the loader has let the program wait so far. */
    double (*stalled)(const void *run);
    /* The learning rate of the next step, after so many epochs with their fraction. */
    float (*rate)(const void *run, double epochs);
    /* The next batch: gradients of this rank's share of it, summed over ranks, then training_update.  Returns the mean
     * loss of all ranks, and has called training_sum, so that all of them know of a signal. */
    double (*step)(void *run);
    /* After a step that a row of the log follows: notes in state.measured what would cost too much in every step.
     * NULL: nothing does. */
    void (*measure)(void *run);
    /* The whole validation split, under the parameters' average where there is one; calls training_sum at its end.
     * Returns the percentage that the best weights have most of, and sets t->validation_loss; neither where t->stopping
     * came of it. */
    double (*evaluate)(void *run);
    /* text is "" when it comes. */
    void (*words)(const void *run, TrainingWords which, char *text, size_t size);
} TrainingCalls;

/* == A run ======================================================================================================== */

typedef struct {
    const char *program; /* "train_vit" */
    const TrainingCalls *calls;
    void *run;
    Config config;
    TrainingSettings *s;
    const AdamWSettings *adamw;
    const char *mode; /* "eval": what is done in place of training; NULL: it trains */
    bool resumed;     /* a run goes on from its state */

    Params *params;
    float slow;       /* what the learning rate of Param.slow is a multiple of */
    uint64_t batches; /* of an epoch */
    RunState state;
    RunFolder folder;
    double images_per_s; /* since the last row of the log */
    double stall;        /* share of that time in which the next images were not there */
    double validation_loss; /* of the last evaluation */
    bool stopping;       /* all ranks know that a signal came to one */

    double started; /* when this process began to train */
    double before;  /* seconds that the run had trained until then */
    uint64_t first_step;
    double seconds, images, stalled; /* of the steps since the last row */
} Training;

/* Trains until the end or a signal; the exit status. */
int training_run(Training *t);

/* What training_open needs to know. */
typedef struct {
    Params *params;   /* with their first weights, and Param.slow set */
    float slow;       /* as in Training */
    uint64_t batches; /* of an epoch */
    const char *stem; /* of the folder's default name: runs/<stem>-001 */
    const char *const *class_names; /* [classes], or NULL; they travel with the weights */
    int classes;
} TrainingStart;

/* Allocates the optimizer's memory; loads the state that is resumed; opens the folder, by default the next free one on
 * all ranks; and begins to note signals. */
void training_open(Training *t, const TrainingStart *start);

/* == Inside a step ================================================================================================ */

/* The images *begin .. *end - 1 of every global batch are this rank's. */
void training_share(const Training *t, int *begin, int *end);

/* Sums over all ranks, in place, and notes whether a signal came to one of them: t->stopping.  count below 16. */
void training_sum(Training *t, double *sums, int count);

/* One update by the gradients that params holds.  Dies where `loss` or their norm is not finite: before anything that
 * is not a number is saved over good weights. */
void training_update(Training *t, double loss);

/* The same for another value of the step in progress. */
void training_stop_on_bad(const Training *t, const char *what, double value);

#endif
