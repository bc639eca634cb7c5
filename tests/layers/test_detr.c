/* The detector without its backbone against the float64 reference (tests/reference/detr_reference.py): every file in
 * tests/fixtures/smca is a case.  Also invariants (padding, plans, micro-batches) and the initial weights. */
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "training/checkpoint.h"
#include "data/sets/dataset.h"
#include "layers/detr/detr.h"
#include "tests/bf16_bounds.h"
#include "tests/on_device.h"
#include "tests/settings.h"

/* The seed and step with which make_detr_fixtures.py samples dropout. */
static const uint64_t SEED = 0x1234567890;
enum { STEP = 7, FIRST = 3, PREDICTED = 4096 };

typedef struct {
    const char *path;
    SafeTensors file;
    Config config;
    Detr detr;
    int B, H, W, L;
    int sizes[8];
    float *features, *dlogits, *dboxes;
} Case;

static const char *setting(const Case *c, const char *key) {
    const char *value = safetensors_metadata(&c->file, key);
    if (!value) fail_msg("%s: no metadata '%s'", c->file.file, key);
    return value;
}

static int number(const Case *c, const char *key) { return atoi(setting(c, key)); }

/* Reads the settings from the fixture. */
static const DetrSettings *case_settings(Case *c, const char *algorithm) {
    config_init(&c->config, NULL);
    DetrSettings *settings = detr_add_settings(&c->config);
    settings_of_fixture(&c->config, &c->file);
    settings_put(&c->config, "ripple_algo", algorithm);
    settings->num_classes = number(c, "columns") - 1;
    settings->dynamic_scale = number(c, "scale_type") - 1;
    return settings;
}

static const SafeTensor *tensor_of(const Case *c, const char *name) {
    const SafeTensor *tensor = safetensors_find(&c->file, name);
    if (!tensor) fail_msg("%s: no tensor '%s'", c->file.file, name);
    return tensor;
}

static float *floats_of(const Case *c, const char *name) {
    Error error;
    const SafeTensor *tensor = tensor_of(c, name);
    float *x = keep(malloc(tensor->size * sizeof *x), false);
    assert_true(safetensors_to_float(tensor, x, &error));
    return x;
}

/* room_h x room_w: the size for which memory is planned.  What no layer writes stays NaN. */
static void case_open(Case *c, const char *path, const char *algorithm, int room_h, int room_w) {
    Error error;
    memset(c, 0, sizeof *c);
    c->path = path;
    if (!safetensors_open(&c->file, path, &error)) fail_msg("%s", error.text);
    const DetrSettings *settings = case_settings(c, algorithm);
    for (const char *size = setting(c, "sizes"); size; size = strchr(size, ',') ? strchr(size, ',') + 1 : NULL, c->B++)
        assert_int_equal(sscanf(size, "%dx%d", &c->sizes[2 * c->B], &c->sizes[2 * c->B + 1]), 2);
    c->H = number(c, "height");
    c->W = number(c, "width");
    c->L = settings->decoder_layers;
    detr_create(&c->detr, &c->config, number(c, "channels"));
    c->detr.model.training.guarded = true;
    detr_plan(&c->detr, c->B, room_h, room_w, true);
    detr_allocate(&c->detr);
    plan_poison(&c->detr.model.training);
    params_allocate(&c->detr.model.params, true);
    if (!checkpoint_read_weights(&c->detr.model.params, c->detr.model.params.values, &c->file, "", NULL, &error))
        fail_msg("%s", error.text);
    detr_fold(&c->detr);
    c->features = floats_of(c, "features");
    c->dlogits = floats_of(c, "dlogits");
    c->dboxes = floats_of(c, "dboxes");
}

static void case_close(Case *c) {
    detr_destroy(&c->detr);
    config_free(&c->config);
    safetensors_close(&c->file);
    release_all();
}

static size_t rows_of(const Case *c) {
    return (size_t)detr_predicted_layers(&c->detr) * (size_t)(c->detr.B * c->detr.settings.queries);
}

static float *dfeatures_of(const Case *c) {
    size_t n = (size_t)(c->detr.B * grid_tokens(c->detr.grid) * c->detr.channels);
    float *d = keep(malloc(n * sizeof *d), false);
    real_download(d, c->detr.dfeatures, n);
    return d;
}

/* Runs images first .. first+B-1 forward and, if the plan is for training, backward. */
static void case_run(Case *c, int first, int B, float *logits, float *boxes) {
    size_t image = (size_t)(resnet_grid(c->H) * resnet_grid(c->W) * c->detr.channels);
    size_t queries = (size_t)c->detr.settings.queries, columns = (size_t)c->detr.columns;
    detr_load_sizes(&c->detr, c->sizes + 2 * first, B, c->H, c->W);
    real_upload(c->detr.features, c->features + (size_t)first * image, (size_t)B * image);
    detr_draw(&c->detr, SEED, STEP, (size_t)(FIRST + first));
    detr_forward_features(&c->detr);
    detr_predictions(&c->detr, logits, boxes);
    if (!c->detr.model.plan->training) return;
    float *dlogits = keep(malloc(rows_of(c) * columns * sizeof *dlogits), false);
    float *dboxes = keep(malloc(rows_of(c) * 4 * sizeof *dboxes), false);
    for (size_t l = 0; l < (size_t)c->L; l++) {
        size_t from = (l * (size_t)c->B + (size_t)first) * queries, to = l * (size_t)B * queries,
               n = (size_t)B * queries;
        memcpy(dlogits + to * columns, c->dlogits + from * columns, n * columns * sizeof *dlogits);
        memcpy(dboxes + to * 4, c->dboxes + from * 4, n * 4 * sizeof *dboxes);
    }
    detr_load_gradients(&c->detr, dlogits, dboxes);
    detr_backward_features(&c->detr, NULL);
}

/* In float every element must agree to 1e-5; in bfloat16 the tensor must be as accurate as with PyTorch's autocast. */
static int agrees(const Case *c, const char *name, const float *got) {
    const SafeTensor *tensor = tensor_of(c, name);
    const double *want = tensor->data;
    double largest = 0;
    for (size_t i = 0; i < tensor->size; i++) largest = fmax(largest, fabs(want[i]));
    if (largest > 0)
        return sizeof(real) == 4 ? check_close(name, got, want, tensor->size, 1e-5)
                                 : check_bf16(c->path, name, got, want, tensor->size);
    size_t beyond = 0;
    for (size_t i = 0; i < tensor->size; i++) beyond += !(fabsf(got[i]) < 2e-6f);
    printf("  %-52s vanishes: %zu numbers do not\n", name, beyond);
    return !beyond;
}

static int gradients_agree(const Case *c) {
    const Params *params = &c->detr.model.params;
    float *grads = keep(malloc(params->total * sizeof *grads), false);
    int ok = 1;
    device_download(grads, params->grads, params->total * sizeof *grads);
    for (int i = 0; i < params_count(params); i++) {
        char name[PARAM_NAME_SIZE + 8];
        snprintf(name, sizeof name, "grad.%s", params_at(params, i)->name);
        ok &= agrees(c, name, grads + params_at(params, i)->offset);
    }
    return ok;
}

/* The gradient of padding is exactly zero. */
static void assert_padding_zero(const Case *c, const float *dfeatures) {
    size_t channels = (size_t)c->detr.channels, zeros_seen = 0;
    int N = grid_tokens(c->detr.grid), columns = c->detr.grid.columns;
    for (int b = 0; b < c->detr.B; b++)
        for (int n = 0; n < N; n++) {
            bool inside = n / columns < c->detr.cells_host[2 * b] && n % columns < c->detr.cells_host[2 * b + 1];
            for (size_t i = 0; !inside && i < channels; i++, zeros_seen++)
                assert_true(dfeatures[((size_t)(b * N + n)) * channels + i] == 0);
        }
    assert_true(zeros_seen > 0);
}

static void reference_case(const char *path, const char *algorithm, int room) {
    Case c;
    case_open(&c, path, algorithm, room, room);
    printf("%s %s\n", path, algorithm);
    float *logits = keep(check_poison(PREDICTED), false), *boxes = keep(check_poison(PREDICTED), false);
    case_run(&c, 0, c.B, logits, boxes);
    int ok = agrees(&c, "logits", logits) & agrees(&c, "boxes", boxes);
    float *dfeatures = dfeatures_of(&c);
    ok &= agrees(&c, "grad.features", dfeatures) & gradients_agree(&c);
    const char *overrun = plan_overrun(&c.detr.model.training);
    if (overrun) fail_msg("%s: a write behind %s", path, overrun);
    assert_padding_zero(&c, dfeatures);
    assert_true(ok);
    case_close(&c);
}

static void each_fixture(void (*test)(const char *path)) {
    glob_t found;
    assert_int_equal(glob("tests/fixtures/smca/*.safetensors", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) test(found.gl_pathv[i]);
    globfree(&found);
}

static void against_reference(const char *path) {
    bool ripple = strstr(path, "ripple") != NULL;
    const char *algorithms[] = {"auto", "dense", "window", "sat"};
    for (int i = 0; i < (ripple ? 4 : 1); i++) reference_case(path, algorithms[i], i ? 224 : 300);
}

static void test_reference(void **state) {
    (void)state;
    each_fixture(against_reference);
}

/* Each image alone, twice: the gradients add up to twice those of the batch. */
static void in_parts(const char *path) {
    Case c;
    case_open(&c, path, "auto", 160, 224);
    size_t n = c.detr.model.params.total;
    float *logits = keep(check_poison(PREDICTED), false), *boxes = keep(check_poison(PREDICTED), false);
    float *whole = keep(malloc(n * sizeof *whole), false), *parts = keep(malloc(n * sizeof *parts), false);
    double *twice = zeros(n);
    case_run(&c, 0, c.B, logits, boxes);
    device_download(whole, c.detr.model.params.grads, n * sizeof *whole);
    device_zero(c.detr.model.params.grads, n * sizeof *whole);
    for (int b = 0; b < 2 * c.B; b++) case_run(&c, b % c.B, 1, logits, boxes);
    device_download(parts, c.detr.model.params.grads, n * sizeof *parts);
    for (size_t i = 0; i < n; i++) twice[i] = 2 * (double)whole[i];
    printf("%s\n", path);
    assert_true(check_rms("gradients of parts, twice", parts, twice, n, sizeof(real) == 4 ? 1e-5 : 3e-2));
    case_close(&c);
}

static void test_parts(void **state) {
    (void)state;
    each_fixture(in_parts);
}

/* The last layer's output has the same bits with the inference plan and with a training plan without dropout.  In
 * inference the heads compute one layer's rows only, and a product of another size may add in another order (oneDNN
 * does with AVX2), so the predictions agree to rounding. */
static void without_keeping(const char *path) {
    Case c;
    case_open(&c, path, "auto", 160, 224);
    c.detr.settings.dropout = 0;
    float *logits = keep(check_poison(PREDICTED), false), *boxes = keep(check_poison(PREDICTED), false);
    float *only = keep(check_poison(PREDICTED), false), *only_boxes = keep(check_poison(PREDICTED), false);
    size_t rows = (size_t)(c.B * c.detr.settings.queries), above = (size_t)(c.L - 1) * rows;
    size_t C = (size_t)c.detr.columns, M = (size_t)c.detr.settings.dim;
    float *out = keep(malloc(rows * M * sizeof *out), false), *only_out = keep(malloc(rows * M * sizeof *out), false);
    case_run(&c, 0, c.B, logits, boxes);
    real_download(out, c.detr.decoder.out + above * M, rows * M);
    model_set_training(&c.detr.model, false);
    linear_keep_weights(false); /* kept weights are summed in another order */
    assert_int_equal(detr_predicted_layers(&c.detr), 1);
    case_run(&c, 0, c.B, only, only_boxes);
    real_download(only_out, c.detr.decoder.out, rows * M);
    printf("%s\n", path);
    assert_memory_equal(only_out, out, rows * M * sizeof *out);
    double *want = zeros(PREDICTED), tolerance = sizeof(real) == 4 ? 1e-6 : 1e-2;
    for (size_t i = 0; i < rows * C; i++) want[i] = logits[above * C + i];
    assert_true(check_close_step("logits", only, want, rows * C, tolerance, REAL_STEP));
    for (size_t i = 0; i < rows * 4; i++) want[i] = boxes[above * 4 + i];
    assert_true(check_close_step("boxes", only_boxes, want, rows * 4, tolerance, REAL_STEP));
    case_close(&c);
}

static void test_inference(void **state) {
    (void)state;
    each_fixture(without_keeping);
}

/* == Padding ====================================================================================================== */

/* Settings of a detector that are never freed. */
static Config *detr_config(const char *text, const char *attn, int type) {
    Config *config = keep(calloc(1, sizeof *config), false);
    config_init(config, NULL);
    detr_add_settings(config)->dynamic_scale = (DynamicScale)(type - 1);
    settings_put(config, "attn", attn);
    settings_read(config, text);
    return config;
}

/* A small model for one image, whose features fill a corner of the grid. */
static void plain_model(Detr *detr, const char *attn, int type) {
    Config *config = detr_config("dim = 16\nffn = 24\nencoder_layers = 2\ndecoder_layers = 2\nqueries = 6\n"
                                 "num_classes = 4\ndropout = 0\nheads = 2\nr_max = 3\n", attn, type);
    detr_create(detr, config, 7);
    detr_plan(detr, 1, 320, 320, true);
    detr_allocate(detr);
    params_allocate(&detr->model.params, true);
    params_initialize(&detr->model.params, check_seed());
}

/* The same features on a larger grid give the same predictions and parameter gradients, whatever surrounds them. */
static bool padding_changes_nothing(const char *attn, int type) {
    enum { H = 128, W = 160, CHANNELS = 7, CELLS = H / 32 * (W / 32), SIDE = 10, GRIDS = 5 };
    const int size[2] = {H, W}, padded[GRIDS][2] = {{H, W}, {H, 320}, {256, W}, {224, 256}, {320, 320}};
    float *inside = normals(CELLS * CHANNELS, 1), *dlogits = normals(2 * 6 * 5, 1), *dboxes = normals(2 * 6 * 4, 1);
    float logits[GRIDS][60], boxes[GRIDS][48];
    Detr detr;
    plain_model(&detr, attn, type);
    size_t n = detr.model.params.total;
    double tolerance = sizeof(real) == 4 ? 1e-6 : 2e-2, *want = zeros(n);
    float *grads = keep(malloc(n * sizeof *grads), false);
    bool same = true;
    for (int p = 0; p < GRIDS; p++) {
        int h = padded[p][0] / 32, w = padded[p][1] / 32;
        float *features = normals(SIDE * SIDE * CHANNELS, 3);
        for (int i = 0; i < CELLS * CHANNELS; i++)
            features[(i / CHANNELS / (W / 32) * w + i / CHANNELS % (W / 32)) * CHANNELS + i % CHANNELS] = inside[i];
        device_zero(detr.model.params.grads, n * sizeof(float));
        detr_load_sizes(&detr, size, 1, padded[p][0], padded[p][1]);
        real_upload(detr.features, features, (size_t)(h * w * CHANNELS));
        detr_forward_features(&detr);
        detr_predictions(&detr, logits[p], boxes[p]);
        detr_load_gradients(&detr, dlogits, dboxes);
        detr_backward_features(&detr, NULL);
        device_download(grads, detr.model.params.grads, n * sizeof(float));
        for (size_t i = 0; !p && i < n; i++) want[i] = grads[i];
        double far = 0;
        for (int i = 0; i < 60 + 48 && !isnan(far); i++) {
            double moved = i < 60 ? logits[p][i] - logits[0][i] : boxes[p][i - 60] - boxes[0][i - 60];
            if (!(fabs(moved) <= far)) far = fabs(moved);
        }
        printf("%s, %d x %d in %d x %d: predictions move by %.2g\n", attn, H, W, padded[p][0], padded[p][1], far);
        assert_true(far <= 8 * tolerance); /* predictions are up to 8 */
        if (p) same &= check_rms("gradients", grads, want, n, 10 * tolerance);
    }
    detr_destroy(&detr);
    release_all();
    return same;
}

/* One retry: in one of a thousand samples an input of a ReLU is so near zero that the order of summation decides its
 * sign. */
static void test_padding(void **state) {
    (void)state;
    const char *operators[] = {"softmax", "linear", "ripple"};
    for (int op = 0; op < 3; op++)
        assert_true(padding_changes_nothing(operators[op], op + 2) || padding_changes_nothing(operators[op], op + 2));
}

/* == With the backbone ============================================================================================ */

static struct {
    const Detr *detr;
    float *seen;    /* gradients when they were announced as final */
    char *announced; /* [total] */
} finals;

static void hear_final(float *gradients, size_t n) {
    size_t from = (size_t)(gradients - finals.detr->model.params.grads);
    device_download(finals.seen + from, gradients, n * sizeof *gradients);
    for (size_t i = from; i < from + n; i++) {
        assert_int_equal(finals.announced[i], 0);
        finals.announced[i] = 1;
    }
}

typedef struct {
    int B, H, W;
    int sizes[4];
    uint8_t *pixels;
    float *dlogits, *dboxes;
} Batch;

static Batch draw_batch(const Detr *detr, int B, int H, int W, const int *sizes) {
    Batch batch = {B, H, W, {sizes[0], sizes[1], sizes[2], sizes[3]}, NULL, NULL, NULL};
    size_t bytes = (size_t)B * 3 * (size_t)H * (size_t)W;
    size_t rows = (size_t)(B * detr->settings.queries * detr->settings.decoder_layers);
    batch.pixels = host_malloc(bytes, "test");
    for (size_t i = 0; i < bytes; i++) batch.pixels[i] = (uint8_t)rng_bits(check_seed(), RNG_TEST, 99, (uint32_t)H, i);
    batch.dlogits = normals(rows * (size_t)detr->columns, 1);
    batch.dboxes = normals(rows * 4, 1);
    return batch;
}

/* The loss whose gradients are batch->dlogits and batch->dboxes. */
static double forward_loss(Detr *detr, const Batch *batch) {
    static float logits[PREDICTED], boxes[PREDICTED];
    size_t rows = (size_t)(batch->B * detr->settings.queries * detr->settings.decoder_layers);
    double loss = 0;
    detr_load(detr, batch->pixels, batch->sizes, imagenet_mean, imagenet_std, batch->B, batch->H, batch->W);
    detr_draw(detr, SEED, STEP, FIRST);
    detr_forward(detr);
    detr_predictions(detr, logits, boxes);
    for (size_t i = 0; i < rows * (size_t)detr->columns; i++) loss += (double)logits[i] * batch->dlogits[i];
    for (size_t i = 0; i < rows * 4; i++) loss += (double)boxes[i] * batch->dboxes[i];
    return loss;
}

/* Compares the slope along a random direction in the parameters with this prefix.  The direction has the gradient's
 * signs, so that the slope is large.  The step moves the loss by at most `longest`, and each parameter by about
 * 2e-4. */
static bool one_slope_agrees(Detr *detr, const Batch *batch, const float *grads, const char *prefix, double longest) {
    size_t total = detr->model.params.total;
    float *start = keep(malloc(total * sizeof *start), false), *moved = keep(malloc(total * sizeof *moved), false);
    float *direction = normals(total, 1);
    double slope = 0, loss[2];
    device_download(start, detr->model.params.values, total * sizeof *start);
    for (int p = 0; p < params_count(&detr->model.params); p++) {
        const Param *param = params_at(&detr->model.params, p);
        bool moves = !param->frozen && !strncmp(param->name, prefix, strlen(prefix));
        for (size_t i = param->offset; i < param->offset + param->size; i++) {
            direction[i] = moves ? copysignf(direction[i], grads[i]) : 0;
            slope += (double)grads[i] * direction[i];
        }
    }
    float step = (float)fmin(2e-4, longest / slope);
    for (int side = 0; side < 2; side++) {
        memcpy(moved, start, total * sizeof *moved);
        for (int t = 0; t < params_count(&detr->model.params); t++) {
            const Param *p = params_at(&detr->model.params, t);
            for (size_t i = p->offset, end = i + p->size; i < end; i++)
                moved[i] += (side ? -step : step) * direction[i];
        }
        device_upload(detr->model.params.values, moved, total * sizeof *moved);
        detr_fold(detr);
        loss[side] = forward_loss(detr, batch);
    }
    device_upload(detr->model.params.values, start, total * sizeof *start);
    detr_fold(detr);
    double measured = (loss[0] - loss[1]) / (2 * (double)step);
    printf("  %-24s slope %10.4f, measured %10.4f\n", prefix, slope, measured);
    return fabs(measured - slope) < 0.05 * slope;
}

/* A kink of the loss (ReLU, L1, matching) may lie within the step, so two of four directions have to agree; the last
 * two have shorter steps. */
static int slope_agrees(Detr *detr, const Batch *batch, const float *grads, const char *prefix) {
    int agree = 0;
    for (int way = 0; way < 4 && agree < 2; way++)
        agree += one_slope_agrees(detr, batch, grads, prefix, way < 2 ? 0.01 : 0.001);
    return agree >= 2;
}

/* Computes the gradients again with dfeatures in separate memory: in its planned place the backbone's scratch must not
 * overwrite it. */
static void assert_dfeatures_kept(Detr *detr, const Batch *batch, const float *grads) {
    size_t n = detr->model.params.total, cells = (size_t)(batch->B * resnet_grid(batch->H) * resnet_grid(batch->W));
    float *apart = keep(malloc(n * sizeof *apart), false);
    real *planned = detr->dfeatures;
    detr->dfeatures = device_malloc(cells * (size_t)detr->channels * sizeof(real), "dfeatures");
    device_zero(detr->model.params.grads, n * sizeof *apart);
    forward_loss(detr, batch);
    detr_load_gradients(detr, batch->dlogits, batch->dboxes);
    detr_backward(detr, NULL);
    device_download(apart, detr->model.params.grads, n * sizeof *apart);
    device_free(detr->dfeatures);
    detr->dfeatures = planned;
    assert_memory_equal(apart, grads, n * sizeof *apart);
}

/* A small backbone and detector, two batches of different sizes: compares gradients with differences of the loss, and
 * checks that every gradient is announced as final once and does not change afterwards. */
static void whole_case(int dim, int width, int queries, int ffn, bool slopes) {
    char text[256];
    snprintf(text, sizeof text, "dim = %d\nffn = %d\nqueries = %d\nbackbone_width = %d\nencoder_layers = 1\n"
             "decoder_layers = 2\nnum_classes = 3\nheads = 2\nbackbone_blocks = 1,1,1,1\nshare_heads = true\n",
             dim, ffn, queries, width);
    Detr detr;
    detr_create(&detr, detr_config(text, "softmax", 3), 0);
    detr_plan(&detr, 2, 130, 190, true);
    detr_allocate(&detr);
    plan_poison(&detr.model.training);
    params_allocate(&detr.model.params, true);
    params_initialize(&detr.model.params, check_seed());
    detr_fold(&detr);
    size_t n = detr.model.params.total;
    finals.detr = &detr;
    finals.seen = keep(calloc(n, sizeof(float)), false);
    finals.announced = keep(calloc(n, 1), false);
    const int shapes[2][2] = {{97, 190}, {190, 70}}, sizes[2][4] = {{97, 100, 60, 190}, {190, 70, 65, 33}};
    for (int k = 0; k < 2; k++) {
        Batch batch = draw_batch(&detr, 2, shapes[k][0], shapes[k][1], sizes[k]);
        float *grads = keep(malloc(n * sizeof *grads), false);
        printf("batch of 2 images in %d x %d\n", batch.H, batch.W);
        device_zero(detr.model.params.grads, n * sizeof *grads);
        memset(finals.announced, 0, n);
        forward_loss(&detr, &batch);
        detr_load_gradients(&detr, batch.dlogits, batch.dboxes);
        detr_backward(&detr, hear_final);
        device_download(grads, detr.model.params.grads, n * sizeof *grads);
        for (int p = 0; p < params_count(&detr.model.params); p++) {
            const Param *param = params_at(&detr.model.params, p);
            for (size_t i = param->offset; !param->frozen && i < param->offset + param->size; i++)
                assert_true(finals.announced[i] && finals.seen[i] == grads[i]);
        }
        assert_dfeatures_kept(&detr, &batch, grads);
        int ok = !slopes || (slope_agrees(&detr, &batch, grads, "backbone.") &
                             slope_agrees(&detr, &batch, grads, "input_proj.") &
                             slope_agrees(&detr, &batch, grads, "transformer.encoder.") &
                             slope_agrees(&detr, &batch, grads, "transformer.decoder.") &
                             slope_agrees(&detr, &batch, grads, "query_embed.") &
                             slope_agrees(&detr, &batch, grads, "bbox_embed."));
        host_free(batch.pixels);
        assert_true(ok);
    }
    detr_destroy(&detr);
    release_all();
}

static void test_whole(void **state) {
    (void)state;
    if (sizeof(real) != 4) return;
    whole_case(16, 4, 5, 24, true);
    whole_case(16, 4, 40, 256, true); /* feed-forward scratch that would reach into the next tensor */
    whole_case(168, 1, 5, 24, false); /* dx so large that it would reach into layer4's scratch */
}

/* == Initial weights ============================================================================================== */

static const Param *param_of(const Detr *detr, const char *name) {
    const Param *p = params_find(&detr->model.params, name);
    if (!p) fail_msg("no parameter %s", name);
    return p;
}

/* Checks a uniform distribution on [-bound, bound]: its range, mean and variance. */
static void assert_uniform(const Detr *detr, const float *values, const char *name, double bound) {
    const Param *p = param_of(detr, name);
    double sum = 0, squares = 0, largest = 0;
    for (size_t i = 0; i < p->size; i++) {
        double x = values[p->offset + i];
        sum += x;
        squares += x * x;
        largest = fmax(largest, fabs(x));
    }
    double n = (double)p->size, spread = bound / sqrt(3 * n), variance = squares / n / (bound * bound / 3);
    printf("  %-56s largest %.5f of %.5f, variance %.3f of what it should be\n", name, largest, bound, variance);
    assert_true(largest <= bound * (1 + 1e-6) && largest > bound * (1 - 20 / n) && fabs(sum / n) < 6 * spread);
    assert_true(fabs(variance - 1) < 6 * sqrt(0.8 / n));
}

static void assert_constant(const Detr *detr, const float *values, const char *name, double value) {
    const Param *p = param_of(detr, name);
    for (size_t i = 0; i < p->size; i++) assert_true(fabs((double)values[p->offset + i] - value) < 1e-6);
}

static Config *full_config(const char *attn, int type, int queries) {
    char text[64];
    snprintf(text, sizeof text, "num_classes = 91\nqueries = %d\nripple_algo = window\n", queries);
    return detr_config(text, attn, type);
}

/* The published numbers of parameters, and of multiply-adds in 1e8 for an image of 800 x 1120.  The published formula
 * counts all of ripple's 7 x 7 window; detr_macs counts only the pairs inside the grid. */
static void test_size(void **state) {
    (void)state;
    const size_t beyond_border = (25 * 35 * 49 - (25 * 7 - 12) * (35 * 7 - 12)) * 6 * 8 * 64;
    const struct {
        const char *attn;
        int type, queries;
        size_t trainable, macs;
    } cases[] = {{"softmax", 3, 300, 41538082, 874}, {"softmax", 1, 300, 41513410, 0},
                 {"softmax", 2, 300, 41525746, 0},   {"softmax", 4, 300, 41550418, 0},
                 {"softmax", 3, 100, 41486882, 0},   {"linear", 3, 300, 41687074, 854},
                 {"ripple", 3, 300, 41743906, 856}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Detr detr;
        detr_create(&detr, full_config(cases[i].attn, cases[i].type, cases[i].queries), 0);
        size_t macs = detr_macs(&detr, 800, 1120);
        printf("  %-8s type %d, %d queries: %zu trainable, %.3f G multiply-adds\n", cases[i].attn, cases[i].type,
               cases[i].queries, detr.model.params.parameters, (double)macs / 1e9);
        assert_int_equal(detr.model.params.parameters, cases[i].trainable);
        if (!strcmp(cases[i].attn, "ripple")) macs += beyond_border;
        if (cases[i].macs) assert_int_equal((macs + 50000000) / 100000000, cases[i].macs);
        for (int p = 0; p < params_count(&detr.model.params); p++)
            assert_true(params_at(&detr.model.params, p)->decay || params_at(&detr.model.params, p)->frozen);
        detr_destroy(&detr);
    }
}

static void test_start(void **state) {
    (void)state;
    Config *config = full_config("ripple", 3, 300);
    settings_read(config, "encoder_layers = 1\ndecoder_layers = 2\n");
    Detr detr;
    detr_create(&detr, config, 512); /* without a backbone, which would take long */
    params_allocate(&detr.model.params, false);
    params_initialize(&detr.model.params, check_seed());
    float *x = keep(malloc(detr.model.params.total * sizeof *x), false);
    device_download(x, detr.model.params.values, detr.model.params.total * sizeof *x);
    assert_uniform(&detr, x, "transformer.encoder.layers.0.self_attn.in_proj_weight", sqrt(6.0 / 1024));
    assert_uniform(&detr, x, "transformer.encoder.layers.0.self_attn.out_proj.weight", sqrt(6.0 / 512));
    assert_uniform(&detr, x, "transformer.encoder.layers.0.linear1.weight", sqrt(6.0 / 2304));
    assert_uniform(&detr, x, "transformer.encoder.layers.0.linear1.bias", 1 / 16.0);
    assert_uniform(&detr, x, "transformer.encoder.layers.0.linear2.bias", 1 / sqrt(2048));
    assert_uniform(&detr, x, "transformer.encoder.layers.0.self_attn.feature.w2", sqrt(6.0 / 96));
    assert_uniform(&detr, x, "transformer.encoder.layers.0.self_attn.ripple.proj.weight", sqrt(6.0 / 64));
    assert_uniform(&detr, x, "transformer.decoder.layers.1.multihead_attn.in_proj_weight", sqrt(6.0 / 1024));
    assert_uniform(&detr, x, "transformer.decoder.layers.1.point2.weight", sqrt(6.0 / 272));
    assert_uniform(&detr, x, "transformer.decoder.layers.0.point1.layers.0.weight", sqrt(6.0 / 512));
    assert_uniform(&detr, x, "transformer.decoder.layers.0.point1.layers.0.bias", 1 / 16.0);
    assert_uniform(&detr, x, "input_proj.weight", 1 / sqrt(512));
    assert_uniform(&detr, x, "class_embed.weight", 1 / 16.0);
    assert_uniform(&detr, x, "bbox_embed.layers.2.weight", 1 / 16.0);
    assert_constant(&detr, x, "class_embed.bias", -log(99));
    assert_constant(&detr, x, "transformer.decoder.layers.1.point3.weight", 0);
    assert_constant(&detr, x, "transformer.decoder.layers.1.point3.bias", 1);
    assert_constant(&detr, x, "transformer.decoder.layers.1.self_attn.in_proj_bias", 0);
    assert_constant(&detr, x, "transformer.decoder.layers.1.norm4.weight", 1);
    assert_constant(&detr, x, "transformer.decoder.norm.bias", 0);
    const Param *queries = param_of(&detr, "query_embed.weight"),
                *w1 = param_of(&detr, "transformer.encoder.layers.0.self_attn.feature.w1");
    const Param *normal[] = {queries, w1};
    for (int k = 0; k < 2; k++) {
        double squares = 0;
        for (size_t i = 0; i < normal[k]->size; i++) squares += pow((double)x[normal[k]->offset + i], 2);
        assert_true(fabs(squares / (double)normal[k]->size - 1) < 6 * sqrt(2.0 / (double)normal[k]->size));
    }
    detr_destroy(&detr);
    release_all();
}

int main(void) {
    kernels_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_inference),
        cmocka_unit_test(test_padding),
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_size),
        cmocka_unit_test(test_start),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
