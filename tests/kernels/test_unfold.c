/* Unfolding of convolution windows, and the residual sum, against their formulas in double. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/on_device.h"

typedef struct {
    int B;
    Unfold shape;
} Case;

static int frames_of(const Unfold *s) { return s->frames ? s->frames : 1; }

/* f: the frame, counted over all clips, or the image. */
static size_t input_at(const Unfold *s, int f, int m, int y, int x) {
    return s->planes ? ((((size_t)f * s->C + m) * s->Hi + y) * s->Wi + x)
                     : ((((size_t)f * s->Hi + y) * s->Wi + x) * s->C + m);
}

/* Visits every column of every window once. */
static void reference(double *cols, double *dx, const float *x, const float *dcols, Case k) {
    const Unfold *s = &k.shape;
    Grid windows = unfold_grid(s);
    int F = frames_of(s), kt = s->frames ? s->kt : 1;
    for (size_t at = 0, n = (size_t)k.B * grid_tokens(windows) * s->C * kt * s->k * s->k; at < n; at++) {
        size_t left = at;
        int c = (int)(left % s->k), r = (int)((left /= s->k) % s->k), t = (int)((left /= s->k) % kt);
        int m = (int)((left /= kt) % s->C), j = (int)((left /= s->C) % windows.columns);
        int i = (int)((left /= windows.columns) % windows.rows), h = (int)((left /= windows.rows) % windows.frames);
        int b = (int)(left / windows.frames), f = s->frames ? h * s->stride_t + t - kt / 2 : 0;
        int yi = i * s->stride + r - s->pad, xi = j * s->stride + c - s->pad;
        if (f < 0 || f >= F || yi < 0 || yi >= s->Hi || xi < 0 || xi >= s->Wi) continue;
        cols[at] = x[input_at(s, b * F + f, m, yi, xi)];
        dx[input_at(s, b * F + f, m, yi, xi)] += dcols[at];
    }
}

static void unfold_case(Case k) {
    const Unfold *s = &k.shape;
    Grid windows = unfold_grid(s);
    size_t n = (size_t)k.B * frames_of(s) * s->C * s->Hi * s->Wi;
    size_t n_cols = (size_t)k.B * grid_tokens(windows) * s->C * unfold_taps(s);
    printf("unfold B %d C %d %d frames of %dx%d %s k %dx%d stride %d %d pad %d: %dx%dx%d windows\n", k.B, s->C,
           s->frames, s->Hi, s->Wi, s->planes ? "planes" : "tokens", s->kt, s->k, s->stride_t, s->stride, s->pad, windows.frames,
           windows.rows, windows.columns);
    float *x = normals(n, 1), *dcols = normals(n_cols, 1);
    real *d_x = upload_real(x, n), *d_dcols = upload_real(dcols, n_cols);
    real *d_cols = poisoned_real(n_cols), *d_dx = poisoned_real(n);
    double *cols = zeros(n_cols), *dx = zeros(n);
    reference(cols, dx, x, dcols, k);
    unfold_forward(d_cols, d_x, s, k.B);
    unfold_backward(d_dx, d_dcols, s, k.B);
    assert_true(close_real("cols", d_cols, cols, n_cols));
    assert_true(close_real("dx", d_dx, dx, n));
    release_all();
}

static void test_unfold(void **state) {
    (void)state;
    const Case cases[] = {
        {2, {13, 18, 3, 7, 4, 3, true, 0, 0, 0}},  {3, {5, 7, 10, 3, 2, 1, false, 0, 0, 0}},
        {1, {1, 1, 4, 3, 2, 1, false, 0, 0, 0}},   {2, {6, 4, 5, 2, 2, 0, false, 0, 0, 0}},
        {1, {9, 8, 33, 3, 1, 1, false, 0, 0, 0}},  {2, {8, 8, 3, 4, 4, 0, true, 0, 0, 0}},
        {1, {11, 10, 2, 5, 3, 0, false, 0, 0, 0}}, {1, {3, 20, 1, 1, 2, 0, true, 0, 0, 0}},
        {1, {2, 2, 3, 7, 4, 3, true, 0, 0, 0}},    {2, {11, 9, 37, 5, 5, 0, false, 0, 0, 0}},
        {1, {8, 16, 32, 8, 8, 0, false, 0, 0, 0}}, {1, {16, 21, 2, 17, 3, 2, true, 0, 0, 0}},
        {2, {6, 4, 3, 2, 2, 0, true, 8, 3, 2}},    {2, {9, 7, 3, 7, 4, 3, true, 7, 3, 2}},
        {1, {5, 3, 5, 3, 2, 1, false, 3, 5, 1}},   {3, {2, 4, 2, 2, 2, 0, false, 1, 3, 2}},
        {2, {5, 7, 3, 1, 1, 0, true, 0, 0, 0}},    {3, {1, 2, 5, 1, 1, 0, true, 0, 0, 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) unfold_case(cases[i]);
}

/* Unfolding windows that do not overlap gives patches. */
static void test_patches(void **state) {
    (void)state;
    enum { B = 2, P = 3, H = 9, W = 6, SIZE = B * 3 * H * W };
    float *x = normals(SIZE, 1);
    real *d_x = upload_real(x, SIZE), *a = poisoned_real(SIZE), *b = poisoned_real(SIZE);
    Unfold shape = {H, W, 3, P, P, 0, true, 0, 0, 0};
    patchify(a, d_x, &(ImageShape){B, H, W}, P);
    unfold_forward(b, d_x, &shape, B);
    assert_memory_equal(download_real(a, SIZE), download_real(b, SIZE), SIZE * sizeof(float));
    release_all();
}

/* Cells of 2 x 2 tokens are windows of that size with the columns (column, row, channel). */
static void cells_case(int B, Grid grid, int C) {
    size_t n = (size_t)B * grid_tokens(grid) * C;
    float *x = normals(n, 1), *want = calloc(n, sizeof *want);
    real *d_x = upload_real(x, n), *cells = poisoned_real(n), *cols = poisoned_real(n), *back = poisoned_real(n);
    printf("cells B %d %dx%d C %d\n", B, grid.rows, grid.columns, C);
    token_cells_forward(cells, d_x, grid, B, C);
    unfold_forward(cols, d_x, &(Unfold){grid.rows, grid.columns, C, 2, 2, 0, false, 0, 0, 0}, B);
    token_cells_backward(back, cells, grid, B, C);
    const float *unfolded = download_real(cols, n);
    for (size_t i = 0; i < n; i++) { /* i = (cell, channel, row, column) */
        size_t cell = i / (4 * (size_t)C), c = i / 4 % (size_t)C, r = i / 2 % 2, column = i % 2;
        want[((4 * cell) + 2 * column + r) * (size_t)C + c] = unfolded[i];
    }
    assert_memory_equal(download_real(cells, n), want, n * sizeof *want);
    assert_memory_equal(download_real(back, n), download_real(d_x, n), n * sizeof *want);
    free(want);
    release_all();
}

static void test_cells(void **state) {
    (void)state;
    cells_case(2, (Grid){1, 4, 6}, 5);
    cells_case(1, (Grid){1, 2, 2}, 16);
    cells_case(3, (Grid){1, 6, 2}, 24);
    cells_case(1, (Grid){1, 8, 4}, 1);
}

static void residual_case(int B, int N, int M, bool scaled) {
    size_t n = (size_t)B * N, size = n * M;
    float *x = normals(size, 1), *f = normals(size, 1), *scale = normals(B, 1);
    real *d_x = upload_real(x, size), *d_f = upload_real(f, size), *d_y = poisoned_real(size),
         *d_df = poisoned_real(size);
    float *d_scale = upload(scale, B);
    const RowScale factors = {scaled ? d_scale : NULL, N, NULL};
    double *y = zeros(size), *df = zeros(size);
    printf("residual sum B %d N %d M %d%s\n", B, N, M, scaled ? ", scaled" : "");
    for (size_t i = 0; i < size; i++) {
        double s = scaled ? scale[i / ((size_t)N * M)] : 1;
        y[i] = x[i] + s * f[i];
        df[i] = s * f[i];
    }
    residual_forward(d_y, d_x, d_f, &factors, n, M);
    residual_backward(d_df, d_f, &factors, n, M);
    assert_true(close_real("y", d_y, y, size));
    assert_true(close_real("df", d_df, df, size));
    residual_forward(d_x, d_x, d_f, &factors, n, M); /* in place */
    assert_true(close_real("y in place of x", d_x, y, size));
    release_all();
}

static void test_residual(void **state) {
    (void)state;
    residual_case(3, 5, 7, true);
    residual_case(2, 9, 48, true);
    residual_case(2, 4, 33, false);
    residual_case(1, 1, 1, true);
}

int main(void) {
    kernels_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unfold),
        cmocka_unit_test(test_patches),
        cmocka_unit_test(test_cells),
        cmocka_unit_test(test_residual),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
