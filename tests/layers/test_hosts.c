/* The attention of hierarchical hosts (PVT, PVTv2, Swin, CSwin, and focused attention in them) and Swin's patch
 * merging, compared with results of the official code in float64.  All inputs are formulas: element k of the s-th
 * parameter is 0.3 sin(0.9 k + s), plus 1 for a norm's weight; the input is sin(0.31 n + 0.57 c) and the output's
 * gradient cos(0.23 n - 0.41 c) for token n and channel c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "layers/attention/stripes.h"
#include "layers/vit/merging.h"
#include "layers/vit/vit.h"
#include "tests/on_device.h"
#include "tests/settings.h"

/* Elements first .. end - 1 of a tensor (end 0: to its end) are parameter s of the formula. */
typedef struct {
    const char *name;
    int s;
    size_t first, end;
} Part;

/* The sum of squares of a gradient. */
typedef struct {
    const char *name;
    double squares;
} Norm;

enum { PARTS = 14, NORMS = 2 };

typedef struct {
    const char *label, *settings; /* NULL: patch merging, or a branch of CSwin's attention */
    Grid grid;
    int block, C, M;              /* index of the block in its stage; channels of input and output */
    Part parts[PARTS];
    double y[3], y_squares, dx, dx_squares; /* y[0,0], y[last,last], y[N/2,M/2]; dx[0,0] */
    Norm norms[NORMS];
} Case;

/* One branch of CSwin's attention, whose inputs are q, k and v. */
typedef struct {
    Grid stripe; /* no rows: the case is not a branch */
    bool focused;
} Branch;

typedef struct {
    Model model;
    Config config;
    Attention attention;
    Merging merging;
    StripeBranch branch;
    const Case *c;
    Branch of;
} Layer;

static bool is_branch(const Layer *l) { return l->of.stripe.rows > 0; }
static size_t outputs_of(const Layer *l) {
    size_t N = (size_t)grid_tokens(l->c->grid);
    return (l->c->settings || is_branch(l) ? N : N / 4) * (size_t)l->c->M;
}

static void layer_plan(Plan *plan, void *owner) {
    Layer *l = owner;
    if (l->c->settings) attention_plan(&l->attention, plan, 1);
    else if (is_branch(l)) stripes_plan(&l->branch, plan, 1);
    else merging_plan(&l->merging, plan, "", 1);
}

/* Branch `index` of attention with M channels and H heads; it has `heads` heads from head `first` on. */
static void branch_create(StripeBranch *s, const Config *config, Grid grid, Grid stripe, int M, int H, int index,
                          int first, int heads, bool focused) {
    Attention a = {.settings = config, .prefix = "attn.", .N = grid_tokens(grid), .M = M, .H = H, .D = M / H,
                   .grid = grid, .place.time_kernel = 1};
    stripes_create(s, &a, index, stripe.rows, stripe.columns, first, heads, focused);
}

static void layer_open(Layer *l, const Case *c, Branch of) {
    *l = (Layer){.c = c, .of = of};
    config_init(&l->config, NULL);
    const VitSettings *settings = vit_add_settings(&l->config);
    if (c->settings) {
        settings_read(&l->config, c->settings);
        attention_create(&l->attention, vit_attn(settings, 0), &l->config, "", (BlockPlace){c->block, 0, 1, c->block, 1, 1},
                         c->grid, false, c->M, 2);
        attention_declare(&l->attention, &l->model.params);
    } else if (is_branch(l)) {
        branch_create(&l->branch, &l->config, c->grid, of.stripe, c->M, 2, 0, 0, 2, of.focused);
        stripes_declare(&l->branch, &l->model.params);
    } else {
        merging_create(&l->merging, c->C, c->grid);
        merging_declare(&l->merging, &l->model.params, "attn.", c->M);
    }
    model_plan(&l->model, 1, true, layer_plan, l);
    model_allocate(&l->model);
    params_allocate(&l->model.params, true);
}

static void layer_close(Layer *l) {
    model_destroy(&l->model);
    if (l->c->settings) attention_destroy(&l->attention);
    config_free(&l->config);
    release_all();
}

static const Param *find(const Layer *l, const char *name) {
    char full[PARAM_NAME_SIZE];
    snprintf(full, sizeof full, "attn.%s", name);
    const Param *p = params_find(&l->model.params, full);
    if (!p) fail_msg("no tensor %s", full);
    return p;
}

static void fill(const Layer *l) {
    size_t filled = 0;
    for (const Part *part = l->c->parts; part < l->c->parts + PARTS && part->name; part++) {
        const Param *p = find(l, part->name);
        size_t n = (part->end ? part->end : p->size) - part->first;
        float *x = normals(n, 1);
        for (size_t k = 0; k < n; k++)
            x[k] = (float)(0.3 * sin(0.9 * (double)k + part->s) + !strcmp(part->name, "norm.weight"));
        device_upload(l->model.params.values + p->offset + part->first, x, n * sizeof *x);
        filled += n;
    }
    assert_int_equal(filled, l->model.params.parameters);
}

static double squares_of(const float *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
    return sum;
}

/* The expected numbers have eight decimals.  The error is divided by `size`, which makes sums of squares relative. */
static int near(const char *label, const char *what, double got, double want, double size) {
    double error = fabs(got - want) / size, allowed = roundings(8);
    bool ok = error <= allowed;
    printf("  %-24s %-28s %14.8f  want %14.8f  %.2f of allowed  %s\n", label, what, got, want, error / allowed,
           ok ? "ok" : "FAILED");
    return ok;
}

static int figures_agree(const Layer *l, const float *y, const float *dx) {
    const Case *c = l->c;
    size_t n_x = (size_t)grid_tokens(c->grid) * (size_t)c->C, n_y = outputs_of(l), M = (size_t)c->M;
    size_t middle = n_y / M / 2 * M + M / 2;
    double unit = sqrt(c->y_squares / (double)n_y), dx_unit = sqrt(c->dx_squares / (double)n_x);
    int ok = near(c->label, "y[0,0]", (double)y[0], c->y[0], unit);
    ok &= near(c->label, "y[last,last]", (double)y[n_y - 1], c->y[1], unit);
    ok &= near(c->label, "y[N/2,M/2]", (double)y[middle], c->y[2], unit);
    ok &= near(c->label, "sum y^2", squares_of(y, n_y), c->y_squares, c->y_squares);
    ok &= near(c->label, "dx[0,0]", (double)dx[0], c->dx, dx_unit);
    ok &= near(c->label, "sum dx^2", squares_of(dx, n_x), c->dx_squares, c->dx_squares);
    for (const Norm *norm = c->norms; norm < c->norms + NORMS && norm->name; norm++) {
        const Param *p = find(l, norm->name);
        const float *gradient = download(l->model.params.grads + p->offset, p->size);
        ok &= near(c->label, norm->name, squares_of(gradient, p->size), norm->squares, norm->squares);
    }
    return ok;
}

static void run_branch(const Case *c, Branch of) {
    Layer l;
    size_t n_x = (size_t)grid_tokens(c->grid) * (size_t)c->C;
    layer_open(&l, c, of);
    size_t n_y = outputs_of(&l);
    fill(&l);
    float *x = normals(n_x, 1), *dy = normals(n_y, 1);
    for (size_t i = 0; i < n_x; i++)
        x[i] = (float)sin(0.31 * (double)(i / (size_t)c->C) + 0.57 * (double)(i % (size_t)c->C));
    for (size_t i = 0; i < n_y; i++)
        dy[i] = (float)cos(0.23 * (double)(i / (size_t)c->M) - 0.41 * (double)(i % (size_t)c->M));
    real *d_x = upload_real(x, n_x), *d_dy = upload_real(dy, n_y), *d_y = poisoned_real(n_y), *d_dx = poisoned_real(n_x);
    if (c->settings) {
        attention_forward(&l.attention, d_y, d_x, 1);
        attention_backward(&l.attention, d_dx, d_dy, d_x, 1);
    } else if (is_branch(&l)) {
        stripes_forward(&l.branch, d_y, d_x, 1);
        stripes_backward(&l.branch, d_dx, d_dy, d_x, 1);
    } else {
        merging_forward(&l.merging, d_y, d_x, 1);
        merging_backward(&l.merging, d_dx, d_dy, d_x, 1);
    }
    assert_true(figures_agree(&l, download_real(d_y, n_y), download_real(d_dx, n_x)));
    layer_close(&l);
}

static void run_case(const Case *c) { run_branch(c, (Branch){{0, 0, 0}, false}); }

#define REDUCED_PARTS                                                                                           \
    {{"q.weight", 1, 0, 0}, {"q.bias", 2, 0, 0}, {"kv.weight", 3, 0, 0}, {"kv.bias", 4, 0, 0},                  \
     {"proj.weight", 5, 0, 0}, {"proj.bias", 6, 0, 0}, {"sr.weight", 7, 0, 0}, {"sr.bias", 8, 0, 0},            \
     {"norm.weight", 9, 0, 0}, {"norm.bias", 10, 0, 0}}
#define SWIN_PARTS                                                                                              \
    {{"relative_position_bias_table", 1, 0, 0}, {"qkv.weight", 2, 0, 0}, {"qkv.bias", 3, 0, 0},                 \
     {"proj.weight", 4, 0, 0}, {"proj.bias", 5, 0, 0}}

static void test_reduced(void **state) {
    (void)state;
    const Case cases[] = {
        {"spatial reduction", "attn = reduced\nreduction = 2\n", {1, 4, 6}, 0, 8, 8, REDUCED_PARTS,
         {1.00168629, 0.82141220, -0.29222150}, 189.25503272, 2.10158559, 120.80730666,
         {{"sr.weight", 1182.76337347}}},
        {"linear form", "attn = reduced\nreduction_cells = 7\n", {1, 9, 10}, 0, 8, 8, REDUCED_PARTS,
         {0.86432067, 0.62730422, -0.34702066}, 390.48055589, -0.01333031, 1.79916946, {{"sr.weight", 6.90892821}}},
        {"linear form, more cells", "attn = reduced\nreduction_cells = 7\n", {1, 5, 6}, 0, 8, 8, REDUCED_PARTS,
         {0.49581756, -0.05552516, -0.21262676}, 29.50862839, -0.31300003, 15.33071020, {{NULL, 0}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run_case(&cases[i]);
}

static void test_swin(void **state) {
    (void)state;
    const Case cases[] = {
        {"windows", "attn = swin\nwindow = 4\n", {1, 8, 8}, 0, 8, 8, SWIN_PARTS,
         {0.04428694, 0.10237090, 0.18778908}, 89.24931436, -0.13481593, 39.12757683,
         {{"relative_position_bias_table", 4.42565946}}},
        {"shifted windows", "attn = swin\nwindow = 4\n", {1, 8, 8}, 1, 8, 8, SWIN_PARTS,
         {0.04935884, -0.36561428, 0.27535091}, 92.90142290, -0.04033582, 69.91564230,
         {{"relative_position_bias_table", 14.41135903}}},
        {"padded, then shifted", "attn = swin\nwindow = 4\n", {1, 6, 7}, 1, 8, 8, SWIN_PARTS,
         {0.10067702, 0.01543524, -0.34536222}, 57.53293774, 0.02351168, 32.34265902,
         {{"relative_position_bias_table", 17.44250338}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run_case(&cases[i]);
}

/* The output of Swin's attention and its gradients for the input and the table: [2 N M + entries H], on the host. */
static float *swin_numbers(const char *settings, Grid grid, int block, size_t *count) {
    const Case c = {"", settings, grid, block, 8, 8, SWIN_PARTS, {0}, 0, 0, 0, {{NULL, 0}}};
    Layer l;
    size_t n = (size_t)grid_tokens(grid) * 8;
    layer_open(&l, &c, (Branch){{0, 0, 0}, false});
    fill(&l);
    const Param *table = find(&l, "relative_position_bias_table");
    float *x = normals(n, 1), *got = malloc((2 * n + table->size) * sizeof *got);
    for (size_t i = 0; i < n; i++) x[i] = (float)sin(0.31 * (double)(i / 8) + 0.57 * (double)(i % 8));
    real *d_x = upload_real(x, n), *d_y = poisoned_real(n), *d_dx = poisoned_real(n);
    attention_forward(&l.attention, d_y, d_x, 1);
    attention_backward(&l.attention, d_dx, d_x, d_x, 1);
    memcpy(got, download_real(d_y, n), n * sizeof *got);
    memcpy(got + n, download_real(d_dx, n), n * sizeof *got);
    memcpy(got + 2 * n, download(l.model.params.grads + table->offset, table->size), table->size * sizeof *got);
    *count = 2 * n + table->size;
    layer_close(&l);
    return got;
}

/* Along a side that is not longer than the window nothing is shifted, and a larger window gives the same result. */
static void test_large_windows(void **state) {
    (void)state;
    const struct {
        const char *settings;
        int block;
    } same[] = {{"attn = swin\nwindow = 5\n", 0}, {"attn = swin\nwindow = 5\n", 1}, {"attn = swin\nwindow = 9\n", 1},
                {"attn = swin\nwindow = 5\nshift = none\n", 1}};
    size_t count, other;
    float *want = swin_numbers(same[0].settings, (Grid){1, 5, 4}, 0, &count);
    for (size_t i = 1; i < sizeof same / sizeof *same; i++) {
        float *got = swin_numbers(same[i].settings, (Grid){1, 5, 4}, same[i].block, &other);
        assert_int_equal(other, count);
        assert_memory_equal(got, want, count * sizeof *got);
        free(got);
    }
    free(want);
    want = swin_numbers(same[0].settings, (Grid){1, 6, 4}, 0, &count); /* one row more: block 1 shifts */
    float *got = swin_numbers(same[0].settings, (Grid){1, 6, 4}, 1, &other);
    assert_int_equal(other, count);
    assert_memory_not_equal(got, want, count * sizeof *got);
    free(got);
    free(want);
}

static void test_merging(void **state) {
    (void)state;
    const Case merging = {"patch merging", NULL, {1, 4, 6}, 0, 4, 8,
                          {{"norm.weight", 1, 0, 0}, {"norm.bias", 2, 0, 0}, {"reduction.weight", 3, 0, 0}},
                          {0.18722422, 2.54708797, -1.36251385}, 141.92623966, -0.18040050, 1.55981135,
                          {{"reduction.weight", 352.08363991}}};
    run_case(&merging);
}

/* PVT's q and kv are the first and the other two thirds of qkv. */
static void test_focused(void **state) {
    (void)state;
    const Case cases[] = {
        {"focused in Swin", "attn = focused\n", {1, 4, 4}, 0, 8, 8,
         {{"qkv.weight", 1, 0, 0}, {"qkv.bias", 2, 0, 0}, {"proj.weight", 3, 0, 0}, {"proj.bias", 4, 0, 0},
          {"dwc.weight", 5, 0, 0}, {"dwc.bias", 6, 0, 0}, {"scale", 7, 0, 0}, {"positional_encoding", 8, 0, 0}},
         {-0.07655295, -0.34913133, 0.09399325}, 44.94895206, 1.29255789, 57.13214230,
         {{"scale", 38.18670533}, {"positional_encoding", 73.80916103}}},
        {"focused in PVT", "attn = focused\n", {1, 4, 6}, 0, 8, 8,
         {{"qkv.weight", 1, 0, 64}, {"qkv.bias", 2, 0, 8}, {"qkv.weight", 3, 64, 0}, {"qkv.bias", 4, 8, 0},
          {"proj.weight", 5, 0, 0}, {"proj.bias", 6, 0, 0}, {"dwc.weight", 7, 0, 0}, {"dwc.bias", 8, 0, 0},
          {"scale", 9, 0, 0}, {"positional_encoding", 10, 0, 0}},
         {0.31627770, -0.01792929, 0.27366823}, 51.12420710, -0.08708548, 19.39736177, {{"scale", 11.40103510}}},
        {"focused, reduced keys", "attn = focused-reduced\nreduction = 2\n", {1, 4, 6}, 0, 8, 8,
         {{"q.weight", 1, 0, 0}, {"q.bias", 2, 0, 0}, {"kv.weight", 3, 0, 0}, {"kv.bias", 4, 0, 0},
          {"proj.weight", 5, 0, 0}, {"proj.bias", 6, 0, 0}, {"dwc.weight", 7, 0, 0}, {"dwc.bias", 8, 0, 0},
          {"scale", 9, 0, 0}, {"positional_encoding", 10, 0, 0}, {"sr.weight", 11, 0, 0}, {"sr.bias", 12, 0, 0},
          {"norm.weight", 13, 0, 0}, {"norm.bias", 14, 0, 0}},
         {0.09524361, 0.49805163, -0.70805800}, 81.16338955, 3.24534527, 499.34900110,
         {{"sr.weight", 2794.32629830}}},
        {"focused, reduction 1", "attn = focused-reduced\n", {1, 4, 6}, 0, 8, 8,
         {{"q.weight", 1, 0, 0}, {"q.bias", 2, 0, 0}, {"kv.weight", 3, 0, 0}, {"kv.bias", 4, 0, 0},
          {"proj.weight", 5, 0, 0}, {"proj.bias", 6, 0, 0}, {"dwc.weight", 7, 0, 0}, {"dwc.bias", 8, 0, 0},
          {"scale", 9, 0, 0}, {"positional_encoding", 10, 0, 0}},
         {0.31627770, -0.01792929, 0.27366823}, 51.12420710, -0.08708548, 19.39736177, {{"scale", 11.40103510}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run_case(&cases[i]);
}

static void test_stripes(void **state) {
    (void)state;
#define STRIPE_PARTS {{"attns.0.get_v.weight", 1, 0, 0}, {"attns.0.get_v.bias", 2, 0, 0}}
    const Case cases[] = {
        {"vertical stripes", NULL, {1, 4, 4}, 0, 24, 8, STRIPE_PARTS, {-0.84410377, 0.93617631, 0.24256119},
         26.04450521, 0.32880076, 64.97036697, {{"attns.0.get_v.weight", 769.98056545}}},
        {"horizontal stripes", NULL, {1, 4, 4}, 0, 24, 8, STRIPE_PARTS, {-1.03543279, -0.27818588, 0.33078564},
         70.66568225, 0.01658751, 87.47907974, {{"attns.0.get_v.weight", 862.88876772}}},
        {"one stripe", NULL, {1, 4, 4}, 0, 24, 8, STRIPE_PARTS, {-0.84551087, 0.96549064, 0.19356038},
         30.04394101, 0.32828807, 65.14112114, {{"attns.0.get_v.weight", 1096.24354906}}},
        {"focused in CSwin", NULL, {1, 4, 4}, 0, 24, 8,
         {{"attns.0.get_v.weight", 1, 0, 0}, {"attns.0.get_v.bias", 2, 0, 0}, {"attns.0.dwc.weight", 3, 0, 0},
          {"attns.0.dwc.bias", 4, 0, 0}, {"attns.0.scale", 5, 0, 0}, {"attns.0.positional_encoding", 6, 0, 0}},
         {-1.17269087, 2.00631074, -0.45875038}, 79.39040915, 0, 195.03100538,
         {{"attns.0.positional_encoding", 83.57472215}}},
    };
    const Branch branches[] = {{{1, 4, 2}, false}, {{1, 2, 4}, false}, {{1, 4, 4}, false}, {{1, 4, 4}, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run_branch(&cases[i], branches[i]);
}

/* == Whole stripes ================================================================================================ */

/* Branches that share the heads and have one stripe as large as the grid. */
enum { WHOLE_B = 2, WHOLE_H = 4, WHOLE_M = 24, WHOLE_N = 20, WHOLE_Y = WHOLE_B * WHOLE_N * WHOLE_M, BRANCHES = 2 };
typedef struct {
    Model model;
    StripeBranch branches[BRANCHES];
    int count;
} Whole;

static void whole_plan(Plan *plan, void *owner) {
    Whole *w = owner;
    for (int i = 0; i < w->count; i++) stripes_plan(&w->branches[i], plan, WHOLE_B);
}

/* Computes mix, dqkv and the gradient of the convolution [10,M] with `count` branches. */
static void whole_numbers(float *mix, float *dqkv, float *dconvolution, const Config *config, int count,
                          const float *convolution, float *qkv, float *dmix) {
    const Grid grid = {1, 4, 5};
    Whole w = {.count = count};
    int heads = WHOLE_H / count, C = WHOLE_M / count;
    for (int i = 0; i < count; i++) {
        branch_create(&w.branches[i], config, grid, grid, WHOLE_M, WHOLE_H, i, i * heads, heads, false);
        stripes_declare(&w.branches[i], &w.model.params);
    }
    model_plan(&w.model, WHOLE_B, true, whole_plan, &w);
    model_allocate(&w.model);
    params_allocate(&w.model.params, true);
    for (int i = 0; i < count; i++) {
        const DepthwiseLayer *lepe = &w.branches[i].lepe;
        device_upload(lepe->w, convolution + 9 * i * C, 9 * (size_t)C * sizeof *convolution);
        device_upload(lepe->b, convolution + 9 * WHOLE_M + i * C, (size_t)C * sizeof *convolution);
    }
    real *d_qkv = upload_real(qkv, 3 * WHOLE_Y), *d_dmix = upload_real(dmix, WHOLE_Y);
    real *d_mix = poisoned_real(WHOLE_Y), *d_dqkv = poisoned_real(3 * WHOLE_Y);
    for (int i = 0; i < count; i++) stripes_forward(&w.branches[i], d_mix, d_qkv, WHOLE_B);
    for (int i = 0; i < count; i++) stripes_backward(&w.branches[i], d_dqkv, d_dmix, d_qkv, WHOLE_B);
    memcpy(mix, download_real(d_mix, WHOLE_Y), WHOLE_Y * sizeof *mix);
    memcpy(dqkv, download_real(d_dqkv, 3 * WHOLE_Y), 3 * WHOLE_Y * sizeof *dqkv);
    for (int i = 0; i < count; i++) {
        const DepthwiseLayer *lepe = &w.branches[i].lepe;
        device_download(dconvolution + 9 * i * C, lepe->dw, 9 * (size_t)C * sizeof *dconvolution);
        device_download(dconvolution + 9 * WHOLE_M + i * C, lepe->db, (size_t)C * sizeof *dconvolution);
    }
    model_destroy(&w.model);
}

/* Two branches whose stripe is the whole grid have the same bits as one branch with all heads, and without the
 * convolution of v the same bits as softmax attention. */
static void test_whole_stripes(void **state) {
    (void)state;
    Config config;
    float *numbers[2][3];
    const float *convolution = normals(10 * WHOLE_M, 1), *none = keep(calloc(10 * WHOLE_M, sizeof(float)), false);
    float *qkv = normals(3 * WHOLE_Y, 1), *dmix = normals(WHOLE_Y, 1);
    config_init(&config, NULL);
    vit_add_settings(&config);
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 3; k++) numbers[i][k] = keep(check_poison(3 * WHOLE_Y), false);
    for (int i = 0; i < 2; i++)
        whole_numbers(numbers[i][0], numbers[i][1], numbers[i][2], &config, 1 + i, convolution, qkv, dmix);
    assert_memory_equal(numbers[1][0], numbers[0][0], WHOLE_Y * sizeof(float));
    assert_memory_equal(numbers[1][1], numbers[0][1], 3 * WHOLE_Y * sizeof(float));
    assert_memory_equal(numbers[1][2], numbers[0][2], 10 * WHOLE_M * sizeof(float));

    AttentionShape shape = {WHOLE_B, WHOLE_N, WHOLE_H, WHOLE_M / WHOLE_H};
    whole_numbers(numbers[0][0], numbers[0][1], numbers[0][2], &config, 1, none, qkv, dmix);
    real *d_qkv = upload_real(qkv, 3 * WHOLE_Y), *y = poisoned_real(WHOLE_Y), *dqkv = poisoned_real(3 * WHOLE_Y);
    float *lse = poisoned(WHOLE_B * WHOLE_H * WHOLE_N);
    kernels_reserve(softmax_attention_workspace(shape.N, shape.D));
    softmax_attention_forward(y, lse, d_qkv, &shape);
    softmax_attention_backward(dqkv, upload_real(dmix, WHOLE_Y), y, lse, d_qkv, &shape);
    assert_memory_equal(numbers[0][0], download_real(y, WHOLE_Y), WHOLE_Y * sizeof(float));
    assert_memory_equal(numbers[0][1], download_real(dqkv, 3 * WHOLE_Y), 3 * WHOLE_Y * sizeof(float));
    config_free(&config);
    release_all();
}

/* == Pictures of stripes ========================================================================================== */

static void set(const Layer *l, const char *name, const float *values) {
    const Param *p = find(l, name);
    device_upload(l->model.params.values + p->offset, values, p->size * sizeof *values);
}

/* The values are the inputs, and the convolutions and the output projection do nothing, so the output is the sum of the
 * inputs times the pictured weights.  Tokens of other stripes have no weight: stripes are vertical in head 0 and
 * horizontal in head 1. */
static void picture_case(const char *settings, bool focused) {
    enum { ROWS = 4, COLUMNS = 6, N = ROWS * COLUMNS, M = 8, D = 4, STRIPE = 2 };
    const Case c = {"", settings, {1, ROWS, COLUMNS}, 0, M, M, {{NULL, 0, 0, 0}}, {0}, 0, 0, 0, {{NULL, 0}}};
    Layer l;
    layer_open(&l, &c, (Branch){{0, 0, 0}, false});
    float *x = normals(N * M, 1), *qkv = normals(3 * M * M, 1), identity[M * M] = {0}, weights[N];
    for (int i = 0; i < M; i++) identity[i * M + i] = 1;
    memcpy(qkv + 2 * M * M, identity, sizeof identity);
    set(&l, "qkv.weight", qkv);
    set(&l, "proj.weight", identity);
    if (focused) {
        set(&l, "attns.0.positional_encoding", normals(N * M, 1));
        set(&l, "attns.1.positional_encoding", normals(N * M, 1));
    }
    real *d_x = upload_real(x, N * M), *d_y = poisoned_real(N * M);
    attention_forward(&l.attention, d_y, d_x, 1);
    double *want = zeros(N * M);
    for (int h = 0; h < 2; h++)
        for (int n = 0; n < N; n++) {
            l.attention.op->weights(&l.attention, weights, 0, h, n);
            for (int m = 0; m < N; m++) {
                bool same = h == 0 ? n % COLUMNS / STRIPE == m % COLUMNS / STRIPE
                                   : n / COLUMNS / STRIPE == m / COLUMNS / STRIPE;
                if (!same) assert_true(weights[m] == 0);
                for (int i = h * D; i < (h + 1) * D; i++) want[n * M + i] += (double)weights[m] * x[m * M + i];
            }
        }
    assert_true(close_rounded("pictured weights times v", d_y, want, N * M));
    layer_close(&l);
}

static void test_pictures(void **state) {
    (void)state;
    picture_case("attn = cswin\nstripe = 2\n", false);
    picture_case("attn = cswin-focused\nstripe = 2\n", true);
}

int main(void) {
    kernels_init();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_reduced), cmocka_unit_test(test_swin),
                                       cmocka_unit_test(test_large_windows),
                                       cmocka_unit_test(test_merging), cmocka_unit_test(test_focused),
                                       cmocka_unit_test(test_stripes), cmocka_unit_test(test_whole_stripes),
                                       cmocka_unit_test(test_pictures)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
