/* Attention whose grid changes from batch to batch (AttentionOp.any_grid): an instance that was planned for the largest
 * grid, on one grid after another, against an instance that was created for each grid, whose tables were resampled
 * beforehand by grid_resample. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <malloc.h>
#include <omp.h>

#include "core/resampling.h"
#include "layers/vit/resample_grid.h"
#include "layers/vit/vit.h"
#include "tests/on_device.h"
#include "tests/settings.h"

enum { B = 2, M = 16, HEADS = 2, GRIDS = 5 };

/* The model's own grid, and the largest that memory is planned for. */
static const Grid own = {1, 6, 6}, largest = {1, 11, 17};

typedef struct {
    const char *label, *settings;
    int block, stage, stages;
    int least; /* smallest side of a grid */
} Case;

static const Case cases[] = {
    {"softmax", "attn = softmax\n", .least = 1},
    {"linear", "attn = linear\n", .least = 1},
    {"efficient", "attn = efficient\n", .least = 1},
    {"hydra", "attn = hydra\n", .least = 1},
    {"relu-linear", "attn = relu-linear\n", .least = 1},
    {"conv", "attn = conv\n", .least = 1},
    {"sepconv", "attn = sepconv\n", .least = 1},
    {"dwconv7", "attn = dwconv7\n", .least = 1},
    {"squares of 2", "attn = reduced\nreduction = 2\n", .least = 2},
    {"squares of 3", "attn = reduced\nreduction = 3\n", .least = 3},
    {"keys as they are", "attn = reduced\nreduction = 1\n", .least = 1},
    {"cells", "attn = reduced\nreduction_cells = 7\n", .least = 1},
    {"windows", "attn = swin\nwindow = 4\n", .least = 5},
    {"shifted windows", "attn = swin\nwindow = 4\n", .block = 1, .least = 5},
    {"odd windows", "attn = swin\nwindow = 5\n", .block = 1, .least = 6},
    {"lisa", "attn = lisa\nlisa_patterns = 3\n", .least = 1},
    {"lisa, dense circle", "attn = lisa\nlisa_patterns = 3\nlisa_algo = dense\n", .least = 1},
    {"lisa, circle by fft", "attn = lisa\nlisa_patterns = 3\nlisa_algo = fft\n", .least = 1},
    {"lisa, torus", "attn = lisa\nlisa_patterns = 3\nlisa_fft = 2d\n", .least = 1},
    {"lisa, dense torus", "attn = lisa\nlisa_patterns = 3\nlisa_fft = 2d\nlisa_algo = dense\n", .least = 1},
    {"lisa, torus by fft", "attn = lisa\nlisa_patterns = 3\nlisa_fft = 2d\nlisa_algo = fft\n", .least = 1},
    {"lisa, windows", "attn = lisa\nlisa_patterns = 3\nlisa_kernel = 3\n", .least = 1},
    {"focused", "attn = focused\n", .least = 1},
    {"focused, squares", "attn = focused-reduced\nreduction = 2\n", .least = 2},
    {"focused, keys apart", "attn = focused-reduced\nreduction = 1\n", .least = 1},
    {"ripple", "attn = ripple\nr_max = 3\n", .least = 1},
    {"ripple, dense", "attn = ripple\nr_max = 3\nripple_algo = dense\n", .least = 1},
    {"ripple, window", "attn = ripple\nr_max = 3\nripple_algo = window\n", .least = 1},
    {"ripple, sat", "attn = ripple\nr_max = 3\nripple_algo = sat\n", .least = 1},
    {"ripple, fixed", "attn = ripple-fixed\nr_max = 3\n", .least = 1},
    {"ripple, softmax", "attn = ripple-softmax-weights\nr_max = 3\n", .least = 1},
    {"ripple, truncated", "attn = ripple-truncated\nr_max = 3\n", .least = 1},
    {"ripple, later blocks", "attn = ripple\nripple_layers = 0\n", .least = 1},
};
enum { CASES = sizeof cases / sizeof *cases };

/* == An attention by itself ======================================================================================= */

typedef struct {
    Model model;
    Config config;
    Attention attention;
} Instance;

static void instance_plan(Plan *plan, void *owner) { attention_plan(&((Instance *)owner)->attention, plan, B); }

/* Created for a grid; it changes if there is a largest one. */
static void instance_open(Instance *l, const Case *c, Grid grid, const Grid *most) {
    memset(l, 0, sizeof *l);
    config_init(&l->config, NULL);
    const VitSettings *settings = vit_add_settings(&l->config);
    settings_read(&l->config, c->settings);
    attention_create(&l->attention, vit_attn(settings, 0), &l->config, "",
                     (BlockPlace){c->block, c->stage, c->stages ? c->stages : 1, c->block, 1, 1}, grid, false, M, HEADS);
    attention_declare(&l->attention, &l->model.params);
    if (most) {
        attention_check_any_grid(&l->attention);
        attention_set_grid(&l->attention, *most);
    }
    l->model.training.guarded = true;
    model_plan(&l->model, B, true, instance_plan, l);
    model_allocate(&l->model);
    params_allocate(&l->model.params, true);
}

static void instance_close(Instance *l) {
    model_destroy(&l->model);
    attention_destroy(&l->attention);
    config_free(&l->config);
}

/* Every tensor normal, those of norms around one. */
static void fill(const Instance *l) {
    for (int i = 0; i < params_count(&l->model.params); i++) {
        const Param *p = params_at(&l->model.params, i);
        float *x = check_normal(p->size, 0.3f, 1000 + (uint32_t)i);
        for (size_t k = 0; strstr(p->name, "norm.weight") && k < p->size; k++) x[k] += 1;
        device_upload(l->model.params.values + p->offset, x, p->size * sizeof *x);
        free(x);
    }
}

/* The other instance's parameters, resampled to this one's grid. */
static void take_over(const Instance *to, const Instance *from) {
    assert_int_equal(params_count(&to->model.params), params_count(&from->model.params));
    for (int i = 0; i < params_count(&to->model.params); i++) {
        const Param *p = params_at(&to->model.params, i), *q = params_at(&from->model.params, i);
        float *x = download(from->model.params.values + q->offset, q->size);
        if (p->grid.axes && p->size != q->size) {
            float *y = keep(check_poison(p->size), false);
            grid_resample(y, p, x, &q->grid);
            x = y;
        } else if (p->grid.axes) {
            float *y = keep(check_poison(p->size), false);
            grid_resample(y, p, x, &q->grid);
            x = y;
        }
        device_upload(to->model.params.values + p->offset, x, p->size * sizeof *x);
    }
}

typedef struct {
    float *y, *dx, *grads;
    size_t n;
} Result;

/* A step from poison. */
static Result step(Instance *l, float *x, float *dy) {
    size_t n = attention_tokens(&l->attention, B) * M;
    real *d_x = upload_real(x, n), *d_dy = upload_real(dy, n), *d_y = poisoned_real(n), *d_dx = poisoned_real(n);
    Params *params = &l->model.params;
    plan_poison(&l->model.training);
    device_zero(params->grads, params->total * sizeof *params->grads);
    attention_forward(&l->attention, d_y, d_x, B);
    attention_backward(&l->attention, d_dx, d_dy, d_x, B);
    if (plan_overrun(&l->model.training)) fail_msg("%s is overrun", plan_overrun(&l->model.training));
    return (Result){download_real(d_y, n), download_real(d_dx, n), download(params->grads, params->total), n};
}

static uint64_t drawn;
static int draw(int least, int most) {
    return least + (int)(rng_bits(check_seed(), RNG_TEST, 77, 0, drawn++) % (uint64_t)(most - least + 1));
}

/* Any grid that fits, upright or turned. */
static Grid draw_grid(int least) {
    Grid grid = {1, draw(least, largest.rows), draw(least, largest.columns)};
    return draw(0, 1) ? grid : (Grid){1, grid.columns, grid.rows};
}

/* == Same bits as an instance for the grid ======================================================================== */

static void same_bits(const char *what, const Case *c, Grid grid, const float *got, const float *want, size_t n) {
    if (!memcmp(got, want, n * sizeof *got)) return;
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got))
            fail_msg("%s on %d x %d: %s[%zu] is %.9g, not %.9g", c->label, grid.rows, grid.columns, what, i,
                     (double)got[i], (double)want[i]);
}

static void compare(const Case *c, Instance *changing, Grid grid) {
    Instance fixed;
    attention_set_grid(&changing->attention, grid);
    size_t n = attention_tokens(&changing->attention, B) * M;
    float *x = normals(n, 1), *dy = normals(n, 1);
    Result got = step(changing, x, dy);
    instance_open(&fixed, c, grid, NULL);
    assert_true(fixed.model.training.workspace <= changing->model.training.workspace);
    assert_true(plan_bytes(&fixed.model.training) <= plan_bytes(&changing->model.training));
    take_over(&fixed, changing);
    Result want = step(&fixed, x, dy);
    same_bits("y", c, grid, got.y, want.y, n);
    same_bits("dx", c, grid, got.dx, want.dx, n);
    for (int i = 0; i < params_count(&changing->model.params); i++) {
        const Param *p = params_at(&changing->model.params, i), *q = params_at(&fixed.model.params, i);
        if (!p->grid.axes) same_bits(p->name, c, grid, got.grads + p->offset, want.grads + q->offset, p->size);
    }
    instance_close(&fixed);
}

static void test_same_bits(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        const Case *c = &cases[i];
        Instance changing;
        Grid grids[GRIDS] = {largest, draw_grid(c->least), draw_grid(c->least)};
        grids[3] = (Grid){1, grids[1].columns, grids[1].rows};
        grids[4] = grids[1];
        instance_open(&changing, c, own, &largest);
        fill(&changing);
        for (int g = 0; g < GRIDS; g++) compare(c, &changing, grids[g]);
        instance_close(&changing);
        release_all();
    }
}

/* == Threads and allocations ====================================================================================== */

/* Gradients of parameters are sums of partial sums, one for each thread. */
static void same_gradient(const Case *c, Grid grid, const Param *p, const Result *got, const Result *want) {
    const float *g = got->grads + p->offset, *w = want->grads + p->offset;
    double error = 0, size = 0;
    for (size_t i = 0; i < p->size; i++) {
        error += ((double)g[i] - w[i]) * ((double)g[i] - w[i]);
        size += (double)w[i] * w[i];
    }
    if (!(error <= 1e-10 * size)) fail_msg("%s on %d x %d: %s", c->label, grid.rows, grid.columns, p->name);
}

static void test_threads(void **state) {
    (void)state;
    const int threads = omp_get_max_threads(), counts[] = {1, 2, 7};
    for (int i = 0; i < CASES; i++) {
        const Case *c = &cases[i];
        Grid grid = draw_grid(c->least);
        size_t n = (size_t)(B * M) * (size_t)grid_tokens(grid);
        float *x = normals(n, 1), *dy = normals(n, 1);
        Result results[3];
        for (int t = 0; t < 3; t++) {
            Instance l;
            omp_set_num_threads(counts[t]);
            instance_open(&l, c, own, &largest);
            fill(&l);
            attention_set_grid(&l.attention, grid);
            results[t] = step(&l, x, dy);
            same_bits("y", c, grid, results[t].y, results[0].y, n);
            same_bits("dx", c, grid, results[t].dx, results[0].dx, n);
            for (int k = 0; k < params_count(&l.model.params); k++)
                same_gradient(c, grid, params_at(&l.model.params, k), &results[t], &results[0]);
            instance_close(&l);
        }
        release_all();
    }
    omp_set_num_threads(threads);
}

/* The second time that grids are seen. */
static void test_no_allocation(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        const Case *c = &cases[i];
        Instance l;
        Grid grids[3] = {draw_grid(c->least), draw_grid(c->least), draw_grid(c->least)};
        size_t most = (size_t)(B * M) * (size_t)grid_tokens(largest), before = 0;
        real *x = upload_real(normals(most, 1), most), *dx = poisoned_real(most);
        instance_open(&l, c, own, &largest);
        fill(&l);
        for (int turn = 0; turn < 3; turn++) {
            for (int g = 0; g < 3; g++) {
                attention_set_grid(&l.attention, grids[g]);
                attention_forward(&l.attention, dx, x, B);
                attention_backward(&l.attention, dx, x, x, B);
            }
            if (turn == 1) before = mallinfo2().uordblks;
        }
        if (mallinfo2().uordblks != before)
            fail_msg("%s: %zd bytes more", c->label, (ssize_t)(mallinfo2().uordblks - before));
        instance_close(&l);
        release_all();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_no_allocation),
    };
    kernels_init();
    check_seed();
    return cmocka_run_group_tests_name("any_grid", tests, NULL, NULL);
}
