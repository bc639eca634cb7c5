/* train_semantic_fpn: Semantic FPN, semantic segmentation, from ADE20K's files to mIoU.
 *
 * Read it from its end: main, and train above it, show the whole run.  Above them are, in this order, the settings,
 * evaluation, and output.  The model is layers/semantic_fpn/semantic_fpn.c; its data, first weights and the modes that
 * do not train are in layers/semantic_fpn/, pictures and labels come from data/segmentation/segmentation_loader.c, mIoU
 * from core/results/segmentation.c. */
#include <stdio.h>

#include "core/die.h"
#include "core/distributed.h"
#include "core/progress.h"
#include "core/signals.h"
#include "core/text.h"
#include "kernels/kernels.h"
#include "layers/semantic_fpn/run.h"

/* == Settings ===================================================================================================== */

static void add_settings(SemanticRun *run, Config *config) {
    run->modes = config_add(config, &mode_settings);
    run->predict = config_add(config, &predict_settings);
    run->outputs = config_add(config, &semantic_mode_settings);
    run->data = config_add(config, &segmentation_set_settings);
    run->loading = config_add(config, &loader_settings);
    run->augment = config_add(config, &segmentation_augment_settings);
    run->model_settings = semantic_fpn_add_settings(config);
    run->schedule = config_add(config, &dense_schedule_settings);
    run->own = config_add(config, &semantic_training_settings);
    config_add(config, &adamw_settings);
    run->training.s = config_add(config, &training_settings);
    run->view = config_add(config, &semantic_view_settings);
    config_default(config, "epochs", "50");
    config_default(config, "batch_size", "16");
    config_default(config, "weight_decay", "1e-4");
    config_default(config, "clip_grad", "0");
    config_default(config, "lr_decay", "poly");
    config_default(config, "warmup_steps", "0");
    config_explain(config, "describe", "Print the parts of the model, its parameters and its multiply-adds for an "
                                       "image of image_size, and stop");
    config_explain(config, "eval", "Print mIoU, accuracies and the results of every class of --init or --resume on the "
                                   "validation split, and stop");
    config_explain(config, "bench", "Measure training and inference speed on random images of image_size, print one line "
                                    "of JSON, and stop");
    config_explain(config, "predict", "Classify every pixel of these images: PNG or JPEG files, folders of them, or "
                                      "val:17 for one of the validation split");
    config_explain(config, "parity", "One forward and backward pass on the images and labels of this safetensors file; "
                                     "parameters in it replace the model's");
    config_explain(config, "run_dir", "Where config.ini, log.csv and the checkpoints go (default: the next free "
                                      "runs/<data>-semantic-fpn-<backbone>-<number>)");
    config_explain(config, "init", "Start from these weights (safetensors): of a whole segmentation model, or of a "
                                   "classifier for the backbone");
}

/* Checks settings of several groups. */
static void check_settings(SemanticRun *run) {
    int batch = run->training.s->batch_size;
    if (run->modes->bench) training_check_ranks(&run->training);
    if (!run->training.mode && batch < distributed_ranks())
        config_reject(&run->training.config, "batch_size", "{batch_size} is less than the %d ranks",
                      distributed_ranks());
    if (*run->outputs->draw && !run->predict->predict.count)
        die_usage("--draw: '%s' would be written by --predict of one picture only", run->outputs->draw);
    if (*run->modes->parity) run->model_settings->head_dropout = 0;
}

/* == Help ========================================================================================================= */

#define WINDOW_SETTINGS {"eval_windows", "window_size", "window_stride"}
static const ProgramMode modes[] = {
    {"describe", "print the parts, parameters and multiply-adds of the model", .alone = true},
    {"eval", "print mIoU and accuracies of --init or --resume on the validation images", .needs_weights = true,
     .outputs = {"per_class"}, .settings = WINDOW_SETTINGS},
    PROGRAM_MODE_BENCH,
    {"show_batch", "write the first training pictures and labels to a PNG file", .alone = true,
     .outputs = {"show_batch"}},
    {"predict", "classify every pixel of these images", .alone = true, .needs_weights = true,
     .outputs = {"json", "draw"}, .settings = WINDOW_SETTINGS},
    PROGRAM_MODE_PARITY,
    PROGRAM_MODES_OF_PAGES,
    {.name = NULL},
};

static const HelpLine basics[] = {
    {"data", "shapes, which are built in, or ADE20K's folder"},
    {"num_classes", "number of classes: 150 for ADE20K"},
    {"backbone", "the network that computes the features"},
    {"crop_size", "side of the training images"},
    {"steps", "steps of the optimizer; or give epochs"},
    {"batch_size", "images in a step of the optimizer"},
    {"lr", "learning rate after the warm-up"},
    {"precision", "of activations: float32 or bfloat16"},
    {"init", "begin with these weights, of a whole model or of a classifier"},
    PROGRAM_BASICS_OF_A_RUN,
};

static const ProgramFacts facts = {
    .name = "train_semantic_fpn",
    .introduction = "train_semantic_fpn trains Semantic FPN, which gives every pixel a class, and measures mIoU.",
    .examples =
        "  train_semantic_fpn --config configs/ade20k/shapes-demo.ini   train on the built-in scenes\n"
        "  train_semantic_fpn --config configs/ade20k/semantic-fpn-resnet-50.ini --data ADEChallengeData2016\n"
        "  train_semantic_fpn --resume runs/shapes-semantic-fpn-resnet-001  go on where a run stopped\n"
        "  train_semantic_fpn --init best.safetensors --predict street.jpg --draw classes.png\n"
        "  train_semantic_fpn --resume runs/ade20k-semantic-fpn-resnet-001 --eval --eval-windows slide\n",
    .basics = basics, .example = "train_semantic_fpn --config configs/ade20k/shapes-demo.ini", .word = "seg_norm",
    .reference = "docs/reference/settings-semantic-fpn.md",
    .chooser = "backbone", .modes = modes, .advice = "a lower lr", .decimals = 1,
};

/* == Speed ======================================================================================================== */

/* One part of a batch, whose images and labels are loaded. */
static void forward_backward(SemanticRun *run, int first, int n, bool last) {
    SemanticFpn *net = &run->net;
    const Training *t = &run->training;
    semantic_fpn_draw(net, t->s->seed, (uint32_t)t->state.step, (size_t)first);
    semantic_fpn_forward(net);
    semantic_fpn_loss(net, 1.0f / (float)t->s->batch_size);
    step_add_losses(net->model.params.step_stats, net->loss, n);
    semantic_fpn_backward(net, last ? all_reduce_start : NULL);
}

/* AdamW, with the gradients of all ranks. */
static void update(SemanticRun *run) {
    all_reduce_finish();
    training_update_unseen(&run->training);
    semantic_fpn_fold(&run->net);
}

/* --bench */
static void measure_speed(SemanticRun *run) {
    Bench b;
    semantic_bench_begin(&b, run);
    while (bench_next(&b)) {
        semantic_fpn_set_training(&run->net, b.training);
        if (b.training) training_step_begin(&run->training, run->schedule->lr);
        while (bench_part(&b)) {
            semantic_bench_load(&b, run);
            if (b.training) forward_backward(run, b.first, b.n, b.last);
            else semantic_bench_infer(run);
        }
        if (b.training) update(run);
    }
    semantic_bench_print(&b, run);
}

/* == Evaluation =================================================================================================== */

/* Counts the predicted classes of the validation pictures, each rank on its share; the EMA weights are evaluated if
 * there are any.  A signal ends it early, without a result. */
static void evaluate(SemanticRun *run) {
    size_t count = (size_t)run->val.count, done = 0;
    double seconds = 0;
    SegmentationPart part;
    semantic_fpn_evaluation_begin(&run->net);
    semantic_eval_begin(run);
    parts_start(&run->val_loader.parts, 0, 0);
    while (!stop_signal && segmentation_next(&run->val_loader, &part)) {
        double began = now_seconds();
        semantic_eval_add(run, &part);
        seconds += now_seconds() - began;
        done += (size_t)part.n;
        progress_show(false, "evaluating %zu/%zu", done * (size_t)distributed_ranks(), count);
    }
    run->infer_s = seconds / (double)(done ? done : 1);
    semantic_eval_end(run);
    semantic_fpn_evaluation_end(&run->net);
}

/* --eval */
static void evaluate_weights(SemanticRun *run) {
    semantic_run_open_data(run, false);
    semantic_run_open_model(run, false);
    semantic_eval_open(run);
    evaluate(run);
    if (!run->training.stopping) semantic_eval_report(run);
}

/* == Training ===================================================================================================== */

/* The columns of log.csv besides those of every program. */
static void add_columns(Training *t) {
    if (!training_evaluates(t)) return;
    training_column(t, "miou", "%.5f", LOG_MIDDLE);
    training_column(t, "macc", "%.5f", LOG_MIDDLE);
    training_column(t, "aacc", "%.5f", LOG_MIDDLE);
    training_column(t, "infer_s", "%.6f", LOG_LAST);
}

/* Opens the data and the model of a training run, with its initial weights or the state of the resumed run. */
static void training_data_and_model(SemanticRun *run) {
    Training *t = &run->training;
    char stem[128];
    semantic_run_open_data(run, true);
    semantic_run_open_model(run, true);
    if (training_evaluates(t)) semantic_eval_open(run);
    add_columns(t);
    snprintf(stem, sizeof stem, "%s-semantic-fpn-%s", run->train.name, semantic_run_backbone(run));
    training_limit_steps(t, (uint64_t)run->own->steps, run->loader.parts.batches);
    dense_schedule_fit(&t->config, run->schedule,
                       t->most_steps ? t->most_steps : run->loader.parts.batches * (uint64_t)t->s->epochs);
    training_open(t, &(TrainingStart){.params = &run->net.model.params, .batches = run->loader.parts.batches,
                                      .examples = (size_t)run->train.count,
                                      .stem = stem, .class_names = run->train.names.at,
                                      .classes = run->train.names.count});
    semantic_fpn_fold(&run->net); /* batch norms into the weights, which training_open may have read from a state */
}

static void announce(SemanticRun *run) {
    SemanticFpn *net = &run->net;
    const SemanticRoom *room = &run->room;
    if (distributed_ranks() > 1) printf("%d ranks\n", distributed_ranks());
    print_line("%s: %d training and %d validation images, %d classes\n", run->train.name, run->train.count,
               run->val.count, run->model_settings->num_classes);
    printf("%s: %zu trainable parameters, %.1f million multiply-adds for an image of %d x %d, %.0f MiB of "
           "activations\n",
           semantic_run_backbone(run), net->model.params.parameters,
           (double)semantic_fpn_macs(net, room->H, room->W) / 1e6, room->H, room->W,
           (double)model_activation_bytes(&net->model) / (1 << 20));
    training_announce(&run->training, "%d at a time", room->B);
}

static void note_evaluation(SemanticRun *run) {
    Training *t = &run->training;
    const SegmentationScores *s = &run->scores;
    training_value(t, "miou", s->miou);
    training_value(t, "macc", s->macc);
    training_value(t, "aacc", s->aacc);
    training_value(t, "infer_s", run->infer_s);
    training_evaluated(t, 100 * s->miou, "mIoU %.2f  aAcc %.2f", 100 * s->miou, 100 * s->aacc);
}

/* Prints the result in the last line of the run. */
static int report(const SemanticRun *run) {
    const Training *t = &run->training;
    if (!t->evaluated) return training_report(t, "best mIoU %.2f", t->state.best);
    return training_report(t, "mIoU %.2f, aAcc %.2f, best mIoU %.2f", 100 * run->scores.miou, 100 * run->scores.aacc,
                           t->state.best);
}

/* Trains from the first or a saved step to the last one or a signal; returns the exit status. */
static int train(SemanticRun *run) {
    Training *t = &run->training;
    SegmentationPart part;
    int begin, end;
    training_data_and_model(run);
    if (distributed_rank() == 0) announce(run);
    semantic_facts(run);
    training_share(t, &begin, &end);
    for (; training_epoch_left(t); training_epoch_end(t)) {
        parts_start(&run->loader.parts, (uint32_t)t->state.epoch, t->state.batch);
        while (training_batch_left(t)) {
            training_step_begin(t, dense_lr(run->schedule, t->state.step, training_steps(t), t->state.epoch));
            for (int next = begin; next < end; next += part.n) {
                device_uploads_wait(); /* the loader fills the last part's memory again */
                segmentation_next(&run->loader, &part);
                semantic_run_load(run, &part);
                forward_backward(run, next, part.n, next + part.n == end);
            }
            update(run);
            training_step_end(t, parts_stats(&run->loader.parts).stalled);
            training_log(t);
            if (t->stopping) return training_stop_early(t);
        }
        training_epoch_trained(t);
        if (training_epoch_follows(t)) parts_start(&run->loader.parts, (uint32_t)t->state.epoch + 1, 0);
        if (!training_evaluation_is_due(t)) continue;
        evaluate(run);
        if (t->stopping) return training_stop_early(t);
        note_evaluation(run);
        semantic_facts_evaluated(run);
    }
    return report(run);
}

int main(int argc, char **argv) {
    static SemanticRun run;
    Training *t = &run.training;
    if (!program_begin(t, &facts, argc, argv)) return t->status;
    add_settings(&run, &t->config);
    if (!program_read(t, argc, argv)) return t->status;
    semantic_fpn_use_settings(&t->config);
    if (!program_settle(t)) return t->status;
    check_settings(&run);
    if (!program_open(t)) return t->status;
    if (run.modes->describe) semantic_run_describe(&run);
    else if (run.modes->eval) evaluate_weights(&run);
    else if (run.modes->bench) measure_speed(&run);
    else if (*run.outputs->show_batch) semantic_show_batch(&run);
    else if (run.predict->predict.count) semantic_predict(&run);
    else if (*run.modes->parity) semantic_parity(&run);
    else t->status = train(&run);
    semantic_run_close(&run);
    return program_close(t);
}
