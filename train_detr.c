/* train_detr: SMCA-DETR, an object detector, from COCO's files to COCO's twelve metrics.
 *
 * Read it from its end: main, and train above it, show the whole run.  Above them are, in this order, the settings,
 * evaluation, and output.  The model is layers/detr/detr.c; its initial weights, the loss of a step and the modes that
 * do not train are in layers/detr/, matching and COCO's metrics in detection/, pictures and boxes come from
 * data/detection/detection_loader.c. */
#include <math.h>
#include <stdio.h>

#include "core/die.h"
#include "core/distributed.h"
#include "core/progress.h"
#include "core/signals.h"
#include "core/text.h"
#include "kernels/kernels.h"
#include "layers/detr/run.h"

/* == Settings ===================================================================================================== */

static void add_settings(DetrRun *run, Config *config) {
    run->d.modes = config_add(config, &mode_settings);
    run->d.predict = config_add(config, &predict_settings);
    run->d.outputs = config_add(config, &detection_output_settings);
    run->d.data = config_add(config, &detection_set_settings);
    run->d.loading = config_add(config, &loader_settings);
    run->d.sizes = config_add(config, &size_settings);
    run->d.augment = config_add(config, &detection_augment_settings);
    run->model_settings = detr_add_settings(config);
    run->backbone = config_add(config, &backbone_settings);
    run->schedule = config_add(config, &drop_settings);
    config_add(config, &adamw_settings);
    run->d.training.s = config_add(config, &training_settings);
    run->d.view = config_add(config, &detection_view_settings);
    config_default(config, "epochs", "50");
    config_default(config, "batch_size", "16");
    config_default(config, "weight_decay", "1e-4");
    config_default(config, "weight_decay_of", "all");
    config_default(config, "clip_grad", "0.1");
    config_example(config, "feature_map", "--share-heads"); /* without it, only mlp is accepted */
    config_explain(config, "describe", "Print the parts of the model, its parameters and its multiply-adds for an "
                                       "image of image_size, and stop");
    config_explain(config, "eval", "Print COCO's twelve metrics of --init or --resume on the validation split, and "
                                   "stop");
    config_explain(config, "bench", "Measure training and inference speed on random images of image_size, print one "
                                    "line of JSON, and stop");
    config_explain(config, "predict", "Detect the objects in these images: JPEG, PNG, BMP or WebP files, folders of "
                                      "them, or val:17 for one of the validation split");
    config_explain(config, "parity", "One forward and backward pass on the images and boxes of this safetensors file; "
                                     "parameters in it replace the model's");
    config_explain(config, "out", "Where --parity writes logits, boxes, loss and grad.<parameter>");
    config_explain(config, "weight_decay", "Decoupled weight decay of all trained parameters");
    config_explain(config, "lr_drop", "Epochs after which lr and lr_backbone fall to a tenth; they fall again after "
                                      "twice as many (0: never)");
    config_explain(config, "run_dir", "Where config.ini, log.csv and the checkpoints go (default: the next free "
                                      "runs/<data>-detr-<attn>-<number>)");
    config_explain(config, "init", "Start from these weights of a whole detector (safetensors, the official code's "
                                   "names)");
}

/* Checks settings of several groups. */
static void check_settings(DetrRun *run) {
    const Config *config = &run->d.training.config;
    const char *rate = config_origin(config, "lr_backbone");
    detector_check_settings(&run->d);
    if (run->d.training.adamw->weight_decay_of != DECAY_OF_ALL)
        config_reject(config, "weight_decay_of", 
                      "{weight_decay_of}: in DETR all parameters decay: use weight_decay_of all");
    if (run->model_settings->freeze_backbone && run->backbone->lr_backbone > 0 && rate && *rate == '-')
        config_reject(config, "lr_backbone", "{lr_backbone} would train the backbone, but {freeze_backbone} does not: "
                                             "leave one of them out");
    if (run->backbone->lr_backbone == 0 && !run->model_settings->freeze_backbone && run->d.training.resumed)
        config_reject(config, "lr_backbone", "{lr_backbone} would freeze the backbone, which the run in %s trains to "
                                             "its end", run->d.training.s->run_dir);
    if (run->backbone->lr_backbone == 0) run->model_settings->freeze_backbone = true;
    if (*run->d.modes->parity) run->model_settings->dropout = 0;
}

/* == Help ========================================================================================================= */

static const ProgramMode modes[] = {
    {"describe", "print the parts, parameters and multiply-adds of the model", .alone = true},
    {"eval", "print COCO's twelve metrics of --init or --resume on the validation images", .needs_weights = true,
     .outputs = {"results"}},
    PROGRAM_MODE_BENCH,
    {"predict", "detect the objects in these images", .alone = true, .needs_weights = true,
     .outputs = {"json", "draw"}},
    PROGRAM_MODE_PARITY,
    PROGRAM_MODES_OF_PAGES,
    {.name = NULL},
};

static const HelpLine basics[] = {
    {"data", "shapes, which are built in, or COCO's folder"},
    {"num_classes", "the largest category id plus one: 91 for COCO"},
    {"attn", "the attention operator of the encoder; --help lists all of them"},
    {"scale_max", "the largest short side to which training images are resized"},
    {"epochs", "passes over the training images"},
    {"batch_size", "images in a step of the optimizer"},
    {"lr", "initial learning rate; --lr-backbone is that of the backbone"},
    {"precision", "of activations: float32 or bfloat16"},
    {"init", "begin with these weights of a whole detector"},
    PROGRAM_BASICS_OF_A_RUN,
};

static const ProgramFacts facts = {
    .name = "train_detr",
    .introduction = "train_detr trains SMCA-DETR detectors on a ResNet backbone and computes COCO's twelve metrics.",
    .examples =
        "  train_detr --config configs/coco/shapes-demo.ini         train on the built-in scenes, 40 minutes\n"
        "  train_detr --config configs/coco/smca.ini --data coco    train on COCO's folder\n"
        "  train_detr --resume runs/shapes-detr-softmax-001         go on where a run stopped\n"
        "  train_detr --init best.safetensors --predict street.jpg --draw boxes.png\n"
        "  train_detr --resume runs/coco-detr-softmax-001 --eval --results detections.json\n"
        "  train_detr --config configs/coco/smca-ripple.ini --describe\n",
    .basics = basics, .example = "train_detr --config configs/coco/shapes-demo.ini", .word = "ripple",
    .reference = "docs/reference/settings-detr.md",
    .chooser = "attn", .modes = modes, .advice = "a lower lr", .decimals = 1,
};

/* == Evaluation =================================================================================================== */

/* Runs the model on every image of the validation split, each rank on its share; a signal ends it early. */
static void detect_all(DetrRun *run, CocoResults *found) {
    size_t count = (size_t)run->d.val.coco.image_count, done = 0;
    double seconds = 0;
    ValidationLoss sum = {0};
    DetectionPart part;
    parts_start(&run->d.val_loader.parts, 0, 0);
    while (!stop_signal && detection_next(&run->d.val_loader, &part)) {
        double began = now_seconds();
        detr_run_load(run, &part, run->d.val.mean, run->d.val.std);
        detr_forward(&run->detr);
        found_take(found, run, &part, &sum);
        seconds += now_seconds() - began;
        done += (size_t)part.n;
        progress_show(false, "evaluating %zu/%zu", done * (size_t)distributed_ranks(), count);
    }
    double sums[] = {sum.loss, sum.boxes};
    training_sum(&run->d.training, sums, 2);
    run->d.training.validation_loss = sums[0] / fmax(sums[1], 1);
    run->d.infer_s = seconds / fmax((double)done, 1);
}

/* Computes run->found, COCO's metrics of the validation split, on all ranks; `results` lists all detections, unless it
 * is NULL.  The EMA weights are evaluated if there are any.  A signal ends it early, without a result. */
static void evaluate(DetrRun *run, CocoResults *results) {
    Model *model = &run->detr.model;
    CocoResults own = {0}, *list = results ? results : &own;
    Error error;
    model_evaluation_begin(model);
    if (model->params.ema) detr_fold(&run->detr);
    detect_all(run, list);
    model_evaluation_end(model);
    if (model->params.ema) detr_fold(&run->detr);
    if (!run->d.training.stopping) {
        detector_exchange(&run->d, list);
        if (!coco_eval(run->found, run->d.category_ap, COCO_EVAL_BOXES, &run->d.val.coco, list, NULL, &error))
            die("%s: %s", run->d.val.name, error.text);
        detector_facts(&run->d, training_facts(&run->d.training), list);
    }
    coco_results_free(&own);
}

/* --eval */
static void evaluate_weights(DetrRun *run) {
    CocoResults results = {0};
    int at_once = run->d.view->eval_batch;
    detr_run_open_data(run, false);
    detector_check_categories(&run->d);
    detr_run_open_model(run, at_once, run->d.shorter, run->d.longer, false);
    detr_run_open_buffers(run, at_once, 1, false);
    validation_loss_open(run);
    evaluate(run, &results);
    detr_eval_report(run, &results);
    coco_results_free(&results);
}

/* == Training ===================================================================================================== */

/* The columns of log.csv besides those of every program. */
static void add_columns(Training *t) {
    if (training_evaluates(t)) {
        training_column(t, "ap", "%.5f", LOG_MIDDLE);
        training_column(t, "ap50", "%.5f", LOG_MIDDLE);
    }
    training_column(t, "focal", "%.6f", LOG_MIDDLE);
    training_column(t, "l1", "%.6f", LOG_MIDDLE);
    training_column(t, "giou", "%.6f", LOG_MIDDLE);
    training_column(t, "class_error", "%.2f", LOG_MIDDLE);
    if (!training_evaluates(t)) return;
    training_column(t, "ap_small", "%.5f", LOG_LAST);
    training_column(t, "ap_medium", "%.5f", LOG_LAST);
    training_column(t, "ap_large", "%.5f", LOG_LAST);
    training_column(t, "infer_s", "%.6f", LOG_LAST);
}

/* Opens the data and the model of a training run, with its initial weights or the state of the resumed run. */
static void training_data_and_model(DetrRun *run) {
    char stem[128];
    detr_run_open_data(run, true);
    int room = run->d.loader.parts.room > run->d.view->eval_batch ? run->d.loader.parts.room : run->d.view->eval_batch;
    detr_run_open_model(run, room, run->d.shorter, run->d.longer, true);
    detr_run_open_buffers(run, room, run->d.train.most_boxes, true);
    validation_loss_open(run);
    add_columns(&run->d.training);
    snprintf(stem, sizeof stem, "%s-detr-%s", run->d.train.name, run->model_settings->attn->name);
    training_open(&run->d.training, &(TrainingStart){.params = &run->detr.model.params,
                                                   .batches = run->d.loader.parts.batches,
                                                   .examples = (size_t)run->d.train.coco.image_count,
                                                   .stem = stem,
                                                   .class_names = run->d.names,
                                                   .classes = run->model_settings->num_classes});
    detr_fold(&run->detr); /* batch norms into the weights, which training_open may have read from a state */
}

static void announce(DetrRun *run) {
    const Coco *train = &run->d.train.coco;
    if (distributed_ranks() > 1) printf("%d ranks\n", distributed_ranks());
    print_line("%s: %d training and %d validation images, %zu training boxes of %d categories, %zu images without "
               "any\n",
               run->d.train.name, train->image_count, run->d.val.coco.image_count, run->d.train.boxes,
               train->category_count, run->d.train.empty);
    printf("%s: %zu trainable parameters, %.1f million multiply-adds for an image of %d x %d, "
           "%.0f MiB of activations\n",
           run->model_settings->attn->name, run->detr.model.params.parameters,
           (double)detr_macs(&run->detr, run->d.shorter, run->d.longer) / 1e6, run->d.shorter, run->d.longer,
           (double)model_activation_bytes(&run->detr.model) / (1 << 20));
    training_announce(&run->d.training, "at most %d at a time; batches padded as a whole would be %.0f %% padding",
                      run->d.loader.parts.room, 100 * detection_padding(&run->d.loader));
}

static void note_step(Training *t, const StepLoss *loss) {
    double class_error = loss->targets > 0 ? 100 * loss->wrong / loss->targets : 0;
    training_value(t, "focal", loss->focal);
    training_value(t, "l1", loss->l1);
    training_value(t, "giou", loss->giou);
    training_value(t, "class_error", class_error);
    training_note(t, "  class error %.0f %%", class_error);
}

static void note_evaluation(DetrRun *run) {
    Training *t = &run->d.training;
    const double *found = run->found;
    training_value(t, "ap", found[COCO_AP]);
    training_value(t, "ap50", found[COCO_AP50]);
    training_value(t, "ap_small", found[COCO_AP_SMALL]);
    training_value(t, "ap_medium", found[COCO_AP_MEDIUM]);
    training_value(t, "ap_large", found[COCO_AP_LARGE]);
    training_value(t, "infer_s", run->d.infer_s);
    training_evaluated(t, 100 * found[COCO_AP], "AP %.2f  AP50 %.2f", 100 * found[COCO_AP], 100 * found[COCO_AP50]);
}

/* Prints the result in the last line of the run. */
static int report(const DetrRun *run) {
    const Training *t = &run->d.training;
    if (!t->evaluated) return training_report(t, "best AP %.2f", t->state.best);
    return training_report(t, "AP %.2f, AP50 %.2f, best AP %.2f", 100 * run->found[COCO_AP],
                           100 * run->found[COCO_AP50], t->state.best);
}

/* Trains from the first or a saved step to the last epoch or a signal; returns the exit status.  The loss is divided by
 * the number of boxes in the whole batch, so every rank counts them before the step begins. */
static int train(DetrRun *run) {
    Training *t = &run->d.training;
    Detr *detr = &run->detr;
    DetectionPart part;
    int begin, end;
    training_data_and_model(run);
    if (distributed_rank() == 0) announce(run);
    detr_facts(run);
    training_share(t, &begin, &end);
    for (; training_epoch_left(t); training_epoch_end(t)) {
        parts_start(&run->d.loader.parts, (uint32_t)t->state.epoch, t->state.batch);
        while (training_batch_left(t)) {
            StepLoss loss = {.boxes = detection_boxes_of(&run->d.loader, (size_t)t->state.batch)};
            training_step_begin(t, drop_lr(run->schedule, training_epochs(t)));
            for (int next = begin; next < end; next += part.n) {
                device_uploads_wait(); /* the loader fills the last part's memory again */
                detection_next(&run->d.loader, &part);
                detr_run_load(run, &part, run->d.train.mean, run->d.train.std);
                detr_draw(detr, t->s->seed, (uint32_t)t->state.step, (size_t)next);
                detr_forward(detr);
                detection_loss(run, &part, &loss); /* matching, loss, and its gradients for the predictions */
                detr_backward(detr, next + part.n == end ? all_reduce_start : NULL);
            }
            detr_run_update(run, &loss); /* AdamW, with the gradients of all ranks */
            training_step_end(t, parts_stats(&run->d.loader.parts).stalled);
            note_step(t, &loss);
            training_log(t);
            if (t->stopping) return training_stop_early(t);
        }
        training_epoch_trained(t);
        if (training_epoch_follows(t)) parts_start(&run->d.loader.parts, (uint32_t)t->state.epoch + 1, 0);
        if (!training_evaluation_is_due(t)) continue;
        evaluate(run, NULL);
        if (t->stopping) return training_stop_early(t);
        note_evaluation(run);
    }
    return report(run);
}

int main(int argc, char **argv) {
    static DetrRun run;
    Training *t = &run.d.training;
    if (!program_begin(t, &facts, argc, argv)) return t->status;
    add_settings(&run, &t->config);
    if (!program_read(t, argc, argv)) return t->status;
    detr_use_settings(&t->config);
    if (!program_settle(t)) return t->status;
    check_settings(&run);
    if (!program_open(t)) return t->status;
    if (run.d.modes->describe) detr_run_describe(&run);
    else if (run.d.modes->eval) evaluate_weights(&run);
    else if (run.d.modes->bench) detr_bench(&run);
    else if (run.d.predict->predict.count) detr_predict(&run);
    else if (*run.d.modes->parity) detr_parity(&run);
    else t->status = train(&run);
    detector_close_data(&run.d);
    return program_close(t);
}
