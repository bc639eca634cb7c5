/* One call of train_mask_rcnn: the model with its settings, data and buffers, used by training and by all other modes.
 *
 *   run.c         settings, data sets and loaders, the model with its first weights
 *   loss.c        a step's losses and their gradients
 *   evaluation.c  the detections of an image, and the output of --eval
 *   run_facts.c   the description of the model in a report
 *   predict.c, parity.c, bench.c   these modes
 *
 * A label is the index of a category in the order of ids, counted from 1: 0 is the background. */
#ifndef VIT_LAYERS_MASK_RCNN_RUN_H
#define VIT_LAYERS_MASK_RCNN_RUN_H

#include "layers/detection/detector.h"
#include "layers/mask_rcnn/loss.h"
#include "layers/vit/layer_decay.h"
#include "training/schedule.h"

typedef struct {
    Detector d;
    MaskRcnnSettings *model_settings;
    DenseScheduleSettings *schedule;
    const LayerDecaySettings *decay;
    MaskRcnn model;
    LossWork work;
    int *ids;       /* [K]: the category id of each label, -1 for none */
    ProposalScratch proposals;   /* of an evaluation, as are */
    DetectionScratch detections;
    float (*proposal_boxes)[4];
    RegionDetection *region_found;
    int *found_first;            /* [B + 1]: the detections of each image in model.masks */
    float *probability;          /* [28,28] */
    Rle pasted;
    double found[COCO_NUMBERS], found_masks[COCO_NUMBERS]; /* of the last evaluation, 0 to 1, -1 for none */
} MaskRun;

/* Sets the number of categories if only the model is needed, without data. */
void mask_run_find_classes(MaskRun *run);
/* Opens the validation split, if the call evaluates, and for training also the training split, with their loaders. */
void mask_run_open_data(MaskRun *run, bool train);
/* Finds the category ids of the labels, from the names of the data or the checkpoint. */
void mask_run_find_ids(MaskRun *run);
/* Builds the model for that many images of H x W or W x H at a time and sets its initial weights. */
void mask_run_open_model(MaskRun *run, int images, int H, int W, bool training);

/* == A step ======================================================================================================= */

/* Loads a part of a batch into the model, and returns its targets, which are valid until the next call. */
Truth mask_run_load(MaskRun *run, const DetectionPart *part, const float mean[3], const float std[3]);

/* One optimizer step with the gradients of a whole batch, once every rank has its own; sums the losses over ranks. */
void mask_run_update(MaskRun *run, MaskRcnnLoss *loss);

/* == Evaluation =================================================================================================== */

void mask_run_open_evaluation(MaskRun *run);
/* Finds the objects in the loaded batch: the forward pass and everything after it.  what: the pictures of --eval or
 * --predict, for the message that ends the run if an output is not a number; NULL in training. */
void mask_run_detect(MaskRun *run, const int *sizes, const char *what);
/* Adds the detections in image b of that batch, which has size[0] x size[1] pixels there and the id image_id and height
 * x width pixels as a picture, to `results`, best first. */
void mask_run_results(MaskRun *run, int b, const int size[2], int64_t image_id, int width, int height,
                      CocoResults *results);
/* --eval: prints COCO's metrics of boxes and of masks, and writes --results. */
void mask_run_report(const MaskRun *run, const CocoResults *results);

/* Writes the model's description to the facts of a training run (report/facts.h). */
void mask_run_facts(MaskRun *run);

/* == Modes in place of training =================================================================================== */

/* --describe: prints the parts, parameters and multiply-adds of the model. */
void mask_run_describe(MaskRun *run);
/* --predict: prints the detections in pictures; with --json and --draw also writes them. */
void mask_run_predict(MaskRun *run);
/* --parity: losses, outputs and gradients for the images and objects of a comparison with another framework. */
void mask_run_parity(MaskRun *run);
/* --bench: the speed of training and inference on random images of one size. */
void mask_run_bench(MaskRun *run);

#endif
