/* forward   C_2 .. C_5 = backbone(images);  P_2 .. P_6 = fpn(C);  logits, deltas = rpn(P);
 *           x = RoIAlign(P_2 .. P_5, regions), 7 x 7;  class logits, deltas = box(x);
 *           z = RoIAlign(P_2 .. P_5, masks), 14 x 14;  mask logits = mask(z)
 * backward  dx, dz of the heads;  dP of the RPN, to which RoIAlign's are added;  dC;  the backbone's */
#include "layers/mask_rcnn/mask_rcnn.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/die.h"
#include "layers/model_facts.h"

/* == Settings ===================================================================================================== */

#define F(KIND, field) CONFIG_FIELD(KIND, MaskRcnnSettings, field)
static const ConfigEntry entries[] = {
    {F(INT, num_classes), "0", .section = "model", .min = 0, .max = 65535, .change = CHANGE_TO_DEFAULT,
     .help = "Number of categories, 80 for COCO (0: that of the data set)"},
    {F(INT, fpn_width), "256", .min = 8, .max = 4096, .help = "Channels of the feature pyramid"},
    {F(INT, box_width), "1024", .min = 8, .max = 16384, .help = "Width of the box head's two linear layers"},
    {F(INT, mask_width), "256", .min = 8, .max = 4096, .help = "Channels of the mask head's convolutions"},
    {F(FLOAT, anchor_size), "8", .min = 0.25, .max = 256,
     .help = "Side of a square anchor as a multiple of its level's stride"},
    {F(FLOAT, canonical_size), "224", .min = 1, .max = 8192,
     .help = "Side of the regions whose features come from the pyramid's level of stride 16; regions of twice the side "
             "use the next level"},
    {F(INT, anchor_sample), "256", .min = 2, .max = 65536, .section = "training", .change = CHANGE_FREELY,
     .help = "Number of anchors of an image in the loss, at most half of them positive"},
    {F(INT, region_sample), "512", .min = 4, .max = 65536, .change = CHANGE_FREELY,
     .help = "Number of regions of an image in the loss, at most a quarter of them positive"},
    {F(INT, train_candidates), "2000", .min = 1, .max = 1000000, .change = CHANGE_FREELY,
     .help = "Number of the best boxes of each level that enter non-maximum suppression in training"},
    {F(INT, eval_candidates), "1000", .min = 1, .max = 1000000, .change = CHANGE_FREELY, .section = "run",
     .help = "The same number in evaluation and prediction"},
    {F(INT, proposals), "1000", .min = 1, .max = 65536, .change = CHANGE_FREELY,
     .help = "Number of proposals of an image, the best of all levels"},
    {F(INT, detections), "100", .min = 1, .max = 65536, .change = CHANGE_FREELY,
     .help = "Number of detections of an image, the best of all classes"},
};
#undef F
const ConfigGroup mask_rcnn_settings = {CONFIG_GROUP(MaskRcnnSettings, entries), .change = CHANGE_NEVER};

SampleRule mask_rcnn_anchor_rule(const MaskRcnn *m) {
    return (SampleRule){m->settings.anchor_sample, m->settings.anchor_sample / 2};
}
SampleRule mask_rcnn_region_rule(const MaskRcnn *m) {
    return (SampleRule){m->settings.region_sample, m->settings.region_sample / 4};
}
ProposalRule mask_rcnn_proposal_rule(const MaskRcnn *m, bool training) {
    const MaskRcnnSettings *s = &m->settings;
    return (ProposalRule){training ? s->train_candidates : s->eval_candidates, s->proposals, 0.7f};
}
RegionDetectionRule mask_rcnn_detection_rule(const MaskRcnn *m) {
    RegionDetectionRule rule = detection_rule;
    rule.most = m->settings.detections;
    return rule;
}

/* == Parameters =================================================================================================== */

void mask_rcnn_create(MaskRcnn *m, const Config *config, int way) {
    Params *params = &m->model.params;
    *m = (MaskRcnn){.settings = *(const MaskRcnnSettings *)config_settings(config, &mask_rcnn_settings)};
    const MaskRcnnSettings *s = &m->settings;
    m->K = s->num_classes + 1;
    backbone_create(&m->backbone, config, params, "backbone.body.", way);
    m->convs.way = way;
    m->backbone_floats = params->total;
    FpnConfig fpn = {.prefix = "backbone.fpn.", .lateral = {"inner_blocks.", ".0"}, .output = {"layer_blocks.", ".0"},
                     .channels = s->fpn_width, .coarsest = true};
    for (int i = 0; i < FPN_FEATURES; i++) fpn.in[i] = backbone_channels(&m->backbone, i);
    fpn_declare(&m->fpn, &m->convs, params, &fpn);
    m->pyramid_floats = params->total;
    rpn_head_declare(&m->rpn, &m->convs, params, s->fpn_width);
    m->rpn_floats = params->total;
    box_head_declare(&m->box, params, s->fpn_width, s->box_width, m->K);
    mask_head_declare(&m->mask, &m->convs, params, s->fpn_width, s->mask_width, m->K);
}

void mask_rcnn_fold(MaskRcnn *m) { backbone_fold(&m->backbone); }

/* == Activations ================================================================================================== */

static int regions_of_image(const MaskRcnn *m, bool training) {
    return training ? m->settings.region_sample : m->settings.proposals;
}
static int masks_of_image(const MaskRcnn *m, bool training) {
    return training ? mask_rcnn_region_rule(m).most_positive : m->settings.detections;
}

static void regions_plan(Regions *regions, Plan *plan, const char *prefix, int most) {
    if (most > regions->room) regions->room = most;
    plan_keep(plan, prefix, "regions", &regions->device_boxes, (size_t)most * sizeof *regions->boxes);
    plan_keep(plan, prefix, "places", &regions->device_place, (size_t)most * sizeof *regions->place);
}

/* The maps from which regions take features, for a batch padded to H x W. */
static RoiAlign align_of(const MaskRcnn *m, int B, int H, int W, int P) {
    RoiAlign shape = {.B = B, .C = m->settings.fpn_width, .P = P, .levels = FPN_FEATURES};
    for (int i = 0; i < FPN_FEATURES; i++) {
        shape.rows[i] = fpn_side(i, H);
        shape.columns[i] = fpn_side(i, W);
        shape.scale[i] = 1 / (float)(4 << i);
    }
    return shape;
}

static size_t features_bytes(const MaskRcnn *m, int regions, int P) {
    return (size_t)regions * (size_t)(P * P) * (size_t)m->settings.fpn_width * sizeof(real);
}

/* Gradients that a later part of the backward pass reads are borrowed before the scratch of the parts in between. */
static void activations_plan(Plan *plan, void *owner) {
    MaskRcnn *m = owner;
    int B = m->model.batch, H = m->H, W = m->W;
    int regions = B * regions_of_image(m, plan->training);
    int masks = mask_head_rows(B * masks_of_image(m, plan->training));
    for (int i = 0; i < BACKBONE_LEVELS && plan->training; i++) {
        size_t cells = (size_t)B * (size_t)fpn_side(i, H) * (size_t)fpn_side(i, W);
        size_t bytes = cells * (size_t)backbone_channels(&m->backbone, i) * sizeof(real);
        if (backbone_is_trained(&m->backbone, i)) plan_borrow(plan, "backbone.", "dfeatures", &m->dfeatures[i], bytes);
    }
    if (plan->training) {
        plan_borrow(plan, "roi_heads.", "dx", &m->box.dx, features_bytes(m, regions, BOX_SIDE));
        plan_borrow(plan, "roi_heads.", "dx", &m->mask.dx, features_bytes(m, masks, MASK_SIDE));
    }
    backbone_plan(&m->backbone, plan, B, H, W);
    fpn_plan(&m->fpn, plan, B, H, W);
    rpn_head_plan(&m->rpn, plan, B, H, W);
    regions_plan(&m->regions, plan, "roi_heads.box_", regions);
    regions_plan(&m->masks, plan, "roi_heads.mask_", masks);
    for (int P = BOX_SIDE; P <= MASK_SIDE; P += MASK_SIDE - BOX_SIDE) {
        RoiAlign shape = align_of(m, B, H, W, P), turned = align_of(m, B, W, H, P);
        plan_workspace(plan, roi_align_workspace(&shape));
        plan_workspace(plan, roi_align_workspace(&turned));
    }
    box_head_plan(&m->box, plan, (size_t)regions);
    mask_head_plan(&m->mask, plan, (size_t)masks);
}

void mask_rcnn_plan(MaskRcnn *m, int B, int H, int W, bool training) {
    m->H = (H + 31) / 32 * 32;
    m->W = (W + 31) / 32 * 32;
    model_plan(&m->model, B, training, activations_plan, m);
}

static float *host_floats(size_t n) { return host_malloc((n + 1) * sizeof(float), "outputs"); }

static void host_allocate(MaskRcnn *m) {
    bool training = model_trains(&m->model);
    size_t R = (size_t)m->regions.room, masks = (size_t)m->masks.room * MASK_OUT * MASK_OUT, K = (size_t)m->K;
    for (int i = 0; i < FPN_LEVELS; i++) {
        size_t anchors = (size_t)m->model.batch * (size_t)fpn_side(i, m->H) * (size_t)fpn_side(i, m->W) * ANCHOR_RATIOS;
        m->logits[i] = host_floats(anchors);
        m->deltas[i] = host_floats(4 * anchors);
        if (!training) continue;
        m->dlogits[i] = host_floats(anchors);
        m->ddeltas[i] = host_floats(4 * anchors);
    }
    m->class_logits = host_floats(R * K);
    m->class_deltas = host_floats(4 * R * K);
    m->mask_logits = host_floats(masks * K);
    if (!training) return;
    m->dclass_logits = host_floats(R * K);
    m->dclass_deltas = host_floats(4 * R * K);
    m->dmask_logits = host_floats(masks * K);
}

static void regions_allocate(Regions *regions) {
    regions->boxes = xcalloc((size_t)regions->room, sizeof *regions->boxes, "regions");
    regions->place = xcalloc((size_t)regions->room, sizeof *regions->place, "regions");
}

void mask_rcnn_allocate(MaskRcnn *m) {
    model_allocate(&m->model);
    conv_layers_allocate(&m->convs, &m->model);
    regions_allocate(&m->regions);
    regions_allocate(&m->masks);
    host_allocate(m);
}

/* == Forward ====================================================================================================== */

void mask_rcnn_load(MaskRcnn *m, const uint8_t *pixels, const int *sizes, const float *mean, const float *std, int B,
                    int H, int W) {
    assert(B <= m->model.batch && H % 32 == 0 && W % 32 == 0);
    backbone_load(&m->backbone, pixels, sizes, mean, std, B, H, W);
    m->B = B;
    m->H = H;
    m->W = W;
}

static AnchorRule anchor_rule(const MaskRcnn *m) {
    AnchorRule rule = {.levels = FPN_LEVELS, .size = m->settings.anchor_size};
    for (int i = 0; i < FPN_LEVELS; i++) rule.stride[i] = 4 << i;
    return rule;
}

static size_t anchors_of(const MaskRcnn *m, int i) {
    return (size_t)m->B * (size_t)fpn_side(i, m->H) * (size_t)fpn_side(i, m->W) * ANCHOR_RATIOS;
}

void mask_rcnn_forward(MaskRcnn *m) {
    AnchorRule rule = anchor_rule(m);
    conv_layers_fold(&m->convs, &m->model);
    backbone_forward(&m->backbone, m->backbone.images, m->B, m->H, m->W);
    fpn_forward(&m->fpn, (const real *const *)m->backbone.features, m->B, m->H, m->W);
    for (int i = 0; i < FPN_LEVELS; i++) rpn_head_forward(&m->rpn, i, m->fpn.p[i], m->B, m->H, m->W);
    if (m->anchors.H != m->H || m->anchors.W != m->W) anchors_make(&m->anchors, &rule, m->H, m->W);
    for (int i = 0; i < FPN_LEVELS; i++) {
        real_download(m->logits[i], m->rpn.logits[i], anchors_of(m, i));
        real_download(m->deltas[i], m->rpn.deltas[i], 4 * anchors_of(m, i));
    }
    m->regions.count = m->masks.count = 0;
}

void mask_rcnn_outputs_of(const MaskRcnn *m, int b, const float *logits[FPN_LEVELS], const float *deltas[FPN_LEVELS]) {
    for (int i = 0; i < FPN_LEVELS; i++) {
        size_t at = (size_t)b * (m->anchors.first[i + 1] - m->anchors.first[i]);
        logits[i] = m->logits[i] + at;
        deltas[i] = m->deltas[i] + 4 * at;
    }
}

void regions_add(MaskRcnn *m, Regions *regions, const float box[4], int image) {
    assert(regions->count < regions->room);
    memcpy(regions->boxes[regions->count], box, sizeof *regions->boxes);
    regions->place[regions->count][0] = image;
    regions->place[regions->count][1] = region_level(box, m->settings.canonical_size, FPN_FEATURES);
    regions->count++;
}

/* The features of `rows` regions; those beyond the last region are empty. */
static void align(MaskRcnn *m, real *x, Regions *regions, int rows, int P) {
    RoiAlign shape = align_of(m, m->B, m->H, m->W, P);
    size_t more = (size_t)(rows - regions->count);
    memset(regions->boxes + regions->count, 0, more * sizeof *regions->boxes);
    memset(regions->place + regions->count, 0, more * sizeof *regions->place);
    device_upload(regions->device_boxes, regions->boxes, (size_t)rows * sizeof *regions->boxes);
    device_upload(regions->device_place, regions->place, (size_t)rows * sizeof *regions->place);
    roi_align_forward(x, (const real *const *)m->fpn.p, regions->device_boxes, regions->device_place, rows, &shape);
}

void mask_rcnn_forward_boxes(MaskRcnn *m) {
    int R = m->regions.count;
    if (!R) return;
    align(m, m->box.x, &m->regions, R, BOX_SIDE);
    box_head_forward(&m->box, R);
    real_download(m->class_logits, m->box.logits, (size_t)R * (size_t)m->K);
    real_download(m->class_deltas, m->box.deltas, (size_t)R * (size_t)m->K * 4);
}

static size_t mask_numbers(const MaskRcnn *m, int R) { return (size_t)R * MASK_OUT * MASK_OUT * (size_t)m->K; }

void mask_rcnn_forward_masks(MaskRcnn *m) {
    int R = m->masks.count, rows = mask_head_rows(R);
    if (!R) return;
    align(m, m->mask.x, &m->masks, rows, MASK_SIDE);
    mask_head_forward(&m->mask, rows);
    real_download(m->mask_logits, m->mask.logits, mask_numbers(m, R));
}

/* == Backward ===================================================================================================== */

void mask_rcnn_clear_gradients(MaskRcnn *m) {
    size_t R = (size_t)m->regions.count * (size_t)m->K;
    for (int i = 0; i < FPN_LEVELS; i++) {
        memset(m->dlogits[i], 0, anchors_of(m, i) * sizeof(float));
        memset(m->ddeltas[i], 0, 4 * anchors_of(m, i) * sizeof(float));
    }
    memset(m->dclass_logits, 0, R * sizeof(float));
    memset(m->dclass_deltas, 0, 4 * R * sizeof(float));
    memset(m->dmask_logits, 0, mask_numbers(m, mask_head_rows(m->masks.count)) * sizeof(float));
}

static void backward_heads(MaskRcnn *m) {
    int R = m->regions.count, rows = mask_head_rows(m->masks.count);
    if (rows) {
        real_upload(m->mask.dlogits, m->dmask_logits, mask_numbers(m, rows));
        mask_head_backward(&m->mask, rows);
    }
    if (!R) return;
    real_upload(m->box.dlogits, m->dclass_logits, (size_t)R * (size_t)m->K);
    real_upload(m->box.ddeltas, m->dclass_deltas, (size_t)R * (size_t)m->K * 4);
    box_head_backward(&m->box, R);
}

/* The RPN's part of the maps' gradients is computed first, and the regions' part is added to it. */
static void backward_maps(MaskRcnn *m, FinalGradients *final) {
    RoiAlign boxes = align_of(m, m->B, m->H, m->W, BOX_SIDE), masks = align_of(m, m->B, m->H, m->W, MASK_SIDE);
    for (int i = 0; i < FPN_LEVELS; i++) {
        real_upload(m->rpn.dlogits, m->dlogits[i], anchors_of(m, i));
        real_upload(m->rpn.ddeltas, m->ddeltas[i], 4 * anchors_of(m, i));
        rpn_head_backward(&m->rpn, i, m->fpn.dp[i], m->fpn.p[i], m->B, m->H, m->W);
    }
    gradients_final(final, m->pyramid_floats);
    roi_align_backward(m->fpn.dp, m->box.dx, m->regions.device_boxes, m->regions.device_place, m->regions.count,
                       &boxes);
    roi_align_backward(m->fpn.dp, m->mask.dx, m->masks.device_boxes, m->masks.device_place, m->masks.count, &masks);
}

void mask_rcnn_backward(MaskRcnn *m, GradientsListener listener) {
    FinalGradients final = model_final_gradients(&m->model, listener);
    final.small_before = m->backbone_floats;
    backward_heads(m);
    gradients_final(&final, m->rpn_floats);
    backward_maps(m, &final);
    fpn_backward(&m->fpn, m->dfeatures, (const real *const *)m->backbone.features, m->B, m->H, m->W);
    gradients_final(&final, m->backbone_floats);
    backbone_backward(&m->backbone, m->dfeatures, &final);
}

/* == Description ================================================================================================== */

static size_t heads_macs(const MaskRcnn *m, int H, int W, int proposals, int masks) {
    return fpn_macs(&m->fpn, H, W) + rpn_head_macs(&m->rpn, H, W) + box_head_macs(&m->box, (size_t)proposals) +
           mask_head_macs(&m->mask, (size_t)masks);
}

size_t mask_rcnn_macs(MaskRcnn *m, int H, int W, int proposals, int masks) {
    return backbone_macs(&m->backbone, H, W) + heads_macs(m, H, W, proposals, masks);
}

size_t mask_rcnn_training_macs(MaskRcnn *m, int H, int W) {
    return backbone_macs(&m->backbone, H, W) + backbone_backward_macs(&m->backbone, H, W) +
           3 * heads_macs(m, H, W, regions_of_image(m, true), masks_of_image(m, true));
}

void mask_rcnn_parts(MaskRcnn *m, int H, int W, ModelPart part, void *context) {
    const MaskRcnnSettings *s = &m->settings;
    char what[96];
    backbone_parts(&m->backbone, H, W, part, context);
    part(context, "backbone.fpn.", "feature pyramid, P2 to P6", fpn_macs(&m->fpn, H, W));
    part(context, "rpn.", "region proposals on five levels", rpn_head_macs(&m->rpn, H, W));
    snprintf(what, sizeof what, "%d regions, two layers of %d", s->proposals, s->box_width);
    part(context, "roi_heads.box_", what, box_head_macs(&m->box, (size_t)s->proposals));
    snprintf(what, sizeof what, "%d regions, four convolutions of %d", s->detections, s->mask_width);
    part(context, "roi_heads.mask_", what, mask_head_macs(&m->mask, (size_t)s->detections));
}

void mask_rcnn_describe(MaskRcnn *m, FILE *out, int H, int W) {
    const MaskRcnnSettings *s = &m->settings;
    int proposals = s->proposals, masks = s->detections;
    H = (H + 31) / 32 * 32;
    W = (W + 31) / 32 * 32;
    fprintf(out, "an image of %d x %d: pyramid of %d, %d proposals, %d masks, %d classes with the background\n", H, W,
            s->fpn_width, proposals, masks, m->K);
    Description d = {&m->model, out, 26};
    description_head(&d);
    mask_rcnn_parts(m, H, W, description_part, &d);
    size_t heads = m->model.params.parameters - params_size_of(&m->model.params, "backbone.body.");
    description_end(&d, backbone_weights(&m->backbone, &m->model.params) + heads,
                    mask_rcnn_macs(m, H, W, proposals, masks));
}

static void regions_free(Regions *regions) {
    free(regions->boxes);
    free(regions->place);
}

void mask_rcnn_destroy(MaskRcnn *m) {
    float *host[] = {m->class_logits, m->class_deltas, m->mask_logits, m->dclass_logits, m->dclass_deltas,
                     m->dmask_logits};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) host_free(host[i]);
    for (int i = 0; i < FPN_LEVELS; i++) {
        float *of_level[] = {m->logits[i], m->deltas[i], m->dlogits[i], m->ddeltas[i]};
        for (int k = 0; k < 4; k++) host_free(of_level[k]);
    }
    regions_free(&m->regions);
    regions_free(&m->masks);
    anchors_free(&m->anchors);
    backbone_destroy(&m->backbone);
    conv_layers_free(&m->convs);
    model_destroy(&m->model);
    memset(m, 0, sizeof *m);
}
