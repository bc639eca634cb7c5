#include <math.h>
#include <stdio.h>

#include "core/die.h"
#include "core/distributed.h"
#include "layers/detr/run.h"

/* Predictions that cannot be matched (not finite) stop the run; the message names the image. */
static void stop_on_unmatched(const DetrRun *run, const DetectionPart *part, int layer, int image) {
    char what[512], name[256] = "an image";
    if (part->image) detection_set_name_image(&run->d.train, (size_t)part->image[image], name, sizeof name);
    snprintf(what, sizeof what, "the cost of matching %s in decoder layer %d", name, layer + 1);
    training_stop_on_bad(&run->d.training, what, NAN);
}

void detection_loss(DetrRun *run, const DetectionPart *part, StepLoss *sum) {
    Detr *detr = &run->detr;
    SetTargets targets = {&part->boxes[0][0], part->labels, part->first};
    SetLoss loss;
    int layer, image, count = part->first[part->n], ranks = distributed_ranks();
    double box_count = sum->boxes > ranks ? sum->boxes : ranks; /* at least 1 for each rank */
    detr_predictions(detr, run->logits, run->boxes);
    if (!set_loss(&loss, run->dlogits, run->dboxes, &run->step_loss, run->logits, run->boxes, &targets, part->n,
                  box_count, &layer, &image))
        stop_on_unmatched(run, part, layer, image);
    detr_load_gradients(detr, run->dlogits, run->dboxes);
    sum->total += loss.total;
    sum->focal += loss.focal;
    sum->l1 += loss.l1;
    sum->giou += loss.giou;
    sum->wrong += loss.wrong * count;
    sum->targets += count;
}

void detr_run_update(DetrRun *run, StepLoss *loss) {
    all_reduce_finish();
    double sums[] = {loss->total, loss->focal, loss->l1, loss->giou, loss->wrong, loss->targets};
    training_sum(&run->d.training, sums, sizeof sums / sizeof *sums);
    *loss = (StepLoss){sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], loss->boxes};
    training_update(&run->d.training, loss->total);
    if (!run->detr.settings.freeze_backbone) detr_fold(&run->detr);
}

void validation_loss_open(DetrRun *run) {
    const DetrSettings *s = run->model_settings;
    int most = run->d.val.most_boxes;
    SetLossSize size = {1, 1, s->queries, s->num_classes + 1, most};
    set_loss_open(&run->image_loss, size, set_loss_weights);
    run->unused = xcalloc((size_t)s->queries, ((size_t)s->num_classes + 5) * sizeof *run->unused, "a validation loss");
    run->target_boxes = xcalloc((size_t)most, sizeof *run->target_boxes, "an image's boxes");
    run->target_labels = xcalloc((size_t)most, sizeof *run->target_labels, "an image's labels");
}

void validation_loss_add(ValidationLoss *sum, DetrRun *run, int image, const float *logits, const float *boxes) {
    const CocoImage *shown = &run->d.val.coco.images[image];
    int count = coco_targets(&run->d.val.coco, image, run->target_boxes, run->target_labels, NULL), layer, at;
    float W = (float)shown->width, H = (float)shown->height;
    SetTargets targets = {&run->target_boxes[0][0], run->target_labels, (const int[]){0, count}};
    SetLoss loss;
    for (int i = 0; i < count; i++) {
        float *b = run->target_boxes[i], x0 = b[0], y0 = b[1], x1 = b[2], y1 = b[3];
        b[0] = (x0 + x1) / 2 / W;
        b[1] = (y0 + y1) / 2 / H;
        b[2] = (x1 - x0) / W;
        b[3] = (y1 - y0) / H;
    }
    float *dboxes = run->unused + (size_t)run->model_settings->queries * ((size_t)run->model_settings->num_classes + 1);
    bool ok = set_loss(&loss, run->unused, dboxes, &run->image_loss, logits, boxes, &targets, 1, 1, &layer, &at);
    sum->loss += ok ? loss.total : NAN;
    sum->boxes += count;
}
