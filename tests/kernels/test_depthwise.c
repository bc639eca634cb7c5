/* The depthwise convolution of the token grid against its formula in double, and its kernel in AttentionOp.spatial of
 * focused attention. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "layers/vit/vit.h"
#include "tests/on_device.h"
#include "tests/settings.h"

typedef struct {
    int B;
    Depthwise shape;
    bool bias, add;
} Case;

typedef struct {
    double *y, *dx, *dw, *db;
} Reference;

/* Visits every pair of a token and its neighbour once. */
static void reference(Reference r, const float *x, const float *dy, const float *w, const float *b, Case k) {
    const Depthwise *s = &k.shape;
    int T = s->grid.frames, Hg = s->grid.rows, Wg = s->grid.columns, kt = s->kt ? s->kt : 1, area = s->k * s->k;
    for (int image = 0; image < k.B; image++)
        for (int t = 0; t < T * Hg * Wg; t++)
            for (int c = 0; c < s->C; c++) {
                size_t N = (size_t)T * Hg * Wg, out = (image * N + t) * s->y_row + c;
                int p = c % s->period;
                if (b) r.y[out] += b[p];
                r.db[p] += dy[out];
                for (int tap = 0; tap < kt * area; tap++) {
                    int f = t / (Hg * Wg) + tap / area - kt / 2;
                    int i = t / Wg % Hg + tap / s->k % s->k - s->k / 2, j = t % Wg + tap % s->k - s->k / 2;
                    if (f < 0 || f >= T || i < 0 || i >= Hg || j < 0 || j >= Wg) continue;
                    size_t in = (image * N + ((size_t)f * Hg + i) * Wg + j) * s->x_row + c;
                    size_t at = (size_t)p * kt * area + tap;
                    r.y[out] += (double)w[at] * x[in];
                    r.dx[in] += (double)w[at] * dy[out];
                    r.dw[at] += (double)x[in] * dy[out];
                }
            }
}

static void depthwise_case(Case k) {
    const Depthwise *s = &k.shape;
    size_t tokens = (size_t)k.B * grid_tokens(s->grid), nx = tokens * s->x_row, ny = tokens * s->y_row;
    size_t nw = (size_t)s->period * (s->kt ? s->kt : 1) * s->k * s->k;
    printf("depthwise B %d grid %dx%dx%d C %d k %dx%d period %d rows %d %d%s%s\n", k.B, s->grid.frames, s->grid.rows,
           s->grid.columns, s->C, s->kt, s->k, s->period, s->x_row, s->y_row, k.bias ? ", bias" : "",
           k.add ? ", added to" : "");
    float *x = normals(nx, 1), *dy = normals(ny, 1), *w = normals(nw, 1), *b = normals(s->period, 1);
    float *y_before = normals(ny, 1), *dx_before = normals(nx, 1), *dw = normals(nw, 1), *db = normals(s->period, 1);
    real *d_x = upload_real(x, nx), *d_dy = upload_real(dy, ny), *d_y = upload_real(y_before, ny),
         *d_dx = upload_real(dx_before, nx);
    float *d_w = upload(w, nw), *d_b = upload(b, s->period), *d_dw = upload(dw, nw), *d_db = upload(db, s->period);
    Reference r = {zeros(ny), zeros(nx), zeros(nw), zeros(s->period)};
    for (size_t i = 0; i < nw; i++) r.dw[i] = dw[i];
    for (int i = 0; i < s->period; i++) r.db[i] = db[i];
    reference(r, x, dy, w, k.bias ? b : NULL, k);
    for (size_t i = 0; i < ny; i++) /* numbers between the rows do not change */
        if (k.add || i % s->y_row >= (size_t)s->C) r.y[i] += y_before[i];
    for (size_t i = 0; i < nx; i++)
        if (k.add || i % s->x_row >= (size_t)s->C) r.dx[i] += dx_before[i];
    kernels_reserve(depthwise_workspace(s));
    depthwise_forward(d_y, k.add ? d_y : NULL, d_x, d_w, k.bias ? d_b : NULL, s, k.B);
    depthwise_backward(d_dx, k.add ? d_dx : NULL, d_dw, k.bias ? d_db : NULL, d_dy, d_x, d_w, s, k.B);
    assert_true(close_real("y", d_y, r.y, ny));
    assert_true(close_real("dx", d_dx, r.dx, nx));
    assert_true(close_float("dw", d_dw, r.dw, nw));
    if (k.bias) assert_true(close_float("db", d_db, r.db, s->period));
    float *again_dw = upload(dw, nw);
    depthwise_backward(d_dx, NULL, again_dw, NULL, d_dy, d_x, d_w, s, k.B);
    assert_memory_equal(download(again_dw, nw), download(d_dw, nw), nw * sizeof(float));
    release_all();
}

static void test_depthwise(void **state) {
    (void)state;
    const Case cases[] = {
        {3, {{1, 5, 7}, 15, 5, 5, 45, 15, 0}, true, true},   {2, {{1, 5, 7}, 12, 3, 12, 12, 12, 1}, false, false},
        {1, {{1, 1, 1}, 1, 7, 1, 1, 1, 1}, true, false},     {2, {{1, 9, 17}, 40, 7, 40, 40, 43, 1}, true, true},
        {1, {{1, 3, 2}, 33, 1, 33, 33, 33, 0}, true, false}, {2, {{1, 16, 16}, 48, 3, 16, 50, 48, 1}, true, true},
        {1, {{1, 1, 20}, 5, 5, 5, 5, 5, 0}, false, true},    {2, {{3, 5, 7}, 15, 5, 5, 45, 15, 3}, true, true},
        {1, {{3, 5, 7}, 17, 7, 17, 17, 17, 3}, true, false}, {2, {{2, 3, 4}, 12, 3, 12, 14, 13, 5}, false, true},
        {2, {{4, 9, 3}, 8, 3, 8, 8, 8, 0}, true, false},     {1, {{5, 2, 9}, 33, 1, 11, 33, 33, 7}, true, false},
        {3, {{1, 4, 5}, 6, 3, 6, 6, 6, 3}, true, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) depthwise_case(cases[i]);
}

/* == With a stride ================================================================================================ */

/* Visits every pair of a result and a token of its window once. */
static void strided_reference(Reference r, const float *x, const float *dy, const float *w, int B,
                              const StridedDepthwise *d) {
    const Depthwise *s = &d->window;
    int T = s->grid.frames, Hg = s->grid.rows, Wg = s->grid.columns, kt = s->kt ? s->kt : 1, area = s->k * s->k;
    int Ho = (Hg + d->stride - 1) / d->stride, Wo = (Wg + d->stride - 1) / d->stride;
    for (int place = 0; place < B * T * Ho * Wo; place++)
        for (int c = 0; c < s->C; c++)
            for (int tap = 0; tap < kt * area; tap++) {
                int image = place / (T * Ho * Wo), f = place / (Ho * Wo) % T + tap / area - kt / 2;
                int o = place / Wo % Ho, p = place % Wo, within = tap % area;
                int i = o * d->stride + within / s->k - s->k / 2, j = p * d->stride + within % s->k - s->k / 2;
                if (f < 0 || f >= T || i < 0 || i >= Hg || j < 0 || j >= Wg) continue;
                size_t in = ((((size_t)image * T + f) * Hg + i) * Wg + j) * s->x_row + c;
                size_t out = (size_t)place * s->y_row + c, at = (size_t)c * kt * area + tap;
                r.y[out] += (double)w[at] * x[in];
                r.dx[in] += (double)w[at] * dy[out];
                r.dw[at] += (double)x[in] * dy[out];
            }
}

static void strided_case(int B, StridedDepthwise d) {
    const Depthwise *s = &d.window;
    size_t places = (size_t)s->grid.frames * convolution_side(s->grid.rows, d.stride) *
                    convolution_side(s->grid.columns, d.stride);
    size_t nx = (size_t)B * grid_tokens(s->grid) * s->x_row, ny = B * places * s->y_row,
           nw = (size_t)s->C * depthwise_taps(s);
    printf("depthwise B %d grid %dx%dx%d C %d k %dx%d stride %d rows %d %d\n", B, s->grid.frames, s->grid.rows,
           s->grid.columns, s->C, s->kt, s->k, d.stride, s->x_row, s->y_row);
    float *x = normals(nx, 1), *dy = normals(ny, 1), *w = normals(nw, 1), *dw = normals(nw, 1);
    float *y_before = normals(ny, 1), *dx_before = normals(nx, 1);
    real *d_x = upload_real(x, nx), *d_dy = upload_real(dy, ny), *d_y = upload_real(y_before, ny),
         *d_dx = upload_real(dx_before, nx);
    float *d_w = upload(w, nw), *d_dw = upload(dw, nw);
    Reference r = {zeros(ny), zeros(nx), zeros(nw), NULL};
    for (size_t i = 0; i < nw; i++) r.dw[i] = dw[i];
    strided_reference(r, x, dy, w, B, &d);
    for (size_t i = 0; i < ny; i++) /* numbers between the rows do not change */
        if (i % s->y_row >= (size_t)s->C) r.y[i] += y_before[i];
    for (size_t i = 0; i < nx; i++)
        if (i % s->x_row >= (size_t)s->C) r.dx[i] += dx_before[i];
    kernels_reserve(depthwise_workspace(s));
    strided_depthwise_forward(d_y, d_x, d_w, &d, B);
    strided_depthwise_backward(d_dx, d_dw, d_dy, d_x, d_w, &d, B);
    assert_true(close_real("y", d_y, r.y, ny));
    assert_true(close_real("dx", d_dx, r.dx, nx));
    assert_true(close_float("dw", d_dw, r.dw, nw));
    release_all();
}

static void test_strided(void **state) {
    (void)state;
    strided_case(3, (StridedDepthwise){{{1, 5, 7}, 30, 3, 30, 45, 30, 0}, 2});
    strided_case(2, (StridedDepthwise){{{1, 8, 9}, 33, 3, 33, 33, 40, 0}, 3});
    strided_case(1, (StridedDepthwise){{{1, 6, 5}, 16, 3, 16, 16, 16, 0}, 4}); /* tokens that are in no window */
    strided_case(2, (StridedDepthwise){{{1, 9, 4}, 5, 5, 5, 5, 5, 0}, 2});
    strided_case(1, (StridedDepthwise){{{1, 4, 3}, 17, 7, 17, 20, 17, 0}, 6});
    strided_case(2, (StridedDepthwise){{{1, 1, 1}, 1, 3, 1, 1, 1, 0}, 2});
    strided_case(1, (StridedDepthwise){{{1, 4, 6}, 8, 1, 8, 8, 8, 0}, 1});
    strided_case(2, (StridedDepthwise){{{3, 5, 7}, 30, 3, 30, 45, 30, 3}, 2});
    strided_case(3, (StridedDepthwise){{{4, 6, 5}, 17, 3, 17, 17, 20, 0}, 3}); /* every frame separately */
    strided_case(1, (StridedDepthwise){{{2, 4, 3}, 5, 5, 5, 7, 5, 7}, 2}); /* a window longer than the clip */
    strided_case(1, (StridedDepthwise){{{16, 2, 2}, 3, 7, 3, 3, 3, 15}, 1});
    strided_case(300, (StridedDepthwise){{{1, 3, 2}, 4, 3, 4, 4, 4, 0}, 2}); /* several images per block */
}

static void set(Vit *vit, const char *name, const float *values) {
    const Param *p = params_find(&vit->model.params, name);
    if (!p) fail_msg("no tensor %s", name);
    device_upload(vit->model.params.values + p->offset, values, p->size * sizeof *values);
}

/* The attention weights in pictures plus the kernel of the convolution, multiplied with v, give the output.  With one
 * channel per head, the kernel is that channel's; the projections are identities, so that v = x. */
static void test_pictured_weights(void **state) {
    (void)state;
    enum { B = 2, Hg = 5, Wg = 7, N = Hg * Wg, M = 3 };
    Vit vit;
    Config config;
    config_init(&config, NULL);
    vit_add_settings(&config);
    settings_read(&config, "img_size = 5x7\npatch_size = 1\nnum_classes = 4\ndim = 3\ndepth = 1\nheads = 3\n"
                           "mlp_ratio = 2\npos_embed = none\nattn = focused\n");
    vit_create(&vit, &config);
    vit_plan(&vit, B, true);
    vit_allocate(&vit);
    params_allocate(&vit.model.params, true);
    params_initialize(&vit.model.params, 3);
    float *x = normals(B * N * M, 1), *kernel = normals(25, 1), *qkv = normals(3 * M * M, 1), bias[1] = {0.25f};
    float identity[M * M] = {0}, weights[N], place[N];
    for (int c = 0; c < M; c++) {
        identity[c * M + c] = 1;
        for (int in = 0; in < M; in++) qkv[(2 * M + c) * M + in] = c == in;
    }
    set(&vit, "blocks.0.attn.qkv.weight", qkv);
    set(&vit, "blocks.0.attn.proj.weight", identity);
    set(&vit, "blocks.0.attn.dwc.weight", kernel);
    set(&vit, "blocks.0.attn.dwc.bias", bias);
    assert_true(params_find(&vit.model.params, "blocks.0.attn.positional_encoding")->decay);
    assert_true(params_find(&vit.model.params, "blocks.0.attn.scale")->decay);
    Attention *a = &vit.trunk.stages[0].blocks[0].attention;
    real *d_x = upload_real(x, B * N * M), *d_y = poisoned_real(B * N * M);
    attention_forward(a, d_y, d_x, B);
    double *want = zeros(B * N * M);
    for (int b = 0; b < B; b++)
        for (int h = 0; h < M; h++)
            for (int n = 0; n < N; n++) {
                a->op->weights(a, weights, b, h, n);
                a->op->spatial(a, place, b, h, n);
                want[(b * N + n) * M + h] = bias[0];
                for (int m = 0; m < N; m++)
                    want[(b * N + n) * M + h] += ((double)weights[m] + place[m]) * x[(b * N + m) * M + h];
            }
    assert_true(close_rounded("weights and convolution times v", d_y, want, B * N * M));
    vit_destroy(&vit);
    config_free(&config);
    release_all();
}

int main(void) {
    kernels_init();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_depthwise), cmocka_unit_test(test_strided),
                                       cmocka_unit_test(test_pictured_weights)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
