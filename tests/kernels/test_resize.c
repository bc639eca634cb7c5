/* Resizing, subsampling and the bias gradient of a convolution against their formulas in double. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <omp.h>

#include "tests/on_device.h"

/* == Nearest and bilinear ========================================================================================= */

/* The weight of source s in result i along one axis. */
typedef double Weight(int s, int i, int from, int to);

static double nearest_weight(int s, int i, int from, int to) { return (long long)i * from / to == s; }

static double linear_weight(int s, int i, int from, int to) {
    double at = fmax((i + 0.5) * from / to - 0.5, 0), low = fmin(floor(at), from - 1), fraction = at - low;
    double high = fmin(low + 1, from - 1);
    return (low == s) * (1 - fraction) + (high == s) * fraction;
}

/* Adds the resized x to y, and the gradient from dy to dx, term by term. */
static void formula(double *y, double *dx, const float *x, const float *dy, const Resize *s, Weight *weight) {
    for (int i = 0; i < s->to_rows * s->rows; i++)
        for (int j = 0; j < s->to_columns * s->columns; j++) {
            double w = weight(i % s->rows, i / s->rows, s->rows, s->to_rows) *
                       weight(j % s->columns, j / s->columns, s->columns, s->to_columns);
            if (w == 0) continue;
            for (int b = 0; b < s->B; b++) {
                size_t to = (size_t)((b * s->to_rows + i / s->rows) * s->to_columns + j / s->columns) * (size_t)s->C;
                size_t from = (size_t)((b * s->rows + i % s->rows) * s->columns + j % s->columns) * (size_t)s->C;
                for (int c = 0; c < s->C; c++) {
                    y[to + (size_t)c] += w * x[from + (size_t)c];
                    dx[from + (size_t)c] += w * dy[to + (size_t)c];
                }
            }
        }
}

typedef void ResizeCall(real *to, const real *add, const real *from, const Resize *shape);

static void resize_both(const char *name, Resize s, Weight *weight, ResizeCall *forward, ResizeCall *backward) {
    size_t nx = (size_t)s.B * (size_t)(s.rows * s.columns) * (size_t)s.C;
    size_t ny = (size_t)s.B * (size_t)(s.to_rows * s.to_columns) * (size_t)s.C;
    printf("%s, B %d, C %d, %d x %d to %d x %d\n", name, s.B, s.C, s.rows, s.columns, s.to_rows, s.to_columns);
    float *x = normals(nx, 1), *dy = normals(ny, 1), *y_add = normals(ny, 1), *dx_add = normals(nx, 1);
    real *d_x = upload_real(x, nx), *d_dy = upload_real(dy, ny), *d_y_add = upload_real(y_add, ny);
    real *d_dx_add = upload_real(dx_add, nx), *y = poisoned_real(ny), *dx = poisoned_real(nx);
    double *want_y = zeros(ny), *want_dx = zeros(nx);
    formula(want_y, want_dx, x, dy, &s, weight);
    forward(y, NULL, d_x, &s);
    backward(dx, NULL, d_dy, &s);
    assert_true(close_real("y", y, want_y, ny));
    assert_true(close_real("dx", dx, want_dx, nx));
    for (size_t i = 0; i < ny; i++) want_y[i] += y_add[i];
    for (size_t i = 0; i < nx; i++) want_dx[i] += dx_add[i];
    forward(y, d_y_add, d_x, &s);
    backward(dx, d_dx_add, d_dy, &s);
    assert_true(close_real("y, added", y, want_y, ny));
    assert_true(close_real("dx, added", dx, want_dx, nx));
    float *apart[] = {download_real(y, ny), download_real(dx, nx)};
    forward(d_y_add, d_y_add, d_x, &s);
    backward(d_dx_add, d_dx_add, d_dy, &s);
    assert_memory_equal(download_real(d_y_add, ny), apart[0], ny * sizeof(float));
    assert_memory_equal(download_real(d_dx_add, nx), apart[1], nx * sizeof(float));
    release_all();
}

static void test_sizes(void **state) {
    (void)state;
    const Resize cases[] = {
        {2, 5, 7, 9, 14, 18},   {1, 64, 4, 5, 8, 10},  {1, 3, 5, 6, 5, 6},   {2, 17, 1, 1, 4, 3}, {1, 150, 6, 7, 23, 29},
        {1, 100, 3, 4, 13, 17}, {2, 8, 11, 13, 5, 6},  {8, 1, 9, 8, 1, 1},   {1, 33, 2, 3, 3, 2}, {1, 4, 16, 12, 37, 5},
        {3, 72, 10, 7, 20, 14}, {1, 3, 2, 2, 64, 50},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        resize_both("nearest", cases[i], nearest_weight, nearest_add_forward, nearest_add_backward);
        resize_both("bilinear", cases[i], linear_weight, bilinear_forward, bilinear_backward);
    }
}

/* z[k,y,x] = 2 sin(0.7k + 1.1y + 0.4x), 3 classes, from 2 x 3 to 4 x 6 pixels: the resized logits, their softmax
 * cross-entropy, and its gradient with respect to z. */
static void test_digits(void **state) {
    (void)state;
    enum { K = 3, ROWS = 2, COLUMNS = 3, TO_ROWS = 4, TO_COLUMNS = 6, N = ROWS * COLUMNS * K, PIXELS = 24 };
    const Resize s = {1, K, ROWS, COLUMNS, TO_ROWS, TO_COLUMNS};
    float z[N], dy[PIXELS * K] = {0};
    for (int i = 0; i < N; i++) z[i] = (float)(2 * sin(0.7 * (i % K) + 1.1 * (i / K / COLUMNS) + 0.4 * (i / K % COLUMNS)));
    real *d_z = upload_real(z, N), *y = poisoned_real(PIXELS * K), *dz = poisoned_real(N);
    bilinear_forward(y, NULL, d_z, &s);
    const float *logits = download_real(y, PIXELS * K);
    double loss = 0, squares = 0;
    for (int p = 0; p < PIXELS; p++) {
        int label = (2 * (p / TO_COLUMNS) + p % TO_COLUMNS) % 4;
        double sum = 0;
        for (int k = 0; k < K; k++) sum += exp(logits[p * K + k]);
        if (label == 3) continue; /* ignored */
        loss += (log(sum) - logits[p * K + label]) / PIXELS;
        for (int k = 0; k < K; k++) dy[p * K + k] = (float)((exp(logits[p * K + k]) / sum - (k == label)) / PIXELS);
    }
    bilinear_backward(dz, NULL, upload_real(dy, PIXELS * K), &s);
    const float *got = download_real(dz, N);
    for (int i = 0; i < N; i++) squares += (double)got[i] * got[i];
    const double pairs[][2] = {
        {logits[(1 * TO_COLUMNS + 2) * K + 0], 0.92355718}, {logits[(3 * TO_COLUMNS + 5) * K + 2], -0.31549139},
        {loss, 0.93688173},                                 {got[0], -0.04002902},
        {got[(1 * COLUMNS + 2) * K + 1], -0.00827489},      {got[(0 * COLUMNS + 1) * K + 2], -0.00022920},
        {squares, 0.00692058},
    };
    for (int i = 0; i < 7; i++) {
        double allowed = sizeof(real) == 4 ? 1e-8 + 1e-6 * fabs(pairs[i][1]) : 0.01 * fabs(pairs[i][1]);
        double beyond = fabs(pairs[i][0] - pairs[i][1]) / allowed;
        printf("  digits: got %.8f want %.8f, %.2f of allowed\n", pairs[i][0], pairs[i][1], beyond);
        assert_true(beyond <= 1);
    }
    release_all();
}

/* == Even rows and columns ======================================================================================== */

static void test_subsample(void **state) {
    (void)state;
    const int sizes[][4] = {{2, 7, 9, 5}, {1, 8, 6, 33}, {3, 1, 1, 4}, {1, 1, 4, 72}, {2, 5, 2, 256}};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        int B = sizes[k][0], H = sizes[k][1], W = sizes[k][2], C = sizes[k][3], Ho = (H + 1) / 2, Wo = (W + 1) / 2;
        const ImageShape images = {B, H, W};
        size_t nx = (size_t)(B * H * W * C), ny = (size_t)(B * Ho * Wo * C);
        float *x = normals(nx, 1), *dy = normals(ny, 1), *before = normals(nx, 1);
        real *d_x = upload_real(x, nx), *d_dy = upload_real(dy, ny), *dx = upload_real(before, nx), *y = poisoned_real(ny);
        subsample_forward(y, d_x, &images, C);
        subsample_backward(dx, d_dy, &images, C);
        const float *got_y = download_real(y, ny), *got_dx = download_real(dx, nx);
        float *want_dx = keep(malloc(nx * sizeof *want_dx), false);
        memcpy(want_dx, before, nx * sizeof *want_dx);
        for (size_t i = 0; i < ny; i++) {
            int c = (int)i % C, p = (int)i / C, row = p / Wo % Ho, column = p % Wo, image = p / Wo / Ho;
            size_t at = (size_t)(((image * H + 2 * row) * W + 2 * column) * C + c);
            assert_true(got_y[i] == x[at]);
            want_dx[at] += dy[i];
        }
        rounded_real(want_dx, nx);
        assert_memory_equal(got_dx, want_dx, nx * sizeof *want_dx);
        release_all();
    }
}

/* == The bias of a convolution ==================================================================================== */

static void test_bias(void **state) {
    (void)state;
    const size_t sizes[][2] = {{1, 1}, {7, 5}, {1000, 80}, {333, 256}, {5000, 3}, {0, 12}};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        size_t n = sizes[k][0], out = sizes[k][1];
        const LinearShape s = {n, 0, (int)out, 0};
        float *dy = normals(n * out, 1), *before = normals(out, 1);
        double *want = zeros(out), *size = zeros(out);
        for (size_t i = 0; i < out; i++) add_term(&want[i], &size[i], before[i]);
        float *db = upload(before, out);
        real *d_dy = upload_real(dy, n * out);
        for (size_t i = 0; i < n * out; i++) add_term(&want[i % out], &size[i % out], dy[i]);
        linear_backward_bias(db, d_dy, &s);
        assert_true(check_sums("db", download(db, out), want, size, out, 1e-6));
        release_all();
    }
}

/* == Threads ====================================================================================================== */

static void test_threads(void **state) {
    (void)state;
    enum { C = 40, FROM = 11 * 13, TO = 22 * 29 };
    const Resize s = {1, C, 11, 13, 22, 29};
    const LinearShape rows = {TO, 0, C, 0};
    float *x = normals(FROM * C, 1), *dy = normals(TO * C, 1), *zero = normals(C, 0), *first[5] = {0};
    real *d_x = upload_real(x, FROM * C), *d_dy = upload_real(dy, TO * C);
    const int threads[] = {1, 2, 7}, usual = omp_get_max_threads();
    const size_t n[5] = {TO * C, FROM * C, TO * C, FROM * C, C};
    for (int i = 0; i < 3; i++) {
        omp_set_num_threads(threads[i]);
        real *to[] = {poisoned_real(n[0]), poisoned_real(n[1]), poisoned_real(n[2]), poisoned_real(n[3])};
        float *db = upload(zero, C);
        bilinear_forward(to[0], NULL, d_x, &s);
        bilinear_backward(to[1], NULL, d_dy, &s);
        nearest_add_forward(to[2], d_dy, d_x, &s);
        nearest_add_backward(to[3], d_x, d_dy, &s);
        linear_backward_bias(db, d_dy, &rows);
        for (int a = 0; a < 5; a++) {
            float *now = a < 4 ? download_real(to[a], n[a]) : download(db, C);
            if (!i) first[a] = now;
            assert_memory_equal(now, first[a], n[a] * sizeof(float));
        }
    }
    omp_set_num_threads(usual);
    release_all();
}

int main(void) {
    check_seed();
    kernels_init();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sizes), cmocka_unit_test(test_digits),
                                       cmocka_unit_test(test_subsample), cmocka_unit_test(test_bias),
                                       cmocka_unit_test(test_threads)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
