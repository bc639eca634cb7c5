/* train_detr: SMCA-DETR, an object detector, from COCO's files to COCO's twelve metrics.
 *
 * Read it top to bottom, like train_vit.c: settings, the data of a run, one training step, evaluation, the callbacks
 * of a training run, the other modes, main.  The loop that calls these is training_run in training/training.c.  The model
 * is layers/detr/detr, matching, loss and evaluation are in detection/, pictures and boxes come from data/detection/detection_loader.
 * */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "training/bench.h"
#include "core/die.h"
#include "core/distributed.h"
#include "core/files.h"
#include "core/outcome.h"
#include "training/parity.h"
#include "core/predictions.h"
#include "training/program.h"
#include "core/progress.h"
#include "core/rng.h"
#include "training/schedule.h"
#include "core/signals.h"
#include "core/text.h"
#include "data/detection/detection_loader.h"
#include "data/loading/pictures.h"
#include "data/detection/size_buckets.h"
#include "detection/coco_eval.h"
#include "detection/draw.h"
#include "detection/parity_batch.h"
#include "detection/postprocess.h"
#include "detection/set_loss.h"
#include "layers/attention/feature_map.h"
#include "layers/detr/detr.h"

/* == Settings ===================================================================================================== */

/* Files that modes of this program write. */
typedef struct {
    const char *results, *draw;
} OutputSettings;

#define F(KIND, field) CONFIG_FIELD(KIND, OutputSettings, field)
static const ConfigEntry output_entries[] = {
    {F(STRING, results), .section = "in place of training", .command_line_only = true, .argument = "FILE",
     .help = "With --eval: also write all detections to this file, in COCO's JSON format"},
    {F(STRING, draw), .command_line_only = true, .argument = "FILE",
     .help = "With --predict of one image: write the image with its boxes, class names and scores to this PNG file"},
};
#undef F
static const ConfigGroup output_settings = {CONFIG_GROUP(OutputSettings, output_entries)};

/* Settings of the backbone. */
typedef struct {
    const char *backbone_weights;
    float lr_backbone;
} BackboneSettings;

#define F(KIND, field) CONFIG_FIELD(KIND, BackboneSettings, field)
static const ConfigEntry backbone_entries[] = {
    {F(STRING, backbone_weights), .section = "model", .argument = "WEIGHTS", /* no FILE, which must not be empty */
     .help = "Initial weights of the backbone, unless --init is given: a safetensors file with torchvision's names, as "
             "scripts/convert_weights.py writes; '' for none where a config names one"},
    {F(FLOAT, lr_backbone), "1e-5", .section = "training", .min = 0, .max = 100,
     .help = "Initial learning rate of the backbone (0: the backbone is not trained)"},
};
#undef F
static const ConfigGroup backbone_settings = {CONFIG_GROUP(BackboneSettings, backbone_entries),
                                              .change = CHANGE_FREELY};

/* Settings for evaluating and showing detections. */
typedef struct {
    int eval_batch, image_size[2];
    float draw_score;
} LookSettings;

#define F(KIND, field) CONFIG_FIELD(KIND, LookSettings, field)
static const ConfigEntry look_entries[] = {
    {F(INT, eval_batch), "1", .section = "run", .min = 1, .max = 4096,
     .help = "Images in a batch of evaluation; results depend a little on it, through padding to the largest image"},
    {F(SIZE, image_size), "800x1120", .min = 1, .max = 8192,
     .help = "Height and width of the image for which --describe counts and --bench measures"},
    {F(FLOAT, draw_score), "0.3", .min = 0, .max = 1, .help = "Lowest score of the detections that --predict reports"},
};
#undef F
static const ConfigGroup look_settings = {CONFIG_GROUP(LookSettings, look_entries), .change = CHANGE_FREELY};

/* == A run ======================================================================================================== */

/* Values of the last step that are logged besides the loss: RunState.measured. */
enum { FOCAL, L1, GIOU, CLASS_ERROR };

typedef struct {
    Training training; /* training.s: the settings that all programs share */
    const ModeSettings *modes;
    const PredictSettings *predict;
    const OutputSettings *outputs;
    const DetectionSetSettings *data;
    const LoaderSettings *loading;
    const SizeSettings *sizes;
    const DetectionAugmentSettings *augment;
    DetrSettings *model;
    const BackboneSettings *backbone;
    const DropSettings *schedule;
    const LookSettings *looks;

    Detr detr;
    DetectionSet train, val; /* train is open only in a training run */
    LoaderPool *workers;
    DetectionLoader loader, val_loader;
    int shorter, longer; /* maximum shorter and longer side of a batch */
    SetLossWork loss, validation; /* of a step; of one image and layer in an evaluation */
    float *logits, *boxes;   /* host [L,B,Q,C], [L,B,Q,4] */
    float *dlogits, *dboxes; /* the same */
    float *unused;           /* [Q,C + 4]: derivatives in an evaluation */
    float (*target_boxes)[4]; /* [most_boxes of the validation split] */
    int *target_labels;
    const char **names;      /* [num_classes]: categories by their id, "" for none */
    double found[COCO_NUMBERS]; /* the last evaluation's, 0 to 1, -1 for none */
    double infer_s;             /* its seconds an image on this rank, without waiting for pictures */
    CocoResults *results;       /* where an evaluation lists all detections, or NULL */
    DetectionPart bench;        /* what --bench trains on */
} Run;

static void add_settings(void *context, Config *config) {
    Run *run = context;
    run->modes = config_add(config, &mode_settings);
    run->predict = config_add(config, &predict_settings);
    run->outputs = config_add(config, &output_settings);
    run->data = config_add(config, &detection_set_settings);
    run->loading = config_add(config, &loader_settings);
    run->sizes = config_add(config, &size_settings);
    run->augment = config_add(config, &detection_augment_settings);
    run->model = detr_add_settings(config);
    run->backbone = config_add(config, &backbone_settings);
    run->schedule = config_add(config, &drop_settings);
    config_add(config, &adamw_settings);
    run->training.s = config_add(config, &training_settings);
    run->looks = config_add(config, &look_settings);
    config_default(config, "epochs", "50");
    config_default(config, "batch_size", "16");
    config_default(config, "weight_decay", "1e-4");
    config_default(config, "clip_grad", "0.1");
    config_example(config, "feature_map", "--share-heads"); /* which only mlp does without */
    config_explain(config, "describe", "Print parts, parameters and multiply-adds of an image of image_size, and stop");
    config_explain(config, "eval", "Print COCO's twelve numbers of --init or --resume on the validation split, and "
                                   "stop");
    config_explain(config, "bench", "Measure training and inference speed on random images of image_size, print one "
                                    "line of JSON, and stop");
    config_explain(config, "predict", "Tell what these pictures show and where: PNG or JPEG files, folders of them, or "
                                      "val:17 for one of the validation split");
    config_explain(config, "parity", "One forward and backward pass on the images and boxes of this safetensors file; "
                                     "parameters in it replace the model's");
    config_explain(config, "out", "Where --parity writes logits, boxes, loss and grad.<parameter>");
    config_explain(config, "weight_decay", "Decoupled weight decay of everything that is trained");
    config_explain(config, "lr_drop", "lr and lr_backbone fall to a tenth after so many epochs, and again after as "
                                      "many more (0: never)");
    config_explain(config, "run_dir", "Where config.ini, log.csv and the checkpoints go (default: the next free "
                                      "runs/<data>-detr-<attn>-<number>)");
    config_explain(config, "init", "Start from these weights of a whole detector (safetensors, the official code's "
                                   "names)");
}

static void use_settings(void *context) { detr_use_settings(&((Run *)context)->training.config); }

/* Checks settings of several groups. */
static void check_settings(void *context) {
    Run *run = context;
    int batch = run->training.s->batch_size;
    if (batch < distributed_ranks())
        config_reject(&run->training.config, "batch_size", "{batch_size} is less than the %d ranks", distributed_ranks());
    if (*run->outputs->draw && !run->predict->predict.count)
        die_usage("--draw: '%s' would be written by --predict of one picture only", run->outputs->draw);
    if (run->backbone->lr_backbone == 0) run->model->freeze_backbone = true;
    if (*run->modes->parity) run->model->dropout = 0;
}

/* == Data ========================================================================================================= */

static void check_classes(Run *run, const DetectionSet *set) {
    if (!run->model->num_classes) run->model->num_classes = set->classes;
    if (run->model->num_classes < set->classes)
        config_reject(&run->training.config, "num_classes", "{num_classes} is too few: {data} has the category %d",
                      set->classes - 1);
}

/* The number of classes if only the model is needed, without data. */
static void find_classes(Run *run) {
    if (!run->model->num_classes) run->model->num_classes = detection_set_classes(run->data);
    if (!run->model->num_classes)
        config_reject(&run->training.config, "num_classes", "how many categories? 91 for COCO");
}

/* The number of height x width images whose largest backbone activation keeps the device busy. */
static int micro_batch_choose(const Run *run, int height, int width) {
    int begin, end, given = run->training.s->micro_batch;
    training_share(&run->training, &begin, &end);
    size_t image = (size_t)(height + 3) / 4 * ((size_t)(width + 3) / 4) * 4 * (size_t)run->model->backbone_width;
    size_t most = given > 0 ? (size_t)given : activations_at_once() / image;
    return most < 1 ? 1 : most < (size_t)(end - begin) ? (int)most : end - begin;
}

static void loader_of(Run *run, DetectionLoader *loader, const DetectionSet *set, bool train) {
    int at_once = run->looks->eval_batch, batch = train ? run->training.s->batch_size : at_once * distributed_ranks();
    if (train) at_once = micro_batch_choose(run, run->augment->scale_max, run->augment->max_size);
    if (!run->workers) run->workers = loader_pool_start(run->loading, device_shares_cores());
    DetectionLoaderConfig config = {.parts = {.seed = run->training.s->seed,
                                              .batch_size = batch,
                                              .train = train,
                                              .rank = distributed_rank(),
                                              .ranks = distributed_ranks(),
                                              .part = at_once,
                                              .max_damaged = run->loading->max_damaged,
                                              .pool = run->workers,
                                              .allocate = host_malloc,
                                              .release = host_free},
                                    .window = run->sizes->size_window,
                                    .augment = detection_augment_of(run->augment, train)};
    detection_open(loader, set, &config);
    if (loader->shorter > run->shorter) run->shorter = loader->shorter;
    if (loader->longer > run->longer) run->longer = loader->longer;
}

static void loading_close(void *context) {
    Run *run = context;
    detection_close(&run->loader);
    detection_close(&run->val_loader);
    loader_pool_close(run->workers);
}

/* Without boxes, training is impossible and AP undefined; but detections can still be written. */
static void check_boxes(const Run *run, bool train, bool evaluates) {
    if (train && !run->train.targets)
        die("%s: %s has no boxes to learn from", run->train.name, run->data->train_annotations);
    if (evaluates && !run->val.boxes && (train || !*run->outputs->results))
        die("%s: %s has no boxes to evaluate by%s", run->val.name, run->data->val_annotations,
            train ? "" : ": --results FILE writes the detections");
}

static void find_names(Run *run, const Coco *coco) {
    run->names = xcalloc((size_t)run->model->num_classes, sizeof *run->names, "names of categories");
    for (int i = 0; i < run->model->num_classes; i++) run->names[i] = "";
    for (int i = 0; i < coco->category_count; i++) run->names[coco->categories[i].id] = coco->categories[i].name;
}

static void data_open(Run *run, bool train) {
    uint64_t seed = run->training.s->seed;
    bool evaluates = !train || training_evaluates(&run->training);
    if (train) {
        detection_set_open(&run->train, run->data, true, seed);
        check_classes(run, &run->train);
        training_fit_batch(&run->training, (size_t)run->train.coco.image_count, run->train.name);
        loader_of(run, &run->loader, &run->train, true);
    }
    if (evaluates) detection_set_open(&run->val, run->data, false, seed);
    check_boxes(run, train, evaluates);
    if (evaluates) check_classes(run, &run->val);
    if (!distributed_agree(run->val.coco.image_count, 0))
        die("%s: %d validation images here, but other ranks have more or fewer", run->val.name,
            run->val.coco.image_count);
    if (evaluates) loader_of(run, &run->val_loader, &run->val, false);
    find_names(run, train ? &run->train.coco : &run->val.coco);
}

/* == The model ==================================================================================================== */

/* The learning rate of the backbone as a multiple of that of the rest. */
static float backbone_rate(const Run *run) {
    return run->schedule->lr > 0 ? run->backbone->lr_backbone / run->schedule->lr : 0;
}

/* The number of heads does not show in the shapes of the weights, but with another number they compute another
 * function. */
static void check_heads(const Run *run, const char *checkpoint) {
    static Run other;
    char *text = run_folder_config(checkpoint);
    Config config;
    Error error;
    config_init(&config, NULL);
    add_settings(&other, &config);
    if (text && config_try_text(&config, text, strlen(text), checkpoint, &error) &&
        other.model->heads != run->model->heads)
        config_reject(&run->training.config, "heads", "{heads}, but %s was trained with %d", checkpoint,
                      other.model->heads);
    config_free(&config);
    free(text);
}

/* Builds the model for that many images of H x W or W x H at a time and sets its initial weights. */
static void model_open(Run *run, int images, int H, int W, bool training) {
    Detr *detr = &run->detr;
    const Training *t = &run->training;
    const char *backbone = run->backbone->backbone_weights;
    detr_create(detr, &t->config, 0);
    detr_plan(detr, images, H, W, training);
    detr_allocate(detr);
    params_allocate(&detr->model.params, training);
    if (*t->s->init) {
        check_heads(run, t->s->init);
        checkpoint_load_weights(&detr->model.params, t->s->init, NULL);
    } else {
        params_initialize(&detr->model.params, t->s->seed);
        bool wanted = *backbone && !t->resumed && !run->modes->bench; /* a state has later ones, and --bench needs none */
        if (wanted && !file_exists(backbone))
            die("%s: no such file: scripts/convert_weights.py makes it of torchvision's ResNet-50, resnet50-0676ba61.pth; "
                "--backbone-weights '' begins without it", backbone);
        if (wanted)
            checkpoint_load_part(&detr->model.params, detr_backbone_prefix, backbone);
        detr_draw(detr, t->s->seed, 0, 0);
    }
    detr_fold(detr);
    /* Two learning rates, and weight decay for everything: training/params stores which apply to each tensor. */
    params_decay_from(&detr->model.params, 0);
    params_set_rate_below(&detr->model.params, detr->backbone_floats, backbone_rate(run));
}

static void buffers_open(Run *run, int images, int most_targets, bool training) {
    const DetrSettings *s = run->model;
    SetLossSize size = {training ? s->decoder_layers : 1, images, s->queries, s->num_classes + 1, most_targets};
    size_t rows = (size_t)size.layers * (size_t)images * (size_t)s->queries;
    run->logits = host_malloc(rows * (size_t)size.columns * sizeof *run->logits, "predictions");
    run->boxes = host_malloc(rows * 4 * sizeof *run->boxes, "predictions");
    if (!training) return;
    run->dlogits = xcalloc(rows * (size_t)size.columns, sizeof *run->dlogits, "gradients of predictions");
    run->dboxes = xcalloc(rows * 4, sizeof *run->dboxes, "gradients of predictions");
    set_loss_open(&run->loss, size, set_loss_weights);
}

/* == One step ===================================================================================================== */

/* The terms of a step's loss, summed over micro-batches and ranks. */
typedef struct {
    double total, focal, l1, giou, wrong, targets;
} StepLoss;

/* Predictions that cannot be matched (not finite) stop the run; the message names the image. */
static void stop_on_unmatched(const Run *run, const DetectionPart *part, int layer, int image) {
    char what[512], name[256] = "an image";
    if (part->image) detection_set_name_image(&run->train, (size_t)part->image[image], name, sizeof name);
    snprintf(what, sizeof what, "the cost of matching %s in decoder layer %d", name, layer + 1);
    training_stop_on_bad(&run->training, what, NAN);
}

/* Forward and backward pass of the part of the batch in the model.  Gradients are accumulated; after the last part they
 * are summed over the ranks. */
static void micro_step(Run *run, const DetectionPart *part, double box_count, bool last, StepLoss *sum) {
    Detr *detr = &run->detr;
    SetTargets targets = {&part->boxes[0][0], part->labels, part->first};
    SetLoss loss;
    int layer, image, count = part->first[part->n];
    detr_draw(detr, run->training.s->seed, (uint32_t)run->training.state.step, (size_t)part->position);
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

/* Sums the losses over all ranks and converts them to the logged values. */
static void sum_losses(Run *run, StepLoss *loss) {
    double sums[] = {loss->total, loss->focal, loss->l1, loss->giou, loss->wrong, loss->targets};
    double *measured = run->training.state.measured;
    training_sum(&run->training, sums, sizeof sums / sizeof *sums);
    *loss = (StepLoss){sums[0], sums[1], sums[2], sums[3], sums[4], sums[5]};
    measured[FOCAL] = loss->focal;
    measured[L1] = loss->l1;
    measured[GIOU] = loss->giou;
    measured[CLASS_ERROR] = loss->targets > 0 ? 100 * loss->wrong / loss->targets : 0;
}

/* One optimizer step with the gradients of a whole batch. */
static double update(Run *run, StepLoss *loss) {
    all_reduce_finish();
    sum_losses(run, loss);
    training_update(&run->training, loss->total);
    if (!run->detr.settings.freeze_backbone) detr_fold(&run->detr);
    return loss->total;
}

/* Trains on the loader's next batch, part by part, with one optimizer step.  Every rank needs the number of boxes in
 * the whole batch before it begins.  Returns the loss. */
static double train_step(void *context) {
    Run *run = context;
    Detr *detr = &run->detr;
    int ranks = distributed_ranks(), boxes = detection_boxes_of(&run->loader, (size_t)run->training.state.batch);
    double box_count = boxes > ranks ? boxes : ranks;
    int begin, end;
    DetectionPart part;
    StepLoss loss = {0};
    training_share(&run->training, &begin, &end);
    device_zero(detr->model.params.grads, detr->model.params.total * sizeof(float));
    for (int next = begin; next < end; next = part.position + part.n) {
        device_uploads_wait(); /* the loader fills the last part's memory again */
        detection_next(&run->loader, &part);
        detr_load(detr, part.pixels, &part.size[0][0], run->train.mean, run->train.std, part.n, part.height,
                  part.width);
        micro_step(run, &part, box_count, part.position + part.n == end, &loss);
    }
    return update(run, &loss);
}

/* == Evaluation =================================================================================================== */

/* The values of one detection, as exchanged between ranks. */
enum { FOUND_CATEGORY, FOUND_BOX, FOUND_SCORE = FOUND_BOX + 4, FOUND_NUMBERS };

/* The terms of the validation loss. */
typedef struct {
    double loss, boxes;
} ValidationSum;

static void validation_open(Run *run) {
    const DetrSettings *s = run->model;
    int most = run->val.most_boxes;
    SetLossSize size = {1, 1, s->queries, s->num_classes + 1, most};
    set_loss_open(&run->validation, size, set_loss_weights);
    run->unused = xcalloc((size_t)s->queries, ((size_t)s->num_classes + 5) * sizeof *run->unused, "a validation loss");
    run->target_boxes = xcalloc((size_t)most, sizeof *run->target_boxes, "an image's boxes");
    run->target_labels = xcalloc((size_t)most, sizeof *run->target_labels, "an image's labels");
}

/* The loss of the last layer's predictions for that image, weighted as in training; NaN if they are NaN. */
static void add_loss(ValidationSum *sum, Run *run, int image, const float *logits, const float *boxes) {
    const CocoImage *shown = &run->val.coco.images[image];
    int count = coco_targets(&run->val.coco, image, run->target_boxes, run->target_labels), layer, at;
    float W = (float)shown->width, H = (float)shown->height;
    SetTargets targets = {&run->target_boxes[0][0], run->target_labels, (const int[]){0, count}};
    SetLoss loss;
    for (int i = 0; i < count; i++) {
        float *b = run->target_boxes[i], x0 = b[0], y0 = b[1], x1 = b[2], y1 = b[3];
        b[0] = (x0 + x1) / 2 / W;
        b[1] = (y0 + y1) / 2 / H;
        b[2] = (x1 - x0) / W;
        b[3] = (y1 - y0) / H;
    }
    float *dboxes = run->unused + (size_t)run->model->queries * ((size_t)run->model->num_classes + 1);
    bool ok = set_loss(&loss, run->unused, dboxes, &run->validation, logits, boxes, &targets, 1, 1, &layer, &at);
    sum->loss += ok ? loss.total : NAN;
    sum->boxes += count;
}

/* The part that the model holds -> its images' detections, in found [image_count,Q,FOUND_NUMBERS], and their loss. */
static void detect(Run *run, const DetectionPart *part, double *found, ValidationSum *sum) {
    int Q = run->model->queries, C = run->model->num_classes + 1;
    CocoDetection *detections = xcalloc((size_t)Q, sizeof *detections, "detections");
    detr_predictions(&run->detr, run->logits, run->boxes);
    for (int b = 0; b < part->n; b++) {
        if (part->image[b] < 0) continue; /* unreadable image: no detections */
        const CocoImage *image = &run->val.coco.images[part->image[b]];
        size_t row = (size_t)b * (size_t)Q;
        add_loss(sum, run, part->image[b], run->logits + row * (size_t)C, run->boxes + row * 4);
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

/* Combines an array of which every rank has filled its own part and left zeros elsewhere: sums it over ranks. */
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

/* Runs the model on every image of the validation split, each rank on its share; a signal ends it early. */
static void detect_all(Run *run, double *found) {
    size_t count = (size_t)run->val.coco.image_count, done = 0;
    double seconds = 0;
    ValidationSum sum = {0};
    DetectionPart part;
    parts_start(&run->val_loader.parts, 0, 0);
    while (!stop_signal && detection_next(&run->val_loader, &part)) {
        double began = now_seconds();
        detr_load(&run->detr, part.pixels, &part.size[0][0], run->val.mean, run->val.std, part.n, part.height,
                  part.width);
        detr_forward(&run->detr);
        detect(run, &part, found, &sum);
        seconds += now_seconds() - began;
        done += (size_t)part.n;
        progress_show(false, "evaluating %zu/%zu", done * (size_t)distributed_ranks(), count);
    }
    double sums[] = {sum.loss, sum.boxes};
    training_sum(&run->training, sums, 2);
    run->training.validation_loss = sums[0] / fmax(sums[1], 1);
    run->infer_s = seconds / fmax((double)done, 1);
}

/* Makes the layers use the parameters or their EMA. */
static void view(Run *run, float *arena) {
    params_view(&run->detr.model.params, arena);
    detr_fold(&run->detr);
}

/* Computes COCO's metrics into run->found, on all ranks. */
static double evaluate(void *context) {
    Run *run = context;
    Model *model = &run->detr.model;
    CocoResults own = {0}, *results = run->results ? run->results : &own;
    Error error;
    size_t n = (size_t)run->val.coco.image_count * (size_t)run->model->queries * FOUND_NUMBERS;
    double *found = xcalloc(n, sizeof *found, "detections");
    if (model->params.ema) view(run, model->params.ema);
    model_set_training(model, false);
    detect_all(run, found);
    if (model_trains(model)) model_set_training(model, true);
    if (model->params.ema) view(run, model->params.values);
    if (!run->training.stopping) {
        gather_found(found, n);
        list_found(results, run, found);
        if (!coco_eval(run->found, NULL, &run->val.coco, results->detections, results->count, NULL, &error))
            die("%s: %s", run->val.name, error.text);
    }
    free(found);
    coco_results_free(&own);
    return 100 * run->found[COCO_AP];
}

/* == Training ===================================================================================================== */

static void training_data_and_model(void *context) {
    Run *run = context;
    char stem[128];
    data_open(run, true);
    int room = run->loader.parts.room > run->looks->eval_batch ? run->loader.parts.room : run->looks->eval_batch;
    model_open(run, room, run->shorter, run->longer, true);
    buffers_open(run, room, run->train.most_boxes, true);
    validation_open(run);
    snprintf(stem, sizeof stem, "%s-detr-%s", run->train.name, run->model->attn->name);
    training_open(&run->training, &(TrainingStart){.params = &run->detr.model.params,
                                                   .batches = run->loader.parts.batches,
                                                   .stem = stem,
                                                   .class_names = run->names,
                                                   .classes = run->model->num_classes});
    detr_fold(&run->detr); /* a state may have been loaded */
}

static void announce(void *context) {
    Run *run = context;
    const Coco *train = &run->train.coco;
    if (distributed_ranks() > 1) printf("%d ranks\n", distributed_ranks());
    print_line("%s: %d training and %d validation images, %zu training boxes of %d categories, %zu images without "
               "any\n",
           run->train.name, train->image_count, run->val.coco.image_count, train->annotation_count - train->crowds,
           train->category_count, train->empty_images);
    printf("%s: %zu trainable parameters, %.1f million multiply-adds for an image of %d x %d, "
           "%.0f MiB of activations\n",
           run->model->attn->name, run->detr.model.params.parameters,
           (double)detr_macs(&run->detr, run->shorter, run->longer) / 1e6, run->shorter, run->longer,
           (double)model_activation_bytes(&run->detr.model) / (1 << 20));
    print_line("%s: %d epochs of %llu batches of %d images, at most %d at a time, %.0f %% of padding if each were "
               "one\n",
           run->training.s->run_dir, run->training.s->epochs, (unsigned long long)run->training.batches,
           run->training.s->batch_size, run->loader.parts.room, 100 * detection_padding(&run->loader));
}

static void load_batches(void *context, uint64_t epoch, uint64_t batch) {
    parts_start(&((Run *)context)->loader.parts, (uint32_t)epoch, batch);
}

static double stalled(const void *context) { return parts_stats(&((const Run *)context)->loader.parts).stalled; }

static float learning_rate(const void *context, double epochs) {
    return drop_lr(((const Run *)context)->schedule, epochs);
}

static void words(const void *context, TrainingWords which, char *text, size_t size) {
    const Run *run = context;
    const double *m = run->training.state.measured, best = run->training.state.best;
    double ap = run->found[COCO_AP], ap50 = run->found[COCO_AP50];
    int used = 0;
    switch (which) {
    case WORDS_LAST: snprintf(text, size, ",,,"); break;
    case WORDS_LAST_EVALUATED:
        snprintf(text, size, "%.5f,%.5f,%.5f,%.6f", run->found[COCO_AP_SMALL], run->found[COCO_AP_MEDIUM],
                 run->found[COCO_AP_LARGE], run->infer_s);
        break;
    case WORDS_STEP: snprintf(text, size, "  class error %.0f %%", m[CLASS_ERROR]); break;
    case WORDS_EVALUATED: used = snprintf(text, size, "%.5f,%.5f", ap, ap50); /* fall through */
    case WORDS_COLUMNS:
        snprintf(text + used, size - (size_t)used, "%s,%.6f,%.6f,%.6f,%.2f", used ? "" : ",", m[FOCAL], m[L1], m[GIOU],
                 m[CLASS_ERROR]);
        break;
    case WORDS_EVALUATION: snprintf(text, size, "AP %.2f  AP50 %.2f", 100 * ap, 100 * ap50); break;
    case WORDS_RESULT: snprintf(text, size, "AP %.2f, AP50 %.2f, best AP %.2f", 100 * ap, 100 * ap50, best); break;
    case WORDS_BEST: snprintf(text, size, "best AP %.2f", best); break;
    }
}

/* == The other modes ============================================================================================== */

static void mode_describe(void *context) {
    Run *run = context;
    int H = run->looks->image_size[0], W = run->looks->image_size[1];
    find_classes(run);
    detr_create(&run->detr, &run->training.config, 0);
    detr_plan(&run->detr, 1, H, W, true);
    detr_describe(&run->detr, stdout, H, W);
}

/* Detections are compared with the data by category id, so an id must mean the same category in both. */
static void check_categories(const Run *run) {
    ClassNames names;
    const char *path = run->training.s->init;
    run_folder_classes(&names, path);
    for (int id = 0; id < names.count && id < run->model->num_classes; id++)
        if (*names.at[id] && *run->names[id] && strcmp(names.at[id], run->names[id]))
            die("%s: category %d is '%s', but '%s' in what %s was trained on", run->val.name, id, run->names[id],
                names.at[id], path);
    class_names_free(&names);
}

static void mode_eval(void *context) {
    Run *run = context;
    CocoResults results = {0};
    const char *path = run->outputs->results;
    int at_once = run->looks->eval_batch;
    Error error;
    run->results = &results;
    data_open(run, false);
    check_categories(run);
    model_open(run, at_once, run->shorter, run->longer, false);
    buffers_open(run, at_once, 1, false);
    validation_open(run);
    evaluate(run);
    if (!run->training.stopping)
        outcome_require_loss(run->training.validation_loss, run->training.s->init, run->val.name);
    if (distributed_rank() > 0) return;
    progress_show(true, "%d validation images of %s, %d at a time", run->val.coco.image_count, run->val.name, at_once);
    if (run->val.boxes) coco_eval_print(run->found, stdout);
    printf("loss: %.6f\n", run->training.validation_loss);
    if (*path && !coco_results_write(path, &results, &error)) die("%s: %s", path, error.text);
    if (*path) print_line("%s: %zu detections\n", path, results.count);
    coco_results_free(&results);
}

/* -- Speed -- */

/* A batch of images of one size, with seven boxes per image, COCO's average. */
enum { BENCH_BOXES = 7 };

static void bench_fill(Run *run, int images) {
    const int *size = run->looks->image_size;
    uint64_t seed = run->training.s->seed;
    DetectionPart *p = &run->bench;
    size_t n = (size_t)images, pixels = n * 3 * (size_t)size[0] * (size_t)size[1];
    *p = (DetectionPart){.n = images, .height = size[0], .width = size[1]};
    p->pixels = host_malloc(pixels, "a batch");
    p->size = xcalloc(n, sizeof *p->size, "a batch");
    p->boxes = xcalloc(n * BENCH_BOXES, sizeof *p->boxes, "a batch");
    p->labels = xcalloc(n * BENCH_BOXES, sizeof *p->labels, "a batch");
    p->first = xcalloc(n + 1, sizeof *p->first, "a batch");
    for (size_t i = 0; i < pixels; i++) p->pixels[i] = (uint8_t)rng_bits(seed, RNG_TEST, 0, 0, i);
    for (int b = 0; b < images; b++) {
        memcpy(p->size[b], size, sizeof p->size[b]);
        p->first[b + 1] = (b + 1) * BENCH_BOXES;
    }
    for (int i = 0; i < images * BENCH_BOXES; i++) {
        p->labels[i] = i % run->model->num_classes;
        for (int k = 0; k < 4; k++)
            p->boxes[i][k] = 0.2f + 0.4f * rng_uniform(seed, RNG_TEST, 1, 0, (uint64_t)(4 * i + k));
    }
}

static void bench_batch(void *context, bool training) {
    Run *run = context;
    Detr *detr = &run->detr;
    DetectionPart part = run->bench;
    StepLoss loss = {0};
    int begin, end;
    training_share(&run->training, &begin, &end);
    model_set_training(&detr->model, training);
    if (training) device_zero(detr->model.params.grads, detr->model.params.total * sizeof(float));
    for (int next = begin; next < end; next += part.n) {
        part.n = end - next < run->bench.n ? end - next : run->bench.n;
        part.position = next;
        detr_load(detr, part.pixels, &part.size[0][0], imagenet_mean, imagenet_std, part.n, part.height, part.width);
        if (training) {
            micro_step(run, &part, run->training.s->batch_size * BENCH_BOXES, next + part.n == end, &loss);
        } else {
            detr_forward(detr);
            detr_predictions(detr, run->logits, run->boxes);
        }
    }
    if (training) {
        update(run, &loss);
        run->training.state.step++;
    }
}

static void mode_bench(void *context) {
    Run *run = context;
    Training *t = &run->training;
    Params *params = t->params = &run->detr.model.params;
    int H = run->looks->image_size[0], W = run->looks->image_size[1], images = micro_batch_choose(run, H, W);
    find_classes(run);
    model_open(run, images, H, W, true);
    buffers_open(run, images, BENCH_BOXES, true);
    params_allocate_optimizer(params, false);
    t->state.lr = run->schedule->lr;
    bench_fill(run, images);
    Bench b = bench(bench_batch, run, "images", &t->s->batch_size, images * distributed_ranks(),
                    (double)t->s->bench_seconds);
    double macs = (double)detr_macs(&run->detr, H, W), training_macs = (double)detr_training_macs(&run->detr, H, W);
    double per_mac = 2 / 1e9 / distributed_ranks() / b.peak;
    if (distributed_rank() > 0) return;
    printf("{\"attn\": \"%s\", \"device\": \"%s\", \"height\": %d, \"width\": %d, \"ranks\": %d, \"batch_size\": %d, "
           "\"micro_batch\": %d, \"trainable_params\": %zu, \"macs\": %.0f, \"train_images_per_s\": %.4f, "
           "\"infer_images_per_s\": %.4f, \"train_fastest_s\": %.4f, \"infer_fastest_s\": %.4f, "
           "\"peak_bytes\": %zu, \"gemm_peak_gflops\": %.1f, \"mfu\": %.4f, \"infer_mfu\": %.4f}\n",
           run->model->attn->name, kernels_device(), H, W, distributed_ranks(), t->s->batch_size, images,
           params->parameters, macs, b.train.images_per_s, b.infer.images_per_s, b.train.fastest, b.infer.fastest,
           device_peak_bytes(), b.peak, per_mac * training_macs * b.train.images_per_s,
           per_mac * macs * b.infer.images_per_s);
}

/* -- Pictures -- */

/* Category names: those in the checkpoint, else those of the data, else none. */
static void names_open(Run *run) {
    static ClassNames names; /* run->names points into it */
    run_folder_classes(&names, run->training.s->init);
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

static void tell_detections(const Run *run, Predictions *json, const char *name, const CocoDetection *detections,
                            int count) {
    int shown = 0;
    while (shown < count && detections[shown].score >= (double)run->looks->draw_score) shown++;
    print_line("%s: %d objects with a score of at least %g\n", name, shown, (double)run->looks->draw_score);
    for (int i = 0; i < shown; i++) {
        const CocoDetection *d = &detections[i];
        const char *category = d->category_id < run->model->num_classes ? run->names[d->category_id] : "";
        predictions_add_box(json, (int)d->category_id, category, d->score, d->box);
        printf("  %5.1f %%  ", 100 * d->score);
        if (*category)
            print_line("%s", category);
        else
            printf("category %lld", (long long)d->category_id);
        printf("  x %.1f  y %.1f  width %.1f  height %.1f\n", d->box[0], d->box[1], d->box[2], d->box[3]);
    }
}

/* Small pictures, on which labels would hide the objects, are drawn enlarged by an integer factor. */
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
    draw_detections(&image, detections, count, (double)run->looks->draw_score, &coco);
    if (!image_write_png(run->outputs->draw, image.pixels, image.height, image.width, &error))
        die("%s: %s", run->outputs->draw, error.text);
    coco_close(&coco);
    free(image.pixels);
}

/* Reads a picture, a file or val:INDEX.  False: `error` gives the reason. */
static bool read_picture(Run *run, const char *name, TransformScratch *scratch, ImagePart *picture, Error *error) {
    char *end;
    if (strncmp(name, "val:", 4)) return detection_picture_read(name, false, scratch, picture, error);
    unsigned long long index = strtoull(name + 4, &end, 10);
    if (!run->val.coco.image_count) detection_set_open(&run->val, run->data, false, run->training.s->seed);
    if (end == name + 4 || *end || index >= (unsigned long long)run->val.coco.image_count)
        die_usage("--predict %s: expected val:INDEX with an index below %d", name, run->val.coco.image_count);
    return detection_set_read(&run->val, (int)index, false, scratch, picture, error);
}

/* The data of --predict. */
typedef struct {
    TransformScratch scratch;
    uint8_t *pixels;
    CocoDetection *detections; /* [Q] */
    Predictions json;
} Prediction;

static bool predict(Run *run, Prediction *p, const char *name, Error *error) {
    int Q = run->model->queries;
    CocoDetection *detections = p->detections;
    uint8_t *pixels = p->pixels;
    ImagePart picture;
    if (!read_picture(run, name, &p->scratch, &picture, error)) return false;
    DetectionDraw draw = detection_resize(picture.width, picture.height, run->augment->eval_scale,
                                          run->augment->max_size);
    if (draw.width > run->longer || draw.height > run->longer)
        return refuse(error, "%d x %d pixels are too slim a picture", picture.width, picture.height);
    if (!detection_pixels(&p->scratch, pixels, (size_t)draw.width * 3, &picture, &draw)) die("%s: out of memory", name);
    detr_load(&run->detr, pixels, (int[]){draw.height, draw.width}, imagenet_mean, imagenet_std, 1, draw.height,
              draw.width);
    detr_forward(&run->detr);
    detr_predictions(&run->detr, run->logits, run->boxes);
    outcome_require(run->logits, (size_t)Q * ((size_t)run->model->num_classes + 1), run->training.s->init, name);
    outcome_require(run->boxes, (size_t)Q * 4, run->training.s->init, name);
    int count = postprocess(detections, Q, run->logits, run->boxes, Q, run->model->num_classes + 1, 1, picture.width,
                            picture.height);
    predictions_begin(&p->json, name, picture.width, picture.height);
    tell_detections(run, &p->json, name, detections, count);
    if (*run->outputs->draw) draw_picture(run, &picture, name, detections, count);
    return true;
}

static void mode_predict(void *context) {
    Run *run = context;
    Prediction p = {.json.wanted = *run->predict->json != 0};
    Pictures pictures;
    Error error;
    size_t done = 0;
    pictures_find(&pictures, &run->predict->predict, false);
    if (*run->outputs->draw && pictures.count != 1)
        die_usage("--draw: '%s' would be written by --predict of one picture only", run->outputs->draw);
    find_classes(run);
    names_open(run);
    run->shorter = run->augment->eval_scale;
    /* by how much rounding the short side can lengthen the long one, up to 32 : 1 */
    run->longer = run->augment->max_size + 16;
    model_open(run, 1, run->shorter, run->longer, false);
    linear_keep_weights(pictures.count > 1);
    buffers_open(run, 1, 1, false);
    p.pixels = host_malloc((size_t)run->shorter * (size_t)run->longer * 3, "a picture");
    p.detections = xcalloc((size_t)run->model->queries, sizeof *p.detections, "detections");
    for (size_t i = 0; i < pictures.count; i++) {
        const char *name = pictures.at[i].name;
        if (predict(run, &p, name, &error)) {
            done++;
            continue;
        }
        picture_refuse(&pictures.at[i], &error);
        predictions_fail(&p.json, name, error.text);
    }
    if (!done) die("none of the %zu pictures can be read", pictures.count);
    predictions_write(&p.json, run->predict->json);
    pictures_free(&pictures);
    free(p.detections);
    host_free(p.pixels);
    transform_scratch_free(&p.scratch);
}

/* --parity: predictions, loss and gradients for the images and boxes that another framework was given. */
static void mode_parity(void *context) {
    Run *run = context;
    const DetrSettings *s = run->model;
    Detr *detr = &run->detr;
    ParityBatch p;
    StepLoss loss = {0};
    SafeTensors st;
    Error error;
    if (!safetensors_open(&st, run->modes->parity, &error)) die("%s", error.text);
    find_classes(run);
    parity_batch_read(&p, &st, run->model->num_classes);
    model_open(run, p.B, p.H, p.W, true);
    buffers_open(run, p.B, p.T ? p.T : 1, true);
    parity_parameters(&detr->model.params, &st);
    detr_fold(detr);
    size_t pixels = (size_t)p.B * 3 * (size_t)p.H * (size_t)p.W;
    uint8_t *black = host_malloc(pixels, "parity");
    detr_load(detr, black, p.sizes, (const float[3]){0}, (const float[3]){1, 1, 1}, p.B, p.H, p.W);
    real_upload(detr->images, p.images, pixels);
    micro_step(run, &p.part, p.T > 1 ? p.T : 1, false, &loss);
    float total = (float)loss.total;
    size_t L = (size_t)s->decoder_layers, B = (size_t)p.B, Q = (size_t)s->queries, C = (size_t)s->num_classes + 1;
    const SafeTensorEntry outputs[] = {{"logits", SAFE_F32, 4, {L, B, Q, C}, run->logits},
                                       {"boxes", SAFE_F32, 4, {L, B, Q, 4}, run->boxes},
                                       {"loss", SAFE_F32, 1, {1}, &total}};
    parity_write(run->modes->out, outputs, 3, &detr->model.params);
    host_free(black);
    safetensors_close(&st);
}

/* == Main ========================================================================================================= */

static const ProgramMode modes[] = {
    {"describe", "print the parts, parameters and multiply-adds of the model", mode_describe, .alone = true},
    {"eval", "print COCO's twelve numbers of --init or --resume on the validation images", mode_eval,
     .needs_weights = true, .outputs = {"results"}},
    {"bench", "measure the speed of training and inference", mode_bench, .outputs = {NULL}},
    {"predict", "tell what these images show and where", mode_predict, .alone = true, .needs_weights = true,
     .outputs = {"json", "draw"}},
    {"parity", "run one step on inputs from a file, and write its gradients to --out", mode_parity,
     .alone = true, .outputs = {"out"}, .needs_output = true},
    {.name = NULL},
};

static const HelpLine basics[] = {
    {"data", "shapes, which are built in, or COCO's folder"},
    {"num_classes", "number of categories: 91 for COCO"},
    {"attn", "the attention operator of the encoder; --help lists all of them"},
    {"scale_max", "the largest short side to which training images are resized"},
    {"epochs", "passes over the training images"},
    {"batch_size", "images in a step of the optimizer"},
    {"lr", "initial learning rate; --lr-backbone is that of the backbone"},
    {"precision", "of activations: float32 or bfloat16"},
    {"init", "begin with these weights of a whole detector"},
    {"resume", "continue the run in this folder"},
    {"run_dir", "where log and checkpoints go; otherwise a new folder in runs/"},
    {"seed", "of all random numbers"},
    {.name = NULL},
};

static const Program program = {
    .name = "train_detr",
    .introduction = "train_detr trains detectors, SMCA-DETR on a ResNet, and measures COCO's twelve numbers.",
    .examples =
        "  train_detr --config configs/coco/shapes-demo.ini         train on the built-in scenes, minutes\n"
        "  train_detr --config configs/coco/smca.ini --data coco    train on COCO's folder\n"
        "  train_detr --resume runs/shapes-detr-softmax-001         go on where a run stopped\n"
        "  train_detr --init best.safetensors --predict street.jpg --draw boxes.png\n"
        "  train_detr --resume runs/coco-detr-softmax-001 --eval --results detections.json\n"
        "  train_detr --config configs/coco/smca-ripple.ini --describe\n",
    .basics = basics, .example = "train_detr --config configs/coco/shapes-demo.ini", .word = "ripple",
    .reference = "docs/settings-detr.md",
    .settings = add_settings, .chooser = "attn", .use = use_settings, .check = check_settings,
    .modes = modes,
    .training = {.columns = "ap,ap50,focal,l1,giou,class_error",
                 .last_columns = "ap_small,ap_medium,ap_large,infer_s",
                 .advice = "a lower lr",
                 .decimals = 1,
                 .open = training_data_and_model, .announce = announce, .load = load_batches, .stalled = stalled,
                 .rate = learning_rate, .step = train_step, .evaluate = evaluate, .words = words},
    .close = loading_close,
};

int main(int argc, char **argv) {
    static Run run;
    return program_main(&program, &run, &run.training, argc, argv);
}
