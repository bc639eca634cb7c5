/* A run of train_ar: the data and the model that training and the modes in this folder share. */
#ifndef VIT_LAYERS_DENSITY_RUN_H
#define VIT_LAYERS_DENSITY_RUN_H

#include "training/program.h"
#include "training/schedule.h"
#include "data/sequences/sequence_loader.h"
#include "layers/density/sampling.h"
#include "layers/density/sequence_model.h"

/* Settings of sampling from a model. */
typedef struct {
    int sample, length;
    ConfigList complete;
    const char *prompt, *attention;
} DrawSettings;

extern const ConfigGroup draw_settings;

typedef struct {
    int eval_step;
    SequencesSplit eval_split;
} EvaluationSettings;

typedef struct {
    Training training; /* training.s: the settings that all programs share */
    const ModeSettings *modes;
    const DrawSettings *draw;
    const SamplingSettings *sampling;
    const EvaluationSettings *evaluation;
    const SequencesSettings *data;
    const LoaderSettings *loading;
    SequenceModelSettings *model_settings;
    StepCosineSettings *schedule;

    SequenceSet set;
    SequenceShape shape; /* of the set's sequences, or of those in the file of --parity */
    SequenceModel model;
    LoaderPool *workers;
    SequenceLoader loader, eval_loader;
    SafeTensors parity;
    float *losses;      /* host [micro_batch,n] */
    double bits;        /* a token, of the last evaluation */
    int prompt;         /* rows that sampling processes at once, at least 1 */
    DeviceGraph *graph; /* of a micro-batch */
} DensityRun;

/* The number of sequences at a time: as many as keep the device busy and fit in memory, or micro_batch. */
int density_micro_batch(const DensityRun *run);

/* Builds the model for `batch` sequences at a time with its first weights, those of --init or random ones. */
void density_open(DensityRun *run, int batch, SequencePurpose purpose);
void density_close(DensityRun *run);

/* Ends the program unless every token is below the model's vocabulary; `from` names their source in the message. */
void density_check_tokens(const DensityRun *run, const uint8_t *tokens, size_t count, const char *from);
/* Loads checked tokens of B sequences into the model. */
void density_load(DensityRun *run, const uint8_t *tokens, int B);

/* Forward and backward pass of the B sequences in the model, which are those from `first` on in the global batch.
 * Their gradients are accumulated; after the last ones they are summed over the ranks.  Returns the sum of their
 * losses. */
double density_forward_backward(DensityRun *run, int first, int B, bool last);

/* Write to the facts of a training run (report/facts.h): the model and the baselines of its bits; after an evaluation,
 * samples of the model. */
void density_facts(DensityRun *run);
void density_facts_evaluated(DensityRun *run);

/* The modes, after program_open.  The file of --parity determines the shape of a sequence, so it is opened before
 * settings are checked. */
void density_describe(DensityRun *run);
void density_bench(DensityRun *run);
void density_draw(DensityRun *run);
void density_parity_open(DensityRun *run);
void density_parity(DensityRun *run);

#endif
