/* One call of train_semantic_fpn: the model with its settings, data and buffers, used by training and by all other
 * modes.
 *
 *   run.c         settings, data sets and loaders, the model with its first weights
 *   evaluation.c  the classes of a picture's pixels, their counts, and the output of --eval
 *   run_facts.c   the description of the model in a report, and its pictures
 *   predict.c, parity.c, bench.c, show_batch.c   these modes */
#ifndef VIT_LAYERS_SEMANTIC_FPN_RUN_H
#define VIT_LAYERS_SEMANTIC_FPN_RUN_H

#include "core/results/segmentation.h"
#include "data/segmentation/segmentation_loader.h"
#include "layers/semantic_fpn/semantic_fpn.h"
#include "training/bench.h"
#include "training/program.h"
#include "training/schedule.h"

/* == Settings ===================================================================================================== */

/* Files that modes of this program write. */
typedef struct {
    const char *show_batch, *per_class, *draw;
} SemanticModeSettings;
extern const ConfigGroup semantic_mode_settings;

typedef struct {
    const char *backbone_weights;
    int steps;
} SemanticTrainingSettings;
extern const ConfigGroup semantic_training_settings;

/* For --eval and --predict; training evaluates whole pictures. */
typedef enum { WINDOWS_WHOLE, WINDOWS_SLIDE } EvalWindows;

/* Settings for evaluating and showing classes. */
typedef struct {
    EvalWindows eval_windows;
    int window_size, window_stride, eval_batch, image_size[2];
} SemanticViewSettings;
extern const ConfigGroup semantic_view_settings;

/* Pictures of one size as inputs of the network. */
typedef struct {
    const uint8_t *pixels; /* [n,height,width,3], in memory of host_malloc */
    int n, height, width;
    const float *mean, *std;
} SemanticPictures;

/* A picture of an evaluation that a report shows, scaled down. */
typedef struct {
    int image, height, width;
    uint8_t *pixels, *labels, *classes; /* [height,width,3], [height,width] each */
} SemanticKept;
enum { SEMANTIC_KEPT = 6 };

/* == A run ======================================================================================================== */

typedef struct {
    Training training; /* training.s: the settings that all programs share */
    const ModeSettings *modes;
    const PredictSettings *predict;
    const SemanticModeSettings *outputs;
    const SegmentationSetSettings *data;
    const LoaderSettings *loading;
    const SegmentationAugment *augment;
    SemanticFpnSettings *model_settings;
    const SemanticTrainingSettings *own;
    DenseScheduleSettings *schedule;
    const SemanticViewSettings *view;

    SemanticFpn net;
    SegmentationSet train, val; /* train is open only in a training run */
    LoaderPool *workers;
    SegmentationLoader loader, val_loader;
    SemanticRoom room, eval_room; /* of a training part, and of evaluated pictures */
    uint8_t *own_labels;          /* host: those of one picture, without padding */
    uint8_t *classes, *device_classes; /* host, device: the predictions of one picture */
    uint8_t *window_pixels;       /* host_malloc: of one window */
    real *window_logits;          /* of all windows of a picture */
    float *host_logits;           /* --eval and --predict: the same, or those of a whole picture */
    SemanticPictures shown;       /* the arguments of semantic_eval_pictures */
    SegmentationPart bench;       /* random pixels and labels of --bench */
    SegmentationCounts counts;    /* of the last evaluation */
    SegmentationScores scores;
    double loss, pictures;        /* sum and number of the losses of its pictures */
    SemanticKept kept[SEMANTIC_KEPT];
    int kept_count;
    double infer_s;               /* seconds per picture on this rank, without waiting for pictures */
} SemanticRun;

/* Sets the number of classes if only the model is needed, without data. */
void semantic_run_find_classes(SemanticRun *run);

/* The number of height x width images at a time whose largest activation keeps the device busy. */
int semantic_run_micro_batch(const SemanticRun *run, int height, int width);

/* Opens the validation split, if the call evaluates, and for training also the training split, with their loaders. */
void semantic_run_open_data(SemanticRun *run, bool train);
void semantic_run_close(SemanticRun *run);

/* Builds the model for parts of run->room, if `training`, and pictures of run->eval_room, and sets its first weights. */
void semantic_run_open_model(SemanticRun *run, bool training);

/* Loads a part of a batch for a training step. */
void semantic_run_load(SemanticRun *run, const SegmentationPart *part);

/* The name of the backbone: "resnet". */
const char *semantic_run_backbone(const SemanticRun *run);

/* The names of the classes [num_classes], or NULL. */
const char *const *semantic_run_names(const SemanticRun *run);

/* == Evaluation =================================================================================================== */

/* Allocates, for the largest sizes, the memory that pictures of run->eval_room need besides the model. */
void semantic_eval_open(SemanticRun *run);

/* Whole pictures pass through the network here, windows in the call for their classes. */
void semantic_eval_pictures(SemanticRun *run, const SemanticPictures *pictures);
/* Computes the classes of picture b of these, at its original size: run->classes [height,width].  --eval and --predict
 * end if a logit is not a number, with `what` in the message. */
void semantic_eval_classes(SemanticRun *run, int b, int height, int width, const char *what);

/* The three steps of counting: begin; count the pictures of a part; sum over all ranks, unless a signal has ended the
 * evaluation. */
void semantic_eval_begin(SemanticRun *run);
void semantic_eval_add(SemanticRun *run, const SegmentationPart *part);
void semantic_eval_end(SemanticRun *run);

/* --eval: prints scores, loss and a table of the classes, and writes --per-class. */
void semantic_eval_report(SemanticRun *run);

/* == The report =================================================================================================== */

/* Write to the facts of a training run (report/facts.h): the model; after an evaluation, pictures with their labels and
 * predictions, and the IoU of every class.  Pictures are kept during the evaluation, on the rank that writes the
 * report. */
void semantic_facts(SemanticRun *run);
void semantic_facts_evaluated(SemanticRun *run);
/* Keeps picture b of the part, whose labels and predictions [height,width] are in run->own_labels and run->classes, if
 * it is one of those that will be shown. */
void semantic_facts_keep(SemanticRun *run, const SegmentationPart *part, int b, int height, int width);

/* == Modes in place of training =================================================================================== */

/* --describe: prints the parts, parameters and multiply-adds of the model. */
void semantic_run_describe(SemanticRun *run);
/* --predict: prints the classes of pictures; with --json and --draw also writes them. */
void semantic_predict(SemanticRun *run);
/* --parity: logits, loss and gradients for the images and labels of a comparison with another framework. */
void semantic_parity(SemanticRun *run);
/* --bench (training/bench.h): opens the model and makes a random part; loads it for a step; runs it in inference; prints
 * the results. */
void semantic_bench_begin(Bench *b, SemanticRun *run);
void semantic_bench_load(const Bench *b, SemanticRun *run);
void semantic_bench_infer(SemanticRun *run);
void semantic_bench_print(const Bench *b, SemanticRun *run);
/* --show-batch: writes the first training pictures with their labels. */
void semantic_show_batch(SemanticRun *run);

#endif
