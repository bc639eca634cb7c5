/* One call of train_vit: the settings, the data, the model and the buffers that training and the modes in place of
 * training share.
 *
 *   run.c         data sets and loaders, the model with its first weights
 *   columns.c     the columns of log.csv that operators measure
 *   evaluation.c  what an evaluation counts, and what --eval prints of it
 *   run_facts.c, run_attention.c   what the page of a training run shows besides its log
 *   predict.c, parity.c, bench.c, show_batch.c   these modes
 *
 * Letters: B images or clips, T0 frames, Hi x Wi pixels, C classes. */
#ifndef VIT_LAYERS_VIT_RUN_H
#define VIT_LAYERS_VIT_RUN_H

#include "core/results/confusion.h"
#include "core/results/views.h"
#include "data/images/erasing.h"
#include "data/images/mixup.h"
#include "data/loading/loader.h"
#include "data/loading/sampler.h"
#include "data/sets/datasets.h"
#include "data/sets/real_labels.h"
#include "data/video/clips.h"
#include "layers/vit/layer_decay.h"
#include "layers/vit/teacher.h"
#include "layers/vit/vit.h"
#include "training/bench.h"
#include "training/program.h"
#include "training/schedule.h"

/* == Settings ===================================================================================================== */

/* Settings that count in modes of this program only. */
typedef struct {
    const char *show_batch, *confusion, *per_class, *real_labels, *attention, *write_logits;
    int top_frames;
} VitModeSettings;
extern const ConfigGroup vit_mode_settings;

/* == A run ======================================================================================================== */

/* The counts of an evaluation, and the accuracy of the last one. */
typedef struct {
    double top1, top5;   /* percent */
    double right, right5, loss;      /* sums over the images */
    double real_right, real_counted; /* likewise, of those that ReaL has labels of */
    size_t failed;       /* videos that could not be read, which count as wrong */
    int *class_of;       /* maps the data's classes to the model's; NULL: the same */
    Confusion confusion; /* unused without classes */
    RealLabels real;     /* empty without real_labels */
    Views views;         /* of videos */
} VitEvaluation;

/* The images of an evaluation on which the loss is greatest, and what else the page of a run needs (run_facts.c). */
enum { WRONG_IMAGES = 20 };
typedef struct {
    int label, predicted;
    double loss, percent; /* percent: the probability of `predicted` */
    uint8_t *pixels;
} WrongImage;
typedef struct {
    WrongImage wrong[WRONG_IMAGES]; /* [count], the greatest loss first */
    int count;
    uint8_t *pixels;  /* [WRONG_IMAGES,Hi,Wi,3] of these images; NULL: no pictures are made of evaluations */
    size_t images;    /* evaluated by this rank; the first is in VitRun.pixels */
    double seconds;   /* that all pictures have taken */
    int batch_left;   /* pictures of the first batch that are still to come */
    bool is_due;      /* pictures are made of this evaluation */
} VitPage;

typedef struct {
    Training training; /* training.s: the settings that all programs share */
    const ModeSettings *modes;
    const PredictSettings *predict;
    const VitModeSettings *vit_modes;
    const DataSettings *data;
    const LoaderSettings *loading;
    const ClipSettings *clips;
    const TransformSettings *transform;
    const AugmentSettings *augment;
    const ErasingSettings *erasing;
    const MixupSettings *mixup;
    const SamplerSettings *sampler;
    VitSettings *model_settings;
    CosineSettings *schedule;
    const LayerDecaySettings *layer_decay;
    const TargetSettings *target;
    const DistillationSettings *distillation;

    Vit vit;
    Dataset train, test; /* train is open only in a training run; test: the images that are evaluated */
    bool held_out;       /* test is a part of the training images */
    bool validates;      /* test is that part, or images that are meant to validate */
    bool tested;         /* test is what the best weights are measured on at the end of a run */
    Teacher teacher;     /* of a training run that has one */
    LoaderPool *workers;
    Loader loader, test_loader;
    SafeTensors parity;
    uint8_t *pixels; /* host [micro_batch,T0,Hi,Wi,3] */
    int *labels;     /* host [micro_batch] */
    float *targets;  /* host [micro_batch,C] */
    float *losses;   /* host [micro_batch]: of --parity */
    float *logits;   /* host [micro_batch,C] */
    float *class_weights, *weights; /* host [classes] of losses, or NULL; [micro_batch] of a micro-batch's images */
    int *boxes;      /* host [micro_batch + 2,4]: the boxes of random erasing */
    DeviceGraph *graph; /* of a micro-batch */
    uint64_t *column_sums, *column_host; /* device, host [depth,ATTENTION_PARTS,ATTENTION_COLUMNS] */
    double images_measured; /* on this rank since column_sums was read */
    VitEvaluation evaluation;
    VitPage page;
    double test_top1; /* of the best weights, at the end of a run */
} VitRun;

/* == Data ========================================================================================================= */

/* Sets what is known about the data without its files: size, classes, statistics.  --describe and --bench look at no
 * data: where the number of classes is a setting, they do without its files.  The data of a checkpoint may be gone, or
 * lie elsewhere: the checkpoint has what --predict needs of it, and a mode that needs more will miss it when it opens
 * the data. */
void vit_run_describe_data(VitRun *run);

/* How images and clips become what the model reads, and the images and clips that a loader gives. */
Transform vit_run_transform(const VitRun *run, bool train);
LoaderConfig vit_run_samples(const VitRun *run, bool train);

/* Are the images used at their own size, with at most padding and cropping? */
bool vit_run_has_model_size(const VitRun *run);

/* Gives val_fraction its default, where class folders have nothing to validate with, and rejects what cannot be held
 * out. */
void vit_run_settle_split(VitRun *run);

/* Opens one split, after checking that the model fits it. */
void vit_run_open_split(VitRun *run, Dataset *split, bool train);
/* Opens the training images, without those that are held out. */
void vit_run_open_training(VitRun *run);
/* Opens the images that are evaluated outside of training: those that test, else those that validate. */
void vit_run_open_evaluated(VitRun *run);

/* Opens the images that are evaluated, if the call evaluates, and for training also the others, with their loaders. */
void vit_run_open_data(VitRun *run, bool train);
/* What these images are for, "validation" or "test". */
const char *vit_run_evaluated(const VitRun *run);

/* After training: opens test images that had no part in choosing the best weights, and these weights.  False: there are
 * none, or they have been read already. */
bool vit_run_open_test(VitRun *run);
void vit_run_close_data(VitRun *run);

/* Class names: those stored in the checkpoint, otherwise those of the data set, if the user chose one; NULL: neither
 * has names for the model's classes.  `owned` is to be freed (class_names_free) when they are no longer needed. */
const char *const *vit_run_class_names(const VitRun *run, ClassNames *owned);

/* == The model ==================================================================================================== */

/* The number of images or clips at a time: as many as fit in memory while keeping the device busy. */
int vit_run_micro_batch(const VitRun *run);

/* The numbers in an image or clip. */
size_t vit_pixels(const VitSettings *s);

/* Builds the model for `batch` images at a time, sets its initial weights, and allocates the buffers of a batch. */
void vit_run_open_model(VitRun *run, int batch, bool training);

/* Gives the model the loss against a teacher, in training, --describe and --parity. */
void vit_run_distill(VitRun *run);

/* Adds the operators' columns to the log (AttentionColumns), and later what they have measured since the last call. */
void vit_run_open_columns(VitRun *run);
void vit_run_read_columns(VitRun *run);

/* == Evaluation =================================================================================================== */

/* Begins to count, after the test split is open.  vit_eval_add counts the images of the part whose logits [n,C] are
 * in run->logits; vit_eval_end sums over the ranks, of which each has its share of the images, and sets
 * run->evaluation and the validation loss.  After a signal these are invalid, and t->stopping is set. */
void vit_eval_begin(VitRun *run);
void vit_eval_add(VitRun *run, const LoaderPart *images);
void vit_eval_end(VitRun *run);

/* --eval, before and after the evaluation: opens data and model; prints accuracy and loss, and writes --confusion and
 * --per-class. */
void vit_eval_open(VitRun *run);
void vit_eval_report(VitRun *run);
/* The result on the test images at the end of a run, into test.json in its folder. */
void vit_eval_note_test(const VitRun *run);

/* == The page of a run ============================================================================================ */

/* Into training_facts, where the run has a page.  Before the first step: the model, and memory for what follows. */
void vit_facts_open(VitRun *run);
/* When n images of a batch are in the model: those of the run's first batch, as it sees them. */
void vit_facts_batch(VitRun *run, int n);
/* At the start of an evaluation, for each of its images, and at its end while the weights are those that it had:
 * classes, and the images with the highest losses. */
void vit_facts_begin(VitRun *run);
void vit_facts_add(VitRun *run, const uint8_t *pixels, int label, const float *logits, const Outcome *found);
void vit_facts_end(VitRun *run);
/* As the last of these: the attention of the first image, for which the model computes it once more.  `when`: "test
 * images after epoch 3". */
void vit_facts_attention(VitRun *run, const char *when);

/* == Modes in place of training =================================================================================== */

/* --describe: prints the layers with their parameters, multiply-adds and bytes. */
void vit_run_describe(VitRun *run);
/* --predict: names what images or videos show; with --json and --attention also writes files. */
void vit_predict(VitRun *run);
/* --parity: vit_parity_open, before the settings are checked, takes the images' size for the model's unless the user
 * gave another; vit_parity writes logits, loss and gradients for the images and labels that another framework was
 * given. */
void vit_parity_open(VitRun *run);
void vit_parity(VitRun *run);
/* --bench (training/bench.h): opens the model with random images and labels; prints the results. */
void vit_bench_begin(Bench *b, VitRun *run);
void vit_bench_print(const Bench *b, VitRun *run);
/* --show-batch: writes what training will see first, before anything that is done to whole batches. */
void vit_show_batch(VitRun *run);
/* --write-logits: the logits of all training images, prepared as for evaluation. */
void vit_write_logits(VitRun *run);

#endif
