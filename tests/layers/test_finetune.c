/* Resampling of tables to another grid against PyTorch's interpolation in float64
 * (tests/reference/make_resample_fixtures.py), which tensors have such a grid, and the weights of one model in
 * another. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "training/checkpoint.h"
#include "layers/vit/fit_weights.h"
#include "layers/vit/resample_grid.h"
#include "layers/vit/vit.h"
#include "tests/check.h"
#include "tests/scratch.h"
#include "tests/settings.h"

static const char FIXTURE[] = "tests/fixtures/finetune/resample.safetensors";

/* A parameter with the tensor's shape on that grid, as a layer declares it. */
static Param declared(const SafeTensor *tensor, ParamGrid grid) {
    Param p = {.ndim = tensor->ndim, .size = tensor->size, .grid = grid};
    for (int d = 0; d < p.ndim; d++) p.shape[d] = (int)tensor->shape[d];
    return p;
}

static int case_agrees(const SafeTensors *st, const char *name) {
    char from_name[64], to_name[64];
    Error error;
    ParamGrid from, to, found;
    snprintf(from_name, sizeof from_name, "%s.from", name);
    snprintf(to_name, sizeof to_name, "%s.to", name);
    const SafeTensor *before = safetensors_find(st, from_name), *after = safetensors_find(st, to_name);
    assert_non_null(before);
    assert_non_null(after);
    char other[16] = "";
    int read = sscanf(safetensors_metadata(st, name), "axis %d axes %d prefix %d from %dx%d to %dx%d by %15s",
                      &from.axis, &from.axes, &from.prefix, &from.positions.rows, &from.positions.columns,
                      &to.positions.rows, &to.positions.columns, other);
    assert_true(read == 7 || read == 8);
    from.positions.frames = 1;
    to = (ParamGrid){from.axis, from.axes, from.prefix, {1, to.positions.rows, to.positions.columns}};
    Param p = declared(after, to);
    p.resampled = !strcmp(other, "bicubic")     ? RESAMPLED_BICUBIC
                  : !strcmp(other, "geometric") ? RESAMPLED_GEOMETRIC
                  : *other                      ? RESAMPLED_BILINEAR
                                                : RESAMPLED_ANTIALIASED;
    assert_true(grid_of_tensor(&found, &p, &from, before->ndim, before->shape));
    assert_int_equal(found.positions.rows, from.positions.rows);
    assert_int_equal(found.positions.columns, from.positions.columns);
    bool guessed = grid_of_tensor(&found, &p, NULL, before->ndim, before->shape);
    assert_int_equal(guessed, from.axes == 2 || from.positions.rows == from.positions.columns);

    float *x = malloc(before->size * sizeof *x), *y = check_poison(after->size);
    assert_true(safetensors_to_float(before, x, &error));
    grid_resample(y, &p, x, &from);
    double *wanted = malloc(after->size * sizeof *wanted);
    assert_int_equal(after->dtype, SAFE_F64);
    memcpy(wanted, after->data, after->bytes);
    int ok = check_close(name, y, wanted, after->size, 1e-6);
    free(wanted);
    free(y);
    free(x);
    return ok;
}

static void test_interpolation(void **state) {
    static const char *const names[] = {"pos_embed", "smaller", "one_each", "wa", "toeplitz", "point",
                                        "swin", "swin_smaller", "swin_narrow", "timm", "timm_smaller",
                                        "timm_narrow", "timm_one_axis", "pvt", "pvt_cls"};
    Error error;
    SafeTensors st;
    int ok = 1;
    (void)state;
    if (!safetensors_open(&st, FIXTURE, &error)) fail_msg("%s", error.text);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) ok &= case_agrees(&st, names[i]);
    safetensors_close(&st);
    assert_true(ok);
}

/* torch.nn.functional.interpolate(mode="bilinear", align_corners=False): only the nearest value counts at the edges,
 * and a smaller grid uses two neighbours even where it skips more.  Rows grow and columns shrink, after a class
 * token. */
static void test_bilinear(void **state) {
    (void)state;
    const float from[1 + 8] = {9, 0, 4, 8, 40, 100, 104, 108, 140}; /* 2 x 4 */
    const float wanted[1 + 8] = {9, 2, 24, 27, 49, 77, 99, 102, 124}; /* 4 x 2 */
    Param p = {.ndim = 3, .shape = {1, 9, 1}, .size = 9, .grid = {1, 1, 1, {1, 4, 2}}, .resampled = RESAMPLED_BILINEAR};
    float to[9];
    grid_resample(to, &p, from, &(ParamGrid){1, 1, 1, {1, 2, 4}});
    for (int i = 0; i < 9; i++) assert_float_equal(to[i], wanted[i], 1e-5);
}

/* Tables for clips are resampled within frames and then linearly between frames, in both layouts; the expected values
 * are sums in double. */
static void test_frames(void **state) {
    (void)state;
    enum { TABLES = 2, T = 3, U = 5, H = 2, W = 3, C = 2, PREFIX = 1 };
    static const double weights[U][T] = {{1, 0, 0}, {0.6, 0.4, 0}, {0, 1, 0}, {0, 0.4, 0.6}, {0, 0, 1}};
    Param p = {.ndim = 3, .shape = {TABLES, PREFIX + U * H * W, C}, .grid = {1, 1, PREFIX, {U, H, W}}};
    Param apart = {.ndim = 4, .shape = {TABLES, U, H, W}, .grid = {2, 2, 0, {U, H, W}},
                   .time = {TIME_COPIES, 1, U, 0, true}};
    ParamGrid from = {1, 1, PREFIX, {T, H, W}}, grid;
    size_t row = (PREFIX + T * H * W) * C, new_row = (PREFIX + U * H * W) * C, area = H * W * C;
    float *x = check_normal(TABLES * row, 1, 3), *y = check_poison(TABLES * new_row);
    assert_true(grid_of_tensor(&grid, &p, &from, 3, (size_t[]){TABLES, PREFIX + T * H * W, C}));
    assert_int_equal(grid.positions.frames, T);
    grid_resample(y, &p, x, &grid);
    for (size_t o = 0; o < TABLES; o++) {
        assert_memory_equal(y + o * new_row, x + o * row, PREFIX * C * sizeof *x);
        for (size_t i = 0; i < U * area; i++) {
            double want = 0;
            for (size_t t = 0; t < T; t++) want += weights[i / area][t] * x[o * row + PREFIX * C + t * area + i % area];
            assert_float_equal(y[o * new_row + PREFIX * C + i], want, 1e-6);
        }
    }
    assert_true(grid_of_tensor(&grid, &apart, NULL, 4, (size_t[]){TABLES, T, H, W}));
    assert_int_equal(grid.positions.frames, T);
    grid_resample(y, &apart, x, &grid);
    for (size_t i = 0; i < TABLES * U * H * W; i++) {
        size_t o = i / (U * H * W), u = i / (H * W) % U;
        double want = 0;
        for (size_t t = 0; t < T; t++) want += weights[u][t] * x[(o * T + t) * H * W + i % (H * W)];
        assert_float_equal(y[i], want, 1e-6);
    }
    p.time = (ParamTime){TIME_CIRCLE, 1, U, PREFIX, false};
    assert_false(grid_of_tensor(&grid, &p, &from, 3, (size_t[]){TABLES, PREFIX + T * H * W, C}));
    from.positions.frames = 1; /* a table for images */
    assert_false(grid_of_tensor(&grid, &p, &from, 3, (size_t[]){TABLES, PREFIX + H * W, C}));
    free(x);
    free(y);
}

/* A table of the same size does not change, and a tensor that is not a table on this grid is refused. */
static void test_grids(void **state) {
    (void)state;
    Param p = {.ndim = 3, .shape = {1, 1 + 12, 2}, .size = 26, .grid = {1, 1, 1, {1, 3, 4}}};
    float *x = check_normal(26, 1, 1), *y = check_poison(26);
    ParamGrid grid;
    assert_true(grid_of_tensor(&grid, &p, &p.grid, 3, (size_t[]){1, 13, 2}));
    grid_resample(y, &p, x, &grid);
    assert_memory_equal(x, y, 26 * sizeof *x);
    assert_false(grid_of_tensor(&grid, &p, NULL, 3, (size_t[]){1, 13, 2}));    /* 12 is no square */
    assert_true(grid_of_tensor(&grid, &p, NULL, 3, (size_t[]){1, 10, 2}));     /* 9 is a square */
    assert_false(grid_of_tensor(&grid, &p, NULL, 3, (size_t[]){1, 9, 2}));     /* no class token */
    assert_false(grid_of_tensor(&grid, &p, NULL, 3, (size_t[]){1, 10, 3}));    /* another width */
    assert_false(grid_of_tensor(&grid, &p, NULL, 2, (size_t[]){10, 2}));
    assert_false(grid_of_tensor(&grid, &p, NULL, 3, (size_t[]){1, 0, 2}));
    assert_false(grid_of_tensor(&grid, &p, NULL, 3, (size_t[]){1, (size_t)1 << 40, 2}));
    p.grid.axes = 0;
    assert_false(grid_of_tensor(&grid, &p, NULL, 3, (size_t[]){1, 10, 2}));
    free(x);
    free(y);
}

/* Every tensor whose shape depends on the image size is on a grid of the model. */
static void test_models(void **state) {
    static const struct {
        const char *attn, *rpe;
        bool cls;
        int tables; /* in two blocks and the position embedding */
    } models[] = {{"softmax", "none", true, 1}, {"softmax", "heads", true, 3}, {"lisa", "none", false, 5},
                  {"sa10", "none", false, 5},   {"sa9", "none", false, 3},      {"focused", "none", false, 3},
                  {"lambda", "none", false, 3}, {"rsa", "none", false, 7}, {"swin", "none", false, 3}};
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        Config config;
        config_init(&config, NULL);
        vit_add_settings(&config);
        settings_read(&config, "img_size = 32x48\npatch_size = 8\nnum_classes = 3\ndim = 8\ndepth = 2\nheads = 2\n"
                               "mlp_ratio = 2\nlisa_patterns = 2\n");
        settings_put(&config, "attn", models[i].attn);
        settings_put(&config, "rpe", models[i].rpe);
        settings_put(&config, "pool", models[i].cls ? "cls" : "gap");
        Vit small, large;
        int tables = 0;
        vit_create(&small, &config);
        settings_put(&config, "img_size", "56x48");
        vit_create(&large, &config);
        assert_int_equal(params_count(&small.model.params), params_count(&large.model.params));
        for (int t = 0; t < params_count(&small.model.params); t++) {
            const Param *a = params_at(&small.model.params, t), *b = params_at(&large.model.params, t);
            size_t shape[PARAM_MAX_DIMS];
            ParamGrid grid;
            if (a->size == b->size) continue;
            for (int d = 0; d < a->ndim; d++) shape[d] = (size_t)a->shape[d];
            if (!grid_of_tensor(&grid, b, &a->grid, a->ndim, shape)) fail_msg("%s: on no grid", a->name);
            float *x = check_normal(a->size, 1, (uint32_t)t), *y = check_poison(b->size);
            grid_resample(y, b, x, &grid);
            for (size_t k = 0; k < b->size; k++) assert_true(isfinite(y[k]));
            free(x);
            free(y);
            tables++;
        }
        assert_int_equal(tables, models[i].tables);
        vit_destroy(&small);
        vit_destroy(&large);
        config_free(&config);
    }
}

/* bias_geometric decides how Swin's relative position biases are resampled. */
static void test_window_rules(void **state) {
    static const char *const values[] = {"false", "true"};
    static const Resampled rules[] = {RESAMPLED_BICUBIC, RESAMPLED_GEOMETRIC};
    (void)state;
    for (int i = 0; i < 2; i++) {
        Config config;
        Vit vit;
        config_init(&config, NULL);
        vit_add_settings(&config);
        settings_read(&config, "img_size = 32\npatch_size = 8\nnum_classes = 3\ndim = 8\ndepth = 1\nheads = 2\n"
                               "attn = swin\nwindow = 2\n");
        settings_put(&config, "bias_geometric", values[i]);
        vit_create(&vit, &config);
        const Param *table = params_find(&vit.model.params, "blocks.0.attn.relative_position_bias_table");
        assert_non_null(table);
        assert_int_equal(table->resampled, rules[i]);
        vit_destroy(&vit);
        config_free(&config);
    }
}

/* == Weights of one model in another ============================================================================== */

/* 2 x 3 tokens after a class token, and three classes. */
static const char SMALL[] = "img_size = 16x24\npatch_size = 8\nnum_classes = 3\ndim = 8\ndepth = 2\nheads = 2\n"
                            "mlp_ratio = 2\npool = cls\nattn = softmax\nrpe = heads\n";

static void create(Vit *vit, Config *config, const char *name, const char *value) {
    config_init(config, NULL);
    vit_add_settings(config);
    settings_read(config, SMALL);
    if (name) settings_put(config, name, value);
    vit_create(vit, config);
    params_allocate(&vit->model.params, false);
}

static float *values_of(const Vit *vit, const Param *p) {
    float *x = malloc(p->size * sizeof *x);
    device_download(x, vit->model.params.values + p->offset, p->size * sizeof *x);
    return x;
}

/* The expected values of a tensor whose previous values were `start`.  before: NULL for a tensor of a new head. */
static float *wanted_of(const Vit *after, const Param *p, const Param *before, const float *start) {
    float *wanted = check_poison(p->size);
    if (!before) params_draw(&after->model.params, p, check_seed() + 1, wanted);
    else if (p->grid.axes) grid_resample(wanted, p, start, &before->grid);
    else if (p->size != before->size) params_draw(&after->model.params, p, check_seed() + 1, wanted);
    else memcpy(wanted, start, p->size * sizeof *wanted);
    return wanted;
}

/* Loads the small model's weights into a model that differs in one setting. */
static void weights_fit(const Vit *before, const char *path, const char *name, const char *value, const char *head,
                        const char *told) {
    Vit after;
    Config config;
    char *line = NULL, expected[1024];
    size_t length;
    create(&after, &config, name, value);
    FittedWeights fitted = fit_weights(&after.model, path, &before->model, head, check_seed() + 1, INFLATE_NONE);
    for (int t = 0; t < params_count(&after.model.params); t++) {
        const Param *p = params_at(&after.model.params, t), *origin = params_find(&before->model.params, p->name);
        if (fitted.to_head && !strncmp(p->name, "head.", 5)) origin = NULL;
        float *start = origin ? values_of(before, origin) : NULL, *x = values_of(&after, p);
        float *wanted = wanted_of(&after, p, origin, start);
        if (memcmp(x, wanted, p->size * sizeof *x)) fail_msg("%s: not what was expected", p->name);
        free(wanted);
        free(x);
        free(start);
    }
    FILE *out = open_memstream(&line, &length);
    fitted_weights_print(&fitted, out);
    fclose(out);
    snprintf(expected, sizeof expected, "%s%s", *told ? path : "", told);
    assert_string_equal(line, expected);
    free(line);
    vit_destroy(&after);
    config_free(&config);
}

static void test_weights(void **state) {
    (void)state;
    Vit before;
    Config config;
    const char *path = in_folder("small.safetensors");
    create(&before, &config, NULL, NULL);
    params_initialize(&before.model.params, check_seed());
    checkpoint_save_weights(&before.model.params, before.model.params.values, path, NULL, 0);
    weights_fit(&before, path, NULL, NULL, "head.", "");
    weights_fit(&before, path, "img_size", "40x24", NULL,
                ": resampled bicubically: pos_embed from 2x3 to 5x3 and 2 more\n");
    weights_fit(&before, path, "num_classes", "5", "head.",
                ": its head has 3 classes, this model 5: the head starts with new random weights\n");
    weights_fit(&before, path, "head", "tanh", "head.",
                ": its classifier is head linear, this model's head tanh: it starts with new random weights\n");
    vit_destroy(&before);
    config_free(&config);
}

/* ViT is pre-trained with a hidden layer in its classifier and fine-tuned without it. */
static void test_heads(void **state) {
    (void)state;
    Vit before;
    Config config;
    const char *path = in_folder("tanh.safetensors");
    create(&before, &config, "head", "tanh");
    params_initialize(&before.model.params, check_seed());
    checkpoint_save_weights(&before.model.params, before.model.params.values, path, NULL, 0);
    weights_fit(&before, path, "head", "tanh", "head.", "");
    weights_fit(&before, path, "head", "tanh", NULL, "");
    weights_fit(&before, path, NULL, NULL, "head.",
                ": its classifier is head tanh, this model's head linear: it starts with new random weights\n");
    weights_fit(&before, path, "head", "mlp", "head.",
                ": its classifier is head tanh, this model's head mlp: it starts with new random weights\n");
    vit_destroy(&before);
    config_free(&config);
}

int main(void) {
    check_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_interpolation),
        cmocka_unit_test(test_bilinear),
        cmocka_unit_test(test_frames),
        cmocka_unit_test(test_grids),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_window_rules),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_heads),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
