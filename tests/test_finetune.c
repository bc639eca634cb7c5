/* Tables on a grid of another size against PyTorch's interpolation in float64
 * (tests/reference/make_resample_fixtures.py), and which tensors have such a grid. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/safetensors.h"
#include "layers/resample_grid.h"
#include "layers/vit.h"
#include "tests/check.h"

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
                            &from.axes, &from.prefix, &from.positions.rows, &from.positions.columns,
                            &to.positions.rows, &to.positions.columns),
                     7);
    from.positions.frames = 1;
    to = (ParamGrid){from.axis, from.axes, from.prefix, {1, to.positions.rows, to.positions.columns}};
    Param p = declared(after, to);
    assert_true(grid_of_tensor(&found, &p, &from, before->ndim, before->shape));
    assert_int_equal(found.positions.rows, from.positions.rows);
    assert_int_equal(found.positions.columns, from.positions.columns);
    bool guessed = grid_of_tensor(&found, &p, NULL, before->ndim, before->shape);
    assert_int_equal(guessed, from.axes == 2 || from.positions.rows == from.positions.columns);

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
    Param p = {.ndim = 3, .shape = {1, 1 + 12, 2}, .size = 26, .grid = {1, 1, 1, {1, 3, 4}}};
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
        assert_int_equal(small.params.count, large.params.count);
        for (int t = 0; t < small.params.count; t++) {
            const Param *a = &small.params.items[t], *b = &large.params.items[t];
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

int main(void) {
    check_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_interpolation),
        cmocka_unit_test(test_grids),
        cmocka_unit_test(test_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
