#include "layers/mask_rcnn/run.h"

#include <stdlib.h>

#include "core/die.h"
#include "core/results/class_names.h"
#include "kernels/kernels.h"

/* == Data ========================================================================================================= */

static void check_classes(MaskRun *run, const DetectionSet *set) {
    MaskRcnnSettings *s = run->model_settings;
    int categories = set->classes - 1; /* label 0 is the background */
    if (!s->num_classes) s->num_classes = categories;
    if (s->num_classes < categories)
        config_reject(&run->d.training.config, "num_classes", "{num_classes} is too few: {data} has %d categories",
                      categories);
}

void mask_run_find_classes(MaskRun *run) {
    MaskRcnnSettings *s = run->model_settings;
    int classes = detection_set_classes(run->d.data);
    if (!s->num_classes && classes) s->num_classes = classes - 1;
    if (!s->num_classes) config_reject(&run->d.training.config, "num_classes", "the number of categories is unknown: "
                                                                               "give it, 80 for COCO");
}

void mask_run_open_data(MaskRun *run, bool train) {
    Detector *d = &run->d;
    detector_open_sets(d, train);
    if (train) check_classes(run, &d->train);
    if (d->val.coco.image_count) check_classes(run, &d->val);
    if (train)
        detector_open_loader(d, true, detector_micro_batch(d, d->augment->scale_max, d->augment->max_size,
                                                           run->model_settings->fpn_width));
    if (d->val.coco.image_count) detector_open_loader(d, false, d->view->eval_batch);
    detector_names_of_data(d, 0);
    mask_run_find_ids(run);
}

/* Labels are numbered in ascending order of the ids that have a name; without names they are the ids themselves.  In a
 * mode the names are those that the weights were trained with, as the validation images may lack a category. */
void mask_run_find_ids(MaskRun *run) {
    const Detector *d = &run->d;
    int K = run->model_settings->num_classes + 1, known = 0;
    ClassNames trained = {0};
    if (d->training.mode && *d->training.s->init) run_folder_classes(&trained, d->training.s->init);
    const char *const *names = trained.count ? trained.at : d->names;
    run->ids = xcalloc((size_t)K, sizeof *run->ids, "labels");
    for (int id = 0, ids = trained.count ? trained.count : d->ids; id < ids && known + 1 < K; id++)
        if (*names[id]) run->ids[++known] = id;
    class_names_free(&trained);
    for (int k = known + 1; k < K; k++) run->ids[k] = known ? -1 : k;
}

/* == The model ==================================================================================================== */

/* --init is a whole model, or a classifier for the backbone. */
static void first_weights(MaskRun *run) {
    const Training *t = &run->d.training;
    Params *params = &run->model.model.params;
    const char *init = t->s->init;
    bool classifier = *init && backbone_is_alone(&run->model.backbone, init);
    if (*init && !classifier) {
        checkpoint_load_weights(params, init, NULL);
        return;
    }
    if (classifier && t->mode && !run->d.modes->bench)
        die("%s: contains only the weights of a backbone, but --%s needs a whole model", init, t->mode);
    params_initialize(params, t->s->seed);
    backbone_draw(&run->model.backbone, t->s->seed, 0, 0, 1);
    if (classifier && !t->resumed) backbone_load_weights(&run->model.backbone, params, init);
}

void mask_run_open_model(MaskRun *run, int images, int H, int W, bool training) {
    MaskRcnn *m = &run->model;
    mask_rcnn_create(m, &run->d.training.config, conv_layers_way(run->d.modes));
    mask_rcnn_plan(m, images, H, W, training);
    mask_rcnn_allocate(m);
    params_allocate(&m->model.params, training);
    first_weights(run);
    mask_rcnn_fold(m);
    const Config *config = &run->d.training.config;
    if (m->backbone.kind == BACKBONE_HIERARCHY) layer_decay_check(config, run->decay, &m->backbone.trunk.settings);
    else if (run->decay->layer_decay < 1) config_reject(config, "layer_decay", "{layer_decay} needs {backbone} hierarchy");
    backbone_set_rates(&m->backbone, &m->model.params, 1, run->decay->layer_decay);
}

void mask_run_describe(MaskRun *run) {
    int H = run->d.view->image_size[0], W = run->d.view->image_size[1];
    mask_run_find_classes(run);
    mask_rcnn_create(&run->model, &run->d.training.config, conv_layers_way(run->d.modes));
    mask_rcnn_plan(&run->model, 1, H, W, true);
    mask_rcnn_describe(&run->model, stdout, H, W);
}

/* == A step ======================================================================================================= */

Truth mask_run_load(MaskRun *run, const DetectionPart *part, const float mean[3], const float std[3]) {
    mask_rcnn_load(&run->model, part->pixels, &part->size[0][0], mean, std, part->n, part->height, part->width);
    return (Truth){.size = &part->size[0][0], .boxes = (const float(*)[4])part->corners, .labels = part->labels,
                   .masks = part->masks, .first = part->first};
}

void mask_run_update(MaskRun *run, MaskRcnnLoss *loss) {
    double sums[LOSS_TERMS + 2] = {[LOSS_TERMS] = loss->regions, [LOSS_TERMS + 1] = loss->right};
    all_reduce_finish();
    for (int i = 0; i < LOSS_TERMS; i++) sums[i] = loss->term[i];
    training_sum(&run->d.training, sums, LOSS_TERMS + 2);
    for (int i = 0; i < LOSS_TERMS; i++) loss->term[i] = sums[i];
    loss->regions = sums[LOSS_TERMS];
    loss->right = sums[LOSS_TERMS + 1];
    training_update(&run->d.training, mask_rcnn_loss_total(loss));
    mask_rcnn_fold(&run->model);
}
