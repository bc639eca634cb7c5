#include <stdio.h>
#include <stdlib.h>

#include "core/die.h"
#include "core/distributed.h"
#include "core/results/outcome.h"
#include "detection/postprocess.h"
#include "layers/detr/run.h"

void found_take(CocoResults *found, DetrRun *run, const DetectionPart *part, ValidationLoss *sum) {
    int Q = run->model_settings->queries, C = run->model_settings->num_classes + 1;
    CocoDetection *detections = xcalloc((size_t)Q, sizeof *detections, "detections");
    detr_predictions(&run->detr, run->logits, run->boxes);
    for (int b = 0; b < part->n; b++) {
        if (part->image[b] < 0) continue; /* unreadable image: no detections */
        const CocoImage *image = &run->d.val.coco.images[part->image[b]];
        size_t row = (size_t)b * (size_t)Q;
        validation_loss_add(sum, run, part->image[b], run->logits + row * (size_t)C, run->boxes + row * 4);
        int count = postprocess(detections, Q, run->logits + row * (size_t)C, run->boxes + row * 4, Q, C, image->id,
                                image->width, image->height);
        for (int i = 0; i < count; i++)
            if (detections[i].score > 0) coco_results_add(found, detections[i]);
    }
    free(detections);
}

void detr_eval_report(const DetrRun *run, const CocoResults *results) {
    if (!run->d.training.stopping)
        outcome_require_loss(run->d.training.validation_loss, run->d.training.s->init, run->d.val.name);
    if (distributed_rank() > 0) return;
    detector_report_begin(&run->d);
    if (run->d.val.boxes) coco_eval_print(run->found, stdout);
    printf("loss: %.6f\n", run->d.training.validation_loss);
    detector_report_end(&run->d, results);
}
