/* One call of train_vit: the settings, data, model and buffers, used by training and by all other modes.
 *
 *   run.c         data sets and loaders, the model with its first weights
 *   columns.c     the columns of log.csv that operators measure
 *   evaluation.c  the counts of an evaluation, and the output of --eval
 *   run_facts.c, run_attention.c   contents of the page of a training run besides its log
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
    double real_right, real_counted; /* likewise, for images with labels in ReaL */
    size_t failed;       /* images or videos that could not be read, which count as wrong */
    int *class_of;       /* maps the data's classes to the model's; NULL: the same */
    Confusion confusion; /* unused without classes */
    RealLabels real;     /* empty without real_labels */
    Views views;         /* of videos */
} VitEvaluation;

/* The images of an evaluation with the highest loss, and other data for the page of a run (run_facts.c). */
enum { WRONG_IMAGES = 20 };
typedef struct {
    int label, predicted;
    double loss, percent; /* percent: the probability of `predicted` */
    uint8_t *pixels;
} WrongImage;
typedef struct {
    WrongImage wrong[WRONG_IMAGES]; /* [count], the greatest loss first */
    int count;
    uint8_t *pixels;  /* [WRONG_IMAGES,Hi,Wi,3] of these images; NULL: evaluations make no pictures */
    size_t images;    /* evaluated by this rank; the first is in VitRun.pixels */
    double seconds;   /* seconds spent on all pictures */
    int batch_left;   /* pictures of the first batch that are still missing */
    bool is_due;      /* this evaluation makes pictures */
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
    bool validates;      /* test is that part, or a validation split */
    bool tested;         /* test is the split on which the best weights are evaluated at the end of a run */
    Teacher teacher;     /* of a training run with a teacher */
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
    double test_top1; /* for the best weights, at the end of a run */
} VitRun;

/* == Data ========================================================================================================= */

/* Sets what is known about the data without its files: size, classes, statistics.  --describe and --bench do not read
 * data: if the number of classes is a setting, they need no files.  The data of a checkpoint may be missing: the
 * checkpoint has everything that --predict needs, and a mode that needs more fails when it opens the data. */
void vit_run_describe_data(VitRun *run);

/* The transform of images and clips to the model's input, and the clips of a loader. */
Transform vit_run_transform(const VitRun *run, bool train);
LoaderConfig vit_run_samples(const VitRun *run, bool train);

/* Are the images used at their own size, with at most padding and cropping? */
bool vit_run_has_model_size(const VitRun *run);

/* Sets the default of val_fraction for class folders without a validation split, and rejects a share that cannot be
 * held out. */
void vit_run_settle_split(VitRun *run);

/* Checks that the model fits a split and opens it. */
void vit_run_open_split(VitRun *run, Dataset *split, bool train);
/* Opens the training images, without those that are held out. */
void vit_run_open_training(VitRun *run);
/* Opens the images for an evaluation outside of training: the test images or, if there are none, the validation
 * images. */
void vit_run_open_evaluated(VitRun *run);

/* Opens the images for evaluation, if the call evaluates, and for training also the training images, with their
 * loaders. */
void vit_run_open_data(VitRun *run, bool train);
/* The use of these images, "validation" or "test". */
const char *vit_run_evaluated(const VitRun *run);

/* After training: opens the test images, which had no influence on the choice of the best weights, and loads these
 * weights.  False: there are no such images, or they were evaluated before. */
bool vit_run_open_test(VitRun *run);

/* Removes test.json, which is of other weights than those that are about to be trained. */
void vit_run_forget_test(const VitRun *run);
void vit_run_close_data(VitRun *run);

/* Class names: those stored in the checkpoint, otherwise those of the data set, if the user has given one; NULL:
 * neither has names, or they are more than the model's classes.  A class without a name has "".  `owned` is to be freed
 * (class_names_free) when they are no longer needed. */
const char *const *vit_run_class_names(const VitRun *run, ClassNames *owned);

/* == The model ==================================================================================================== */

/* The number of images or clips at a time: as many as keep the device busy and fit in memory. */
int vit_run_micro_batch(const VitRun *run);

/* The number of values in an image or clip. */
size_t vit_pixels(const VitSettings *s);

/* Builds the model for `batch` images at a time, sets its initial weights, and allocates the buffers of a batch. */
void vit_run_open_model(VitRun *run, int batch, bool training);

/* Sets the model's loss against a teacher, in training, --describe and --parity. */
void vit_run_distill(VitRun *run);

/* One adds the operators' columns to the log (AttentionColumns), the other the values measured since its last call. */
void vit_run_open_columns(VitRun *run);
void vit_run_read_columns(VitRun *run);

/* == Evaluation =================================================================================================== */

/* Begins to count, after the test split is open.  vit_eval_add counts the images of the part whose logits [n,C] are in
 * run->logits; vit_eval_end sums over the ranks, each of which has its share of the images, and sets run->evaluation
 * and the validation loss.  After a signal these are invalid, and t->stopping is set. */
void vit_eval_begin(VitRun *run);
void vit_eval_add(VitRun *run, const LoaderPart *images);
void vit_eval_end(VitRun *run);

/* --eval, before and after the evaluation: opens data and model; prints accuracy and loss, and writes --confusion and
 * --per-class. */
void vit_eval_open(VitRun *run);
void vit_eval_report(VitRun *run);
/* Writes the result on the test images at the end of a run to test.json in its folder. */
void vit_eval_note_test(const VitRun *run);

/* == The page of a run ============================================================================================ */

/* The next functions write to training_facts, if the run has a page.  Before the first step: the model; also allocates
 * memory for the others. */
void vit_facts_open(VitRun *run);
/* When n images of a batch are in the model: the images of the run's first batch, as the model sees them. */
void vit_facts_batch(VitRun *run, int n);
/* At the start of an evaluation, for each of its images, and at its end while the model still has the same weights:
 * results of classes, and the images with the highest losses. */
void vit_facts_begin(VitRun *run);
void vit_facts_add(VitRun *run, const uint8_t *pixels, int label, const float *logits, const Outcome *found);
void vit_facts_end(VitRun *run);
/* Like the last of these: the attention in the first image, for which the model computes it once more.  `when`: "test
 * images after epoch 3". */
void vit_facts_attention(VitRun *run, const char *when);

/* == Modes in place of training =================================================================================== */

/* --describe: prints the layers with their parameters, multiply-adds and bytes. */
void vit_run_describe(VitRun *run);
/* --predict: prints the classes of images or videos; with --json and --attention also writes files. */
void vit_predict(VitRun *run);
/* --parity: vit_parity_open, before the settings are checked, sets the model's size to that of the images unless the
 * user gave another; vit_parity writes logits, loss and gradients for the images and labels of a comparison with
 * another framework. */
void vit_parity_open(VitRun *run);
void vit_parity(VitRun *run);
/* --bench (training/bench.h): opens the model with random images and labels; prints the results. */
void vit_bench_begin(Bench *b, VitRun *run);
void vit_bench_print(const Bench *b, VitRun *run);
/* --show-batch: writes the first training images, before the augmentations of whole batches. */
void vit_show_batch(VitRun *run);
/* --write-logits: the logits of all training images, prepared as for evaluation. */
void vit_write_logits(VitRun *run);

#endif
