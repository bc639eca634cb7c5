/* Semantic FPN.  images [B,H,W,3] -> logits [B,H/4,W/4,K]
 * forward   1. C2 .. C5 = backbone(images)   2. P2 .. P5 = fpn(C2 .. C5)   3. logits = head(P2 .. P5)
 * backward  3. dP   2. dC   1. the backbone's */
#include "layers/semantic_fpn/semantic_fpn.h"

#include <assert.h>
#include <string.h>

#include "core/integers.h"
#include "layers/model_facts.h"

const char semantic_fpn_backbone_prefix[] = "backbone.";

/* == Settings ===================================================================================================== */

#define F(KIND, field) CONFIG_FIELD(KIND, SemanticFpnSettings, field)
static const ConfigEntry entries[] = {
    {F(INT, fpn_dim), "256", .section = "model", .min = 1, .max = 4096, .help = "Channels of the feature pyramid"},
    {F(INT, head_dim), "128", .min = 1, .max = 4096, .help = "Channels of the head's convolutions"},
    {F(INT, num_classes), "0", .min = 0, .max = 254, .change = CHANGE_TO_DEFAULT,
     .help = "Number of classes, 150 for ADE20K (0: that of the data set)"},
    {F(CHOICE, seg_norm), "bn", CONFIG_CHOICES([SEG_NORM_BN] = "bn", [SEG_NORM_GN] = "gn"),
     .help = "Norms of the head: bn (batch norm with statistics over the images that all ranks compute at a time) or "
             "gn (group norm of 32 groups, whose results depend on neither micro_batch nor ranks)"},
    {F(FLOAT, head_dropout), "0.1", .min = 0, .max = 0.9, .change = CHANGE_FREELY,
     .help = "Dropout rate of whole channels before the classifier"},
};
#undef F

static void settings_check(const Config *config, const void *settings) {
    const SemanticFpnSettings *s = settings;
    if (s->seg_norm == SEG_NORM_GN && s->head_dim % SEG_NORM_GROUPS)
        config_reject(config, "head_dim", "{head_dim} is not a multiple of %d, the groups of {seg_norm}",
                      SEG_NORM_GROUPS);
}

const ConfigGroup semantic_fpn_settings = {CONFIG_GROUP(SemanticFpnSettings, entries), .change = CHANGE_NEVER,
                                           .check = settings_check};

SemanticFpnSettings *semantic_fpn_add_settings(Config *config) {
    SemanticFpnSettings *settings = config_add(config, &semantic_fpn_settings);
    backbone_add_settings(config);
    return settings;
}

void semantic_fpn_use_settings(Config *config) { backbone_use_settings(config); }

/* == Parameters =================================================================================================== */

void semantic_fpn_create(SemanticFpn *net, const Config *config, int way) {
    memset(net, 0, sizeof *net);
    net->settings = *(const SemanticFpnSettings *)config_settings(config, &semantic_fpn_settings);
    const SemanticFpnSettings *s = &net->settings;
    Params *params = &net->model.params;
    FpnConfig fpn = {.prefix = "neck.", .lateral = {"lateral_convs.", ".conv"}, .output = {"fpn_convs.", ".conv"},
                     .channels = s->fpn_dim};
    backbone_create(&net->backbone, config, params, semantic_fpn_backbone_prefix, way);
    net->convs.way = way;
    net->backbone_floats = params->total;
    for (int i = 0; i < FPN_FEATURES; i++) fpn.in[i] = backbone_channels(&net->backbone, i);
    fpn_declare(&net->fpn, &net->convs, params, &fpn);
    semantic_head_declare(&net->head, &net->convs, params, s->fpn_dim, s->head_dim, s->num_classes, s->seg_norm);
}

void semantic_fpn_fold(SemanticFpn *net) { backbone_fold(&net->backbone); }

/* == Activations ================================================================================================== */

static PixelShape pixels_of(const SemanticFpn *net) {
    return (PixelShape){net->B, net->settings.num_classes, net->H / 4, net->W / 4, net->label_H, net->label_W};
}

/* The workspace of the loss, for labels in landscape or portrait format. */
static void plan_loss(SemanticFpn *net, Plan *plan, const SemanticRoom *room) {
    int images = plan->training ? room->B : 1, K = net->settings.num_classes, h = room->H / 4, w = room->W / 4;
    const PixelShape most = {images, K, h, w, room->label_H, room->label_W};
    const PixelShape turned = {images, K, w, h, room->label_W, room->label_H};
    plan_keep(plan, "", "labels", &net->labels, (size_t)images * (size_t)room->label_H * (size_t)room->label_W);
    plan_keep(plan, "", "loss", &net->loss, (size_t)images * sizeof *net->loss);
    plan_workspace(plan, larger_size(pixel_cross_entropy_workspace(&most), pixel_cross_entropy_workspace(&turned)));
}

static size_t features_bytes(const SemanticFpn *net, int level, const SemanticRoom *room) {
    size_t cells = (size_t)backbone_side(room->H, level) * (size_t)backbone_side(room->W, level);
    return (size_t)room->B * cells * (size_t)backbone_channels(&net->backbone, level) * sizeof(real);
}

static void activations_plan(Plan *plan, void *owner) {
    SemanticFpn *net = owner;
    const SemanticRoom *room = &net->room[plan->training];
    backbone_plan(&net->backbone, plan, room->B, room->H, room->W);
    plan_loss(net, plan, room);
    for (int i = 0; i < FPN_FEATURES; i++) /* read while the backbone uses its scratch */
        if (plan->training && backbone_is_trained(&net->backbone, i))
            plan_keep(plan, "", "dfeatures", &net->dfeatures[i], features_bytes(net, i, room));
    PlanMark mark = plan_mark(plan);
    fpn_plan(&net->fpn, plan, room->B, room->H, room->W);
    semantic_head_plan(&net->head, plan, room->B, room->H, room->W);
    plan_release(plan, mark);
}

void semantic_fpn_plan(SemanticFpn *net, const SemanticRoom *inference, const SemanticRoom *training) {
    net->room[false] = *inference;
    if (training) net->room[true] = *training;
    model_plan(&net->model, inference->B, training, activations_plan, net);
}

/* The two plans support different sizes: their owners' sizes, which are those of the last plan made, are set to those
 * of the current plan. */
static void set_room(SemanticFpn *net) {
    const SemanticRoom *room = &net->room[net->model.plan->training];
    backbone_set_room(&net->backbone, room->B, room->H, room->W);
    net->fpn.room = (size_t)room->B * (size_t)room->H * (size_t)room->W;
}

void semantic_fpn_allocate(SemanticFpn *net) {
    model_allocate(&net->model);
    conv_layers_allocate(&net->convs, &net->model);
    set_room(net);
}

void semantic_fpn_set_training(SemanticFpn *net, bool training) {
    model_set_training(&net->model, training);
    set_room(net);
}

void semantic_fpn_evaluation_begin(SemanticFpn *net) {
    model_evaluation_begin(&net->model);
    set_room(net);
    if (net->model.params.ema) semantic_fpn_fold(net);
}

void semantic_fpn_evaluation_end(SemanticFpn *net) {
    model_evaluation_end(&net->model);
    set_room(net);
    if (net->model.params.ema) semantic_fpn_fold(net);
}

/* == A batch ====================================================================================================== */

void semantic_fpn_load(SemanticFpn *net, const uint8_t *pixels, const int *sizes, const float *mean, const float *std,
                       int B, int H, int W) {
    backbone_load(&net->backbone, pixels, sizes, mean, std, B, H, W);
    net->B = B;
    net->H = H;
    net->W = W;
}

void semantic_fpn_load_labels(SemanticFpn *net, const uint8_t *labels, int label_H, int label_W) {
    size_t pixels = (size_t)net->B * (size_t)label_H * (size_t)label_W;
    const SemanticRoom *room = &net->room[net->model.plan->training];
    assert(pixels <= (size_t)room->B * (size_t)room->label_H * (size_t)room->label_W);
    net->label_H = label_H;
    net->label_W = label_W;
    device_upload(net->labels, labels, pixels);
}

void semantic_fpn_draw(SemanticFpn *net, uint64_t seed, uint32_t step, size_t first) {
    net->dropout = (Dropout){.rate = net->settings.head_dropout, .seed = seed, .step = step,
                             .site = DROPOUT_SITES - 1, .first = (uint32_t)first};
    backbone_draw(&net->backbone, seed, step, first, net->B);
}

/* == Forward and backward ========================================================================================= */

static const Dropout *dropout_of(const SemanticFpn *net) { return net->model.plan->training ? &net->dropout : NULL; }

void semantic_fpn_forward(SemanticFpn *net) {
    Backbone *b = &net->backbone;
    int B = net->B, H = net->H, W = net->W;
    conv_layers_fold(&net->convs, &net->model);
    backbone_forward(b, b->images, B, H, W);
    fpn_forward(&net->fpn, (const real *const *)b->features, B, H, W);
    semantic_head_forward(&net->head, (const real *const *)net->fpn.p, dropout_of(net), B, H, W);
}

void semantic_fpn_loss(SemanticFpn *net, float scale) {
    PixelShape pixels = pixels_of(net);
    pixel_cross_entropy(net->loss, net->model.plan->training ? net->head.dlogits : NULL, net->head.logits, net->labels,
                        scale, &pixels);
}

/* The backbone's part of the backward pass takes long, so gradients that are complete before it are reported even in
 * small ranges. */
void semantic_fpn_backward(SemanticFpn *net, GradientsListener listener) {
    FinalGradients final = model_final_gradients(&net->model, listener);
    Backbone *b = &net->backbone;
    int B = net->B, H = net->H, W = net->W;
    final.small_before = net->backbone_floats;
    semantic_head_backward(&net->head, net->fpn.dp, (const real *const *)net->fpn.p, dropout_of(net), B, H, W);
    gradients_final(&final, net->head.begin);
    fpn_backward(&net->fpn, net->dfeatures, (const real *const *)b->features, B, H, W);
    gradients_final(&final, net->backbone_floats);
    backbone_backward(b, net->dfeatures, &final);
}

/* == Description ================================================================================================== */

size_t semantic_fpn_macs(SemanticFpn *net, int H, int W) {
    return backbone_macs(&net->backbone, H, W) + fpn_macs(&net->fpn, H, W) + semantic_head_macs(&net->head, H, W);
}

size_t semantic_fpn_training_macs(SemanticFpn *net, int H, int W) {
    size_t own = fpn_macs(&net->fpn, H, W) + semantic_head_macs(&net->head, H, W);
    return 3 * own + backbone_macs(&net->backbone, H, W) + backbone_backward_macs(&net->backbone, H, W);
}

void semantic_fpn_parts(SemanticFpn *net, int H, int W, ModelPart part, void *context) {
    const SemanticFpnSettings *s = &net->settings;
    char what[96];
    backbone_parts(&net->backbone, H, W, part, context);
    snprintf(what, sizeof what, "feature pyramid, %d channels", s->fpn_dim);
    part(context, "neck.", what, fpn_macs(&net->fpn, H, W));
    snprintf(what, sizeof what, "head, %d channels, %s", s->head_dim,
             s->seg_norm == SEG_NORM_BN ? "batch norm" : "group norm");
    part(context, "decode_head.", what, semantic_head_macs(&net->head, H, W));
}

/* As in the papers, frozen weights count, and the constants of norms do not. */
static size_t counted(const SemanticFpn *net) {
    const Params *params = &net->model.params;
    return backbone_weights(&net->backbone, params) + params_size_of(params, "neck.") +
           params_size_of(params, "decode_head.");
}

void semantic_fpn_describe(SemanticFpn *net, FILE *out, int H, int W) {
    fprintf(out, "an image of %d x %d: %d x %d logits of %d classes\n", H, W, H / 4, W / 4, net->settings.num_classes);
    Description d = {&net->model, out, 22};
    description_head(&d);
    semantic_fpn_parts(net, H, W, description_part, &d);
    description_end(&d, counted(net), semantic_fpn_macs(net, H, W));
}

void semantic_fpn_destroy(SemanticFpn *net) {
    backbone_destroy(&net->backbone);
    conv_layers_free(&net->convs);
    model_destroy(&net->model);
    memset(net, 0, sizeof *net);
}
