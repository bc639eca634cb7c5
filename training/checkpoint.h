/* Checkpoints, all safetensors.  `last` and `best` hold the weights under timm's names and nothing else, so any other
 * program can read them.  `state` holds what a run needs to continue bit for bit: weights, moments, EMA, and the
 * position in the run.  It is one file, replaced by rename: after a crash it has either the old state or the new one.
 */
#ifndef VIT_TRAINING_CHECKPOINT_H
#define VIT_TRAINING_CHECKPOINT_H

#include "core/error.h"
#include "training/params.h"
#include "core/safetensors.h"

enum { MAX_LOG_COLUMNS = 24, CHECKPOINT_DEVICE = 512, CHECKPOINT_NAME = PARAM_NAME_SIZE + 16 };

/* A column of log.csv that a program, an operator or an augmentation adds. */
typedef enum { LOG_MIDDLE, LOG_LAST } LogPlace; /* between speed and stall, or at the end of a row */

typedef struct {
    const char *name, *format; /* format: for printf, of one double */
    LogPlace place;
    double sum, count;         /* rows have sum / count; count 0: there is no value in this epoch yet */
    double own_sum, own_count; /* sums of this rank since the last sum over ranks */
} LogColumn;

typedef struct {
    uint64_t step;      /* optimizer steps done */
    uint64_t epoch;     /* epoch in progress */
    uint64_t batch;     /* batches of that epoch done */
    double loss_sum;    /* sum of the losses since the last row of the log */
    uint64_t loss_count;
    double best;        /* accuracy or AP, percent; -1 before the first evaluation */
    uint64_t since_best; /* evaluations since the best one */
    uint64_t log_bytes; /* length of log.csv when the state was saved */
    uint64_t examples;  /* number of training images, or of bytes of a stream, when the state was saved; 0: not known */
    float lr, gradient_norm; /* of the last step; needed if the run stopped before its row of the log was written */
    double seconds;          /* spent training and evaluating, summed over all processes that continued this run */
    LogColumn columns[MAX_LOG_COLUMNS]; /* [column_count]: added before a state is loaded, which contains their
                                         * values */
    int column_count;
} RunState;

/* Describes the tensors of `arena` for a file, in which their names begin with `prefix`; `names` and `host`
 * [params->total] receive names and values.  Returns the number of tensors, at most params_count. */
int checkpoint_entries(SafeTensorEntry *entries, char (*names)[CHECKPOINT_NAME], float *host, const Params *params,
                       const float *arena, const char *prefix);

/* Writes `arena` (values or ema) and the metadata to path.  On failure dies with the operation, path and reason. */
void checkpoint_save_weights(const Params *params, const float *arena, const char *path, const SafeMetadata *metadata,
                             int metadata_count);

/* Converts a tensor of the file whose shape or layout differs from the parameter's: `fit` fills `to` [p->size] from it
 * and returns true.  It returns false if it has no conversion; then the tensor must match the parameter. `tensor` is
 * NULL for a parameter that is not in the file.  Tensors of the file whose names begin with `left` need not be in the
 * model; NULL: there are no such tensors. */
typedef struct {
    bool (*fit)(float *to, const Param *p, const SafeTensor *tensor, void *context);
    const char *left;
    void *context;
} CheckpointFit;

/* True if the file's tensor has the parameter's shape; otherwise the error names both, and the setting behind them. */
bool checkpoint_shape_fits(const Param *p, const SafeTensor *tensor, Error *error);

/* Reads every parameter from a file of weights.  Dies if one is missing, has the wrong shape and `fit` (may be NULL)
 * does not convert it, or has a value that is not finite, or if the file has further tensors. */
void checkpoint_load_weights(Params *params, const char *path, const CheckpointFit *fit);

/* Reads the parameters whose names begin with `prefix` from a file of weights, where the names may lack the prefix.
 * Other tensors of the file are ignored.  `fit` may be NULL; parameters that are neither in the file nor set by `fit`
 * keep their values. */
void checkpoint_load_part(Params *params, const char *prefix, const char *path, const CheckpointFit *fit);

/* Names the hardware that computes a state: the device with its number of threads, and the ranks.  On other hardware
 * sums have another order, so the state stores the name as vit.c.device. */
void checkpoint_device(char text[CHECKPOINT_DEVICE]);

void checkpoint_save_state(const Params *params, const RunState *state, const char *path, const SafeMetadata *metadata,
                           int metadata_count);
void checkpoint_load_state(Params *params, RunState *state, const char *path);

/* Reads every parameter from an open file, ignoring other tensors.  False if one is missing or does not match. */
bool checkpoint_read_weights(Params *params, float *arena, const SafeTensors *st, const char *prefix,
                             const CheckpointFit *fit, Error *error);

#endif
