#include "layers/detr/run.h"

#include "core/die.h"
#include "core/files.h"
#include "kernels/kernels.h"

/* == Settings ===================================================================================================== */

#define F(KIND, field) CONFIG_FIELD(KIND, BackboneSettings, field)
static const ConfigEntry backbone_entries[] = {
    {F(STRING, backbone_weights), .section = "model", .argument = "WEIGHTS", /* not a FILE argument, which must not be
                                                                              * empty */
     .help = "Initial weights of the backbone, unless --init is given: a safetensors file with torchvision's names, as "
             "scripts/convert_weights.py writes; '' for none, if a config file names one"},
    {F(FLOAT, lr_backbone), "1e-5", .section = "training", .min = 0, .max = 100,
     .help = "Initial learning rate of the backbone (0: the backbone is not trained)"},
};
#undef F
const ConfigGroup backbone_settings = {CONFIG_GROUP(BackboneSettings, backbone_entries), .change = CHANGE_FREELY};

/* == Data ========================================================================================================= */

static void check_classes(DetrRun *run, const DetectionSet *set) {
    if (!run->model_settings->num_classes) run->model_settings->num_classes = set->classes;
    if (run->model_settings->num_classes < set->classes)
        config_reject(&run->d.training.config, "num_classes", "{num_classes} is too few: {data} has the category %d",
                      set->classes - 1);
}

void detr_run_find_classes(DetrRun *run) {
    if (!run->model_settings->num_classes) run->model_settings->num_classes = detection_set_classes(run->d.data);
    if (!run->model_settings->num_classes)
        config_reject(&run->d.training.config, "num_classes", "the largest category id is unknown: give it plus "
                                                              "one, 91 for COCO");
}

void detr_run_open_data(DetrRun *run, bool train) {
    Detector *d = &run->d;
    detector_open_sets(d, train);
    if (train) check_classes(run, &d->train);
    if (d->val.coco.image_count) check_classes(run, &d->val);
    if (train)
        detector_open_loader(d, true, detector_micro_batch(d, d->augment->scale_max, d->augment->max_size,
                                                           4 * run->model_settings->backbone_width));
    if (d->val.coco.image_count) detector_open_loader(d, false, d->view->eval_batch);
    detector_names_of_data(d, run->model_settings->num_classes);
}

/* == The model ==================================================================================================== */

/* The learning rate of the backbone as a multiple of that of the rest. */
static float backbone_rate(const DetrRun *run) {
    return run->schedule->lr > 0 ? run->backbone->lr_backbone / run->schedule->lr : 0;
}

/* The shapes of the weights do not show the number of heads, but with another number the weights compute another
 * function. */
static void check_heads(const DetrRun *run, const char *checkpoint) {
    Config config;
    if (run_folder_settings(&config, &run->d.training.config, checkpoint)) {
        const DetrSettings *trained = config_settings(&config, &detr_settings);
        if (trained->heads != run->model_settings->heads)
            config_reject(&run->d.training.config, "heads", "{heads}, but %s was trained with %d", checkpoint,
                          trained->heads);
    }
    config_free(&config);
}

void detr_run_open_model(DetrRun *run, int images, int H, int W, bool training) {
    Detr *detr = &run->detr;
    const Training *t = &run->d.training;
    const char *backbone = run->backbone->backbone_weights;
    detr_create(detr, &t->config, 0);
    detr_plan(detr, images, H, W, training);
    detr_allocate(detr);
    params_allocate(&detr->model.params, training);
    if (*t->s->init) {
        check_heads(run, t->s->init);
        checkpoint_load_weights(&detr->model.params, t->s->init, NULL);
    } else {
        params_initialize(&detr->model.params, t->s->seed);
        /* A saved state has later weights, and --bench needs none. */
        bool wanted = *backbone && !t->resumed && !run->d.modes->bench;
        if (wanted && !file_exists(backbone))
            die("%s: no such file: scripts/convert_weights.py converts torchvision's ResNet-50, resnet50-0676ba61.pth, "
                "to it; --backbone-weights '' starts without it", backbone);
        if (wanted) checkpoint_load_part(&detr->model.params, detr_backbone_prefix, backbone, NULL);
        detr_draw(detr, t->s->seed, 0, 0);
    }
    detr_fold(detr);
    /* Two learning rates, and weight decay for everything: core/params stores which apply to each tensor. */
    params_decay_from(&detr->model.params, 0);
    params_set_rate_below(&detr->model.params, detr->backbone_floats, backbone_rate(run));
}

void detr_run_describe(DetrRun *run) {
    int H = run->d.view->image_size[0], W = run->d.view->image_size[1];
    detr_run_find_classes(run);
    detr_create(&run->detr, &run->d.training.config, 0);
    detr_plan(&run->detr, 1, H, W, true);
    detr_describe(&run->detr, stdout, H, W);
}

void detr_run_load(DetrRun *run, const DetectionPart *part, const float mean[3], const float std[3]) {
    detr_load(&run->detr, part->pixels, &part->size[0][0], mean, std, part->n, part->height, part->width);
}

void detr_run_open_buffers(DetrRun *run, int images, int most_targets, bool training) {
    const DetrSettings *s = run->model_settings;
    SetLossSize size = {training ? s->decoder_layers : 1, images, s->queries, s->num_classes + 1, most_targets};
    size_t rows = (size_t)size.layers * (size_t)images * (size_t)s->queries;
    run->logits = host_malloc(rows * (size_t)size.columns * sizeof *run->logits, "predictions");
    run->boxes = host_malloc(rows * 4 * sizeof *run->boxes, "predictions");
    if (!training) return;
    run->dlogits = xcalloc(rows * (size_t)size.columns, sizeof *run->dlogits, "gradients of predictions");
    run->dboxes = xcalloc(rows * 4, sizeof *run->dboxes, "gradients of predictions");
    set_loss_open(&run->step_loss, size, set_loss_weights);
}
