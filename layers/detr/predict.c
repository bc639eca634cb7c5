#include <stdlib.h>

#include "core/die.h"
#include "core/results/outcome.h"
#include "detection/postprocess.h"
#include "layers/detr/run.h"

static void detect(Detector *d, const DetectorPicture *p, CocoResults *results) {
    DetrRun *run = (DetrRun *)d; /* it begins with d */
    const char *weights = d->training.s->init;
    int Q = run->model_settings->queries, C = run->model_settings->num_classes + 1;
    CocoDetection *found = xcalloc((size_t)Q, sizeof *found, "detections");
    detr_load(&run->detr, p->pixels, p->size, imagenet_mean, imagenet_std, 1, p->H, p->W);
    detr_forward(&run->detr);
    detr_predictions(&run->detr, run->logits, run->boxes);
    outcome_require(run->logits, (size_t)Q * (size_t)C, weights, p->name);
    outcome_require(run->boxes, (size_t)Q * 4, weights, p->name);
    int count = postprocess(found, Q, run->logits, run->boxes, Q, C, 1, p->width, p->height);
    for (int i = 0; i < count; i++) coco_results_add(results, found[i]);
    free(found);
}

void detr_predict(DetrRun *run) {
    Pictures pictures;
    detr_run_find_classes(run);
    detector_predict_begin(&run->d, &pictures, run->model_settings->num_classes);
    detr_run_open_model(run, 1, run->d.shorter, run->d.longer, false);
    detr_run_open_buffers(run, 1, 1, false);
    detector_predict(&run->d, &pictures, detect);
}
