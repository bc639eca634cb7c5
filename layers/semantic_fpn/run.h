/* One call of train_semantic_fpn: the model with its settings, its data and its buffers, which training and the modes in
 * place of training share.
 *
 *   run.c         settings, data sets and loaders, the model with its first weights
 *   evaluation.c  the classes of a picture's pixels, their counts, and what --eval prints of them
 *   run_facts.c   what a report says of the model, and the pictures that it shows
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

/* Of --eval and --predict; what a run evaluates is whole. */
typedef enum { WINDOWS_WHOLE, WINDOWS_SLIDE } EvalWindows;

/* Settings for evaluating and showing classes. */
typedef struct {
    EvalWindows eval_windows;
    int window_size, window_stride, eval_batch, image_size[2];
} SemanticViewSettings;
extern const ConfigGroup semantic_view_settings;

/* Pictures of one size as the network gets them. */
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
    SemanticRoom room, eval_room; /* of a part of training, and of pictures that are evaluated */
    uint8_t *own_labels;          /* host: those of one picture, without padding */
    uint8_t *classes, *device_classes; /* host, device: the predictions of one picture */
    uint8_t *window_pixels;       /* host_malloc: of one window */
    real *window_logits;          /* of all windows of a picture */
    SemanticPictures shown;       /* what semantic_eval_pictures was given */
    SegmentationPart bench;       /* random pixels and labels of --bench */
    SegmentationCounts counts;    /* of the last evaluation */
    SegmentationScores scores;
    double loss, pictures;        /* the losses of its pictures, and how many */
    SemanticKept kept[SEMANTIC_KEPT];
    int kept_count;
    double infer_s;               /* its seconds a picture on this rank, without waiting for pictures */
} SemanticRun;

/* The number of classes where only the model is needed, without data. */
void semantic_run_find_classes(SemanticRun *run);

/* The number of height x width images at a time whose largest activation keeps the device busy. */
int semantic_run_micro_batch(const SemanticRun *run, int height, int width);

/* Opens the validation split, if the call evaluates, and for training also the other, with their loaders. */
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

/* Allocates, with the largest sizes of all, what pictures of run->eval_room need besides the model. */
void semantic_eval_open(SemanticRun *run);

/* Whole pictures pass through the network here, windows when the classes are asked for. */
void semantic_eval_pictures(SemanticRun *run, const SemanticPictures *pictures);
/* The classes of picture b of these, at its original size: run->classes [height,width]. */
void semantic_eval_classes(SemanticRun *run, int b, int height, int width);

/* Begins to count; counts the pictures of a part; sums over all ranks, unless a signal has ended the evaluation. */
void semantic_eval_begin(SemanticRun *run);
void semantic_eval_add(SemanticRun *run, const SegmentationPart *part);
void semantic_eval_end(SemanticRun *run);

/* --eval: prints scores, loss and a table of the classes, and writes --per-class. */
void semantic_eval_report(SemanticRun *run);

/* == The report =================================================================================================== */

/* Into the facts of a training run (report/facts.h): the model; after an evaluation pictures with their labels and
 * predictions, and the IoU of every class.  Pictures are kept when they are evaluated: of several ranks those of the one
 * that writes the report. */
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
/* --parity: logits, loss and gradients for the images and labels that another framework was given. */
void semantic_parity(SemanticRun *run);
/* --bench (training/bench.h): opens the model and makes a random part; loads it for a step; runs it in inference; prints
 * the results. */
void semantic_bench_begin(Bench *b, SemanticRun *run);
void semantic_bench_load(const Bench *b, SemanticRun *run);
void semantic_bench_infer(SemanticRun *run);
void semantic_bench_print(const Bench *b, SemanticRun *run);
/* --show-batch: writes what training will see first. */
void semantic_show_batch(SemanticRun *run);

#endif
