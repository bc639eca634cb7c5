#include "layers/backbone/backbone.h"

#include <string.h>

#include "core/die.h"
#include "core/safetensors.h"
#include "core/text.h"
#include "training/checkpoint.h"

/* == Settings ===================================================================================================== */

#define F(KIND, field) CONFIG_FIELD(KIND, BackboneKindSettings, field)
static const ConfigEntry kind_entries[] = {
    {F(CHOICE, backbone), "resnet", .section = "model", CONFIG_CHOICES("resnet"),
     .help = "What makes the four maps of features: resnet (bottlenecks with frozen batch norms)"},
};
#undef F
const ConfigGroup backbone_kind_settings = {CONFIG_GROUP(BackboneKindSettings, kind_entries), .change = CHANGE_NEVER};

#define F(KIND, field) CONFIG_FIELD(KIND, ResNetSettings, field)
static const ConfigEntry resnet_entries[] = {
    {F(INTS, backbone_blocks), "3,4,6,3", .section = "model", .min = 1, .max = 99,
     .help = "Number of blocks in each of the four stages of the ResNet backbone (ResNet-50: 3,4,6,3)"},
    {F(INT, backbone_width), "64", .min = 1, .max = 1024,
     .help = "Output channels of the backbone's first convolution"},
    {F(INT, trainable_layers), "3", .min = 0, .max = RESNET_STAGES - 1,
     .help = "How many of the ResNet's last stages are trained; batch norms never are"},
};
#undef F

static void resnet_check(const Config *config, const void *settings) {
    const ResNetSettings *s = settings;
    if (s->backbone_blocks.count != RESNET_STAGES)
        config_reject(config, "backbone_blocks", "expected four numbers from 1 to 99, as 3,4,6,3, got %d",
                      s->backbone_blocks.count);
}

const ConfigGroup resnet_settings = {CONFIG_GROUP(ResNetSettings, resnet_entries), .change = CHANGE_NEVER,
                                     .check = resnet_check};

void backbone_add_settings(Config *config) {
    config_add(config, &backbone_kind_settings);
    config_add_for(config, &resnet_settings, "backbone", "resnet");
}

void backbone_use_settings(Config *config) { config_use(config, &resnet_settings); }

/* == Parameters and activations =================================================================================== */

static void create_resnet(Backbone *b, const Config *config, Params *params) {
    const ResNetSettings *s = config_settings(config, &resnet_settings);
    ResNetConfig resnet = {.width = s->backbone_width, .trained = s->trainable_layers, .pyramid = true,
                           .prefix = b->prefix};
    for (int i = 0; i < RESNET_STAGES; i++) resnet.blocks[i] = s->backbone_blocks.at[i];
    resnet_create(&b->resnet, &resnet, params);
}

void backbone_create(Backbone *b, const Config *config, Params *params, const char *prefix) {
    const BackboneKindSettings *s = config_settings(config, &backbone_kind_settings);
    *b = (Backbone){.kind = s->backbone};
    snprintf(b->prefix, sizeof b->prefix, "%s", prefix);
    create_resnet(b, config, params);
}

void backbone_set_room(Backbone *b, int B, int H, int W) {
    b->most_B = B;
    b->most_H = H;
    b->most_W = W;
    resnet_set_room(&b->resnet, B, H, W);
}

void backbone_plan(Backbone *b, Plan *plan, int B, int H, int W) {
    size_t image = 3 * (size_t)H * (size_t)W;
    backbone_set_room(b, B, H, W);
    plan_keep(plan, "", "pixels", &b->pixels, (size_t)B * image);
    plan_keep(plan, "", "sizes", &b->sizes, (size_t)B * 2 * sizeof *b->sizes);
    plan_keep(plan, "", "images", &b->images, (size_t)B * image * sizeof(real));
    resnet_plan(&b->resnet, plan, B, H, W);
    for (int i = 0; i < BACKBONE_LEVELS; i++) plan_alias(plan, &b->features[i], &b->resnet.features[i]);
}

bool backbone_fits(const Backbone *b, int B, int H, int W) {
    bool upright = H <= b->most_H && W <= b->most_W, sideways = H <= b->most_W && W <= b->most_H;
    return B <= b->most_B && (upright || sideways);
}

void backbone_fold(Backbone *b) { resnet_fold(&b->resnet); }

/* == Forward and backward ========================================================================================= */

void backbone_load(Backbone *b, const uint8_t *pixels, const int *sizes, const float *mean, const float *std, int B,
                   int H, int W) {
    if (!backbone_fits(b, B, H, W))
        die("a batch of %d images of %d x %d: there is room for %d of %d x %d", B, H, W, b->most_B, b->most_H,
            b->most_W);
    device_upload(b->sizes, sizes, 2 * (size_t)B * sizeof *sizes);
    device_upload_async(b->pixels, pixels, (size_t)B * 3 * (size_t)H * (size_t)W);
    images_normalize_padded(b->images, b->pixels, b->sizes, mean, std, &(ImageShape){B, H, W});
    device_uploads_used();
}

void backbone_forward(Backbone *b, const real *images, int B, int H, int W) {
    b->B = B;
    b->H = H;
    b->W = W;
    resnet_forward(&b->resnet, images, B, H, W);
}

void backbone_backward(Backbone *b, real *const dfeatures[BACKBONE_LEVELS], FinalGradients *final) {
    resnet_backward(&b->resnet, dfeatures, b->B, b->H, b->W, final);
}

/* == Size and description ========================================================================================= */

int backbone_channels(const Backbone *b, int level) { return resnet_channels(&b->resnet, level); }

bool backbone_is_trained(const Backbone *b, int level) { return resnet_is_trained(&b->resnet, level); }

size_t backbone_macs(Backbone *b, int H, int W) { return resnet_macs(&b->resnet, H, W); }

size_t backbone_backward_macs(Backbone *b, int H, int W) { return resnet_backward_macs(&b->resnet, H, W); }

size_t backbone_weights(const Backbone *b, const Params *params) {
    size_t count = 0;
    for (int i = 0; i < params_count(params); i++) {
        const Param *p = params_at(params, i);
        bool statistic = text_ends_with(p->name, ".running_mean") || text_ends_with(p->name, ".running_var");
        if (!strncmp(p->name, b->prefix, strlen(b->prefix)) && !statistic) count += p->size;
    }
    return count;
}

void backbone_describe(Backbone *b, int H, int W, BackboneRow row, void *context) {
    row(context, b->prefix, "ResNet, frozen batch norms", backbone_macs(b, H, W));
}

/* == Weights ====================================================================================================== */

bool backbone_is_alone(const Backbone *b, const char *path) {
    SafeTensors st;
    bool alone = true;
    safetensors_open(&st, path, &error_fatal);
    for (int i = 0; i < st.count; i++)
        if (!strncmp(st.tensors[i].name, b->prefix, strlen(b->prefix))) alone = false;
    safetensors_close(&st);
    return alone;
}

void backbone_load_weights(Backbone *b, Params *params, const char *path) {
    checkpoint_load_part(params, b->prefix, path);
}

void backbone_destroy(Backbone *b) {
    resnet_destroy(&b->resnet);
    *b = (Backbone){0};
}
