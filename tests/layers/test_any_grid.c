/* Attention whose grid changes from batch to batch (AttentionOp.any_grid): one instance, planned for the largest grid,
 * is compared on several grids with instances created for each of these grids, whose tables grid_resample has
 * resampled. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <malloc.h>
#include <omp.h>

#include "core/resampling.h"
#include "layers/vit/resample_grid.h"
#include "layers/vit/vit.h"
#include "tests/differences.h"
#include "tests/settings.h"

enum { B = 2, M = 16, HEADS = 2, GRIDS = 5 };

/* The grid for which the model is created, and the largest one for which memory is planned. */
static const Grid own = {1, 6, 6}, largest = {1, 11, 17};

typedef struct {
    const char *label, *settings;
    int block, stage, stages;
    int least;    /* smallest side of a grid */
    int multiple; /* if not 0, the sides of a grid are multiples of it */
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
    {"focused", "attn = focused\n", .least = 2},
    {"focused, squares", "attn = focused-reduced\nreduction = 2\n", .least = 4},
    {"focused, keys apart", "attn = focused-reduced\nreduction = 1\n", .least = 2},
    {"stripes", "attn = cswin\nstripe = 3\n", .stages = 2, .least = 6, .multiple = 3},
    {"one stripe", "attn = cswin\nstripe = 3\n", .stage = 1, .stages = 2, .least = 1},
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

/* == One attention ================================================================================================= */

typedef struct {
    Model model;
    Config config;
    Attention attention;
} Instance;

static void instance_plan(Plan *plan, void *owner) { attention_plan(&((Instance *)owner)->attention, plan, B); }

/* Creates an instance for `grid`.  most: if not NULL, the grid may change, and memory is planned for *most. */
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

/* Fills all tensors with normal numbers; the weights of norms have mean one. */
static void fill(const Instance *l) {
    for (int i = 0; i < params_count(&l->model.params); i++) {
        const Param *p = params_at(&l->model.params, i);
        float *x = check_normal(p->size, 0.3f, 1000 + (uint32_t)i);
        for (size_t k = 0; strstr(p->name, "norm.weight") && k < p->size; k++) x[k] += 1;
        device_upload(l->model.params.values + p->offset, x, p->size * sizeof *x);
        free(x);
    }
}

/* Is p the same table as q, but on another grid? */
static bool on_another_grid(const Param *p, const Param *q) {
    return p->grid.axes && memcmp(&p->grid.positions, &q->grid.positions, sizeof p->grid.positions);
}

/* Copies the parameters of `from` into `to`, resampled to the grid of `to`. */
static void take_over(const Instance *to, const Instance *from) {
    assert_int_equal(params_count(&to->model.params), params_count(&from->model.params));
    for (int i = 0; i < params_count(&to->model.params); i++) {
        const Param *p = params_at(&to->model.params, i), *q = params_at(&from->model.params, i);
        float *x = download(from->model.params.values + q->offset, q->size);
        if (on_another_grid(p, q)) {
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

/* One forward and backward pass.  All its memory is filled with NaN first. */
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

/* A random grid that fits into the planned memory, in landscape or portrait format. */
static Grid draw_grid(const Case *c) {
    int unit = c->multiple ? c->multiple : 1, least = (c->least + unit - 1) / unit;
    Grid grid = {1, unit * draw(least, largest.rows / unit), unit * draw(least, largest.columns / unit)};
    return draw(0, 1) ? grid : (Grid){1, grid.columns, grid.rows};
}

static Grid largest_of(const Case *c) {
    int unit = c->multiple ? c->multiple : 1;
    return (Grid){1, largest.rows / unit * unit, largest.columns / unit * unit};
}

/* == Same bits as an instance for the grid ======================================================================== */

static void same_bits(const char *what, const Case *c, Grid grid, const float *got, const float *want, size_t n) {
    if (!memcmp(got, want, n * sizeof *got)) return;
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got))
            fail_msg("%s on %d x %d: %s[%zu] is %.9g, not %.9g", c->label, grid.rows, grid.columns, what, i,
                     (double)got[i], (double)want[i]);
}

/* The resampling along an axis as a dense matrix [out,in]. */
static double *weights_of(int in, int out) {
    ResampleAxis axis = resample_whole(in, out);
    double *dense = zeros((size_t)in * (size_t)out), *some = zeros((size_t)resample_taps(&axis, RESAMPLE_BICUBIC));
    for (int j = 0, first; j < out; j++) {
        int count = resample_weights(some, &first, &axis, RESAMPLE_BICUBIC, j);
        for (int i = 0; i < count; i++) dense[j * in + first + i] = some[i];
    }
    return dense;
}

/* The gradient of a table must be U^T G V, where G is the gradient of the table resampled to the batch's grid. */
static void adjoint_agrees(const Case *c, Grid grid, const Param *p, const Param *q, const float *got, const float *G) {
    Grid from = p->grid.positions, to = q->grid.positions;
    size_t inner = p->size / (size_t)grid_tokens(from), columns = (size_t)from.columns;
    double *U = weights_of(from.rows, to.rows), *V = weights_of(from.columns, to.columns), *want = zeros(p->size);
    for (int Y = 0; Y < to.rows; Y++)
        for (int X = 0; X < to.columns; X++, G += inner)
            for (int y = 0; y < from.rows; y++)
                for (int x = 0; x < from.columns; x++) {
                    double weight = U[Y * from.rows + y] * V[X * from.columns + x];
                    for (size_t k = 0; weight != 0 && k < inner; k++)
                        want[((size_t)y * columns + (size_t)x) * inner + k] += weight * G[k];
                }
    double error = relative_rms(got, want, p->size);
    if (!(error < 1e-7)) fail_msg("%s on %d x %d: %s is off by %g", c->label, grid.rows, grid.columns, p->name, error);
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
        if (on_another_grid(p, q)) adjoint_agrees(c, grid, p, q, got.grads + p->offset, want.grads + q->offset);
        else same_bits(p->name, c, grid, got.grads + p->offset, want.grads + q->offset, p->size);
    }
    instance_close(&fixed);
}

static void test_same_bits(void **state) {
    (void)state;
    const int count = full_or_reduced("grids", GRIDS, 1); /* reduced: one grid, not the largest */
    for (int i = 0; i < CASES; i++) {
        const Case *c = &cases[i];
        Instance changing;
        Grid grids[GRIDS] = {largest_of(c), draw_grid(c), draw_grid(c)};
        grids[3] = (Grid){1, grids[1].columns, grids[1].rows};
        grids[4] = grids[1];
        instance_open(&changing, c, own, &largest);
        fill(&changing);
        for (int g = 0; g < count; g++) compare(c, &changing, grids[count > 1 ? g : 1]);
        instance_close(&changing);
        release_all();
    }
}

/* == Central differences through the resampling =================================================================== */

static double loss_of(Instance *l, const real *d_x, const float *dy, real *d_y, size_t n) {
    double loss = 0;
    attention_forward(&l->attention, d_y, d_x, B);
    const float *y = download_real(d_y, n);
    for (size_t i = 0; i < n; i++) loss += (double)y[i] * dy[i];
    return loss;
}

/* Compares the slope of the loss along the gradient of each resampled table with a central difference. */
static void test_differences(void **state) {
    (void)state;
    if (sizeof(real) < sizeof(float)) return; /* rounded outputs are too rough for differences */
    int tables = 0;
    for (int i = 0; i < CASES; i++) {
        const Case *c = &cases[i];
        Instance l;
        Grid grid = draw_grid(c);
        size_t n = (size_t)(B * M) * (size_t)grid_tokens(grid);
        float *x = normals(n, 1), *dy = normals(n, 1);
        real *d_x = upload_real(x, n), *d_y = poisoned_real(n);
        instance_open(&l, c, own, &largest);
        fill(&l);
        attention_set_grid(&l.attention, grid);
        Result got = step(&l, x, dy);
        for (int k = 0; k < params_count(&l.model.params); k++) {
            const Param *p = params_at(&l.model.params, k);
            if (!p->grid.axes || strstr(p->name, "relative_position")) continue;
            float *values = download(l.model.params.values + p->offset, p->size), *moved = normals(p->size, 1);
            const float *g = got.grads + p->offset;
            double size = 0, reach[2];
            for (size_t j = 0; j < p->size; j++) size += (double)g[j] * g[j];
            double h = 1e-4 * 0.3 * sqrt((double)p->size) / sqrt(size);
            for (int side = 0; side < 2; side++) {
                for (size_t j = 0; j < p->size; j++) moved[j] = (float)(values[j] + (side ? -h : h) * g[j]);
                device_upload(l.model.params.values + p->offset, moved, p->size * sizeof *moved);
                reach[side] = loss_of(&l, d_x, dy, d_y, n);
            }
            device_upload(l.model.params.values + p->offset, values, p->size * sizeof *values);
            double slope = (reach[0] - reach[1]) / (2 * h);
            if (!(fabs(slope - size) < 5e-3 * size))
                fail_msg("%s on %d x %d: %s has slope %g, not %g", c->label, grid.rows, grid.columns, p->name, slope, size);
            tables++;
        }
        instance_close(&l);
        release_all();
    }
    assert_int_equal(tables, 2 * 6 + 3);
}

/* == Windows and stripes that require padding ====================================================================== */

/* The attention of the official programs for one image in double.  x [N,M]; the parameters have their usual names. */
typedef struct {
    Grid grid;
    int side;     /* of a window, or the width of a stripe */
    int shift;    /* of the windows */
    bool stripes;
    double *x, *qkv_w, *qkv_b, *proj_w, *proj_b, *table, *conv_w[2], *conv_b[2];
    double *qkv, *mix; /* scratch [N,3M], [N,M] */
} Official;

enum { D = M / HEADS };

static void linear(double *y, const double *x, const double *w, const double *b, int in, int out) {
    for (int o = 0; o < out; o++) {
        y[o] = b[o];
        for (int i = 0; i < in; i++) y[o] += w[o * in + i] * x[i];
    }
}

/* q, k or v (`which` 0, 1, 2) of head h at row y and column x.  Outside the grid it is that of a zero token, or zero
 * for stripes. */
static const double *part(const Official *o, int y, int x, int which, int h) {
    static const double zero[D];
    bool inside = y >= 0 && y < o->grid.rows && x >= 0 && x < o->grid.columns;
    if (!inside) return o->stripes ? zero : o->qkv_b + which * M + h * D;
    return o->qkv + (size_t)(y * o->grid.columns + x) * 3 * M + which * M + h * D;
}

typedef struct {
    double sum, v[D];
} Row;

static void add_key(Row *row, const double *q, const double *k, const double *v, double bias) {
    double score = bias;
    for (int d = 0; d < D; d++) score += q[d] * k[d] / sqrt(D);
    row->sum += exp(score);
    for (int d = 0; d < D; d++) row->v[d] += exp(score) * v[d];
}

static int region(int at, int length, int side, int shift) { return at < length - side ? 0 : at < length - shift ? 1 : 2; }

/* A query of mmdetection's Swin: the grid is padded on the right and below, rolled, and divided into windows. */
static Row window_row(const Official *o, int y, int x, int h) {
    Row row = {0};
    int w = o->side, s = o->shift, rows = (o->grid.rows + w - 1) / w * w, columns = (o->grid.columns + w - 1) / w * w;
    int ry = (y - s + rows) % rows, rx = (x - s + columns) % columns;
    for (int ky = ry / w * w; ky < ry / w * w + w; ky++)
        for (int kx = rx / w * w; kx < rx / w * w + w; kx++) {
            bool apart = region(ky, rows, w, s) != region(ry, rows, w, s) ||
                         region(kx, columns, w, s) != region(rx, columns, w, s);
            int Y = (ky + s) % rows, X = (kx + s) % columns;
            double bias = o->table[((ry - ky + w - 1) * (2 * w - 1) + rx - kx + w - 1) * HEADS + h];
            add_key(&row, part(o, y, x, 0, h), part(o, Y, X, 1, h), part(o, Y, X, 2, h),
                    bias - (s && apart ? 100 : 0));
        }
    return row;
}

/* A query of CSwin's segmentation program: head 0 has vertical stripes, head 1 horizontal ones.  Half of the padding
 * lies before the grid. */
static Row stripe_row(const Official *o, int y, int x, int h, double *convolved) {
    Row row = {0};
    int w = o->side, length = h ? o->grid.rows : o->grid.columns, other = h ? o->grid.columns : o->grid.rows;
    int before = (w - length % w) % w / 2, at = h ? y : x, along = h ? x : y;
    int first = (at + before) / w * w - before;
    for (int i = 0; i < other; i++)
        for (int k = first; k < first + w; k++) {
            int Y = h ? k : i, X = h ? i : k;
            add_key(&row, part(o, y, x, 0, h), part(o, Y, X, 1, h), part(o, Y, X, 2, h), 0);
        }
    for (int d = 0; d < D; d++) convolved[d] = o->conv_b[h][d];
    for (int a = -1; a <= 1; a++)
        for (int b = -1; b <= 1; b++) {
            int k = at + a, i = along + b, Y = h ? k : i, X = h ? i : k, tap = h ? (a + 1) * 3 + b + 1 : (b + 1) * 3 + a + 1;
            if (k < first || k >= first + w || i < 0 || i >= other) continue;
            for (int d = 0; d < D; d++) convolved[d] += o->conv_w[h][d * 9 + tap] * part(o, Y, X, 2, h)[d];
        }
    return row;
}

static void official_outputs(double *out, void *context) {
    const Official *o = context;
    int N = grid_tokens(o->grid);
    for (int n = 0; n < N; n++) linear(o->qkv + n * 3 * M, o->x + n * M, o->qkv_w, o->qkv_b, M, 3 * M);
    for (int n = 0; n < N; n++)
        for (int h = 0; h < HEADS; h++) {
            int y = n / o->grid.columns, x = n % o->grid.columns;
            double convolved[D] = {0};
            Row row = o->stripes ? stripe_row(o, y, x, h, convolved) : window_row(o, y, x, h);
            for (int d = 0; d < D; d++) o->mix[n * M + h * D + d] = row.v[d] / row.sum + convolved[d];
        }
    for (int n = 0; n < N; n++) linear(out + n * M, o->mix + n * M, o->proj_w, o->proj_b, M, M);
}

static double *values_of(const Instance *l, const char *name) {
    const Param *p = params_find(&l->model.params, name);
    if (!p) fail_msg("no tensor %s", name);
    const float *x = download(l->model.params.values + p->offset, p->size);
    double *y = zeros(p->size);
    for (size_t i = 0; i < p->size; i++) y[i] = x[i];
    return y;
}

static int gradient_agrees(const Instance *l, const Result *got, const char *name, double *values, const Function *f) {
    const Param *p = params_find(&l->model.params, name);
    return slopes_agree(name, got->grads + p->offset, NULL, values, p->size, f);
}

/* Compares with the official program.  Both images have the same tokens, and the second has no gradient. */
static void official_case(const Case *c, Grid grid, Official o) {
    Instance l;
    instance_open(&l, c, own, &largest);
    fill(&l);
    attention_set_grid(&l.attention, grid);
    size_t n = (size_t)grid_tokens(grid) * M;
    float *x = normals(B * n, 1), *dy = normals(B * n, 1);
    memcpy(x + n, x, n * sizeof *x);
    for (size_t i = n; i < B * n; i++) dy[i] = 0;
    Result got = step(&l, x, dy);
    o.grid = grid;
    o.x = wide(x, n);
    o.qkv_w = values_of(&l, "attn.qkv.weight");
    o.qkv_b = values_of(&l, "attn.qkv.bias");
    o.proj_w = values_of(&l, "attn.proj.weight");
    o.proj_b = values_of(&l, "attn.proj.bias");
    o.qkv = zeros(3 * n);
    o.mix = zeros(n);
    double *want = zeros(n);
    Function f = {official_outputs, &o, n, zeros(n), dy, 1e-4};
    if (o.stripes)
        for (int i = 0; i < 2; i++) {
            o.conv_w[i] = values_of(&l, i ? "attn.attns.1.get_v.weight" : "attn.attns.0.get_v.weight");
            o.conv_b[i] = values_of(&l, i ? "attn.attns.1.get_v.bias" : "attn.attns.0.get_v.bias");
        }
    else o.table = values_of(&l, "attn.relative_position_bias_table");
    official_outputs(want, &o);
    printf("  %s on %d x %d\n", c->label, grid.rows, grid.columns);
    int ok = check_close_step("y", got.y, want, n, roundings(8), REAL_STEP);
    ok &= slopes_agree("dx", got.dx, NULL, o.x, n, &f);
    ok &= gradient_agrees(&l, &got, "attn.qkv.bias", o.qkv_b, &f);
    ok &= gradient_agrees(&l, &got, "attn.qkv.weight", o.qkv_w, &f);
    if (o.stripes) ok &= gradient_agrees(&l, &got, "attn.attns.0.get_v.weight", o.conv_w[0], &f);
    if (o.stripes) ok &= gradient_agrees(&l, &got, "attn.attns.1.get_v.weight", o.conv_w[1], &f);
    if (!o.stripes) ok &= gradient_agrees(&l, &got, "attn.relative_position_bias_table", o.table, &f);
    assert_true(ok);
    instance_close(&l);
    release_all();
}

static void test_filled_up(void **state) {
    (void)state;
    const Case windows = {"windows", "attn = swin\nwindow = 4\n", .least = 1},
               shifted = {"shifted windows", "attn = swin\nwindow = 4\n", .block = 1, .least = 1},
               whole = {"shifted windows as large as the own grid", "attn = swin\nwindow = 7\n", .block = 1, .least = 1},
               stripes = {"stripes", "attn = cswin\nstripe = 3\n", .stages = 2, .least = 1};
    official_case(&windows, draw_grid(&windows), (Official){.side = 4});
    official_case(&shifted, draw_grid(&shifted), (Official){.side = 4, .shift = 2});
    official_case(&shifted, (Grid){1, draw(1, 4), draw(1, 4)}, (Official){.side = 4, .shift = 2});
    official_case(&whole, draw_grid(&whole), (Official){.side = 6, .shift = 3});
    official_case(&stripes, draw_grid(&stripes), (Official){.side = 3, .stripes = true});
    official_case(&stripes, (Grid){1, 8, 10}, (Official){.side = 3, .stripes = true});
}

/* == Threads and allocations ====================================================================================== */

/* Compares up to rounding: gradients of parameters are the sum of one part per thread, and a library may also divide a
 * matrix product among threads. */
static void nearly_same(const char *what, const Case *c, Grid grid, const float *got, const float *want, size_t n) {
    double error = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        error += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        size += (double)want[i] * want[i];
    }
    if (!(error <= 1e-10 * size)) fail_msg("%s on %d x %d: %s", c->label, grid.rows, grid.columns, what);
}

static void test_threads(void **state) {
    (void)state;
    const int threads = omp_get_max_threads(), counts[] = {1, 2, 7};
    const int step_of = full_or_reduced("every n-th case, n =", 1, 9);
    for (int i = 0; i < CASES; i += step_of) {
        const Case *c = &cases[i];
        Grid grid = draw_grid(c);
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
            nearly_same("y", c, grid, results[t].y, results[0].y, n);
            nearly_same("dx", c, grid, results[t].dx, results[0].dx, n);
            for (int k = 0; k < params_count(&l.model.params); k++) {
                const Param *p = params_at(&l.model.params, k);
                nearly_same(p->name, c, grid, results[t].grads + p->offset, results[0].grads + p->offset, p->size);
            }
            instance_close(&l);
        }
        release_all();
    }
    omp_set_num_threads(threads);
}

/* Grids that were seen before allocate no memory.  The bounded table of matrix products (kernels/linear) occasionally
 * replaces entries by others of another size, so one pass without growth is enough: a leak would grow in every pass. */
static void test_no_allocation(void **state) {
    (void)state;
    enum { LEAST = 8, PASSES = 9 };
    const int step_of = full_or_reduced("every n-th case, n =", 1, 9);
    for (int i = 0; i < CASES; i += step_of) {
        const Case *c = &cases[i];
        Case sized = *c;
        Instance l;
        sized.least = LEAST;
        Grid grids[3] = {draw_grid(&sized), draw_grid(&sized), draw_grid(&sized)};
        size_t most = (size_t)(B * M) * (size_t)grid_tokens(largest), before = 0;
        bool still = false;
        real *x = upload_real(normals(most, 1), most), *dx = poisoned_real(most);
        instance_open(&l, c, own, &largest);
        fill(&l);
        for (int pass = 0; pass < PASSES; pass++) {
            for (int g = 0; g < 3; g++) {
                attention_set_grid(&l.attention, grids[g]);
                attention_forward(&l.attention, dx, x, B);
                attention_backward(&l.attention, dx, x, x, B);
            }
            size_t after = mallinfo2().uordblks;
            still |= pass > 0 && after <= before;
            before = after;
        }
        if (!still) fail_msg("%s: every pass allocates", c->label);
        instance_close(&l);
        release_all();
    }
}

/* More grids than the tables of transforms can hold: a transform that is computed again gives the same bits. */
static void test_many_grids(void **state) {
    (void)state;
    const Case *c = &(Case){"lisa by fft", "attn = lisa\nlisa_patterns = 1\nlisa_fft = 2d\nlisa_algo = fft\n", .least = 1};
    const Grid most = {1, 26, 26}, first = {1, 5, 7};
    const int step_of = full_or_reduced("every n-th grid, n =", 1, 60);
    size_t n = (size_t)(B * M) * (size_t)grid_tokens(first), all = (size_t)(B * M) * (size_t)grid_tokens(most);
    float *x = normals(n, 1), *dy = normals(n, 1);
    Instance l;
    instance_open(&l, c, own, &most);
    fill(&l);
    attention_set_grid(&l.attention, first);
    Result want = step(&l, x, dy);
    real *d_x = upload_real(normals(all, 1), all), *d_y = poisoned_real(all);
    for (int i = 0; i < 26 * 26; i += step_of) {
        attention_set_grid(&l.attention, (Grid){1, 1 + i / 26, 1 + i % 26});
        attention_forward(&l.attention, d_y, d_x, B);
    }
    attention_set_grid(&l.attention, first);
    Result got = step(&l, x, dy);
    same_bits("y", c, first, got.y, want.y, n);
    same_bits("dx", c, first, got.dx, want.dx, n);
    same_bits("gradients", c, first, got.grads, want.grads, l.model.params.total);
    instance_close(&l);
    release_all();
}

int main(void) {
    kernels_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_differences),
        cmocka_unit_test(test_filled_up),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_no_allocation),
        cmocka_unit_test(test_many_grids),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
