/* Checkpoints, all safetensors.  `last` and `best` hold the weights under timm's names and nothing else, so any other
 * program can read them.  `state` holds what a run needs to continue bit for bit: weights, moments, EMA, and where it
 * was.  One file, replaced by rename: a crash at any moment leaves the old state or the new one, never half of each. */
#ifndef VIT_CORE_CHECKPOINT_H
#define VIT_CORE_CHECKPOINT_H

#include "core/error.h"
#include "core/params.h"
#include "core/safetensors.h"

enum { RUN_MEASURED = 4 };

typedef struct {
    uint64_t step;      /* optimizer steps done */
    uint64_t epoch;     /* epoch in progress */
    uint64_t batch;     /* batches of it done */
    double loss_sum;    /* of those batches since the last row of the log */
    uint64_t loss_count;
    double best;        /* accuracy or AP, percent; -1 before the first evaluation */
    uint64_t log_bytes; /* length of log.csv at that moment */
    float lr, gradient_norm; /* of the last step: a run stopped before its row of the log still owes them */
    double seconds;          /* that the run has trained and evaluated, in all processes it went through */
    double measured[RUN_MEASURED]; /* what else the program logs, as of the last row of the log; NaN: nothing */
} RunState;

/* Writes `arena` (values or ema) as path; metadata travels along.  Dies with the operation, the path and the reason. */
void checkpoint_save_weights(const Params *params, const float *arena, const char *path, const SafeMetadata *metadata,
                             int metadata_count);

/* What the file has for a parameter may have to change: `fit` fills `to` [p->size] from the tensor and returns true, or
 * false where the tensor goes in as it is, or not at all. */
typedef struct {
    bool (*fit)(float *to, const Param *p, const SafeTensor *tensor, void *context);
    void *context;
} CheckpointFit;

/* Reads every parameter from a file of weights.  Dies when one is missing, has a shape that nobody fits (`fit` may be
 * NULL), or is left over. */
void checkpoint_load_weights(Params *params, const char *path, const CheckpointFit *fit);

/* Reads the parameters whose names begin with `prefix` from a file of weights in which they may go without it; others
 * in that file are ignored. */
void checkpoint_load_part(Params *params, const char *prefix, const char *path);

void checkpoint_save_state(const Params *params, const RunState *state, const char *path, const SafeMetadata *metadata,
                           int metadata_count);
void checkpoint_load_state(Params *params, RunState *state, const char *path);

/* Reads every parameter from tensors that are open already, ignoring others; false when one is missing or wrong. */
bool checkpoint_read_weights(Params *params, float *arena, const SafeTensors *st, const char *prefix,
                             const CheckpointFit *fit, Error *error);

#endif
