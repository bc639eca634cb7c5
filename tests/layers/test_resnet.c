/* The backbone against float64 PyTorch (tests/fixtures/detection/resnet.safetensors, made by
 * tests/reference/make_resnet_fixtures.py): batches of two alternating sizes, in memory filled with NaN. */
#include <setjmp.h>
#include <float.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/text.h"
#include "training/checkpoint.h"
#include "data/sets/dataset.h"
#include "layers/backbone/resnet.h"
#include "tests/bf16_bounds.h"
#include "tests/on_device.h"
#include "tests/scratch.h"

static const char PATH[] = "tests/fixtures/detection/resnet.safetensors";
static const char PREFIX[] = "backbone.0.body.";
static const ResNetConfig RESNET50 = {{3, 4, 6, 3}, 64, 3, false, CONVOLUTION_CENTRED, PREFIX};

typedef struct {
    SafeTensors file;
    Params params;
    ResNet net;
    Plan training, inference;
    void *memory;
} Fixture;

static void fixture_open(Fixture *f, int trained, bool pyramid) {
    Error error;
    memset(f, 0, sizeof *f);
    if (!safetensors_open(&f->file, PATH, &error))
        fail_msg("%s", error.text);
    ResNetConfig config = {.trained = trained, .pyramid = pyramid, .prefix = PREFIX};
    int *blocks = config.blocks;
    assert_int_equal(sscanf(safetensors_metadata(&f->file, "blocks"), "%d,%d,%d,%d", blocks, blocks + 1, blocks + 2,
                            blocks + 3), 4);
    config.width = atoi(safetensors_metadata(&f->file, "width"));
    resnet_create(&f->net, &config, &f->params);
    params_allocate(&f->params, true);
    if (!checkpoint_read_weights(&f->params, f->params.values, &f->file, "", NULL, &error))
        fail_msg("%s", error.text);
    resnet_fold(&f->net);
    f->training.guarded = true;
    plan_start(&f->training, true);
    plan_start(&f->inference, false);
    resnet_plan(&f->net, &f->training, 2, 64, 47);
    resnet_plan(&f->net, &f->inference, 2, 64, 47);
    assert_true(plan_bytes(&f->inference) < plan_bytes(&f->training) || !trained);
    f->memory = device_malloc(plan_bytes(&f->training), "test");
    plan_bind(&f->training, f->memory);
    plan_poison(&f->training);
}

static void fixture_close(Fixture *f) {
    const char *overrun = plan_overrun(&f->training);
    if (overrun) fail_msg("somebody wrote behind the end of %s", overrun);
    resnet_destroy(&f->net);
    params_free(&f->params);
    plan_free(&f->training);
    plan_free(&f->inference);
    device_free(f->memory);
    safetensors_close(&f->file);
    release_all();
}

static const SafeTensor *tensor_of(const Fixture *f, const char *batch, const char *part, const char *name) {
    char text[128];
    snprintf(text, sizeof text, "%s.%s%s", batch, part, name);
    return safetensors_find(&f->file, text);
}

static float *floats_of(const SafeTensor *tensor) {
    Error error;
    float *x = keep(malloc(tensor->bytes), false);
    if (!safetensors_to_float(tensor, x, &error)) fail_msg("%s", error.text);
    return x;
}

typedef struct {
    int B, H, W;
    size_t n; /* the number of elements of the features */
} Size;

static Size forward(const Fixture *f, const char *batch) {
    const SafeTensor *pixels = tensor_of(f, batch, "pixels", ""), *sizes = tensor_of(f, batch, "sizes", "");
    Size s = {(int)pixels->shape[0], (int)pixels->shape[1], (int)pixels->shape[2], 0};
    uint8_t *d_pixels = keep(device_malloc(pixels->bytes, "test"), true);
    int *d_sizes = keep(device_malloc(sizes->bytes, "test"), true);
    real *images = poisoned_real(pixels->size);
    device_upload(d_pixels, pixels->data, pixels->bytes);
    device_upload(d_sizes, sizes->data, sizes->bytes);
    images_normalize_padded(images, d_pixels, d_sizes, imagenet_mean, imagenet_std, &(ImageShape){s.B, s.H, s.W});
    assert_true(resnet_fits(&f->net, s.B, s.H, s.W));
    resnet_forward(&f->net, images, s.B, s.H, s.W);
    s.n = (size_t)s.B * (size_t)resnet_grid(s.H) * (size_t)resnet_grid(s.W) * (size_t)resnet_channels(&f->net, 3);
    assert_int_equal(s.n, tensor_of(f, batch, "features", "")->size);
    return s;
}

/* The number of elements in the output of a stage. */
static size_t output_count(const Fixture *f, Size s, int stage) {
    int side = 4 << stage;
    return (size_t)s.B * (size_t)((s.H + side - 1) / side) * (size_t)((s.W + side - 1) / side) *
           (size_t)resnet_channels(&f->net, stage);
}

static double *doubles_of(const SafeTensor *tensor) {
    float *x = floats_of(tensor);
    double *wide = zeros(tensor->size);
    for (size_t i = 0; i < tensor->size; i++) wide[i] = x[i];
    return wide;
}

/* In bfloat16 a sum near zero may change the sign of a ReLU's input, and with it everything that flows back through the
 * ReLU, in PyTorch as well, so only the error of the whole tensor is bounded. */
static int close_tensor(const char *batch, const char *part, const char *name, const float *got, const double *want,
                        size_t n, double tolerance) {
    char tensor[128];
    snprintf(tensor, sizeof tensor, "%s.%s%s", batch, part, name);
    return sizeof(real) == 4 ? check_close(tensor, got, want, n, tolerance) : check_bf16(PATH, tensor, got, want, n);
}

static int close_features(const Fixture *f, const char *batch, const float *got, size_t n) {
    return close_tensor(batch, "features", "", got, doubles_of(tensor_of(f, batch, "features", "")), n, 1e-5);
}

static float *gradients_of(const Fixture *f) { return download(f->params.grads, f->params.total); }

static void backward(const Fixture *f, const char *batch, Size s) {
    real *dfeatures = upload_real(floats_of(tensor_of(f, batch, "dfeatures", "")), s.n);
    resnet_backward(&f->net, (real *[RESNET_STAGES]){NULL, NULL, NULL, dfeatures}, s.B, s.H, s.W, NULL);
}

static int check_gradients(const Fixture *f, const char *batch, double times) {
    int ok = 1, compared = 0;
    const float *grads = gradients_of(f);
    for (int i = 0; i < params_count(&f->params); i++) {
        const Param *p = params_at(&f->params, i);
        const SafeTensor *tensor = tensor_of(f, batch, "grad.", p->name);
        if (!tensor) continue;
        double *want = doubles_of(tensor);
        for (size_t j = 0; j < p->size; j++) want[j] *= times;
        ok &= close_tensor(batch, "grad.", p->name, grads + p->offset, want, p->size, 2e-5);
        compared++;
    }
    assert_true(compared >= 3);
    return ok;
}

static void test_reference(void **state) {
    (void)state;
    Fixture f;
    fixture_open(&f, 3, false);
    float *kept_features = NULL, *kept_grads = NULL;
    const char *batches[] = {"a", "b", "a"};
    for (int i = 0; i < 3; i++) {
        const char *batch = batches[i];
        printf("batch %s\n", batch);
        Size s = forward(&f, batch);
        float *features = download_real(f.net.features[3], s.n);
        assert_true(close_features(&f, batch, features, s.n));
        device_zero(f.params.grads, f.params.total * sizeof(float));
        backward(&f, batch, s);
        assert_true(check_gradients(&f, batch, 1));
        float *grads = gradients_of(&f);
        if (i == 2) { /* the same bits as the first time */
            assert_memory_equal(features, kept_features, s.n * sizeof(float));
            assert_memory_equal(grads, kept_grads, f.params.total * sizeof(float));
        } else if (i == 0) {
            kept_features = features;
            kept_grads = grads;
        }
        backward(&f, batch, s);
        assert_true(check_gradients(&f, batch, 2));
    }
    /* Frozen parameters have no gradient. */
    const float *grads = gradients_of(&f);
    for (int i = 0; i < params_count(&f.params); i++) {
        const Param *p = params_at(&f.params, i);
        bool above = strstr(p->name, "layer2") || strstr(p->name, "layer3") || strstr(p->name, "layer4");
        bool trained = p->ndim == 4 && above;
        assert_int_equal(p->frozen, !trained);
        for (size_t j = 0; p->frozen && j < p->size; j++) assert_true(grads[p->offset + j] == 0);
    }
    fixture_close(&f);
}

/* The inference plan reuses memory that a backward pass would need, and gives the same bits. */
static void test_inference(void **state) {
    (void)state;
    Fixture f;
    fixture_open(&f, 3, false);
    Size s = forward(&f, "a");
    float *features = download_real(f.net.features[3], s.n);
    plan_poison(&f.training);
    plan_bind(&f.inference, f.memory);
    for (int i = 0; i < 2; i++) {
        forward(&f, "b");
        forward(&f, "a");
        assert_memory_equal(download_real(f.net.features[3], s.n), features, s.n * sizeof *features);
    }
    plan_poison(&f.training); /* restores the guards of the training plan */
    fixture_close(&f);
}

static void test_frozen(void **state) {
    (void)state;
    Fixture f;
    fixture_open(&f, 0, false);
    assert_int_equal(f.params.parameters, 0);
    Size s = forward(&f, "a");
    assert_true(close_features(&f, "a", download_real(f.net.features[3], s.n), s.n));
    backward(&f, "a", s);
    const float *grads = gradients_of(&f);
    for (size_t i = 0; i < f.params.total; i++) assert_true(grads[i] == 0);
    fixture_close(&f);
}

/* Changed weights have an effect only after resnet_fold. */
static void test_folding_again(void **state) {
    (void)state;
    Fixture f;
    fixture_open(&f, 3, false);
    Size s = forward(&f, "a");
    float *before = download_real(f.net.features[3], s.n), *values = download(f.params.values, f.params.total);
    const Param *p = params_find(&f.params, "backbone.0.body.layer4.0.conv3.weight");
    const Param *q = params_find(&f.params, "backbone.0.body.layer4.0.downsample.0.weight");
    const Param *bn[] = {params_find(&f.params, "backbone.0.body.layer4.0.bn3.running_mean"),
                         params_find(&f.params, "backbone.0.body.layer4.0.bn3.bias"),
                         params_find(&f.params, "backbone.0.body.layer4.0.downsample.1.running_mean"),
                         params_find(&f.params, "backbone.0.body.layer4.0.downsample.1.bias")};
    for (size_t i = 0; i < p->size; i++) values[p->offset + i] *= 2;
    for (size_t i = 0; i < q->size; i++) values[q->offset + i] *= 2;
    for (int b = 0; b < 4; b++)
        for (size_t i = 0; i < bn[b]->size; i++) values[bn[b]->offset + i] *= 2;
    device_upload(f.params.values, values, f.params.total * sizeof *values);
    forward(&f, "a");
    assert_memory_equal(download_real(f.net.features[3], s.n), before, s.n * sizeof *before);
    resnet_fold(&f.net);
    forward(&f, "a");
    const float *after = download_real(f.net.features[3], s.n);
    for (size_t i = 0; i < s.n; i++) assert_true(after[i] == 2 * before[i]);
    fixture_close(&f);
}

static size_t ended;
static int finals;
static void hear_final(float *gradients, size_t n) {
    assert_true(!finals || (size_t)(uintptr_t)(gradients + n) == ended);
    ended = (size_t)(uintptr_t)gradients;
    finals++;
}

/* The final gradients are announced stage by stage, without gaps, down to layer2.  If small pieces wait for more, this
 * small backbone is announced at once. */
static void test_final(void **state) {
    (void)state;
    Fixture f;
    fixture_open(&f, 3, false);
    Size s = forward(&f, "b");
    const Params *params = &f.params;
    FinalGradients final = {hear_final, params->grads, params->total, params->total};
    real *dfeatures = upload_real(floats_of(tensor_of(&f, "b", "dfeatures", "")), s.n);
    finals = 0;
    resnet_backward(&f.net, (real *[RESNET_STAGES]){NULL, NULL, NULL, dfeatures}, s.B, s.H, s.W, &final);
    assert_int_equal(finals, 3);
    const Param *last = params_find(params, "backbone.0.body.layer2.0.conv1.weight");
    assert_true(ended == (size_t)(uintptr_t)(params->grads + last->offset));

    final = (FinalGradients){hear_final, params->grads, params->total, 0};
    finals = 0;
    resnet_backward(&f.net, (real *[RESNET_STAGES]){NULL, NULL, NULL, dfeatures}, s.B, s.H, s.W, &final);
    assert_int_equal(finals, 0);
    gradients_final(&final, 0);
    assert_int_equal(finals, 1);
    assert_true(ended == (size_t)(uintptr_t)params->grads);
    fixture_close(&f);
}

/* All four outputs have the same bits with the training plan and the inference plan, and the last one agrees with the
 * reference as without the others. */
static void test_pyramid(void **state) {
    (void)state;
    float *first[RESNET_STAGES] = {NULL};
    for (int trained = 3; trained >= 0; trained--) {
        Fixture f;
        fixture_open(&f, trained, true);
        for (int inference = 0; inference < 2; inference++) {
            if (inference) {
                plan_poison(&f.training);
                plan_bind(&f.inference, f.memory);
            }
            forward(&f, "b");
            Size s = forward(&f, "a");
            assert_true(close_features(&f, "a", download_real(f.net.features[3], s.n), s.n));
            for (int i = 0; i < RESNET_STAGES; i++) {
                size_t n = output_count(&f, s, i);
                float *got = download_real(f.net.features[i], n);
                if (!first[i]) first[i] = memcpy(malloc(n * sizeof *got), got, n * sizeof *got);
                assert_memory_equal(got, first[i], n * sizeof *got);
            }
        }
        plan_poison(&f.training);
        fixture_close(&f);
    }
    for (int i = 0; i < RESNET_STAGES; i++) free(first[i]);
}

/* The sum of all outputs multiplied by their gradients, and the sum of the squares of its terms. */
static double outputs_times(const Fixture *f, Size s, float *const gradients[RESNET_STAGES], double *squares) {
    double sum = 0;
    *squares = 0;
    for (int i = 0; i < RESNET_STAGES; i++) {
        size_t n = output_count(f, s, i);
        const float *y = download_real(f->net.features[i], n);
        for (size_t j = 0; j < n; j++) {
            double term = (double)y[j] * gradients[i][j];
            sum += term;
            *squares += term * term;
        }
    }
    return sum;
}

/* Sets a tensor to `values` plus `step` times the direction. */
static void move_tensor(const Fixture *f, const Param *p, const float *values, const float *direction, float step) {
    float *moved = keep(malloc(p->size * sizeof *moved), false);
    for (size_t i = 0; i < p->size; i++) moved[i] = values[p->offset + i] + step * direction[i];
    device_upload(f->params.values + p->offset, moved, p->size * sizeof *moved);
}

/* Gradients of all four outputs at once.  With batch norms that keep every sum positive the outputs are linear in each
 * tensor of weights, so a difference quotient of any width is exact up to rounding. */
static void test_pyramid_gradients(void **state) {
    (void)state;
    if (sizeof(real) < 4) return; /* the sums are large compared with their differences */
    Fixture f;
    fixture_open(&f, 3, true);
    float *values = download(f.params.values, f.params.total);
    for (int i = 0; i < params_count(&f.params); i++) {
        const Param *p = params_at(&f.params, i);
        bool inner = strstr(p->name, "bn1.bias") || strstr(p->name, "bn2.bias");
        float other = text_ends_with(p->name, "bias") ? (inner ? 8 : 1) : !strstr(p->name, "mean");
        float size = 0.02f / sqrtf((float)(p->size / (size_t)p->shape[0]));
        const float *drawn = normals(p->size, size);
        for (size_t j = 0; j < p->size; j++)
            values[p->offset + j] = p->ndim == 4 ? drawn[j] : other;
    }
    device_upload(f.params.values, values, f.params.total * sizeof *values);
    resnet_fold(&f.net);
    Size s = forward(&f, "b");
    float *gradients[RESNET_STAGES];
    real *dfeatures[RESNET_STAGES];
    for (int i = 0; i < RESNET_STAGES; i++) {
        size_t n = output_count(&f, s, i);
        const float *y = download_real(f.net.features[i], n);
        gradients[i] = normals(n, 1);
        for (size_t j = 0; j < n; j++) {
            assert_true(y[j] > 0);
            gradients[i][j] = fabsf(gradients[i][j]); /* all positive: differences add up, roundings do not */
        }
        dfeatures[i] = upload_real(gradients[i], n);
    }
    device_zero(f.params.grads, f.params.total * sizeof(float));
    resnet_backward(&f.net, dfeatures, s.B, s.H, s.W, NULL);
    const float *grads = gradients_of(&f);
    int checked = 0;
    for (int i = 0; i < params_count(&f.params); i++) {
        const Param *p = params_at(&f.params, i);
        if (p->frozen) continue;
        /* Move along the gradient, so that the difference is large compared with its rounding. */
        double square = 0, outputs[2], squares;
        for (size_t j = 0; j < p->size; j++) square += (double)grads[p->offset + j] * grads[p->offset + j];
        float step = 0.1f / (float)sqrt(square);
        for (int side = 0; side < 2; side++) {
            move_tensor(&f, p, values, grads + p->offset, side ? step : -step);
            resnet_fold(&f.net);
            forward(&f, "b");
            outputs[side] = outputs_times(&f, s, gradients, &squares);
        }
        move_tensor(&f, p, values, grads + p->offset, 0);
        double quotient = (outputs[1] - outputs[0]) / (2 * (double)step), rounding = 4 * FLT_EPSILON * sqrt(squares);
        if (fabs(quotient - square) > 1e-3 * square + rounding / (double)step)
            fail_msg("%s: difference quotient %g, gradient %g", p->name, quotient, square);
        checked++;
    }
    assert_true(checked >= 9);
    fixture_close(&f);
}

/* Published sizes: 25,557,032 parameters including the classifier's 2,049,000 and the batch norms' 53,120; 4.09e9
 * multiply-adds for an image of 224 x 224, without the 2e6 of the classifier. */
static void test_resnet50(void **state) {
    (void)state;
    Params params = {0};
    ResNet net;
    size_t weights = 0, frozen = 0, norms = 0;
    resnet_create(&net, &RESNET50, &params);
    for (int i = 0; i < params_count(&params); i++) {
        const Param *p = params_at(&params, i);
        if (p->ndim == 1) norms += p->size;
        else weights += p->size;
        if (p->ndim == 4 && p->frozen) frozen += p->size;
    }
    assert_int_equal(params_count(&params), 265);
    assert_int_equal(weights, 25557032 - 2049000 - 53120);
    assert_int_equal(frozen, 222400);
    assert_int_equal(norms, 106240);
    assert_int_equal(params.parameters, weights - frozen);
    assert_int_equal(resnet_channels(&net, 3), 2048);
    assert_int_equal((resnet_macs(&net, 224, 224) + 5000000) / 10000000, 409);
    assert_int_equal((resnet_macs(&net, 800, 800) + 50000000) / 100000000, 521);
    assert_int_equal((resnet_macs(&net, 800, 1066) + 50000000) / 100000000, 700);
    assert_int_equal((resnet_macs(&net, 800, 1333) + 50000000) / 100000000, 873);
    const struct {
        const char *name;
        int shape[4];
    } some[] = {{"conv1.weight", {64, 3, 7, 7}},
                {"layer1.0.conv1.weight", {64, 64, 1, 1}},
                {"layer3.0.conv1.weight", {256, 512, 1, 1}},
                {"layer3.5.conv2.weight", {256, 256, 3, 3}},
                {"layer4.0.downsample.0.weight", {2048, 1024, 1, 1}},
                {"layer4.2.bn3.running_var", {2048, 0, 0, 0}}};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        char name[PARAM_NAME_SIZE];
        snprintf(name, sizeof name, "%s%s", PREFIX, some[i].name);
        const Param *p = params_find(&params, name);
        assert_non_null(p);
        for (int d = 0; d < p->ndim; d++) assert_int_equal(p->shape[d], some[i].shape[d]);
    }
    Plan plan = {0};
    plan_start(&plan, true);
    resnet_plan(&net, &plan, 1, 800, 1333);
    assert_true(resnet_fits(&net, 1, 800, 1333) && resnet_fits(&net, 1, 1333, 800) && resnet_fits(&net, 2, 400, 600));
    assert_false(resnet_fits(&net, 1, 832, 1333));
    assert_false(resnet_fits(&net, 2, 800, 800));
    /* Forward as torchvision; backward twice that without conv1, layer1 and the gradient of layer1's output. */
    size_t forward = 4087136256, stem = 118013952, layer1 = 667942912, below = 2 * 102760448;
    assert_int_equal(resnet_macs(&net, 224, 224), forward);
    assert_int_equal(resnet_backward_macs(&net, 224, 224), 2 * (forward - stem - layer1) - below);
    plan_free(&plan);
    resnet_destroy(&net);
    params_free(&params);
}

/* With untrained weights the features are neither tiny nor huge, even after sixteen blocks.  This holds for the
 * geometric mean of several samples, each of which may be half or twice as large. */
static void test_start(void **state) {
    (void)state;
    enum { DRAWS = 8 };
    if (!full_or_reduced("depth of ResNet-50", 1, 0)) return;
    Params params = {0};
    ResNet net;
    Plan plan = {0};
    ResNetConfig config = RESNET50;
    config.width = 8;
    resnet_create(&net, &config, &params);
    params_allocate(&params, false);
    plan_start(&plan, false);
    resnet_plan(&net, &plan, 1, 65, 96);
    void *memory = keep(device_malloc(plan_bytes(&plan), "test"), true);
    plan_bind(&plan, memory);
    size_t n = 65 * 96 * 3, out = (size_t)3 * 3 * (size_t)resnet_channels(&net, 3);
    double sum_log = 0;
    for (uint64_t draw = 0; draw < DRAWS; draw++) {
        params_initialize(&params, check_seed() + draw);
        resnet_fold(&net);
        resnet_forward(&net, upload_real(normals(n, 1), n), 1, 65, 96);
        const float *features = download_real(net.features[3], out);
        double squares = 0;
        for (size_t i = 0; i < out; i++) squares += (double)features[i] * features[i];
        sum_log += log(squares / (double)out) / 2;
    }
    double size = exp(sum_log / DRAWS);
    printf("  root mean square of an untrained ResNet-50's features: %.2f\n", size);
    assert_true(size > 0.2 && size < 5);
    plan_free(&plan);
    resnet_destroy(&net);
    params_free(&params);
    release_all();
}

int main(void) {
    kernels_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference), cmocka_unit_test(test_inference), cmocka_unit_test(test_frozen),
        cmocka_unit_test(test_folding_again), cmocka_unit_test(test_final), cmocka_unit_test(test_resnet50),
        cmocka_unit_test(test_start), cmocka_unit_test(test_pyramid), cmocka_unit_test(test_pyramid_gradients),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
