#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "core/distributed.h"
#include "core/results/outcome.h"
#include "core/progress.h"
#include "core/text.h"
#include "detection/postprocess.h"
#include "layers/detr/run.h"

/* The values of one detection, as exchanged between ranks. */
enum { FOUND_CATEGORY, FOUND_BOX, FOUND_SCORE = FOUND_BOX + 4, FOUND_NUMBERS };

void found_open(FoundDetections *found, const DetrRun *run) {
    found->count = (size_t)run->d.val.coco.image_count * (size_t)run->model_settings->queries * FOUND_NUMBERS;
    found->numbers = xcalloc(found->count, sizeof *found->numbers, "detections");
}

void found_close(FoundDetections *found) { free(found->numbers); }

void found_take(FoundDetections *found, DetrRun *run, const DetectionPart *part, ValidationLoss *sum) {
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
        double *to = found->numbers + (size_t)part->image[b] * (size_t)Q * FOUND_NUMBERS;
        for (int i = 0; i < count; i++, to += FOUND_NUMBERS) {
            to[FOUND_CATEGORY] = (double)detections[i].category_id;
            memcpy(to + FOUND_BOX, detections[i].box, sizeof detections[i].box);
            to[FOUND_SCORE] = detections[i].score;
        }
    }
    free(detections);
}

/* A rank has zeros where others have filled in, so that the sum is everybody's. */
void found_exchange(FoundDetections *found) { distributed_sum(found->numbers, found->count); }

void found_list(const FoundDetections *found, const DetrRun *run, CocoResults *results) {
    const Coco *coco = &run->d.val.coco;
    const double *numbers = found->numbers;
    for (int i = 0; i < coco->image_count; i++) {
        for (int q = 0; q < run->model_settings->queries; q++, numbers += FOUND_NUMBERS) {
            CocoDetection d = {.image_id = coco->images[i].id,
                               .category_id = (int64_t)numbers[FOUND_CATEGORY],
                               .score = numbers[FOUND_SCORE]};
            memcpy(d.box, numbers + FOUND_BOX, sizeof d.box);
            if (d.score > 0) coco_results_add(results, d);
        }
    }
}

void detr_eval_report(const DetrRun *run, const CocoResults *results) {
    const char *path = run->d.outputs->results;
    Error error;
    if (!run->d.training.stopping)
        outcome_require_loss(run->d.training.validation_loss, run->d.training.s->init, run->d.val.name);
    if (distributed_rank() > 0) return;
    progress_show(true, "%d validation images of %s, %d at a time", run->d.val.coco.image_count, run->d.val.name,
                  run->d.view->eval_batch);
    if (run->d.val.boxes) coco_eval_print(run->found, stdout);
    printf("loss: %.6f\n", run->d.training.validation_loss);
    if (*path && !coco_results_write(path, results, &error)) die("%s: %s", path, error.text);
    if (*path) print_line("%s: %zu detections\n", path, results->count);
}
