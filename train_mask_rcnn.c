/* train_mask_rcnn: Mask R-CNN, which detects and segments instances, from COCO's files to COCO's twelve metrics of boxes
 * and of masks.
 *
 * Read it from its end: main, and train above it, show the whole run.  Above them stand, in this order, the settings,
 * evaluation, and what is logged and printed.  The model is layers/mask_rcnn/mask_rcnn.c, its losses are in
 * layers/mask_rcnn/loss.c, and the modes that do not train beside them; anchors, proposals and sampling are in
 * detection/regions/; pictures, boxes and masks come from data/detection/detection_loader.c. */
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
    config_add(config, &adamw_settings);
    run->d.training.s = config_add(config, &training_settings);
    run->d.view = config_add(config, &detection_view_settings);
    config_default(config, "epochs", "12");
    config_default(config, "batch_size", "16");
    config_default(config, "weight_decay", "0.05");
    config_default(config, "clip_grad", "0");
    config_explain(config, "describe", "Print parts, parameters and multiply-adds of an image of image_size, and stop");
    config_explain(config, "eval", "Print COCO's twelve numbers, of boxes and of masks, of --init or --resume on the "
                                   "validation split, and stop");
    config_explain(config, "bench", "Measure training and inference speed on random images of image_size, print one "
                                    "line of JSON, and stop");
    config_explain(config, "predict", "Tell what these pictures show and where: PNG or JPEG files, folders of them, or "
                                      "val:17 for one of the validation split");
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
    {"eval", "print COCO's numbers of --init or --resume on the validation images", .needs_weights = true,
     .outputs = {"results"}},
    PROGRAM_MODE_BENCH,
    {"predict", "tell what these images show and where", .alone = true, .needs_weights = true,
     .outputs = {"json", "draw"}},
    PROGRAM_MODE_PARITY,
    {.name = NULL},
};

static const HelpLine basics[] = {
    {"data", "shapes, which are built in, or COCO's folder"},
    {"num_classes", "number of categories: 80 for COCO"},
    {"backbone", "what makes the maps of features"},
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
    .introduction = "train_mask_rcnn trains Mask R-CNN and measures COCO's twelve numbers of boxes and of masks.",
    .examples =
        "  train_mask_rcnn --config configs/coco/mask-rcnn-demo.ini         train on the built-in scenes, minutes\n"
        "  train_mask_rcnn --config configs/coco/mask-rcnn-resnet-50.ini --data coco\n"
        "  train_mask_rcnn --resume runs/shapes-mask-rcnn-001               go on where a run stopped\n"
        "  train_mask_rcnn --init best.safetensors --predict street.jpg --draw masks.png\n"
        "  train_mask_rcnn --resume runs/coco-mask-rcnn-001 --eval --results instances.json\n"
        "  train_mask_rcnn --config configs/coco/mask-rcnn-resnet-50.ini --describe\n",
    .basics = basics, .example = "train_mask_rcnn --config configs/coco/mask-rcnn-demo.ini", .word = "resnet",
    .reference = "docs/settings-mask-rcnn.md",
    .chooser = "backbone", .modes = modes, .advice = "a lower lr", .decimals = 1,
};

/* == Evaluation =================================================================================================== */

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
    else if (*run.d.modes->parity) mask_run_parity(&run);
    detector_close_data(&run.d);
    return program_close(t);
}
