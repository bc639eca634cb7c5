/* train_vit: vision transformers for image classification, from a config file to an accuracy.
 *
 * Read it top to bottom: settings, the data of a run, one training step, evaluation, the callbacks of a training run,
 * the other modes, main.  The loop that calls these is training_run in training/training.c.  The layers are in layers/, the
 * arithmetic in kernels/, data sets and augmentation in data/. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "training/bench.h"
#include "core/confusion.h"
#include "core/die.h"
#include "core/distributed.h"
#include "core/outcome.h"
#include "training/parity.h"
#include "core/predictions.h"
#include "training/program.h"
#include "core/progress.h"
#include "core/rng.h"
#include "training/schedule.h"
#include "core/signals.h"
#include "core/text.h"
#include "core/views.h"
#include "data/video/clips.h"
#include "data/sets/datasets.h"
#include "data/images/erasing.h"
#include "data/images/image.h"
#include "data/loading/loader.h"
#include "data/images/mixup.h"
#include "data/loading/pictures.h"
#include "data/sets/real_labels.h"
#include "data/loading/sampler.h"
#include "data/images/sheet.h"
#include "data/sets/videos.h"
#include "layers/attention/feature_map.h"
#include "layers/attention/relative.h"
#include "layers/vit/attention_picture.h"
#include "layers/vit/fit_weights.h"
#include "layers/vit/layer_decay.h"
#include "layers/vit/vit.h"

/* == Settings ===================================================================================================== */

/* Settings of modes that only this program has. */
typedef struct {
    const char *show_batch, *confusion, *per_class, *real_labels, *attention;
    int top_frames;
} LookSettings;

#define F(KIND, field) CONFIG_FIELD(KIND, LookSettings, field)
static const ConfigEntry look_entries[] = {
    {F(STRING, show_batch), .section = "in place of training", .command_line_only = true, .argument = "FILE",
     .help = "Write the first training images as the model sees them, with their labels, to this PNG file, and stop"},
    {F(STRING, confusion), .command_line_only = true, .argument = "FILE",
     .help = "With --eval: write how many images of each class were taken for which (CSV; scripts/plots/plot_confusion.py "
             "draws it)"},
    {F(STRING, per_class), .command_line_only = true, .argument = "FILE",
     .help = "With --eval: write images, top-1, top-5 and precision of each class (CSV)"},
    {F(STRING, real_labels), .command_line_only = true, .argument = "FILE",
     .help = "With --eval on ImageNet's validation images: the labels of ImageNet ReaL (real.json), by which a second "
             "top-1 is counted"},
    {F(STRING, attention), .command_line_only = true, .argument = "FILE",
     .help = "With --predict: write the attention weights of every layer and head to this safetensors file, which "
             "scripts/plots/plot_attention.py draws"},
    {F(INT, top_frames), "3", .command_line_only = true, .max = 1000,
     .help = "With --predict of videos: how many frames to name that speak most for the first class. A frame's score "
             "is the probability of that class for a clip that shows this frame alone, which says nothing of classes "
             "that only motion tells (0: none; each frame of the clip takes a forward pass)"},
};
#undef F
static const ConfigGroup look_settings = {CONFIG_GROUP(LookSettings, look_entries)};

/* == A run ======================================================================================================== */

typedef struct {
    double top1, top5; /* percent */
} Accuracy;

typedef struct {
    Training training; /* training.s: the settings that all programs share */
    const ModeSettings *modes;
    const PredictSettings *predict;
    const LookSettings *looks;
    const DataSettings *data;
    const LoaderSettings *loading;
    const ClipSettings *clips;
    const TransformSettings *transform;
    const AugmentSettings *augment;
    const ErasingSettings *erasing;
    const MixupSettings *mixup;
    const SamplerSettings *sampler;
    VitSettings *model;
    CosineSettings *schedule;
    const LayerDecaySettings *layer_decay;
    const TargetSettings *target;

    Vit vit;
    Dataset train, test; /* train is open only in a training run */
    LoaderPool *workers;
    Loader loader, test_loader;
    SafeTensors parity;
    uint8_t *pixels; /* host [micro_batch,T0,Hi,Wi,3] */
    int *labels;     /* host [micro_batch] */
    float *targets;  /* host [micro_batch,C] */
    float *losses;   /* host [micro_batch]: of --parity */
    float *logits;   /* host [micro_batch,C] */
    int *class_of;   /* maps the data's classes to the model's; NULL: the same */
    int *boxes;      /* host [micro_batch + 2,4]: the boxes of random erasing */
    DeviceGraph *graph;  /* of a micro-batch */
    Accuracy accuracy;   /* of the last evaluation */
    Confusion confusion; /* filled by evaluations; unused without classes */
    RealLabels real;     /* empty without real_labels */
    double real_right, real_counted; /* of the last evaluation: images of which a label is named, images with labels */
    Views views;         /* filled by evaluations of videos */
    size_t failed;       /* videos that the last one could not read, which count as wrong */
    int last_micro_batch; /* size of the one whose activations are still in memory */
} Run;

static void add_settings(void *context, Config *config) {
    Run *run = context;
    run->modes = config_add(config, &mode_settings);
    run->predict = config_add(config, &predict_settings);
    run->looks = config_add(config, &look_settings);
    run->data = config_add(config, &data_settings);
    run->loading = config_add(config, &loader_settings);
    run->clips = config_add(config, &clip_settings);
    run->transform = config_add(config, &transform_settings);
    run->augment = config_add(config, &augment_settings);
    run->erasing = config_add(config, &erasing_settings);
    run->mixup = config_add(config, &mixup_settings);
    run->sampler = config_add(config, &sampler_settings);
    run->model = vit_add_settings(config);
    run->schedule = config_add(config, &cosine_settings);
    config_add(config, &adamw_settings);
    run->layer_decay = config_add(config, &layer_decay_settings);
    run->target = config_add(config, &target_settings);
    run->training.s = config_add(config, &training_settings);
    config_explain(config, "eval", "Measure the accuracy of --init or --resume on the test split, and stop");
    config_explain(config, "predict", "Name what these images show: PNG or JPEG files, folders of them, or test:17 for "
                                      "an image of the test split; a model of clips takes videos, folders of frames, "
                                      "and folders of both");
    config_explain(config, "parity", "One forward and backward pass on the images or clips and the labels of this "
                                     "safetensors file; parameters in it replace the model's");
    config_explain(config, "out", "Where --parity writes logits, loss and grad.<parameter>");
    config_explain(config, "run_dir", "Where config.ini, log.csv and the checkpoints go (default: the next free "
                                      "runs/<data>-<attn>-<number>)");
    config_explain(config, "init", "Start from these weights (safetensors, timm's names); tables on the token grid are "
                                   "resampled to this img_size, and a head of other classes is drawn afresh");
}

/* The images' size is the model's unless the user gave another. */
static void parity_open(Run *run) {
    const char *path = run->modes->parity;
    int *size = run->model->img_size, *frames = &run->model->frames, found[2], count;
    parity_images(&run->parity, path, found, &count);
    if (config_origin(&run->training.config, "frames") && *frames != count)
        config_die(&run->training.config, "%s: has %d frame%s for each label, which is not {frames}", path, count,
                   count > 1 ? "s" : "");
    *frames = count;
    if (config_origin(&run->training.config, "img_size") && memcmp(size, found, sizeof found))
        config_die(&run->training.config, "%s: images are %dx%d, which is not {img_size}", path, found[0], found[1]);
    memcpy(size, found, sizeof found);
}

/* Normalisation of pixels: as set by the user; else, in a mode, as the model was trained; else as for the data set. */
static void normalise(const Run *run, Dataset *dataset) {
    const DataSettings *s = run->data;
    const Training *t = &run->training;
    if (t->mode && *t->s->init) run_folder_normalisation(dataset->mean, dataset->std, t->s->init);
    for (int c = 0; c < s->mean.count; c++) dataset->mean[c] = s->mean.at[c];
    for (int c = 0; c < s->std.count; c++) dataset->std[c] = s->std.at[c];
}

/* Size, classes and statistics of the data.  --describe and --bench look at no data: where the number of classes is a
 * setting, they do without its files.  The data of a checkpoint may be gone, or lie elsewhere: the checkpoint has what
 * --predict needs of it, and a mode that needs more will miss it when it opens the data. */
static void describe_data(Run *run) {
    const Config *config = &run->training.config;
    const char *data = run->data->data, *init = run->training.s->init, *origin = config_origin(config, "data");
    bool typed = origin && !strncmp(origin, "--", 2);
    bool lost = run->training.mode && *init && !typed && !dataset_is_there(data);
    bool alone = (run->modes->describe || run->modes->bench) && run->model->num_classes;
    Dataset *d = &run->train;
    Error error;
    if (!lost && !dataset_known(data, &error)) config_reject(config, "data", "%s", error.text);
    if (!lost && !alone) {
        dataset_describe(d, data, run->data->data_dir);
        return;
    }
    memcpy(d->mean, imagenet_mean, sizeof imagenet_mean);
    memcpy(d->std, imagenet_std, sizeof imagenet_std);
    if (!lost) return;
    ClassNames names;
    int size[2] = {0, 0};
    run_folder_image_size(size, init); /* checkpoints without it are of folders, whose images differ */
    run_folder_classes(&names, init);
    snprintf(d->name, sizeof d->name, "%.31s", data);
    d->height = size[0];
    d->width = size[1];
    d->classes = names.count;
    class_names_free(&names);
}

static void use_settings(void *context) { vit_use_settings(&((Run *)context)->training.config); }

/* Checks settings of several groups, and sets what is known about the data without its files: size, classes,
 * statistics. */
static void check_settings(void *context) {
    Run *run = context;
    const Config *config = &run->training.config;
    if (*run->modes->parity) parity_open(run);
    vit_check_settings(config);
    run->training.unit = run->model->frames > 1 ? "clips" : "images";
    training_check_ranks(&run->training);
    if (*run->looks->attention && run->model->dim.count > 1)
        config_reject(config, "attention", "pictures show one token grid, but {dim} makes %d stages",
                      run->model->dim.count);
    transform_check(config, run->transform, run->model->img_size[0], run->model->img_size[1]);
    layer_decay_check(config, run->layer_decay, run->model);
    if (!run->training.mode) cosine_fit(config, run->schedule, run->training.s->epochs);
    data_check(config, run->data);
    describe_data(run);
    normalise(run, &run->train);
    if (!run->model->num_classes) run->model->num_classes = run->train.classes;
    if (run->clips->samples_per_clip > 1 && run->sampler->repeated_aug)
        config_reject(config, "samples_per_clip", "{samples_per_clip} and {repeated_aug} both repeat clips: use one of them");
}

/* == Data ========================================================================================================= */

/* So many images at a time that the activations of a hierarchical model are three times its weights, which each pass
 * reads and whose gradients it adds up: its last stages have most of the weights and few of the tokens.  Counted are the
 * linear layers of all blocks and what is on both sides of them. */
static size_t images_for_weights(const VitSettings *s, double tokens) {
    double weights = 0, activations = 0;
    for (int i = 0; i < s->dim.count; i++, tokens /= 4) {
        double M = s->dim.at[i], depth = s->depth.at[s->depth.count > 1 ? i : 0];
        double ratio = (double)s->mlp_ratio.at[s->mlp_ratio.count > 1 ? i : 0];
        weights += depth * M * M * (4 + 2 * ratio) * sizeof(float);
        activations += depth * M * tokens * (9 + 2 * ratio) * sizeof(real);
    }
    return (size_t)ceil(3 * weights / activations);
}

/* As many images or clips at a time as fit in memory while keeping the device busy; a wide model takes more of them than
 * fill the device, as each pass reads all weights. */
static int micro_batch_choose(const Run *run) {
    enum { LEAST_TOKENS = 1024 };
    const VitSettings *s = run->model;
    size_t frames = (size_t)convolution_side(s->frames, s->tubelet > 1 ? 2 : 1);
    size_t rows = (size_t)convolution_side(s->img_size[0], s->patch_size);
    size_t columns = (size_t)convolution_side(s->img_size[1], s->patch_size);
    size_t tokens = activations_at_once() / (size_t)s->dim.at[0];
    size_t most = tokens > LEAST_TOKENS ? tokens : LEAST_TOKENS;
    size_t N = frames * rows * columns, images = most / N;
    size_t least = s->dim.count > 1 ? images_for_weights(s, (double)N) : 0;
    return training_micro_batch(&run->training, images > least ? images : least);
}

static Transform transform_of(const Run *run, bool train) {
    return (Transform){.height = run->model->img_size[0],
                       .width = run->model->img_size[1],
                       .train = train,
                       .s = *run->transform,
                       .augment = augment_of(run->augment)};
}

/* Of the images and clips that a loader gives. */
static LoaderConfig samples_of(const Run *run, bool train) {
    return (LoaderConfig){.parts = {.seed = run->training.s->seed, .train = train,
                                    .max_damaged = run->loading->max_damaged},
                          .repeats = sampler_repeats(run->sampler),
                          .pairs = mixup_is_on(run->mixup),
                          .transform = transform_of(run, train),
                          .frames = run->model->frames,
                          .clips = *run->clips};
}

/* Evaluation runs one micro-batch at a time; each rank takes its share of every group of micro-batches. */
static void loading_open(Run *run, Loader *loader, const Dataset *dataset, bool train) {
    int micro = micro_batch_choose(run);
    if (!run->workers) run->workers = loader_pool_start(run->loading, device_shares_cores());
    LoaderConfig config = samples_of(run, train);
    config.parts.batch_size = train ? run->training.s->batch_size : micro * distributed_ranks();
    config.parts.rank = distributed_rank();
    config.parts.ranks = distributed_ranks();
    if (run->real.images) config.parts.max_damaged = 0; /* another image would take its place */
    config.parts.part = micro;
    config.parts.pool = run->workers;
    config.parts.allocate = host_malloc;
    config.parts.release = host_free;
    loader_open(loader, dataset, &config);
}

static void loading_close(void *context) {
    Run *run = context;
    parts_close(&run->loader.parts);
    parts_close(&run->test_loader.parts);
    loader_pool_close(run->workers);
    real_labels_close(&run->real);
}

/* Are the images used at their own size, with at most padding and cropping? */
static bool has_model_size(const Run *run) {
    return run->train.height == run->model->img_size[0] && run->train.width == run->model->img_size[1];
}

/* Opens one split, after checking that the model fits it. */
static void split_open(Run *run, Dataset *split, bool train) {
    const VitSettings *s = run->model;
    const Config *config = &run->training.config;
    const Dataset *d = &run->train;
    if (d->height && !config_origin(config, "img_size") && !has_model_size(run))
        config_reject(config, "data", "{data} has images of %dx%d, but the model takes {img_size}", d->height, d->width);
    if (s->frames > 1 && !d->clips)
        config_reject(config, "frames", "{frames} makes clips, but {data} has images: give a set of clips, such as "
                                        "moving-shapes");
    if (train && run->clips->samples_per_clip > 1 && !d->clips)
        config_reject(config, "samples_per_clip", "{samples_per_clip} repeats clips, but {data} has images, which repeated_aug "
                                                  "repeats");
    if (s->num_classes < d->classes)
        config_reject(config, "num_classes", "{num_classes} is less than the %d classes of {data}", d->classes);
    dataset_open(split, run->data->data, run->data->data_dir, train,
                 (size_t)(train ? run->data->train_limit : run->data->test_limit));
    normalise(run, split);
}

static void real_open(Run *run) {
    const char *path = run->looks->real_labels;
    Error error;
    if (run->test.clips)
        config_reject(&run->training.config, "real_labels", "%s has no images, but clips", run->test.name);
    if (!real_labels_open(&run->real, path, &run->test, !run->data->test_limit, &error)) die("%s: %s", path, error.text);
}

static void data_open(Run *run, bool train) {
    bool evaluates = !train || training_evaluates(&run->training);
    if (train) split_open(run, &run->train, true);
    if (evaluates) split_open(run, &run->test, false);
    if (!distributed_agree((double)run->test.count, 0))
        die("%s: %zu test images here, but other ranks have more or fewer", run->test.name, run->test.count);
    if (*run->looks->real_labels) real_open(run);
    if (train)
        training_fit_batch(&run->training, loader_length(&run->train, (LoaderConfig[]){samples_of(run, true)}),
                           run->train.name);
    if (train) loading_open(run, &run->loader, &run->train, true);
    if (evaluates) loading_open(run, &run->test_loader, &run->test, false);
}

/* == The model ==================================================================================================== */

/* Reads the model's settings, and so its grid sizes, from a checkpoint of this program; false if it has none. */
static bool origin_create(Vit *origin, Config *config, const char *checkpoint) {
    static Run other;
    char *text = run_folder_config(checkpoint);
    Error error;
    config_init(config, NULL);
    add_settings(&other, config);
    bool told = text && config_try_text(config, text, strlen(text), checkpoint, &error) &&
                other.model->num_classes > 0;
    if (told) vit_create(origin, config);
    free(text);
    return told;
}

/* Loads weights from a file.  For training, a head for other classes is initialised randomly instead. */
static void weights_load(Run *run) {
    static Vit origin;
    const Training *t = &run->training;
    Config config;
    bool told = origin_create(&origin, &config, t->s->init), speaks = distributed_rank() == 0 && !run->modes->bench;
    if (told) vit_check_heads(t->s->init, &t->config, &origin.settings);
    if (told && speaks) vit_print_other_attention(t->s->init, &t->config, &config);
    if (!told && speaks) vit_print_assumptions(t->s->init, &t->config, run->train.mean, run->train.std);
    const char *head = t->mode ? NULL : "head.";
    Inflate inflate = told && origin.settings.frames > 1 ? INFLATE_NONE : run->model->inflate;
    FittedWeights fitted = fit_weights_inflated(&run->vit.model, t->s->init, &origin.model, head, t->s->seed, inflate);
    vit_destroy(&origin);
    config_free(&config);
    if (speaks) fitted_weights_print(&fitted, stdout);
}

/* Numbers in an image or clip. */
static size_t pixels_of(const VitSettings *s) {
    return 3 * (size_t)s->frames * (size_t)s->img_size[0] * (size_t)s->img_size[1];
}

/* Builds the model for `batch` images at a time, sets its initial weights, and allocates the buffers of a batch. */
static void model_open(Run *run, int batch, bool training) {
    Vit *vit = &run->vit;
    vit_create(vit, &run->training.config);
    layer_decay_apply(vit, run->layer_decay);
    vit_plan(vit, batch, training);
    vit_allocate(vit);
    params_allocate(&vit->model.params, training);
    if (*run->training.s->init) {
        weights_load(run);
    } else {
        params_initialize(&vit->model.params, run->training.s->seed);
        vit_draw_buffers(vit, run->training.s->seed, 0);
    }
    size_t B = (size_t)batch, C = (size_t)run->model->num_classes;
    run->pixels = host_malloc(B * pixels_of(run->model), "a batch");
    run->labels = xcalloc(B, sizeof *run->labels, "a batch");
    run->targets = xcalloc(B * C, sizeof *run->targets, "a batch");
    run->losses = xcalloc(B, sizeof *run->losses, "a batch");
    run->logits = xcalloc(B * C, sizeof *run->logits, "a batch");
    run->boxes = xcalloc(B + 2, 4 * sizeof *run->boxes, "a batch");
}

/* == One step ===================================================================================================== */

/* Copies images and soft targets into the model, with random erasing and mixup or cutmix if these are on. */
static void load_images(Run *run, const LoaderPart *part) {
    uint64_t seed = run->training.s->seed;
    int H = run->model->img_size[0], W = run->model->img_size[1], C = run->model->num_classes;
    uint32_t epoch = (uint32_t)run->training.state.epoch;
    float smoothing = run->target->label_smoothing;
    if (!mixup_is_on(run->mixup) && run->erasing->reprob <= 0) {
        loader_targets(run->targets, part->labels, part->n, C, smoothing);
        vit_load_pixels(&run->vit, part->pixels, run->train.mean, run->train.std, part->n);
        return;
    }
    MixupDraw draw = mixup_draw(run->mixup, seed, run->training.state.step, H, W);
    for (int i = 0; i < part->count; i++)
        erasing_draw(run->boxes + 4 * i, run->erasing->reprob, seed, epoch, part->draws[i], H, W);
    MixedImages mixed = {.count = part->count,
                         .pairs = part->pairs,
                         .boxes = run->boxes,
                         .draws = part->draws,
                         .mix = {.lam = draw.lam, .noise = run->erasing->remode, .seed = seed, .epoch = epoch}};
    memcpy(mixed.mix.box, draw.box, sizeof mixed.mix.box);
    mixup_targets(run->targets, part->labels, part->pairs, part->n, C, smoothing, draw.lam);
    vit_load_mixed(&run->vit, part->pixels, &mixed, run->train.mean, run->train.std, part->n);
}

/* Forward and backward pass of the B images in the model, which are those from `first` on in the global batch.  Their
 * losses and gradients are accumulated on the device; after the last images the gradients are summed over the ranks. */
static void micro_step(Run *run, int first, int B, bool last) {
    Vit *vit = &run->vit;
    int batch = run->training.s->batch_size;
    vit_draw_drops(vit, run->training.s->seed, (uint32_t)run->training.state.step, (size_t)first, B);
    vit_load_targets(vit, run->targets, B);
    /* The kernels have the same arguments every time, and no sum over ranks begins among them (docs/distributed.md). */
    bool same = B == vit->model.batch && run->model->dropout <= 0 && !(last && distributed_ranks() > 1);
    if (!same || device_graph_begin(&run->graph)) {
        vit_forward(vit, B, true);
        vit_loss(vit, B, 1.0f / (float)batch);
        step_add_losses(vit->model.params.found, vit->loss, B);
        vit_backward(vit, B, true, last ? all_reduce_start : NULL);
        if (same) device_graph_end(&run->graph);
    }
    run->last_micro_batch = B;
}

/* Nothing has been found out yet: no gradient, no loss. */
static void step_begin(Run *run) {
    Params *params = &run->vit.model.params;
    device_zero(params->grads, params->total * sizeof(float));
    device_zero(params->found, sizeof *params->found);
    vit_draw_buffers(&run->vit, run->training.s->seed, (uint32_t)run->training.state.step);
}

/* Trains on the loader's next batch, by micro-batches, with one optimizer step.  Waits for nothing of it: a GPU works on
 * one step while the host prepares the next and uploads its images. */
static double train_step(void *context) {
    Run *run = context;
    LoaderPart images;
    int begin, end;
    training_share(&run->training, &begin, &end);
    step_begin(run);
    for (int first = begin; first < end; first += images.n) {
        device_uploads_wait(); /* the loader fills the last part's memory again */
        loader_next(&run->loader, &images);
        load_images(run, &images);
        micro_step(run, first, images.n, first + images.n == end);
    }
    all_reduce_finish();
    training_update_unseen(&run->training);
    return NAN;
}

/* == Evaluation =================================================================================================== */

static int label_of(const Run *run, int label) {
    if (label < 0) return -1 - label_of(run, -1 - label);
    return run->class_of ? run->class_of[label] : label;
}

/* What an evaluation adds up over its images. */
enum { TOP1, TOP5, LOSS, REAL_RIGHT, REAL_COUNTED, SUMS };

static void count_outcome(Run *run, double sums[SUMS], size_t index, int label, const float *logits) {
    Outcome found = outcome_of(logits, run->model->num_classes, label);
    sums[TOP1] += found.place < 1;
    sums[TOP5] += found.place < 5;
    sums[LOSS] += found.loss;
    if (run->confusion.classes) confusion_add(&run->confusion, label, &found);
    if (!run->real.images) return;
    size_t count;
    const int *labels = real_labels_of(&run->real, index, &count);
    bool right = false;
    for (size_t i = 0; i < count; i++) right |= label_of(run, labels[i]) == found.predicted;
    sums[REAL_RIGHT] += right;
    sums[REAL_COUNTED] += count > 0;
}

/* The place in the epoch of sample b of a part, of which each video has loader_views. */
static size_t view_of(const Run *run, const LoaderPart *part, int b) {
    return part->batch * (size_t)run->test_loader.config.parts.batch_size + (size_t)(part->first + b);
}

/* Each rank counts its share of the videos, whichever rank saw which of their views. */
static void count_videos(Run *run, double sums[SUMS]) {
    Views *views = &run->views;
    bool stopping = distributed_any(stop_signal != 0);
    if (!stopping) views_sum(views);
    size_t rank = (size_t)distributed_rank(), ranks = (size_t)distributed_ranks();
    size_t first = views->videos * rank / ranks, end = views->videos * (rank + 1) / ranks;
    for (size_t v = first; !stopping && v < end; v++)
        if (views_complete(views, v, run->test.name))
            count_outcome(run, sums, v, views->labels[v], views_logits(views, v));
    run->failed = views->failed;
    views_close(views);
}

/* The accuracy on the test split, into run->accuracy.  Each rank takes its share of the images.  A signal ends it
 * early, without a result. */
static double evaluate(void *context) {
    Run *run = context;
    Model *model = &run->vit.model;
    LoaderPart images;
    size_t count = run->test.count, done = 0;
    double sums[SUMS] = {0};
    int C = run->model->num_classes;
    if (model->params.ema) params_view(&model->params, model->params.ema);
    model_set_training(model, false);
    if (run->test.clips) views_open(&run->views, count, C, loader_views(&run->test_loader),
                                    run->clips->view_scores == SCORES_LOGITS);
    parts_start(&run->test_loader.parts, 0, 0);
    while (!stop_signal && loader_next(&run->test_loader, &images)) {
        vit_load_pixels(&run->vit, images.pixels, run->test.mean, run->test.std, images.n);
        vit_forward(&run->vit, images.n, false);
        real_download(run->logits, run->vit.logits, (size_t)images.n * (size_t)C);
        for (int b = 0; b < images.n; b++) {
            const float *logits = run->logits + (size_t)b * (size_t)C;
            int label = label_of(run, images.labels[b]);
            if (run->test.clips) views_add(&run->views, view_of(run, &images, b), label, logits);
            else count_outcome(run, sums, view_of(run, &images, b), label, logits);
        }
        done += (size_t)images.n;
        progress_show(false, "evaluating %zu/%zu", done * (size_t)distributed_ranks(),
                      count * (size_t)loader_views(&run->test_loader));
    }
    if (run->test.clips) count_videos(run, sums);
    training_sum(&run->training, sums, SUMS);
    if (model_trains(model)) model_set_training(model, true);
    params_view(&model->params, model->params.values);
    run->accuracy = (Accuracy){100 * sums[TOP1] / (double)count, 100 * sums[TOP5] / (double)count};
    run->training.validation_loss = sums[LOSS] / (double)count;
    run->real_right = sums[REAL_RIGHT];
    run->real_counted = sums[REAL_COUNTED];
    return run->accuracy.top1;
}

/* == Training ===================================================================================================== */

static void training_data_and_model(void *context) {
    Run *run = context;
    char stem[128 + VIT_ATTN_SIZE], attn[VIT_ATTN_SIZE];
    data_open(run, true);
    model_open(run, micro_batch_choose(run), true);
    snprintf(stem, sizeof stem, "%s-%s", run->train.name, vit_attn_names(run->model, attn));
    training_open(&run->training, &(TrainingStart){.params = &run->vit.model.params,
                                                   .batches = run->loader.parts.batches,
                                                   .stem = stem,
                                                   .class_names = run->train.class_names,
                                                   .mean = run->train.mean,
                                                   .std = run->train.std,
                                                   .image_size = (int[]){run->train.height, run->train.width},
                                                   .classes = run->train.classes});
}

static void announce(void *context) {
    const Run *run = context;
    const VitSettings *s = run->model;
    const Dataset *d = &run->train;
    char attn[VIT_ATTN_SIZE];
    if (distributed_ranks() > 1)
        printf("%d ranks, %d %s of each batch on every one\n", distributed_ranks(),
               training_local_batch(&run->training), run->training.unit);
    print_line("%s: %zu training and %zu test %s, %d classes\n", d->name, d->count, run->test.count, run->training.unit,
               d->classes);
    if (d->height && !has_model_size(run))
        print_line("%s: images of %dx%d are resized to img_size %dx%d: "
                   "cut out and scaled in training, the centre in tests\n",
                   d->name, d->height, d->width, s->img_size[0], s->img_size[1]);
    printf("%s: %zu parameters, %.1f million multiply-adds %s, %.0f MiB of activations\n",
           vit_attn_names(s, attn), run->vit.model.params.parameters, (double)vit_macs(&run->vit) / 1e6,
           s->frames > 1 ? "a clip" : "an image", (double)model_activation_bytes(&run->vit.model) / (1 << 20));
    print_line("%s: %d epochs of %llu batches of %d %s, %d at a time\n", run->training.s->run_dir,
               run->training.s->epochs, (unsigned long long)run->training.batches, run->training.s->batch_size, run->training.unit,
               run->vit.model.batch);
}

static void load_batches(void *context, uint64_t epoch, uint64_t batch) {
    parts_start(&((Run *)context)->loader.parts, (uint32_t)epoch, batch);
}

static double stalled(const void *context) { return parts_stats(&((const Run *)context)->loader.parts).stalled; }

static float learning_rate(const void *context, double epochs) {
    const Run *run = context;
    float peak = cosine_peak(run->schedule, run->training.s->batch_size);
    return cosine_lr(run->schedule, peak, run->training.s->epochs, epochs);
}

/* Values of the last step that only ripple's weights have: RunState.measured. */
enum { DIVERGENCE, TAU_ENDED, TAU_EQUAL };

static void measure(void *context) {
    Run *run = context;
    double *measured = run->training.state.measured;
    measured[DIVERGENCE] = vit_divergence(&run->vit, run->last_micro_batch);
    vit_sticks_ended(&run->vit, run->last_micro_batch, measured + TAU_ENDED);
}

/* A value with six decimals, or nothing. */
static void measured_text(char text[32], double value) {
    *text = 0;
    if (isfinite(value)) snprintf(text, 32, "%.6f", value);
}

static void words(const void *context, TrainingWords which, char *text, size_t size) {
    const Run *run = context;
    const Accuracy *a = &run->accuracy;
    const RunState *state = &run->training.state;
    char divergence[32], ended[32], equal[32];
    measured_text(divergence, state->measured[DIVERGENCE]);
    measured_text(ended, state->measured[TAU_ENDED]);
    measured_text(equal, state->measured[TAU_EQUAL]);
    switch (which) {
    case WORDS_STEP: break;
    case WORDS_COLUMNS: snprintf(text, size, ",,%s", divergence); break;
    case WORDS_EVALUATED: snprintf(text, size, "%.3f,%.3f,%s", a->top1, a->top5, divergence); break;
    case WORDS_LAST:
    case WORDS_LAST_EVALUATED: snprintf(text, size, "%s,%s", ended, equal); break;
    case WORDS_EVALUATION: snprintf(text, size, "top-1 %.2f %%  top-5 %.2f %%", a->top1, a->top5); break;
    case WORDS_RESULT: snprintf(text, size, "top-1 %.2f %%, best %.2f %%", a->top1, state->best); break;
    case WORDS_BEST: snprintf(text, size, "best top-1 %.2f %%", state->best); break;
    }
}

/* == The other modes ============================================================================================== */

static void mode_describe(void *context) {
    Run *run = context;
    vit_create(&run->vit, &run->training.config);
    vit_plan(&run->vit, micro_batch_choose(run), true);
    vit_describe(&run->vit, stdout);
}

/* What training will see first, before anything that is done to whole batches. */
static void mode_show_batch(void *context) {
    Run *run = context;
    LoaderConfig config = samples_of(run, true);
    const char *path = run->looks->show_batch;
    Error error;
    split_open(run, &run->train, true);
    int n = loader_write_sheet(path, &run->train, &config, &error);
    if (!n) die("%s: %s", path, error.text);
    print_line("%s: the first %d training %s of %s\n", path, n, config.frames > 1 ? "clips" : "images",
               run->train.name);
}

/* Class names: those stored in the checkpoint; otherwise those of the data set, if the user chose one. */
static const char *const *class_names(const Run *run, ClassNames *owned) {
    const Dataset *d = &run->train;
    if (*run->training.s->init) run_folder_classes(owned, run->training.s->init);
    if (owned->named) return class_names_complete(owned, run->model->num_classes) ? owned->at : NULL;
    bool chosen = config_origin(&run->training.config, "data") != NULL;
    return chosen && d->class_names && d->classes == run->model->num_classes ? d->class_names : NULL;
}

/* Maps the data's classes to those of the weights, by name if both have names. */
static void match_classes(Run *run) {
    const Dataset *d = &run->test;
    const char *path = run->training.s->init;
    ClassNames names;
    run_folder_classes(&names, path);
    if (names.named && d->class_names) {
        run->class_of = xcalloc((size_t)d->classes, sizeof *run->class_of, "classes");
        bool same = class_names_match(&names, path, run->class_of, d->class_names, d->classes, d->name);
        if (!same && distributed_rank() == 0)
            print_line("%s: its %d classes are numbered otherwise than the %d of %s: matched by name\n", d->name,
                       d->classes, names.count, path);
    }
    class_names_free(&names);
}

static void mode_eval(void *context) {
    Run *run = context;
    ClassNames names = {0};
    bool matrix = *run->looks->confusion != 0, counts = matrix || *run->looks->per_class, written = true;
    Error error;
    confusion_check_path(run->looks->confusion);
    data_open(run, false);
    match_classes(run);
    model_open(run, micro_batch_choose(run), false);
    if (counts) confusion_open(&run->confusion, run->model->num_classes, matrix);
    evaluate(run);
    if (!run->training.stopping)
        outcome_require_loss(run->training.validation_loss, run->training.s->init, run->test.name);
    if (counts && !run->training.stopping) confusion_sum(&run->confusion);
    if (distributed_rank() > 0) return;
    progress_show(true, "%zu test images of %s", run->test.count, run->test.name);
    if (counts && !run->training.stopping)
        written = confusion_report(&run->confusion, run->looks->confusion, run->looks->per_class,
                                   class_names(run, &names), &error);
    class_names_free(&names);
    if (run->failed) printf("failed: %zu videos\n", run->failed);
    printf("loss: %.6f\n", run->training.validation_loss);
    printf("top1: %.4f top5: %.4f\n", run->accuracy.top1, run->accuracy.top5);
    if (run->real.images)
        printf("real: %.4f of %.0f images with labels\n",
               run->real_counted > 0 ? 100 * run->real_right / run->real_counted : 0, run->real_counted);
    if (!written) die("%s", error.text);
}

static void bench_batch(void *context, bool training) {
    Run *run = context;
    Training *t = &run->training;
    int begin, end;
    training_share(t, &begin, &end);
    model_set_training(&run->vit.model, training);
    if (training) step_begin(run);
    for (int first = begin, B; first < end; first += B) {
        B = end - first < run->vit.model.batch ? end - first : run->vit.model.batch;
        vit_load_pixels(&run->vit, run->pixels, run->train.mean, run->train.std, B);
        if (training) micro_step(run, first, B, first + B == end);
        else vit_forward(&run->vit, B, false);
    }
    all_reduce_finish();
    if (training) training_update_unseen(t);
    if (training) t->state.step++;
}

static void mode_bench(void *context) {
    Run *run = context;
    const VitSettings *s = run->model;
    Training *t = &run->training;
    Params *params = t->params = &run->vit.model.params;
    int micro = micro_batch_choose(run), C = s->num_classes;
    model_open(run, micro, true);
    params_allocate_optimizer(params, false);
    t->state.lr = 1e-4f;
    for (size_t i = 0; i < (size_t)micro * pixels_of(s); i++)
        run->pixels[i] = (uint8_t)rng_bits(t->s->seed, RNG_TEST, 0, 0, i);
    for (int b = 0; b < micro; b++) run->labels[b] = b % C;
    loader_targets(run->targets, run->labels, micro, C, run->target->label_smoothing);
    double memory = memory_peak_gbytes();
    Bench b = bench(bench_batch, run, "images", &t->s->batch_size, micro * distributed_ranks(),
                    (double)t->s->bench_seconds);
    int batch = t->s->batch_size;
    char attn[VIT_ATTN_SIZE];
    double moved = vit_moved_bytes(&run->vit, training_local_batch(&run->training));
    double gflops = 3 * 2 * (double)vit_macs(&run->vit) * b.train.images_per_s / 1e9 / distributed_ranks();
    if (distributed_rank() > 0) return;
    const Attention *a = &vit_block(&run->vit, 0)->attention;
    const Plan *training = &run->vit.model.training, *inference = &run->vit.model.inference;
    printf("{\"attn\": \"%s\", \"algorithm\": \"%s\", \"device\": \"%s\", \"tokens\": %d, \"ranks\": %d, "
           "\"batch_size\": %d, \"micro_batch\": %d, \"params\": %zu, \"macs\": %zu, \"train_images_per_s\": %.2f, "
           "\"infer_images_per_s\": %.2f, \"train_batch_seconds\": %.6f, \"infer_batch_seconds\": %.6f, "
           "\"train_bytes\": %zu, \"infer_bytes\": %zu, \"peak_bytes\": %zu, \"gemm_peak_gflops\": %.1f, "
           "\"mfu\": %.4f, \"moved_bytes\": %.0f, \"memory_peak_gbytes\": %.1f, \"bandwidth_fraction\": %.4f}\n",
           vit_attn_names(s, attn), a->op->path ? a->op->path(a) : a->op->name, kernels_device(), run->vit.N,
           distributed_ranks(), batch, micro, params->parameters, vit_macs(&run->vit), b.train.images_per_s,
           b.infer.images_per_s, b.train.fastest, b.infer.fastest, plan_bytes(training) + training->workspace,
           plan_bytes(inference) + inference->workspace, device_peak_bytes(), b.peak, gflops / b.peak, moved, memory,
           moved * b.train.images_per_s / batch / (memory * 1e9));
}

/* == Predictions ================================================================================================== */

/* The index in test:INDEX; false: the name is that of a file.  Opens the test split. */
static bool is_test(Run *run, const char *name, size_t *index) {
    char *end;
    if (strncmp(name, "test:", 5)) return false;
    *index = strtoull(name + 5, &end, 10);
    if (!run->test.count) split_open(run, &run->test, false);
    if (end == name + 5 || *end || *index >= run->test.count)
        die_usage("--predict %s: expected test:INDEX with an index below %zu", name, run->test.count);
    return true;
}

/* The logits of what is in `pixels`, which were read from that file. */
static void predict_pixels(Run *run, const char *name, const uint8_t *pixels) {
    vit_load_pixels(&run->vit, pixels, run->train.mean, run->train.std, 1);
    vit_forward(&run->vit, 1, false);
    real_download(run->logits, run->vit.logits, (size_t)run->model->num_classes);
    outcome_require(run->logits, (size_t)run->model->num_classes, run->training.s->init, name);
}

/* Pixels of an image file or of test:INDEX, at the model's size: prepared as for evaluation, or, if the data set has no
 * larger pictures, the whole picture resized.  False: `error` gives the reason. */
static bool prediction_pixels(Run *run, const char *name, uint8_t *pixels, Error *error) {
    static TransformScratch scratch;
    Transform transform = transform_of(run, false);
    Sample sample;
    size_t index;
    bool fixed = run->train.height > 0;
    if (!is_test(run, name, &index)) return picture_pixels(pixels, name, &transform, has_model_size(run), fixed, error);
    return dataset_read(&run->test, index, &scratch.bytes, &sample, error) &&
           transform_sample(&scratch, pixels, &sample, fixed, &transform, (TransformKey){0}, error);
}

static bool predict_image(Run *run, const char *name, const char *picture, Error *error) {
    if (!prediction_pixels(run, name, run->pixels, error)) return false;
    predict_pixels(run, name, run->pixels);
    if (*picture) attention_picture_write(&run->vit, run->pixels, picture);
    return true;
}

/* The views of a video that evaluation would see, and its frames in each clip. */
typedef struct {
    int views, frames;  /* frames: of a view */
    size_t frame_bytes;
    uint8_t *pixels;    /* [views,frames,Hi,Wi,3] */
    FrameScore *scores; /* [views,frames] */
} PredictedClip;

static PredictedClip predicted_clip_open(const Run *run) {
    PredictedClip clip = {.views = clip_views(run->clips), .frames = run->model->frames};
    size_t frames = (size_t)clip.views * (size_t)clip.frames;
    clip.frame_bytes = pixels_of(run->model) / (size_t)clip.frames;
    clip.pixels = xcalloc(frames, clip.frame_bytes, "a clip");
    clip.scores = xcalloc(frames, sizeof *clip.scores, "the frames of a clip");
    return clip;
}

static void predicted_clip_close(PredictedClip *clip) {
    free(clip->pixels);
    free(clip->scores);
}

typedef struct {
    TransformScratch *scratch;
    Transform transform;
    bool fixed;
    uint8_t *pixels;
    FrameScore *scores;
    size_t frame_bytes;
} ViewTaker;

static bool take_frame(void *context, int i, const Sample *frame, Error *error) {
    ViewTaker *view = context;
    view->scores[i] = (FrameScore){.frame = frame->frame, .time = frame->time};
    return transform_sample(view->scratch, view->pixels + (size_t)i * view->frame_bytes, frame, view->fixed,
                            &view->transform, (TransformKey){0}, error);
}

static bool read_view(Run *run, const char *name, const PredictedClip *clip, int v, Error *error) {
    static TransformScratch scratch;
    ViewTaker view = {.scratch = &scratch, .transform = transform_of(run, false), .fixed = run->train.height > 0,
                      .pixels = clip->pixels + (size_t)v * (size_t)clip->frames * clip->frame_bytes,
                      .scores = clip->scores + v * clip->frames, .frame_bytes = clip->frame_bytes};
    ClipTaker taker = {take_frame, &view};
    int crops = run->clips->test_crops, label;
    ClipChoice choice = {.frames = clip->frames, .s = *run->clips, .clip = v / crops};
    size_t index;
    view.transform.crop = v % crops;
    view.transform.crops = crops;
    if (is_test(run, name, &index))
        return run->test.read_clip(&run->test, index, &choice, &scratch.bytes, &taker, &label, error);
    int H = view.transform.height, W = view.transform.width;
    view.fixed = false;
    if (has_model_size(run) && !view.transform.s.eval_resize) view.transform.s.eval_resize = H < W ? H : W;
    if (image_has_name(name))
        return refuse(error, "a picture, but the model takes clips of %d frames: give a video, or a folder of frames",
                      clip->frames);
    return videos_read_path(name, &choice, &scratch.bytes, &taker, error);
}

/* The score of each frame: the probability of the class for a clip that shows nothing but it, averaged over crops.
 * Those of a view's first crop are kept. */
static void score_frames(Run *run, const char *name, const PredictedClip *clip, int class) {
    int crops = run->clips->test_crops, C = run->model->num_classes;
    for (int i = 0; i < clip->views * clip->frames; i++) {
        const uint8_t *frame = clip->pixels + (size_t)i * clip->frame_bytes;
        int first = i - i / clip->frames % crops * clip->frames;
        for (int t = 0; t < clip->frames; t++)
            memcpy(run->pixels + (size_t)t * clip->frame_bytes, frame, clip->frame_bytes);
        predict_pixels(run, name, run->pixels);
        clip->scores[first].probability += exp(-outcome_of(run->logits, C, class).loss) / crops;
    }
}

static int by_score(const void *a, const void *b) {
    const FrameScore *x = a, *y = b;
    if (x->probability != y->probability) return x->probability < y->probability ? 1 : -1;
    return x->frame - y->frame;
}

/* Sorts the frames, the best first, each once, and returns how many there are.  Times are known where one is not 0. */
static int best_frames(const Run *run, const PredictedClip *clip) {
    FrameScore *scores = clip->scores;
    int kept = 0, length = clip->frames;
    bool timed = false;
    for (int v = 0; v < clip->views; v += run->clips->test_crops)
        for (int i = v * length; i < (v + 1) * length; i++) {
            int same = 0;
            while (same < kept && scores[same].frame != scores[i].frame) same++;
            timed = timed || scores[i].time > 0;
            if (same == kept) scores[kept++] = scores[i];
        }
    for (int i = 0; i < kept && !timed; i++) scores[i].time = NAN;
    qsort(scores, (size_t)kept, sizeof *scores, by_score);
    return kept;
}

/* Logits whose softmax is the video's score, as in evaluation. */
static bool predict_clip(Run *run, const char *name, const char *picture, const PredictedClip *clip, Error *error) {
    int C = run->model->num_classes;
    Views views;
    bool ok = true;
    views_open(&views, 1, C, clip->views, run->clips->view_scores == SCORES_LOGITS);
    for (int v = 0; ok && v < clip->views; v++) {
        const uint8_t *pixels = clip->pixels + (size_t)v * pixels_of(run->model);
        ok = read_view(run, name, clip, v, error);
        if (ok) predict_pixels(run, name, pixels);
        if (ok) views_add(&views, (size_t)v, 0, run->logits);
        if (ok && !v && *picture) attention_picture_write(&run->vit, pixels, picture);
    }
    if (ok) memcpy(run->logits, views_logits(&views, 0), (size_t)C * sizeof *run->logits);
    views_close(&views);
    return ok;
}

static void mode_predict(void *context) {
    Run *run = context;
    const char *picture = run->looks->attention;
    ClassNames owned = {0};
    const char *const *names = class_names(run, &owned);
    Predictions json = {.wanted = *run->predict->json != 0};
    PredictedClip clip;
    Pictures images;
    Error error;
    size_t done = 0;
    bool clips = run->model->frames > 1;
    int top = run->looks->top_frames;
    if (!clips && config_origin(&run->training.config, "top_frames"))
        config_reject(&run->training.config, "top_frames", "of clips only, and this model is one of images");
    pictures_find(&images, &run->predict->predict, clips);
    model_open(run, 1, *picture != 0); /* the training plan keeps the tensors that the pictures show */
    linear_keep_weights(images.count > 1 || clips);
    if (clips) clip = predicted_clip_open(run);
    for (size_t i = 0; i < images.count; i++) {
        const char *name = images.at[i].name, *drawn = done ? "" : picture;
        if (!(clips ? predict_clip(run, name, drawn, &clip, &error) : predict_image(run, name, drawn, &error))) {
            picture_refuse(&images.at[i], &error);
            predictions_fail(&json, name, error.text);
            continue;
        }
        done++;
        int class = predictions_classes(&json, name, run->logits, run->model->num_classes, names);
        if (!clips || !top) continue;
        score_frames(run, name, &clip, class);
        int count = best_frames(run, &clip);
        predictions_frames(&json, names ? names[class] : NULL, class, clip.scores, count < top ? count : top);
    }
    if (!done) die("none of the %zu %s can be read", images.count, clips ? "clips" : "pictures");
    if (clips) predicted_clip_close(&clip);
    predictions_write(&json, run->predict->json);
    pictures_free(&images);
    class_names_free(&owned);
}

/* --parity: logits, loss and gradients for the images and labels that another framework was given. */
static void mode_parity(void *context) {
    Run *run = context;
    Vit *vit = &run->vit;
    double loss = 0;
    int B, C = run->model->num_classes;
    float *pixels = parity_pixels(&run->parity, &B);

    model_open(run, B, true);
    parity_parameters(&vit->model.params, &run->parity);
    parity_labels(&run->parity, run->modes->parity, run->labels, C);
    loader_targets(run->targets, run->labels, B, C, 0);
    real_upload(vit->images, pixels, (size_t)B * pixels_of(run->model));
    vit_forward(vit, B, false);
    real_download(run->logits, vit->logits, (size_t)B * (size_t)C);
    vit_load_targets(vit, run->targets, B);
    vit_loss(vit, B, 1.0f / (float)B);
    vit_losses(vit, run->losses, B);
    vit_backward(vit, B, false, NULL);
    for (int b = 0; b < B; b++) loss += run->losses[b];
    float mean = (float)(loss / B);
    const SafeTensorEntry outputs[] = {{"logits", SAFE_F32, 2, {(size_t)B, (size_t)C}, run->logits},
                                       {"loss", SAFE_F32, 1, {1}, &mean}};
    parity_write(run->modes->out, outputs, 2, &vit->model.params);
    free(pixels);
    safetensors_close(&run->parity);
}

/* == Main ========================================================================================================= */

static const ProgramMode modes[] = {
    {"describe", "print the layers, parameters, multiply-adds and memory of the model", mode_describe, .alone = true},
    {"eval", "measure the accuracy of --init or --resume on the test images", mode_eval, .needs_weights = true,
     .outputs = {"confusion", "per_class"}, .settings = {"real_labels"}},
    {"bench", "measure the speed of training and inference", mode_bench, .outputs = {NULL}},
    {"show_batch", "write the first training images as the model sees them to a PNG file", mode_show_batch,
     .alone = true, .outputs = {"show_batch"}},
    {"predict", "name what these images or videos show", mode_predict, .alone = true, .needs_weights = true,
     .outputs = {"attention", "json"}, .settings = {"top_frames"}},
    {"parity", "run one step on inputs from a file, and write its gradients to --out", mode_parity,
     .alone = true, .outputs = {"out"}, .needs_output = true},
    {.name = NULL},
};

static const HelpLine basics[] = {
    {"data", "a known data set, or a folder with train/<class>/ and val/<class>/"},
    {"attn", "the attention operator; --help lists all of them"},
    {"img_size", "height and width of the images that the model sees"},
    {"patch_size", "side of the square of pixels that becomes a token"},
    {"epochs", "passes over the training images"},
    {"batch_size", "images in a step of the optimizer"},
    {"lr", "highest learning rate"},
    {"precision", "of activations: float32 or bfloat16"},
    {"init", "begin with these weights (safetensors, timm's names)"},
    {"resume", "continue the run in this folder"},
    {"run_dir", "where log and checkpoints go; otherwise a new folder in runs/"},
    {"seed", "of all random numbers"},
    {.name = NULL},
};

static const Program program = {
    .name = "train_vit",
    .introduction = "train_vit trains vision transformers for image classification.",
    .examples =
        "  train_vit --config configs/cpu/shapes.ini                 train on the built-in shapes, minutes\n"
        "  train_vit --data photos --img-size 224 --patch-size 16    train on your own folder of images\n"
        "  train_vit --resume runs/shapes-ripple-001                 go on where a run stopped\n"
        "  train_vit --init runs/shapes-ripple-001/best.safetensors --predict cat.png\n"
        "  train_vit --config configs/cpu/shapes.ini --attn linear   the first with another operator\n"
        "  train_vit --config configs/cifar100/ripple.ini            train on files (scripts/fetch_cifar.sh)\n"
        "  train_vit --resume runs/shapes-ripple-001 --eval          measure its last weights\n"
        "  train_vit --attn ripple --img-size 224 --patch-size 16 --describe\n",
    .basics = basics, .example = "train_vit --config configs/cpu/shapes.ini", .word = "lisa",
    .reference = "docs/settings.md",
    .settings = add_settings, .chooser = "attn", .use = use_settings, .check = check_settings,
    .modes = modes,
    .training = {.columns = "top1,top5,jsd",
                 .last_columns = "tau_ended,tau_equal",
                 .advice = "a lower lr, a longer warm-up or clip_grad",
                 .open = training_data_and_model, .announce = announce, .load = load_batches, .stalled = stalled,
                 .rate = learning_rate, .step = train_step, .measure = measure, .evaluate = evaluate, .words = words},
    .close = loading_close,
};

int main(int argc, char **argv) {
    static Run run;
    return program_main(&program, &run, &run.training, argc, argv);
}
