/* Semantic FPN against float64 PyTorch (tests/fixtures/semantic, made by tests/reference/make_semantic_fixtures.py):
 * logits, loss, all gradients and the running averages of batch norms, in memory filled with NaN; micro-batches;
 * inference. */
#include "tests/settings.h"

#include "layers/semantic_fpn/semantic_fpn.h"
#include "tests/on_device.h"
#include "tests/scratch.h"
#include "training/checkpoint.h"

typedef struct {
    SafeTensors file;
    Config config;
    SemanticFpn net;
    int B, H, W;
    float *images, *logits; /* [B,3,H,W], [B,H/4,W/4,K] */
    uint8_t *labels;
} Case;

static float *floats_of(const Case *c, const char *name) {
    Error error;
    const SafeTensor *t = safetensors_find(&c->file, name);
    if (!t) fail_msg("%s is missing", name);
    float *x = keep(malloc(t->size * sizeof *x), false);
    assert_true(safetensors_to_float(t, x, &error));
    return x;
}

/* Reads the metadata's flags, "--name value ...", as settings. */
static void read_flags(Case *c) {
    char text[1024], *rest = text, *word;
    snprintf(text, sizeof text, "%s", safetensors_metadata(&c->file, "flags"));
    while ((word = strtok_r(rest, " ", &rest))) {
        for (char *p = word; *p; p++)
            if (*p == '-') *p = '_';
        settings_put(&c->config, word + 2, strtok_r(rest, " ", &rest));
    }
    settings_put(&c->config, "head_dropout", "0");
}

static void case_open(Case *c, const char *kind) {
    Error error;
    char path[128];
    int64_t *wide;
    memset(c, 0, sizeof *c);
    snprintf(path, sizeof path, "tests/fixtures/semantic/parity-%s.safetensors", kind);
    if (!safetensors_open(&c->file, path, &error)) fail_msg("%s", error.text);
    config_init(&c->config, "test");
    semantic_fpn_add_settings(&c->config);
    read_flags(c);
    semantic_fpn_use_settings(&c->config);
    config_settle(&c->config);
    const SafeTensor *images = safetensors_find(&c->file, "images"), *labels = safetensors_find(&c->file, "labels");
    c->B = (int)images->shape[0];
    c->H = (int)images->shape[2];
    c->W = (int)images->shape[3];
    c->images = floats_of(c, "images");
    c->logits = floats_of(c, "logits");
    c->labels = keep(malloc(labels->size), false);
    wide = keep(malloc(labels->size * sizeof *wide), false);
    assert_true(safetensors_to_int64(labels, wide, &error));
    for (size_t i = 0; i < labels->size; i++) c->labels[i] = (uint8_t)wide[i];
    /* The plans are for pictures in landscape or portrait format, and for larger ones in inference. */
    const SemanticRoom train = {c->B, c->W, c->H, c->W, c->H}, infer = {1, c->H, c->W + 32, c->H, c->W + 32};
    semantic_fpn_create(&c->net, &c->config, CONVOLUTION_CENTRED);
    c->net.model.training.guarded = true;
    semantic_fpn_plan(&c->net, &infer, &train);
    semantic_fpn_allocate(&c->net);
    plan_poison(&c->net.model.training);
    params_allocate(&c->net.model.params, true);
    if (!checkpoint_read_weights(&c->net.model.params, c->net.model.params.values, &c->file, "", NULL, &error))
        fail_msg("%s", error.text);
    semantic_fpn_fold(&c->net);
}

static void case_close(Case *c) {
    semantic_fpn_destroy(&c->net);
    config_free(&c->config);
    safetensors_close(&c->file);
    release_all();
}

/* Loads images first .. first+n-1. */
static void load(Case *c, int first, int n) {
    size_t area = (size_t)c->H * (size_t)c->W;
    float *last = keep(malloc((size_t)n * area * 3 * sizeof *last), false);
    uint8_t *black = host_malloc((size_t)n * area * 3, "test");
    int sizes[8];
    for (int i = 0; i < 2 * n; i++) sizes[i] = i % 2 ? c->W : c->H;
    semantic_fpn_load(&c->net, black, sizes, (const float[3]){0}, (const float[3]){1, 1, 1}, n, c->H, c->W);
    for (size_t i = 0; i < (size_t)n * area * 3; i++) {
        size_t image = i / 3 / area, pixel = i / 3 % area;
        last[i] = c->images[(((size_t)first + image) * 3 + i % 3) * area + pixel];
    }
    device_synchronize();
    real_upload(c->net.backbone.images, last, (size_t)n * area * 3);
    host_free(black);
}

static double step(Case *c, int first, int n) {
    float loss[4];
    double sum = 0;
    load(c, first, n);
    semantic_fpn_load_labels(&c->net, c->labels + (size_t)first * (size_t)(c->H * c->W), c->H, c->W);
    semantic_fpn_draw(&c->net, 1, 0, (size_t)first);
    semantic_fpn_forward(&c->net);
    semantic_fpn_loss(&c->net, 1 / (float)c->B);
    semantic_fpn_backward(&c->net, NULL);
    device_synchronize();
    device_download(loss, c->net.loss, (size_t)n * sizeof *loss);
    for (int i = 0; i < n; i++) sum += (double)loss[i] / c->B;
    const char *overrun = plan_overrun(&c->net.model.training);
    if (overrun) fail_msg("somebody wrote behind the end of %s", overrun);
    return sum;
}

/* ||got - want|| / ||want|| of a tensor of the fixture. */
static double norm_error(const Case *c, const char *name, const float *got, size_t n) {
    const float *want = floats_of(c, name);
    double error = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        error += pow((double)got[i] - (double)want[i], 2);
        size += pow((double)want[i], 2);
    }
    return sqrt(error / size);
}

/* In bfloat16 each of about twenty layers rounds its activations, with an error of 0.3 %; logits and loss may have
 * three times the resulting error.  Gradients of single tensors, some of which cancel, are compared in float32 only. */
static double allowed(double float32) { return sizeof(real) == 4 ? float32 : 0.04; }

/* Compares all gradients and prints the one with the largest error. */
static void check_gradients(const Case *c, const char *kind) {
    const Params *params = &c->net.model.params;
    double worst = 0;
    const char *where = "";
    int count = 0;
    for (int i = 0; i < params_count(params); i++) {
        const Param *p = params_at(params, i);
        char name[PARAM_NAME_SIZE + 8];
        if (p->frozen) continue;
        snprintf(name, sizeof name, "grad.%s", p->name);
        double error = norm_error(c, name, download(params->grads + p->offset, p->size), p->size);
        count++;
        if (!(error <= worst)) {
            worst = error;
            where = p->name;
        }
    }
    printf("%s: worst of %d gradients %.1e %s\n", kind, count, worst, where);
    assert_true(count > 40 && (sizeof(real) < 4 || worst <= 1e-5));
}

static void check_running(const Case *c) {
    const Params *params = &c->net.model.params;
    for (int i = 0; i < params_count(params); i++) {
        const Param *p = params_at(params, i);
        char name[PARAM_NAME_SIZE + 8];
        if (strncmp(p->name, "decode_head.", 12) || !p->frozen) continue;
        snprintf(name, sizeof name, "expect.%s", p->name);
        assert_true(norm_error(c, name, download(params->values + p->offset, p->size), p->size) < allowed(1e-6));
    }
}

static const char *const kinds[] = {"resnet-bn", "resnet-gn", "hierarchy-bn", "hierarchy-gn"};

static void test_step(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        Case c;
        case_open(&c, kinds[k]);
        double loss = step(&c, 0, c.B), want = (double)*floats_of(&c, "loss");
        size_t n = safetensors_find(&c.file, "logits")->size;
        double error = norm_error(&c, "logits", download_real(c.net.head.logits, n), n);
        printf("%s: logits %.1e, loss %.7f want %.7f\n", kinds[k], error, loss, want);
        assert_true(error < allowed(5e-6) && fabs(loss - want) < allowed(1e-6) * want);
        check_gradients(&c, kinds[k]);
        check_running(&c);
        case_close(&c);
    }
}

/* With group norms the images are independent: micro-batches of one image give the same gradients, and inference gives
 * the same logits. */
static void test_images_apart(void **state) {
    (void)state;
    for (size_t k = 1; k < sizeof kinds / sizeof *kinds; k += 2) {
        Case c;
        case_open(&c, kinds[k]);
        for (int b = 0; b < c.B; b++) step(&c, b, 1);
        check_gradients(&c, kinds[k]);
        semantic_fpn_set_training(&c.net, false);
        load(&c, 0, 1);
        semantic_fpn_forward(&c.net);
        size_t n = safetensors_find(&c.file, "logits")->size / (size_t)c.B;
        double error = norm_error(&c, "logits", download_real(c.net.head.logits, n), n);
        printf("%s: logits of one image in inference %.1e\n", kinds[k], error);
        assert_true(error < allowed(5e-6));
        case_close(&c);
    }
}

int main(void) {
    check_seed();
    kernels_init();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_step), cmocka_unit_test(test_images_apart)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
