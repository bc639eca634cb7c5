/* Tables on a grid of another size against PyTorch's interpolation in float64
 * (tests/reference/make_resample_fixtures.py), which tensors have such a grid, and weights of one model in another. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/checkpoint.h"
#include "layers/fit_weights.h"
#include "layers/resample_grid.h"
#include "layers/vit.h"
#include "tests/check.h"
#include "tests/scratch.h"

static const char FIXTURE[] = "tests/fixtures/finetune/resample.safetensors";

/* A parameter of that shape on that grid, as a layer declares it. */
static Param declared(const SafeTensor *tensor, ParamGrid grid) {
    Param p = {.ndim = tensor->ndim, .size = tensor->size, .grid = grid};
    for (int d = 0; d < p.ndim; d++) p.shape[d] = (int)tensor->shape[d];
    return p;
}

static int case_agrees(const SafeTensors *st, const char *name) {
    char from_name[64], to_name[64], error[512];
    ParamGrid from, to, found;
    snprintf(from_name, sizeof from_name, "%s.from", name);
    snprintf(to_name, sizeof to_name, "%s.to", name);
    const SafeTensor *before = safetensors_find(st, from_name), *after = safetensors_find(st, to_name);
    assert_non_null(before);
    assert_non_null(after);
    assert_int_equal(sscanf(safetensors_metadata(st, name), "axis %d axes %d prefix %d from %dx%d to %dx%d", &from.axis,
                            &from.axes, &from.prefix, &from.rows, &from.columns, &to.rows, &to.columns),
                     7);
    to = (ParamGrid){from.axis, from.axes, from.prefix, to.rows, to.columns};
    Param p = declared(after, to);
    assert_true(grid_of_tensor(&found, &p, &from, before->ndim, before->shape));
    assert_int_equal(found.rows, from.rows);
    assert_int_equal(found.columns, from.columns);
    bool guessed = grid_of_tensor(&found, &p, NULL, before->ndim, before->shape);
    assert_int_equal(guessed, from.axes == 2 || from.rows == from.columns);

    float *x = malloc(before->size * sizeof *x), *y = check_poison(after->size);
    assert_true(safetensors_to_float(before, x, error, sizeof error));
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
    static const char *const names[] = {"pos_embed", "smaller", "one_each", "wa", "toeplitz", "point"};
    char error[512];
    SafeTensors st;
    int ok = 1;
    (void)state;
    if (!safetensors_open(&st, FIXTURE, error, sizeof error)) fail_msg("%s", error);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) ok &= case_agrees(&st, names[i]);
    safetensors_close(&st);
    assert_true(ok);
}

/* The same size is the same table, and what is no table on this grid is told. */
static void test_grids(void **state) {
    (void)state;
    Param p = {.ndim = 3, .shape = {1, 1 + 12, 2}, .size = 26, .grid = {1, 1, 1, 3, 4}};
    float *x = check_normal(26, 1, 1), *y = check_poison(26);
    ParamGrid grid;
    assert_true(grid_of_tensor(&grid, &p, &p.grid, 3, (size_t[]){1, 13, 2}));
    grid_resample(y, &p, x, &grid);
    assert_memory_equal(x, y, 26 * sizeof *x);
    assert_false(grid_of_tensor(&grid, &p, NULL, 3, (size_t[]){1, 13, 2}));    /* 12 is no square */
    assert_true(grid_of_tensor(&grid, &p, NULL, 3, (size_t[]){1, 10, 2}));     /* 9 is */
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

/* Every tensor of a model whose shape follows the image's size is on a grid of that model. */
static void test_models(void **state) {
    static const struct {
        const char *attn, *rpe;
        bool cls;
        int tables; /* in two blocks, and the position embedding */
    } models[] = {{"softmax", "none", true, 1}, {"softmax", "heads", true, 3}, {"lisa", "none", false, 5},
                  {"sa10", "none", false, 5},   {"sa9", "none", false, 3},      {"focused", "none", false, 3},
                  {"lambda", "none", false, 3}, {"rsa", "none", false, 7}};
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        VitConfig config = {.img_h = 32, .img_w = 48, .patch_size = 8, .num_classes = 3,
                            .stage = {{.dim = 8, .depth = 2, .heads = 2, .mlp_ratio = 2}},
                            .class_token = models[i].cls, .pos_embed = POSITIONS_LEARNED,
                            .attention = {.attn = models[i].attn, .feature_map = "mlp", .relative = "none",
                                          .r_max = 2, .ripple_algo = "auto", .focused_p = 3, .rpe = models[i].rpe,
                                          .lisa_patterns = 2, .lisa_fft = "1d", .lisa_algo = "auto"}};
        Vit small, large;
        int tables = 0;
        vit_create(&small, &config);
        config.img_h = 56;
        vit_create(&large, &config);
        assert_int_equal(small.model.params.count, large.model.params.count);
        for (int t = 0; t < small.model.params.count; t++) {
            const Param *a = &small.model.params.items[t], *b = &large.model.params.items[t];
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
    }
}

/* == Weights of one model in another ============================================================================== */

/* 2 x 3 tokens behind a class token, and three classes. */
static const VitConfig SMALL = {.img_h = 16, .img_w = 24, .patch_size = 8, .num_classes = 3,
                                .stage = {{.dim = 8, .depth = 2, .heads = 2, .mlp_ratio = 2}},
                                .class_token = true, .pos_embed = POSITIONS_LEARNED,
                                .attention = {.attn = "softmax", .feature_map = "mlp", .relative = "none",
                                              .rpe = "heads"}};

static float *values_of(const Vit *vit, const Param *p) {
    float *x = malloc(p->size * sizeof *x);
    device_download(x, vit->model.params.values + p->offset, p->size * sizeof *x);
    return x;
}

/* What the tensor has to hold, from `start`, what it held before. */
static float *wanted_of(const Vit *after, const Param *p, const Param *before, const float *start) {
    float *wanted = check_poison(p->size);
    if (p->grid.axes) grid_resample(wanted, p, start, &before->grid);
    else if (p->size != before->size) params_draw(&after->model.params, p, check_seed() + 1, wanted);
    else memcpy(wanted, start, p->size * sizeof *wanted);
    return wanted;
}

static void weights_fit(const Vit *before, const char *path, const VitConfig *config, const char *head,
                        const char *told) {
    Vit after;
    char *line = NULL, expected[1024];
    size_t length;
    vit_create(&after, config);
    params_allocate(&after.model.params, false);
    FittedWeights fitted = fit_weights(&after.model, path, &before->model, head, check_seed() + 1);
    for (int t = 0; t < after.model.params.count; t++) {
        const Param *p = &after.model.params.items[t], *origin = params_find(&before->model.params, p->name);
        float *start = values_of(before, origin), *x = values_of(&after, p);
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
}

static void test_weights(void **state) {
    (void)state;
    Vit before;
    VitConfig larger = SMALL, other = SMALL;
    const char *path = in_folder("small.safetensors");
    vit_create(&before, &SMALL);
    params_allocate(&before.model.params, false);
    params_initialize(&before.model.params, check_seed());
    checkpoint_save_weights(&before.model.params, before.model.params.values, path, NULL, 0);
    larger.img_h = 40;
    other.num_classes = 5;
    weights_fit(&before, path, &SMALL, "head.", "");
    weights_fit(&before, path, &larger, NULL,
                ": resampled bicubically: pos_embed from 2x3 to 5x3 and 2 more\n");
    weights_fit(&before, path, &other, "head.",
                ": its head has 3 classes, this model 5: the head is drawn afresh\n");
    vit_destroy(&before);
}

int main(void) {
    check_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_interpolation),
        cmocka_unit_test(test_grids),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_weights),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
