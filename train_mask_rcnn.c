/* train_mask_rcnn: Mask R-CNN, which detects and segments instances, from COCO's files to COCO's twelve metrics of boxes
 * and of masks.
 *
 * Read it from its end: main, and train above it, show the whole run.  Above them are, in this order, the settings,
 * evaluation, and output.  The model is layers/mask_rcnn/mask_rcnn.c, its losses are in layers/mask_rcnn/loss.c, and
 * the modes that do not train are in the same folder; anchors, proposals and sampling are in detection/regions/;
 * pictures, boxes and masks come from data/detection/detection_loader.c. */
#include <math.h>
#include <stdio.h>

#include "core/die.h"
#include "core/distributed.h"
#include "core/progress.h"
#include "core/signals.h"
#include "core/text.h"
#include "kernels/kernels.h"
#include "layers/mask_rcnn/run.h"

/* == Settings ===================================================================================================== */

static void add_settings(MaskRun *run, Config *config) {
    run->d.modes = config_add(config, &mode_settings);
    run->d.predict = config_add(config, &predict_settings);
    run->d.outputs = config_add(config, &detection_output_settings);
    run->d.data = config_add(config, &detection_set_settings);
    run->d.loading = config_add(config, &loader_settings);
    run->d.sizes = config_add(config, &size_settings);
    run->d.augment = config_add(config, &detection_augment_settings);
    backbone_add_settings(config);
    run->model_settings = config_add(config, &mask_rcnn_settings);
    run->schedule = config_add(config, &dense_schedule_settings);
    run->decay = config_add(config, &layer_decay_settings);
    config_add(config, &adamw_settings);
    run->d.training.s = config_add(config, &training_settings);
    run->d.view = config_add(config, &detection_view_settings);
    config_default(config, "epochs", "12");
    config_default(config, "batch_size", "16");
    config_default(config, "weight_decay", "0.05");
    config_default(config, "clip_grad", "0");
    config_explain(config, "describe", "Print the parts of the model, its parameters and its multiply-adds for an "
                                       "image of image_size, and stop");
    config_explain(config, "eval", "Print COCO's twelve metrics, of boxes and of masks, of --init or --resume on the "
                                   "validation split, and stop");
    config_explain(config, "bench", "Measure training and inference speed on random images of image_size, print one "
                                    "line of JSON, and stop");
    config_explain(config, "predict", "Detect the objects in these images and their masks: JPEG, PNG, BMP or WebP files, "
                                      "folders of them, or val:17 for one of the validation split");
    config_explain(config, "parity", "One forward and backward pass on the images, objects and proposals of this "
                                     "safetensors file; parameters in it replace the model's");
    config_explain(config, "out", "Where --parity writes losses, maps, class logits and grad.<parameter>");
    config_explain(config, "run_dir", "Where config.ini, log.csv and the checkpoints go (default: the next free "
                                      "runs/<data>-mask-rcnn-<number>)");
    config_explain(config, "init", "Start from these weights (safetensors): a whole model with torchvision's names, or a "
                                   "classifier for the backbone");
}

/* == Help ========================================================================================================= */

static const ProgramMode modes[] = {
    {"describe", "print the parts, parameters and multiply-adds of the model", .alone = true},
    {"eval", "print COCO's metrics of --init or --resume on the validation images", .needs_weights = true,
     .outputs = {"results"}},
    PROGRAM_MODE_BENCH,
    {"predict", "detect the objects in these images and their masks", .alone = true, .needs_weights = true,
     .outputs = {"json", "draw"}},
    PROGRAM_MODE_PARITY,
    PROGRAM_MODES_OF_PAGES,
    {.name = NULL},
};

static const HelpLine basics[] = {
    {"data", "shapes, which are built in, or COCO's folder"},
    {"num_classes", "number of categories: 80 for COCO"},
    {"backbone", "the network that computes the feature maps"},
    {"scale_max", "the largest short side to which training images are resized"},
    {"epochs", "passes over the training images"},
    {"batch_size", "images in a step of the optimizer"},
    {"lr", "learning rate after the warm-up"},
    {"precision", "of activations: float32 or bfloat16"},
    {"init", "begin with these weights of a whole model or a classifier"},
    PROGRAM_BASICS_OF_A_RUN,
};

static const ProgramFacts facts = {
    .name = "train_mask_rcnn",
    .introduction = "train_mask_rcnn trains Mask R-CNN and computes COCO's twelve metrics of boxes and of masks.",
    .examples =
        "  train_mask_rcnn --config configs/coco/mask-rcnn-demo.ini      train on the built-in scenes\n"
        "  train_mask_rcnn --config configs/coco/mask-rcnn-resnet-50.ini --data coco\n"
        "  train_mask_rcnn --resume runs/shapes-mask-rcnn-001               go on where a run stopped\n"
        "  train_mask_rcnn --init best.safetensors --predict street.jpg --draw masks.png\n"
        "  train_mask_rcnn --resume runs/coco-mask-rcnn-001 --eval --results instances.json\n"
        "  train_mask_rcnn --config configs/coco/mask-rcnn-resnet-50.ini --describe\n",
    .basics = basics, .example = "train_mask_rcnn --config configs/coco/mask-rcnn-demo.ini", .word = "backbone",
    .reference = "docs/reference/settings-mask-rcnn.md",
    .chooser = "backbone", .modes = modes, .advice = "a lower lr", .decimals = 1,
};

/* == Evaluation =================================================================================================== */

/* Runs the model on every image of the validation split, each rank on its share; a signal ends it early. */
static void detect_all(MaskRun *run, CocoResults *found) {
    Detector *d = &run->d;
    size_t count = (size_t)d->val.coco.image_count, done = 0;
    double seconds = 0;
    DetectionPart part;
    parts_start(&d->val_loader.parts, 0, 0);
    while (!stop_signal && detection_next(&d->val_loader, &part)) {
        double began = now_seconds();
        mask_run_load(run, &part, d->val.mean, d->val.std);
        mask_run_detect(run, &part.size[0][0], d->modes->eval ? d->val.name : NULL);
        for (int b = 0; b < part.n; b++) {
            if (part.image[b] < 0) continue; /* unreadable image: no detections */
            const CocoImage *image = &d->val.coco.images[part.image[b]];
            mask_run_results(run, b, part.size[b], image->id, image->width, image->height, found);
        }
        seconds += now_seconds() - began;
        done += (size_t)part.n;
        progress_show(false, "evaluating %zu/%zu", done * (size_t)distributed_ranks(), count);
    }
    training_sum(&d->training, NULL, 0); /* has a rank received a signal? */
    d->infer_s = seconds / fmax((double)done, 1);
}

/* Computes run->found and found_masks, COCO's metrics of the validation split, on all ranks; `results` lists all
 * detections, unless it is NULL.  The EMA weights are evaluated if there are any.  A signal ends it early, without a
 * result. */
static void evaluate(MaskRun *run, CocoResults *results) {
    Detector *d = &run->d;
    Model *model = &run->model.model;
    CocoResults own = {0}, *list = results ? results : &own;
    Error error;
    model_evaluation_begin(model);
    if (model->params.ema) mask_rcnn_fold(&run->model);
    detect_all(run, list);
    model_evaluation_end(model);
    if (model->params.ema) mask_rcnn_fold(&run->model);
    if (!d->training.stopping) {
        detector_exchange(d, list);
        if (!coco_eval(run->found, NULL, COCO_EVAL_BOXES, &d->val.coco, list, NULL, &error) ||
            !coco_eval(run->found_masks, d->category_ap, COCO_EVAL_MASKS, &d->val.coco, list, NULL, &error))
            die("%s: %s", d->val.name, error.text);
        detector_facts(d, training_facts(&d->training), list);
    }
    coco_results_free(&own);
}

/* --eval */
static void evaluate_weights(MaskRun *run) {
    Detector *d = &run->d;
    CocoResults results = {0};
    mask_run_open_data(run, false);
    detector_check_categories(d);
    mask_run_open_model(run, d->view->eval_batch, d->shorter, d->longer, false);
    mask_run_open_evaluation(run);
    evaluate(run, &results);
    mask_run_report(run, &results);
    coco_results_free(&results);
}

/* == Training ===================================================================================================== */

static const char *const term_names[LOSS_TERMS] = {
    [LOSS_OBJECTNESS] = "objectness", [LOSS_RPN_BOX] = "rpn_box", [LOSS_CLASS] = "class", [LOSS_BOX] = "box",
    [LOSS_MASK] = "mask",
};

/* The columns of log.csv besides those of every program. */
static void add_columns(Training *t) {
    static const char *const evaluated[] = {"ap", "ap50", "ap75", "mask_ap", "mask_ap50", "mask_ap75"};
    for (int i = 0; i < 6 && training_evaluates(t); i++) training_column(t, evaluated[i], "%.5f", LOG_MIDDLE);
    for (int i = 0; i < LOSS_TERMS; i++) training_column(t, term_names[i], "%.6f", LOG_MIDDLE);
    training_column(t, "class_error", "%.2f", LOG_MIDDLE);
    if (training_evaluates(t)) training_column(t, "infer_s", "%.6f", LOG_LAST);
}

/* Opens the data and the model of a training run, with its initial weights or the state of the resumed run. */
static void training_data_and_model(MaskRun *run) {
    Detector *d = &run->d;
    Training *t = &d->training;
    char stem[128];
    mask_run_open_data(run, true);
    int room = d->loader.parts.room > d->view->eval_batch ? d->loader.parts.room : d->view->eval_batch;
    mask_run_open_model(run, room, d->shorter, d->longer, true);
    loss_work_open(&run->work, &run->model, d->train.most_boxes, 0);
    mask_run_open_evaluation(run);
    add_columns(t);
    snprintf(stem, sizeof stem, "%s-mask-rcnn", d->train.name);
    dense_schedule_fit(&t->config, run->schedule, d->loader.parts.batches * (uint64_t)t->s->epochs);
    training_open(t, &(TrainingStart){.params = &run->model.model.params,
                                      .batches = d->loader.parts.batches,
                                      .examples = (size_t)d->train.coco.image_count,
                                      .stem = stem,
                                      .class_names = d->names,
                                      .classes = d->ids});
    mask_rcnn_fold(&run->model); /* batch norms into the weights, which training_open may have read from a state */
}

static void announce(MaskRun *run) {
    const Detector *d = &run->d;
    const Coco *train = &d->train.coco;
    MaskRcnn *m = &run->model;
    if (distributed_ranks() > 1) printf("%d ranks\n", distributed_ranks());
    print_line("%s: %d training and %d validation images, %zu training objects of %d categories\n", d->train.name,
               train->image_count, d->val.coco.image_count, d->train.targets, train->category_count);
    printf("%zu trainable parameters, %.1f million multiply-adds for an image of %d x %d, %.0f MiB of activations\n",
           m->model.params.parameters,
           (double)mask_rcnn_macs(m, m->H, m->W, m->settings.proposals, m->settings.detections) / 1e6, m->H, m->W,
           (double)model_activation_bytes(&m->model) / (1 << 20));
    training_announce(&d->training, "at most %d at a time; batches padded as a whole would be %.0f %% padding",
                      d->loader.parts.room, 100 * detection_padding(&d->loader));
}

static void note_step(Training *t, const MaskRcnnLoss *loss) {
    double error = loss->regions > 0 ? 100 * (1 - loss->right / loss->regions) : 0;
    for (int i = 0; i < LOSS_TERMS; i++) training_value(t, term_names[i], loss->term[i]);
    training_value(t, "class_error", error);
    training_note(t, "  class error %.0f %%", error);
}

static void note_evaluation(MaskRun *run) {
    Training *t = &run->d.training;
    double boxes = run->found[COCO_AP], masks = run->found_masks[COCO_AP];
    training_value(t, "ap", boxes);
    training_value(t, "ap50", run->found[COCO_AP50]);
    training_value(t, "ap75", run->found[COCO_AP75]);
    training_value(t, "mask_ap", masks);
    training_value(t, "mask_ap50", run->found_masks[COCO_AP50]);
    training_value(t, "mask_ap75", run->found_masks[COCO_AP75]);
    training_value(t, "infer_s", run->d.infer_s);
    training_evaluated(t, 100 * masks, "box AP %.2f  mask AP %.2f  mask AP50 %.2f", 100 * boxes, 100 * masks,
                       100 * run->found_masks[COCO_AP50]);
}

/* Prints the result in the last line of the run. */
static int report(const MaskRun *run) {
    const Training *t = &run->d.training;
    if (!t->evaluated) return training_report(t, "best mask AP %.2f", t->state.best);
    return training_report(t, "box AP %.2f, mask AP %.2f, mask AP50 %.2f, best mask AP %.2f",
                           100 * run->found[COCO_AP], 100 * run->found_masks[COCO_AP],
                           100 * run->found_masks[COCO_AP50], t->state.best);
}

static float learning_rate(const MaskRun *run) {
    const Training *t = &run->d.training;
    return dense_lr(run->schedule, t->state.step, training_steps(t), t->state.epoch);
}

/* Trains from the first or a saved step to the last epoch or a signal; returns the exit status.  The host chooses
 * between the parts of a forward pass which anchors and regions count. */
static int train(MaskRun *run) {
    Detector *d = &run->d;
    Training *t = &d->training;
    MaskRcnn *m = &run->model;
    DetectionPart part;
    int begin, end;
    training_data_and_model(run);
    if (distributed_rank() == 0) announce(run);
    mask_run_facts(run);
    training_share(t, &begin, &end);
    for (; training_epoch_left(t); training_epoch_end(t)) {
        parts_start(&d->loader.parts, (uint32_t)t->state.epoch, t->state.batch);
        while (training_batch_left(t)) {
            MaskRcnnLoss loss = {0};
            training_step_begin(t, learning_rate(run));
            for (int next = begin; next < end; next += part.n) {
                device_uploads_wait(); /* the loader fills the last part's memory again */
                detection_next(&d->loader, &part);
                LossDraw draw = {t->s->seed, (uint32_t)t->state.step, (uint32_t)next, t->s->batch_size};
                Truth truth = mask_run_load(run, &part, d->train.mean, d->train.std);
                backbone_draw(&m->backbone, t->s->seed, (uint32_t)t->state.step, (size_t)next, part.n);
                mask_rcnn_forward(m);                           /* maps, and logits and deltas of anchors */
                choose_regions(m, &run->work, &truth, &draw);   /* proposals, of which a sample counts */
                mask_rcnn_forward_boxes(m);
                mask_rcnn_forward_masks(m);
                mask_rcnn_loss(m, &run->work, &truth, &draw, true, &loss);
                mask_rcnn_backward(m, next + part.n == end ? all_reduce_start : NULL);
            }
            mask_run_update(run, &loss); /* AdamW, with the gradients of all ranks */
            training_step_end(t, parts_stats(&d->loader.parts).stalled);
            note_step(t, &loss);
            training_log(t);
            if (t->stopping) return training_stop_early(t);
        }
        training_epoch_trained(t);
        if (training_epoch_follows(t)) parts_start(&d->loader.parts, (uint32_t)t->state.epoch + 1, 0);
        if (!training_evaluation_is_due(t)) continue;
        evaluate(run, NULL);
        if (t->stopping) return training_stop_early(t);
        note_evaluation(run);
    }
    return report(run);
}

int main(int argc, char **argv) {
    static MaskRun run;
    Training *t = &run.d.training;
    if (!program_begin(t, &facts, argc, argv)) return t->status;
    add_settings(&run, &t->config);
    if (!program_read(t, argc, argv)) return t->status;
    backbone_use_settings(&t->config);
    if (!program_settle(t)) return t->status;
    run.d.task = DETECTION_MASKS;
    run.d.rule = DETECTION_MMDETECTION;
    run.d.multiple = BACKBONE_STRIDE;
    detector_check_settings(&run.d);
    if (!program_open(t)) return t->status;
    if (run.d.modes->describe) mask_run_describe(&run);
    else if (run.d.modes->eval) evaluate_weights(&run);
    else if (run.d.modes->bench) mask_run_bench(&run);
    else if (run.d.predict->predict.count) mask_run_predict(&run);
    else if (*run.d.modes->parity) mask_run_parity(&run);
    else t->status = train(&run);
    detector_close_data(&run.d);
    return program_close(t);
}
