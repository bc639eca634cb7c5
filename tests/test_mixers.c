/* The kernels of convolutional and relational mixers against their formulas in double. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/on_device.h"

static double *widened(const float *x, size_t n) {
    double *wide = zeros(n);
    for (size_t i = 0; i < n; i++) wide[i] = x[i];
    return wide;
}

/* == Layer norm of heads ========================================================================================== */

static const float EPSILON = 1e-6f;

/* n tokens of H heads of D, rows `row` apart, whose gaps stay as they are. */
static void heads_norm_case(size_t n, int row, int H, int D, bool bias) {
    size_t all = n * (size_t)row;
    printf("layer norm of heads n %zu row %d H %d D %d%s\n", n, row, H, D, bias ? ", bias" : "");
    float *x = normals(all, 1), *dy = normals(all, 1), *before = normals(all, 1), *w = normals(D, 1), *b = normals(D, 1);
    float *dw_before = normals(D, 1), *db_before = normals(D, 1);
    real *d_x = upload_real(x, all), *d_dy = upload_real(dy, all), *d_y = upload_real(before, all), *d_dx = upload_real(before, all);
    float *d_w = upload(w, D), *d_b = upload(b, D), *d_dw = upload(dw_before, D), *d_db = upload(db_before, D);
    double *y = widened(before, all), *dx = widened(before, all), *dw = widened(dw_before, D), *db = widened(db_before, D);
    for (size_t head = 0; head < n * H; head++) {
        size_t at = head / H * row + head % H * D;
        double mean = 0, variance = 0, sum = 0, along = 0;
        for (int c = 0; c < D; c++) mean += x[at + c] / (double)D;
        for (int c = 0; c < D; c++) variance += (x[at + c] - mean) * (x[at + c] - mean) / D;
        double r = 1 / sqrt(variance + EPSILON);
        for (int c = 0; c < D; c++) {
            double xh = (x[at + c] - mean) * r;
            y[at + c] = w[c] * xh + (bias ? b[c] : 0);
            dw[c] += dy[at + c] * xh;
            db[c] += dy[at + c];
            sum += (double)w[c] * dy[at + c] / D;
            along += (double)w[c] * dy[at + c] * xh / D;
        }
        for (int c = 0; c < D; c++) dx[at + c] = r * ((double)w[c] * dy[at + c] - sum - (x[at + c] - mean) * r * along);
    }
    kernels_reserve(heads_norm_workspace(D));
    heads_norm_forward(d_y, d_x, d_w, bias ? d_b : NULL, n, row, H, D, EPSILON);
    heads_norm_backward(d_dx, d_dw, bias ? d_db : NULL, d_dy, d_x, d_w, n, row, H, D, EPSILON);
    assert_true(close_real("y", d_y, y, all));
    assert_true(close_real("dx", d_dx, dx, all));
    assert_true(close_float("dw", d_dw, dw, D));
    assert_true(close_float("db", d_db, bias ? db : widened(db_before, D), D));
    float *again = upload(dw_before, D);
    heads_norm_backward(d_dy, again, NULL, d_dy, d_x, d_w, n, row, H, D, EPSILON);
    assert_memory_equal(download(again, D), download(d_dw, D), D * sizeof(float));
    release_all();
}

static void test_heads_norm(void **state) {
    (void)state;
    heads_norm_case(35, 45, 3, 5, true);
    heads_norm_case(70, 16, 1, 16, false);
    heads_norm_case(1, 40, 2, 19, true);
    heads_norm_case(131, 101, 3, 33, false);
}

/* == Rows ========================================================================================================= */

static void rows_case(size_t n, int M, int y_row, int a_row, int b_row) {
    printf("sums of rows n %zu M %d rows %d %d %d\n", n, M, y_row, a_row, b_row);
    float *before = normals(n * y_row, 1), *a = normals(n * a_row, 1), *b = normals(n * (b_row ? b_row : 1), 1);
    real *d_y = upload_real(before, n * y_row), *d_a = upload_real(a, n * a_row), *d_b = upload_real(b, n * (b_row ? b_row : 1));
    double *y = widened(before, n * y_row);
    for (size_t i = 0; i < n; i++)
        for (int m = 0; m < M; m++) y[i * y_row + m] = (double)a[i * a_row + m] + (b_row ? b[i * b_row + m] : 0);
    rows_add(d_y, d_a, b_row ? d_b : NULL, n, M, y_row, a_row, b_row);
    assert_true(close_real("y", d_y, y, n * y_row));
    release_all();
}

static void test_rows(void **state) {
    (void)state;
    rows_case(37, 15, 15, 45, 15);
    rows_case(9, 64, 128, 64, 192);
    rows_case(5, 24, 72, 24, 0);
    rows_case(1, 1, 1, 3, 0);
}

int main(void) {
    kernels_init();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_heads_norm), cmocka_unit_test(test_rows)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
