#include "layers/vit/run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/die.h"
#include "core/distributed.h"
#include "core/files.h"
#include "data/sets/labelled.h"
#include "data/sets/subset.h"
#include "kernels/kernels.h"
#include "layers/loading.h"
#include "layers/vit/fit_weights.h"
#include "training/checkpoint.h"

/* == Settings ===================================================================================================== */

#define F(KIND, field) CONFIG_FIELD(KIND, VitModeSettings, field)
static const ConfigEntry entries[] = {
    {F(STRING, show_batch), .section = "in place of training", .command_line_only = true, .argument = "FILE",
     .help = "Write the first training images as the model sees them, with their labels, to this PNG file, and stop"},
    {F(STRING, confusion), .command_line_only = true, .argument = "FILE",
     .help = "With --eval: write the confusion matrix to this CSV file, true classes in rows and predicted classes in "
             "columns"},
    {F(STRING, per_class), .command_line_only = true, .argument = "FILE",
     .help = "With --eval: write the number of images, top-1, top-5 and precision of each class to this CSV file"},
    {F(STRING, real_labels), .command_line_only = true, .argument = "FILE",
     .help = "With --eval on ImageNet's validation images: the labels of ImageNet ReaL (real.json), with which a "
             "second top-1 is computed"},
    {F(STRING, attention), .command_line_only = true, .argument = "FILE",
     .help = "With --predict: write the attention weights of every layer and head to this safetensors file, which "
             "scripts/plots/plot_attention.py plots"},
    {F(STRING, write_logits), .command_line_only = true, .argument = "FILE",
     .help = "Write the logits of --init or --resume for all training images, prepared as for evaluation, to this "
             "safetensors file, which --teacher takes, and stop"},
    {F(INT, top_frames), "3", .command_line_only = true, .max = 1000,
     .help = "With --predict of videos: number of frames to report that look most like the first class. A frame's "
             "score is the probability of that class for a clip that shows this frame alone, which is meaningless for "
             "classes that only motion shows (0: none; each frame of the clip takes a forward pass)"},
};
#undef F
const ConfigGroup vit_mode_settings = {CONFIG_GROUP(VitModeSettings, entries)};

/* == Data ========================================================================================================= */

static DatasetSplits splits_of(const DataSettings *s) {
    return *s->labels ? labelled_splits(s->labels) : dataset_splits(s->data, s->data_dir);
}

/* Normalisation of pixels: that set by the user; otherwise, in a mode, that of the model's training; otherwise that of
 * the data set. */
static void normalise(const VitRun *run, Dataset *dataset) {
    const DataSettings *s = run->data;
    const Training *t = &run->training;
    if (t->mode && *t->s->init) run_folder_normalisation(dataset->mean, dataset->std, t->s->init);
    for (int c = 0; c < s->mean.count; c++) dataset->mean[c] = s->mean.at[c];
    for (int c = 0; c < s->std.count; c++) dataset->std[c] = s->std.at[c];
}

/* Describes the data from the checkpoint. */
static void describe_from_checkpoint(Dataset *d, const char *data, const char *init) {
    ClassNames names;
    int size[2] = {0, 0};
    run_folder_image_size(size, init); /* checkpoints without it come from folders, whose images differ in size */
    run_folder_classes(&names, init);
    snprintf(d->name, sizeof d->name, "%.31s", data);
    d->height = size[0];
    d->width = size[1];
    d->classes = names.count;
    class_names_free(&names);
}

void vit_run_describe_data(VitRun *run) {
    const Config *config = &run->training.config;
    const char *data = run->data->data, *init = run->training.s->init, *origin = config_origin(config, "data");
    bool typed = origin && !strncmp(origin, "--", 2);
    bool lost = run->training.mode && *init && !typed && !dataset_is_there(data);
    bool alone = (run->modes->describe || run->modes->bench) && run->model_settings->num_classes;
    Dataset *d = &run->train;
    Error error;
    if (!lost && !dataset_known(data, &error)) config_reject(config, "data", "%s", error.text);
    if (!lost && !alone) {
        if (*run->data->labels) labelled_describe(d, data, run->data->labels);
        else dataset_describe(d, data, run->data->data_dir);
    } else {
        memcpy(d->mean, imagenet_mean, sizeof imagenet_mean);
        memcpy(d->std, imagenet_std, sizeof imagenet_std);
    }
    if (lost) describe_from_checkpoint(d, data, init);
    normalise(run, d);
}

Transform vit_run_transform(const VitRun *run, bool train) {
    return (Transform){.height = run->model_settings->img_size[0],
                       .width = run->model_settings->img_size[1],
                       .train = train,
                       .s = *run->transform,
                       .augment = augment_of(run->augment)};
}

LoaderConfig vit_run_samples(const VitRun *run, bool train) {
    return (LoaderConfig){.parts = {.seed = run->training.s->seed, .train = train,
                                    .max_damaged = run->loading->max_damaged},
                          .balanced = run->sampler->balanced,
                          .repeats = sampler_repeats(run->sampler),
                          .pairs = mixup_is_on(run->mixup),
                          .transform = vit_run_transform(run, train),
                          .frames = run->model_settings->frames,
                          .clips = *run->clips};
}

/* Evaluation runs one micro-batch at a time; each rank takes its share of every group of micro-batches. */
static void loading_open(VitRun *run, Loader *loader, const Dataset *dataset, bool train) {
    LoaderConfig config = vit_run_samples(run, train);
    config.parts = loading_parts(&run->training, run->loading, &run->workers, train, vit_run_micro_batch(run));
    config.parts.keep_last = !run->sampler->drop_last;
    loader_open(loader, dataset, &config);
}

void vit_run_close_data(VitRun *run) {
    parts_close(&run->loader.parts);
    free(run->loader.labels);
    parts_close(&run->test_loader.parts);
    loader_pool_close(run->workers);
    real_labels_close(&run->evaluation.real);
}

bool vit_run_has_model_size(const VitRun *run) {
    const int *size = run->model_settings->img_size;
    return run->train.height == size[0] && run->train.width == size[1];
}

void vit_run_open_split(VitRun *run, Dataset *split, bool train) {
    const VitSettings *s = run->model_settings;
    const Config *config = &run->training.config;
    const Dataset *d = &run->train;
    if (d->height && !config_origin(config, "img_size") && !vit_run_has_model_size(run))
        config_reject(config, "data", "{data} has images of %dx%d, but the model takes {img_size}", d->height,
                      d->width);
    if (s->frames > 1 && !d->clips)
        config_reject(config, "frames", "{frames} makes clips, but {data} has images: give a set of clips, such as "
                                        "moving-shapes");
    if (train && run->clips->samples_per_clip > 1 && !d->clips)
        config_reject(config, "samples_per_clip",
                      "{samples_per_clip} repeats clips, but {data} has images, which repeated_aug repeats");
    if (s->num_classes < d->classes)
        config_reject(config, "num_classes", "{num_classes} is less than the %d classes of {data}", d->classes);
    size_t limit = (size_t)(train ? run->data->train_limit : run->data->test_limit);
    if (*run->data->labels)
        labelled_open(split, run->data->data, run->data->labels, train ? LABELLED_TRAIN : LABELLED_VALIDATION, limit);
    else dataset_open(split, run->data->data, run->data->data_dir, train, limit);
    normalise(run, split);
}

/* == Splits ======================================================================================================= */

void vit_run_settle_split(VitRun *run) {
    Training *t = &run->training;
    Config *config = &t->config;
    bool chosen = config_origin(config, "val_fraction"), trains = !t->mode && !t->resumed;
    if (run->train.clips && run->data->val_fraction > 0)
        config_reject(config, "val_fraction", "{val_fraction} holds out images, but {data} has clips: use a folder val/");
    if (chosen && run->data->val_fraction > 0 && !t->mode && !training_evaluates(t))
        config_reject(config, "val_fraction", "{val_fraction} holds out images to validate with, but {eval_every} never "
                                              "evaluates");
    if (chosen || !trains || !training_evaluates(t) || run->train.clips) return;
    DatasetSplits splits = splits_of(run->data);
    if (splits.by_class && !splits.validation)
        config_try_set(config, "val_fraction", "0.1", "the default for class folders without val/", &error_fatal);
}

/* Another seed or fraction would hold out images that the weights were trained on. */
static void require_split_of_weights(const VitRun *run) {
    const Training *t = &run->training;
    Config saved;
    if (!t->mode || !*t->s->init) return;
    if (run_folder_settings(&saved, &t->config, t->s->init)) {
        const DataSettings *data = config_settings(&saved, &data_settings);
        uint64_t seed = ((const TrainingSettings *)config_settings(&saved, &training_settings))->seed;
        bool same = !strcmp(data->data, run->data->data);
        if (same && seed != t->s->seed)
            config_reject(&t->config, "seed", "{seed} holds out other images of {data} than the weights' seed %llu did",
                          (unsigned long long)seed);
        if (same && fabsf(data->val_fraction - run->data->val_fraction) > 0)
            config_reject(&t->config, "val_fraction", "{val_fraction} holds out other images of {data} than the weights' %g "
                                                      "did", (double)data->val_fraction);
    }
    config_free(&saved);
}

/* Holds out a part of the training images, which becomes `held`; the rest becomes `rest`. */
static void hold_out(VitRun *run, Dataset *rest, Dataset *held) {
    Dataset whole = {.count = 0};
    Error error;
    require_split_of_weights(run);
    vit_run_open_split(run, &whole, true);
    if (!subset_divide(rest, held, &whole, (double)run->data->val_fraction, run->training.s->seed, &error))
        config_reject(&run->training.config, "val_fraction", "%s", error.text);
    run->held_out = run->validates = true;
}

/* Opens the images that are not for training: those in a folder val/ are for validation, others for the test. */
static void open_others(VitRun *run) {
    DatasetSplits splits = splits_of(run->data);
    vit_run_open_split(run, &run->test, false);
    run->validates = splits.by_class && splits.validation;
}

void vit_run_open_training(VitRun *run) {
    Dataset held;
    if (run->data->val_fraction <= 0) {
        vit_run_open_split(run, &run->train, true);
        return;
    }
    hold_out(run, &run->train, &held);
    dataset_close(&held);
}

void vit_run_open_evaluated(VitRun *run) {
    DatasetSplits splits = {.test = true};
    if (run->data->val_fraction > 0) splits = splits_of(run->data);
    if (splits.test || splits.validation) {
        open_others(run);
        return;
    }
    Dataset rest;
    hold_out(run, &rest, &run->test);
    dataset_close(&rest);
}

const char *vit_run_evaluated(const VitRun *run) { return run->validates ? "validation" : "test"; }

/* Opens the images that are read once at the end; false if there are none. */
static bool open_last(VitRun *run, Dataset *test) {
    const DataSettings *s = run->data;
    DatasetSplits splits = splits_of(s);
    bool beside = splits.by_class && splits.validation && splits.test; /* val/ is used for validation */
    if (!(run->held_out ? splits.test || splits.validation : beside)) return false;
    if (beside && *s->labels) labelled_open(test, s->data, s->labels, LABELLED_TEST, (size_t)s->test_limit);
    else if (beside) dataset_open_test(test, s->data, s->data_dir, (size_t)s->test_limit);
    else vit_run_open_split(run, test, false);
    if (beside) normalise(run, test);
    return true;
}

void vit_run_forget_test(const VitRun *run) {
    char path[RUN_PATH_SIZE];
    run_folder_file(path, run->training.s->run_dir, "test.json");
    if (distributed_rank() == 0 && training_epoch_left(&run->training)) unlink(path);
}

bool vit_run_open_test(VitRun *run) {
    Training *t = &run->training;
    char path[RUN_PATH_SIZE];
    Dataset test;
    run_folder_file(path, t->s->run_dir, "test.json");
    if (t->state.best < 0 || (t->state.step == t->first_step && file_exists(path)) || !open_last(run, &test)) return false;
    parts_close(&run->test_loader.parts);
    dataset_close(&run->test);
    run->test = test;
    run->held_out = run->validates = false;
    run->tested = true;
    loading_open(run, &run->test_loader, &run->test, false);
    run_folder_file(path, t->s->run_dir, "best.safetensors");
    distributed_any(false); /* rank 0 has written it */
    SafeTensors st;
    Params *params = &run->vit.model.params;
    safetensors_open(&st, path, &error_fatal);
    checkpoint_read_weights(params, params->ema ? params->ema : params->values, &st, "", NULL, &error_fatal);
    safetensors_close(&st);
    return true;
}

static void real_labels_read(VitRun *run) {
    const char *path = run->vit_modes->real_labels;
    Error error;
    if (run->test.clips)
        config_reject(&run->training.config, "real_labels", "%s has no images, but clips", run->test.name);
    if (!real_labels_open(&run->evaluation.real, path, &run->test, !run->data->test_limit, &error))
        die("%s: %s", path, error.text);
}

void vit_run_open_data(VitRun *run, bool train) {
    bool evaluates = !train || training_evaluates(&run->training);
    bool holds_out = train && evaluates && run->data->val_fraction > 0;
    if (holds_out) hold_out(run, &run->train, &run->test);
    else if (train) vit_run_open_split(run, &run->train, true);
    if (!train) vit_run_open_evaluated(run);
    else if (evaluates && !holds_out) open_others(run);
    Dataset last;
    if (train && evaluates && open_last(run, &last)) dataset_close(&last); /* what is wrong with it is said now */
    if (!distributed_agree((double)run->test.count, 0))
        die("%s: %zu %s images here, but other ranks have more or fewer", run->test.name, run->test.count,
            vit_run_evaluated(run));
    if (*run->vit_modes->real_labels) real_labels_read(run);
    if (train)
        training_fit_batch(&run->training, loader_length(&run->train, (LoaderConfig[]){vit_run_samples(run, true)}),
                           run->train.name);
    if (train) loading_open(run, &run->loader, &run->train, true);
    if (train && run->target->class_weights) {
        run->class_weights = xcalloc((size_t)run->train.classes, sizeof *run->class_weights, "classes");
        loader_class_weights(run->class_weights, &run->train, run->target->class_weights);
    }
    if (evaluates) loading_open(run, &run->test_loader, &run->test, false);
}

const char *const *vit_run_class_names(const VitRun *run, ClassNames *owned) {
    const Dataset *d = &run->train;
    if (*run->training.s->init) run_folder_classes(owned, run->training.s->init);
    bool chosen = config_origin(&run->training.config, "data") != NULL;
    if (!owned->named && chosen && d->class_names) class_names_printed(owned, d->class_names, d->classes);
    return class_names_extend(owned, run->model_settings->num_classes) ? owned->at : NULL;
}

/* == The model ==================================================================================================== */

/* The number of images at a time with which the activations of a hierarchical model are three times its weights, which
 * each pass reads and whose gradients it adds up: its last stages have most of the weights and few of the tokens.  The
 * linear layers of all blocks are counted, with their inputs and outputs. */
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

/* A wide model processes more images than fill the device, because each pass reads all weights. */
int vit_run_micro_batch(const VitRun *run) {
    enum { LEAST_TOKENS = 1024 };
    const VitSettings *s = run->model_settings;
    size_t frames = (size_t)convolution_side(s->frames, s->tubelet > 1 ? 2 : 1);
    const TokenizerSettings *tokenizer = config_settings(&run->training.config, &tokenizer_settings);
    const StemSettings *stem = config_settings(&run->training.config, &hybrid_stem_settings);
    int sides[2];
    for (int i = 0; i < 2; i++)
        sides[i] = s->stem == STEM_CONV     ? tokenizer_side(tokenizer, s->img_size[i])
                   : s->stem == STEM_HYBRID ? convolution_side(hybrid_stem_side(stem, s->img_size[i]), s->patch_size)
                                            : convolution_side(s->img_size[i], s->patch_size);
    size_t tokens = activations_at_once() / (size_t)s->dim.at[0];
    size_t most = tokens > LEAST_TOKENS ? tokens : LEAST_TOKENS;
    size_t N = frames * (size_t)sides[0] * (size_t)sides[1], images = most / N;
    size_t least = s->dim.count > 1 ? images_for_weights(s, (double)N) : 0;
    return training_micro_batch(&run->training, images > least ? images : least);
}

/* Loads weights from a file, whose settings, if it has them, describe the model of the weights.  For training, a head
 * for other classes is initialised randomly instead. */
static void weights_load(VitRun *run) {
    static Vit origin;
    const Training *t = &run->training;
    const char *init = t->s->init, *head = t->mode ? NULL : "head.";
    Config config;
    bool told = run_folder_settings(&config, &t->config, init), prints = distributed_rank() == 0 && !run->modes->bench;
    told = told && ((const VitSettings *)config_settings(&config, &vit_settings))->num_classes > 0;
    if (told) vit_create(&origin, &config);
    if (told) vit_check_heads(init, &t->config, run->model_settings, &origin.settings);
    if (told && prints) vit_print_other_attention(init, &t->config, &config);
    if (!told && prints) vit_print_assumptions(init, &t->config, run->train.mean, run->train.std);
    Inflate inflate = told && origin.settings.frames > 1 ? INFLATE_NONE : run->model_settings->inflate;
    FittedWeights fitted = fit_weights(&run->vit.model, init, &origin.model, head, t->s->seed, inflate);
    vit_destroy(&origin);
    config_free(&config);
    if (prints) fitted_weights_print(&fitted, stdout);
}

size_t vit_pixels(const VitSettings *s) {
    return 3 * (size_t)s->frames * (size_t)s->img_size[0] * (size_t)s->img_size[1];
}

void vit_run_distill(VitRun *run) {
    bool measures = run->training.mode && !run->modes->describe && !*run->modes->parity;
    if (!measures) run->vit.distillation = distillation_of(run->distillation);
}

void vit_run_open_model(VitRun *run, int batch, bool training) {
    Vit *vit = &run->vit;
    vit_create(vit, &run->training.config);
    layer_decay_apply(vit, run->layer_decay);
    vit_run_distill(run);
    vit_plan(vit, batch, training);
    vit_allocate(vit);
    params_allocate(&vit->model.params, training);
    if (*run->training.s->init) {
        weights_load(run);
    } else {
        params_initialize(&vit->model.params, run->training.s->seed);
        trunk_draw_buffers(&vit->trunk, run->training.s->seed, 0);
        if (run->model_settings->inflate != INFLATE_NONE && !run->training.mode && !run->training.resumed &&
            distributed_rank() == 0)
            warn("inflate has no effect without --init: the run begins with random weights");
    }
    if (training) vit_run_open_columns(run);
    size_t B = (size_t)batch, C = (size_t)run->model_settings->num_classes;
    run->pixels = host_malloc(B * vit_pixels(run->model_settings), "a batch");
    run->labels = xcalloc(B, sizeof *run->labels, "a batch");
    run->targets = xcalloc(B * C, sizeof *run->targets, "a batch");
    run->losses = xcalloc(B, sizeof *run->losses, "a batch");
    run->logits = xcalloc(B * C, sizeof *run->logits, "a batch");
    run->weights = xcalloc(B, sizeof *run->weights, "a batch");
    run->boxes = xcalloc(B + 2, 4 * sizeof *run->boxes, "a batch");
}
