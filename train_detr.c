/* train_detr: SMCA-DETR, a detector, from COCO's files to its twelve numbers.
 *
 * Read it top to bottom, as train_vit.c: settings, what a run holds, one training step, evaluation, the training loop,
 * the other modes, main.  The model is layers/detr, matching, loss and evaluation are in detection/, pictures and boxes
 * come from data/detection_loader. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/adamw.h"
#include "core/checkpoint.h"
#include "core/config.h"
#include "core/die.h"
#include "core/distributed.h"
#include "core/files.h"
#include "core/progress.h"
#include "core/rng.h"
#include "core/run.h"
#include "core/schedule.h"
#include "core/signals.h"
#include "core/training.h"
#include "data/dataset.h"
#include "data/detection_loader.h"
#include "data/shape_scenes.h"
#include "detection/coco_eval.h"
#include "detection/draw.h"
#include "detection/postprocess.h"
#include "detection/set_loss.h"
#include "layers/attention/feature_map.h"
#include "layers/detr.h"

/* == Settings ===================================================================================================== */

typedef struct {
    const char *config, *data, *init, *resume, *run_dir, *parity, *out, *draw, *results;
    const char *train_annotations, *train_images, *val_annotations, *val_images;
    ConfigList predict;
    bool help, help_markdown, describe, eval, bench;
    int train_limit, val_limit, scene_size, workers, size_window;
    bool flip, crop;
    int scale_min, scale_max, scale_step, max_size, crop_scale_min, crop_scale_max, crop_scale_step, crop_min, crop_max,
        eval_scale;
    float max_damaged;
    const char *backbone_weights;
    int epochs, batch_size, micro_batch, lr_drop, eval_every, eval_batch, log_every;
    float lr, lr_backbone, weight_decay, beta1, beta2, eps, clip_grad;
    int image_size[2];
    float draw_score, bench_seconds;
    uint64_t seed;
} Settings;

#define F(KIND, field) CONFIG_FIELD(KIND, Settings, field)
static const ConfigEntry entries[] = {
    {F(BOOL, help), .section = "modes", .command_line_only = true, .help = "Print this help"},
    {F(BOOL, help_markdown), .command_line_only = true, .help = "Print the settings as Markdown tables"},
    {F(STRING, config), .command_line_only = true, .argument = "FILE",
     .help = "Read settings from this INI file; the command line wins over it"},
    {F(STRING, resume), .command_line_only = true, .argument = "FOLDER",
     .help = "Continue the run in this folder, bit for bit, from its last state"},
    {F(BOOL, describe), .command_line_only = true,
     .help = "Print parts, parameters and multiply-adds of an image of image_size, and stop"},
    {F(BOOL, eval), .command_line_only = true,
     .help = "Print COCO's twelve numbers of --init or --resume on the validation split, and stop"},
    {F(STRING, results), .command_line_only = true, .argument = "FILE",
     .help = "Where --eval also writes all detections, in COCO's JSON format"},
    {F(BOOL, bench), .command_line_only = true,
     .help = "Measure training and inference speed on random images of image_size, print one line of JSON, and stop"},
    {F(LIST, predict), .command_line_only = true, .argument = "IMAGE...",
     .help = "Tell what these pictures show and where: PNG or JPEG files, or val:17 for one of the validation split"},
    {F(STRING, draw), .command_line_only = true, .argument = "FILE",
     .help = "With --predict of one picture: write it with boxes, names and scores to this PNG file"},
    {F(STRING, parity), .command_line_only = true, .argument = "IN",
     .help = "One forward and backward pass on the images and boxes of this safetensors file; parameters in it replace "
             "the model's"},
    {F(STRING, out), .command_line_only = true, .argument = "FILE",
     .help = "Where --parity writes logits, boxes, loss and grad.<parameter>"},

    {F(STRING, data), "shapes", .section = "data",
     .help = "shapes (scenes drawn on the spot, no files needed), or COCO's folder: annotations and pictures"},
    {F(STRING, train_annotations), "annotations/instances_train2017.json", .argument = "FILE",
     .help = "Training boxes, in the folder or an absolute path"},
    {F(STRING, train_images), "train2017", .argument = "FOLDER", .help = "Training pictures, likewise"},
    {F(STRING, val_annotations), "annotations/instances_val2017.json", .argument = "FILE",
     .help = "Validation boxes, likewise"},
    {F(STRING, val_images), "val2017", .argument = "FOLDER", .help = "Validation pictures, likewise"},
    {F(INT, train_limit), "0", .min = 0, .max = 1e7, .help = "Use only the first so many training images (0: all)"},
    {F(INT, val_limit), "0", .min = 0, .max = 1e7, .help = "Use only the first so many validation images (0: all)"},
    {F(INT, scene_size), "128", .min = SCENES_LEAST_SIDE, .max = 1024, .help = "Side of the scenes of shapes"},
    {F(INT, workers), "0", .min = 0, .max = 1024,
     .help = "Threads that load pictures ahead (0: one beside a CPU that trains, all cores beside a GPU)"},
    {F(FLOAT, max_damaged), "0.01", .min = 0, .max = 1,
     .help = "Larger share of damaged pictures in an epoch that ends the run; below it they are named and replaced"},
    {F(INT, size_window), "16", .min = 0, .max = 1e6,
     .help = "Batches in a row whose pictures are grouped by size, so that less is padded (0: none)"},

    {F(BOOL, flip), "true", .section = "augmentation", .help = "Mirror half of the training pictures"},
    {F(BOOL, crop), "true", .help = "Crop half of them at random between two resizes"},
    {F(INT, scale_min), "480", .min = 16, .max = 8192,
     .help = "Training pictures are resized to a short side drawn from here"},
    {F(INT, scale_max), "800", .min = 16, .max = 8192, .help = "to here"},
    {F(INT, scale_step), "32", .min = 1, .max = 8192, .help = "in steps of this, at most 16 sizes"},
    {F(INT, max_size), "1333", .min = 16, .max = 16384, .help = "The long side is not made longer than this"},
    {F(INT, crop_scale_min), "400", .min = 16, .max = 8192, .help = "Before a crop, the short side is drawn from here"},
    {F(INT, crop_scale_max), "600", .min = 16, .max = 8192, .help = "to here"},
    {F(INT, crop_scale_step), "100", .min = 1, .max = 8192, .help = "in steps of this"},
    {F(INT, crop_min), "384", .min = 8, .max = 8192, .help = "Least side of a crop, where the picture has it"},
    {F(INT, crop_max), "600", .min = 8, .max = 8192, .help = "And the largest"},
    {F(INT, eval_scale), "800", .min = 16, .max = 8192, .help = "Validation pictures are resized to this short side"},

    {F(STRING, backbone_weights), .section = "model", .argument = "FILE",
     .help = "Weights of the backbone at the start, where --init gives none (safetensors, torchvision's names; "
             "scripts/convert_weights.py)"},
    {F(INT, epochs), "50", .section = "training", .min = 1, .max = 1e6, .help = "Passes over the training images"},
    {F(INT, batch_size), "16", .min = 1, .max = 1e5,
     .help = "Images between two updates of the parameters, of all ranks together"},
    {F(INT, micro_batch), "0", .min = 0, .max = 1e5,
     .help = "Images in memory at a time, their gradients summed up to a batch (0: chosen by size)"},
    {F(FLOAT, lr), "1e-4", .min = 0, .max = 100, .help = "Learning rate of AdamW"},
    {F(FLOAT, lr_backbone), "1e-5", .min = 0, .max = 100, .help = "That of the backbone; 0 keeps it as it is"},
    {F(INT, lr_drop), "40", .min = 0, .max = 1e6,
     .help = "Both fall to a tenth after so many epochs, and again after as many more (0: never)"},
    {F(FLOAT, weight_decay), "1e-4", .min = 0, .max = 10,
     .help = "Decoupled weight decay of everything that is trained"},
    {F(FLOAT, beta1), "0.9", .min = 0, .max = 0.9999999, .help = "Decay of AdamW's first moment"},
    {F(FLOAT, beta2), "0.999", .min = 0, .max = 0.9999999, .help = "Decay of AdamW's second moment"},
    {F(FLOAT, eps), "1e-8", .min = 0, .max = 1, .help = "AdamW's epsilon"},
    {F(FLOAT, clip_grad), "0.1", .min = 0, .max = 1e8, .help = "Largest norm of the gradient (0: no clipping)"},
    {F(UINT64, seed), "0", .help = "Decides every random number of the run"},

    {F(STRING, run_dir), .section = "run", .argument = "FOLDER",
     .help = "Where config.ini, log.csv and the checkpoints go (default: the next free "
             "runs/<data>-detr-<attn>-<number>)"},
    {F(STRING, init), .argument = "FILE",
     .help = "Start from these weights of a whole detector (safetensors, the official code's names)"},
    {F(INT, eval_every), "1", .min = 1, .max = 1e6,
     .help = "Epochs between two evaluations; the last epoch always has one"},
    {F(INT, eval_batch), "1", .min = 1, .max = 4096,
     .help = "Images evaluated at a time; padding beside a larger one changes an image's numbers a little"},
    {F(INT, log_every), "50", .min = 1, .max = 1e8, .help = "Steps between two rows of log.csv"},
    {F(SIZE, image_size), "800x1120", .min = 1, .max = 8192, .help = "Image that --describe and --bench are about"},
    {F(FLOAT, draw_score), "0.3", .min = 0, .max = 1, .help = "Least score of what --predict tells"},
    {F(FLOAT, bench_seconds), "5", .min = 0.1, .max = 3600,
     .help = "How long --bench measures training, and again inference"},
};
#undef F
static const ConfigGroup program_settings = {CONFIG_GROUP(Settings, entries)};

/* == A run ======================================================================================================== */

/* What is logged beside the loss, of the last step: RunState.measured. */
enum { FOCAL, L1, GIOU, CLASS_ERROR };

typedef struct {
    double numbers[COCO_NUMBERS]; /* 0 to 1, -1 for none */
} Evaluation;

typedef struct {
    Config config;
    Settings *s;
    DetrSettings *model;
    RunStrings strings;
    Detr detr;
    char train_json[RUN_PATH_SIZE], train_folder[RUN_PATH_SIZE], val_json[RUN_PATH_SIZE], val_folder[RUN_PATH_SIZE];
    DetectionSet train, val; /* train is open only in a training run */
    LoaderPool *workers;
    DetectionLoader loader, val_loader;
    AdamW adamw;
    Training training;
    int shorter, longer; /* largest sides of a batch */
    SetLossWork loss;
    float *logits, *boxes;   /* host [L,B,Q,C], [L,B,Q,4] */
    float *dlogits, *dboxes; /* the same */
    const char **names;      /* [num_classes]: categories by their id, "" for none */
    Evaluation evaluation;   /* the last one */
} Run;

static bool is_shapes(const Settings *s) { return !strcmp(s->data, "shapes"); }

/* What the table cannot check because it takes two settings. */
static void check_settings(const Run *run) {
    const Settings *s = run->s;
    const Config *c = &run->config;
    if (s->batch_size < distributed_ranks())
        config_reject(c, "batch_size", "%d images cannot be shared by %d ranks", s->batch_size, distributed_ranks());
    if (s->scale_min > s->scale_max)
        config_reject(c, "scale_min", "%d is more than scale_max %d", s->scale_min, s->scale_max);
    if (s->scale_max > s->max_size)
        config_reject(c, "scale_max", "%d is more than max_size %d", s->scale_max, s->max_size);
    if (s->eval_scale > s->max_size)
        config_reject(c, "eval_scale", "%d is more than max_size %d", s->eval_scale, s->max_size);
    if ((s->scale_max - s->scale_min) / s->scale_step >= DETECTION_SCALES)
        config_reject(c, "scale_step", "%d to %d in steps of %d are more than %d sizes", s->scale_min, s->scale_max,
                      s->scale_step, DETECTION_SCALES);
    if (s->crop_scale_min > s->crop_scale_max)
        config_reject(c, "crop_scale_min", "%d is more than crop_scale_max %d", s->crop_scale_min, s->crop_scale_max);
    if ((s->crop_scale_max - s->crop_scale_min) / s->crop_scale_step >= DETECTION_SCALES)
        config_reject(c, "crop_scale_step", "%d to %d in steps of %d are more than %d sizes", s->crop_scale_min,
                      s->crop_scale_max, s->crop_scale_step, DETECTION_SCALES);
    if (s->crop_min > s->crop_max)
        config_reject(c, "crop_min", "%d is more than crop_max %d", s->crop_min, s->crop_max);
}

/* == Data ========================================================================================================= */

/* Paths in the data's folder. */
static void find_files(Run *run) {
    const Settings *s = run->s;
    const struct {
        char *path;
        const char *name;
    } files[] = {{run->train_json, s->train_annotations},
                 {run->train_folder, s->train_images},
                 {run->val_json, s->val_annotations},
                 {run->val_folder, s->val_images}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        if (*files[i].name == '/')
            snprintf(files[i].path, RUN_PATH_SIZE, "%s", files[i].name);
        else
            path_join(files[i].path, RUN_PATH_SIZE, s->data, files[i].name);
    }
}

/* "coco" of datasets/coco/ */
static const char *data_name(const Settings *s) {
    static char name[32];
    size_t length = strlen(s->data);
    while (length > 1 && s->data[length - 1] == '/') length--;
    const char *from = s->data + length;
    while (from > s->data && from[-1] != '/') from--;
    snprintf(name, sizeof name, "%.*s", (int)(s->data + length - from), from);
    return name;
}

static void set_open(Run *run, DetectionSet *set, bool train) {
    const Settings *s = run->s;
    int limit = train ? s->train_limit : s->val_limit;
    if (is_shapes(s))
        detection_set_scenes(set, train, s->seed, s->scene_size, limit);
    else
        detection_set_coco(set, data_name(s), train ? run->train_json : run->val_json,
                           train ? run->train_folder : run->val_folder, limit);
}

static void check_classes(Run *run, const DetectionSet *set) {
    if (!run->model->num_classes) run->model->num_classes = set->classes;
    if (run->model->num_classes < set->classes)
        config_reject(&run->config, "num_classes", "%d, but %s has the category %d", run->model->num_classes, set->name,
                      set->classes - 1);
}

/* The number of classes where nothing but the model is needed. */
static void find_classes(Run *run) {
    if (run->model->num_classes) return;
    if (is_shapes(run->s))
        run->model->num_classes = SHAPES_CLASSES + 1;
    else
        config_reject(&run->config, "num_classes", "how many categories? 91 for COCO");
}

static void fill_scales(int *scale, int *count, int least, int most, int step) {
    for (*count = 0; *count < DETECTION_SCALES && least <= most; least += step) scale[(*count)++] = least;
}

static DetectionAugment augment_of(const Settings *s, bool train) {
    DetectionAugment a = {.max_size = s->max_size};
    if (!train) {
        a.scale[0] = s->eval_scale;
        a.scales = 1;
        return a;
    }
    a.flip = s->flip;
    a.crop = s->crop;
    a.crop_min = s->crop_min;
    a.crop_max = s->crop_max;
    fill_scales(a.scale, &a.scales, s->scale_min, s->scale_max, s->scale_step);
    fill_scales(a.crop_scale, &a.crop_scales, s->crop_scale_min, s->crop_scale_max, s->crop_scale_step);
    return a;
}

/* The images of a global batch that this rank computes. */
static int local_begin(const Run *run) {
    return (int)((int64_t)run->s->batch_size * distributed_rank() / distributed_ranks());
}
static int local_end(const Run *run) {
    return (int)((int64_t)run->s->batch_size * (distributed_rank() + 1) / distributed_ranks());
}

/* As many images of height x width as keep the device busy with the backbone's largest activation. */
static int micro_batch_choose(const Run *run, int height, int width) {
    const Settings *s = run->s;
    int local = local_end(run) - local_begin(run);
    if (s->micro_batch > 0) return s->micro_batch < local ? s->micro_batch : local;
    size_t image = (size_t)(height + 3) / 4 * ((size_t)(width + 3) / 4) * 4 * (size_t)run->model->backbone_width;
    size_t most = activations_at_once() / image;
    return most < 1 ? 1 : most < (size_t)local ? (int)most : local;
}

static void loading_open(Run *run, DetectionLoader *loader, const DetectionSet *set, bool train) {
    const Settings *s = run->s;
    int share = device_shares_cores() ? 1 : loader_cores() / distributed_core_share();
    if (!run->workers) run->workers = loader_pool_open(s->workers ? s->workers : share > 1 ? share : 1);
    DetectionLoaderConfig config = {.seed = s->seed,
                                    .batch_size = train ? s->batch_size : s->eval_batch * distributed_ranks(),
                                    .train = train,
                                    .rank = distributed_rank(),
                                    .ranks = distributed_ranks(),
                                    .part = train ? micro_batch_choose(run, s->scale_max, s->max_size) : s->eval_batch,
                                    .window = s->size_window,
                                    .max_damaged = s->max_damaged,
                                    .augment = augment_of(s, train),
                                    .pool = run->workers,
                                    .allocate = host_malloc,
                                    .release = host_free};
    detection_open(loader, set, &config);
    if (loader->shorter > run->shorter) run->shorter = loader->shorter;
    if (loader->longer > run->longer) run->longer = loader->longer;
}

static void loading_close(Run *run) {
    detection_close(&run->loader);
    detection_close(&run->val_loader);
    loader_pool_close(run->workers);
    detection_set_close(&run->train);
    detection_set_close(&run->val);
}

static void find_names(Run *run, const Coco *coco) {
    run->names = xcalloc((size_t)run->model->num_classes, sizeof *run->names, "names of categories");
    for (int i = 0; i < run->model->num_classes; i++) run->names[i] = "";
    for (int i = 0; i < coco->category_count; i++) run->names[coco->categories[i].id] = coco->categories[i].name;
}

static void data_open(Run *run, bool train) {
    const Settings *s = run->s;
    if (train) {
        set_open(run, &run->train, true);
        check_classes(run, &run->train);
        if (run->train.coco.image_count < s->batch_size)
            config_reject(&run->config, "batch_size", "%d is more than the %d training images", s->batch_size,
                          run->train.coco.image_count);
        loading_open(run, &run->loader, &run->train, true);
    }
    set_open(run, &run->val, false);
    check_classes(run, &run->val);
    loading_open(run, &run->val_loader, &run->val, false);
    find_names(run, train ? &run->train.coco : &run->val.coco);
}

/* == The model ==================================================================================================== */

/* Two learning rates, and weight decay for everything: core/params knows each tensor's. */
static void set_groups(Run *run) {
    Params *params = &run->detr.model.params;
    params_decay_from(params, 0);
    params_slow_below(params, run->detr.backbone_floats);
}

/* Builds the model for so many images of H x W or W x H at a time and gives it its first weights. */
static void model_open(Run *run, int images, int H, int W, bool training) {
    Detr *detr = &run->detr;
    const Settings *s = run->s;
    detr_create(detr, &run->config, 0);
    detr_plan(detr, images, H, W, training);
    detr_allocate(detr);
    params_allocate(&detr->model.params, training);
    if (*s->init) {
        checkpoint_load_weights(&detr->model.params, s->init, NULL);
    } else {
        params_initialize(&detr->model.params, s->seed);
        if (*s->backbone_weights && !*s->resume && !s->bench) /* a state has later ones, and speed needs none */
            checkpoint_load_part(&detr->model.params, detr_backbone_prefix, s->backbone_weights);
        detr_draw(detr, s->seed, 0, 0);
    }
    detr_fold(detr);
    set_groups(run);
}

static void model_close(Run *run) {
    set_loss_close(&run->loss);
    detr_destroy(&run->detr);
}

static void buffers_open(Run *run, int images, int most_targets, bool training) {
    SetLossSize size = {training ? run->model->decoder_layers : 1, images, run->model->queries, run->model->num_classes + 1, most_targets};
    size_t rows = (size_t)size.layers * (size_t)images * (size_t)run->model->queries;
    run->logits = xcalloc(rows * (size_t)size.columns, sizeof *run->logits, "predictions");
    run->boxes = xcalloc(rows * 4, sizeof *run->boxes, "predictions");
    if (!training) return;
    run->dlogits = xcalloc(rows * (size_t)size.columns, sizeof *run->dlogits, "gradients of predictions");
    run->dboxes = xcalloc(rows * 4, sizeof *run->dboxes, "gradients of predictions");
    set_loss_open(&run->loss, size, set_loss_weights);
}

static AdamW adamw_of(const Settings *s) {
    float slow = s->lr > 0 ? s->lr_backbone / s->lr : 0;
    return (AdamW){s->beta1, s->beta2, s->eps, s->weight_decay, s->clip_grad, 0, slow};
}

/* == One step ===================================================================================================== */

/* What a step's loss is made of, added up over micro-batches and ranks. */
typedef struct {
    double total, focal, l1, giou, wrong, targets;
} StepLoss;

/* Predictions that cannot be matched stop the run: which image gave them? */
static void stop_on_unmatched(const Run *run, const DetectionPart *part, int layer, int image) {
    char what[512], name[256] = "an image";
    if (part->image) detection_set_name_image(&run->train, (size_t)part->image[image], name, sizeof name);
    snprintf(what, sizeof what, "the cost of matching %s in decoder layer %d", name, layer + 1);
    training_stop_on_bad(&run->training, what, NAN);
}

/* Forward and backward of the part that the model holds; its gradients are added to those of the parts before, and
 * after the last one to those of the other ranks. */
static void micro_step(Run *run, const DetectionPart *part, double box_count, bool last, StepLoss *sum) {
    Detr *detr = &run->detr;
    SetTargets targets = {&part->boxes[0][0], part->labels, part->first};
    SetLoss loss;
    int layer, image, count = part->first[part->n];
    detr_draw(detr, run->s->seed, (uint32_t)run->training.state.step, (size_t)part->position);
    detr_forward(detr);
    detr_predictions(detr, run->logits, run->boxes);
    if (!set_loss(&loss, run->dlogits, run->dboxes, &run->loss, run->logits, run->boxes, &targets, part->n, box_count,
                  &layer, &image))
        stop_on_unmatched(run, part, layer, image);
    detr_load_gradients(detr, run->dlogits, run->dboxes);
    detr_backward(detr, last ? all_reduce_start : NULL);
    sum->total += loss.total;
    sum->focal += loss.focal;
    sum->l1 += loss.l1;
    sum->giou += loss.giou;
    sum->wrong += loss.wrong * count;
    sum->targets += count;
}

/* Sums over ranks of what a step has to tell: the losses, and whether to stop. */
static void step_agree(Run *run, StepLoss *loss) {
    double sums[] = {loss->total, loss->focal, loss->l1, loss->giou, loss->wrong, loss->targets, stop_signal != 0};
    distributed_sum(sums, sizeof sums / sizeof *sums);
    *loss = (StepLoss){sums[0], sums[1], sums[2], sums[3], sums[4], sums[5]};
    run->training.stopping = sums[6] > 0;
    double *measured = run->training.state.measured;
    measured[FOCAL] = loss->focal;
    measured[L1] = loss->l1;
    measured[GIOU] = loss->giou;
    measured[CLASS_ERROR] = loss->targets > 0 ? 100 * loss->wrong / loss->targets : 0;
}

/* One update with the gradients of a whole batch. */
static void update(Run *run, double loss) {
    RunState *state = &run->training.state;
    Detr *detr = &run->detr;
    training_stop_on_bad(&run->training, "the loss", loss);
    state->gradient_norm = adamw_step(&run->adamw, &detr->model.params, state->lr, (int)state->step + 1);
    training_stop_on_bad(&run->training, "the norm of the gradient", (double)state->gradient_norm);
    if (!detr->settings.freeze_backbone) detr_fold(detr);
}

/* The loader's next batch, part by part, then one update.  Every rank knows how many boxes the whole batch has before
 * it begins.  Returns the loss. */
static double train_step(Run *run) {
    Detr *detr = &run->detr;
    int ranks = distributed_ranks(), boxes = detection_boxes_of(&run->loader, (size_t)run->training.state.batch);
    double box_count = boxes > ranks ? boxes : ranks;
    DetectionPart part;
    StepLoss loss = {0};
    device_zero(detr->model.params.grads, detr->model.params.total * sizeof(float));
    for (int next = local_begin(run); next < local_end(run); next = part.position + part.n) {
        detection_next(&run->loader, &part);
        detr_load(detr, part.pixels, &part.size[0][0], run->train.mean, run->train.std, part.n, part.height,
                  part.width);
        micro_step(run, &part, box_count, part.position + part.n == local_end(run), &loss);
    }
    all_reduce_finish();
    step_agree(run, &loss);
    update(run, loss.total);
    return loss.total;
}

/* == Evaluation =================================================================================================== */

/* Numbers of one detection as ranks exchange them. */
enum { FOUND_CATEGORY, FOUND_BOX, FOUND_SCORE = FOUND_BOX + 4, FOUND_NUMBERS };

/* The part that the model holds -> its images' detections, in found [image_count,Q,FOUND_NUMBERS]. */
static void detect(Run *run, const DetectionPart *part, double *found) {
    int Q = run->model->queries, C = run->model->num_classes + 1;
    CocoDetection *detections = xcalloc((size_t)Q, sizeof *detections, "detections");
    detr_predictions(&run->detr, run->logits, run->boxes);
    for (int b = 0; b < part->n; b++) {
        if (part->image[b] < 0) continue; /* it could not be read: nothing was found in it */
        const CocoImage *image = &run->val.coco.images[part->image[b]];
        size_t row = (size_t)b * (size_t)Q;
        int count = postprocess(detections, Q, run->logits + row * (size_t)C, run->boxes + row * 4, Q, C, image->id,
                                image->width, image->height);
        double *to = found + (size_t)part->image[b] * (size_t)Q * FOUND_NUMBERS;
        for (int i = 0; i < count; i++, to += FOUND_NUMBERS) {
            to[FOUND_CATEGORY] = (double)detections[i].category_id;
            memcpy(to + FOUND_BOX, detections[i].box, sizeof detections[i].box);
            to[FOUND_SCORE] = detections[i].score;
        }
    }
    free(detections);
}

/* Sums of numbers of which every rank has its own and zeros. */
static void gather_found(double *found, size_t n) {
    enum { AT_ONCE = 1 << 20 };
    for (size_t first = 0; first < n && distributed_ranks() > 1; first += AT_ONCE)
        distributed_sum(found + first, n - first < AT_ONCE ? (int)(n - first) : AT_ONCE);
}

static void list_found(CocoResults *results, const Run *run, const double *found) {
    const Coco *coco = &run->val.coco;
    for (int i = 0; i < coco->image_count; i++) {
        for (int q = 0; q < run->model->queries; q++, found += FOUND_NUMBERS) {
            CocoDetection d = {.image_id = coco->images[i].id,
                               .category_id = (int64_t)found[FOUND_CATEGORY],
                               .score = found[FOUND_SCORE]};
            memcpy(d.box, found + FOUND_BOX, sizeof d.box);
            if (d.score > 0) coco_results_add(results, d);
        }
    }
}

/* Each rank takes its share of the images; all know the result.  A signal ends it early, and the result is none.
 * results may be NULL. */
static Evaluation evaluate(Run *run, CocoResults *results) {
    Detr *detr = &run->detr;
    DetectionPart part;
    CocoResults own = {0};
    Evaluation e = {{0}};
    Error error;
    size_t count = (size_t)run->val.coco.image_count, done = 0, n = count * (size_t)run->model->queries * FOUND_NUMBERS;
    double *found = xcalloc(n, sizeof *found, "detections"), stopped = 0;
    if (!results) results = &own;
    model_set_training(&detr->model, false);
    detection_start(&run->val_loader, 0, 0);
    while (!stop_signal && detection_next(&run->val_loader, &part)) {
        detr_load(detr, part.pixels, &part.size[0][0], run->val.mean, run->val.std, part.n, part.height, part.width);
        detr_forward(detr);
        detect(run, &part, found);
        done += (size_t)part.n;
        progress_show(false, "evaluating %zu/%zu", done * (size_t)distributed_ranks(), count);
    }
    if (model_trains(&detr->model)) model_set_training(&detr->model, true);
    stopped = stop_signal != 0;
    distributed_sum(&stopped, 1);
    run->training.stopping = stopped > 0;
    if (!run->training.stopping) {
        gather_found(found, n);
        list_found(results, run, found);
        if (!coco_eval(e.numbers, NULL, &run->val.coco, results->detections, results->count, NULL, &error))
            die("%s: %s", run->val.name, error.text);
    }
    free(found);
    coco_results_free(&own);
    return e;
}

/* As COCO's own program prints them. */
static void print_numbers(const double numbers[COCO_NUMBERS]) {
    static const char *const areas[] = {"   all", " small", "medium", " large"};
    static const struct {
        bool recall;
        const char *iou;
        int area, most;
    } rows[COCO_NUMBERS] = {{0, "0.50:0.95", 0, 100}, {0, "0.50     ", 0, 100}, {0, "0.75     ", 0, 100},
                            {0, "0.50:0.95", 1, 100}, {0, "0.50:0.95", 2, 100}, {0, "0.50:0.95", 3, 100},
                            {1, "0.50:0.95", 0, 1},   {1, "0.50:0.95", 0, 10},  {1, "0.50:0.95", 0, 100},
                            {1, "0.50:0.95", 1, 100}, {1, "0.50:0.95", 2, 100}, {1, "0.50:0.95", 3, 100}};
    for (int i = 0; i < COCO_NUMBERS; i++)
        printf(" %-18s %s @[ IoU=%s | area=%s | maxDets=%3d ] = %0.3f\n",
               rows[i].recall ? "Average Recall" : "Average Precision", rows[i].recall ? "(AR)" : "(AP)", rows[i].iou,
               areas[rows[i].area], rows[i].most, numbers[i]);
}

/* == Training ===================================================================================================== */

static void log_row(Run *run, const Evaluation *e) {
    const double *measured = run->training.state.measured;
    char numbers[64] = ",";
    if (e) snprintf(numbers, sizeof numbers, "%.5f,%.5f", e->numbers[COCO_AP], e->numbers[COCO_AP50]);
    training_log(&run->training, "%s,%.6f,%.6f,%.6f,%.2f", numbers, measured[FOCAL], measured[L1], measured[GIOU],
                 measured[CLASS_ERROR]);
}

/* The rest of the epoch; false when a signal ended it early. */
static bool train_epoch(Run *run) {
    Training *t = &run->training;
    RunState *state = &t->state;
    char class_error[32];
    detection_start(&run->loader, (uint32_t)state->epoch, state->batch);
    state->lr = schedule_drop(run->s->lr, run->s->lr_drop, (int)state->epoch);
    while (state->batch < t->batches) {
        training_begin_step(t, detection_stats(&run->loader).stalled);
        double loss = train_step(run);
        training_end_step(t, loss, detection_stats(&run->loader).stalled);
        snprintf(class_error, sizeof class_error, "  class error %.0f %%", state->measured[CLASS_ERROR]);
        training_show(t, class_error);
        if (training_log_is_due(t)) log_row(run, NULL);
        if (t->stopping) return false;
    }
    return true;
}

/* AP, its row in the log, and the best weights so far; false when a signal came meanwhile. */
static bool evaluate_epoch(Run *run) {
    Training *t = &run->training;
    run->evaluation = evaluate(run, NULL);
    if (t->stopping) return false;
    const double *numbers = run->evaluation.numbers;
    progress_show(true, "epoch %llu/%d  AP %.2f  AP50 %.2f", (unsigned long long)t->state.epoch + 1, t->epochs,
                  100 * numbers[COCO_AP], 100 * numbers[COCO_AP50]);
    log_row(run, &run->evaluation);
    training_keep_best(t, 100 * numbers[COCO_AP]);
    return true;
}

/* The end of an epoch: evaluation if it is due, a row in the log, checkpoints.  False when a signal came meanwhile. */
static bool finish_epoch(Run *run) {
    Training *t = &run->training;
    training_check_weights(t);
    if (!training_is_last_epoch(t)) detection_start(&run->loader, (uint32_t)t->state.epoch + 1, 0);
    if (!training_eval_is_due(t))
        log_row(run, NULL);
    else if (!evaluate_epoch(run))
        return false;
    training_end_epoch(t);
    return true;
}

static void begin_training(Run *run) {
    const Settings *s = run->s;
    Training *t = &run->training;
    char stem[128];
    run->adamw = adamw_of(s);
    params_allocate_optimizer(&run->detr.model.params, false);
    t->params = &run->detr.model.params;
    t->epochs = s->epochs;
    t->batches = run->loader.batches;
    t->batch_size = s->batch_size;
    t->eval_every = s->eval_every;
    t->log_every = s->log_every;
    snprintf(stem, sizeof stem, "%s-detr-%s", run->train.name, run->model->attn->name);
    training_open(t, &run->config, &run->strings,
                  &(TrainingNames){stem, run->names, run->model->num_classes, "ap,ap50,focal,l1,giou,class_error"});
    detr_fold(&run->detr); /* a state may have come */
}

static void announce(Run *run) {
    const Settings *s = run->s;
    const Coco *train = &run->train.coco;
    if (distributed_rank() > 0) return;
    printf("%s\n", kernels_device());
    if (distributed_ranks() > 1) printf("%d ranks\n", distributed_ranks());
    printf("%s: %d training and %d validation images, %zu training boxes of %d categories, %zu images without any\n",
           run->train.name, train->image_count, run->val.coco.image_count, train->annotation_count - train->crowds,
           train->category_count, train->empty_images);
    printf("%s: %zu trainable parameters, %.1f million multiply-adds for an image of %d x %d, "
           "%.0f MiB of activations\n",
           run->model->attn->name, run->detr.model.params.parameters,
           (double)detr_macs(&run->detr, run->shorter, run->longer) / 1e6, run->shorter, run->longer,
           (double)model_activation_bytes(&run->detr.model) / (1 << 20));
    printf("%s: %d epochs of %llu batches of %d images, at most %d at a time, %.0f %% of padding if each were one\n",
           s->run_dir, s->epochs, (unsigned long long)run->training.batches, s->batch_size, run->loader.parts.room,
           100 * detection_padding(&run->loader));
    training_print_resumed(&run->training);
    fflush(stdout);
}

static int mode_train(Run *run) {
    const Settings *s = run->s;
    const double *numbers = run->evaluation.numbers;
    Training *t = &run->training;
    data_open(run, true);
    int room = run->loader.parts.room > s->eval_batch ? run->loader.parts.room : s->eval_batch;
    model_open(run, room, run->shorter, run->longer, true);
    buffers_open(run, room, run->train.most_boxes, true);
    begin_training(run);
    announce(run);
    if (training_is_over(t)) {
        training_report(t, "best AP %.2f", t->state.best);
        return 0;
    }
    while (!training_is_over(t))
        if (!train_epoch(run) || !finish_epoch(run)) return training_stop_early(t);
    training_report(t, "AP %.2f, AP50 %.2f, best AP %.2f", 100 * numbers[COCO_AP], 100 * numbers[COCO_AP50],
                    t->state.best);
    return 0;
}

/* == The other modes ============================================================================================== */

static int mode_describe(Run *run) {
    const Settings *s = run->s;
    find_classes(run);
    detr_create(&run->detr, &run->config, 0);
    detr_plan(&run->detr, 1, s->image_size[0], s->image_size[1], true);
    detr_describe(&run->detr, stdout, s->image_size[0], s->image_size[1]);
    return 0;
}

static int mode_eval(Run *run) {
    const Settings *s = run->s;
    CocoResults results = {0};
    Error error;
    data_open(run, false);
    model_open(run, s->eval_batch, run->shorter, run->longer, false);
    buffers_open(run, s->eval_batch, 1, false);
    Evaluation e = evaluate(run, &results);
    if (distributed_rank() > 0) return 0;
    progress_show(true, "%d validation images of %s, %d at a time", run->val.coco.image_count, run->val.name,
                  s->eval_batch);
    print_numbers(e.numbers);
    if (*s->results && !coco_results_write(s->results, &results, &error))
        die("%s: %s", s->results, error.text);
    if (*s->results) printf("%s: %zu detections\n", s->results, results.count);
    coco_results_free(&results);
    return 0;
}

/* -- Speed -- */

/* A batch that is all of one size, with seven boxes an image, as COCO has on average. */
enum { BENCH_BOXES = 7 };

typedef struct {
    Run *run;
    DetectionPart part;
    bool training;
} Bench;

static void bench_fill(Bench *bench, int images) {
    const Settings *s = bench->run->s;
    DetectionPart *p = &bench->part;
    size_t n = (size_t)images, pixels = n * 3 * (size_t)s->image_size[0] * (size_t)s->image_size[1];
    *p = (DetectionPart){.n = images, .height = s->image_size[0], .width = s->image_size[1]};
    p->pixels = xcalloc(pixels, 1, "a batch");
    p->size = xcalloc(n, sizeof *p->size, "a batch");
    p->boxes = xcalloc(n * BENCH_BOXES, sizeof *p->boxes, "a batch");
    p->labels = xcalloc(n * BENCH_BOXES, sizeof *p->labels, "a batch");
    p->first = xcalloc(n + 1, sizeof *p->first, "a batch");
    for (size_t i = 0; i < pixels; i++) p->pixels[i] = (uint8_t)rng_bits(s->seed, RNG_TEST, 0, 0, i);
    for (int b = 0; b < images; b++) {
        p->size[b][0] = s->image_size[0];
        p->size[b][1] = s->image_size[1];
        p->first[b + 1] = (b + 1) * BENCH_BOXES;
    }
    for (int i = 0; i < images * BENCH_BOXES; i++) {
        p->labels[i] = i % bench->run->model->num_classes;
        for (int k = 0; k < 4; k++)
            p->boxes[i][k] = 0.2f + 0.4f * rng_uniform(s->seed, RNG_TEST, 1, 0, (uint64_t)(4 * i + k));
    }
}

static void bench_batch(void *context) {
    Bench *bench = context;
    Run *run = bench->run;
    Detr *detr = &run->detr;
    DetectionPart part = bench->part;
    StepLoss loss = {0};
    if (bench->training) device_zero(detr->model.params.grads, detr->model.params.total * sizeof(float));
    for (int next = local_begin(run); next < local_end(run); next += part.n) {
        int left = local_end(run) - next;
        part.n = left < bench->part.n ? left : bench->part.n;
        part.position = next;
        detr_load(detr, part.pixels, &part.size[0][0], imagenet_mean, imagenet_std, part.n, part.height, part.width);
        if (bench->training) {
            micro_step(run, &part, run->s->batch_size * BENCH_BOXES, next + part.n == local_end(run), &loss);
        } else {
            detr_forward(detr);
            detr_predictions(detr, run->logits, run->boxes);
        }
    }
    all_reduce_finish();
    if (bench->training) {
        step_agree(run, &loss);
        update(run, loss.total);
        run->training.state.step++;
    }
    device_synchronize();
}

static RunSpeed bench_speed(Bench *bench, bool training) {
    bench->training = training;
    model_set_training(&bench->run->detr.model, training);
    return run_speed(bench_batch, bench, bench->run->s->batch_size, (double)bench->run->s->bench_seconds);
}

static int mode_bench(Run *run) {
    const Settings *s = run->s;
    int H = s->image_size[0], W = s->image_size[1], images = micro_batch_choose(run, H, W);
    Bench bench = {.run = run};
    find_classes(run);
    model_open(run, images, H, W, true);
    buffers_open(run, images, BENCH_BOXES, true);
    params_allocate_optimizer(&run->detr.model.params, false);
    run->adamw = adamw_of(s);
    run->training.state.lr = s->lr;
    bench_fill(&bench, images);
    double peak = gemm_peak_gflops();
    RunSpeed train = bench_speed(&bench, true), infer = bench_speed(&bench, false);
    double again = gemm_peak_gflops(), macs = (double)detr_macs(&run->detr, H, W),
           training_macs = (double)detr_training_macs(&run->detr, H, W);
    if (again > peak) peak = again;
    if (distributed_rank() > 0) return 0;
    printf("{\"attn\": \"%s\", \"device\": \"%s\", \"height\": %d, \"width\": %d, \"ranks\": %d, \"batch_size\": %d, "
           "\"micro_batch\": %d, \"trainable_params\": %zu, \"macs\": %.0f, \"train_images_per_s\": %.4f, "
           "\"infer_images_per_s\": %.4f, \"train_fastest_s\": %.4f, \"infer_fastest_s\": %.4f, "
           "\"peak_bytes\": %zu, \"gemm_peak_gflops\": %.1f, \"mfu\": %.4f, \"infer_mfu\": %.4f}\n",
           run->model->attn->name, kernels_device(), H, W, distributed_ranks(), s->batch_size, images,
           run->detr.model.params.parameters, macs, train.images_per_s, infer.images_per_s, train.fastest,
           infer.fastest, device_peak_bytes(), peak,
           2 * training_macs * train.images_per_s / 1e9 / distributed_ranks() / peak,
           2 * macs * infer.images_per_s / 1e9 / distributed_ranks() / peak);
    return 0;
}

/* -- Pictures -- */

/* Names of the checkpoint's categories, those of the data, or none. */
static void names_open(Run *run) {
    static ClassNames names; /* run->names points into it */
    run_folder_classes(&names, run->s->init);
    run->names = xcalloc((size_t)run->model->num_classes, sizeof *run->names, "names of categories");
    for (int id = 0; id < run->model->num_classes; id++) run->names[id] = id < names.count ? names.at[id] : "";
}

/* A table of the one picture, for drawing. */
static void predicted_coco(const Run *run, Coco *coco, const char *name, int width, int height) {
    Error error;
    *coco = (Coco){.image_count = 0};
    coco_add_image(coco, 1, name, width, height);
    for (int id = 0; id < run->model->num_classes; id++)
        if (*run->names[id]) coco_add_category(coco, id, run->names[id]);
    if (!coco_finish(coco, &error)) die("%s: %s", name, error.text);
}

static void print_detections(const Run *run, const char *name, const CocoDetection *detections, int count) {
    int shown = 0;
    while (shown < count && detections[shown].score >= (double)run->s->draw_score) shown++;
    printf("%s: %d objects with a score of at least %g\n", name, shown, (double)run->s->draw_score);
    for (int i = 0; i < shown; i++) {
        const CocoDetection *d = &detections[i];
        const char *category = d->category_id < run->model->num_classes ? run->names[d->category_id] : "";
        printf("  %5.1f %%  ", 100 * d->score);
        if (*category)
            printf("%s", category);
        else
            printf("category %lld", (long long)d->category_id);
        printf("  x %.1f  y %.1f  width %.1f  height %.1f\n", d->box[0], d->box[1], d->box[2], d->box[3]);
    }
}

/* Pictures on which letters would hide what they name are drawn enlarged, by a whole factor. */
static void draw_picture(const Run *run, const ImagePart *picture, const char *name, CocoDetection *detections,
                         int count) {
    int longer = picture->height > picture->width ? picture->height : picture->width;
    int times = longer < 512 ? 512 / longer : 1;
    Image image = {picture->height * times, picture->width * times, NULL};
    Error error;
    Coco coco;
    image.pixels = xcalloc((size_t)image.height * (size_t)image.width * 3, 1, "a picture");
    draw_enlarged(&image, picture->pixels, times);
    for (int i = 0; i < count; i++)
        for (int side = 0; side < 4; side++) detections[i].box[side] *= times;
    predicted_coco(run, &coco, name, image.width, image.height);
    draw_detections(&image, detections, count, (double)run->s->draw_score, &coco);
    if (!image_write_png(run->s->draw, image.pixels, image.height, image.width, &error))
        die("%s: %s", run->s->draw, error.text);
    coco_close(&coco);
    free(image.pixels);
}

/* A file, or val:INDEX. */
static void read_picture(Run *run, const char *name, TransformScratch *scratch, ImagePart *picture) {
    char *end;
    Error error;
    if (strncmp(name, "val:", 4)) {
        if (!detection_picture_read(name, false, scratch, picture, &error)) die("%s: %s", name, error.text);
        return;
    }
    unsigned long long index = strtoull(name + 4, &end, 10);
    if (!run->val.coco.image_count) set_open(run, &run->val, false);
    if (end == name + 4 || *end || index >= (unsigned long long)run->val.coco.image_count)
        die_usage("--predict %s: expected val:INDEX with an index below %d", name, run->val.coco.image_count);
    if (!detection_set_read(&run->val, (int)index, false, scratch, picture, &error)) die("%s: %s", name, error.text);
}

static void predict(Run *run, const char *name, TransformScratch *scratch, uint8_t *pixels, CocoDetection *detections) {
    const Settings *s = run->s;
    ImagePart picture;
    read_picture(run, name, scratch, &picture);
    DetectionDraw draw = detection_resize(picture.width, picture.height, s->eval_scale, s->max_size);
    if (draw.width > run->longer || draw.height > run->longer)
        die("%s: %d x %d pixels are too slim a picture", name, picture.width, picture.height);
    if (!detection_pixels(scratch, pixels, (size_t)draw.width * 3, &picture, &draw)) die("%s: out of memory", name);
    detr_load(&run->detr, pixels, (int[]){draw.height, draw.width}, imagenet_mean, imagenet_std, 1, draw.height,
              draw.width);
    detr_forward(&run->detr);
    detr_predictions(&run->detr, run->logits, run->boxes);
    int count = postprocess(detections, run->model->queries, run->logits, run->boxes, run->model->queries, run->model->num_classes + 1, 1,
                            picture.width, picture.height);
    print_detections(run, name, detections, count);
    if (*s->draw) draw_picture(run, &picture, name, detections, count);
}

static int mode_predict(Run *run) {
    const Settings *s = run->s;
    TransformScratch scratch = {0};
    find_classes(run);
    names_open(run);
    run->shorter = s->eval_scale;
    run->longer = s->max_size + 16; /* by how much rounding the short side can lengthen the long one, up to 32 : 1 */
    model_open(run, 1, run->shorter, run->longer, false);
    buffers_open(run, 1, 1, false);
    uint8_t *pixels = xcalloc((size_t)run->shorter * (size_t)run->longer, 3, "a picture");
    CocoDetection *detections = xcalloc((size_t)run->model->queries, sizeof *detections, "detections");
    for (int i = 0; i < s->predict.count; i++) predict(run, s->predict.items[i], &scratch, pixels, detections);
    free(detections);
    free(pixels);
    transform_scratch_free(&scratch);
    return 0;
}

/* == Parity: how any other framework is compared with this one ==================================================== */

/* What --parity reads: `images` [B,3,H,W] normalised and padded with zeros, `sizes` [B,2] own height and width,
 * `counts` [B] targets of each image, `target_boxes` [T,4] (cx, cy, w, h relative to the image's own size) and `labels`
 * [T]. */
typedef struct {
    int B, H, W, T;
    float *images; /* [B,H,W,3] */
    int *sizes;
    DetectionPart part;
} Parity;

static const SafeTensor *parity_tensor(const SafeTensors *st, const char *name, int ndim, size_t rows, size_t columns) {
    const SafeTensor *t = safetensors_find(st, name);
    if (!t) die("%s: needs the tensor '%s'", st->file, name);
    if (t->ndim != ndim || (rows && t->shape[0] != rows) || (columns && t->shape[ndim - 1] != columns))
        die("%s: '%s' has another shape than --parity expects", st->file, name);
    return t;
}

static int64_t *parity_numbers(const SafeTensor *t) {
    Error error;
    int64_t *numbers = xcalloc(t->size + 1, sizeof *numbers, "parity");
    if (!safetensors_to_int64(t, numbers, &error)) die("%s", error.text);
    return numbers;
}

/* [B,3,H,W] -> [B,H,W,3] */
static void parity_images(Parity *p, const SafeTensor *t) {
    Error error;
    float *planes = xcalloc(t->size, sizeof *planes, "parity");
    size_t pixels = (size_t)p->H * (size_t)p->W;
    p->images = xcalloc(t->size, sizeof *p->images, "parity");
    if (!safetensors_to_float(t, planes, &error)) die("%s", error.text);
    for (size_t b = 0; b < (size_t)p->B; b++)
        for (size_t i = 0; i < pixels; i++)
            for (size_t c = 0; c < 3; c++) p->images[(b * pixels + i) * 3 + c] = planes[(b * 3 + c) * pixels + i];
    free(planes);
}

static void parity_targets(const Run *run, Parity *p, const SafeTensors *st) {
    Error error;
    DetectionPart *part = &p->part;
    int64_t *counts = parity_numbers(parity_tensor(st, "counts", 1, (size_t)p->B, 0));
    part->first = xcalloc((size_t)p->B + 1, sizeof *part->first, "parity");
    for (int b = 0; b < p->B; b++) {
        if (counts[b] < 0 || counts[b] > 65536) die("%s: counts[%d] is %lld", st->file, b, (long long)counts[b]);
        part->first[b + 1] = part->first[b] + (int)counts[b];
    }
    p->T = part->first[p->B];
    part->boxes = xcalloc((size_t)p->T + 1, sizeof *part->boxes, "parity");
    part->labels = xcalloc((size_t)p->T + 1, sizeof *part->labels, "parity");
    if (p->T) {
        int64_t *labels = parity_numbers(parity_tensor(st, "labels", 1, (size_t)p->T, 0));
        if (!safetensors_to_float(parity_tensor(st, "target_boxes", 2, (size_t)p->T, 4), &part->boxes[0][0], &error))
            die("%s", error.text);
        for (int i = 0; i < p->T; i++) {
            if (labels[i] < 0 || labels[i] > run->model->num_classes)
                die("%s: label %lld is outside 0..%d", st->file, (long long)labels[i], run->model->num_classes);
            part->labels[i] = (int)labels[i];
        }
        free(labels);
    }
    free(counts);
}

static void parity_read(const Run *run, Parity *p, const SafeTensors *st) {
    const SafeTensor *images = parity_tensor(st, "images", 4, 0, 0);
    if (images->shape[1] != 3 || images->shape[0] > 4096 || images->shape[2] > 8192 || images->shape[3] > 8192 ||
        !images->size)
        die("%s: 'images' must be float32 [B,3,H,W], normalised, zero where padded", st->file);
    p->B = (int)images->shape[0];
    p->H = (int)images->shape[2];
    p->W = (int)images->shape[3];
    int64_t *sizes = parity_numbers(parity_tensor(st, "sizes", 2, (size_t)p->B, 2));
    p->sizes = xcalloc(2 * (size_t)p->B, sizeof *p->sizes, "parity");
    for (int i = 0; i < 2 * p->B; i++) {
        if (sizes[i] < 1 || sizes[i] > (i % 2 ? p->W : p->H))
            die("%s: image %d is %lld high or wide, the batch %d x %d", st->file, i / 2, (long long)sizes[i], p->H,
                p->W);
        p->sizes[i] = (int)sizes[i];
    }
    parity_images(p, images);
    parity_targets(run, p, st);
    p->part.n = p->B;
    free(sizes);
}

static int mode_parity(Run *run) {
    Settings *s = run->s;
    Detr *detr = &run->detr;
    Parity p = {0};
    StepLoss loss = {0};
    SafeTensors st;
    Error error;
    if (!safetensors_open(&st, s->parity, &error)) die("%s", error.text);
    find_classes(run);
    run->model->dropout = 0;
    parity_read(run, &p, &st);
    model_open(run, p.B, p.H, p.W, true);
    buffers_open(run, p.B, p.T ? p.T : 1, true);
    run_parity_parameters(&detr->model.params, &st);
    detr_fold(detr);
    size_t pixels = (size_t)p.B * 3 * (size_t)p.H * (size_t)p.W;
    uint8_t *black = xcalloc(pixels, 1, "parity");
    detr_load(detr, black, p.sizes, (const float[3]){0}, (const float[3]){1, 1, 1}, p.B, p.H, p.W);
    real_upload(detr->images, p.images, pixels);
    micro_step(run, &p.part, p.T > 1 ? p.T : 1, false, &loss);
    float total = (float)loss.total;
    size_t L = (size_t)run->model->decoder_layers, B = (size_t)p.B, Q = (size_t)run->model->queries, C = (size_t)run->model->num_classes + 1;
    const SafeTensorEntry outputs[] = {{"logits", SAFE_F32, 4, {L, B, Q, C}, run->logits},
                                       {"boxes", SAFE_F32, 4, {L, B, Q, 4}, run->boxes},
                                       {"loss", SAFE_F32, 1, {1}, &total}};
    run_parity_write(s->out, outputs, 3, &detr->model.params);
    free(black);
    safetensors_close(&st);
    return 0;
}

/* == Main ========================================================================================================= */

static void print_help(const Run *run) {
    printf("train_detr trains detectors: SMCA-DETR on a ResNet, from COCO's files to COCO's twelve numbers.\n\n"
           "  train_detr --config configs/coco/shapes-demo.ini        built-in scenes, minutes on a CPU\n"
           "  train_detr --config configs/coco/smca.ini --data coco   train on COCO's folder\n"
           "  train_detr --resume runs/coco-detr-softmax-001          go on where a run stopped\n"
           "  train_detr --resume runs/coco-detr-softmax-001 --eval --results detections.json\n"
           "  train_detr --init best.safetensors --predict street.jpg --draw boxes.png\n"
           "  train_detr --config configs/coco/smca-ripple.ini --describe\n\n"
           "Attention operators of the encoder (--attn):\n");
    for (int i = 0; attention_operators[i]; i++)
        if (attention_operators[i]->takes_mask)
            printf("  %-24s %s\n", attention_operators[i]->name, attention_operators[i]->summary);
    printf("\n");
    config_help(&run->config, stdout);
}

static bool is_looking(const void *settings) {
    const Settings *s = settings;
    return s->eval || s->bench || s->describe || s->predict.count || *s->parity;
}

/* One mode at a time, with what it needs and nothing that only another would use. */
static void check_mode(const Settings *s) {
    const RunMode modes[] = {{"describe", s->describe},
                             {"eval", s->eval},
                             {"bench", s->bench},
                             {"predict", s->predict.count > 0},
                             {"parity", *s->parity != 0}};
    const char *mode = run_one_mode(modes, sizeof modes / sizeof *modes);
    if ((s->eval || s->predict.count) && !*s->init)
        die_usage("--%s: needs weights: --init FILE or --resume FOLDER", mode);
    if (*s->parity && !*s->out) die_usage("--parity: needs --out FILE for the results");
    if (*s->out && !*s->parity) die_usage("--out: '%s' would be written by --parity only", s->out);
    if (*s->draw && s->predict.count != 1)
        die_usage("--draw: '%s' would be written by --predict of one picture only", s->draw);
    if (*s->results && !s->eval) die_usage("--results: '%s' would be written by --eval only", s->results);
}

static int run_mode(Run *run) {
    const Settings *s = run->s;
    bool alone = s->help || s->help_markdown || s->describe || *s->parity || s->predict.count;
    if (alone && distributed_rank() > 0) return 0;
    if (s->help) return print_help(run), 0;
    if (s->help_markdown) return config_markdown(&run->config, stdout), 0;
    check_mode(s);
    check_settings(run);
    if (!is_shapes(s)) find_files(run);
    kernels_init();
    if (s->describe) return mode_describe(run);
    if (*s->parity) return mode_parity(run);
    if (s->predict.count) return mode_predict(run);
    signals_open();
    distributed_open();
    collective_open();
    int status = s->bench ? mode_bench(run) : s->eval ? mode_eval(run) : mode_train(run);
    loading_close(run);
    model_close(run);
    collective_close();
    distributed_close();
    return status;
}

int main(int argc, char **argv) {
    static Run run = {.training = {.program = "train_detr", .advice = "a lower lr", .decimals = 1}};
    distributed_begin();
    config_init(&run.config, "config");
    run.s = config_add(&run.config, &program_settings);
    run.model = detr_add_settings(&run.config);
    run.strings = (RunStrings){&run.s->config, &run.s->resume, &run.s->init, &run.s->run_dir};
    run_settings_open(&run.config, &run.strings, is_looking, run.s, argc, argv);
    if (config_origin(&run.config, "attn") || !(run.s->help || run.s->help_markdown)) {
        detr_use_settings(&run.config);
        config_settle(&run.config);
    }
    if (run.s->lr_backbone == 0) run.model->freeze_backbone = true;
    int status = run_mode(&run);
    if (fflush(stdout) != 0 || ferror(stdout)) die("standard output: cannot write all of it");
    return status;
}
