/* One call of train_detr: the detector with its settings, data and buffers, used by training and by all other modes.
 *
 *   run.c         settings, data sets and loaders, the model with its first weights
 *   loss.c        a step's loss and its gradients, and the loss of a validation image
 *   evaluation.c  the detections of an evaluation, exchanged between ranks, and the output of --eval
 *   run_facts.c   the description of the model in a report
 *   predict.c, parity.c, bench.c   these modes
 *
 * Letters: B images, Q queries, C class logits, L decoder layers. */
#ifndef VIT_LAYERS_DETR_RUN_H
#define VIT_LAYERS_DETR_RUN_H

#include "training/schedule.h"
#include "detection/set_loss.h"
#include "layers/detection/detector.h"
#include "layers/detr/detr.h"

/* == Settings ===================================================================================================== */

/* Settings of the backbone. */
typedef struct {
    const char *backbone_weights;
    float lr_backbone;
} BackboneSettings;
extern const ConfigGroup backbone_settings;

/* == A run ======================================================================================================== */

typedef struct {
    Detector d;
    DetrSettings *model_settings;
    const BackboneSettings *backbone;
    const DropSettings *schedule;

    Detr detr;
    SetLossWork step_loss, image_loss; /* for a micro-batch; for one image and layer in an evaluation */
    float *logits, *boxes;    /* host [L,B,Q,C], [L,B,Q,4] */
    float *dlogits, *dboxes;  /* the same */
    float *unused;            /* [Q,C + 4]: derivatives in an evaluation */
    float (*target_boxes)[4]; /* [most_boxes of the validation split] */
    int *target_labels;
    double found[COCO_NUMBERS]; /* of the last evaluation, 0 to 1, -1 for none */
} DetrRun;

/* Sets the number of classes if only the model is needed, without data. */
void detr_run_find_classes(DetrRun *run);

/* Opens the validation split, if the call evaluates, and for training also the training split, with their loaders. */
void detr_run_open_data(DetrRun *run, bool train);

/* Builds the model for that many images of H x W or W x H at a time and sets its initial weights. */
void detr_run_open_model(DetrRun *run, int images, int H, int W, bool training);

/* Loads a part of a batch into the model (detr_load). */
void detr_run_load(DetrRun *run, const DetectionPart *part, const float mean[3], const float std[3]);

/* Allocates the predictions of that many images on the host and, for training, the memory for their loss. */
void detr_run_open_buffers(DetrRun *run, int images, int most_targets, bool training);

/* == Loss ========================================================================================================= */

/* The terms of a step's loss, summed over micro-batches and ranks. */
typedef struct {
    double total, focal, l1, giou;
    double wrong, targets; /* targets whose query has its largest logit for another class, and all targets */
    int boxes;             /* of the whole batch on all ranks, by which the others are divided */
} StepLoss;

/* After detr_forward of `part`: copies the predictions to the host, matches them with the part's boxes, adds the loss
 * to *sum and loads its gradients for detr_backward.  Predictions that cannot be matched (not finite) stop the run; the
 * message names the image. */
void detection_loss(DetrRun *run, const DetectionPart *part, StepLoss *sum);

/* One optimizer step with the gradients of a whole batch, once every rank has its own; sums the loss over ranks. */
void detr_run_update(DetrRun *run, StepLoss *loss);

/* The terms of the validation loss. */
typedef struct {
    double loss, boxes;
} ValidationLoss;

void validation_loss_open(DetrRun *run);

/* Adds the loss of the last layer's predictions for that validation image, logits [Q,C] and boxes [Q,4], weighted as in
 * training; NaN if they are NaN. */
void validation_loss_add(ValidationLoss *sum, DetrRun *run, int image, const float *logits, const float *boxes);

/* == Evaluation =================================================================================================== */

/* Adds the detections of the part that the model holds, after detr_forward, and the loss of its images. */
void found_take(CocoResults *found, DetrRun *run, const DetectionPart *part, ValidationLoss *sum);

/* --eval: prints COCO's metrics and the loss, and writes --results. */
void detr_eval_report(const DetrRun *run, const CocoResults *results);

/* Writes the model's description to the facts of a training run (report/facts.h). */
void detr_facts(DetrRun *run);

/* == Modes in place of training =================================================================================== */

/* --describe: prints the parts, parameters and multiply-adds of the model. */
void detr_run_describe(DetrRun *run);
/* --predict: prints the detections in pictures; with --json and --draw also writes them. */
void detr_predict(DetrRun *run);
/* --parity: predictions, loss and gradients for the images and boxes of a comparison with another framework. */
void detr_parity(DetrRun *run);
/* --bench: the speed of training and inference on random images of one size. */
void detr_bench(DetrRun *run);

#endif
