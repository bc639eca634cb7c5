/* train_detr: SMCA-DETR, an object detector, from COCO's files to COCO's twelve metrics.
 *
 * Read it top to bottom, like train_vit.c: settings, one training step, evaluation, the callbacks of a training run,
 * main.  The loop that calls these is training_run in core/training.c.  The model is layers/detr, with the modes in
 * place of training in layers/detr/; matching, loss and evaluation are in detection/, pictures and boxes come from
 * data/detection_loader. */
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

static void add_settings(void *context, Config *config) {
    DetrRun *run = context;
    run->modes = config_add(config, &mode_settings);
    run->predict = config_add(config, &predict_settings);
    run->outputs = config_add(config, &detection_output_settings);
    run->data = config_add(config, &detection_set_settings);
    run->loading = config_add(config, &loader_settings);
    run->sizes = config_add(config, &size_settings);
    run->augment = config_add(config, &detection_augment_settings);
    run->model_settings = detr_add_settings(config);
    run->backbone = config_add(config, &backbone_settings);
    run->schedule = config_add(config, &drop_settings);
    config_add(config, &adamw_settings);
    run->training.s = config_add(config, &training_settings);
    run->view = config_add(config, &detection_view_settings);
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

static void use_settings(void *context) { detr_use_settings(&((DetrRun *)context)->training.config); }

/* Checks settings of several groups. */
static void check_settings(void *context) {
    DetrRun *run = context;
    int batch = run->training.s->batch_size;
    if (batch < distributed_ranks())
        config_reject(&run->training.config, "batch_size", "{batch_size} is less than the %d ranks",
                      distributed_ranks());
    if (*run->outputs->draw && !run->predict->predict.count)
        die_usage("--draw: '%s' would be written by --predict of one picture only", run->outputs->draw);
    if (run->backbone->lr_backbone == 0) run->model_settings->freeze_backbone = true;
    if (*run->modes->parity) run->model_settings->dropout = 0;
}

/* == One step ===================================================================================================== */

/* Values of the last step that are logged besides the loss: RunState.measured. */
enum { FOCAL, L1, GIOU, CLASS_ERROR };

/* Trains on the loader's next batch, part by part, with one optimizer step.  Every rank needs the number of boxes in
 * the whole batch before it begins.  Returns the loss. */
static double train_step(void *context) {
    DetrRun *run = context;
    Detr *detr = &run->detr;
    RunState *state = &run->training.state;
    int ranks = distributed_ranks(), boxes = detection_boxes_of(&run->loader, (size_t)state->batch);
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
        detr_draw(detr, run->training.s->seed, (uint32_t)state->step, (size_t)part.position);
        detr_forward(detr);
        detection_loss(run, &part, box_count, &loss);
        detr_backward(detr, part.position + part.n == end ? all_reduce_start : NULL);
    }
    detr_run_update(run, &loss);
    state->measured[FOCAL] = loss.focal;
    state->measured[L1] = loss.l1;
    state->measured[GIOU] = loss.giou;
    state->measured[CLASS_ERROR] = loss.targets > 0 ? 100 * loss.wrong / loss.targets : 0;
    return loss.total;
}

/* == Evaluation =================================================================================================== */

/* Runs the model on every image of the validation split, each rank on its share; a signal ends it early. */
static void detect_all(DetrRun *run, FoundDetections *found) {
    size_t count = (size_t)run->val.coco.image_count, done = 0;
    double seconds = 0;
    ValidationLoss sum = {0};
    DetectionPart part;
    detection_start(&run->val_loader, 0, 0);
    while (!stop_signal && detection_next(&run->val_loader, &part)) {
        double began = now_seconds();
        detr_load(&run->detr, part.pixels, &part.size[0][0], run->val.mean, run->val.std, part.n, part.height,
                  part.width);
        detr_forward(&run->detr);
        found_take(found, run, &part, &sum);
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
static void view(DetrRun *run, float *arena) {
    params_view(&run->detr.model.params, arena);
    detr_fold(&run->detr);
}

/* Computes COCO's metrics into run->found, on all ranks, and lists the detections in `results`. */
static void find_all(DetrRun *run, CocoResults *results) {
    Model *model = &run->detr.model;
    FoundDetections found;
    Error error;
    found_open(&found, run);
    if (model->params.ema) view(run, model->params.ema);
    model_set_training(model, false);
    detect_all(run, &found);
    if (model_trains(model)) model_set_training(model, true);
    if (model->params.ema) view(run, model->params.values);
    if (!run->training.stopping) {
        found_exchange(&found);
        found_list(&found, run, results);
        if (!coco_eval(run->found, NULL, &run->val.coco, results->detections, results->count, NULL, &error))
            die("%s: %s", run->val.name, error.text);
    }
    found_close(&found);
}

static double evaluate(void *context) {
    DetrRun *run = context;
    CocoResults results = {0};
    find_all(run, &results);
    coco_results_free(&results);
    return 100 * run->found[COCO_AP];
}

static void mode_eval(void *context) {
    DetrRun *run = context;
    CocoResults results = {0};
    int at_once = run->view->eval_batch;
    detr_run_open_data(run, false);
    detr_eval_check_categories(run);
    detr_run_open_model(run, at_once, run->shorter, run->longer, false);
    detr_run_open_buffers(run, at_once, 1, false);
    validation_loss_open(run);
    find_all(run, &results);
    detr_eval_report(run, &results);
    coco_results_free(&results);
}

/* == Training ===================================================================================================== */

static void training_data_and_model(void *context) {
    DetrRun *run = context;
    char stem[128];
    detr_run_open_data(run, true);
    int room = run->loader.parts.room > run->view->eval_batch ? run->loader.parts.room : run->view->eval_batch;
    detr_run_open_model(run, room, run->shorter, run->longer, true);
    detr_run_open_buffers(run, room, run->train.most_boxes, true);
    validation_loss_open(run);
    snprintf(stem, sizeof stem, "%s-detr-%s", run->train.name, run->model_settings->attn->name);
    training_open(&run->training, &(TrainingStart){.params = &run->detr.model.params,
                                                   .batches = run->loader.batches,
                                                   .stem = stem,
                                                   .class_names = run->names,
                                                   .classes = run->model_settings->num_classes});
    detr_fold(&run->detr); /* a state may have been loaded */
}

static void announce(void *context) {
    DetrRun *run = context;
    const Coco *train = &run->train.coco;
    if (distributed_ranks() > 1) printf("%d ranks\n", distributed_ranks());
    print_line("%s: %d training and %d validation images, %zu training boxes of %d categories, %zu images without "
               "any\n",
           run->train.name, train->image_count, run->val.coco.image_count, train->annotation_count - train->crowds,
           train->category_count, train->empty_images);
    printf("%s: %zu trainable parameters, %.1f million multiply-adds for an image of %d x %d, "
           "%.0f MiB of activations\n",
           run->model_settings->attn->name, run->detr.model.params.parameters,
           (double)detr_macs(&run->detr, run->shorter, run->longer) / 1e6, run->shorter, run->longer,
           (double)model_activation_bytes(&run->detr.model) / (1 << 20));
    print_line("%s: %d epochs of %llu batches of %d images, at most %d at a time, %.0f %% of padding if each were "
               "one\n",
           run->training.s->run_dir, run->training.s->epochs, (unsigned long long)run->training.batches,
           run->training.s->batch_size, run->loader.parts.room, 100 * detection_padding(&run->loader));
}

static void load_batches(void *context, uint64_t epoch, uint64_t batch) {
    detection_start(&((DetrRun *)context)->loader, (uint32_t)epoch, batch);
}

static double stalled(const void *context) { return detection_stats(&((const DetrRun *)context)->loader).stalled; }

static float learning_rate(const void *context, double epochs) {
    return drop_lr(((const DetrRun *)context)->schedule, epochs);
}

static void words(const void *context, TrainingWords which, char *text, size_t size) {
    const DetrRun *run = context;
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

/* == Main ========================================================================================================= */

static void mode_describe(void *context) { detr_run_describe(context); }
static void mode_bench(void *context) { detr_bench(context); }
static void mode_predict(void *context) { detr_predict(context); }
static void mode_parity(void *context) { detr_parity(context); }
static void close_data(void *context) { detr_run_close_data(context); }

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
    .close = close_data,
};

int main(int argc, char **argv) {
    static DetrRun run;
    return program_main(&program, &run, &run.training, argc, argv);
}
