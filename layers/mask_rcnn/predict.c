#include "layers/mask_rcnn/run.h"

static void detect(Detector *d, const DetectorPicture *p, CocoResults *results) {
    MaskRun *run = (MaskRun *)d; /* it begins with d */
    mask_rcnn_load(&run->model, p->pixels, p->size, imagenet_mean, imagenet_std, 1, p->H, p->W);
    mask_run_detect(run, p->size, p->name);
    mask_run_results(run, 0, p->size, 1, p->width, p->height, results);
}

void mask_run_predict(MaskRun *run) {
    Pictures pictures;
    mask_run_find_classes(run);
    detector_predict_begin(&run->d, &pictures, 0);
    mask_run_find_ids(run);
    mask_run_open_model(run, 1, run->d.shorter, run->d.longer, false);
    mask_run_open_evaluation(run);
    detector_predict(&run->d, &pictures, detect);
}
