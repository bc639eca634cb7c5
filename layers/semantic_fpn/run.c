#include "layers/semantic_fpn/run.h"

#include "core/die.h"
#include "core/distributed.h"
#include "core/files.h"
#include "kernels/kernels.h"
#include "layers/loading.h"

_Static_assert((int)SEGMENTATION_IGNORED == (int)LABEL_IGNORED, "data and kernels agree on the label of no class");

/* == Settings ===================================================================================================== */

#define F(KIND, field) CONFIG_FIELD(KIND, SemanticModeSettings, field)
static const ConfigEntry mode_entries[] = {
    {F(STRING, show_batch), .section = "in place of training", .command_line_only = true, .argument = "FILE",
     .help = "Write the first training pictures with their labels, as the model will see them, to this PNG file, and "
             "stop"},
    {F(STRING, per_class), .command_line_only = true, .argument = "FILE",
     .help = "With --eval: also write the results of every class to this CSV file"},
    {F(STRING, draw), .command_line_only = true, .argument = "FILE",
     .help = "With --predict of one picture: write the picture and its classes in colours, with a legend, to this PNG file"},
};
#undef F
const ConfigGroup semantic_mode_settings = {CONFIG_GROUP(SemanticModeSettings, mode_entries)};

#define F(KIND, field) CONFIG_FIELD(KIND, SemanticTrainingSettings, field)
static const ConfigEntry training_entries[] = {
    {F(STRING, backbone_weights), .section = "model", .argument = "WEIGHTS", /* not a FILE argument, which must not be
                                                                              * empty */
     .help = "Initial weights of the backbone, unless --init is given: a classifier's safetensors file; '' for none, "
             "if a config file names one"},
    {F(INT, steps), "0", .section = "training", .min = 0, .max = 1e9,
     .help = "Number of steps of the run, which then has as many epochs as that takes (0: the setting epochs counts)"},
};
#undef F
const ConfigGroup semantic_training_settings = {CONFIG_GROUP(SemanticTrainingSettings, training_entries),
                                                .change = CHANGE_FREELY};

#define F(KIND, field) CONFIG_FIELD(KIND, SemanticViewSettings, field)
static const ConfigEntry view_entries[] = {
    {F(CHOICE, eval_windows), "whole", .section = "in place of training", .command_line_only = true,
     CONFIG_CHOICES([WINDOWS_WHOLE] = "whole", [WINDOWS_SLIDE] = "slide"),
     .help = "With --eval or --predict: whole, the model sees whole pictures; slide, it sees overlapping windows, "
             "whose logits are averaged"},
    {F(INT, window_size), "512", .min = 32, .max = 8192, .command_line_only = true,
     .help = "With eval_windows slide: the side of a window, a multiple of 32"},
    {F(INT, window_stride), "341", .min = 1, .max = 8192, .command_line_only = true,
     .help = "With eval_windows slide: pixels from one window to the next, at most window_size"},
    {F(INT, eval_batch), "1", .section = "run", .min = 1, .max = 4096,
     .help = "Number of pictures, all of one size, in a batch of evaluation; results do not depend on it"},
    {F(SIZE, image_size), "512x512", .min = 32, .max = 8192,
     .help = "Height and width of the image for which --describe counts and --bench measures, multiples of 32"},
};
#undef F

static void view_check(const Config *config, const void *settings) {
    const SemanticViewSettings *s = settings;
    if (s->window_size % BACKBONE_STRIDE)
        config_reject(config, "window_size", "{window_size} is not a multiple of %d", BACKBONE_STRIDE);
    if (s->window_stride > s->window_size)
        config_reject(config, "window_stride", "{window_stride} is more than {window_size}: pixels between windows would "
                                               "have no class");
    if (s->image_size[0] % BACKBONE_STRIDE || s->image_size[1] % BACKBONE_STRIDE)
        config_reject(config, "image_size", "%d x %d: both must be multiples of %d", s->image_size[0],
                      s->image_size[1], BACKBONE_STRIDE);
}

const ConfigGroup semantic_view_settings = {CONFIG_GROUP(SemanticViewSettings, view_entries), .change = CHANGE_FREELY,
                                            .check = view_check};

/* == Data ========================================================================================================= */

static void check_classes(SemanticRun *run, const SegmentationSet *set) {
    if (!run->model_settings->num_classes) run->model_settings->num_classes = set->classes;
    if (run->model_settings->num_classes < set->classes)
        config_reject(&run->training.config, "num_classes", "{num_classes} is too few: {data} has %d classes",
                      set->classes);
}

void semantic_run_find_classes(SemanticRun *run) {
    if (!run->model_settings->num_classes) run->model_settings->num_classes = segmentation_set_classes(run->data);
    if (!run->model_settings->num_classes)
        config_reject(&run->training.config, "num_classes", "the number of classes is unknown: give it, 150 for "
                                                            "ADE20K");
}

int semantic_run_micro_batch(const SemanticRun *run, int height, int width) {
    size_t image = (size_t)height / 4 * ((size_t)width / 4) * (size_t)run->model_settings->fpn_dim;
    size_t most = activations_at_once() / image;
    int micro = training_micro_batch(&run->training, most < 1 ? 1 : most);
    /* Batch norms sum over the ranks once in every part. */
    if (run->model_settings->seg_norm == SEG_NORM_BN && !distributed_agree(micro, 0))
        config_reject(&run->training.config, "micro_batch", "%d on this rank, but not on all others: the batch norms of "
                      "{seg_norm} need the same number everywhere", micro);
    return micro;
}

static void open_loader(SemanticRun *run, SegmentationLoader *loader, const SegmentationSet *set, bool train,
                        int micro) {
    SegmentationLoaderConfig config = {.parts = loading_parts(&run->training, run->loading, &run->workers, train, micro),
                                       .augment = *run->augment};
    segmentation_open(loader, set, &config);
}

static void open_validation(SemanticRun *run) {
    const SegmentationLoader *loader = &run->val_loader;
    int shorter = 1, longer = 1; /* of the files */
    open_loader(run, &run->val_loader, &run->val, false, run->view->eval_batch);
    for (int i = 0; i < run->val.count; i++) {
        const int *size = run->val.size[i];
        int less = size[0] < size[1] ? size[0] : size[1], more = size[0] < size[1] ? size[1] : size[0];
        if (less > shorter) shorter = less;
        if (more > longer) longer = more;
    }
    run->eval_room = (SemanticRoom){run->view->eval_batch, loader->shorter, loader->longer, shorter, longer};
}

void semantic_run_open_data(SemanticRun *run, bool train) {
    Training *t = &run->training;
    bool evaluates = !train || training_evaluates(t);
    if (train) {
        int side = run->augment->crop_size;
        segmentation_set_open(&run->train, run->data, true, t->s->seed);
        check_classes(run, &run->train);
        training_fit_batch(t, (size_t)run->train.count, run->train.name);
        training_check_ranks(t);
        run->room = (SemanticRoom){semantic_run_micro_batch(run, side, side), side, side, side, side};
        open_loader(run, &run->loader, &run->train, true, run->room.B);
    }
    if (evaluates) segmentation_set_open(&run->val, run->data, false, t->s->seed);
    if (evaluates) check_classes(run, &run->val);
    if (!distributed_agree(run->val.count, 0))
        die("%s: %d validation images here, but other ranks have more or fewer", run->val.name, run->val.count);
    if (evaluates) open_validation(run);
}

void semantic_run_close(SemanticRun *run) {
    segmentation_close(&run->loader);
    segmentation_close(&run->val_loader);
    segmentation_set_close(&run->train);
    segmentation_set_close(&run->val);
    loader_pool_close(run->workers);
}

/* NULL if the model has more classes than the data, which then have no names. */
const char *const *semantic_run_names(const SemanticRun *run) {
    const SegmentationSet *set = run->train.count ? &run->train : &run->val;
    return (int)set->names.count >= run->model_settings->num_classes ? set->names.at : NULL;
}

/* == The model ==================================================================================================== */

const char *semantic_run_backbone(const SemanticRun *run) {
    return config_word(&run->training.config, "backbone", (int)run->net.backbone.kind);
}

/* With slide, the network sees one window at a time. */
static SemanticRoom network_room(const SemanticRun *run) {
    SemanticRoom room = run->eval_room;
    int most = run->view->window_size;
    if (run->view->eval_windows == WINDOWS_WHOLE) return room;
    if (room.H > most) room.H = most;
    if (room.W > most) room.W = most;
    room.B = 1;
    return room;
}

static void first_weights(SemanticRun *run) {
    SemanticFpn *net = &run->net;
    Params *params = &net->model.params;
    const Training *t = &run->training;
    const char *backbone = run->own->backbone_weights;
    bool whole = *t->s->init && !backbone_is_alone(&net->backbone, t->s->init);
    if (whole) {
        checkpoint_load_weights(params, t->s->init, NULL);
        return;
    }
    if (*t->s->init && t->mode)
        die("%s: contains only the weights of a classifier, but --%s needs a whole segmentation "
            "model", t->s->init, t->mode);
    params_initialize(params, t->s->seed);
    if (*t->s->init) backbone = t->s->init;
    /* A saved state has later weights, and --bench needs none. */
    if (!*backbone || t->resumed || run->modes->bench) return;
    if (!file_exists(backbone))
        die("%s: no such file: --backbone-weights '' starts without a classifier's weights", backbone);
    backbone_load_weights(&net->backbone, params, backbone);
}

void semantic_run_open_model(SemanticRun *run, bool training) {
    SemanticFpn *net = &run->net;
    SemanticRoom eval = network_room(run);
    bool evaluates = eval.B > 0;
    semantic_fpn_create(net, &run->training.config, conv_layers_way(run->modes));
    semantic_fpn_plan(net, evaluates ? &eval : &run->room, training ? &run->room : NULL);
    semantic_fpn_allocate(net);
    params_allocate(&net->model.params, training);
    first_weights(run);
    semantic_fpn_fold(net);
}

void semantic_run_load(SemanticRun *run, const SegmentationPart *part) {
    semantic_fpn_load(&run->net, part->pixels, &part->size[0][0], run->train.mean, run->train.std, part->n,
                      part->height, part->width);
    semantic_fpn_load_labels(&run->net, part->labels, part->label_height, part->label_width);
}

void semantic_run_describe(SemanticRun *run) {
    int H = run->view->image_size[0], W = run->view->image_size[1];
    const SemanticRoom room = {1, H, W, H, W};
    semantic_run_find_classes(run);
    semantic_fpn_create(&run->net, &run->training.config, conv_layers_way(run->modes));
    semantic_fpn_plan(&run->net, &room, &room);
    semantic_fpn_describe(&run->net, stdout, H, W);
}
