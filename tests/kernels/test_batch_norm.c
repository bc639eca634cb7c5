/* Batch norm in training against its formulas in double and central differences of these.  Sums over ranks are tested
 * in tests/programs/test_mpi.sh. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/differences.h"

typedef struct {
    int n, C;
    bool relu;
    double *x, *w, *b; /* of the formula */
    double *mean, *var;
} Case;

static const float EPS = 1e-5f, MOMENTUM = 0.1f;

static void statistics(const Case *k) {
    for (int c = 0; c < k->C; c++) {
        double sum = 0, squares = 0;
        for (int i = 0; i < k->n; i++) sum += k->x[i * k->C + c];
        for (int i = 0; i < k->n; i++) squares += pow(k->x[i * k->C + c] - sum / k->n, 2);
        k->mean[c] = sum / k->n;
        k->var[c] = squares / k->n;
    }
}

static void normalize(double *out, void *context) {
    const Case *k = context;
    statistics(k);
    for (int i = 0; i < k->n * k->C; i++) {
        int c = i % k->C;
        double y = k->w[c] * (k->x[i] - k->mean[c]) / sqrt(k->var[c] + (double)EPS) + k->b[c];
        out[i] = k->relu && !(y > 0) ? 0 : y;
    }
}

/* Sets dy to 0 where an output is near the kink of the ReLU, because a difference across it gives a wrong slope. */
static void away_from_kinks(float *dy, const Case *k) {
    for (int i = 0; k->relu && i < k->n * k->C; i++) {
        int c = i % k->C;
        double y = k->w[c] * (k->x[i] - k->mean[c]) / sqrt(k->var[c] + (double)EPS) + k->b[c];
        if (fabs(y) < 0.02) dy[i] = 0;
    }
}

static int running_agrees(const char *what, const float *got, const float *before, const double *now, double factor,
                          int C) {
    double *want = zeros((size_t)C);
    for (int c = 0; c < C; c++) want[c] = (1 - (double)MOMENTUM) * before[c] + (double)MOMENTUM * now[c] * factor;
    return close_float(what, got, want, (size_t)C);
}

static void norm_case(Case k) {
    size_t n = (size_t)k.n * (size_t)k.C, C = (size_t)k.C;
    printf("batch norm of %d rows, %d channels%s\n", k.n, k.C, k.relu ? ", relu" : "");
    float *x = normals(n, 1), *dy = normals(n, 1), *mean = normals(C, 1), *var = normals(C, 0.1f);
    for (size_t i = 0; i < n; i++) x[i] += 3; /* a mean that is not small compared with the deviation */
    for (size_t i = 0; i < C; i++) var[i] += 1;
    real *d_x = upload_real(x, n), *y = poisoned_real(n), *dx = poisoned_real(n);
    Parameter w = parameter(C, 0.3f, 1), b = parameter(C, 0.3f, 0);
    const BatchNorm norm = {w.device, b.device, poisoned(C), poisoned(C), upload(mean, C), upload(var, C),
                            k.n, k.C, EPS, MOMENTUM};
    k.x = wide(x, n);
    k.w = w.x;
    k.b = b.x;
    k.mean = zeros(C);
    k.var = zeros(C);
    double *want = zeros(n), others = k.n > 1 ? k.n - 1 : 1;
    kernels_reserve(batch_norm_workspace(&norm));

    normalize(want, &k);
    away_from_kinks(dy, &k);
    real *d_dy = upload_real(dy, n);
    batch_norm_forward(y, d_x, k.relu, &norm);
    if (k.n > 1) assert_true(close_real("y", y, want, n));
    assert_true(running_agrees("running mean", norm.running_mean, mean, k.mean, 1, k.C));
    assert_true(running_agrees("running variance", norm.running_var, var, k.var, k.n / others, k.C));
    batch_norm_backward(dx, w.gradient, b.gradient, d_dy, d_x, k.relu, &norm);
    const Function f = {normalize, &k, n, zeros(n), dy, 1e-4};
    if (k.n > 2) assert_true(slopes_agree("dx", download_real(dx, n), NULL, k.x, n, &f));
    assert_true(parameter_agrees("dw", &w, &f));
    assert_true(parameter_agrees("db", &b, &f));

    real *again = upload_real(x, n);
    batch_norm_forward(again, again, k.relu, &norm);
    assert_memory_equal(download_real(again, n), download_real(y, n), n * sizeof(float));
    batch_norm_backward(d_dy, w.gradient, b.gradient, d_dy, d_x, k.relu, &norm);
    assert_memory_equal(download_real(d_dy, n), download_real(dx, n), n * sizeof(float));
    release_all();
}

static void test_batch_norm(void **state) {
    (void)state;
    const Case cases[] = {
        {.n = 9, .C = 4, .relu = true}, {.n = 21, .C = 15}, {.n = 6, .C = 33},
        {.n = 131, .C = 32, .relu = true}, {.n = 700, .C = 19, .relu = true}, {.n = 1030, .C = 128},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) norm_case(cases[i]);
}

/* Inference uses the running averages instead of the statistics of the rows. */
static void test_inference(void **state) {
    (void)state;
    enum { N = 7, C = 19 };
    float *x = normals(N * C, 1), *w = normals(C, 1), *b = normals(C, 1), *mean = normals(C, 1), *var = normals(C, 0.2f);
    for (int c = 0; c < C; c++) var[c] += 1;
    const BatchNorm norm = {upload(w, C), upload(b, C), poisoned(C), poisoned(C), upload(mean, C), upload(var, C),
                            N, C, EPS, MOMENTUM};
    real *d_x = upload_real(x, N * C), *y = poisoned_real(N * C);
    double *want = zeros(N * C);
    for (int i = 0; i < N * C; i++) {
        int c = i % C;
        want[i] = fmax((double)w[c] * ((double)x[i] - mean[c]) / sqrt((double)var[c] + (double)EPS) + (double)b[c], 0);
    }
    kernels_reserve(batch_norm_workspace(&norm));
    batch_norm_inference(y, d_x, true, &norm);
    assert_true(close_real("y in inference", y, want, N * C));
    assert_memory_equal(download(norm.running_mean, C), mean, C * sizeof *mean);
    assert_memory_equal(download(norm.running_var, C), var, C * sizeof *var);
    release_all();
}

/* A single row has variance 0: the result is the bias, and the running variance only decays. */
static void test_one_row(void **state) {
    (void)state;
    enum { C = 5 };
    float *x = normals(C, 1), *w = normals(C, 1), *b = normals(C, 1), *none = keep(calloc(C, sizeof *none), false);
    float ones[C] = {1, 1, 1, 1, 1};
    const BatchNorm norm = {upload(w, C), upload(b, C), poisoned(C), poisoned(C), upload(none, C), upload(ones, C),
                            1, C, EPS, MOMENTUM};
    real *y = poisoned_real(C);
    kernels_reserve(batch_norm_workspace(&norm));
    batch_norm_forward(y, upload_real(x, C), false, &norm);
    assert_true(close_real("y", y, wide(b, C), C));
    const float *var = download(norm.running_var, C);
    for (int c = 0; c < C; c++) assert_float_equal(var[c], 0.9f, 1e-6f);
    release_all();
}

int main(void) {
    check_seed();
    kernels_init();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_batch_norm), cmocka_unit_test(test_inference),
                                       cmocka_unit_test(test_one_row)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
