/* Layer-wise decay of the learning rate: the groups of ConvNeXt's and timm's code, two steps of AdamW with them in
 * double, and initial weights with head_init_scale and conv_init. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "training/adamw.h"
#include "layers/vit/layer_decay.h"
#include "tests/check.h"
#include "tests/on_device.h"
#include "tests/settings.h"

static const char ISOTROPIC[] = "img_size = 8\npatch_size = 4\nnum_classes = 3\ndim = 8\nheads = 2\nmlp_ratio = 1\n"
                                "attn = softmax\n";
static const char HIERARCHY[] = "img_size = 32\npatch_size = 4\npatch_overlap = true\nnum_classes = 3\n"
                                "dim = 8,8,8,8\nheads = 1\nmlp_ratio = 1\nattn = conv\npos_embed = conv\n";

static const char PVT[] = "img_size = 32\npatch_size = 4\nnum_classes = 3\ndim = 8,8\nheads = 1\nmlp_ratio = 1\n"
                          "attn = softmax\npatch_norm = true\nstage_norm = false\npos_embed = stages\npool = cls\n";

static void model_create(Vit *vit, const char *settings, const char *more) {
    Config *config = malloc(sizeof *config); /* is never freed: the model needs it */
    config_init(config, NULL);
    vit_add_settings(config);
    settings_read(config, settings);
    settings_read(config, more);
    vit_create(vit, config);
}

static void model_close(Vit *vit) {
    Config *config = (Config *)vit->trunk.stages[0].settings;
    vit_destroy(vit);
    config_free(config);
    free(config);
}

/* get_num_layer_for_convnext of ConvNeXt's optim_factory.py, for blocks 3,3,27,3.  The norm before a stage's patch
 * embedding is called downsample_layers.<stage>.0 there; here it is the norm of the previous stage. */
static int convnext_group(const char *name) {
    int stage, block, embedding = -1;
    char next;
    if (!strncmp(name, "patch_embed.", 12)) embedding = 0;
    else if (sscanf(name, "stages.%d.downsample%c", &stage, &next) == 2) embedding = stage;
    else if (sscanf(name, "stages.%d.norm%c", &stage, &next) == 2 && stage < 3) embedding = stage + 1;
    if (embedding >= 0) return embedding == 0 ? 0 : embedding == 3 ? 12 : embedding + 1;
    if (sscanf(name, "stages.%d.blocks.%d%c", &stage, &block, &next) != 3) return 13;
    return stage < 2 ? stage + 1 : stage == 2 ? 3 + block / 3 : 12;
}

static void test_convnext(void **state) {
    Vit vit;
    int seen[14] = {0};
    (void)state;
    model_create(&vit, HIERARCHY, "depth = 3,3,27,3\n");
    assert_int_equal(layer_decay_groups(&vit.settings), 14);
    layer_decay_apply(&vit, &(LayerDecaySettings){0.8f});
    for (int i = 0; i < params_count(&vit.model.params); i++) {
        const Param *p = params_at(&vit.model.params, i);
        int group = convnext_group(p->name), got = layer_decay_group(&vit.settings, p->name);
        if (got != group) fail_msg("%s: group %d, want %d", p->name, got, group);
        assert_float_equal(p->rate, pow(0.8, 13 - group), 1e-6);
        seen[group]++;
    }
    for (int g = 0; g < 14; g++) assert_true(seen[g] > 0);
    model_close(&vit);
}

/* Tables written by hand: groups of three blocks for blocks 3,6,12,4, and timm's groups of a plain vision transformer
 * (param_groups_layer_decay), which are single blocks. */
static void test_tables(void **state) {
    static const struct {
        const char *name;
        int group;
    } hybrid[] = {{"patch_embed.norm.bias", 0},           {"stages.0.blocks.2.norm1.weight", 1},
                  {"stages.0.norm.weight", 2},            {"stages.1.downsample.proj.weight", 2},
                  {"stages.1.blocks.2.mlp.fc1.bias", 2},  {"stages.1.blocks.3.pos_embed.weight", 3},
                  {"stages.1.blocks.5.norm2.bias", 3},    {"stages.1.norm.bias", 4},
                  {"stages.2.downsample.norm.weight", 4}, {"stages.2.blocks.0.attn.conv2.weight", 4},
                  {"stages.2.blocks.11.norm1.weight", 7}, {"stages.2.norm.weight", 8},
                  {"stages.3.downsample.proj.bias", 8},   {"stages.3.blocks.2.norm1.weight", 8},
                  {"stages.3.blocks.3.norm1.weight", 9},  {"stages.3.norm.weight", 10},
                  {"head.weight", 10}},
      plain[] = {{"cls_token", 0},
                 {"pos_embed", 0},
                 {"patch_embed.proj.weight", 0},
                 {"blocks.0.norm1.weight", 1},
                 {"blocks.1.attn.qkv.weight", 2},
                 {"blocks.10.mlp.fc2.bias", 11},
                 {"norm.weight", 12},
                 {"head.bias", 12}},
      swin[] = {{"patch_embed.norm.bias", 0},
                {"layers.0.blocks.1.attn.relative_position_bias_table", 1},
                {"layers.1.downsample.reduction.weight", 2},
                {"layers.2.blocks.5.norm2.bias", 4},
                {"layers.3.downsample.norm.weight", 5},
                {"norm.weight", 6},
                {"head.fc.weight", 6}},
      pvt[] = {{"pos_embed1", 0}, {"patch_embed.norm.weight", 0},      {"stages.0.blocks.3.norm1.weight", 2},
               {"pos_embed2", 3}, {"stages.1.downsample.norm.bias", 3}, {"cls_token", 3},
               {"norm.weight", 5}, {"head.weight", 5}};
    Vit vit;
    (void)state;
    model_create(&vit, HIERARCHY, "depth = 3,6,12,4\n");
    assert_int_equal(layer_decay_groups(&vit.settings), 11);
    for (size_t i = 0; i < sizeof hybrid / sizeof *hybrid; i++) {
        assert_non_null(params_find(&vit.model.params, hybrid[i].name));
        assert_int_equal(layer_decay_group(&vit.settings, hybrid[i].name), hybrid[i].group);
    }
    model_close(&vit);
    model_create(&vit, HIERARCHY, "depth = 2,2,6,2\npos_embed = none\nmlp_conv = false\npatch_overlap = false\n"
                                  "img_size = 32\npatch_size = 4\nattn = swin\npatch_norm = true\n"
                                  "patch_merging = true\nstage_norm = false\n");
    assert_int_equal(layer_decay_groups(&vit.settings), 7);
    for (size_t i = 0; i < sizeof swin / sizeof *swin; i++) {
        assert_non_null(params_find(&vit.model.params, swin[i].name));
        assert_int_equal(layer_decay_group(&vit.settings, swin[i].name), swin[i].group);
    }
    model_close(&vit);
    model_create(&vit, ISOTROPIC, "depth = 11\npool = cls\n");
    assert_int_equal(layer_decay_groups(&vit.settings), 13);
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        assert_non_null(params_find(&vit.model.params, plain[i].name));
        assert_int_equal(layer_decay_group(&vit.settings, plain[i].name), plain[i].group);
    }
    model_close(&vit);
    model_create(&vit, ISOTROPIC, "patch_size = 1\ndepth = 11\nstem = conv\n");
    assert_non_null(params_find(&vit.model.params, "tokenizer.conv_layers.0.0.weight"));
    assert_int_equal(layer_decay_group(&vit.settings, "tokenizer.conv_layers.0.0.weight"), 0);
    model_close(&vit);
    model_create(&vit, PVT, "depth = 4,6\n");
    assert_int_equal(layer_decay_groups(&vit.settings), 6);
    for (size_t i = 0; i < sizeof pvt / sizeof *pvt; i++) {
        assert_non_null(params_find(&vit.model.params, pvt[i].name));
        assert_int_equal(layer_decay_group(&vit.settings, pvt[i].name), pvt[i].group);
    }
    model_close(&vit);
}

/* Compares with the first two steps of AdamW with clipping from `start` with gradients g, tensor by tensor. */
static int steps_agree(const Params *params, const float *start, const float *g, const float *got,
                       const AdamWSettings *s, double lr, double decay) {
    double norm = 0;
    int ok = 1;
    for (size_t i = 0; i < params->total; i++) norm += (double)g[i] * g[i];
    double scale = (double)s->clip_grad / (sqrt(norm) + 1e-6);
    for (int t = 0; t < params_count(params); t++) {
        const Param *p = params_at(params, t);
        int block, group = sscanf(p->name, "blocks.%d", &block) == 1                           ? block + 1
                           : !strncmp(p->name, "norm", 4) || !strncmp(p->name, "head", 4) ? 4
                                                                                               : 0;
        double rate = lr * pow(decay, 4 - group), *moved = calloc(p->size, sizeof *moved);
        float *change = malloc(p->size * sizeof *change);
        bool decays = p->ndim > 1 && strcmp(p->name, "pos_embed") != 0;
        for (size_t i = 0; i < p->size; i++) {
            double w = start[p->offset + i], m = 0, v = 0, gi = scale * g[p->offset + i];
            for (int step = 1; step <= 2; step++) {
                if (decays) w -= rate * (double)s->weight_decay * w;
                m = s->beta1 * m + (1 - (double)s->beta1) * gi;
                v = s->beta2 * v + (1 - (double)s->beta2) * gi * gi;
                w -= rate * m / (1 - pow(s->beta1, step)) / (sqrt(v / (1 - pow(s->beta2, step))) + (double)s->eps);
            }
            moved[i] = w - start[p->offset + i];
            change[i] = got[p->offset + i] - start[p->offset + i];
        }
        ok &= check_close(p->name, change, moved, p->size, 1e-5);
        free(moved);
        free(change);
    }
    return ok;
}

static void test_step(void **state) {
    const AdamWSettings s = {.beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-3f, .weight_decay = 0.3f, .clip_grad = 2};
    Vit vit;
    (void)state;
    model_create(&vit, ISOTROPIC, "depth = 3\npool = gap\n");
    Params *params = &vit.model.params;
    layer_decay_apply(&vit, &(LayerDecaySettings){0.7f});
    params_allocate(params, true);
    params_allocate_optimizer(params, false);
    float *start = normals(params->total, 0.1f), *g = normals(params->total, 1);
    for (int t = 0; t < params_count(params); t++) { /* the gaps between tensors stay zero */
        const Param *p = params_at(params, t);
        size_t end = t + 1 < params_count(params) ? p[1].offset : params->total;
        memset(g + p->offset + p->size, 0, (end - p->offset - p->size) * sizeof *g);
    }
    device_upload(params->values, start, params->total * sizeof *start);
    device_upload(params->grads, g, params->total * sizeof *g);
    for (int step = 1; step <= 2; step++) adamw_start(&s, params, 0.5f, step);
    assert_true(steps_agree(params, start, g, download(params->values, params->total), &s, 0.5, (double)0.7f));
    model_close(&vit);
    release_all();
}

/* The head's initial weights are multiplied by head_init_scale; nothing else changes. */
static void test_head_init_scale(void **state) {
    static const char *const heads[][2] = {{"linear", "head.weight"}, {"mlp", "head.fc2.weight"}};
    (void)state;
    for (size_t h = 0; h < 2; h++) {
        char settings[2][128];
        Vit vit[2];
        for (int i = 0; i < 2; i++) {
            snprintf(settings[i], sizeof settings[i], "depth = 1\nhead = %s\nhead_init_scale = %s\n", heads[h][0],
                     i ? "0.125" : "1");
            model_create(&vit[i], ISOTROPIC, settings[i]);
        }
        const Params *plain = &vit[0].model.params, *scaled = &vit[1].model.params;
        for (int t = 0; t < params_count(plain); t++) {
            const Param *p = params_at(plain, t);
            float *a = malloc(p->size * sizeof *a), *b = malloc(p->size * sizeof *b);
            float factor = strcmp(p->name, heads[h][1]) ? 1 : 0.125f;
            params_draw(plain, p, 5, a);
            params_draw(scaled, params_at(scaled, t), 5, b);
            for (size_t i = 0; i < p->size; i++) assert_true(b[i] == factor * a[i]);
            free(a);
            free(b);
        }
        assert_non_null(params_find(plain, heads[h][1]));
        for (int i = 0; i < 2; i++) model_close(&vit[i]);
    }
}

/* fan-out gives convolutions the variance 2 / (k k out / groups), six standard errors allowed, and zero biases; all
 * other tensors keep their values. */
static void test_conv_init(void **state) {
    static const char settings[] = "img_size = 32\npatch_size = 4\npatch_overlap = true\nnum_classes = 3\ndim = 32,64\n"
                                   "depth = 1\nheads = 2\nmlp_conv = true\nattn = reduced,relu-linear\n"
                                   "pos_embed = none\nreduction = 2,1\n";
    Vit vit[2];
    int convolutions = 0, biases = 0;
    (void)state;
    model_create(&vit[0], settings, "conv_init = uniform\n");
    model_create(&vit[1], settings, "conv_init = fan-out\n");
    for (int t = 0; t < params_count(&vit[0].model.params); t++) {
        const Param *p = params_at(&vit[0].model.params, t), *q = params_at(&vit[1].model.params, t);
        float *a = malloc(p->size * sizeof *a), *b = malloc(p->size * sizeof *b);
        params_draw(&vit[0].model.params, p, check_seed(), a);
        params_draw(&vit[1].model.params, q, check_seed(), b);
        double squares = 0;
        for (size_t i = 0; i < p->size; i++) squares += (double)b[i] * b[i];
        if (p->ndim == 4) {
            /* A group of relu-linear's 1 x 1 convolution is square, one of a depthwise convolution has one channel. */
            int outputs = p->shape[1] == 1 || strstr(p->name, "aggreg.0.1") ? p->shape[1] : p->shape[0];
            double variance = 2.0 / (outputs * p->shape[2] * p->shape[3]);
            assert_true(fabs(squares / ((double)p->size * variance) - 1) <= 6 * sqrt(2.0 / (double)p->size));
            convolutions++;
        } else if (a[0] != 0 && strstr(p->name, ".bias")) {
            assert_true(squares == 0);
            biases++;
        } else {
            assert_memory_equal(a, b, p->size * sizeof *a);
        }
        free(a);
        free(b);
    }
    assert_int_equal(convolutions, 7);
    assert_int_equal(biases, 5);
    for (int i = 0; i < 2; i++) model_close(&vit[i]);
}

int main(void) {
    kernels_init();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_convnext), cmocka_unit_test(test_tables),
                                       cmocka_unit_test(test_step), cmocka_unit_test(test_head_init_scale),
                                       cmocka_unit_test(test_conv_init)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
