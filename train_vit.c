/* train_vit: vision transformers for image classification, from a config file to an accuracy.
 *
 * Read it from its end: main, and train above it, show the whole run.  Above them are, in this order, the settings, a
 * step, evaluation, and the beginning and the output of a run.  The model and the modes other than training are in
 * layers/vit/, the arithmetic is in kernels/, and data sets and augmentation are in data/. */
#include <stdio.h>
#include <string.h>

#include "core/distributed.h"
#include "core/progress.h"
#include "core/signals.h"
#include "core/text.h"
#include "kernels/kernels.h"
#include "layers/vit/run.h"

/* == Settings ===================================================================================================== */

static void add_settings(VitRun *run, Config *config) {
    run->modes = config_add(config, &mode_settings);
    run->predict = config_add(config, &predict_settings);
    run->vit_modes = config_add(config, &vit_mode_settings);
    run->data = config_add(config, &data_settings);
    run->loading = config_add(config, &loader_settings);
    run->clips = config_add(config, &clip_settings);
    run->transform = config_add(config, &transform_settings);
    run->augment = config_add(config, &augment_settings);
    run->erasing = config_add(config, &erasing_settings);
    run->mixup = config_add(config, &mixup_settings);
    run->sampler = config_add(config, &sampler_settings);
    run->model_settings = vit_add_settings(config);
    run->schedule = config_add(config, &cosine_settings);
    config_add(config, &adamw_settings);
    run->layer_decay = config_add(config, &layer_decay_settings);
    run->target = config_add(config, &target_settings);
    run->distillation = config_add(config, &distillation_settings);
    run->training.s = config_add(config, &training_settings);
    config_explain(config, "eval", "Measure the accuracy of --init or --resume on the validation images in val/, else on "
                                   "the test images, else on those that training held out, and stop");
    config_explain(config, "predict", "Classify these images: JPEG, PNG, BMP or WebP files, folders of them, or "
                                      "test:17 for an image of those that --eval evaluates; a model of clips takes "
                                      "videos, folders of frames, and folders of both");
    config_explain(config, "parity", "One forward and backward pass on the images or clips and the labels of this "
                                     "safetensors file; parameters in it replace the model's");
    config_explain(config, "init", "Start from these weights (safetensors, timm's names); tables on the token grid are "
                                   "resampled to this img_size, and a head of other classes starts with new random weights");
}

/* Checks settings of several groups, and sets what is known about the data without its files: size, classes,
 * statistics. */
static void check_settings(VitRun *run) {
    const Config *config = &run->training.config;
    if (*run->modes->parity) vit_parity_open(run);
    vit_check_settings(config, run->model_settings);
    run->training.unit = run->model_settings->frames > 1 ? "clips" : "images";
    if (!run->training.mode || run->modes->bench) training_check_ranks(&run->training);
    if (*run->vit_modes->attention && run->model_settings->dim.count > 1)
        config_reject(config, "attention", "pictures show one token grid, but {dim} makes %d stages",
                      run->model_settings->dim.count);
    transform_check(config, run->transform, run->model_settings->img_size[0], run->model_settings->img_size[1]);
    layer_decay_check(config, run->layer_decay, run->model_settings);
    if (!run->training.mode) distillation_check(config, run->distillation);
    if (!run->training.mode) cosine_fit(config, run->schedule, run->training.s->epochs);
    data_check(config, run->data);
    vit_run_describe_data(run);
    vit_run_settle_split(run);
    if (!run->model_settings->num_classes) run->model_settings->num_classes = run->train.classes;
    if (run->target->class_weights && mixup_is_on(run->mixup))
        config_reject(config, "class_weights", "{class_weights} weighs an image by its class, but mixup and cutmix give it "
                                               "two: use mixup 0 and cutmix 0, or balanced true");
    if (run->target->class_weights && *run->distillation->teacher)
        config_reject(config, "class_weights", "{class_weights} weighs losses by labels, but the loss against "
                                               "{teacher} has none: use balanced true");
    if (run->sampler->balanced && run->sampler->repeated_aug)
        config_reject(config, "balanced", "{balanced} and {repeated_aug} both repeat images: use one of them");
    if (run->train.clips && (run->target->class_weights || run->sampler->balanced))
        config_reject(config, run->sampler->balanced ? "balanced" : "class_weights", "{data} has clips, whose labels are "
                                                                                       "known only when they are read");
    if (run->clips->samples_per_clip > 1 && run->sampler->repeated_aug)
        config_reject(config, "samples_per_clip",
                      "{samples_per_clip} and {repeated_aug} both repeat clips: use one of them");
}

/* == Help ========================================================================================================= */

static const ProgramMode modes[] = {
    {"describe", "print the layers, parameters, multiply-adds and memory of the model", .alone = true},
    {"eval", "measure the accuracy of --init or --resume on unseen images", .needs_weights = true,
     .outputs = {"confusion", "per_class"}, .settings = {"real_labels"}},
    PROGRAM_MODE_BENCH,
    {"show_batch", "write the first training images as the model sees them to a PNG file", .alone = true,
     .outputs = {"show_batch"}},
    {"write_logits", "write the logits of all training images for --teacher", .alone = true, .needs_weights = true,
     .outputs = {"write_logits"}},
    {"predict", "classify these images or videos", .alone = true, .needs_weights = true,
     .outputs = {"attention", "json"}, .settings = {"top_frames"}},
    PROGRAM_MODE_PARITY,
    PROGRAM_MODES_OF_PAGES,
    {.name = NULL},
};

static const HelpLine basics[] = {
    {"data", "a known data set, or a folder with a folder of images for each class"},
    {"attn", "the attention operator; --help lists all of them"},
    {"img_size", "height and width of the images that the model sees"},
    {"patch_size", "side of the square of pixels that becomes a token"},
    {"epochs", "passes over the training images"},
    {"batch_size", "images in a step of the optimizer"},
    {"lr", "highest learning rate"},
    {"precision", "of activations: float32 or bfloat16"},
    {"init", "begin with these weights (safetensors, timm's names)"},
    PROGRAM_BASICS_OF_A_RUN,
};

static const ProgramFacts facts = {
    .name = "train_vit",
    .introduction = "train_vit trains vision transformers for image classification.",
    .examples =
        "  train_vit --config configs/cpu/shapes.ini                 train on the built-in shapes, minutes\n  "
        "train_vit --config configs/cpu/photos.ini --data photos   train on your own folder of images\n  "
        "train_vit --resume runs/shapes-ripple-001                 go on where a run stopped\n  "
        "train_vit --init runs/shapes-ripple-001/best.safetensors --predict cat.png\n  "
        "train_vit --config configs/cpu/shapes.ini --attn linear   the first run with another operator\n  "
        "train_vit --config configs/cifar100/ripple.ini            train on files (scripts/fetch_cifar.sh)\n  "
        "train_vit --resume runs/shapes-ripple-001 --eval          measure its last weights\n  "
        "train_vit --attn ripple --img-size 224 --patch-size 16 --describe\n",
    .basics = basics, .example = "train_vit --config configs/cpu/shapes.ini", .word = "lisa",
    .reference = "docs/reference/settings.md",
    .chooser = "attn", .modes = modes, .advice = "a lower lr, a longer warm-up or clip_grad",
};

/* == One step ===================================================================================================== */

/* Copies images and soft targets into the model, with random erasing and mixup or cutmix if these are on. */
static void load_images(VitRun *run, const LoaderPart *part) {
    uint64_t seed = run->training.s->seed;
    const VitSettings *s = run->model_settings;
    int H = s->img_size[0], W = s->img_size[1], C = s->num_classes;
    for (int i = 0; run->class_weights && i < part->n; i++)
        run->weights[i] = run->class_weights[part->labels[part->pairs[2 * i]]];
    uint32_t epoch = (uint32_t)run->training.state.epoch;
    float smoothing = run->target->label_smoothing;
    if (!mixup_is_on(run->mixup) && run->erasing->reprob <= 0) {
        loader_targets(run->targets, part->labels, part->n, C, smoothing);
        vit_load_pixels(&run->vit, part->pixels, run->train.mean, run->train.std, part->n);
        if (*run->distillation->teacher) teacher_follow(&run->teacher, &run->vit, part, false, 1);
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
    if (*run->distillation->teacher) teacher_follow(&run->teacher, &run->vit, part, true, draw.lam);
}

/* Forward and backward pass of the B images in the model, which are those from `first` on in the global batch.  Their
 * losses and gradients are accumulated on the device; after the last images the gradients are summed over the ranks. */
static void forward_backward(VitRun *run, int first, int B, bool last) {
    Vit *vit = &run->vit;
    int batch = training_batch(&run->training);
    trunk_draw_drops(&vit->trunk, run->training.s->seed, (uint32_t)run->training.state.step, (size_t)first, B);
    vit_load_targets(vit, run->targets, B);
    if (run->class_weights) vit_load_weights(vit, run->weights, B);
    /* same: this pass launches the same kernels with the same arguments as the last one and begins no sum over ranks, so
     * a GPU can replay it as a graph. */
    bool same = B == vit->model.batch && batch == run->training.s->batch_size && !vit_drops(run->model_settings) &&
                !(last && distributed_ranks() > 1);
    if (!same || device_graph_begin(&run->graph)) {
        vit_forward(vit, B, true);
        vit_loss(vit, B, 1.0f / (float)batch);
        if (run->class_weights) vit_weigh_losses(vit, B);
        step_add_losses(vit->model.params.step_stats, vit->loss, B);
        vit_backward(vit, B, true, last ? all_reduce_start : NULL);
        if (same) device_graph_end(&run->graph);
    }
    run->images_measured += B;
}

/* Begins a step, and samples its random features and random positional codes if the operator has any. */
static void step_begin(VitRun *run, float lr) {
    training_step_begin(&run->training, lr);
    trunk_draw_buffers(&run->vit.trunk, run->training.s->seed, (uint32_t)run->training.state.step);
}

/* --bench: measures training and then inference, with the random images that vit_bench_begin made. */
static void measure_speed(VitRun *run) {
    Bench b;
    vit_bench_begin(&b, run);
    while (bench_next(&b)) {
        model_set_training(&run->vit.model, b.training);
        if (b.training) step_begin(run, 1e-4f);
        while (bench_part(&b)) {
            vit_load_pixels(&run->vit, run->pixels, run->train.mean, run->train.std, b.n);
            if (b.training) forward_backward(run, b.first, b.n, b.last);
            else vit_forward(&run->vit, b.n, false);
        }
        all_reduce_finish();
        if (b.training) training_update_unseen(&run->training);
    }
    vit_bench_print(&b, run);
}

/* == Evaluation =================================================================================================== */

/* Computes run->evaluation, the accuracy on the test split.  Each rank has its share of the images.  A signal ends it
 * early, without a result. */
static void evaluate(VitRun *run) {
    Model *model = &run->vit.model;
    LoaderPart images;
    size_t done = 0, views = (size_t)loader_views(&run->test_loader), ranks = (size_t)distributed_ranks();
    model_evaluation_begin(model);
    vit_eval_begin(run);
    parts_start(&run->test_loader.parts, 0, 0);
    while (!stop_signal && loader_next(&run->test_loader, &images)) {
        vit_load_pixels(&run->vit, images.pixels, run->test.mean, run->test.std, images.n);
        vit_forward(&run->vit, images.n, false);
        real_download(run->logits, run->vit.logits, (size_t)images.n * (size_t)run->model_settings->num_classes);
        vit_eval_add(run, &images);
        done += (size_t)images.n;
        progress_show(false, "evaluating %zu/%zu", done * ranks, run->test.count * views);
    }
    vit_eval_end(run);
    vit_facts_end(run);
    model_evaluation_end(model);
}

static void evaluate_split(VitRun *run) {
    vit_eval_open(run);
    evaluate(run);
    vit_eval_report(run);
}

/* == Training ===================================================================================================== */

/* Opens the data and the model of a training run, with its initial weights or the state of the resumed run. */
static void training_data_and_model(VitRun *run) {
    Training *t = &run->training;
    char stem[128 + VIT_ATTN_SIZE], attn[VIT_ATTN_SIZE];
    vit_run_open_data(run, true);
    vit_run_open_model(run, vit_run_micro_batch(run), true);
    if (*run->distillation->teacher)
        teacher_open(&run->teacher, run->distillation->teacher, &run->vit, &run->train, run->train.mean, run->train.std);
    snprintf(stem, sizeof stem, "%s-%s", run->train.name, vit_attn_names(run->model_settings, attn));
    training_column(t, "top1", "%.3f", LOG_MIDDLE);
    training_column(t, "top5", "%.3f", LOG_MIDDLE);
    training_open(t, &(TrainingStart){.params = &run->vit.model.params,
                                      .batches = run->loader.parts.batches,
                                      .samples = run->sampler->drop_last ? 0 : run->loader.parts.source.length,
                                      .examples = run->train.count,
                                      .stem = stem,
                                      .class_names = run->train.class_names,
                                      .mean = run->train.mean,
                                      .std = run->train.std,
                                      .image_size = (int[]){run->train.height, run->train.width},
                                      .classes = run->train.classes});
    vit_run_forget_test(run);
}

/* Prints the smallest and the largest weight of a class that has images. */
static void announce_class_weights(const VitRun *run) {
    const Dataset *d = &run->train;
    const float *weights = run->class_weights;
    int least = -1, most = -1;
    for (int c = 0; c < d->classes; c++) {
        if (weights[c] > 0 && (least < 0 || weights[c] < weights[least])) least = c;
        if (weights[c] > 0 && (most < 0 || weights[c] > weights[most])) most = c;
    }
    const char *const *names = d->class_names;
    print_line("%s: losses have weights from %.3g (class %d%s%s) to %.3g (class "
               "%d%s%s)\n", d->name, (double)weights[least], least,
               names ? ", " : "", names ? names[least] : "", (double)weights[most], most, names ? ", " : "",
               names ? names[most] : "");
}

static void announce(const VitRun *run) {
    const VitSettings *s = run->model_settings;
    const Dataset *d = &run->train;
    char attn[VIT_ATTN_SIZE];
    if (distributed_ranks() > 1)
        printf("%d ranks, %d %s of each batch on every one\n", distributed_ranks(),
               training_local_batch(&run->training), run->training.unit);
    print_line("%s: %zu training and %zu %s %s, %d classes\n", d->name, d->count, run->test.count,
               vit_run_evaluated(run), run->training.unit, d->classes);
    if (run->held_out)
        print_line("%s: %g of the training images of each class are held out for validation, which chooses "
                   "best.safetensors\n", d->name,
                   (double)run->data->val_fraction);
    if (run->class_weights) announce_class_weights(run);
    if (d->height && !vit_run_has_model_size(run))
        print_line("%s: images of %dx%d are resized to img_size %dx%d: random resized crops in training, the centre in "
                   "tests\n",
                   d->name, d->height, d->width, s->img_size[0], s->img_size[1]);
    printf("%s: %zu parameters, %.1f million multiply-adds %s, %.0f MiB of activations\n",
           vit_attn_names(s, attn), run->vit.model.params.parameters, (double)vit_macs(&run->vit) / 1e6,
           s->frames > 1 ? "a clip" : "an image", (double)model_activation_bytes(&run->vit.model) / (1 << 20));
    training_announce(&run->training, "%d at a time", run->vit.model.batch);
    cosine_announce(run->schedule, cosine_peak(run->schedule, run->training.s->batch_size));
}

static float learning_rate(const VitRun *run) {
    float peak = cosine_peak(run->schedule, run->training.s->batch_size);
    return cosine_lr(run->schedule, peak, run->training.s->epochs, training_epochs(&run->training));
}

/* Writes the result of an evaluation to the log and after the epoch. */
static void note_accuracy(VitRun *run) {
    const VitEvaluation *e = &run->evaluation;
    training_value(&run->training, "top1", e->top1);
    training_value(&run->training, "top5", e->top5);
    training_evaluated(&run->training, e->top1, "top-1 %.2f %%  top-5 %.2f %%", e->top1, e->top5);
}

/* Evaluates the test images once with the weights that validation has chosen, if there are both. */
static void test_best(VitRun *run) {
    double validated = run->evaluation.top1;
    if (!vit_run_open_test(run)) return;
    evaluate(run);
    if (run->training.stopping) return;
    vit_eval_note_test(run);
    run->test_top1 = run->evaluation.top1;
    run->evaluation.top1 = validated;
}

/* Prints the result in the last line of the run. */
static int report(const VitRun *run) {
    const Training *t = &run->training;
    if (run->tested)
        return training_report(t, "validation top-1 %.2f %%, test top-1 %.2f %% with these weights (best.safetensors)",
                               t->state.best, run->test_top1);
    if (t->evaluated) return training_report(t, "top-1 %.2f %%, best %.2f %%", run->evaluation.top1, t->state.best);
    return training_report(t, "best top-1 %.2f %%", t->state.best);
}

/* == The run ====================================================================================================== */

/* Trains from the first or a saved step to the last epoch or a signal; returns the exit status.  The host does not wait
 * for a step: a GPU works on one step while the host prepares the next and uploads its images. */
static int train(VitRun *run) {
    Training *t = &run->training;
    LoaderPart images;
    int begin, end;
    training_data_and_model(run);
    if (distributed_rank() == 0) announce(run);
    vit_facts_open(run);
    for (; training_epoch_left(t); training_epoch_end(t)) {
        parts_start(&run->loader.parts, (uint32_t)t->state.epoch, t->state.batch);
        while (training_batch_left(t)) {
            step_begin(run, learning_rate(run));
            training_share(t, &begin, &end);
            for (int first = begin; first < end; first += images.n) {
                device_uploads_wait(); /* the loader fills the last part's memory again */
                loader_next(&run->loader, &images);
                load_images(run, &images);
                vit_facts_batch(run, images.n);
                forward_backward(run, first, images.n, first + images.n == end);
            }
            all_reduce_finish();
            training_update_unseen(t); /* AdamW */
            training_step_end(t, parts_stats(&run->loader.parts).stalled);
            if (training_row_is_due(t) || t->stopping) vit_run_read_columns(run);
            training_log(t);
            if (t->stopping) return training_stop_early(t);
        }
        training_epoch_trained(t);
        if (training_epoch_follows(t)) parts_start(&run->loader.parts, (uint32_t)t->state.epoch + 1, 0);
        if (!training_evaluation_is_due(t)) continue;
        evaluate(run);
        if (t->stopping) return training_stop_early(t);
        note_accuracy(run);
    }
    test_best(run);
    return t->stopping ? training_stop_tested(t) : report(run);
}

int main(int argc, char **argv) {
    static VitRun run;
    Training *t = &run.training;
    if (!program_begin(t, &facts, argc, argv)) return t->status;
    add_settings(&run, &t->config);
    if (!program_read(t, argc, argv)) return t->status;
    vit_use_settings(&t->config);
    if (!program_settle(t)) return t->status;
    check_settings(&run);
    if (!program_open(t)) return t->status;
    if (run.modes->describe) vit_run_describe(&run);
    else if (run.modes->eval) evaluate_split(&run);
    else if (run.modes->bench) measure_speed(&run);
    else if (*run.vit_modes->show_batch) vit_show_batch(&run);
    else if (*run.vit_modes->write_logits) vit_write_logits(&run);
    else if (run.predict->predict.count) vit_predict(&run);
    else if (*run.modes->parity) vit_parity(&run);
    else t->status = train(&run);
    vit_run_close_data(&run);
    teacher_close(&run.teacher);
    return program_close(t);
}
