/* Group norm and standardised weights against their formulas in double and central differences of these.  A convolution
 * with both, the unit of a hybrid's stem, against numbers that PyTorch computed in float64. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/differences.h"

/* == Group norm =================================================================================================== */

typedef struct {
    int B, N, C, groups;
    bool add, relu;
    double *x, *w, *b, *add_x; /* of the formula */
} Case;

static const float EPS = 1e-5f;

/* out [B,N,C] = the group norm of x, plus `add` unless that is NULL, and then a ReLU if `relu`. */
static void normalize(double *out, const Case *k, const double *add, bool relu) {
    int width = k->C / k->groups;
    for (int g = 0; g < k->B * k->groups; g++) {
        double sum = 0, squares = 0, count = (double)k->N * width;
        size_t first = (size_t)(g / k->groups) * (size_t)(k->N * k->C) + (size_t)(g % k->groups * width);
        for (int i = 0; i < k->N * width; i++) sum += k->x[first + (size_t)(i / width * k->C + i % width)];
        for (int i = 0; i < k->N * width; i++) {
            double d = k->x[first + (size_t)(i / width * k->C + i % width)] - sum / count;
            squares += d * d;
        }
        for (int i = 0; i < k->N * width; i++) {
            int c = g % k->groups * width + i % width;
            size_t at = first + (size_t)(i / width * k->C + i % width);
            double y = k->w[c] * (k->x[at] - sum / count) / sqrt(squares / count + (double)EPS) + k->b[c];
            if (add) y += add[at];
            out[at] = relu && !(y > 0) ? 0 : y;
        }
    }
}

static void norm_alone(double *out, void *context) { normalize(out, context, NULL, false); }

static void norm_case(Case k) {
    size_t n = (size_t)k.B * (size_t)k.N * (size_t)k.C, stats = (size_t)k.B * (size_t)k.groups;
    printf("group norm B %d, N %d, C %d, %d groups%s%s\n", k.B, k.N, k.C, k.groups, k.add ? ", added to" : "",
           k.relu ? ", relu" : "");
    float *x = normals(n, 1), *dy = normals(n, 1), *add = normals(n, 1);
    for (size_t i = 0; i < n; i++) x[i] += 3; /* a mean that is not small compared with the deviation */
    real *d_x = upload_real(x, n), *d_dy = upload_real(dy, n), *d_add = upload_real(add, n), *y = poisoned_real(n);
    Parameter w = parameter((size_t)k.C, 0.3f, 1), b = parameter((size_t)k.C, 0.3f, 0);
    const GroupNorm norm = {w.device, b.device, poisoned(stats), poisoned(stats), k.B, k.N, k.C, k.groups, EPS};
    k.x = wide(x, n);
    k.w = w.x;
    k.b = b.x;
    double *want = zeros(n), *wide_add = wide(add, n);
    kernels_reserve(group_norm_workspace(&norm));

    normalize(want, &k, k.add ? wide_add : NULL, k.relu);
    group_norm_forward(y, d_x, k.add ? d_add : NULL, k.relu, &norm);
    assert_true(close_real("y", y, want, n));
    if (k.add) group_norm_forward(d_add, d_x, d_add, k.relu, &norm);
    if (k.add) assert_true(close_real("y over what it adds to", d_add, want, n));
    real *d_again = upload_real(x, n), *dx = poisoned_real(n);
    group_norm_forward(d_again, d_again, NULL, false, &norm);
    normalize(want, &k, NULL, false);
    assert_true(close_real("y in place", d_again, want, n));

    group_norm_backward(dx, w.gradient, b.gradient, d_dy, d_x, false, &norm);
    const Function f = {norm_alone, &k, n, zeros(n), dy, 1e-4};
    assert_true(slopes_agree("dx", download_real(dx, n), NULL, k.x, n, &f));
    assert_true(parameter_agrees("dw", &w, &f));
    assert_true(parameter_agrees("db", &b, &f));
    float *apart = download_real(dx, n);
    group_norm_backward(d_dy, w.gradient, b.gradient, d_dy, d_x, false, &norm);
    assert_memory_equal(download_real(d_dy, n), apart, n * sizeof(float));
    release_all();
}

static void test_group_norm(void **state) {
    (void)state;
    const Case cases[] = {
        {.B = 2, .N = 9, .C = 4, .groups = 2, .relu = true},
        {.B = 3, .N = 7, .C = 15, .groups = 3, .add = true, .relu = true},
        {.B = 1, .N = 1, .C = 6, .groups = 1},
        {.B = 2, .N = 5, .C = 33, .groups = 33, .add = true},
        {.B = 2, .N = 131, .C = 32, .groups = 32, .relu = true},
        {.B = 1, .N = 6, .C = 300, .groups = 1, .add = true},
        {.B = 2, .N = 300, .C = 64, .groups = 32, .relu = true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) norm_case(cases[i]);
}

static void norm_and_relu(double *out, void *context) { normalize(out, context, NULL, true); }

/* The gradient through the ReLU, which backward computes again without forward's result. */
static void test_relu_backward(void **state) {
    (void)state;
    Case k = {.B = 2, .N = 37, .C = 24, .groups = 8, .relu = true};
    size_t n = (size_t)k.B * (size_t)k.N * (size_t)k.C, stats = (size_t)k.B * (size_t)k.groups;
    float *x = normals(n, 1), *dy = normals(n, 1);
    real *d_x = upload_real(x, n), *y = poisoned_real(n), *dx = poisoned_real(n);
    Parameter w = parameter((size_t)k.C, 0.3f, 1), b = parameter((size_t)k.C, 0.3f, 0);
    const GroupNorm norm = {w.device, b.device, poisoned(stats), poisoned(stats), k.B, k.N, k.C, k.groups, EPS};
    k.x = wide(x, n);
    k.w = w.x;
    k.b = b.x;
    double *plain = zeros(n);
    normalize(plain, &k, NULL, false);
    for (size_t i = 0; i < n; i++)
        if (fabs(plain[i]) < 0.02) dy[i] = 0; /* a difference across the kink gives a wrong slope */
    kernels_reserve(group_norm_workspace(&norm));
    group_norm_forward(y, d_x, NULL, true, &norm);
    group_norm_backward(dx, w.gradient, b.gradient, upload_real(dy, n), d_x, true, &norm);
    const Function f = {norm_and_relu, &k, n, zeros(n), dy, 1e-4};
    assert_true(slopes_agree("dx", download_real(dx, n), NULL, k.x, n, &f));
    assert_true(parameter_agrees("dw", &w, &f));
    assert_true(parameter_agrees("db", &b, &f));
    release_all();
}

/* An image in a batch gives the same as the image alone. */
static void test_images_apart(void **state) {
    (void)state;
    enum { B = 3, N = 11, C = 12, GROUPS = 4 };
    float *x = normals(B * N * C, 1), *w = normals(C, 1), *b = normals(C, 1);
    real *d_x = upload_real(x, B * N * C), *together = poisoned_real(B * N * C), *alone = poisoned_real(N * C);
    GroupNorm norm = {upload(w, C), upload(b, C), poisoned(B * GROUPS), poisoned(B * GROUPS), B, N, C, GROUPS, EPS};
    kernels_reserve(group_norm_workspace(&norm));
    group_norm_forward(together, d_x, NULL, true, &norm);
    const float *all = download_real(together, B * N * C);
    norm.B = 1;
    for (int i = 0; i < B; i++) {
        group_norm_forward(alone, d_x + i * N * C, NULL, true, &norm);
        assert_memory_equal(download_real(alone, N * C), all + i * N * C, N * C * sizeof(float));
    }
    release_all();
}

/* == Standardised weights ========================================================================================= */

typedef struct {
    int out, fan;
    double *w;
} Rows;

static void standardize(double *y, void *context) {
    const Rows *r = context;
    for (int o = 0; o < r->out; o++) {
        const double *w = r->w + (size_t)o * (size_t)r->fan;
        double sum = 0, squares = 0;
        for (int i = 0; i < r->fan; i++) sum += w[i];
        for (int i = 0; i < r->fan; i++) squares += (w[i] - sum / r->fan) * (w[i] - sum / r->fan);
        for (int i = 0; i < r->fan; i++)
            y[(size_t)o * (size_t)r->fan + (size_t)i] = (w[i] - sum / r->fan) / sqrt(squares / r->fan + 1e-8);
    }
}

static void test_standardize(void **state) {
    (void)state;
    const int sizes[][2] = {{4, 27}, {2, 5}, {7, 147}, {3, 1000}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        Rows r = {sizes[s][0], sizes[s][1], NULL};
        size_t n = (size_t)r.out * (size_t)r.fan;
        printf("standardised rows: %d of %d\n", r.out, r.fan);
        Parameter w = parameter(n, 0.1f, 0.05f);
        r.w = w.x;
        float *dy = normals(n, 1), *y = poisoned(n);
        double *want = zeros(n);
        const Standardized rows = {poisoned((size_t)r.out), poisoned((size_t)r.out), r.out, r.fan, 1e-8f};
        standardize(want, &r);
        standardize_forward(y, w.device, &rows);
        assert_true(close_float("y", y, want, n));
        standardize_backward(w.gradient, upload(dy, n), w.device, &rows);
        const Function f = {standardize, &r, n, zeros(n), dy, 1e-6};
        assert_true(parameter_agrees("dw", &w, &f));
        release_all();
    }
}

/* == A unit of the stem =========================================================================================== */

static float pattern(int tensor, int i) { return 0.3f * sinf(0.9f * (float)i + (float)tensor); }

static int near(const char *what, double got, double want) {
    float one = (float)got;
    return check_close(what, &one, &want, 1, sizeof(real) == 4 ? 2e-5 : 4e-2);
}

static double squares_of(const float *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
    return sum;
}

/* From 5 x 6 pixels of 3 channels to 3 x 3 of 4: a 3 x 3 convolution with standardised weights, stride 2 and
 * TensorFlow's padding, a group norm of 2 groups, and a ReLU. */
static void test_stem_unit(void **state) {
    (void)state;
    enum { H = 5, W = 6, IN = 3, OUT = 4, N = 9, FAN = 27 };
    const Convolution c = {IN, OUT, 3, 2, true};
    const ImageShape images = {1, H, W};
    float x[H * W * IN], dy[N * OUT], w[OUT * FAN], norm_w[OUT], norm_b[OUT];
    float ones[OUT] = {1, 1, 1, 1}, zeros4[OUT] = {0};
    for (int i = 0; i < H * W * IN; i++) x[i] = sinf(0.31f * (float)(i / IN) + 0.57f * (float)(i % IN));
    for (int i = 0; i < N * OUT; i++) dy[i] = cosf(0.23f * (float)(i / OUT) - 0.41f * (float)(i % OUT));
    for (int i = 0; i < OUT * FAN; i++) w[i] = pattern(1, i);
    for (int i = 0; i < OUT; i++) norm_w[i] = 1 + pattern(2, i);
    for (int i = 0; i < OUT; i++) norm_b[i] = pattern(3, i);

    float *d_w = upload(w, OUT * FAN), *y_w = poisoned(OUT * FAN), *scale = upload(ones, OUT);
    float *dw = upload(zeros4, OUT);
    const Standardized rows = {poisoned(OUT), poisoned(OUT), OUT, FAN, 1e-8f};
    const GroupNorm norm = {upload(norm_w, OUT), upload(norm_b, OUT), poisoned(2), poisoned(2), 1, N, OUT, 2, EPS};
    real *d_x = upload_real(x, H * W * IN), *raw = poisoned_real(N * OUT), *y = poisoned_real(N * OUT);
    real *d = upload_real(dy, N * OUT), *dx = poisoned_real(H * W * IN);
    void *folded = keep(device_malloc(convolution_folded_bytes(&c, true), "test"), true);
    kernels_reserve(group_norm_workspace(&norm));
    kernels_reserve(convolution_workspace(&c, &images, true));

    standardize_forward(y_w, d_w, &rows);
    convolution_fold(folded, y_w, scale, &c, true);
    convolution_forward(raw, d_x, NULL, folded, upload(zeros4, OUT), &c, false, &images);
    group_norm_forward(y, raw, NULL, true, &norm);
    const float *got = download_real(y, N * OUT);
    assert_true(near("y[0,0]", got[0], 1.81168955));
    assert_true(near("y[8,3]", got[N * OUT - 1], 0.54355632));
    assert_true(near("y[4,2]", got[4 * OUT + 2], 0.96804043));
    assert_true(near("sum y^2", squares_of(got, N * OUT), 14.58892711));

    float *nothing = keep(calloc(OUT * FAN, sizeof *nothing), false);
    float *dy_w = upload(nothing, OUT * FAN), *d_weight = upload(nothing, OUT * FAN);
    relu_gradient(d, d, y, N * OUT);
    group_norm_backward(d, dw, upload(zeros4, OUT), d, raw, false, &norm);
    convolution_backward_input(dx, NULL, d, folded, NULL, &c, &images);
    convolution_backward_weight(dy_w, d, d_x, scale, &c, &images);
    standardize_backward(d_weight, dy_w, d_w, &rows);
    const float *slope = download_real(dx, H * W * IN);
    if (sizeof(real) == 4) assert_true(fabs((double)slope[0] - -0.00140623) < 1e-6); /* a small difference of large numbers */
    assert_true(near("sum dx^2", squares_of(slope, H * W * IN), 1.15538396));
    assert_true(near("sum dw^2", squares_of(download(d_weight, OUT * FAN), OUT * FAN), 7.99024590));
    release_all();
}

int main(void) {
    check_seed();
    kernels_init();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_group_norm), cmocka_unit_test(test_relu_backward),
                                       cmocka_unit_test(test_images_apart),
                                       cmocka_unit_test(test_standardize), cmocka_unit_test(test_stem_unit)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_exit();
    return failed;
}
